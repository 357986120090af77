"""What torchrun says to the processes it starts, in variables of their environment. Needs no torch.

torchrun starts a process for each rank, and all of them anew when one has died; `job` is the same before and after.
"""

from __future__ import annotations

import os
import time
from typing import NoReturn

from fngd_bench.errors import InputError

REFUSED = 2
"""Exit code for input that is refused."""
HEAD_START = 1.0
"""Seconds for rank 0 to speak."""
_UNNAMED = "none"
"""What torchrun calls a job that nobody has named."""


def launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """The number of this process among all of the job's; 0 without torchrun."""
    return int(os.environ["RANK"]) if launched() else 0


def local_rank() -> int:
    """The number of this process among those on this machine."""
    return int(os.environ["LOCAL_RANK"]) if launched() else 0


def size() -> int:
    """Processes of the job."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def may_restart() -> bool:
    """Whether torchrun would start the processes anew if one died."""
    return launched() and int(os.environ["TORCHELASTIC_MAX_RESTARTS"]) > 0


def job() -> str | None:
    """The job's name, the same in every attempt: `--rdzv-id`, or which process torchrun is; None without torchrun."""
    if not launched():
        return None
    name = os.environ["TORCHELASTIC_RUN_ID"]
    return f"torchrun process {os.getppid()}" if name == _UNNAMED else name


def refuse(message: str) -> NoReturn:
    """Refuse what every rank knows to be wrong: rank 0 says it, the others go without a word.

    Args:
        message: What is wrong.

    Raises:
        InputError: On rank 0.
    """
    if rank() == 0:
        raise InputError(message)
    leave()


def leave() -> NoReturn:
    """End a rank that leaves it to rank 0 to say why; rank 0 first: torchrun ends all as soon as one has gone.

    Raises:
        SystemExit: Always.
    """
    time.sleep(HEAD_START)
    raise SystemExit(REFUSED)


def check_alone(command: str) -> None:
    """Refuse to be started by torchrun as one of several ranks.

    Args:
        command: What does its work in processes of its own.
    """
    if size() > 1:
        refuse(f"{command} starts its processes itself, and torchrun has started {size()}: run it without torchrun")
