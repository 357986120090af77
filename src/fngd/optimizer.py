"""Stage 5b: `FNGD`, torch.optim.SGD on the weighted gradients that `NaturalGradient` leaves in `p.grad`."""

from __future__ import annotations

import math
from collections.abc import Collection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from fngd.policies import Policy
from fngd.preconditioner import NaturalGradient
from fngd.statistics import LayerStatistics

ENTRY = "natural_gradient"
"""The name of the preconditioner's part in a state."""


class FNGD(torch.optim.SGD):
    """Fast natural gradient descent: SGD with momentum on the natural gradient, at SGD's price after the first epoch.

    w ← w − η · (momentum and weight decay of) (1/M) U c, where U holds a layer's per-sample gradients and
    c = (I + UᵀU/(λM))⁻¹ 1 is derived for `derive_steps` steps and shared as their mean afterwards.

    Example:
        >>> import torch, fngd
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = fngd.FNGD(model, lr=0.1, momentum=0.9, derive_steps=10)
        >>> torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        >>> optimizer.step()
        >>> optimizer.phase
        'derive'
    """

    def __init__(
        self,
        model: nn.Module,
        params: ParamsT | None = None,
        *,
        lr: float | Tensor,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        fused: bool | None = None,
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
        """Attach to a model; see `NaturalGradient` for the arguments after `fused` and torch.optim.SGD for the others.

        Args:
            model: The model to train.
            params: Parameters or groups of them, as torch takes them; all of the model's by default.
            lr: Learning rate η.
            momentum: Factor of the momentum buffer.
            dampening: How much less a new gradient counts in the momentum buffer.
            weight_decay: Factor of the L2 penalty.
            nesterov: Nesterov's momentum.
            maximize: Climb instead of descend.
            fused: Use torch's fused kernel; by default wherever torch has one for all parameters.
            alpha: The paper's damping rule λ = α‖UᵀU‖_F.
            damping: A constant λ in place of the rule.
            derive_steps: Steps that derive coefficients before they are shared; `len(loader)` is one epoch.
            policy: When to derive and what to share, in place of `Shared(derive_steps)`.
            scale_by_damping: Multiply each layer's gradient by 1/λ; by default the learning rate absorbs it.
            loss_reduction: How the loss adds up the samples, "mean" or "sum".
            batch_dim: The dimension of the model's inputs that counts the samples.
            gram_budget: Bytes of scratch memory that one layer's Gram matrix may hold while it is computed. By default
                a quarter of what the step holds anyway, between 4.5 and 72 MiB; in a compiled graph 72 MiB.
            gram_route: A route to the Gram matrix to take wherever it is possible: "pairwise", "pixels", "kernel" or
                "materialised"; by default the one that is expected to be quickest, which `fngd.doctor` prints.
            exclude: Names of modules to leave alone.
            process_group: The ranks that train this model together; by default all, if there are several.

        Raises:
            TypeError: If `model` is not a module.
            ValueError: If an argument is out of range, or the model has no layer that could be preconditioned.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model={type(model).__name__} must be a torch.nn.Module: FNGD(model, lr=…) takes the model, and "
                "parameters or groups, if any, after it"
            )
        _check_update(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        if fused and any(_fused_loses(parameter) for parameter in model.parameters()):
            raise ValueError(
                f"fused={fused!r} does not go with parameters of half precision on a CPU: torch's kernel leaves most "
                "of them as they were. Leave it out"
            )
        super().__init__(
            model.parameters() if params is None else params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
            fused=_can_fuse(model) if fused is None else fused,
        )
        # A GradScaler would leave a step that overflows to torch's fused kernel, and if that is the first step, its
        # momentum buffer stays memory that nobody filled. Without this it skips the step, as for most optimizers.
        self._step_supports_amp_scaling = False
        self.preconditioner: NaturalGradient = NaturalGradient(
            model,
            self,
            alpha=alpha,
            damping=damping,
            derive_steps=derive_steps,
            policy=policy,
            scale_by_damping=scale_by_damping,
            loss_reduction=loss_reduction,
            batch_dim=batch_dim,
            gram_budget=gram_budget,
            gram_route=gram_route,
            exclude=exclude,
            process_group=process_group,
        )
        """What weights the gradients, and counts the steps."""

    @property
    def phase(self) -> str:
        """Either "derive", if the next step computes its own coefficients, or "share", if it uses c̃."""
        return self.preconditioner.phase

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """c̃ of every layer that has derived, by name: (M,), or (1,) where the policy shares one number."""
        return self.preconditioner.coefficients

    def statistics(self) -> dict[str, LayerStatistics]:
        """What the derived batches said, by layer name."""
        return self.preconditioner.statistics()

    def detach(self) -> None:
        """Give the model back as it was; the optimizer goes on as plain SGD."""
        self.preconditioner.detach()

    def __enter__(self) -> FNGD:
        """The model stays attached inside the `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach."""
        self.detach()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch does; layers whose parameters come in are attached too.

        While coefficients are derived they derive with the others. In the share phase they have none, take the plain
        gradient and are warned of by name.

        Args:
            param_group: The parameters under "params", with settings that differ from the defaults.
        """
        super().add_param_group(param_group)
        if "preconditioner" in self.__dict__:
            self.preconditioner.extend(self.param_groups[-1]["params"])

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], buffers: list[Tensor | None]
    ) -> bool:
        """As torch does; momentum buffers that are missing among others are made, which torch's fused kernel needs."""
        sparse: bool = super()._init_group(group, params, grads, buffers)  # type: ignore[no-untyped-call]
        late = [buffer is None for buffer in buffers]
        if group["fused"] and group["momentum"] and any(late) and not all(late):
            for index, missing in enumerate(late):
                if missing:
                    buffers[index] = _first_buffer(group, params[index], grads[index])
        return sparse

    def state_dict(self) -> dict[str, Any]:
        """Torch's state with the preconditioner's beside it, under "natural_gradient".

        It is also in the first group, since torch.distributed.checkpoint carries states and groups and nothing beside
        them: in a tuple, which it takes as one piece, whatever has been derived by then.
        """
        state, own = super().state_dict(), self.preconditioner.state_dict()
        state["param_groups"][0][ENTRY] = (own,)
        return {**state, ENTRY: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; which of torch's kernels makes the update stays as it is here.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            ValueError: If it was saved by another optimizer or for another model.
        """
        own = state_dict.get(ENTRY) or next((g[ENTRY][0] for g in state_dict["param_groups"] if ENTRY in g), None)
        if own is None:
            raise ValueError(
                f"the state has no entry {ENTRY!r}: it was not saved by FNGD, or something has dropped it (such as "
                "torch.distributed.checkpoint with flatten_optimizer_state_dict=True). To start from a checkpoint of "
                "torch.optim.SGD, load it into a torch.optim.SGD, or start FNGD without optimizer state"
            )
        kernels = [group["fused"] for group in self.param_groups]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != ENTRY})
        for group, fused in zip(self.param_groups, kernels, strict=True):
            group.pop(ENTRY, None)
            group["fused"] = fused
        self.preconditioner.load_state_dict(own)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of: torch's, and the preconditioner with its model."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "preconditioner": self.preconditioner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is attached to the copy of the model; torch's `load_state_dict` comes by here too, without one."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "preconditioner" in state and self.preconditioner.attached:
            self.preconditioner.follow(self)


def _first_buffer(group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> Tensor:
    """The b for which momentum · b + (1 − dampening) g is g: a parameter's first step takes the gradient as it is."""
    if group["dampening"] == 0:
        return torch.zeros_like(gradient)
    gradient = torch.add(-gradient if group["maximize"] else gradient, parameter, alpha=group["weight_decay"])
    first: Tensor = gradient * (group["dampening"] / group["momentum"])
    return first


def _check_update(
    *, lr: float | Tensor, momentum: float, dampening: float, weight_decay: float, nesterov: bool
) -> None:
    numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    for name, value in numbers.items():
        if not isinstance(value, int | float | Tensor) or not 0 <= float(value) < math.inf:
            raise ValueError(f"{name}={value!r} must be a finite number, 0 or above, as in torch.optim.SGD")
    if not isinstance(dampening, int | float) or not math.isfinite(dampening):
        raise ValueError(f"dampening={dampening!r} must be a finite number, as in torch.optim.SGD")
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError(
            f"nesterov=True needs momentum above 0 and dampening 0, but momentum={momentum!r}, dampening={dampening!r}"
        )


def _can_fuse(model: nn.Module) -> bool:
    """Whether torch's fused SGD takes every parameter: no sparse gradients, no DTensor, and only some devices."""
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    return not sparse and all(_is_usual(p) and not _fused_loses(p) for p in model.parameters())


def _is_usual(parameter: Tensor) -> bool:
    usual = type(parameter) is nn.Parameter and parameter.is_floating_point()
    return usual and parameter.device.type in ("cpu", "cuda", "mps", "xpu")


def _fused_loses(parameter: Tensor) -> bool:
    """Whether torch's fused SGD leaves most of a parameter as it was: github.com/pytorch/pytorch/issues/191763.

    True of every torch up to 2.13; this may go when no such torch is supported.
    """
    return parameter.device.type == "cpu" and parameter.dtype in (torch.bfloat16, torch.float16)
