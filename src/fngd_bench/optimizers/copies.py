"""What the optimizers of `pytorch_optimizer` lack of torch's contract: copies that can step."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer


class Copies(Optimizer):
    """Keeps the settings that lie on the optimizer itself: torch's own copies hold groups, state and defaults only."""

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of; a scheduler puts its own `step` on the optimizer, which stays here."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "step"}
