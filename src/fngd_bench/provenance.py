"""Where a number comes from. The type alone, so that whoever reads records needs no torch; `here` fills it in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where and of what a number was measured."""

    commit: str | None
    """Git commit of the source; None if it is not in a repository."""
    dirty: bool
    """Whether the source differed from that commit."""
    date: str
    python: str
    torch: str
    fngd: str
    system: str
    cpu: str
    cores: int
    threads: int
    ranks: int = 1
    """Processes that trained together; time, memory and threads are those of the first."""
    backend: str | None = None
    """What carried tensors between them."""
    job: str | None = None
    """torchrun's name of the job, if it was started by torchrun."""
