r"""Stage 2: the exact Gram matrix K = UᵀU of a layer's per-sample gradients, by the cheaper of two routes.

With x (M, G, T, d_in) and z (M, G, T, d_out) in canonical form, u_m = Σ_t z_mtᵀ x_mt and

    pairwise       K_mn = Σ_{s,t} (x_ms · x_nt) (z_ms · z_nt)            M²T²(d_in + d_out) multiplications
    materialised   U_m = z_mᵀ x_m, K = U Uᵀ                              MT·d_in·d_out + M²·d_in·d_out

For T = 1 the first is \cref{trans}: K = ZᵀZ * XᵀX. Both work in blocks, so that no more than a budget of scratch
memory is held: pairwise in blocks of samples (rows of K), materialised in blocks of output features (K adds up over
them) and the inputs of a few samples at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.operations import Operation

BUDGET = 64 * 2**20
"""Bytes of scratch memory that one layer's Gram matrix may hold."""


class Use(NamedTuple):
    """One use of a weight in a forward pass: what was computed, its input x and its output gradient z."""

    operation: Operation
    x: Tensor
    z: Tensor
    weight: Tensor

    def inputs(self, chosen: slice = slice(None)) -> Tensor:
        """X of the chosen samples in canonical form and in the dtype of the Gram matrix."""
        x = self.operation.inputs(self.x, self.weight, chosen)
        return x.to(gram_dtype(x.dtype))

    def outputs(self, chosen: slice = slice(None)) -> Tensor:
        """Z of the chosen samples in canonical form and in the dtype of the Gram matrix."""
        z = self.operation.outputs(self.z, chosen)
        return z.to(gram_dtype(z.dtype))


def gram_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything else is summed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Plan:
    """How one weight's Gram matrix is computed: the route, its blocks and its price."""

    route: str
    block: int
    """Samples a block (pairwise) or output features a block (materialised)."""
    flops: int
    bytes: int


class Shape(NamedTuple):
    """The canonical sizes of a weight's uses; T counts the positions of all uses together."""

    M: int
    G: int
    T: int
    d_in: int
    d_out: int


def plan(shape: Shape, item_size: int = 4, budget: int = BUDGET) -> Plan:
    """The cheaper route by multiplications, with the largest block that the budget allows."""
    M, G, T, d_in, d_out = shape
    pairwise = 2 * G * M**2 * T**2 * (d_in + d_out)
    materialised = 2 * G * (M * T + M**2) * d_in * d_out
    if pairwise <= materialised:
        rows, row = G * M * T * (d_in + d_out) * item_size, max(1, 2 * G * T * M * T * item_size)
        block = min(M, max(1, (budget - rows) // row))
        return Plan("pairwise", block, pairwise, rows + block * row)
    column = max(1, G * M * d_in * item_size)
    block = min(d_out, max(1, budget // column))
    return Plan("materialised", block, materialised, block * column)


def gram(uses: Sequence[Use], scale: Tensor, budget: int = BUDGET) -> Tensor:
    """K = UᵀU / scale² of one weight, the contributions of all its uses added up within each sample.

    Args:
        uses: The uses of the weight, all on the same M samples.
        scale: A number near the largest |z|; dividing by it keeps products of tiny or huge gradients in range.
        budget: Bytes of scratch memory to hold at most, as far as blocks of one allow.

    Returns:
        The M × M matrix, float64 for float64 gradients, else float32.
    """
    shape = shape_of(uses)
    chosen = plan(shape, 8 if uses[0].z.dtype == torch.float64 else 4, budget)
    if chosen.route == "pairwise":
        return pairwise(uses, shape, scale, chosen.block)
    return materialised(uses, shape, scale, chosen.block, budget)


def shape_of(uses: Sequence[Use]) -> Shape:
    """The canonical sizes of a weight's uses."""
    operation, _, _, weight = uses[0]
    M, features = operation.samples.M, len(weight)
    T = sum(use.z.numel() for use in uses) // (M * features)
    return Shape(M, operation.groups, T, weight[0].numel(), features // operation.groups)


def pairwise(uses: Sequence[Use], shape: Shape, scale: Tensor, block: int) -> Tensor:
    """K_mn = Σ_{s,t} (x_ms · x_nt)(z_ms · z_nt), a block of samples m at a time."""
    M, G, T, *_ = shape
    x = torch.cat([use.inputs() for use in uses], dim=2).transpose(0, 1).reshape(G, M * T, -1)
    z = torch.cat([use.outputs() for use in uses], dim=2).transpose(0, 1).reshape(G, M * T, -1) / scale
    K = x.new_empty(M, M)
    for rows in _blocks(M, block):
        positions = slice(rows.start * T, rows.stop * T)
        products = (x[:, positions] @ x.mT).mul_(z[:, positions] @ z.mT)
        K[rows] = products.view(G, -1, T, M, T).sum((0, 2, 4))
    return K


def materialised(uses: Sequence[Use], shape: Shape, scale: Tensor, block: int, budget: int) -> Tensor:
    """K = U Uᵀ with U_m = Σ_uses z_mᵀ x_m, a block of output features at a time."""
    M, G, T, d_in, d_out = shape
    dtype = gram_dtype(uses[0].z.dtype)
    K = torch.zeros(M, M, dtype=dtype, device=uses[0].z.device)
    samples = max(1, budget // (G * T * d_in * dtype.itemsize))
    for features in _blocks(d_out, block):
        U = K.new_empty(M, G, features.stop - features.start, d_in)
        for chosen in _blocks(M, samples):
            rows = torch.matmul(uses[0].outputs(chosen)[..., features].mT, uses[0].inputs(chosen), out=U[chosen])
            for use in uses[1:]:
                rows += use.outputs(chosen)[..., features].mT @ use.inputs(chosen)
        U = U.div_(scale).flatten(1)
        K.addmm_(U, U.T)
    return K


def bias_gram(rows: Tensor, scale: Tensor) -> Tensor:
    """K of a bias from its per-sample gradients (M, d_out)."""
    rows = rows.to(gram_dtype(rows.dtype)) / scale
    return rows @ rows.T


def _blocks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
