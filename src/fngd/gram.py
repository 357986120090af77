r"""Stage 2: the exact Gram matrix K = UᵀU of a layer's per-sample gradients, by the cheapest of four routes.

With x (M, G, T, d_in) and z (M, G, T, d_out) in canonical form, u_m = Σ_t z_mtᵀ x_mt and

    pairwise       K_mn = Σ_{s,t} (x_ms · x_nt) (z_ms · z_nt)
    pixels         the same, with x_ms · x_nt as a sum of inner products of pixels
    materialised   U_m = z_mᵀ x_m, K = U Uᵀ
    kernel         the same, with U_m from torch's own convolution

`planner` chooses. Gradients are divided by a power of two near their largest entry, in a pass that is made anyway. K is
symmetric: each route computes little more than half of it. Each works in blocks, so that no more than a budget of
scratch memory is held: the first two in blocks of rows, the last two in blocks of features, over which K adds up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from fngd.operations import Convolution, Operation, divided, gram_dtype
from fngd.planner import BUDGET, COLUMNS, Plan, Shape, plan, samples_at_once
from fngd.scratch import Products, Scratch

LARGE = 2**24
"""Multiplications from which on a product is worth oneDNN's setting up."""
KEPT_PRODUCTS = 16 * 2**20
"""Bytes of an input's products with itself that may be kept for the next layer that reads it."""


class Use(NamedTuple):
    """One use of a weight in a forward pass: what was computed, its input x and its output gradient z."""

    operation: Operation
    x: Tensor
    z: Tensor
    weight: Tensor

    def inputs(self, scratch: Scratch) -> Tensor:
        """X in canonical form and in the dtype of the Gram matrix."""
        readable = self.operation.readable(self.x, None, scratch)
        return self.operation.inputs(readable, self.weight, slice(0, math.prod(self.weight.shape[1:])), scratch)

    def outputs(self) -> Tensor:
        """Z in canonical form and in the dtype of the Gram matrix."""
        return self.operation.outputs(self.z).to(gram_dtype(self.z.dtype))


class Gram(NamedTuple):
    """The Gram matrix of one weight, and what was made on the way."""

    K: Tensor
    """UᵀU / scale², (M, M)."""
    weigh: Callable[[Tensor], Tensor] | None = None
    """Σ_m c_m u_m / scale as a function of c, if all of U is at hand; valid until the next Gram matrix."""


def gram(uses: Sequence[Use], scale: Tensor, scratch: Scratch, budget: int = BUDGET, route: str | None = None) -> Gram:
    """K = UᵀU / scale² of one weight, the contributions of all its uses added up within each sample.

    Args:
        uses: The uses of the weight, all on the same M samples.
        scale: A power of two near the largest |z|; dividing by it keeps products of tiny or huge gradients in range.
        scratch: Where intermediate results are put.
        budget: Bytes of scratch memory to hold at most, as far as blocks of one allow.
        route: Take this route where it is possible, in place of the planner's.

    Returns:
        The matrix, float64 for float64 gradients, else float32.
    """
    shape = shape_of(uses)
    chosen = plan(shape, gram_dtype(uses[0].z.dtype).itemsize, budget, route)
    return _ROUTES[chosen.route](uses, scale, shape, chosen, scratch)


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
    M, (features, channels, *kernel) = operation.samples.M, weight.shape
    T, positions = sum(use.z.numel() for use in uses) // (M * features), math.prod(kernel)
    shape = Shape(M, operation.groups, T, channels * positions, features // operation.groups, positions)
    if not isinstance(operation, Convolution):
        return shape
    shape = shape._replace(pixels=sum(use.x.numel() for use in uses) // (M * x.shape[1]))
    if len(uses) > 1 or operation.samples.repeats > 1 or 0 in (M, T):
        return shape
    shifted = operation.groups == 1 and set(operation.stride) == {1}
    return shape._replace(shifted=shifted, native=x.dtype in (torch.float32, torch.float64))


def pairwise(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K_mn = Σ_{s,t} (x_ms · x_nt)(z_ms · z_nt), a block of samples m at a time with all n that are not before it."""
    M, G, T, *_ = shape
    x = _joined([use.inputs(own) for use, own in _own(uses, scratch)]).transpose(0, 1).reshape(G, M * T, -1)
    z = _joined([use.outputs() for use in uses]).transpose(0, 1).reshape(G, M * T, -1)
    K, kept = x.new_empty(M, M), _kept_products(uses, plan, x, scratch)
    for rows in _blocks(M, plan.block):
        here, after = slice(rows.start * T, rows.stop * T), slice(rows.start * T, None)
        X = _products(x[:, here], x[:, after]) if kept is None or rows.start not in kept else kept[rows.start]
        if kept is not None:
            kept[rows.start] = X
        Z = _products(z[:, here].div(scale), z[:, after]).div_(scale)
        K[rows.start :, rows] = Z.mul_(X).view(G, rows.stop - rows.start, T, -1, T).sum((0, 2)).sum(-1).T
    return Gram(_mirrored(K, plan.block))


def _kept_products(uses: Sequence[Use], plan: Plan, rows: Tensor, scratch: Scratch) -> Products | None:
    """Where the products of this input's rows are kept, if another layer has read it and they are not too large."""
    operation, x, *_ = uses[0]
    if len(uses) > 1 or isinstance(operation, Convolution) or rows.shape[1] ** 2 * rows.itemsize > KEPT_PRODUCTS:
        return None
    return scratch.products(x, (operation.samples, plan.block))


def pixels(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """Pairwise for a convolution of stride 1: position s of the kernel's offset o sees pixel s + o.

    Rows are pixels first, samples second, so that a pair of pixels is a block of M × M; pairs (s, t) with s after t
    are the others transposed, before and after a shift: they are left out, but for those on the line of s.
    """
    operation, x, z, weight = uses[0]
    assert isinstance(operation, Convolution)
    M, space, out, dtype, every = len(x), x.shape[2:], z.shape[2:], gram_dtype(x.dtype), slice(None)
    seen = x.flatten(2).permute(2, 0, 1).reshape(-1, x.shape[1]).to(dtype)
    sent = divided(z.flatten(2).permute(2, 0, 1), scale, z.new_empty(shape.T, M, z.shape[1], dtype=dtype))
    Q = scratch.take("U", (len(seen), len(seen)), dtype, x.device)
    for rows in _blocks(len(seen), plan.block * M):
        torch.mm(seen[rows], seen[rows.start :].T, out=Q[rows, rows.start :])
    Q = Q.view(*space, M, *space, M)
    P = scratch.take("rows", (M, *out, M), dtype, x.device)
    upper, diagonal = Q.new_zeros(M, M), Q.new_zeros(M, M)
    shifts = _shifts(operation, weight.shape[2:], space, out)
    for number, s in enumerate(product(*(range(n) for n in out))):
        P[:, s[0] :].zero_()
        for shift, here, there in shifts:
            if all(part.start <= at < part.stop for part, at in zip(here, s, strict=True)):
                pixel = [slice(at + by, at + by + 1) for at, by in zip(s, shift, strict=True)]
                from_s, seen_from_s = slice(s[0], here[0].stop), slice(s[0] + shift[0], there[0].stop)
                looks = Q[(*pixel, every, seen_from_s, *there[1:])].flatten(0, len(s))
                P[(every, from_s, *here[1:])] += looks
        Z = sent[number] @ sent[number:].flatten(0, 1).T
        pairs = Z.mul_(P.view(M, -1)[:, number * M :]).view(M, -1, M)
        upper += pairs.sum(1)
        diagonal += pairs[:, 0]
    return Gram(upper + upper.T - diagonal)


def _shifts(
    operation: Convolution, kernel: Sequence[int], space: Sequence[int], out: Sequence[int]
) -> list[tuple[list[int], list[slice], list[slice]]]:
    """For each position of the kernel: how far it looks, from which output positions, and at which pixels."""
    found = []
    for offset in product(*(range(k) for k in kernel)):
        shift = [o * d - p for o, d, p in zip(offset, operation.dilation, operation.padding, strict=True)]
        here = [slice(max(0, -s), min(n, size - s)) for s, n, size in zip(shift, out, space, strict=True)]
        there = [slice(part.start + s, part.stop + s) for part, s in zip(here, shift, strict=True)]
        found.append((shift, here, there))
    return found


def materialised(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K = U Uᵀ with U_m = Σ_uses z_mᵀ x_m / scale, a block of input × output features at a time."""
    M, G, _, d_in, d_out, *_ = shape
    x = [(use, use.operation.readable(use.x, scale, own), own) for use, own in _own(uses, scratch)]
    z = [use.operation.outputs(use.z).mT.to(x[0][1].dtype) for use in uses]
    K, column = z[0].new_zeros(M, M), M * G * plan.outputs
    held = scratch.take("U", (column * (d_in if plan.keeps else plan.block),), K.dtype, K.device)
    for features in _blocks(d_in, plan.block):
        start, width = column * features.start if plan.keeps else 0, features.stop - features.start
        seen = [use.operation.inputs(readable, use.weight, features, own) for use, readable, own in x]
        for sent in zip(*(t.split(plan.outputs, dim=2) for t in z), strict=True):
            size = M * G * sent[0].shape[2] * width
            part = held[start : start + size].view(M, G, -1, width)
            torch.matmul(sent[0], seen[0], out=part)
            for outputs, inputs in zip(sent[1:], seen[1:], strict=True):
                part += outputs @ inputs
            _add_square(K, part.view(M, -1))
    if not plan.keeps:
        return Gram(_mirrored(K))
    whole = d_in - d_in % plan.block  # blocks of one size are taken together, a shorter last one alone
    U = [held[: column * whole].view(-1, M, G * d_out * plan.block), held[column * whole :].view(1, M, -1)]
    return Gram(_mirrored(K), partial(_weighed, [parts for parts in U if parts.numel()], uses[0], (G, d_out)))


def _weighed(U: Sequence[Tensor], use: Use, rows: tuple[int, int], c: Tensor) -> Tensor:
    summed = [_sum(c, parts).view(len(parts), *rows, -1).movedim(0, -2).flatten(-2) for parts in U]
    return use.operation.as_weight(torch.cat(summed, dim=-1), use.weight)


def _sum(c: Tensor, U: Tensor) -> Tensor:
    """Σ_m c_m u_m for parts of U, (parts, M, entries): the parts are spread over the cores."""
    return torch.bmm(c.expand(len(U), 1, -1), U)


def kernel(uses: Sequence[Use], scale: Tensor, shape: Shape, plan: Plan, scratch: Scratch) -> Gram:
    """K = U Uᵀ with U from torch's own kernel, a block of output features at a time; U is divided by the scale.

    The kernel's results are memory of its own, fresh each time, so they are taken for a few samples at once.
    """
    operation, x, z, weight = uses[0]
    assert isinstance(operation, Convolution)
    M, d_in = len(x), shape.d_in
    K = z.new_zeros(M, M)
    for features in _blocks(len(weight), plan.block):
        U = scratch.take("U", (M, (features.stop - features.start) * d_in), z.dtype, z.device)
        for rows in _blocks(M, samples_at_once(U[0].nbytes)):
            part = operation.sample_gradients(z[rows, features], x[rows], weight[features])
            torch.div(part.flatten(1), scale, out=U[rows])
        _add_square(K, U)
    by_output = U.view(M, -1, d_in).transpose(0, 1)
    weigh = (lambda c: _sum(c, by_output).view(weight.shape)) if plan.keeps else None
    return Gram(_mirrored(K), weigh)


def _add_square(K: Tensor, U: Tensor) -> None:
    """K += U Uᵀ for U of (M, entries); above the diagonal only where that is no extra work."""
    if not _suits_onednn(U, U):
        K.addmm_(U, U.T)
        return
    for columns in _blocks(len(K), COLUMNS):
        K[columns.start :, columns] += _by_onednn(U[columns.start :], U[columns])


def _mirrored(K: Tensor, columns_at_once: int = COLUMNS) -> Tensor:
    """The symmetric matrix whose blocks of columns are there from the diagonal on."""
    for columns in _blocks(len(K), columns_at_once):
        if columns.stop < len(K):
            K[columns, columns.stop :] = K[columns.stop :, columns].T
    return K


def _products(a: Tensor, b: Tensor) -> Tensor:
    """The inner products of rows with rows, (G, r, d) and (G, s, d) → (G, r, s), or all of it without G."""
    if b.dim() == 3 and len(b) == 1:
        return _products(a[0], b[0]).unsqueeze(0)
    return _by_onednn(a, b) if _suits_onednn(a, b) else a @ b.mT


def _suits_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN is quicker than BLAS, which torch takes for `a @ b.mT`: on a CPU, if there is much to do.

    It keeps the better part of a megabyte of code for every shape that it has met: not for products of many shapes.
    """
    if a.device.type != "cpu" or a.dtype != torch.float32 or b.dim() != 2 or len(a) * b.numel() < LARGE:
        return False
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return found


def bias_gram(rows: Tensor, scale: Tensor) -> Tensor:
    """K of a bias from its per-sample gradients (M, d_out)."""
    rows = rows / scale
    return rows @ rows.T


def _own(uses: Sequence[Use], scratch: Scratch) -> Iterator[tuple[Use, Scratch]]:
    """Each use with memory of its own: the first, mostly the only one, with that which is used again."""
    return ((use, Scratch() if number else scratch) for number, use in enumerate(uses))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The positions of all uses: (M, G, T, d)."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)


def _blocks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


_ROUTES = {"pairwise": pairwise, "pixels": pixels, "kernel": kernel, "materialised": materialised}
