"""Finding hyperparameters: the same number of trials for every method, by grid or by Optuna's TPE.

Trials lie in one journal file that survives an interruption and that several processes, or machines with a common
folder, may work on at once: each takes the next trial that nobody has. A trial that was stopped, or whose record has
not been written to for long, is put back into the queue. A diverged trial counts, with the worst metric there is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import optuna
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from fngd_bench import optimizers
from fngd_bench.errors import InputError
from fngd_bench.optimizers import Range
from fngd_bench.runs import reader
from fngd_bench.runs.best import Best
from fngd_bench.runs.events import Setting
from fngd_bench.runs.progress import Progress
from fngd_bench.train.compare import run_all
from fngd_bench.train.run import Request, choose, folder

SAMPLERS = ("grid", "tpe")
STALE_SECONDS = 900.0
"""A trial whose record is older than this is taken for dead."""
FILE = "trials.log"
"""Name of the journal of trials in the folder of a tuning."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What is tuned, and how."""

    request: Request
    """The run of each trial, but for what is varied; its `out` is the folder of the tuning."""
    trials: int
    sampler: str = "tpe"

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise InputError(f"trials={self.trials} must be at least 1")
        if self.sampler not in SAMPLERS:
            raise InputError(f"sampler={self.sampler!r} is not known: choose {' or '.join(SAMPLERS)}")
        choose(self.request)

    @property
    def space(self) -> Mapping[str, Range]:
        """What is varied."""
        return optimizers.method(self.request.method).space


def tune(tuning: Tuning, report: Callable[[int, Progress], None]) -> Best:
    """Do the trials that are left.

    Args:
        tuning: What is asked for.
        report: Told the number of a trial and how far its run is.

    Returns:
        The best of all trials, those of earlier and of other processes included.

    Raises:
        KeyboardInterrupt: If a trial was stopped; it is back in the queue.
    """
    study = _study(tuning)
    while (trial := _next(study, tuning)) is not None:
        request = _request(tuning, trial.number, {**tuning.request.hyperparameters, **trial.params})
        try:
            run_all([request], lambda _, progress, number=trial.number: report(number, progress))  # type: ignore[misc]
            run = reader.read(folder(request).record)
        except BaseException:
            _put_back(study, trial.number, trial.params)
            raise
        if run.end is None or run.end.reason == "stopped":
            _put_back(study, trial.number, trial.params)
            raise KeyboardInterrupt
        study.tell(trial, run.epochs[-1].metric if run.end.reason == "finished" else 0.0)
    return _best(study, tuning)


def grid(space: Mapping[str, Range], trials: int) -> list[dict[str, float]]:
    """Exactly `trials` points: as many levels of each hyperparameter as a balanced factorisation gives.

    Args:
        space: What is varied; the first hyperparameter gets the most levels.
        trials: Points.

    Returns:
        The points; a hyperparameter with one level stays in the middle of its range.
    """
    levels = [_levels(values, count) for values, count in zip(space.values(), factors(trials, len(space)), strict=True)]
    return [dict(zip(space, point, strict=True)) for point in product(*levels)]


def factors(number: int, count: int) -> list[int]:
    """`count` whole numbers, as alike as can be, whose product is `number`, the largest first.

    Args:
        number: The product, at least 1.
        count: How many, at least 1.

    Returns:
        The factors.
    """
    if count == 1:
        return [number]
    root = number ** (1 / count)
    smallest = max(k for k in range(1, math.floor(root + 1e-9) + 1) if number % k == 0)
    return [*factors(number // smallest, count - 1), smallest]


def _levels(values: Range, count: int) -> list[float]:
    shares = [0.5] if count == 1 else [k / (count - 1) for k in range(count)]
    if values.log:
        return [values.low * (values.high / values.low) ** share for share in shares]
    return [values.low + (values.high - values.low) * share for share in shares]


def _study(tuning: Tuning) -> optuna.Study:
    request = tuning.request
    request.out.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(request.out / FILE)))
    study = optuna.create_study(
        study_name=f"{request.workload}-{request.scale}-{request.method}-{tuning.sampler}",
        storage=storage,
        sampler=optuna.samplers.TPESampler(seed=request.seed),
        direction="maximize",
        load_if_exists=True,
    )
    if tuning.sampler == "grid":
        for point in grid(tuning.space, tuning.trials):
            study.enqueue_trial(point, skip_if_exists=True)
    return study


def _next(study: optuna.Study, tuning: Tuning) -> optuna.Trial | None:
    """A trial that nobody has; None when all have been given out."""
    _reclaim(study, tuning)
    trial = study.ask({name: _distribution(values) for name, values in tuning.space.items()})
    others = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number]
    if sum(t.state in (TrialState.COMPLETE, TrialState.RUNNING) for t in others) < tuning.trials:
        return trial
    study.tell(trial, state=TrialState.FAIL)
    return None


def _distribution(values: Range) -> FloatDistribution:
    return FloatDistribution(values.low, values.high, log=values.log)


def _reclaim(study: optuna.Study, tuning: Tuning) -> None:
    """Put trials back whose process is gone."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        record = folder(_request(tuning, trial.number, {})).record
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        touched = record.stat().st_mtime if record.exists() else begun
        if time.time() - touched > STALE_SECONDS:
            _put_back(study, trial.number, trial.params)


def _put_back(study: optuna.Study, number: int, parameters: Mapping[str, Any]) -> None:
    study.tell(number, state=TrialState.FAIL)
    study.enqueue_trial(dict(parameters))


def _request(tuning: Tuning, number: int, hyperparameters: Mapping[str, Setting]) -> Request:
    out = tuning.request.out / f"{tuning.request.method}-{tuning.sampler}-trial{number:04d}"
    return replace(tuning.request, out=out, hyperparameters=hyperparameters)


def _best(study: optuna.Study, tuning: Tuning) -> Best:
    done: Sequence[FrozenTrial] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    best = study.best_trial
    assert best.value is not None
    return Best(
        method=tuning.request.method,
        trials=len(done),
        metric=best.value,
        hyperparameters=dict(best.params),
        record=folder(_request(tuning, best.number, {})).record,
    )
