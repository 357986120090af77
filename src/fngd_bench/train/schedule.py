"""How the learning rate goes over a run: a factor of the method's own rate, as a function of the share that is done."""

from __future__ import annotations

from collections.abc import Callable

WARM_UP = 0.1
"""Share of the run in which "warm-up" climbs."""


def steps(done: float) -> float:
    """A tenth after half of the run, a hundredth after three quarters (the paper's section 5)."""
    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


def warm_up(done: float) -> float:
    """Linearly up to 1, then linearly down to 0."""
    return done / WARM_UP if done < WARM_UP else (1.0 - done) / (1.0 - WARM_UP)


SCHEDULES: dict[str, Callable[[float], float]] = {"steps": steps, "warm-up": warm_up}


def factor(name: str, step: int, total: int) -> float:
    """The factor of step number `step` of `total`.

    Args:
        name: A key of `SCHEDULES`.
        step: From 0.
        total: Steps of the run.

    Returns:
        What the learning rate is multiplied by; a warm-up's first step is a small one, not none.
    """
    return SCHEDULES[name]((step + 0.5) / total)
