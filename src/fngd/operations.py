"""Stage 1: what a layer computes, written so that every layer looks linear.

A layer meets a batch of M samples. For sample m it reads T input rows of length d_in and writes T output rows of
length d_out; with z the gradient of the loss at the outputs, the sample's gradient of the weight is

    u_m = Σ_t z_mtᵀ x_mt                                              (M samples, T positions)

A fully connected layer on (M, *, d_in) has one position for each combination of the middle dimensions; a convolution
has one for each output pixel, and its input rows are the padded patches. Two operations cover every supported layer:
`Linear` and `Convolution`. Each knows torch's own forward, the gradients torch itself would compute, and the two
canonical forms `inputs` (m, G, T, d_in) and `outputs` (m, G, T, d_out), where G counts the groups of a grouped
convolution: groups share no weights, so their Gram matrices add up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fngd.scratch import Scratch

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
convolution_backward: Callable[..., Any] = torch.ops.aten.convolution_backward.default

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
        t = t.movedim(self.axis, 0)
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

        The input's depends on z and the weight only, the bias's on z only: whoever scales x changes the weight's alone.
        """

    @abstractmethod
    def inputs(self, x: Tensor, weight: Tensor, features: slice, scratch: Scratch) -> Tensor:
        """Some input features in canonical form, (M, G, T, d_in); a convolution's start and stop at whole channels."""

    @abstractmethod
    def outputs(self, z: Tensor) -> Tensor:
        """The output gradients in canonical form: (M, G, T, d_out)."""

    @abstractmethod
    def entry_rows(self, z: Tensor) -> Tensor:
        """The sum of z over everything but the entries of the samples' dimension: (M · repeats, d_out)."""

    def bias_rows(self, z: Tensor) -> Tensor:
        """Each sample's gradient of the bias, Σ_t z_mt: (M, d_out)."""
        rows, (_, M, repeats, sample_major) = self.entry_rows(z), self.samples
        if repeats == 1:
            return rows
        return rows.reshape(M, repeats, -1).sum(1) if sample_major else rows.reshape(repeats, M, -1).sum(0)


@dataclass(slots=True, eq=False)
class Linear(Operation):
    """y = x Wᵀ + b on the last dimension of x."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def backward(self, z: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Gradients:
        z = _rows(z)
        return (
            z.mm(weight).view(x.shape) if needs[0] else None,
            z.t().mm(_rows(x)) if needs[1] else None,
            z.sum(0) if needs[2] else None,
        )

    def entry_rows(self, z: Tensor) -> Tensor:
        z = z.movedim(self.samples.axis, 0)
        return z if z.dim() == 2 else z.reshape(len(z), math.prod(z.shape[1:-1]), z.shape[-1]).sum(1)

    def inputs(self, x: Tensor, weight: Tensor, features: slice, scratch: Scratch) -> Tensor:
        return self.outputs(x)[..., features]

    def outputs(self, z: Tensor) -> Tensor:
        z = self.samples.first(z)
        return z.reshape(len(z), 1, math.prod(z.shape[1:-1]), z.shape[-1])


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
        sizes, none, transposed = (len(weight),), (0,) * len(self.stride), False
        gradients: Gradients = convolution_backward(
            z, x, weight, sizes, self.stride, self.padding, self.dilation, transposed, none, self.groups, needs
        )
        return gradients if needs[2] else (gradients[0], gradients[1], None)

    def entry_rows(self, z: Tensor) -> Tensor:
        return z.flatten(2).sum(2)

    def inputs(self, x: Tensor, weight: Tensor, features: slice, scratch: Scratch) -> Tensor:
        """The padded patches of some channels: a strided view, copied once."""
        volume = math.prod(weight.shape[2:])
        x = x.reshape(len(x), self.groups, x.shape[1] // self.groups, *x.shape[2:])
        view = self._patches(x[:, :, features.start // volume : features.stop // volume], weight.shape[2:], scratch)
        rows = scratch.take("patches", view.shape, x.dtype, x.device).copy_(view)
        positions = math.prod(view.shape[-len(self.stride) :])
        return self._by_sample(rows.view(len(x), self.groups, -1, positions).transpose(2, 3))

    def outputs(self, z: Tensor) -> Tensor:
        rows = z.reshape(len(z), self.groups, z.shape[1] // self.groups, math.prod(z.shape[2:]))
        return self._by_sample(rows.transpose(2, 3))

    def sample_gradients(self, z: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Each sample's gradient of the weight, (M, *weight.shape), by torch's own kernel.

        A batch of M images is one image of M groups of channels, whose weights are the samples' own. Only where every
        image is a sample.
        """
        M, groups, transposed = len(x), len(x) * self.groups, False
        one = weight[:1].expand(M * len(weight), *weight.shape[1:])
        flat_z, flat_x = (t.reshape(1, M * t.shape[1], *t.shape[2:]) for t in (z, x))
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

    def _patches(self, x: Tensor, kernel: torch.Size, scratch: Scratch) -> Tensor:
        """What the kernel sees: (n, G, channels, *kernel, *out), a view of the padded (n, G, channels, *space)."""
        geometry = list(zip(x.shape[3:], kernel, self.stride, self.padding, self.dilation, strict=True))
        out = [(size + 2 * pad - spread * (k - 1) - 1) // step + 1 for size, k, step, pad, spread in geometry]
        if any(self.padding):
            shape = (*x.shape[:3], *(size + 2 * pad for size, _, _, pad, _ in geometry))
            padded = scratch.take("padded", shape, x.dtype, x.device).zero_()
            inner = padded
            for axis, (size, _, _, pad, _) in enumerate(geometry, 3):
                inner = inner.narrow(axis, pad, size)
            inner.copy_(x)
            x = padded
        space = x.stride()[3:]
        dilated = (s * spread for s, spread in zip(space, self.dilation, strict=True))
        strided = (s * step for s, step in zip(space, self.stride, strict=True))
        return x.as_strided((*x.shape[:3], *kernel, *out), (*x.stride()[:3], *dilated, *strided), x.storage_offset())
