"""This process, now: commit, versions, machine, date."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

import fngd
from fngd_bench.provenance import Provenance


def provenance() -> Provenance:
    """Of this process, now."""
    source = Path(__file__).parents[1]
    commit = _git(source, "rev-parse", "--verify", "HEAD")
    return Provenance(
        commit=commit,
        dirty=commit is not None and _git(source, "status", "--porcelain", "--", ".") != "",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        python=platform.python_version(),
        torch=torch.__version__,
        fngd=fngd.__version__,
        system=platform.platform(),
        cpu=_cpu(Path("/proc/cpuinfo")),
        cores=_cores(),
        threads=torch.get_num_threads(),
    )


def _git(folder: Path, *words: str) -> str | None:
    """What git says; None where there is no git, no repository, or the folder is one that it ignores (a `.venv`)."""
    program = shutil.which("git")
    if program is None:
        return None

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program, "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603

    if run("check-ignore", "--quiet", ".").returncode == 0:
        return None
    answer = run(*words)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _cpu(information: Path) -> str:
    """The processor's name, from Linux's list of processors where there is one.

    Rented ones may hide behind a name that says little: family and model tell them apart.
    """
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in facts or "model" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
