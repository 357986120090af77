"""Layers that look linear: which are preconditioned, and their inputs, output gradients and gradient as matrices.

A layer turns columns a (d_in) into columns y = W a + b (d_out). A fully connected layer meets one column for every
combination of the leading dimensions of its input; a convolution meets one for every sample and output pixel, its
padded patch. With z the gradient of the loss at a column of the output, the gradient of [W b] is Σ z (a, 1)ᵀ over the
columns. A trained bias is the weight of a last coordinate that is always 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fngd_bench.errors import InputError


@dataclass(frozen=True)
class Kind:
    """How one class of modules looks linear; N entries are what its leading dimensions count."""

    features: int
    """Trailing dimensions of an input or output that belong to one entry."""
    inputs: Callable[[Any, Tensor], Tensor]
    """The module and (N, …) → columns a, (d_in, R)."""
    outputs: Callable[[Tensor], Tensor]
    """(N, …) → columns z, (d_out, R)."""


def patches(module: nn.Conv2d, x: Tensor) -> Tensor:
    """The columns of a convolution: (N, C, H, W) → (C · kernel, N · pixels), ordered as the weight is.

    A strided view of the padded input, copied once. Strides are the input's own, so that channels-last is as good as
    any layout. The result is linear in x.
    """
    if any(module._reversed_padding_repeated_twice):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = F.pad(x, list(module._reversed_padding_repeated_twice), mode=mode)
    n, channels, *space = x.shape
    geometry = list(zip(space, module.kernel_size, module.stride, module.dilation, strict=True))
    out = [(size - spread * (k - 1) - 1) // step + 1 for size, k, step, spread in geometry]
    (by_sample, by_channel, *by_pixel) = x.stride()
    dilated = [s * spread for s, spread in zip(by_pixel, module.dilation, strict=True)]
    strided = [s * step for s, step in zip(by_pixel, module.stride, strict=True)]
    view = x.as_strided((channels, *module.kernel_size, n, *out), (by_channel, *dilated, by_sample, *strided))
    return view.reshape(module.weight[0].numel(), -1)


KINDS: dict[type[nn.Module], Kind] = {
    nn.Linear: Kind(features=1, inputs=lambda _module, x: x.t(), outputs=lambda z: z.t()),
    nn.Conv2d: Kind(features=3, inputs=patches, outputs=lambda z: z.transpose(0, 1).flatten(1)),
}
"""By exact class: a subclass may compute something else."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A module that is preconditioned."""

    name: str
    module: Any
    homogeneous: bool
    """Whether the bias is trained too, so that inputs get a last coordinate 1."""

    @property
    def features(self) -> int:
        """Trailing dimensions of an input or output that belong to one entry."""
        return KINDS[type(self.module)].features

    @property
    def fan_in(self) -> int:
        """Length d_in of an input column."""
        return int(self.module.weight[0].numel())

    @property
    def width(self) -> int:
        """Columns of the gradient: d_in, and one more for the bias."""
        return self.fan_in + self.homogeneous

    @property
    def dtype(self) -> torch.dtype:
        """The weight's, but no less than float32: what statistics are kept in."""
        return torch.promote_types(self.module.weight.dtype, torch.float32)

    def entries(self, t: Tensor) -> Tensor:
        """An input or output with its leading dimensions as one: (N, …)."""
        return t.reshape(-1, *t.shape[t.dim() - self.features :])

    def inputs(self, entries: Tensor) -> Tensor:
        """The columns a of the layer's input, (d_in, R)."""
        return KINDS[type(self.module)].inputs(self.module, entries)

    def outputs(self, entries: Tensor) -> Tensor:
        """The columns z of the gradient at the layer's output, (d_out, R)."""
        return KINDS[type(self.module)].outputs(entries)

    def gradient(self) -> Tensor | None:
        """The gradient of [W b], (d_out, width); None if the weight has none. A bias without one counts as 0."""
        weight, bias = self.module.weight, self.module.bias
        if weight.grad is None:
            return None
        matrix: Tensor = weight.grad.reshape(len(weight), -1).to(self.dtype)
        if not self.homogeneous:
            return matrix
        last = torch.zeros_like(bias) if bias.grad is None else bias.grad
        return torch.cat((matrix, last.to(self.dtype).unsqueeze(1)), dim=1)

    def pieces(self, matrix: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """A matrix shaped like `gradient` cut up: each parameter that has a gradient, and its part."""
        weight, bias = self.module.weight, self.module.bias
        parts = [(weight, matrix[:, : self.fan_in].unflatten(1, weight.shape[1:]))]
        if self.homogeneous and bias.grad is not None:
            parts.append((bias, matrix[:, -1]))
        return parts


def survey(model: nn.Module, trained: Collection[int]) -> tuple[dict[str, Layer], dict[str, str]]:
    """Look for the layers that are preconditioned.

    Args:
        model: Where to look.
        trained: Ids of the parameters that the optimizer holds.

    Returns:
        The layers by name, and by name the modules whose parameters take the plain gradient, each with the reason.

    Raises:
        InputError: If there is no layer to precondition.
    """
    owners = Counter(id(p) for module in model.modules() for p in _parameters(module).values())
    layers, plain = {}, {}
    for name, module in model.named_modules():
        held = {key for key, p in _parameters(module).items() if p.requires_grad and id(p) in trained}
        if not held:
            continue
        reason = _why_plain(module, held, owners)
        if reason is None:
            layers[name] = Layer(name, module, homogeneous="bias" in held)
        else:
            plain[name] = reason
    if not layers:
        seen = "; ".join(f"{name or 'the model'}: {reason}" for name, reason in plain.items()) or "nothing is trained"
        raise InputError(
            f"model={type(model).__name__} has no layer to precondition ({seen}): it takes a Linear or a Conv2d with "
            "groups=1 whose weight is trained; use torch.optim.SGD for this model"
        )
    return layers, plain


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _why_plain(module: nn.Module, held: set[str], owners: Counter[int]) -> str | None:
    """Why a module's parameters take the plain gradient; None if they do not."""
    if type(module) not in KINDS:
        return f"{type(module).__name__} is neither exactly a Linear nor a Conv2d"
    if "weight" not in held:
        return "its weight is not trained as a parameter of its own"
    if any(owners[id(p)] > 1 for p in _parameters(module).values()):
        return "it shares a parameter with another module"
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return f"groups={module.groups}: a grouped convolution has no single Kronecker product"
    return None
