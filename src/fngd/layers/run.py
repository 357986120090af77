"""What the layers of one attached model share: the phase, the batch at hand, the forward pass under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fngd.policies import Policy
from fngd.settings import Settings
from fngd.weighted import Notes, Scratch


@dataclass
class Run:
    """The state of one attached model between and during its forward passes."""

    settings: Settings
    policy: Policy
    deriving: bool
    batch: int | None = None
    """Samples in the model's current batch; None until the model itself has been called."""
    notes: dict[object, tuple[Tensor, Notes]] = field(default_factory=dict)
    """The layers used in the current forward pass, each with its token, while coefficients are being derived."""
    scratch: Scratch = field(default_factory=Scratch)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model starts: note the batch size, forget the uses of the pass before."""
        x = _first_tensor((*args, *kwargs.values()))
        dim = self.settings.batch_dim
        self.batch = x.shape[dim] if x is not None and x.dim() > dim else None
        if self.deriving:
            self.notes = {}

    def end(self) -> None:
        """An optimizer step is over: what it knew of its batch does not hold for the next."""
        self.batch, self.notes = None, {}


def _first_tensor(values: Any) -> Tensor | None:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        return next((found for value in values if (found := _first_tensor(value)) is not None), None)
    return None
