"""What the layers of one attached model share: the phase, the batch at hand, the forward pass under way.

A sample is what enters the model: inside the model's own forward pass, its first input says how many there are, and
all uses of a layer belong together. A layer called from outside of it is a batch of its own. Activation checkpointing
runs parts of the forward pass again during the backward pass; the batch size is then that of the latest forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fngd.policies import Policy
from fngd.scratch import Scratch
from fngd.settings import Settings
from fngd.weighted import NO_BACKWARD, Notes, current_backward

Open = dict[object, tuple[Tensor, Notes]]
"""Layers used in a pass, each with the token its parameters hang on and the notes on its uses."""


@dataclass
class Run:
    """The state of one attached model between and during its forward passes."""

    settings: Settings
    policy: Policy
    deriving: bool
    batch: int | None = None
    """Samples in the batch of the model's forward pass under way; None outside of one."""
    scratch: Scratch = field(default_factory=Scratch)
    watch: Callable[[str, Tensor], None] | None = None
    """Told the name and the Gram matrix, divided by its norm, of each layer that derives."""
    look: Callable[[Any], None] | None = None
    """Shown what the model returns, as long as somebody has yet to find something in it."""
    entered: bool = False
    """Whether a forward pass of the model has begun since the last step."""
    used: set[object] | None = None
    """Heads that the forward pass under way has used; None outside of one."""
    _depth: int = 0
    """Calls of the model's forward that are under way."""
    _latest: int | None = None
    """`batch` of the latest forward pass."""
    _open: Open = field(default_factory=dict)

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model starts; a model that calls itself is still in the same pass."""
        self._depth += 1
        self.entered = True
        if self._depth == 1:
            x, dim = _first_tensor((*args, *kwargs.values())), self.settings.batch_dim
            self.batch = self._latest = x.shape[dim] if x is not None and x.dim() > dim else None
            if self.deriving:
                self._open, self.used = {}, set()

    def show(self, output: Any) -> None:
        """The model's forward pass has come to its output."""
        if self.look is not None and self._depth == 1:
            self.look(output)

    def leave(self) -> None:
        """A forward pass of the model is over."""
        self._depth -= 1
        if self._depth == 0:
            self.batch = self.used = None

    def end(self) -> None:
        """An optimizer step is over: what was known of its batch does not hold for the next."""
        self._latest, self._open, self.entered = None, {}, False
        if not self.deriving:
            self.scratch.trim()

    def recomputed_batch(self) -> int | None:
        """Samples in the batch of a part that is run again during a backward pass; None outside of one."""
        return self._latest if current_backward() != NO_BACKWARD else None

    def open(self) -> Open:
        """The layers whose uses belong together with a use that is made now."""
        return self._open if self._depth or current_backward() != NO_BACKWARD else {}


def _first_tensor(values: Any) -> Tensor | None:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        return next((found for value in values if (found := _first_tensor(value)) is not None), None)
    return None
