"""What the demo says of its outcome: a table, the price of a step, and how much the coefficients still tell apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rich.table import Table

from fngd_bench.demo import EpochResult, Outcome, Plan, median_ms
from fngd_bench.price.ratios import Ratio, paired_ratio


def table(plan: Plan, outcome: Outcome) -> Table:
    """Both runs side by side, a row for each epoch.

    Args:
        plan: What both were given.
        outcome: Both runs.

    Returns:
        The table.
    """
    drawn = Table(
        title=f"scikit-learn digits, small CNN with BatchNorm, batch {plan.batch}, lr {plan.lr:g}, seed {plan.seed}",
        caption="one run each, same weights, batches and schedule; acc. is on 360 test images",
    )
    drawn.add_column("epoch", justify="right")
    for name in ("SGD-m", "FNGD"):
        for quantity in ("loss", "acc.", "seconds", "ms/step"):
            drawn.add_column(f"{name}\n{quantity}", justify="right", no_wrap=True)
    drawn.add_column("FNGD\nphase")
    for number, (sgd, natural) in enumerate(zip(outcome.sgd, outcome.natural, strict=True)):
        drawn.add_row(str(number + 1), *_cells(sgd), *_cells(natural), "derive" if number == 0 else "share")
    drawn.add_section()
    drawn.add_row("all", *_total(outcome.sgd), *_total(outcome.natural), "")
    return drawn


def sentences(outcome: Outcome) -> list[str]:
    """What one may conclude, and what not.

    Args:
        outcome: Both runs.

    Returns:
        The price of a step, then the coefficients.
    """
    derive, share = _ratio(outcome, slice(1)), _ratio(outcome, slice(1, None))
    price = (
        f"A sharing step took {share.text(2)} × SGD's, a deriving one {derive.text(2)} ×. Steps this short say "
        "little of real models: `fngd bench step` prices those."
    )
    return [price, coefficient_sentence(outcome)]


def coefficient_sentence(outcome: Outcome) -> str:
    """How much the shared coefficients still tell the samples apart, held against what chance alone would leave.

    Positions in a shuffled batch have no identity. If they carry nothing, the mean over n batches keeps 1/√n of the
    spread inside a batch.

    Args:
        outcome: Both runs.

    Returns:
        The sentence.
    """
    layers = list(outcome.statistics.values())
    means = [layer.coefficient_mean for layer in layers]
    inside = statistics.median(layer.coefficient_spread for layer in layers)
    shared = statistics.median(layer.shared_spread for layer in layers)
    batches = min(layer.batches for layer in layers)
    chance = inside / math.sqrt(batches)
    # One and a half: a standard deviation over 64 positions is itself uncertain by a tenth, and batches are correlated.
    verdict = (
        "that is no more than chance: from epoch 2 on, this FNGD is close to SGD with one factor per layer"
        if shared <= 1.5 * chance
        else "that is more than chance: the positions in these batches carry something"
    )
    return (
        f"Coefficients: their mean is {min(means):.3f} to {max(means):.3f} over {len(layers)} layers; samples inside a "
        f"batch differ by {inside:.4f}, positions of the shared coefficients by {shared:.4f} (medians of the standard "
        f"deviations). Averaging {batches} batches of shuffled samples would leave {chance:.4f} by chance; {verdict}."
    )


def _ratio(outcome: Outcome, epochs: slice) -> Ratio:
    sgd, natural = ([t for page in run[epochs] for t in page.step_seconds] for run in (outcome.sgd, outcome.natural))
    return paired_ratio(natural, sgd)


def _cells(result: EpochResult) -> tuple[str, str, str, str]:
    seconds = f"{sum(result.step_seconds):.2f}"
    return f"{result.loss:.4f}", f"{100 * result.accuracy:.1f} %", seconds, f"{median_ms([result]):.1f}"


def _total(run: Sequence[EpochResult]) -> tuple[str, str, str, str]:
    """The last loss and accuracy, all seconds, the median step."""
    seconds = sum(sum(result.step_seconds) for result in run)
    last = _cells(run[-1])
    return last[0], last[1], f"{seconds:.2f}", f"{median_ms(run):.1f}"
