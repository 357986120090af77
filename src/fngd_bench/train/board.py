"""TensorBoard, for those who ask for it: the record's numbers as scalars, while the run goes on."""

from __future__ import annotations

from pathlib import Path

from fngd_bench.errors import InputError
from fngd_bench.runs.events import Coefficients, Epoch, Event, Resumed, Steps


class Board:
    """Writes what the journal writes to TensorBoard's files too."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Open the log.

        Args:
            folder: TensorBoard's folder.
            first_step: The step the run goes on from; TensorBoard drops what it had from there on.

        Raises:
            InputError: If TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("--tensorboard needs the package tensorboard: pip install tensorboard") from error
        self._writer = SummaryWriter(str(folder), purge_step=first_step or None)
        self._step = first_step

    def write(self, event: Event) -> None:
        """Log the numbers of one event.

        Args:
            event: What the journal was told.
        """
        match event:
            case Steps():
                for number, (loss, seconds) in enumerate(zip(event.losses, event.seconds, strict=True), event.first):
                    self._add("train/loss", loss, number)
                    self._add("time/step_seconds", seconds, number)
            case Epoch():
                self._step = event.step
                for name in ("train_loss", "test_loss", "metric", "lr", "seconds"):
                    self._add(f"epoch/{name}", getattr(event, name), event.step)
            case Coefficients():
                for name, layer in event.layers.items():
                    self._add(f"coefficients/{name or 'model'}", layer.coefficient_mean, self._step)
            case Resumed():
                self._step = event.step
        self._writer.flush()

    def close(self) -> None:
        """No more numbers."""
        self._writer.close()

    def _add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)
