"""Whether an output gradient that has come to a node is the node's own, so that it may be changed in place.

Autograd hands a node its output gradient, and others may hold it as well: another branch of the graph, a hook, whoever
passed it in. If the node has the last reference to it and to its memory, nobody can see what becomes of it. Torch's own
engine adds up gradients in place by the same rule.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


class References(NamedTuple):
    """How often a tensor is held: its Python object, the tensor, its memory."""

    python: int
    tensor: int
    memory: int


def references(z: Tensor) -> References | None:
    """Count the references to an output gradient.

    To be called by a node's `backward` itself, before it hands the gradient on to anybody.

    Args:
        z: What `backward` was called with.

    Returns:
        The numbers; None where they would say nothing: in a graph of torch.compile, for a tensor of another class, with
        gaps or overlaps in its memory or not on a CPU, and where torch does not count.
    """
    if torch.compiler.is_compiling() or type(z) is not Tensor or z.device.type != "cpu" or not _is_dense(z):
        return None
    try:
        memory = torch._C._storage_Use_Count(z.untyped_storage()._cdata)
        return References(sys.getrefcount(z), z._use_count(), memory)  # type: ignore[attr-defined]
    except AttributeError:  # neither is torch's public interface
        return None


def is_last(found: References | None) -> bool:
    """Whether these are the references to a gradient that its node alone holds.

    Args:
        found: What `references` found.

    Returns:
        Whether it may be changed in place; False where that is not known.
    """
    return found is not None and found == _of_the_last()


def _is_dense(z: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return z.is_contiguous() or (z.dim() in formats and z.is_contiguous(memory_format=formats[z.dim()]))


@cache
def _of_the_last() -> References | None:
    """The references to a gradient that nobody else holds, as autograd hands it over: found by having one handed."""
    found: list[References | None] = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, z: Tensor) -> Tensor:
            found.append(references(z))
            return z

    with torch.enable_grad():
        x = torch.ones(2, device="cpu", requires_grad=True)
        Probe.apply(x).mul(2.0).sum().backward()  # type: ignore[no-untyped-call]
    return found[0]
