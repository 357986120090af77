"""What differs between runs that stand in one cell, or side by side, though it should not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fngd_bench.runs.events import Setting
from fngd_bench.runs.reader import Run

_SHARED: dict[str, Callable[[Run], Setting]] = {
    "epochs": lambda run: run.settings.epochs,
    "batch": lambda run: run.settings.batch,
    "steps an epoch": lambda run: run.settings.steps_per_epoch,
    "schedule": lambda run: run.settings.schedule,
    "target": lambda run: run.settings.target,
    "parameters": lambda run: run.header.parameters,
    "commit": lambda run: run.provenance.commit and run.provenance.commit[:12],
    "uncommitted changes": lambda run: run.provenance.dirty,
    "fngd": lambda run: run.provenance.fngd,
    "torch": lambda run: run.provenance.torch,
    "Python": lambda run: run.provenance.python,
    "processor": lambda run: run.provenance.cpu,
    "cores": lambda run: run.provenance.cores,
    "threads": lambda run: run.provenance.threads,
}
"""What all runs of a group should have in common."""


def of_method(runs: Sequence[Run]) -> tuple[str, ...]:
    """What differs between the runs of one method, beside the seed.

    Args:
        runs: Its runs.

    Returns:
        A phrase each.
    """
    names = sorted({name for run in runs for name in run.settings.hyperparameters})
    numbers = {name: [run.settings.hyperparameters.get(name, "unset") for run in runs] for name in names}
    seeds = Counter(run.settings.seed for run in runs)
    twice = [f"seed {seed} counts {count} times" for seed, count in sorted(seeds.items()) if count > 1]
    return (*_differing(numbers), *_differing(_common(runs)), *twice)


def of_group(by_method: Mapping[str, Sequence[Run]], target: float | None) -> tuple[str, ...]:
    """What differs between the methods of a group.

    Args:
        by_method: Runs of each method.
        target: The target that all are judged by.

    Returns:
        A phrase each.
    """
    runs = [run for own in by_method.values() for run in own]
    found = list(_differing(_common(runs)))
    if len({run.settings.target for run in runs}) > 1:
        found.append(f"all runs are judged by the newest target, {_word(target)}")
    seeds = {name: sorted({run.settings.seed for run in own}) for name, own in by_method.items()}
    if len(set(map(tuple, seeds.values()))) > 1:
        found.append("seeds: " + "; ".join(f"{name} {', '.join(map(str, own))}" for name, own in seeds.items()))
    return tuple(found)


def _common(runs: Sequence[Run]) -> dict[str, list[Setting]]:
    return {name: [of(run) for run in runs] for name, of in _SHARED.items()}


def _differing(values: Mapping[str, Sequence[Setting]]) -> tuple[str, ...]:
    """A phrase for each name with more than one value."""
    distinct = {name: list(dict.fromkeys(map(_word, some))) for name, some in values.items()}
    return tuple(f"{name}: {' and '.join(words)}" for name, words in distinct.items() if len(words) > 1)


def _word(value: Setting) -> str:
    """A setting as it is written."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
