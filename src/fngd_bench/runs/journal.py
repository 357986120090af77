"""The writing side of a run's record: one event a line, on its way to disk before the next thing happens."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from fngd_bench.runs.events import Event, encode


class Listener(Protocol):
    """Whoever wants to hear what the journal writes."""

    def write(self, event: Event) -> None:
        """Hear of an event."""

    def close(self) -> None:
        """There will be no more."""


class Journal:
    """An append-only file of events. Nothing that was written is ever changed."""

    def __init__(self, path: Path | None) -> None:
        """Open the file to append; a last line without an end, left by a crash, is closed first.

        Args:
            path: The file; its folder exists. None for a process that another one writes for.
        """
        self._listeners: list[Listener] = []
        self._file: BinaryIO | None = None if path is None else path.open("a+b")
        if self._file is None:
            return
        end = self._file.seek(0, os.SEEK_END)
        if end > 0:
            self._file.seek(end - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def tell(self, listener: Listener) -> None:
        """Let somebody hear all further events.

        Args:
            listener: It is closed with the journal.
        """
        self._listeners.append(listener)

    def write(self, event: Event, *, sync: bool = False) -> None:
        """Append one event.

        Args:
            event: The event.
            sync: Wait until it is on the disk itself, and survives a power cut.
        """
        if self._file is None:
            return
        self._file.write(encode(event).encode() + b"\n")
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
        for listener in self._listeners:
            listener.write(event)

    def close(self) -> None:
        """No more events."""
        if self._file is not None:
            self._file.close()
        for listener in self._listeners:
            listener.close()

    def __enter__(self) -> Journal:
        """The journal, closed when the `with` is left."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
