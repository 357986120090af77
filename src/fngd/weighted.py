r"""Stage 4: the backward pass that returns the weighted gradient, Σ_m c_m u_m instead of Σ_m u_m.

`weighted_backward` scales the samples of x or of z by c, whichever is less work, and then calls the kernel that torch
itself would call, or for linear layers a quicker product: O(MD) extra work (`\cref{tab:time}`); on a CPU, large ones a
few samples at a time. Two autograd functions put it into the graph. Both leave the forward and the input gradient as
torch computes them.

`Weighted` is for known coefficients: each use of a weight is on its own. Where it would scale the input of a
convolution, torch's own node can do it (`reads_scaled`): no Python function stands around it then, which for small
layers is half of the price.
`Deriving` and `Join` are for coefficients that depend on the gradients themselves. A weight that is used more than
once (tied, or a module called twice) has one per-sample gradient, the sum over its uses, so nothing can be weighted
before the last use is through. `Deriving` therefore only notes down x and z; `Join`, a node between all uses and the
parameters, is run by the autograd engine when no further use can come, and returns all gradients at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from fngd.operations import Convolution, Gradients, Needs, Operation, gram_dtype
from fngd.scratch import KEPT_BYTES, Scratch
from fngd.uses import Use


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
    blocks = in_blocks(operation, x if by_input else z, weight)
    if by_input and not blocks:
        gx, gw, _ = operation.backward(z, scratch.product(x, c), weight, (needs_x, True, False))
        return gx, gw, weighted_bias(use, c) if needs_bias else None
    gx = operation.backward(z, x, weight, (True, False, False))[0] if needs_x else None
    if blocks:
        return gx, _weight_in_blocks(use, c, scratch, by_input=by_input), weighted_bias(use, c) if needs_bias else None
    return gx, *operation.backward(scratch.product(z, c), x, weight, (False, True, needs_bias))[1:]


def in_blocks(operation: Operation, scaled: Tensor, weight: Tensor) -> bool:
    """Whether a few samples at a time are scaled: on a CPU, where a copy of all would be large and the weight is not.

    A large copy is slow to come by, and has left the caches before it is read. Sums of half precision are not cut.
    """
    if torch.compiler.is_compiling() or scaled.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    whole = scaled.dtype == gram_dtype(scaled.dtype) and operation.samples.axis == 0
    return whole and scaled.nbytes > KEPT_BYTES >= 4 * weight.nbytes


def _weight_in_blocks(use: Use, c: Tensor, scratch: Scratch, *, by_input: bool) -> Tensor:
    """Σ_m c_m u_m for the weight, over blocks of samples of about the same size."""
    operation, x, z, weight = use
    most = max(1, KEPT_BYTES * len(x) // (x if by_input else z).nbytes)
    size, total = math.ceil(len(x) / math.ceil(len(x) / most)), torch.zeros_like(weight)
    for seen, sent, own in zip(*(t.split(size) for t in (x, z, c)), strict=True):
        rows = (sent, scratch.product(seen, own)) if by_input else (scratch.product(sent, own), seen)
        _, gw, _ = operation.backward(rows[0], rows[1], weight, (False, True, False))
        assert gw is not None
        total += gw
    return total


def weighted_bias(use: Use, c: Tensor) -> Tensor:
    """Σ_m c_m Σ_t z_mt: (d_out,)."""
    rows = use.operation.entry_rows(use.z, use.z.dtype)
    return c.flatten().expand(len(rows)).to(rows.dtype) @ rows


def scaled(parameter: Tensor, c: Tensor) -> Tensor:
    """The parameter itself, with a gradient of c times what it would be: p̄ + c (p − p̄), where p̄ = p is a constant.

    The whole of `Weighted` for a layer whose samples all have the coefficient c, without Python in the backward pass.
    """
    return parameter.detach().lerp(parameter, c.view(()))


def cast_as_autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What torch's autocast does to the arguments of a product, where it is on: float64 is left alone."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(x.device.type)

    def cast(t: Tensor) -> Tensor:
        return t if t.dtype == torch.float64 else t.to(dtype)

    return cast(x), cast(weight), None if bias is None else cast(bias)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which products keep the dtype of their arguments."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def may_read_scaled(operation: Operation, x: Tensor, weight: Tensor, c: Tensor) -> bool:
    """Whether torch's own node can weight such a use, by reading a scaled input.

    A convolution's can, if it has no bias. Not if scaling the output's gradient is less work, or blocks are.
    """
    if not isinstance(operation, Convolution) or x.device.type not in ("cpu", "cuda"):
        return False
    return c.numel() > 1 and not operation.shrinks(x, weight) and not in_blocks(operation, x, weight)


_WHILE_TRACING = False


def saving_is_free() -> bool:
    """Whether nobody else has to do with what nodes save, as inside of a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(_WHILE_TRACING) is None


def reads_scaled(output: Tensor, c: Tensor, scratch: Scratch) -> Tensor:
    """Let the node of a convolution without bias read c ⊙ x where it has saved x: for the weight's gradient alone.

    Args:
        output: Torch's own, with its node.
        c: The samples' coefficients, shaped to broadcast against x.
        scratch: Where the scaled copy is put.

    Returns:
        The same output.
    """
    if output.grad_fn is not None:
        saved = output.grad_fn._raw_saved_input  # type: ignore[attr-defined]
        saved.register_hooks(_with_version, partial(_scaled, c, scratch))
    return output


def _with_version(x: Tensor) -> tuple[Tensor, int]:
    return x, x._version


def _scaled(c: Tensor, scratch: Scratch, saved: tuple[Tensor, int]) -> Tensor:
    x, version = saved
    if x._version != version:
        raise RuntimeError(CHANGED)
    if torch.is_grad_enabled():
        raise RuntimeError(DOUBLE_BACKWARD)
    return scratch.product(x, c)


NO_BACKWARD = -1


def current_backward() -> int:
    """A number for the backward pass under way, `NO_BACKWARD` outside of any."""
    return torch._C._current_graph_task_id()


CHANGED = (
    "fngd: the input of a preconditioned convolution, which is needed for gradient computation, has been modified by "
    "an inplace operation since the forward pass"
)
DOUBLE_BACKWARD = (
    "fngd: double backward (create_graph=True) through a preconditioned layer is not supported: the weighted gradient "
    "is not the derivative of the loss. Call detach() on the optimizer, or exclude the layer"
)


class Weighted(torch.autograd.Function):
    """A layer whose parameter gradients are weighted by known coefficients."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: Operation,
        scratch: Scratch,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        c: Tensor,
    ) -> Tensor:
        """Torch's own forward."""
        ctx.operation, ctx.scratch = operation, scratch
        ctx.save_for_backward(x, weight, c)
        return operation.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, z: Tensor) -> tuple[Tensor | None, ...]:
        """The input gradient as torch computes it, the parameters' weighted by c."""
        if torch.is_grad_enabled():
            raise RuntimeError(DOUBLE_BACKWARD)
        x, weight, c = ctx.saved_tensors
        use = Use(ctx.operation, x, z, weight)
        return None, None, *weighted_backward(use, c, ctx.needs_input_grad[2:5], ctx.scratch), None


class Notes:
    """The uses of one layer in one forward pass, noted down by `Deriving` on the way back and read by `Join`."""

    def __init__(self, finish: Callable[[Sequence[tuple[Use, Any]]], tuple[Tensor | None, ...]]) -> None:
        """Start empty.

        Args:
            finish: What turns the uses, each with the label given to `Deriving`, into the parameters' gradients.
        """
        self.finished: bool = False
        """Whether the gradients have been asked for: uses that come later belong to another pass."""
        self._finish = finish
        self._uses: dict[int, tuple[Use, Any]] = {}
        self._expected = 0
        self._backward = NO_BACKWARD

    def expect(self) -> int:
        """A number for one more use."""
        self._expected += 1
        return self._expected - 1

    def note(self, number: int, use: Use, label: Any) -> None:
        """Keep a use; what an earlier backward left behind, such as one for an input's gradient alone, is dropped."""
        backward = current_backward()
        if backward != self._backward:
            self._backward, self._uses = backward, {}
        self._uses[number] = (use, label)

    def finish(self) -> tuple[Tensor | None, ...]:
        """All gradients; the notes are empty again."""
        uses, self._uses = [self._uses[number] for number in sorted(self._uses)], {}
        self.finished = True
        return self._finish(uses)


class Deriving(torch.autograd.Function):
    """A use of a layer whose coefficients are still to be derived; its parameters hang on `token`."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: Operation,
        notes: Notes,
        label: Any,
        x: Tensor,
        token: Tensor,  # noqa: ARG004
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """Torch's own forward."""
        ctx.operation, ctx.notes, ctx.label, ctx.number = operation, notes, label, notes.expect()
        ctx.save_for_backward(x, weight)
        return operation.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, z: Tensor) -> tuple[Tensor | None, ...]:
        """The input gradient as torch computes it; the parameters' come from `Join`."""
        if torch.is_grad_enabled():
            raise RuntimeError(DOUBLE_BACKWARD)
        x, weight = ctx.saved_tensors
        input_gradient, _, _ = ctx.operation.backward(z, x, weight, (ctx.needs_input_grad[3], False, False))
        ctx.notes.note(ctx.number, Use(ctx.operation, x, z, weight), ctx.label)
        return None, None, None, input_gradient, None, None, None


class Join(torch.autograd.Function):
    """The node between the uses of a layer and its parameters."""

    @staticmethod
    def forward(ctx: FunctionCtx, notes: Notes, *parameters: Tensor) -> Tensor:
        """A token without content: it only carries the edges of the graph."""
        ctx.notes = notes  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        return parameters[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """The weighted gradients of all parameters, once every use has been noted down."""
        return None, *ctx.notes.finish()
