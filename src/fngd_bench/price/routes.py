"""`fngd bench routes`: is the planner's route to each Gram matrix the quickest one?

For each shape among a model's weights, every route takes its turn in every round, in an order drawn anew. What is timed
is the whole price of a weight in a deriving step: its Gram matrix and the weighted gradient after it, which is c·U
where the route has left U at hand. Before each call a large buffer is touched, so that caches are as cold as a backward
pass finds them. Routes that would hold more memory than the budget are not possible.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fngd.diagnosis import shape_text
from fngd.gram import gram, plan_of
from fngd.planner import MOST, ROUTES, Budget, Plan, at_most
from fngd.scratch import Scratch
from fngd.uses import Use
from fngd.weighted import weighted_backward
from fngd_bench import clock
from fngd_bench.errors import InputError
from fngd_bench.here import provenance
from fngd_bench.price import race, steps
from fngd_bench.price.neighbours import Watch
from fngd_bench.price.record import REFERENCE, StepSettings
from fngd_bench.price.routes_record import RoutesRecord, RoutesSettings, RouteTimes, ShapeTimes
from fngd_bench.price.uses import Weights, diagnosis, weights_by_shape

WARMUP = 1
"""Untimed rounds: scratch memory grows in them, and kernels are made ready."""
COLD_BYTES = 64 * 2**20
"""Touched before each timed call."""
HOPELESS = 100.0
"""Of the chosen route's expected time: a route that is expected to take more is not timed, it might take minutes."""


def resolve(
    model: str, *, rounds: int, batch: int | None = None, budget: int | None = None, seed: int = 0
) -> RoutesSettings:
    """Check what is asked for and fill in defaults.

    Args:
        model: Name of the model.
        rounds: Timed calls of each route.
        batch: Samples, M; by default the model's.
        budget: MiB of scratch memory that one Gram matrix may hold; by default the library's.
        seed: Of weights, batch, gradients and order.

    Returns:
        The resolved settings.

    Raises:
        InputError: If one is out of range.
    """
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be at least 1; 7 give a median worth reading")
    if budget is not None and budget < 1:
        raise InputError(f"budget={budget} must be at least 1 MiB; leave it out for the library's own choice")
    step = _step(model, batch, seed)
    allowed = Budget(diagnosis(step).gram_budget, MOST) if budget is None else at_most(budget * 2**20)
    return RoutesSettings(
        model=model,
        classes=step.classes,
        batch=step.batch,
        budget_bytes=allowed.bytes,
        most_bytes=allowed.most,
        rounds=rounds,
        warmup=WARMUP,
        seed=seed,
    )


def _step(model: str, batch: int | None, seed: int) -> StepSettings:
    """The same model and batch in `fngd bench step`."""
    return steps.resolve(model, (REFERENCE,), steps=1, batch=batch, seed=seed)


def weights(wanted: RoutesSettings) -> tuple[Weights, ...]:
    """The shapes of the model's weights, with real inputs of each.

    Args:
        wanted: Resolved settings.

    Returns:
        The shapes.
    """
    with torch.random.fork_rng():
        begin = race.start(_step(wanted.model, wanted.batch, wanted.seed))
        return weights_by_shape(begin.model, begin.batch.inputs)


def pieces(wanted: RoutesSettings, found: Sequence[Weights]) -> int:
    """How often `measure` will report progress.

    Args:
        wanted: Resolved settings.
        found: The shapes.

    Returns:
        Rounds of all shapes.
    """
    return (wanted.warmup + wanted.rounds) * len(found)


def measure(wanted: RoutesSettings, found: Sequence[Weights], advance: race.Advance) -> RoutesRecord:
    """Time every possible route on every shape.

    Args:
        wanted: Resolved settings.
        found: The shapes.
        advance: Told of each round when it is done.

    Returns:
        The record.
    """
    watch = Watch()
    stage = _Stage(wanted, watch)
    with torch.no_grad():
        measured = tuple(stage.times(weight, advance) for weight in found)
    return RoutesRecord(settings=wanted, measured=measured, surroundings=watch.seen(), provenance=provenance())


def possible(uses: Sequence[Use], budget: Budget) -> dict[str, Plan]:
    """The routes that a weight's Gram matrix can take within the budget and without hope lost, and the planner's own.

    Args:
        uses: The uses of the weight.
        budget: Bytes of scratch memory to hold at most.

    Returns:
        The plan of each route, by its name.
    """
    chosen = plan_of(uses, budget)
    plans = {route: plan_of(uses, budget, route) for route in ROUTES}

    def is_timed(route: str, plan: Plan) -> bool:
        fits = plan.bytes <= budget.most and plan.seconds <= HOPELESS * chosen.seconds
        return plan.route == route and (fits or route == chosen.route)

    return {route: plan for route, plan in plans.items() if is_timed(route, plan)}


def weighted_gradient(uses: Sequence[Use], c: Tensor, scratch: Scratch, budget: Budget, route: str) -> Tensor:
    """What a deriving step does for one weight, but for the solve: K by a route, then Σ_m c_m u_m.

    Args:
        uses: The uses of the weight.
        c: The samples' coefficients, (M,).
        scratch: Where intermediate results are put.
        budget: Bytes of scratch memory to hold at most.
        route: The route.

    Returns:
        The weighted gradient.
    """
    found = gram(uses, None, scratch, budget, route)
    if found.weigh is not None:
        return found.weigh(c)
    total: Tensor | None = None
    for use in uses:
        spread = use.operation.samples.spread(c, use.x.dim())
        _, gradient, _ = weighted_backward(use, spread, (False, True, False), scratch)
        assert gradient is not None
        total = gradient if total is None else total.add_(gradient)
    assert total is not None
    return total


class _Stage:
    """What all shapes share: scratch memory, the buffer that cools the caches, the orders."""

    def __init__(self, wanted: RoutesSettings, watch: Watch) -> None:
        self.wanted, self.watch = wanted, watch
        self.budget, self.scratch = Budget(wanted.budget_bytes, wanted.most_bytes), Scratch()
        self.cold = torch.zeros(COLD_BYTES, dtype=torch.uint8)
        self.order = np.random.default_rng(wanted.seed)
        self.generator = torch.Generator().manual_seed(wanted.seed)

    def times(self, weight: Weights, advance: race.Advance) -> ShapeTimes:
        """All routes on one shape."""
        wanted, uses, name = self.wanted, weight.drawn(self.generator), shape_text(weight.shape)
        plans = possible(uses, self.budget)
        gc.collect()
        for _ in range(wanted.warmup):
            self._round(uses, list(plans))
            advance(f"{name}: warm-up")

        def timed(before: int) -> dict[str, float]:
            elapsed = self._round(uses, list(plans))
            if before < wanted.rounds:
                advance(f"{name}: round {before + 1}/{wanted.rounds}")
            return elapsed

        kept = self.watch.calm(timed, wanted.rounds)
        return ShapeTimes(
            shape=name,
            sizes=weight.shape._asdict(),
            layer=weight.layer,
            count=weight.count,
            chosen=plan_of(uses, self.budget).route,
            routes=tuple(
                RouteTimes(route=route, expected=plan.seconds, seconds=tuple(round(each[route], 8) for each in kept))
                for route, plan in plans.items()
            ),
        )

    def _round(self, uses: Sequence[Use], routes: Sequence[str]) -> dict[str, float]:
        """One call of each route, in an order of its own."""
        M, dtype = uses[0].operation.samples.M, uses[0].z.dtype
        c = torch.rand(M, generator=self.generator, dtype=dtype)
        elapsed = {}
        for route in self.order.permutation(routes).tolist():
            unknown = [use._replace(x=use.x.detach()) for use in uses]  # no product of it with itself is kept
            call = partial(weighted_gradient, unknown, c, self.scratch, self.budget, route)
            self.cold.add_(1)
            elapsed[route] = clock.seconds(call)
        return elapsed
