"""`python -m fngd_bench` is the command `fngd`: what torchrun starts.

One of torchrun's processes ends at once when all is said and written. Threads of torch's may still be there when C++
cleans up, which then aborts ("terminate called without an active exception"): rarely, but torchrun takes a finished run
for a failed one.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fngd_bench.command import main


def leave(status: object) -> NoReturn:
    """End the process as `SystemExit(status)` would, but for the cleaning up."""
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f"{status}\n")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    try:
        main()
    except SystemExit as end:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise
        leave(end.code)
