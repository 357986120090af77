"""Stage 4 without a node of ours: torch's own node of a convolution reads its input scaled.

A convolution has saved its input for the weight's gradient alone. Where that input is what `weighted_backward` would
scale, the node is given c ⊙ x when it asks for x: no Python function stands around it then, which for small layers is
half of the price.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fngd.nodes import DOUBLE_BACKWARD
from fngd.operations import CONVOLVE, Convolution
from fngd.scratch import Scratch
from fngd.weighted import in_blocks, is_turned

CHANGED = (
    "fngd: the input of a preconditioned convolution, which is needed for gradient computation, has been modified by "
    "an inplace operation since the forward pass"
)


def may_read_scaled(operation: Convolution, x: Tensor, weight: Tensor, c: Tensor) -> bool:
    """Whether torch's own node can weight such a use, by reading a scaled input.

    A convolution's can, if it has no bias. Not if scaling the output's gradient is less work, or blocks or another
    layout are.
    """
    if x.device.type not in ("cpu", "cuda") or c.numel() == 1:
        return False
    return not (operation.shrinks(x, weight) or in_blocks(operation, x, weight) or is_turned(operation, x, weight))


_WHILE_TRACING = False


def saving_is_free() -> bool:
    """Whether nobody else has to do with what nodes save, as inside of a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(_WHILE_TRACING) is None


ByNode = Callable[[Tensor, Tensor], Tensor]
"""A convolution without bias of some input with some weight."""


def reads_scaled(operation: Convolution, c: Tensor, scratch: Scratch) -> ByNode:
    """A convolution whose node reads c ⊙ x where it has saved x: for the weight's gradient alone.

    Args:
        operation: The convolution.
        c: The samples' coefficients, shaped to broadcast against x.
        scratch: Where the scaled copy is put.

    Returns:
        Torch's own convolution, which sees to it that its node does.
    """
    convolve, geometry = CONVOLVE[len(operation.stride)], operation.geometry

    def read(saved: tuple[Tensor, int]) -> Tensor:
        x, version = saved
        if x._version != version:
            raise RuntimeError(CHANGED)
        if torch.is_grad_enabled():
            raise RuntimeError(DOUBLE_BACKWARD)
        return scratch.product(x, c)

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        output = convolve(x, weight, None, *geometry)
        node = output.grad_fn
        if node is not None:
            node._raw_saved_input.register_hooks(_with_version, read)  # type: ignore[attr-defined]
        return output

    return forward


def _with_version(x: Tensor) -> tuple[Tensor, int]:
    return x, x._version
