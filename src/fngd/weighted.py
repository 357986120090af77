r"""Stage 4: the backward pass that returns the weighted gradient, Σ_m c_m u_m instead of Σ_m u_m.

`weighted_backward` scales the samples of x or of z by c, whichever is less work, and then calls the kernel that torch
itself would call, or a quicker one: O(MD) extra work (`\cref{tab:time}`); on a CPU, large ones a few samples at a time.
The input's gradient is as torch computes it. `nodes` puts it into the graph, `saved` does without a node of ours where
torch's own can do it.

A convolution's kernel reads x and z in an order of its own, and torch puts them in order first. For few channels that
order is channels last, or the kernel for it is quicker: there `channels.turned`, scaled where it lies, takes the place
of both the scaled copy and torch's. On ResNet-32 the weighted gradient takes about as long as SGD's then.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fngd.channels import turned
from fngd.operations import Convolution, Gradients, Needs, Operation, gram_dtype
from fngd.scratch import KEPT_BYTES, Scratch
from fngd.uses import Use

FEWEST, MOST = 8, 24
"""Channels, of the input and of the output, with which the kernel for channels last is the quicker one."""
LARGE = 4 << 20
"""Bytes of an input that no cache of a core holds: to turn it is worth a node of ours, and the order of the two
gradients matters."""


def weighted_backward(use: Use, c: Tensor, needs: Needs, scratch: Scratch) -> Gradients:
    """The gradient of the input as it is, and Σ_m c_m u_m for the weight and the bias.

    The samples of whichever is smallest are scaled: of x, which leaves the input's gradient alone and so takes one
    call of torch's kernel; of z, which takes two; or the sum itself, if all samples have the same coefficient. What is
    large is scaled in blocks, and takes a call for each of them.

    Args:
        use: The operation with its input, output gradient and weight.
        c: The samples' coefficients, or one for all, shaped to broadcast against x and z (`Samples.spread`).
        needs: Which gradients are wanted.
        scratch: Where the scaled copy is put.

    Returns:
        The three gradients, None where not wanted.
    """
    operation, x, z, weight = use
    needs_x, needs_weight, needs_bias = needs
    if not needs_weight:
        gx = operation.backward(z, x, weight, (True, False, False))[0] if needs_x else None
        return gx, None, weighted_bias(use, c) if needs_bias else None
    if c.numel() == 1 and weight.numel() <= min(x.numel(), z.numel()):
        gx, gw, gb = operation.backward(z, x, weight, needs)
        c = c.flatten()
        return gx, None if gw is None else gw.mul_(c), None if gb is None else gb.mul_(c)
    by_input = 2 * x.numel() + needs_bias * z.numel() <= 2 * z.numel()
    blocks, weight_first = in_blocks(operation, x if by_input else z, weight), goes_first(x, weight)
    if by_input and not blocks and not weight_first:
        gx, gw, _ = operation.backward(z, scratch.product(x, c), weight, (needs_x, True, False))
        return gx, gw, weighted_bias(use, c) if needs_bias else None
    gx = operation.backward(z, x, weight, (True, False, False))[0] if needs_x and not weight_first else None
    if by_input or blocks:
        gw = (_weight_in_blocks if blocks else _weight)(use, c, scratch, by_input=by_input)
        gb = weighted_bias(use, c) if needs_bias else None
    else:
        _, gw, gb = operation.backward(scratch.product(z, c), x, weight, (False, True, needs_bias))
    if needs_x and weight_first:
        gx = operation.backward(z, x, weight, (True, False, False))[0]
    return gx, gw, gb


def goes_first(x: Tensor, weight: Tensor) -> bool:
    """Whether the weight's gradient is made before the input's: it is to be held meanwhile, so not if it is larger.

    Where x is large z is still in the caches then, and the next node finds in them what it reads.
    """
    return not torch.compiler.is_compiling() and x.nbytes >= LARGE and x.nbytes >= weight.nbytes


def in_blocks(operation: Operation, scaled: Tensor, weight: Tensor) -> bool:
    """Whether a few samples at a time are scaled: on a CPU, where a copy of all would be large and the weight is not.

    A large copy is slow to come by, and has left the caches before it is read. Sums of half precision are not cut.
    """
    if torch.compiler.is_compiling() or not scaled.nbytes > KEPT_BYTES >= 4 * weight.nbytes:
        return False
    whole = scaled.dtype == gram_dtype(scaled.dtype) and operation.samples.axis == 0
    return whole and scaled.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def is_turned(operation: Operation, x: Tensor, weight: Tensor) -> bool:
    """Whether x and z are turned to channels last for the weight's gradient: on a CPU, where that is less work."""
    if not isinstance(operation, Convolution) or not operation.may_be_turned(x) or x.nbytes < LARGE:
        return False
    d_out, d_in, *_ = weight.shape
    return FEWEST <= d_in <= MOST and FEWEST <= d_out <= MOST and weight.is_contiguous()


def _weight_in_blocks(use: Use, c: Tensor, scratch: Scratch, *, by_input: bool) -> Tensor:
    """Σ_m c_m u_m for the weight, over blocks of samples of about the same size."""
    operation, x, z, weight = use
    most = max(1, KEPT_BYTES * len(x) // (x if by_input else z).nbytes)
    size, total = math.ceil(len(x) / math.ceil(len(x) / most)), torch.zeros_like(weight)
    for seen, sent, own in zip(*(t.split(size) for t in (x, z, c)), strict=True):
        total += _weight(Use(operation, seen, sent, weight), own, scratch, by_input=by_input)
    return total


def _weight(use: Use, c: Tensor, scratch: Scratch, *, by_input: bool) -> Tensor:
    """Σ_m c_m u_m for the weight, in one piece: of z turned and scaled, of x scaled or of z scaled."""
    operation, x, z, weight = use
    if is_turned(operation, x, weight) and z.is_contiguous():
        z = turned(z).mul_(c)  # before x is read: z is still in the caches
        x = turned(x)
    elif by_input:
        x = scratch.product(x, c)
    else:
        z = scratch.product(z, c)
    _, gw, _ = operation.backward(z, x, weight, (False, True, False))
    assert gw is not None
    return gw.contiguous() if weight.is_contiguous() else gw


def weighted_bias(use: Use, c: Tensor) -> Tensor:
    """Σ_m c_m Σ_t z_mt: (d_out,)."""
    rows = use.operation.entry_rows(use.z, use.z.dtype)
    return c.flatten().expand(len(rows)).to(rows.dtype) @ rows


def scaled(parameter: Tensor, c: Tensor) -> Tensor:
    """The parameter itself, with a gradient of c times what it would be: p̄ + c (p − p̄), where p̄ = p is a constant.

    The whole of `Weighted` for a layer whose samples all have the coefficient c, without Python in the backward pass.
    """
    return parameter.detach().lerp(parameter, c.view(()))
