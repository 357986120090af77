r"""Stage 2: the exact Gram matrix K = UᵀU of a layer's per-sample gradients, by the cheapest of four routes.

With x (M, G, T, d_in) and z (M, G, T, d_out) in canonical form, u_m = Σ_t z_mtᵀ x_mt and

    pairwise       K_mn = Σ_{s,t} (x_ms · x_nt) (z_ms · z_nt)
    pixels         the same, with x_ms · x_nt as a sum of inner products of pixels
    kernel         U_m by torch's own convolution, K = U Uᵀ
    materialised   U_m = z_mᵀ x_m, K = U Uᵀ

`planner` chooses; z comes to the routes divided by a power of two near its largest entry. Each works in blocks, so that
no more than a budget of scratch memory is held: pairwise in blocks of samples (rows of K), the last two in blocks of
features, over which K adds up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.operations import Convolution, Operation
from fngd.planner import BUDGET, Plan, Shape, plan
from fngd.scratch import Scratch


class Use(NamedTuple):
    """One use of a weight in a forward pass: what was computed, its input x and its output gradient z."""

    operation: Operation
    x: Tensor
    z: Tensor
    weight: Tensor

    def inputs(self, features: slice, scratch: Scratch) -> Tensor:
        """Some features of X in canonical form and in the dtype of the Gram matrix."""
        x = self.operation.inputs(self.x, self.weight, features, scratch)
        return x.to(gram_dtype(x.dtype))

    def outputs(self) -> Tensor:
        """Z in canonical form and in the dtype of the Gram matrix."""
        z = self.operation.outputs(self.z)
        return z.to(gram_dtype(z.dtype))


class Gram(NamedTuple):
    """The Gram matrix of one weight, and what was made on the way."""

    K: Tensor
    """UᵀU / scale², (M, M)."""
    U: Tensor | None
    """The samples' gradients / scale, (M, entries of the weight), if all of them are at hand; valid until the next."""


def gram_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything else is summed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def gram(uses: Sequence[Use], scale: Tensor, scratch: Scratch, budget: int = BUDGET, route: str | None = None) -> Gram:
    """K = UᵀU / scale² of one weight, the contributions of all its uses added up within each sample.

    Args:
        uses: The uses of the weight, all on the same M samples.
        scale: A number near the largest |z|; dividing by it keeps products of tiny or huge gradients in range.
        scratch: Where intermediate results are put.
        budget: Bytes of scratch memory to hold at most, as far as blocks of one allow.
        route: Take this route where it is possible, in place of the planner's.

    Returns:
        The matrix, float64 for float64 gradients, else float32.
    """
    chosen = plan_of(uses, budget, route)
    return _ROUTES[chosen.route](_scaled(uses, scale, scratch), chosen.block, scratch)


def plan_of(uses: Sequence[Use], budget: int = BUDGET, route: str | None = None) -> Plan:
    """How the Gram matrix of one weight is computed.

    Args:
        uses: The uses of the weight.
        budget: Bytes of scratch memory to hold at most.
        route: Take this route where it is possible.

    Returns:
        The plan.
    """
    return plan(shape_of(uses), gram_dtype(uses[0].z.dtype).itemsize, budget, route)


def shape_of(uses: Sequence[Use]) -> Shape:
    """The canonical sizes of a weight's uses."""
    operation, x, _, weight = uses[0]
    M, features = operation.samples.M, len(weight)
    T = sum(use.z.numel() for use in uses) // (M * features)
    shape = Shape(M, operation.groups, T, weight[0].numel(), features // operation.groups, weight[0, 0].numel())
    if not isinstance(operation, Convolution) or len(uses) > 1 or operation.samples.repeats > 1:
        return shape
    whole = operation.groups == 1 and x.dtype in (torch.float32, torch.float64)
    unit = whole and set(operation.stride) == {1} and 0 not in (M, T)
    return shape._replace(native=whole, pixels=x[0, 0].numel() if unit else 0)


def _scaled(uses: Sequence[Use], scale: Tensor, scratch: Scratch) -> list[Use]:
    """The uses with z / scale: exact, since the scale is a power of two and float32 has room for half precision."""
    sent = [use.z.to(gram_dtype(use.z.dtype)) for use in uses]
    if len(uses) > 1:
        return [use._replace(z=z / scale) for use, z in zip(uses, sent, strict=True)]
    return [uses[0]._replace(z=torch.div(sent[0], scale, out=scratch.like(sent[0])))]


def pairwise(uses: Sequence[Use], block: int, scratch: Scratch) -> Gram:
    """K_mn = Σ_{s,t} (x_ms · x_nt)(z_ms · z_nt), a block of samples m at a time with all n that are not before it."""
    M, G, T, d_in, *_ = shape_of(uses)
    x = torch.cat([use.inputs(slice(0, d_in), scratch) for use in uses], dim=2).transpose(0, 1).reshape(G, M * T, -1)
    z = torch.cat([use.outputs() for use in uses], dim=2).transpose(0, 1).reshape(G, M * T, -1)
    K = x.new_empty(M, M)
    for rows in _blocks(M, block):
        here, after = slice(rows.start * T, rows.stop * T), slice(rows.start * T, None)
        products = (x[:, here] @ x[:, after].mT).mul_(z[:, here] @ z[:, after].mT)
        K[rows, rows.start :] = found = products.view(G, rows.stop - rows.start, T, -1, T).sum((0, 2, 4))
        K[rows.start :, rows] = found.T
    return Gram(K, None)


def pixels(uses: Sequence[Use], block: int, scratch: Scratch) -> Gram:  # noqa: ARG001
    """Pairwise for a convolution of stride 1: position s of the kernel's offset o sees pixel s + o."""
    operation, x, z, weight = uses[0]
    assert isinstance(operation, Convolution)
    M, space, out = len(x), x.shape[2:], z.shape[2:]
    seen = x.flatten(2).permute(2, 0, 1).reshape(-1, x.shape[1])  # pixels first: a pair of them is a block of M × M
    sent = z.flatten(2).permute(2, 0, 1).reshape(-1, z.shape[1])
    Q = torch.mm(seen, seen.T, out=_square(scratch, "U", seen)).view(*space, M, *space, M)
    Z = torch.mm(sent, sent.T, out=_square(scratch, "Z", sent))
    P = _square(scratch, "patches", sent).zero_().view(*out, M, *out, M)
    for offset in product(*(range(k) for k in weight.shape[2:])):
        shifts = [o * d - p for o, d, p in zip(offset, operation.dilation, operation.padding, strict=True)]
        here = [slice(max(0, -s), min(n, size - s)) for s, n, size in zip(shifts, out, space, strict=True)]
        if all(part.start < part.stop for part in here):
            there = [slice(part.start + s, part.stop + s) for part, s in zip(here, shifts, strict=True)]
            every = slice(None)
            P[(*here, every, *here)] += Q[(*there, every, *there)]
    T = len(sent) // M
    return Gram(Z.mul_(P.view_as(Z)).view(T, M, T, M).sum((0, 2)), None)


def kernel(uses: Sequence[Use], block: int, scratch: Scratch) -> Gram:  # noqa: ARG001
    """K = U Uᵀ with U from torch's own kernel, a block of output features at a time."""
    operation, x, z, weight = uses[0]
    assert isinstance(operation, Convolution)
    K = z.new_zeros(len(x), len(x))
    for features in _blocks(len(weight), block):
        U = operation.sample_gradients(z[:, features], x, weight[features]).flatten(1)
        K.addmm_(U, U.T)
    return Gram(K, U if block >= len(weight) else None)


def materialised(uses: Sequence[Use], block: int, scratch: Scratch) -> Gram:
    """K = U Uᵀ with U_m = Σ_uses z_mᵀ x_m, a block of input features at a time."""
    M, G, _, d_in, d_out, *_ = shape_of(uses)
    z = [use.outputs().mT for use in uses]
    K = z[0].new_zeros(M, M)
    for features in _blocks(d_in, block):
        U = scratch.take("U", (M, G, d_out, features.stop - features.start), K.dtype, K.device)
        torch.matmul(z[0], uses[0].inputs(features, scratch), out=U)
        for use, sent in zip(uses[1:], z[1:], strict=True):
            U += sent @ use.inputs(features, scratch)
        K.addmm_(U.flatten(1), U.flatten(1).T)
    return Gram(K, U.flatten(1) if block >= d_in else None)


def bias_gram(rows: Tensor, scale: Tensor) -> Tensor:
    """K of a bias from its per-sample gradients (M, d_out)."""
    rows = rows / scale
    return rows @ rows.T


def _square(scratch: Scratch, name: str, rows: Tensor) -> Tensor:
    return scratch.take(name, (len(rows), len(rows)), rows.dtype, rows.device)


def _blocks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


_ROUTES = {"pairwise": pairwise, "pixels": pixels, "kernel": kernel, "materialised": materialised}
