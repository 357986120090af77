"""The autograd functions that put the weighted gradient into the graph: `Weighted`, and `Deriving` with `Join`.

`Weighted` is for known coefficients: each use of a weight is on its own.
`Deriving` and `Join` are for coefficients that depend on the gradients themselves. A weight that is used more than
once (tied, or a module called twice) has one per-sample gradient, the sum over its uses, so nothing can be weighted
before the last use is through. `Deriving` therefore only notes down x and z; `Join`, a node between all uses and the
parameters, is run by the autograd engine when no further use can come, and returns all gradients at once.
The last use that the forward pass has made need not wait for that: where `goes_first` says so, all gradients are made
with it, before its input's. On ResNet-32 a deriving step takes a percent less by that order.
All leave the forward and the input gradient as torch computes them. `put` makes nodes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from fngd.operations import Operation
from fngd.scratch import Scratch
from fngd.uses import Use
from fngd.weighted import goes_first, weighted_backward

ParameterGradients = tuple[Tensor | None, ...]
"""Of each parameter of a layer, None where it has none."""
TOKEN = 1
"""Where among the tensors that `Deriving` takes the token is."""
NO_BACKWARD = -1


def current_backward() -> int:
    """A number for the backward pass under way, `NO_BACKWARD` outside of any."""
    return torch._C._current_graph_task_id()


def is_to_run(node: Any) -> bool:
    """Whether the backward pass under way comes to a node: one for an input's gradient alone passes most of them by."""
    return torch._C._will_engine_execute_node(node)


def put(node: type[torch.autograd.Function], *args: Any) -> Any:
    """What `node.apply` does, without its Python, which is there for functorch: between large kernels 25 µs.

    Functorch cannot transform these nodes, and says so the usual way; torch.compile knows the usual way only. Left out
    is what takes wrappers off tensors that have outlived the transform which made them.

    Args:
        node: The kind of node to put into the graph.
        args: Of its `forward`.

    Returns:
        What `forward` returns.
    """
    if torch.compiler.is_dynamo_compiling() or torch._C._are_functorch_transforms_active():
        return node.apply(*args)
    without_functorch: Any = super(torch.autograd.Function, node)
    return without_functorch.apply(*args)


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
    """The uses of one layer in one forward pass, noted down by `Deriving` on the way back, and what `Join` returns."""

    def __init__(self, finish: Callable[[Sequence[tuple[Use, Any]]], ParameterGradients]) -> None:
        """Start empty.

        Args:
            finish: What turns the uses, each with the label given to `Deriving`, into the parameters' gradients.
        """
        self.finished: bool = False
        """Whether the gradients have been made: uses that come later belong to another pass."""
        self._finish = finish
        self._uses: dict[int, tuple[Use, Any]] = {}
        self._made: ParameterGradients | None = None
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
            self._backward, self._uses, self._made = backward, {}, None
        self._uses[number] = (use, label)

    @property
    def complete(self) -> bool:
        """Whether all uses have been noted down that the forward pass has made."""
        return len(self._uses) == self._expected

    def make(self) -> None:
        """Make all gradients; the notes are empty again."""
        uses, self._uses = [self._uses[number] for number in sorted(self._uses)], {}
        self.finished = True
        self._made = self._finish(uses)

    def take(self) -> ParameterGradients:
        """All gradients, made now if they have not been made."""
        if self._made is None:
            self.make()
        made, self._made = self._made, None
        assert made is not None
        return made


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
        ctx.notes.note(ctx.number, Use(ctx.operation, x, z, weight), ctx.label)
        if ctx.notes.complete and goes_first(x, weight) and is_to_run(ctx.next_functions[TOKEN][0]):
            ctx.notes.make()
        input_gradient, _, _ = ctx.operation.backward(z, x, weight, (ctx.needs_input_grad[3], False, False))
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
        return None, *ctx.notes.take()
