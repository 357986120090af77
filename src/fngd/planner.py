r"""Which route to a Gram matrix, and in what blocks: by estimated seconds, from operations and bytes.

For M samples, T positions, fan-in d and fan-out p (G groups of each):

    route          operations                        good for
    pairwise       GM²T²(d + p)                      T = 1 (then K = ZᵀZ * XᵀX, \cref{trans}), short sequences
    pixels         M²S²d/k + M²T²p + kM²T²           convolutions of few pixels and stride 1: a patch's inner product is
                                                     the sum of k inner products of pixels, S of them in a sample
    materialised   2GMTdp + GM²dp, GMTd copied       everything else
    kernel         2GMTdp + GM²dp                    convolutions of few channels, or groups of few: no patches

K is symmetric, so products of rows with rows are half of what they seem, and a little more for the blocks on the
diagonal. How quickly this processor does each of these things, `processor` knows. Where U is kept the weighted gradient
is c·U; elsewhere it takes a product of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fngd.processor import Processor, processor

MOST, LEAST = 72 * 2**20, 9 * 2**19
"""Bytes of scratch memory that one layer's Gram matrix may hold in a large network, and in the smallest."""
SHARE = 4
"""Of this many bytes that a step holds anyway, one may be scratch memory."""
SLOW = 1.5
"""Times as long as with `MOST` a plan may take to keep to less."""
BLOCK, PATCHES = 24 * 2**20, 6 * 2**20
"""Bytes of U at a time, enough for quick products, and of patches, few enough to stay in the cores' caches."""
ROWS = 128
"""Rows whose products with others are made together: enough of them for these to be quick."""
SAMPLES = 64
"""Samples whose products with others are summed over positions together."""
FRESH, FREED = 5 * 2**20, 8 * 2**20
"""Bytes that torch's kernel may ask for at once, more are slow to come: of any size, and of that of z. As much as z
takes lies free, the layers above have just given it back."""
OWN = 16
"""Of this many bytes of the budget one may be a result of torch's kernel, which holds it in its own order as well."""
VECTOR = 16
"""Features that a product or a convolution's kernel takes at once; it is slow on other numbers of them."""
CALL = 20e-6
"""Seconds that a small call takes, whatever it does."""
FEW = 8
"""Small calls that every route makes."""
LITTLE = 1.25
"""What may be held in place of the least that is possible, where that is over the budget: smaller blocks are slow."""
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
    """A convolution's input pixels of a sample, S; 0 for a linear layer."""
    padded: int = 0
    """The same with its padding; 0 for a linear layer."""
    shifted: bool = False
    """Whether inner products of patches are sums of those of pixels: stride 1, one group, one use."""
    native: bool = False
    """Whether torch's kernel can give per-sample gradients."""
    widened: bool = False
    """Whether x and z are of half precision, and copied into float32."""


@dataclass(frozen=True)
class Plan:
    """How one weight's Gram matrix is computed: the route, its blocks and its price."""

    route: str
    block: int
    """Rows (pairwise), samples (pixels), output features (kernel) or input features (materialised) a block."""
    flops: int
    bytes: int
    seconds: float
    """What the cost model expects, the weighted gradient included."""
    kept: bool = False
    """Whether all of U is at hand in the end: the weighted gradient is c·U."""
    outputs: int = 0
    """Output features a block (materialised)."""
    samples: int = 0
    """Samples whose part of a block is made at a time (materialised, kernel)."""


class Budget(NamedTuple):
    """Scratch memory that one layer's Gram matrix may hold; where no route can do with so little, about the least."""

    bytes: int
    most: int
    """What may be held where to keep to `bytes` would be slow."""


def at_most(limit: int) -> Budget:
    """A budget that is kept to, whatever it costs."""
    return Budget(limit, limit)


def share_of(held: int) -> Budget:
    """The usual budget.

    Args:
        held: Bytes that the step holds anyway: weights, gradients, momentum and activations. 0 if nobody knows.

    Returns:
        A share of them, `LEAST` at least and `MOST` at most; in steps, so that batches of about the same size are
        treated alike.
    """
    return Budget(min(MOST, max(1, held // SHARE // LEAST) * LEAST) if held else MOST, MOST)


FULL_BUDGET = at_most(MOST)
"""A large network's."""


@lru_cache(maxsize=4096)
def plan(
    shape: Shape,
    item_size: int = 4,
    budget: Budget = FULL_BUDGET,
    route: str | None = None,
    speed: Processor | None = None,
) -> Plan:
    """The route that is expected to take the least time, in blocks that are quick and that the budget allows.

    Args:
        shape: The canonical sizes.
        item_size: Bytes of a number.
        budget: Bytes of scratch memory to hold at most.
        route: Take this route, if it is possible for the shape within the budget.
        speed: The processor; this one by default.

    Returns:
        The plan.
    """
    speed, limit = speed or processor(), budget.bytes
    quickest = _quickest(shape, item_size, budget.most, route, speed)
    found = _quickest(shape, item_size, limit, route, speed)
    while found.seconds > SLOW * quickest.seconds and limit < budget.most:
        limit = min(2 * limit, budget.most)
        found = _quickest(shape, item_size, limit, route, speed)
    return found


def _quickest(shape: Shape, item: int, budget: int, route: str | None, speed: Processor) -> Plan:
    """The quickest plan that keeps to the budget, or to about the least that is possible."""
    plans = list(_plans(shape, item, budget, speed))
    wanted = [candidate for candidate in plans if candidate.route == route] or plans
    least = min(candidate.bytes for candidate in wanted)
    most = budget if least <= budget else LITTLE * least
    return min((each for each in wanted if each.bytes <= most), key=lambda candidate: candidate.seconds)


def _plans(shape: Shape, item: int, budget: int, speed: Processor) -> Iterator[Plan]:
    yield _pairwise(shape, item, budget, speed)
    yield _materialised(shape, item, budget, speed)
    if shape.native:
        yield _kernel(shape, item, budget, speed)
    if shape.shifted and (some := _pixels(shape, item, budget, speed)).bytes <= budget:  # it holds all of x and z
        yield some


def _second_product(shape: Shape, speed: Processor) -> float:
    """Seconds of the weighted gradient where U is not at hand."""
    M, G, T, d_in, d_out, *_ = shape
    return 2 * G * M * T * d_in * d_out / (speed.convolved if shape.kernel > 1 else speed.product)


def _channels_last(shape: Shape, item: int) -> int:
    """Bytes of a convolution's whole input, padded, with its channels last; a linear layer's is read as it is."""
    return shape.G * shape.M * shape.padded * shape.d_in // shape.kernel * item


def _pairwise(shape: Shape, item: int, budget: int, speed: Processor) -> Plan:
    M, G, T, d_in, d_out, *_ = shape
    rows, read = G * M * T * item, _channels_last(shape, item)
    gathered = 2 * rows * d_in if shape.pixels else 0  # groups, and several uses, are put in order in a second copy
    held = read + gathered + rows * d_out if shape.pixels else rows * (d_in + d_out) if shape.widened else 0
    row = max(1, 3 * G * M * T * item)
    summed = M * min(M, SAMPLES) * T * item if T > 1 else 0
    most = min(ROWS, (budget - held - summed) // row)
    block = M * T if 0 < M * T <= most else _multiple(most, VECTOR)
    pairs = G * M * T * (M * T + block)
    flops = pairs * (d_in + d_out)
    seconds = read / speed.turned + (held - read) / speed.copied + flops / speed.product + pairs * item / speed.visited
    seconds += (FEW + (4 * M * T / block if T > 1 or block < M else 0)) * CALL
    return Plan("pairwise", block, flops, held + summed + block * row, seconds + _second_product(shape, speed))


def _pixels(shape: Shape, item: int, budget: int, speed: Processor) -> Plan:
    M, _, T, d_in, d_out, kernel, S, *_ = shape
    channels, sample = d_in // kernel, M * item

    def held(block: int) -> int:
        return sample * (S * channels + T * d_out + block * (S**2 + T) + T * max(block, d_out))

    room = budget - sample * (S * channels + 2 * T * d_out)
    block = M if held(M) <= budget else _multiple(room // max(1, sample * (S**2 + 2 * T)), VECTOR)
    flops = M**2 * (S * (S + 1) * channels + T * (T + 1) * d_out)
    calls = FEW + T * (kernel + 6) * (0.75 * math.ceil(M / block) - 0.5)  # of a first block, most do little
    seconds = flops / speed.product + (kernel + 3) * M**2 * T**2 / 2 * item / speed.visited + calls * CALL
    return Plan("pixels", block, flops, held(block), seconds + _second_product(shape, speed))


def _kernel(shape: Shape, item: int, budget: int, speed: Processor) -> Plan:
    M, G, T, d_in, d_out, *_ = shape
    channels, features = d_in // shape.kernel, G * d_out
    U = max(1, M * d_in * item)  # for each output feature
    kept = G > 1 or features * U <= budget  # groups are not cut
    block = features if kept else _multiple(min(budget, 3 * BLOCK // 2) // U, VECTOR)
    product, square = 2 * M * T * d_in * features, M * (M + speed.columns) * d_in * features
    slow = max(1.3, speed.uneven / channels) if channels % VECTOR or d_out % VECTOR else 1.0
    slow *= 3.0 if shape.kernel == 1 else 1.0  # each input is used once
    slow *= 1 + speed.starting / T
    ordered = M * (min(shape.pixels, T * shape.kernel) * channels * G + T * features) * item
    seconds = product / speed.convolved * slow + square / speed.square
    seconds += ordered / speed.ordered + U * features / speed.written
    at_once = _at_once(block * d_in * item, shape.pixels * channels * G * item, block * T * item, budget)
    seconds += (FEW + features / block * (3 * M / at_once + M / speed.columns)) * CALL
    seconds += 0.0 if kept else _second_product(shape, speed)
    return Plan("kernel", block, product + square, block * U, seconds, kept, samples=min(M, at_once))


def _at_once(gradient: int, seen: int, sent: int, budget: int) -> int:
    """Samples that torch's kernel may take together, whose gradients, x and z have this many bytes each.

    Gradients come in fresh memory, and the kernel brings x and z into an order of its own in more of it.
    """
    ordered = FRESH // max(1, seen) if seen > sent else FREED // max(1, sent)
    return _power_of_two(min(min(FRESH, budget // OWN) // max(1, gradient), ordered))


def _materialised(shape: Shape, item: int, budget: int, speed: Processor) -> Plan:
    M, G, T, d_in, d_out, kernel, S, *_ = shape
    read = _channels_last(shape, item)
    channels, row, entry = d_in // kernel, G * T * item, max(1, G * M * item)  # bytes of a feature, of u's entry
    seen = row if S or shape.widened else 0  # patches are gathered; a linear layer's input is read as it is
    sent = row if not S or shape.widened else 0  # a linear layer's z is divided by the scale
    room = max(budget - read, int((LITTLE - 1) * read))
    most = max(1, min(BLOCK // entry, room // (entry + seen + sent)))
    whole = min(BLOCK, room) // (entry * max(1, d_out))  # features that all outputs leave room for
    block = _block(min(most, max(2 * VECTOR, whole)), channels, kernel) if S else min(most, max(1, d_in))
    outputs = _even(d_out, min(BLOCK // (entry * block), (room - seen * block) // (entry * block + sent)))
    tile, across = entry * block * outputs, math.ceil(d_out / outputs)
    tiles = max(1, math.ceil(d_in / block) * across)
    a_sample = seen * block + sent * outputs
    samples = _power_of_two(min(M, min(PATCHES, room - tile) // max(1, a_sample)))
    kept = tiles * tile <= room - samples * a_sample
    held = read + samples * a_sample + tile * (tiles if kept else 1)
    product, square = 2 * G * M * T * d_in * d_out, G * M * (M + speed.columns) * d_in * d_out
    runs = max(1.0, VECTOR / max(1, channels)) if S else 1.0  # short ones are slow to copy
    copied = M * (seen * d_in * runs * across + sent * d_out * math.ceil(d_in / block))
    narrow = max(1.0, 2 * VECTOR / block)  # a product of few columns is slow
    seconds = read / speed.turned + copied / speed.copied + product / speed.batched * narrow + square / speed.square
    seconds += (1 + kept) * tiles * tile / speed.copied
    copies = 1 if block == d_in else max(1, block // max(1, channels))
    calls = FEW + tiles * (math.ceil(M / samples) * (copies + 1) + 1 + M / speed.columns)
    seconds += calls * CALL + (0.0 if kept else _second_product(shape, speed))
    return Plan("materialised", block, product + square, held, seconds, kept, outputs, samples)


def _block(most: int, channels: int, kernel: int) -> int:
    """Features at a time: some positions of the kernel, whose patches are runs of all channels, or a part of one."""
    return channels * _divisor(kernel, most // channels) if most >= channels else _divisor(channels, most)


def _divisor(n: int, most: int) -> int:
    """The largest divisor that is no larger."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)


def _multiple(most: int, of: int) -> int:
    """The largest multiple that is no larger; where there is none, the number itself, and 1 at the least."""
    return max(1, most - most % of if most > of else most)


def _power_of_two(most: int) -> int:
    """The largest one that is no larger, and 1 at the least: such numbers of samples fall evenly to the cores."""
    return 1 << max(1, most).bit_length() - 1


def _even(n: int, most: int) -> int:
    """The size of parts that are no larger and as few as they can be, all of about the same size."""
    return math.ceil(n / math.ceil(n / max(1, most))) if n else 1
