"""Stage 5a: `NaturalGradient` attaches to a model, counts steps, switches between deriving and sharing, keeps c̃.

After `loss.backward()` every preconditioned parameter's `.grad` already holds the weighted gradient, so whatever comes
next (clipping, accumulation, reduction over processes, any torch optimizer) works on it unchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from fngd.arguments import chosen_policy, settings_for
from fngd.history import History
from fngd.layers.attach import attach_layer, attach_root, detach, layer_of
from fngd.layers.base import Layer
from fngd.layers.registry import kinds, survey, tied
from fngd.layers.run import Run
from fngd.layers.search import Search
from fngd.policies import FromHead, Policy
from fngd.ranks import Ranks
from fngd.settings import Settings
from fngd.statistics import LayerStatistics, statistics_of
from fngd.wrappers import unwrapped


class NaturalGradient:
    """Precondition the gradients of a model by the natural gradient, under any torch optimizer.

    Example:
        >>> import torch, fngd
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> natural = fngd.NaturalGradient(model, optimizer, derive_steps=100)
        >>> natural.phase
        'derive'
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        alpha: float = 0.005,
        damping: float | None = None,
        derive_steps: int | None = None,
        policy: Policy | None = None,
        scale_by_damping: bool = False,
        loss_reduction: str = "mean",
        batch_dim: int = 0,
        gram_budget: int | None = None,
        gram_route: str | None = None,
        exclude: Collection[str] = (),
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Attach to a model.

        Args:
            model: The model to precondition; what DistributedDataParallel or torch.compile has wrapped is unwrapped.
            optimizer: The optimizer whose steps are counted; layers none of whose parameters it holds are left alone.
                Without it, the steps of whichever optimizer holds the first preconditioned parameter that is trained
                are counted.
            alpha: The paper's damping rule λ = α‖UᵀU‖_F.
            damping: A constant λ in place of the rule. With it the coefficients depend on the scale of the loss, a
                GradScaler's included.
            derive_steps: Steps that derive coefficients before they are shared; `len(loader)` is one epoch.
            policy: When to derive and what to share, in place of `Shared(derive_steps)`.
            scale_by_damping: Multiply each layer's gradient by 1/λ; by default the learning rate absorbs it. λ sees
                the scale of the loss, a GradScaler's included.
            loss_reduction: How the loss adds up the samples, "mean" or "sum". It matters for λ only.
            batch_dim: The dimension of the model's inputs that counts the samples.
            gram_budget: Bytes of scratch memory that one layer's Gram matrix may hold while it is computed. By default
                a quarter of what the step holds anyway, between 4.5 and 72 MiB; in a compiled graph 72 MiB.
            gram_route: A route to the Gram matrix to take wherever it is possible: "pairwise", "pixels", "kernel" or
                "materialised"; by default the one that is expected to be quickest, which `fngd.doctor` prints.
            exclude: Names of modules to leave alone, with everything below them.
            process_group: The ranks that train this model together: c̃ is averaged over them when deriving ends. By
                default all ranks, if torch.distributed has been initialised.

        Raises:
            ValueError: If an argument is out of range, or the model has no layer that could be preconditioned.
        """
        settings = Settings(
            alpha=alpha,
            damping=damping,
            scale_by_damping=scale_by_damping,
            loss_reduction=loss_reduction,
            batch_dim=batch_dim,
            gram_budget=gram_budget,
            gram_route=gram_route,
        )
        policy = chosen_policy(policy, derive_steps)
        settings = settings_for(policy, settings)
        inside = unwrapped(model)
        model = inside.model
        if isinstance(policy, FromHead) and policy.head is not None:
            policy = replace(policy, head=inside.bare(policy.head))
        self.model: nn.Module = model
        self.step_count: int = 0
        self.layers: list[Layer] = []
        self._run = Run(settings, policy, policy.derives(0))
        self._exclude = tuple(map(inside.bare, (exclude,) if isinstance(exclude, str) else exclude))
        self._ranks = Ranks(process_group)
        self._warned = False
        self._optimizer = optimizer
        self._hook: RemovableHandle | None = None
        held = model.parameters() if optimizer is None else _parameters(optimizer)
        try:
            self._attach(held)
        except ValueError:
            detach(model, self._run)
            raise
        if not self.layers and self._search is None:
            names = ", ".join(sorted(kind if isinstance(kind, str) else kind.__name__ for kind in kinds()))
            raise ValueError(
                f"{type(model).__name__} has no layer to precondition: supported are {names}. fngd.doctor(model) says "
                "why for each module; fngd.register_layer adds a kind; torch.optim.SGD trains it as it is"
            )
        attach_root(model, self._run)
        self.attached: bool = True
        """Whether gradients are preconditioned: until `detach`."""
        self.follow(optimizer)

    def follow(self, optimizer: Optimizer | None) -> None:
        """Count the steps of an optimizer from now on.

        Args:
            optimizer: The optimizer; None for whichever holds the first preconditioned parameter that is trained.
        """
        self._optimizer = optimizer
        if optimizer is None:
            self._hook = register_optimizer_step_post_hook(self._after_any_step)
        else:
            self._hook = optimizer.register_step_post_hook(self._after_step)

    def extend(self, parameters: Iterable[nn.Parameter]) -> None:
        """Attach the layers that hold any of these parameters and are not attached yet.

        Modules with a parameter in common become one layer. Under `FromHead` there is nothing to do: what lies below
        the head inherits its weights, whoever trains it.

        Args:
            parameters: Parameters of the model.
        """
        if self._search is not None:
            return
        wanted = {id(parameter) for parameter in parameters}
        for group in tied([finding for finding in survey(self.model, self._exclude) if finding.kind is not None]):
            if not any(id(parameter) in wanted for finding in group for parameter in finding.module.parameters()):
                continue
            layer = next((layer for f in group if (layer := layer_of(f.module)) in self.layers and layer), None)
            if layer is None:
                layer = Layer(group[0].name, [], self._run)
                self.layers.append(layer)
            layer.places = [place for finding in group for place in finding.places]
            for finding in group:
                if finding.kind is not None and layer_of(finding.module) is not layer:
                    attach_layer(finding.module, layer, finding.kind.rule)

    def _attach(self, parameters: Iterable[nn.Parameter]) -> None:
        """Attach what the policy needs: the layers that hold these parameters, or the head."""
        policy, self._search = self._run.policy, None
        if isinstance(policy, FromHead):
            self._search = Search(self.model, self._run, policy, self._exclude, self.layers.append)
        self.extend(parameters)

    @property
    def phase(self) -> str:
        """Either "derive", if the next step computes its own coefficients, or "share", if it uses c̃."""
        return "derive" if self._run.deriving else "share"

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """c̃ of every layer that has derived, by name: (M,), or (1,) where the policy shares one number."""
        policy = self._run.policy
        return {
            layer.name: policy.share(layer.history.mean).clone()
            for layer in self.layers
            if layer.history.mean is not None
        }

    def statistics(self) -> dict[str, LayerStatistics]:
        """What the derived batches said, by layer name; layers that have derived nothing are left out."""
        return {layer.name: statistics_of(layer.history) for layer in self.layers if layer.history.mean is not None}

    def average(self) -> None:
        """Make every rank's coefficients and statistics their mean over the ranks; all ranks must call it together.

        It is done by itself when deriving ends. Do it before a checkpoint that is saved earlier by one rank for all.
        """
        if self.layers and self._ranks.several:
            known = (layer.history.mean.device for layer in self.layers if layer.history.mean is not None)
            device = next(known, self.layers[0].parameters[0].device)
            self._ranks.average({layer.name: layer.history for layer in self.layers}, device)

    def watch(self, watcher: Callable[[str, Tensor], None] | None) -> None:
        """Look at the Gram matrices as they are derived.

        Args:
            watcher: Called with a layer's name and its K/‖K‖_F, (M, M), in each deriving backward; None for nobody.
        """
        self._run.watch = watcher

    def detach(self) -> None:
        """Give the model back as it was. Gradients are plain from now on; coefficients and statistics stay readable."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self.attached = False
        detach(self.model, self._run)

    def __enter__(self) -> NaturalGradient:
        """The model stays attached inside the `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach."""
        self.detach()

    def state_dict(self) -> dict[str, Any]:
        """The step counter and every layer's coefficients: plain numbers and tensors, safe to load."""
        return {"step": self.step_count, "layers": {layer.name: vars(layer.history).copy() for layer in self.layers}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Args:
            state: What `state_dict` returned.

        Raises:
            ValueError: If it is of another model.
        """
        if self._search is not None:
            state = {**state, "layers": self._head_state(self._search, state["layers"])}
        names, saved = {layer.name for layer in self.layers}, set(state["layers"])
        if names != saved:
            odd = sorted(names ^ saved)
            raise ValueError(
                f"the state is of another model: {len(odd)} layers are only here or only there, {odd[0]!r} first. "
                "Build the optimizer with the same model and the same `exclude`"
            )
        for layer in self.layers:
            device = layer.parameters[0].device
            values = state["layers"][layer.name]
            moved: dict[str, Any] = {k: None if v is None else v.to(device).clone() for k, v in values.items()}
            layer.history = History(**moved)
            layer.sharing.c = None
            layer.refresh()
        self._start(state["step"])

    def _head_state(self, search: Search, saved: dict[str, Any]) -> dict[str, Any]:
        """A saved state knows the head if it was known then; if it was not, the head has no history."""
        if len(saved) == 1:
            search.adopt(next(iter(saved)))
        return saved or {layer.name: vars(History()) for layer in self.layers}

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of; the model's copy is plain and gets attached by `__setstate__`."""
        kept = {key: vars(self)[key] for key in ("model", "attached", "_exclude", "_ranks", "_warned", "_optimizer")}
        held = [parameter for layer in self.layers for parameter in layer.parameters]
        run = (self._run.settings, self._run.policy)
        return {**kept, "held": held, "run": run, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Attach to the copied model, if the original was attached to its own."""
        if "_modules" not in vars(state["model"]):
            raise TypeError(
                f"{type(state['model']).__name__} holds its own optimizer: a copy or pickle of the one would need the "
                "other's first. Keep the optimizer outside of the model; in Lightning, self.optimizers() finds it"
            )
        state = dict(state)
        held, (settings, policy), progress = (state.pop(key) for key in ("held", "run", "state"))
        vars(self).update(state, layers=[], step_count=0, _hook=None)
        self._run = Run(settings, policy, policy.derives(0))
        self._attach(held)
        attach_root(self.model, self._run)
        self.load_state_dict(progress)
        if not self.attached:
            detach(self.model, self._run)
        elif self._optimizer is None or "param_groups" in vars(self._optimizer):
            self.follow(self._optimizer)  # else it is an FNGD on its way, which will ask for it

    def _after_any_step(self, optimizer: Optimizer, *_: object) -> None:
        layered = [parameter for layer in self.layers for parameter in layer.parameters]
        held = layered if self._search is None else self.model.parameters()
        first = next((parameter for parameter in held if parameter.requires_grad), None)
        if any(parameter is first for parameter in _parameters(optimizer)):
            self._after_step(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if not self._run.entered and _sets_up(optimizer):
            return
        derived, step = self._run.deriving, self.step_count + 1
        if derived and self._search is None:
            self._check_held(optimizer)
        self._run.end()
        if self._search is not None:
            self._search.tidy()
        if derived and bool(getattr(optimizer, "found_inf", False)):
            return  # a GradScaler has told a fused optimizer to change nothing
        if derived and not self._run.policy.derives(step):
            self.average()
        self._start(step)
        if derived:
            self._warn_of_skipped()

    def _check_held(self, optimizer: Optimizer) -> None:
        """Parameters may have been exchanged since the optimizer was made, which then trains nothing."""
        held = set(map(id, _parameters(optimizer)))
        if not any(id(parameter) in held for layer in self.layers for parameter in layer.parameters):
            raise RuntimeError(
                f"fngd: {type(optimizer).__name__} holds none of the parameters that layer {self.layers[0].name!r} and "
                "the others have now: they were exchanged after it was made, as fully_shard does. Make the optimizer "
                "after that, as any torch optimizer"
            )

    def _start(self, step: int) -> None:
        """Get ready for step number `step`."""
        self.step_count = step
        if self._run.prepare(step):
            for layer in self.layers:
                layer.refresh()

    def _warn_of_skipped(self) -> None:
        if self._run.all_valid() or self._warned:
            return
        bad = [layer.name for layer in self.layers if layer.history.skipped > 0]
        self._warned = True
        warnings.warn(
            f"fngd: NaN or Inf in the gradients of {len(bad)} layers, {bad[0]!r} first (or a damping so small that "
            "their Gram matrix cannot be factorised, or a head's residuals so uneven that its coefficients have a mean "
            "near zero): such a batch takes the plain gradient and does not enter the shared coefficients. A "
            "GradScaler skips its step, as it should. Said once; statistics() counts them",
            stacklevel=2,
        )


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sets_up(optimizer: Optimizer) -> bool:
    """Whether a step without a forward pass before it is none: torch.distributed.checkpoint takes one of length 0.

    It does so to make an optimizer's state, before it saves or loads it.
    """
    return all(float(group.get("lr", 1.0)) == 0.0 for group in optimizer.param_groups)
