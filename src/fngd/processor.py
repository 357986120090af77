"""What the processor is good at: who multiplies matrices on it, and how quickly it does what routes are made of.

Torch multiplies float32 matrices by MKL, which is at its best on Intel's processors and keeps to vectors of 256 bits on
AMD's. From Zen 5 on these compute 512 bits at once, and oneDNN, by which torch convolves, is twice as quick there. A
processor is known by its features, as far as torch tells them, and never by timing: what is computed does not depend on
what else goes on.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch

from fngd.onednn import is_exact


class Processor(NamedTuple):
    """Operations and bytes a second, of two cores; what matters is only how they compare."""

    onednn: bool
    """Whether oneDNN multiplies matrices of float32, in place of the library that torch takes."""
    squares: float
    """Multiplications from which on oneDNN makes U Uᵀ, even if it multiplies nothing else."""
    parts: int
    """Parts of U whose squares MKL makes side by side, each by one core; 1 where its cores share a product well."""
    columns: int
    """Columns of U Uᵀ to compute together: the fewer, the less of the other half of a symmetric matrix comes along."""
    whole: int
    """Multiplications up to which all of U Uᵀ is made at once: its other half takes less time than more calls."""
    product: float
    """Operations of one large product."""
    batched: float
    """Of a product for each sample."""
    square: float
    """Of U Uᵀ."""
    convolved: float
    """Of a convolution's kernel."""
    uneven: float
    """How much slower the kernel is on numbers of channels that do not fill its vectors: this, over the channels."""
    starting: float
    """Positions of a sample in whose time the kernel gets going."""
    copied: float
    """Bytes of patches gathered."""
    turned: float
    """Bytes of an input turned to channels last."""
    written: float
    """Bytes of U written by torch's kernel."""
    ordered: float
    """Bytes of x and z that the kernel brings into an order of its own."""
    visited: float
    """Bytes of entries met once."""


USUAL = Processor(  # products and squares as on Intel's Cascade Lake, the rest as on AMD's before Zen 5
    onednn=False,
    squares=2**27,
    parts=1,
    columns=64,
    whole=2**29,
    product=220e9,
    batched=150e9,
    square=160e9,
    convolved=190e9,
    uneven=32.0,
    starting=0.0,
    copied=20e9,
    turned=4e9,
    written=3e9,
    ordered=8e9,
    visited=4e9,
)
ZEN = USUAL._replace(squares=math.inf, parts=4, whole=2**26, product=200e9, square=185e9)
ZEN5 = ZEN._replace(
    onednn=True,
    whole=2**28,
    product=430e9,
    batched=440e9,
    square=420e9,
    convolved=450e9,
    uneven=72.0,
    starting=16.0,
    copied=40e9,
    turned=6e9,
    written=5e9,
    ordered=25e9,
    visited=8e9,
)


@cache
def processor() -> Processor:
    """This one."""
    known = _capabilities()
    if not str(known.get("cpu_name", "")).startswith("AMD"):
        return USUAL if is_exact() else USUAL._replace(squares=math.inf)
    zen5 = known.get("avx512_f") and known.get("avx_vnni") and not known.get("amx_tile")
    return ZEN5 if zen5 and is_exact() else ZEN


@cache
def convolves_channels_last() -> bool:
    """Whether oneDNN has kernels of convolutions for channels last, as it has for vectors of 512 bits."""
    return bool(_capabilities().get("avx512_f"))


def _capabilities() -> dict[str, Any]:
    """What torch tells of the processor."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return known
