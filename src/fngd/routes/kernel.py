"""Kernel: K = U Uᵀ with U_m from torch's own convolution, without patches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fngd.operations import Convolution, divided
from fngd.planner import Plan, Shape
from fngd.products import blocks, square, weighted_sum
from fngd.scratch import Scratch
from fngd.uses import Gram, Use


def kernel(uses: Sequence[Use], scale: Tensor | None, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K, a block of output features at a time."""
    use, K = uses[0], None
    d_out = use.weight.shape[0]
    whole = plan.block >= d_out
    for features in blocks(d_out, plan.block):
        some = use if whole else use._replace(z=use.z[:, features], weight=use.weight[features])
        U = _gradients(some, scale, plan.samples, scratch)
        K = square(U, K)
    assert K is not None
    if not plan.kept:
        return Gram(K)
    return Gram(K, lambda c: weighted_sum(c, U.view(shape.M, -1, shape.d_in)).view(use.weight.shape))


def _gradients(use: Use, scale: Tensor | None, at_once: int, scratch: Scratch) -> Tensor:
    """The samples' gradients, divided by the scale: (M, entries).

    The kernel's results are memory of its own, fresh each time, so they are taken for a few samples at once.
    """
    operation, x, z, weight = use
    assert isinstance(operation, Convolution)
    M, entries = x.shape[0], weight.numel()
    if at_once >= M and scale is None:
        return operation.sample_gradients(z, x, weight).flatten(1)
    U = scratch.take("U", (M, entries), z.dtype, z.device)
    for rows in blocks(M, at_once):
        divided(operation.sample_gradients(z[rows], x[rows], weight).flatten(1), scale, U[rows])
    return U
