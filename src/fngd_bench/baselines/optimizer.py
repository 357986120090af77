"""What KFAC and Eva share: SGD with momentum on gradients that a layer-wise preconditioner has changed.

    w ← w − lr · (momentum and weight decay of) ν v,      v = P⁻¹ g for each preconditioned layer

The parts, in the order of a step: `capture` measures the layers in the backward pass; the statistics enter the running
averages in `state`; the method turns each layer's gradient into its direction v; `rescale` finds ν; `update` has
torch.optim.SGD take the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from fngd_bench.baselines.capture import Capture, Notes, Sums
from fngd_bench.baselines.layers import Layer, survey
from fngd_bench.baselines.rescale import Directions, clip_factor, shortened, squared_length
from fngd_bench.baselines.settings import Settings, can_fuse, check_update
from fngd_bench.baselines.state import LayerState, load
from fngd_bench.baselines.update import update
from fngd_bench.clock import section
from fngd_bench.errors import InputError

_KEY = "preconditioner"


class PreconditionedSGD(torch.optim.SGD, ABC):
    """SGD's update on preconditioned gradients; what P is, a subclass says.

    Linear layers and convolutions (Conv2d, groups=1) are preconditioned, the bias as part of the weight. `plain` lists
    the modules that are not, with the reason: their parameters take the plain gradient. Among them are
    MultiheadAttention, whose projections are not called as modules and so cannot be measured by hooks, and weights
    that two modules share. A layer whose statistics are not known yet takes the plain gradient too.

    The loss is a mean over the samples. A GradScaler is not supported: it would scale the statistics.
    """

    def __init__(
        self,
        model: nn.Module,
        params: ParamsT | None,
        *,
        lr: float | Tensor,
        momentum: float,
        weight_decay: float,
        settings: Settings,
    ) -> None:
        """Attach to a model.

        Args:
            model: The model to train.
            params: Parameters or groups of them, as torch takes them; all of the model's if None.
            lr: Learning rate.
            momentum: Factor of the momentum buffer.
            weight_decay: Factor of the L2 penalty.
            settings: What the preconditioner is set to.

        Raises:
            InputError: If an argument is out of range, or the model has no layer to precondition.
        """
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model={type(model).__name__} must be a torch.nn.Module: the model comes first, and parameters or "
                "groups, if any, after it"
            )
        check_update(lr=lr, momentum=momentum, weight_decay=weight_decay)
        super().__init__(
            model.parameters() if params is None else params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            fused=can_fuse(model),
        )
        self.model, self.settings, self.steps = model, settings, 0
        self._states: dict[str, LayerState] = {}
        self._plain: dict[str, str] = {}
        self._capture: Capture | None = None
        self._attach()

    @staticmethod
    @abstractmethod
    def measure(layer: Layer, x: Tensor, z: Tensor) -> Sums:
        """What is added up over the columns of one use of a layer, from the entries of its input and of z."""

    @staticmethod
    @abstractmethod
    def statistics(notes: Notes) -> tuple[Tensor, Tensor]:
        """The two statistics that are averaged over the batches, from the sums of one step."""

    @abstractmethod
    def direction(self, state: LayerState, gradient: Tensor) -> Tensor:
        """P⁻¹ times a layer's gradient, (d_out, width)."""

    @property
    def preconditioned(self) -> tuple[str, ...]:
        """The names of the layers that are preconditioned; none after `detach`."""
        return () if self._capture is None else tuple(self._capture.layers)

    @property
    def plain(self) -> dict[str, str]:
        """The modules whose parameters take the plain gradient, by name, each with the reason."""
        return dict(self._plain)

    @property
    def states(self) -> dict[str, LayerState]:
        """What is known of each layer that was measured, by name."""
        return dict(self._states)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Computes the loss and its gradients anew.

        Returns:
            What `closure` returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad(), section("precondition"):
            directions = self._directions()
        update(self, directions)
        self.steps += 1
        self._set_capture()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch does; what was measured along with these gradients is forgotten with them.

        Args:
            set_to_none: Drop the gradients instead of filling them with zeros.
        """
        super().zero_grad(set_to_none)
        if self._capture is not None:
            self._capture.forget()

    def detach(self) -> None:
        """Remove the hooks from the model; the optimizer goes on as plain SGD."""
        if self._capture is not None:
            self._capture.detach()
        self._capture = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch does; layers whose parameters come in are preconditioned too.

        Args:
            param_group: The parameters under "params", with settings that differ from the defaults.
        """
        super().add_param_group(param_group)
        if self.__dict__.get("_capture") is not None:
            self._attach()

    def state_dict(self) -> dict[str, Any]:
        """Torch's state with the preconditioner's beside it, under "preconditioner"."""
        layers = {name: state.saved() for name, state in self._states.items()}
        own = {"method": type(self).__name__, "steps": self.steps, "layers": layers}
        return {**super().state_dict(), _KEY: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            InputError: If it was saved by another optimizer or for another model.
        """
        own = state_dict.get(_KEY, {})
        if own.get("method") != type(self).__name__:
            raise InputError(
                f"the state has no entry {_KEY!r} of method {type(self).__name__!r}: it was saved by another "
                "optimizer; load it into that one, or start without optimizer state"
            )
        layers = {} if self._capture is None else self._capture.layers
        unknown = sorted(set(own["layers"]) - set(layers))
        if unknown:
            raise InputError(
                f"the state has a layer {unknown[0]!r} that is not preconditioned here ({', '.join(layers)} are): "
                "load it for the model it was saved with"
            )
        states = {name: load(layers[name], saved) for name, saved in own["layers"].items()}
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})
        self._states, self.steps = states, own["steps"]
        self._set_capture()

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of: torch's, and ours with the model."""
        own = {key: self.__dict__[key] for key in ("model", "settings", "steps", "_states", "_plain")}
        return {**super().__getstate__(), **own, "_attached": self._capture is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is attached to the copy of the model; torch's `load_state_dict` comes by here too, without one."""
        attached = state.get("_attached")
        super().__setstate__({key: value for key, value in state.items() if key != "_attached"})  # type: ignore[no-untyped-call]
        if attached is not None:
            self._capture = None
        if attached:
            self._attach()

    def _attach(self) -> None:
        if self._capture is not None:
            self._capture.detach()
        trained = {id(p) for group in self.param_groups for p in group["params"]}
        layers, self._plain = survey(self.model, trained)
        known = {name: state for name, state in self._states.items() if name in layers}
        # a bias that came in later makes a layer's matrices one column wider: it starts anew
        self._states = {name: state for name, state in known.items() if len(state.inputs) == layers[name].width}
        self._capture = Capture(self.model, layers, self.measure)
        self._set_capture()

    def _set_capture(self) -> None:
        if self._capture is not None:
            self._capture.on = self.steps % self.settings.statistics_every == 0

    def _directions(self) -> Directions:
        if self._capture is None:
            return []
        self._fold(self._capture.take())
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        directions: Directions = []
        products = []
        for name, layer in self._capture.layers.items():
            state, gradient = self._states.get(name), layer.gradient()
            if state is not None and gradient is not None:
                pieces = layer.pieces(self.direction(state, gradient))
                products.append(squared_length(pieces, rates))
                directions += pieces
        return shortened(directions, clip_factor(products, self.settings.kl_clip)) if directions else []

    def _fold(self, notes: dict[str, Notes]) -> None:
        """Enter a step's statistics; one that is not finite spoils the batch, and none of them is entered."""
        fresh = {name: self.statistics(note) for name, note in notes.items()}
        if not _all_finite([t for pair in fresh.values() for t in pair]):
            return
        for name, (inputs, outputs) in fresh.items():
            if name in self._states:
                self._states[name].fold(inputs, outputs, self.settings.decay)
            else:
                self._states[name] = LayerState(inputs, outputs)


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no entry is NaN or Inf; one number is read for all tensors together."""
    return not tensors or bool(torch.stack([t.sum() for t in tensors]).isfinite().all())
