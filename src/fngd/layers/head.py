"""The output layer as the judge of the samples: `FromHead`'s one layer, and its node in the graph.

    K of the head → λ = α‖K‖_F → c = (I + K/(λM))⁻¹ r, divided by its mean → z ← c ⊙ z → torch's own backward

The head multiplies its output gradient by c before it computes anything, so what goes down from there is the gradient
of (1/M) Σ_m c_m ℓ_m, and no other layer has anything to do. With x, z and the head's Gram matrix known in its own
backward, nothing waits for anything.

Which layer is the head may not be known before the first forward pass is over (`search.py`): until then every layer
that could be it carries the node, and the node asks when the gradient comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fngd.autocast import cast_as_autocast, without_autocast
from fngd.gram import scale_of
from fngd.history import report
from fngd.layers import compiled
from fngd.layers.base import Layer
from fngd.layers.derivation import solved
from fngd.layers.parts import Label, Part
from fngd.layers.registry import Place
from fngd.layers.run import Run
from fngd.nodes import DOUBLE_BACKWARD, put
from fngd.operations import Gradients, Needs, Operation, Samples
from fngd.plain import chosen, plain
from fngd.uses import Use
from fngd.weighted import weighted_backward

UNKNOWN = (
    "fngd: FromHead does not know the head yet: it is found in the first forward pass of the whole model, and layer "
    "{name!r} was used without one. Call the model itself, or name the head: fngd.FromHead(alpha, head={name!r})"
)


class Head(Layer):
    """The head, or a layer that may turn out to be it."""

    def __init__(self, name: str, places: Sequence[Place], run: Run, rhs: str = "ones") -> None:
        """A layer of which nobody knows yet whether it is the head.

        Args:
            name: The module's name in the model.
            places: Where its weight and bias are. Frozen ones count as well: the layers below may not be frozen.
            run: What it shares with the model.
            rhs: The right-hand side, "ones" or "residual".
        """
        super().__init__(name, places, run)
        self.rhs = rhs
        self.chosen: bool | None = None
        """Whether it is the head; None as long as nobody knows."""
        self.used: bool = False
        self.objection: str = ""
        """Why its use could not be a head's, noted down while it is not known to be one."""

    @property
    def trainable(self) -> bool:
        """A frozen head still weights what is below it."""
        return True

    def choose(self) -> None:
        """It is the head.

        Raises:
            RuntimeError: If it was used as a head cannot be.
        """
        self.chosen = True
        self._operations.clear()  # or what was objected to would pass from now on
        if self.objection:
            raise RuntimeError(f"fngd: {self.objection}")

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own forward, in a graph that scales the output gradient on its way back."""
        self.used = True
        if self.run.used is not None:
            if self in self.run.used:
                self._object(
                    f"FromHead cannot take layer {self.name!r} for the head: it is used more than once in a forward "
                    "pass, so that its Gram matrix is not known before the first of its gradients is passed on"
                )
            self.run.used.add(self)
        x, weight, bias = cast_as_autocast(x, weight, bias)
        if torch.compiler.is_dynamo_compiling():
            return scaling(self.number, compiled.static(operation), x, weight, bias)
        output: Tensor = put(Scaling, operation, self, x, weight, bias)
        return output

    def misfit(self, message: str, otherwise: Samples) -> Samples:
        """An input does not fit the batch: that matters for the head only."""
        self._object(message)
        return otherwise

    def backward(self, use: Use, label: Label, needs: Needs) -> Gradients:
        """Torch's own gradients of input, weight and bias, from c ⊙ z in place of z.

        Where z is wider than x, as over a vocabulary, x and the input's gradient are scaled instead: c stands between
        the samples of z and of x, and between those of z and of the input's gradient, so it may go to either side.

        Args:
            use: The use with its output gradient.
            label: Which parameters it reads.
            needs: Which gradients are wanted.

        Returns:
            The three gradients, None where not wanted.
        """
        operation, x, z, weight = use
        c = self._weights(use, label)
        if c is None:
            return operation.backward(z, x, weight, needs)
        if 2 * x.numel() >= z.numel():
            return operation.backward(_weighted(z, c), x, weight, needs)
        gx = operation.input_gradient(z, x, weight).mul_(c) if needs[0] else None
        _, gw, gb = weighted_backward(use, c, (False, *needs[1:]), self.run.scratch)
        return gx, gw, gb

    def scaled(self, use: Use, label: Label) -> Tensor:
        """C ⊙ z, with c derived from this very z; plain z if this is not the head.

        Args:
            use: The use with its output gradient.
            label: Which parameters it reads.

        Returns:
            A new tensor, or z itself.
        """
        c = self._weights(use, label)
        return use.z if c is None else _weighted(use.z, c)

    def _weights(self, use: Use, label: Label) -> Tensor | None:
        """The samples' coefficients, shaped to broadcast against x and z; None if this is not the head.

        Raises:
            RuntimeError: If nobody knows whether this is the head.
        """
        if self.chosen is None:
            raise RuntimeError(UNKNOWN.format(name=self.name))
        if not self.chosen or use.x.numel() == 0 or use.z.numel() == 0:
            return None
        with without_autocast(use.z.device):
            return use.operation.samples.spread(self._judged(use, label), use.z.dim())

    def _judged(self, use: Use, label: Label) -> Tensor:
        """The coefficients of a batch, of mean one; they are reported."""
        settings, M = self.run.settings, use.operation.samples.M
        rhs = residuals(use) if self.rhs == "residual" else None
        found = solved([(use, label)], settings, self.run.budget, self.run.scratch, self._scale, rhs)
        K, solution, unit, _, self._scale = found
        c, mean = solution.c, plain(solution.c.mean())
        valid = solution.valid & (mean > least_mean(settings.alpha, M)) & (mean < torch.inf)
        c = chosen(valid, c / mean, 1.0)
        self.run.note(self._history, report(K, solution._replace(c=c, valid=valid), unit))
        if self.run.watch is not None:
            self.run.watch(self.name, K / solution.norm)
        return c

    def _object(self, message: str) -> None:
        if self.chosen:
            raise RuntimeError(f"fngd: {message}")
        self.objection = self.objection or message


def _weighted(z: Tensor, c: Tensor) -> Tensor:
    """C ⊙ z in the dtype of z, which may be shorter than that of c."""
    return (z * c).to(z.dtype)


def residuals(use: Use) -> Tensor:
    """Each sample's ‖z_m‖², divided by their mean: (M,); ones where there is no gradient at all.

    Args:
        use: The head's use.

    Returns:
        The right-hand side of the improved empirical Fisher.
    """
    samples, scale = use.operation.samples, scale_of([use.z])  # squares of what is divided stay in range
    rows = samples.first(use.z).reshape(samples.M, -1).to(scale.dtype) / scale
    lengths = rows.square().sum(1)
    return torch.where(lengths.sum() == 0, 1.0, lengths / lengths.mean())


def least_mean(alpha: float, M: int) -> float:
    """Half of the least mean that c can have for a right-hand side of ones.

    Under the damping rule the eigenvalues of K/(λM) are at most 1/(αM), so that mean is at least αM/(1 + αM). Other
    right-hand sides have no such bound: a mean near zero, or below it, cannot be scaled to one, and such a batch takes
    the plain gradient.
    """
    return 0.5 * alpha * M / (1 + alpha * M)


class Scaling(torch.autograd.Function):
    """A layer that scales its output gradient by the samples' coefficients, if it is the head."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, head: Head, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own forward."""
        ctx.operation, ctx.head, ctx.has_bias = operation, head, bias is not None
        ctx.save_for_backward(x, weight)
        return operation.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, z: Tensor) -> tuple[Tensor | None, ...]:
        """What torch computes, from the scaled output gradient."""
        if torch.is_grad_enabled():
            raise RuntimeError(DOUBLE_BACKWARD)
        x, weight = ctx.saved_tensors
        use, label = Use(ctx.operation, x, z, weight), _label(weight, has_bias=ctx.has_bias)
        return None, None, *ctx.head.backward(use, label, ctx.needs_input_grad[2:])


@compiled.in_graph
def scaling(head: Tensor, operation: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same in a compiled graph, which knows the head by its number."""
    node = compiled.Static(*operation).on(x), compiled.Judge(head)
    output: Tensor = Scaling.apply(*node, x, weight, bias)  # type: ignore[no-untyped-call]
    return output


def _label(weight: Tensor, *, has_bias: bool) -> Label:
    """The whole of the weight and, if there is one, of the bias."""
    bias = Part(1, (len(weight),), (1,), 0) if has_bias else None
    return Label(Part(0, tuple(weight.shape), weight.stride(), 0), bias)
