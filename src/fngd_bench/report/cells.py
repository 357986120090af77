"""The cells that the terminal's table and the page's tables share, as text."""

from __future__ import annotations

from fngd_bench.report.numbers import DASH, Reach, quantity, unit
from fngd_bench.report.summary import REFERENCE, Group, MethodSummary

NOTES = (
    "± is the standard deviation over seeds; fewer than three runs are marked.",
    "A target that was missed is ∞ and stays in the median; brackets say how many runs reached it.",
    "Ratios with an interval were measured interleaved in one process (fngd bench step). Those with ≈ compare runs "
    "that were timed one after the other: median step · mean step.",
    "Memory with * was measured in a process of its own; the rest is the highest peak above what the process held "
    "before the model was built.",
)
"""What one must know to read the cells."""


def final(group: Group, summary: MethodSummary) -> str:
    """The final metric, and what keeps runs from having one.

    Args:
        group: The group.
        summary: One of its methods.

    Returns:
        The text.
    """
    number = DASH if summary.final is None else summary.final.text(unit(group.metric))
    return ", ".join([number, *troubles(summary)])


def troubles(summary: MethodSummary) -> list[str]:
    """Runs that did not finish, counted.

    Args:
        summary: A method.

    Returns:
        A phrase for each state that is not "finished".
    """
    return [f"{count} {name}" for name, count in sorted(summary.states.items()) if name != "finished"]


def target(reach: Reach | None, suffix: str = "") -> str:
    """A time to the target.

    Args:
        reach: What each run took.
        suffix: Its unit with a space before it.

    Returns:
        The text.
    """
    return DASH if reach is None else reach.text(suffix)


def step_ratio(summary: MethodSummary) -> str:
    """Time per step over the reference's: interleaved where that was measured, otherwise from the runs.

    Args:
        summary: A method.

    Returns:
        The text.
    """
    if summary.method == REFERENCE and summary.step is not None:
        return "1"
    if summary.price is not None:
        return summary.price.time.text()
    if summary.step is None or summary.step.median_ratio is None or summary.step.mean_ratio is None:
        return DASH
    return f"≈ {summary.step.median_ratio:.2f} · {summary.step.mean_ratio:.2f}"


def memory(summary: MethodSummary) -> str:
    """Peak memory: of a process of its own where that was measured, otherwise from the runs.

    Args:
        summary: A method.

    Returns:
        The text.
    """
    if summary.price is not None and summary.price.peak_mib is not None:
        return f"{summary.price.peak_mib:,.0f} MiB *"
    return DASH if summary.peak_mib is None else quantity(summary.peak_mib.high, " MiB", 0)
