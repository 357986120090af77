"""Which parameters a use of a layer reads: whole ones, or pieces of them such as the rows for q in a packed weight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from torch import Tensor, nn


class Part(NamedTuple):
    """A strided piece of a layer's parameter: the whole of it, some of its rows, its transpose."""

    parameter: int
    """Its place among the layer's parameters."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, t: Tensor) -> Tensor:
        """The same piece of a tensor laid out as the parameter is."""
        return t.as_strided(self.shape, self.stride, self.offset)

    def overlaps(self, other: Part) -> bool:
        """Whether the two can share an element."""
        if self.parameter != other.parameter:
            return False
        first, second = sorted((self, other), key=lambda part: part.offset)
        reach = sum((size - 1) * stride for size, stride in zip(first.shape, first.stride, strict=True))
        return second.offset <= first.offset + reach


class Label(NamedTuple):
    """The parts one use reads; None where there is no bias or the parameter is frozen."""

    weight: Part | None
    bias: Part | None


def part_of(t: Tensor, parameters: Sequence[Tensor]) -> Part | None:
    """Which piece of which parameter a tensor is.

    Args:
        t: A parameter or a view of one.
        parameters: The layer's parameters.

    Returns:
        The part, or None if its parameter is frozen.

    Raises:
        LookupError: If it is neither.
    """
    for index, parameter in enumerate(parameters):
        if t is parameter or t._base is parameter:
            offset = int(t.storage_offset() - parameter.storage_offset())
            return Part(index, tuple(t.shape), t.stride(), offset) if parameter.requires_grad else None
    raise LookupError(f"a tensor of shape {tuple(t.shape)} is neither one of the parameters nor a view of one")


def check_whole(weight: Tensor, name: str) -> None:
    """Refuse a weight of which this process has only a piece, in the forward pass itself.

    FSDP2 has gathered it by then; tensor parallelism never does.

    Args:
        weight: What a rule passes.
        name: The layer's name.

    Raises:
        RuntimeError: If it is a DTensor.
    """
    if type(weight) in (nn.Parameter, Tensor):
        return
    from torch.distributed.tensor import DTensor  # takes a while, and is not needed before there is one

    if isinstance(weight, DTensor):
        raise RuntimeError(
            f"fngd: the weight of layer {name!r} is spread over processes by tensor parallelism (placements "
            f"{weight.placements} on {weight.device_mesh}), so that none of them has a sample's whole gradient, which "
            f"is not supported: pass exclude=[{name!r}], and the layer takes the plain gradient"
        )


def overlapping(parts: Sequence[Part]) -> bool:
    """Whether different parts share elements: then their Gram matrices do not simply add up."""
    return any(first.overlaps(second) for first, second in combinations(parts, 2))
