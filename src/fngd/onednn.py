"""Products of float32 by oneDNN, in place of the library that torch takes.

Torch hands a float32 product to oneDNN where it is allowed to round the factors to bfloat16 on the way. OneDNN makes
use of that only on processors with units for it (AMX); on others its products are float32's, and `is_exact` has a look.
"""

from __future__ import annotations

from functools import cache
from types import TracebackType
from typing import Any

import torch

NONE, ALLOWED = "none", "bf16"
SWITCH: Any = getattr(torch.backends.mkldnn, "matmul", None)
"""Torch's own; None before torch 2.9."""


class ByOneDNN:
    """A block whose products on a CPU are oneDNN's.

    The switch is the whole process's: other threads' products may be oneDNN's too, and are as exact. Where the user has
    set it to anything, it is left as it is.
    """

    __slots__ = ("_switched",)

    def __enter__(self) -> None:
        """Switch, unless it has been switched already."""
        self._switched = SWITCH.fp32_precision == NONE
        if self._switched:
            SWITCH.fp32_precision = ALLOWED

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Switch back."""
        if self._switched:
            SWITCH.fp32_precision = NONE


@cache
def is_exact() -> bool:
    """Whether oneDNN is at hand, and multiplies numbers that bfloat16 does not have without rounding them."""
    if SWITCH is None or not torch.backends.mkldnn.is_available():
        return False
    with torch.device("cpu"), torch.autocast("cpu", enabled=False), ByOneDNN():
        a = torch.full((64, 64), 1 + 2.0**-20)
        return torch.equal(a @ torch.eye(64), a)
