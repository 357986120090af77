r"""Stage 2: the exact Gram matrix K = UᵀU of a layer's per-sample gradients, by the cheapest of four routes.

With x (M, G, T, d_in) and z (M, G, T, d_out) in canonical form, u_m = Σ_t z_mtᵀ x_mt and

    pairwise       K_mn = Σ_{s,t} (x_ms · x_nt) (z_ms · z_nt)
    pixels         the same, with x_ms · x_nt as a sum of inner products of pixels
    materialised   U_m = z_mᵀ x_m, K = U Uᵀ
    kernel         the same, with U_m from torch's own convolution

`planner` chooses, `routes/` has a file for each. Gradients that are tiny or huge are divided by a power of two near
their largest entry, which is exact and keeps K in range. K is symmetric: each route computes little more than half of
it. No more than a budget of scratch memory is held: `pairwise` works in blocks of rows, the last two in blocks of
features, over which K adds up, `pixels` in blocks of samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fngd.operations import gram_dtype
from fngd.plain import Number
from fngd.planner import FULL_BUDGET, Budget, Plan, Shape, plan
from fngd.processor import USUAL, processor
from fngd.products import varied_product
from fngd.routes.kernel import kernel
from fngd.routes.materialised import materialised
from fngd.routes.pairwise import pairwise
from fngd.routes.pixels import pixels
from fngd.scratch import Scratch
from fngd.uses import Gram, Use, shape_of

Route = Callable[[Sequence[Use], Tensor | None, Shape, Plan, Scratch], Gram]


def of_pairs(route: Route) -> Route:
    """A route that multiplies z with z before x comes in: whether K has to be divided or not, z may have to be."""

    def undivided(uses: Sequence[Use], scale: Tensor | None, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
        own = _scale_of_pairs([use.z for use in uses]) if scale is None else None
        if own is None:
            return route(uses, scale, shape, plan, scratch)
        K, weigh, of_bias = route(uses, own, shape, plan, scratch)
        square = own * own
        return Gram(
            K.mul_(square),
            None if weigh is None else lambda c: weigh(c * own),
            None if of_bias is None else of_bias.mul_(square),
        )

    return undivided


BY_NAME: dict[str, Route] = {
    "pairwise": of_pairs(pairwise),
    "pixels": of_pairs(pixels),
    "kernel": kernel,
    "materialised": materialised,
}


def gram(
    uses: Sequence[Use],
    scale: Tensor | None,
    scratch: Scratch,
    budget: Budget = FULL_BUDGET,
    route: str | None = None,
) -> Gram:
    """K = UᵀU / scale² of one weight, the contributions of all its uses added up within each sample.

    Args:
        uses: The uses of the weight, all on the same M samples.
        scale: A power of two near the largest |z|; dividing by it keeps products of tiny or huge gradients in range.
            None for 1.
        scratch: Where intermediate results are put.
        budget: Bytes of scratch memory to hold at most.
        route: Take this route where it is possible, in place of the planner's.

    Returns:
        The matrix, float64 for float64 gradients, else float32.
    """
    shape = shape_of(uses)
    chosen = _planned(uses, shape, budget, route)
    return BY_NAME[chosen.route](uses, scale, shape, chosen, scratch)


def plan_of(uses: Sequence[Use], budget: Budget = FULL_BUDGET, route: str | None = None) -> Plan:
    """How the Gram matrix of one weight is computed.

    Args:
        uses: The uses of the weight.
        budget: Bytes of scratch memory to hold at most.
        route: Take this route where it is possible.

    Returns:
        The plan.
    """
    return _planned(uses, shape_of(uses), budget, route)


def _planned(uses: Sequence[Use], shape: Shape, budget: Budget, route: str | None) -> Plan:
    """What a processor does for float32 on a CPU says nothing of others; on the meta device a CPU is planned for."""
    z, dtype = uses[0].z, gram_dtype(uses[0].z.dtype)
    speed = processor() if dtype == torch.float32 and z.device.type in ("cpu", "meta") else USUAL
    return plan(shape, dtype.itemsize, budget, route, speed)


def is_in_range(norm: Number, dtype: torch.dtype) -> bool:
    """Whether a matrix has a norm whose square, and that of much smaller entries, are numbers of full precision."""
    least: float = torch.finfo(dtype).tiny ** 0.4
    return bool(least < norm < 1 / least)


def bias_gram(rows: Tensor, scale: Tensor | None) -> Tensor:
    """K of a bias from its per-sample gradients (M, d_out)."""
    rows = rows if scale is None else rows / scale
    return varied_product(rows, rows)


def scale_of(gradients: Sequence[Tensor]) -> Tensor:
    """The power of two at or below the largest |z|: dividing by it is exact and keeps K in range.

    1 if all of z is zero, or not all of it is finite.
    """
    largest = functools.reduce(torch.maximum, map(_largest, gradients))
    largest = largest.to(gram_dtype(largest.dtype))
    mantissa, _ = torch.frexp(largest)
    return (largest / (2 * mantissa)).nan_to_num(1.0)


def _scale_of_pairs(gradients: Sequence[Tensor]) -> Tensor | None:
    """What gradients are to be divided by before they are multiplied with each other; None if that need not be."""
    if gradients[0].device.type == "cpu":
        dtype = gram_dtype(gradients[0].dtype)
        norms = [torch.linalg.vector_norm(z, dtype=dtype).item() for z in gradients]
        if all(is_in_range(norm * norm, dtype) for norm in norms):
            return None
    return scale_of(gradients)


def _largest(z: Tensor) -> Tensor:
    low, high = torch.aminmax(z)
    return torch.maximum(-low, high)
