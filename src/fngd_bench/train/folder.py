"""A run's folder: its record and its checkpoints, and the rules about starting and resuming in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from fngd_bench.errors import InputError
from fngd_bench.runs import reader
from fngd_bench.runs.events import RunSettings


@dataclass(frozen=True)
class Folder:
    """Where one run lies."""

    path: Path

    @property
    def record(self) -> Path:
        """The record."""
        return self.path / reader.FILE

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def begun(self) -> bool:
        """Whether a run has left its first line here."""
        return self.record.exists() and self.record.stat().st_size > 0

    @property
    def job(self) -> str | None:
        """The job of torchrun that the run was last begun or resumed by; None if there is none."""
        if not self.begun:
            return None
        run = reader.read(self.record)
        return (run.resumed[-1] if run.resumed else run.header).provenance.job

    def start(self) -> None:
        """Make the folder for a new run.

        Raises:
            InputError: If there is a run in it, or it cannot be made.
        """
        if self.begun:
            raise InputError(
                f"{self.path} holds a run already: pass --resume to go on with it, or --out for another place"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.record.touch()
        except OSError as error:
            raise InputError(f"cannot write in {self.path}: {error.strerror}; pass --out for another place") from error

    def resume(self, wanted: RunSettings) -> reader.Run | None:
        """Take up what lies in the folder.

        Args:
            wanted: The settings now asked for.

        Returns:
            The run so far; None if nothing was ever started here.

        Raises:
            InputError: If it was started with other settings.
        """
        if not self.begun:
            self.start()
            return None
        run = reader.read(self.record)
        before, now = asdict(run.settings), asdict(wanted)
        odd = [name for name in before if before[name] != now[name]]
        if odd:
            raise InputError(
                f"{self.path} was started with {odd[0]}={before[odd[0]]!r}, not {now[odd[0]]!r}: resume with the "
                "settings it was started with, or pass --out for another place"
            )
        return run
