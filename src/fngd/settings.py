"""The numbers of the method, checked at the door."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fngd.planner import MOST, ROUTES


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How coefficients are derived and gradients scaled.

    Args:
        alpha: The paper's rule λ = α‖UᵀU‖_F.
        damping: A constant λ in place of the rule.
        scale_by_damping: Whether the gradient is multiplied by 1/λ, as Algorithm 1 of the paper has it.
        loss_reduction: "mean" or "sum": how the loss adds up the samples. It matters for λ only.
        batch_dim: The dimension of the model's inputs that counts the samples.
        gram_budget: Bytes of scratch memory that the Gram matrix of one layer may hold while it is computed; None for
            a share of what the step holds anyway.
        gram_route: A route to take wherever it is possible, in place of the planner's choice.
    """

    alpha: float = 0.005
    damping: float | None = None
    scale_by_damping: bool = False
    loss_reduction: str = "mean"
    batch_dim: int = 0
    gram_budget: int | None = None
    gram_route: str | None = None

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha, "the damping is alpha times the norm of the Gram matrix; 0.005 is usual")
        if self.damping is not None:
            _check_positive("damping", self.damping, "a constant λ; leave it out for the rule λ = alpha·‖UᵀU‖")
        if self.loss_reduction not in ("mean", "sum"):
            raise ValueError(
                f"loss_reduction={self.loss_reduction!r} must be 'mean' or 'sum': how the loss adds up the samples"
            )
        if isinstance(self.batch_dim, bool) or not isinstance(self.batch_dim, int) or self.batch_dim < 0:
            raise ValueError(f"batch_dim={self.batch_dim!r} must be a dimension counted from the front: 0, 1, …")
        budget = 1 if self.gram_budget is None else self.gram_budget
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise ValueError(
                f"gram_budget={budget!r} must be a number of bytes, at least 1, or None for a share of what the step "
                f"holds, {MOST} at most"
            )
        if self.gram_route is not None and self.gram_route not in ROUTES:
            raise ValueError(
                f"gram_route={self.gram_route!r} must be one of {', '.join(ROUTES)}, or None for the planner's"
            )


def _check_positive(name: str, value: float, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r} must be a finite number above 0: {meaning}")
