"""One optimizer made of several: parameters that want different rules, or a rule under the natural gradient.

`Composite` holds the parameter groups and the state; its parts work on the same groups and the same state. So a
scheduler that changes a group's learning rate reaches the part, and `state_dict` is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import fngd


class Composite(Optimizer):
    """Optimizers of different parameters that step together."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        """Take over the parts' groups and state.

        Args:
            parts: Optimizers without a parameter in common, none of which has stepped yet.
        """
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        for part in self.parts:
            part.state = self.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the optimizer is made: nothing says which part a later group belongs to.

        Args:
            param_group: The group.

        Raises:
            ValueError: If the optimizer is made already.
        """
        if "parts" in vars(self):
            raise ValueError(
                f"param_group: {type(self).__name__} takes no group later on, since nothing says which of its parts "
                "it belongs to; pass all groups when it is made"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every part.

        Args:
            closure: Computes the loss and its gradients anew; called once.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of: torch's, and the parts."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "parts": self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Hand groups and state on to the parts; torch's `load_state_dict` comes by here with new ones."""
        super().__setstate__(state)
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.__setstate__({"state": self.state, "param_groups": self.param_groups[start:end]})
            start = end


class Preconditioned(Composite):
    """An optimizer that steps along natural gradients: `fngd.NaturalGradient` under it, and both in `state_dict`."""

    def __init__(self, model: nn.Module, part: Optimizer, **settings: Any) -> None:
        """Attach to the model.

        Args:
            model: The model.
            part: The optimizer of its parameters.
            settings: Of `fngd.NaturalGradient`.
        """
        super().__init__([part])
        self.preconditioner = fngd.NaturalGradient(model, self, **settings)

    def state_dict(self) -> dict[str, Any]:
        """Torch's state with the preconditioner's beside it, under "natural_gradient", as `fngd.FNGD` has it."""
        return {**super().state_dict(), "natural_gradient": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            ValueError: If it was saved by another optimizer.
        """
        if "natural_gradient" not in state_dict:
            raise ValueError(
                "the state has no entry 'natural_gradient': it was saved by another optimizer; load it into that one, "
                "or start without optimizer state"
            )
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "natural_gradient"})
        self.preconditioner.load_state_dict(state_dict["natural_gradient"])

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of: the composite's, and the preconditioner with its model."""
        return {**super().__getstate__(), "preconditioner": self.preconditioner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is attached to the copy of the model; torch's `load_state_dict` comes by here too, without one."""
        super().__setstate__(state)
        if "preconditioner" in state and self.preconditioner.attached:
            self.preconditioner.follow(self)


def preconditioner(optimizer: Optimizer) -> fngd.NaturalGradient | None:
    """The natural gradient under an optimizer.

    Args:
        optimizer: Any optimizer.

    Returns:
        It, or None if the optimizer takes plain gradients.
    """
    return optimizer.preconditioner if isinstance(optimizer, fngd.FNGD | Preconditioned) else None
