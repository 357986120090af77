"""A whole run: train, evaluate, write it down, keep checkpoints, stop when told to.

At the end of each epoch the order is: test, record, checkpoint. A run that is killed between any two of them goes on
from the checkpoint before, and repeats what was lost bit by bit (`Resumed` in the record says what is void).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import fngd
from fngd_bench import resident
from fngd_bench.composite import preconditioner
from fngd_bench.runs.events import Coefficients, End, Epoch, Gram, LayerCoefficients, Skipped, Steps
from fngd_bench.runs.journal import Journal
from fngd_bench.runs.progress import Progress
from fngd_bench.train import checkpoint
from fngd_bench.train.folder import Folder
from fngd_bench.train.training import StepResult, Training

MOST_UNLUCKY = 10
"""Steps in a row without a finite loss, after which a run has diverged."""
GRAM_LAYERS, GRAM_SAMPLES = 4, 32
"""Layers, and samples of a batch, whose Gram matrices are recorded."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often things are written."""

    checkpoint_seconds: float = 60.0
    """Between two checkpoints inside an epoch."""
    record_seconds: float = 5.0
    """Between two lines of step losses."""


class Loop:
    """A training on its way through its epochs."""

    def __init__(
        self,
        training: Training,
        folder: Folder,
        journal: Journal,
        *,
        report: Callable[[Progress], None],
        stopped: Callable[[], bool],
        pace: Pace,
        base_bytes: int,
    ) -> None:
        """Get ready.

        Args:
            training: Where the run is.
            folder: The run's folder.
            journal: Its record.
            report: Told of every step.
            stopped: Whether somebody wants the run to stop.
            pace: How often things are written.
            base_bytes: Memory of the process before the model was built.
        """
        self.training = training
        self.folder = folder
        self.journal = journal
        self.report = report
        self.stopped = stopped
        self.pace = pace
        self.base_bytes = base_bytes
        self._metric: float | None = None
        self._pending: list[StepResult] = []
        self._recorded = self._saved = time.monotonic()

    def run(self) -> End:
        """Train to the end of the last epoch, or until the run is stopped or has diverged.

        Returns:
            How it ended; the record and the last checkpoint say the same.
        """
        training = self.training
        while training.step_count < training.total:
            self._step()
            if training.unlucky >= MOST_UNLUCKY:
                return self._end("diverged")
            due = time.monotonic() - self._saved >= self.pace.checkpoint_seconds
            due, stopped = training.ranks.any(due, self.stopped())
            if training.step_count % training.settings.steps_per_epoch == 0:
                self._end_epoch()
            elif due:
                self._save()
            if stopped and training.step_count < training.total:
                self._save()
                return self._end("stopped")
        return self._end("finished")

    def _step(self) -> None:
        training = self.training
        result = training.step()
        self._pending.append(result)
        if result.skipped:
            reason = f"loss {result.loss}"
            self.journal.write(Skipped(step=training.step_count - 1, reason=reason))
        if time.monotonic() - self._recorded >= self.pace.record_seconds:
            self._record_steps()
        progress = Progress(
            step=training.step_count,
            total=training.total,
            epoch=training.step_count / training.settings.steps_per_epoch,
            loss=result.loss,
            metric_name=training.settings.metric,
            metric=self._metric,
            samples_per_second=training.settings.batch / result.seconds,
        )
        self.report(progress)

    def _end_epoch(self) -> None:
        """Test, record, checkpoint; other ranks wait for the first at the checkpoint."""
        if self.training.ranks.first:
            self._test()
        self.training.start_epoch()
        self._save()

    def _test(self) -> None:
        training = self.training
        self._record_steps()
        score = training.evaluate()
        self._metric = score.metric
        line = Epoch(
            epoch=training.epoch,
            step=training.step_count,
            seconds=training.seconds,
            sections=training.sections,
            lr=training.lr,
            train_loss=math.fsum(training.losses) / len(training.losses),
            test_loss=score.loss,
            metric=score.metric,
        )
        self.journal.write(line, sync=True)
        self._record_coefficients()

    def _record_steps(self) -> None:
        if self._pending:
            losses = tuple(result.loss for result in self._pending)
            seconds = tuple(result.seconds for result in self._pending)
            first = self.training.step_count - len(self._pending)
            self.journal.write(Steps(first=first, losses=losses, seconds=seconds))
        self._pending, self._recorded = [], time.monotonic()

    def _record_coefficients(self) -> None:
        """What an FNGD method derived; the Gram matrices of a few layers after the first and the last epoch."""
        training = self.training
        natural = preconditioner(training.optimizer)
        if natural is None:
            return
        layers = {name: LayerCoefficients(**asdict(layer)) for name, layer in natural.statistics().items()}
        self.journal.write(Coefficients(epoch=training.epoch, layers=layers))
        if training.epoch in (1, training.settings.epochs):
            self.journal.write(Gram(epoch=training.epoch, layers=grams(training)))

    def _save(self) -> None:
        self._record_steps()
        state = self.training.state()
        if self.training.ranks.first:
            checkpoint.save(self.folder.checkpoints, self.training.step_count, state)
        self._saved = time.monotonic()

    def _end(self, reason: str) -> End:
        self._record_steps()
        peak = max(1, resident.peak_resident_bytes() - self.base_bytes)
        training = self.training
        end = End(step=training.step_count, reason=reason, seconds=training.seconds, peak_bytes=peak)
        self.journal.write(end, sync=True)
        return end


def grams(training: Training) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Gram matrices, divided by their norm, of layers evenly spread over the depth, on the first samples of a batch.

    Args:
        training: The training; it is not touched.

    Returns:
        By layer name.
    """
    batch = training.problem.batch(0, 0)
    found = fngd.gram_matrices(training.model, lambda model: training.problem.loss(model, batch))
    names = list(found)
    chosen = sorted({round(k * (len(names) - 1) / max(1, GRAM_LAYERS - 1)) for k in range(GRAM_LAYERS)})
    corner = slice(0, GRAM_SAMPLES)
    return {
        names[k]: tuple(tuple(round(v, 5) for v in row) for row in found[names[k]][corner, corner].tolist())
        for k in chosen
    }
