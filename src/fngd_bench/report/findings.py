"""What the reader must see first: does sharing c̃ beat one constant per layer, and does c̃ hold more than a constant?

Positions in a shuffled batch have no identity. If they carry nothing, the mean over n batches keeps 1/√n of the spread
inside a batch; c̃ is held against that.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from fngd_bench.report.numbers import counted, unit
from fngd_bench.report.paired import Difference, difference
from fngd_bench.report.summary import Group, MethodSummary, final_metric
from fngd_bench.runs.events import LayerCoefficients

SHARED, CONSTANT = "fngd", "fngd-constant"
TOLERANCE = 1.5
"""c̃ is called constant up to this many times what chance leaves: a standard deviation over 64 positions is itself
uncertain by a tenth, and batches are correlated."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence at the top of the page, with what it is about."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How far c̃ is from one constant per layer; spreads are medians over layers and runs."""

    runs: int
    layers: int
    mean_low: float
    mean_high: float
    inside: float
    """Standard deviation of c inside a batch."""
    shared: float
    """Standard deviation of c̃ over positions."""
    batches: int

    @property
    def chance(self) -> float:
        """What averaging leaves of the spread inside a batch if positions carry nothing."""
        return self.inside / math.sqrt(self.batches)

    @property
    def constant(self) -> bool:
        """Whether c̃ differs over positions by no more than chance."""
        return self.shared <= TOLERANCE * self.chance


def findings(group: Group) -> tuple[Finding, ...]:
    """What a group says of the control and of c̃.

    Args:
        group: The group.

    Returns:
        Sentences; none for a group without the method.
    """
    if group.of(SHARED) is None:
        return ()
    return (
        Finding(title="The control.", text=control_sentence(group)),
        Finding(title="Is c̃ a constant?", text=coefficient_sentence(group)),
    )


def control(group: Group) -> Difference | None:
    """Final metric of shared c̃ less that of one constant per layer, paired by seed.

    Args:
        group: The group.

    Returns:
        The difference; None if no seed was run to its end with both.
    """
    shared, constant = (_finals(group.of(name)) for name in (SHARED, CONSTANT))
    seeds = sorted(shared.keys() & constant.keys())
    return difference([shared[seed] for seed in seeds], [constant[seed] for seed in seeds]) if seeds else None


def control_sentence(group: Group) -> str:
    """What the control says, in words.

    Args:
        group: The group.

    Returns:
        The sentence.
    """
    found, shown = control(group), unit(group.metric)
    if found is None:
        return f"No seed was run to its end with both {SHARED} and {CONSTANT}: whether sharing helps is not known here."
    gap = f"{_signed(shown.factor * found.mean)} {shown.points}"
    begin = f"Final {group.metric} of {SHARED} (shared c̃) less that of {CONSTANT} (one constant per layer): {gap}"
    if found.n < 2:
        return f"{begin}, from one pair of runs ({counted(1)}): one pair has no interval and shows nothing."
    low, high = _signed(shown.factor * found.low), _signed(shown.factor * found.high)
    verdict = "no difference is shown" if not found.shown else "sharing helped" if found.mean > 0 else "sharing hurt"
    return f"{begin}, 95 % interval {low} to {high}, paired by seed ({counted(found.n)}): {verdict}."


def evidence(group: Group) -> Evidence | None:
    """What the recorded coefficients of the shared method say.

    Args:
        group: The group.

    Returns:
        The evidence; None if no coefficients were recorded.
    """
    summary = group.of(SHARED)
    last = [run.coefficients[-1].layers for run in summary.runs if run.coefficients] if summary else []
    layers: list[LayerCoefficients] = [layer for run in last for layer in run.values() if layer.batches]
    if not layers:
        return None
    means = [layer.coefficient_mean for layer in layers]
    return Evidence(
        runs=len(last),
        layers=len({name for run in last for name in run}),
        mean_low=min(means),
        mean_high=max(means),
        inside=statistics.median(layer.coefficient_spread for layer in layers),
        shared=statistics.median(layer.shared_spread for layer in layers),
        batches=min(layer.batches for layer in layers),
    )


def coefficient_sentence(group: Group) -> str:
    """How much the shared coefficients still tell the samples apart.

    Args:
        group: The group.

    Returns:
        The sentences.
    """
    fact = "Samples are shuffled, so a position in the batch has no identity, and c̃ tends to one constant per layer."
    found = evidence(group)
    if found is None:
        return f"{fact} No coefficients were recorded here, so this was not measured."
    verdict = (
        f"No more than chance: after the deriving steps, {SHARED} is close to SGD with one factor per layer."
        if found.constant
        else "More than chance: the positions in these batches carry something."
    )
    return (
        f"{fact} Measured: the mean of c is {found.mean_low:.3f} to {found.mean_high:.3f} over {found.layers} layers; "
        f"inside a batch c varies by {found.inside:.4f}, over positions c̃ varies by {found.shared:.4f} (standard "
        f"deviations, medians over layers and runs, {counted(found.runs)}). Chance alone would leave "
        f"{found.chance:.4f} after {found.batches:,} batches. {verdict}"
    )


def _signed(value: float) -> str:
    """With its sign, a minus as long as a plus."""
    return f"{value:+.2f}".replace("-", "−")


def _finals(summary: MethodSummary | None) -> dict[int, float]:
    """Final metric by seed; of two runs with one seed the newer counts, which stands last."""
    runs = summary.runs if summary else ()
    return {run.settings.seed: metric for run in runs if (metric := final_metric(run)) is not None}
