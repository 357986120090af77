"""What sharing steps use of a layer: its coefficients c̃ in the shape of each input, and the way to weight by them."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fngd.autocast import cast_as_autocast
from fngd.history import History
from fngd.nodes import Weighted, put
from fngd.operations import Convolution, Operation, Samples, gram_dtype
from fngd.policies import Policy
from fngd.saved import ByNode, may_read_scaled, reads_scaled, saving_is_free
from fngd.scratch import Scratch
from fngd.weighted import scaled

SMALL = 1 << 17
"""Up to this many entries, a pass over a weight takes less time than a Python call does in the backward pass."""


class Sharing:
    """The shared coefficients of one layer."""

    def __init__(self, name: str) -> None:
        """Nothing to share yet.

        Args:
            name: The layer's.
        """
        self.name = name
        self.c: Tensor | None = None
        """One for each position in the batch, or one for all; None as long as no batch has been derived."""
        self._fits: int | None = None
        """The largest batch that `c` fits; None for any."""
        self._spread: dict[Operation, tuple[Tensor, ByNode | None]] = {}
        """`c` in the shape of an operation's input, and the operation with torch's own node, if that can weight it."""

    def take(self, history: History, policy: Policy, *, scale_by_damping: bool) -> None:
        """Take c̃ from a history, if there is any.

        Args:
            history: The layer's.
            policy: What it makes of c̃.
            scale_by_damping: Whether to divide by λ.
        """
        self.forget_shapes()
        if history.mean is None:
            return
        c = policy.share(history.mean)
        self._fits = None if len(policy.share(history.mean.new_ones(2))) == 1 else len(history.mean)
        self.c = c[:1] if (c == c[0]).all() else c
        lam = history.measures.damping.to(c)
        if scale_by_damping and lam > 0:
            self.c = self.c / lam

    def forget_shapes(self) -> None:
        """Other inputs are to come."""
        self._spread.clear()

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None, scratch: Scratch) -> Tensor:
        """The operation, in a graph that returns gradients weighted by the coefficients."""
        if not weight.requires_grad and (bias is None or not bias.requires_grad):
            return operation.forward(x, weight, bias)
        found = None if torch.compiler.is_dynamo_compiling() else self._spread.get(operation)
        c, by_node = self._shaped(operation, x, weight, scratch) if found is None else found
        if by_node is not None and bias is None and saving_is_free():
            return by_node(x, weight)
        if c.numel() == 1 and weight.numel() <= SMALL and weight.dtype == c.dtype:
            return operation.forward(x, scaled(weight, c), None if bias is None else scaled(bias, c))
        x, weight, bias = cast_as_autocast(x, weight, bias)
        output: Tensor = put(Weighted, operation, scratch, x, weight, bias, c)
        return output

    def _shaped(
        self, operation: Operation, x: Tensor, weight: Tensor, scratch: Scratch
    ) -> tuple[Tensor, ByNode | None]:
        """What is to be kept in mind of an operation; in a graph nothing is, which would watch what it found."""
        c = self._coefficients(operation.samples, x)
        if torch.compiler.is_dynamo_compiling():
            return c, None
        by_node = None
        if isinstance(operation, Convolution) and may_read_scaled(operation, x, weight, c):
            by_node = reads_scaled(operation, c, scratch)
        self._spread[operation] = c, by_node
        return c, by_node

    def _coefficients(self, samples: Samples, x: Tensor) -> Tensor:
        """The coefficients for a batch, shaped like x; a single 1 if none were ever derived."""
        c, M = self.c, samples.M
        if c is None:
            warnings.warn(
                f"fngd: layer {self.name!r} had no finite gradient while coefficients were derived: it takes the plain "
                "gradient, if one comes. To derive anew, call detach() and make a new optimizer",
                stacklevel=2,
            )
            c = torch.ones(1, dtype=gram_dtype(x.dtype), device=x.device)
        elif self._fits is not None and self._fits < M:
            raise RuntimeError(
                f"fngd: layer {self.name!r} meets a batch of {M} samples (input {tuple(x.shape)}), but its shared "
                f"coefficients were derived for batches of {self._fits}: derive with the largest batch size, use "
                f"batches of at most {self._fits}, or take policy=fngd.Constant(…), which fits any batch size"
            )
        elif M < len(c) > 1:
            c = c[:M] * (c.mean() / c[:M].mean())
        return samples.spread(c, x.dim())
