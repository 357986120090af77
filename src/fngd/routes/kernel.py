"""Kernel: K = U Uᵀ with U_m from torch's own convolution, without patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fngd.operations import Convolution
from fngd.planner import Plan, Shape, samples_at_once
from fngd.products import add_square, blocks, mirrored, weighted_sum
from fngd.scratch import Scratch
from fngd.uses import Gram, Use


def kernel(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K, a block of output features at a time; U is divided by the scale.

    The kernel's results are memory of its own, fresh each time, so they are taken for a few samples at once.
    """
    operation, x, z, weight = uses[0]
    assert isinstance(operation, Convolution)
    M, d_in = len(x), shape.d_in
    K = z.new_zeros(M, M)
    for features in blocks(len(weight), plan.block):
        U = scratch.take("U", (M, (features.stop - features.start) * d_in), z.dtype, z.device)
        for rows in blocks(M, samples_at_once(U[0].nbytes, z[0, features].nbytes)):
            part = operation.sample_gradients(z[rows, features], x[rows], weight[features])
            torch.div(part.flatten(1), scale, out=U[rows])
        add_square(K, U)
    if not plan.kept:
        return Gram(mirrored(K))
    return Gram(mirrored(K), lambda c: weighted_sum(c, U.view(M, -1, d_in)).view(weight.shape))
