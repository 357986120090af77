"""Stage 1: what a layer computes, written so that every layer looks linear.

A layer meets a batch of M samples. For sample m it reads T input rows of length d_in and writes T output rows of
length d_out; with z the gradient of the loss at the outputs, the sample's gradient of the weight is

    u_m = Σ_t z_mtᵀ x_mt                                              (M samples, T positions)

A fully connected layer on (M, *, d_in) has one position for each combination of the middle dimensions; a convolution
has one for each output pixel, and its input rows are the padded patches. Two operations cover every supported layer:
`Linear` and `Convolution`. Each knows torch's own forward, the gradients torch itself would compute, and the two
canonical forms `inputs` (m, G, T, d_in) and `outputs` (m, G, T, d_out), where G counts the groups of a grouped
convolution: groups share no weights, so their Gram matrices add up. A convolution's features are in the order
(position of the kernel, channel), in which a patch is gathered in long runs; `as_weight` puts them back.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fngd.channels import seen_as_turned, turned, turned_back
from fngd.processor import convolves_channels_last
from fngd.products import summed_outer, varied_product
from fngd.scratch import Scratch

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
convolution_backward: Callable[..., Any] = torch.ops.aten.convolution_backward.default
unsafe_view: Callable[..., Tensor] = torch.ops.aten._unsafe_view.default

TURNED = 1 << 20
"""Bytes of an input whose gradient is worth a few calls more."""

Needs = tuple[bool, bool, bool]
"""Whether the gradients of input, weight and bias are needed."""
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of input, weight and bias."""


class Samples(NamedTuple):
    """Where the M samples lie in a tensor: dimension `axis` holds `M` · `repeats` entries.

    With repeats > 1 (windows, flattened sequences) the entries of one sample are neighbours if `sample_major`,
    else they are `M` entries apart.
    """

    axis: int
    M: int
    repeats: int = 1
    sample_major: bool = True

    def spread(self, c: Tensor, dim: int) -> Tensor:
        """One value for each sample, shaped to broadcast against a tensor of `dim` dimensions."""
        if self.repeats > 1 and c.numel() > 1:
            c = c.repeat_interleave(self.repeats) if self.sample_major else c.repeat(self.repeats)
        return c.view(*[-1 if axis == self.axis else 1 for axis in range(dim)])

    def first(self, t: Tensor) -> Tensor:
        """The tensor with its samples in front: (M, …, d) from any layout whose last dimension is d."""
        t = t.movedim(self.axis, 0) if self.axis else t
        if self.repeats == 1:
            return t
        if self.sample_major:
            return t.reshape(self.M, self.repeats, *t.shape[1:])
        return t.reshape(self.repeats, self.M, *t.shape[1:]).transpose(0, 1)


@dataclass(slots=True, eq=False)
class Operation(ABC):
    """A layer's computation on a batch whose samples lie as `samples` says."""

    samples: Samples
    groups: int = field(default=1, kw_only=True)

    @property
    def geometry(self) -> tuple[Any, ...]:
        """A convolution's stride, padding, dilation and groups."""
        return ()

    @abstractmethod
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own forward."""

    @abstractmethod
    def backward(self, z: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Gradients:
        """The gradients of input, weight and bias that torch itself would compute, None where not needed.

        A linear layer's weight has them from `products`, which may round otherwise than torch does.
        The input's depends on z and the weight only, the bias's on z only: whoever scales x changes the weight's alone.
        """

    def input_gradient(self, z: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input by the quickest product, which may round otherwise than torch does."""
        gradient, _, _ = self.backward(z, x, weight, (True, False, False))
        assert gradient is not None
        return gradient

    @abstractmethod
    def readable(
        self, x: Tensor, weight: Tensor, scale: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Tensor | None]:
        """The input in a layout from which `inputs` takes any features of any samples: made once for a batch.

        Args:
            x: The input.
            weight: What it is multiplied with.
            scale: What it is to be divided by.
            scratch: Where a copy is put.

        Returns:
            A copy that has been divided, and None; or the input itself, and what z is to be divided by instead.
        """

    @abstractmethod
    def inputs(self, readable: Tensor, features: slice, scratch: Scratch) -> Tensor:
        """Some input features in canonical form and in the dtype of the Gram matrix, (M, G, T, features)."""

    @abstractmethod
    def as_weight(self, summed: Tensor, weight: Tensor) -> Tensor:
        """A sum of per-sample gradients in canonical form, (G, d_out, d_in), in the weight's own shape."""

    @abstractmethod
    def outputs(self, z: Tensor) -> Tensor:
        """The output gradients in canonical form: (M, G, T, d_out)."""

    @abstractmethod
    def entry_rows(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of z over everything but the entries of the samples' dimension: (M · repeats, d_out)."""

    def bias_rows(self, z: Tensor) -> Tensor:
        """Each sample's gradient of the bias, Σ_t z_mt, in the dtype of the Gram matrix: (M, d_out)."""
        rows, (_, M, repeats, sample_major) = self.entry_rows(z, gram_dtype(z.dtype)), self.samples
        if repeats == 1:
            return rows
        return rows.reshape(M, repeats, -1).sum(1) if sample_major else rows.reshape(repeats, M, -1).sum(0)


@dataclass(slots=True, eq=False)
class Linear(Operation):
    """y = x Wᵀ + b on the last dimension of x."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = F.linear(x, weight, bias)
        # With a bias torch returns a view of rows, which autograd forbids to change in place after a node of ours.
        return y if bias is None or x.dim() == 2 else unsafe_view(y, y.shape)

    def backward(self, z: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Gradients:
        z = _rows(z)
        return (
            z.mm(weight).view(x.shape) if needs[0] else None,
            summed_outer(z, _rows(x)) if needs[1] else None,
            z.sum(0) if needs[2] else None,
        )

    def input_gradient(self, z: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return varied_product(_rows(z), weight.mT).view(x.shape)

    def entry_rows(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        if z.dim() == 2:
            return z.to(dtype)
        z = z.movedim(self.samples.axis, 0)
        return z.reshape(len(z), math.prod(z.shape[1:-1]), z.shape[-1]).sum(1, dtype=dtype)

    def readable(
        self, x: Tensor, weight: Tensor, scale: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Tensor | None]:
        return self.outputs(x), scale

    def inputs(self, readable: Tensor, features: slice, scratch: Scratch) -> Tensor:
        every = features.stop - features.start == readable.shape[-1]
        return widened(readable if every else readable[..., features], None, scratch, "rows")

    def as_weight(self, summed: Tensor, weight: Tensor) -> Tensor:
        return summed.view(weight.shape)

    def outputs(self, z: Tensor) -> Tensor:
        z = self.samples.first(z)
        return z.reshape(len(z), 1, math.prod(z.shape[1:-1]), z.shape[-1])


def gram_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything else is summed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def divided(t: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """The tensor in the place and the dtype of `out`, divided by a power of two; half precision is widened first."""
    if scale is None:
        return out.copy_(t)
    return torch.div(t, scale, out=out) if t.dtype == out.dtype else out.copy_(t).div_(scale)


def widened(t: Tensor, scale: Tensor | None, scratch: Scratch, name: str) -> Tensor:
    """The tensor itself, or a copy in scratch memory where it must be divided or is of half precision."""
    dtype = gram_dtype(t.dtype)
    return t if scale is None and t.dtype == dtype else divided(t, scale, scratch.take(name, t.shape, dtype, t.device))


def sides(x: Sequence[int], padding: Sequence[int]) -> list[int]:
    """The sides of the images of an input, (n, channels, *space), with their padding."""
    return [size + 2 * pad for size, pad in zip(x[2:], padding, strict=True)]


def _rows(t: Tensor) -> Tensor:
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


@dataclass(slots=True, eq=False)
class Convolution(Operation):
    """A 1-, 2- or 3-dimensional convolution with zero padding (other paddings are done before it)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def geometry(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = CONVOLVE[len(self.stride)]
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def backward(self, z: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Gradients:
        if needs == (True, False, False) and self._comes_back_turned(z, x):
            gx, _, _ = self._backward(turned(z), seen_as_turned(x, x.shape), weight, needs)
            assert gx is not None
            return gx if gx.is_contiguous() else turned_back(gx), None, None
        return self._backward(z, x, weight, needs)

    def _comes_back_turned(self, z: Tensor, x: Tensor) -> bool:
        """Whether the kernel for the input's gradient takes and returns channels last, as that for strides does.

        Torch hands it what lies otherwise, and turns back what it returns by its slow copy. It is the same kernel.
        """
        if max(self.stride) == 1 or max(self.dilation) > 1 or not (self.may_be_turned(z) and self.may_be_turned(x)):
            return False
        return x.shape[0] > 1 and x.nbytes >= TURNED

    def may_be_turned(self, images: Tensor) -> bool:
        """Whether oneDNN convolves such images with their channels last too, and they are not so already."""
        if torch.compiler.is_compiling() or self.groups > 1 or images.dim() != 4 or not convolves_channels_last():
            return False
        return images.dtype == torch.float32 and images.is_cpu and images.is_contiguous()

    def _backward(self, z: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Gradients:
        sizes, none, transposed = weight.shape[:1], (0,) * len(self.stride), False
        gradients: Gradients = convolution_backward(
            z, x, weight, sizes, self.stride, self.padding, self.dilation, transposed, none, self.groups, needs
        )
        return gradients if needs[2] else (gradients[0], gradients[1], None)

    def entry_rows(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        return z.flatten(2).sum(2, dtype=dtype)

    def readable(
        self, x: Tensor, weight: Tensor, scale: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Tensor | None]:
        """A view of all patches, (n, G, *positions, *kernel, channels), of a padded copy with its channels last."""
        space = sides(x.shape, self.padding)
        shape = (len(x), *space, self.groups, x.shape[1] // self.groups)
        padded = scratch.take("read", shape, gram_dtype(x.dtype), x.device)
        if any(self.padding):
            padded.zero_()
        inner = padded[(slice(None), *(slice(p, size - p) for p, size in zip(self.padding, space, strict=True)))]
        divided(x.movedim(1, -1).unflatten(-1, shape[-2:]), scale, inner)
        return self._patches(padded, weight.shape[2:]), None

    def inputs(self, readable: Tensor, features: slice, scratch: Scratch) -> Tensor:
        """The padded patches, gathered in runs of channels: whole lines of the kernel, or position by position."""
        dims = len(self.stride)
        (n, groups), channels = readable.shape[:2], readable.shape[-1]
        out, kernel = readable.shape[2 : 2 + dims], readable.shape[2 + dims : -1]
        line = math.prod(kernel[1:]) * channels
        shape = (n, groups, math.prod(out), features.stop - features.start)
        rows = scratch.take("rows", shape, readable.dtype, readable.device)
        if features.start % line == features.stop % line == 0:
            lines = slice(features.start // line, features.stop // line)
            seen = readable.narrow(2 + dims, lines.start, lines.stop - lines.start)
            rows.view(seen.shape).copy_(seen)
            return self._by_sample(rows)
        rows = rows.view(n, groups, *out, -1)
        for number, offset in enumerate(product(*(range(k) for k in kernel))):
            first = number * channels
            start, stop = max(features.start, first), min(features.stop, first + channels)
            if start < stop:
                at: tuple[Any, ...] = (..., *offset, slice(start - first, stop - first))
                rows[..., start - features.start : stop - features.start].copy_(readable[at])
        return self._by_sample(rows.view(shape))

    def _patches(self, padded: Tensor, kernel: Sequence[int]) -> Tensor:
        n, *space, groups, channels = padded.shape
        first, *strides, between, within = padded.stride()
        steps = [stride * step for stride, step in zip(strides, self.stride, strict=True)]
        offsets = [stride * spread for stride, spread in zip(strides, self.dilation, strict=True)]
        shape = (n, groups, *self._positions(space, kernel), *kernel, channels)
        return padded.as_strided(shape, (first, between, *steps, *offsets, within))

    def shrinks(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the output has fewer entries than the input."""
        positions = self._positions(sides(x.shape, self.padding), weight.shape[2:])
        return len(weight) * math.prod(positions) < math.prod(x.shape[1:])

    def _positions(self, padded: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """The kernel's positions along each dimension of a padded input."""
        geometry = zip(padded, kernel, self.stride, self.dilation, strict=True)
        return [(size - spread * (k - 1) - 1) // step + 1 for size, k, step, spread in geometry]

    def as_weight(self, summed: Tensor, weight: Tensor) -> Tensor:
        return summed.view(len(weight), *weight.shape[2:], weight.shape[1]).movedim(-1, 1).contiguous()

    def outputs(self, z: Tensor) -> Tensor:
        rows = z.reshape(len(z), self.groups, z.shape[1] // self.groups, math.prod(z.shape[2:]))
        return self._by_sample(rows.transpose(2, 3))

    def sample_gradients(self, z: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Each sample's gradient of the weight, (M, *weight.shape), by torch's own kernel.

        A batch of M images is one image of M groups of channels, whose weights are the samples' own. Only where every
        image is a sample.
        """
        M, groups, transposed = x.shape[0], x.shape[0] * self.groups, False
        one = weight[:1].expand(M * weight.shape[0], *weight.shape[1:])
        flat_z, flat_x = z.reshape(1, -1, *z.shape[2:]), x.reshape(1, -1, *x.shape[2:])
        none, needs = (0,) * len(self.stride), (False, True, False)
        gradient: Tensor = convolution_backward(
            flat_z, flat_x, one, None, self.stride, self.padding, self.dilation, transposed, none, groups, needs
        )[1]
        return gradient.view(M, *weight.shape)

    def _by_sample(self, rows: Tensor) -> Tensor:
        """(M · repeats, G, T, d) → (M, G, repeats · T, d): the images of one sample are positions like any other."""
        repeats = self.samples.repeats
        if repeats == 1:
            return rows
        return rows.reshape(len(rows) // repeats, repeats, *rows.shape[1:]).transpose(1, 2).flatten(2, 3)
