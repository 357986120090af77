r"""Which route to a Gram matrix, and in what blocks: by estimated seconds, from operations and bytes.

For M samples, T positions, fan-in d and fan-out p (G groups of each):

    route          operations                         good for
    pairwise       2GM²T²(d + p), half by symmetry    T = 1 (then K = ZᵀZ * XᵀX, \cref{trans}), short sequences
    pixels         2M²S²d/k + 2M²T²p + kM²T²          convolutions of few pixels and stride 1: a patch's inner product
                                                      is the sum of k inner products of pixels, S of them in a sample
    kernel         2MTdp + 2M²dp                      convolutions of many pixels: U by torch's own kernel
    materialised   2MTdp + 2M²dp, and MTd copied      everything else

The rates below are those of a CPU core pair; what matters is only how they compare. A route that ends with all of U at
hand needs no second product for the weighted gradient, which is then c·U; the others pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

BUDGET = 64 * 2**20
"""Bytes of scratch memory that one layer's Gram matrix may hold."""
GEMM, BATCHED, CONVOLVED = 150e9, 90e9, 115e9
"""Operations a second: of one large product, of many small ones, inside a convolution's kernel."""
COPIED, WRITTEN, VISITED = 3e9, 1.2e9, 4e9
"""Bytes a second: patches gathered, per-sample gradients written by a convolution's kernel, entries met once."""
VECTOR = 16
"""Channels that a convolution's kernel takes at once; it is slow on other numbers of them."""
ROUTES = ("pairwise", "pixels", "kernel", "materialised")


class Shape(NamedTuple):
    """The canonical sizes of a weight's uses; T counts the positions of all uses together."""

    M: int
    G: int
    T: int
    d_in: int
    d_out: int
    kernel: int = 1
    """Positions of a convolution's kernel; 1 for a linear layer."""
    pixels: int = 0
    """Pixels of a sample, S, where inner products of patches are sums of those of pixels; else 0."""
    native: bool = False
    """Whether torch's kernel can give per-sample gradients."""


@dataclass(frozen=True)
class Plan:
    """How one weight's Gram matrix is computed: the route, its blocks and its price."""

    route: str
    block: int
    """Samples a block (pairwise, pixels), output features (kernel) or input features (materialised) a block."""
    flops: int
    bytes: int
    seconds: float
    """What the cost model expects, the weighted gradient included."""


@lru_cache(maxsize=4096)
def plan(shape: Shape, item_size: int = 4, budget: int = BUDGET, route: str | None = None) -> Plan:
    """The route that is expected to take the least time, with the largest blocks that the budget allows.

    Args:
        shape: The canonical sizes.
        item_size: Bytes of a number.
        budget: Bytes of scratch memory to hold at most, as far as blocks of one allow.
        route: Take this route, if it is possible for the shape.

    Returns:
        The plan.
    """
    plans = list(_plans(shape, item_size, budget))
    wanted = [candidate for candidate in plans if candidate.route == route]
    within = [candidate for candidate in plans if candidate.bytes <= budget]
    return min(wanted or within or plans, key=lambda candidate: candidate.seconds)


def _plans(shape: Shape, item: int, budget: int) -> Iterator[Plan]:
    yield _pairwise(shape, item, budget)
    yield _materialised(shape, item, budget)
    if shape.native:
        yield _kernel(shape, item, budget)
    if shape.pixels:
        yield _pixels(shape, item)


def _second_product(shape: Shape) -> float:
    """Seconds of the weighted gradient where U is not at hand."""
    M, G, T, d_in, d_out, *_ = shape
    return 2 * G * M * T * d_in * d_out / (CONVOLVED if shape.kernel > 1 else GEMM)


def _pairwise(shape: Shape, item: int, budget: int) -> Plan:
    M, G, T, d_in, d_out, *_ = shape
    rows, row = G * M * T * (d_in + d_out) * item, max(1, 2 * G * T * M * T * item)
    block = min(max(1, M // 4), max(1, (budget - rows) // row))
    flops = G * M * (M + block) * T**2 * (d_in + d_out)
    copied = rows / COPIED if shape.kernel > 1 else 0.0
    seconds = copied + flops / GEMM + M * (M + block) * T**2 * G * item / VISITED + _second_product(shape)
    return Plan("pairwise", block, flops, rows + block * row, seconds)


def _pixels(shape: Shape, item: int) -> Plan:
    M, _, T, d_in, d_out, kernel, S, _ = shape
    flops = 2 * M**2 * (S**2 * (d_in // kernel) + T**2 * d_out)
    held = (M * (S * (d_in // kernel) + T * d_out) + M**2 * (S**2 + 2 * T**2)) * item
    visited = (kernel + 3) * M**2 * T**2 * item / VISITED
    return Plan("pixels", M, flops, held, flops / GEMM + visited + _second_product(shape))


def _kernel(shape: Shape, item: int, budget: int) -> Plan:
    M, _, T, d_in, d_out, *_ = shape
    column = max(1, M * (d_in + T) * item)
    block = min(d_out, max(1, budget // column))
    product = 2 * M * T * d_in * d_out
    flops = product + 2 * M**2 * d_in * d_out
    odd = (d_in // shape.kernel) % VECTOR or d_out % VECTOR
    seconds = product / CONVOLVED * (8 if odd else 1) + M * d_in * d_out * item / WRITTEN
    seconds += 2 * M**2 * d_in * d_out / GEMM + (0.0 if block == d_out else _second_product(shape))
    return Plan("kernel", block, flops, block * column, seconds)


def _materialised(shape: Shape, item: int, budget: int) -> Plan:
    M, G, T, d_in, d_out, kernel, *_ = shape
    patches = (kernel + 2) * T if kernel > 1 else 0  # gathered from a padded copy of the channel
    column = max(1, G * M * (kernel * d_out + patches) * item)
    rows = G * M * T * d_out * item
    block = kernel * min(d_in // kernel, max(1, (budget - rows) // column))
    product = 2 * G * M * T * d_in * d_out
    flops = product + 2 * G * M**2 * d_in * d_out
    copied = G * M * T * d_in * item / COPIED if kernel > 1 else 0.0
    seconds = copied + product / BATCHED + 2 * G * M**2 * d_in * d_out / GEMM
    seconds += 0.0 if block == d_in else _second_product(shape)
    return Plan("materialised", block, flops, rows + block // kernel * column, seconds)
