"""What a layer rule is handed: `Layer`, one preconditioned layer with its coefficients, and `Run`, what all share.

A rule computes a module's forward pass with `layer.linear` and `layer.convolution` in place of torch's functions of
the same name. The layer finds the samples in the input, takes or derives the coefficients, and sees to it that
`backward()` leaves the weighted gradient in `p.grad`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fngd.coefficients import History, coefficients, damping, measure
from fngd.gram import Use, bias_gram, gram, gram_dtype
from fngd.operations import Convolution, Linear, Operation, Samples
from fngd.policies import Policy
from fngd.weighted import Deriving, Join, Notes, Scratch, Weighted, weighted_backward

MOST_SHAPES = 64
"""Input shapes a layer keeps in mind."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numbers of the method, checked.

    Args:
        alpha: The paper's rule λ = α‖UᵀU‖_F.
        damping: A constant λ in place of the rule.
        scale_by_damping: Whether the gradient is multiplied by 1/λ, as Algorithm 1 of the paper has it.
        loss_reduction: "mean" or "sum": how the loss adds up the samples. It matters for λ only.
        batch_dim: The dimension of the model's inputs that counts the samples.
    """

    alpha: float = 0.005
    damping: float | None = None
    scale_by_damping: bool = False
    loss_reduction: str = "mean"
    batch_dim: int = 0

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha, "the damping is alpha times the norm of the Gram matrix; 0.005 is usual")
        if self.damping is not None:
            _check_positive("damping", self.damping, "a constant λ; leave it out for the rule λ = alpha·‖UᵀU‖")
        if self.loss_reduction not in ("mean", "sum"):
            raise ValueError(
                f"loss_reduction={self.loss_reduction!r} must be 'mean' or 'sum': how the loss adds up the samples"
            )
        if isinstance(self.batch_dim, bool) or not isinstance(self.batch_dim, int) or self.batch_dim < 0:
            raise ValueError(f"batch_dim={self.batch_dim!r} must be a dimension counted from the front: 0, 1, …")


def _check_positive(name: str, value: float, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r} must be a finite number above 0: {meaning}")


@dataclass
class Run:
    """What the layers of one attached model share."""

    settings: Settings
    policy: Policy
    deriving: bool
    batch: int | None = None
    """Samples in the model's current batch; None until the model itself has been called."""
    notes: dict[Layer, tuple[Tensor, Notes]] = field(default_factory=dict)
    """The layers used in the current forward pass, each with its token, while coefficients are being derived."""
    scratch: Scratch = field(default_factory=Scratch)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model starts: note the batch size, forget the uses of the pass before."""
        x = _first_tensor((*args, *kwargs.values()))
        dim = self.settings.batch_dim
        self.batch = x.shape[dim] if x is not None and x.dim() > dim else None
        if self.deriving:
            self.notes = {}

    def end(self) -> None:
        """An optimizer step is over: what it knew of its batch does not hold for the next."""
        self.batch, self.notes = None, {}


def _first_tensor(values: Any) -> Tensor | None:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        return next((found for value in values if (found := _first_tensor(value)) is not None), None)
    return None


class Part(NamedTuple):
    """A strided piece of a parameter: the whole of it, some of its rows, its transpose."""

    parameter: int
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
    """Which parameters a use reads; None where there is no bias or the parameter is frozen."""

    weight: Part | None
    bias: Part | None


class Layer:
    """One preconditioned layer: the parameters that share a vector of coefficients, and these coefficients."""

    def __init__(self, name: str, parameters: Sequence[nn.Parameter], run: Run) -> None:
        """A layer that has seen no batch yet.

        Args:
            name: The module's name in the model.
            parameters: The parameters whose gradients are weighted together.
            run: What it shares with the other layers.
        """
        self.name = name
        self.parameters = list(parameters)
        self.run = run
        self.history = History()
        self.shared: Tensor | None = None
        """The coefficients of sharing steps, or None as long as no batch has been derived."""
        self._operations: dict[Hashable, Operation] = {}
        self._weights: dict[Operation, Tensor] = {}

    @property
    def trainable(self) -> bool:
        """Whether there is anything to weight."""
        return any(parameter.requires_grad for parameter in self.parameters)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, batch_dim: int | None = None) -> Tensor:
        """`torch.nn.functional.linear` with weighted parameter gradients.

        Args:
            x: Input, (*, d_in).
            weight: A parameter of the layer or a view of one, (d_out, d_in).
            bias: Likewise, (d_out,).
            batch_dim: The dimension of x that counts the samples; the run's by default.

        Returns:
            x weightᵀ + bias.
        """
        key = (x.shape, self.run.batch, batch_dim)
        operation = self._operations.get(key)
        if operation is None:
            if x.dim() == 1:
                return self.linear(x.unsqueeze(0), weight, bias, 0).squeeze(0)
            batch_dim = self.run.settings.batch_dim if batch_dim is None else batch_dim
            operation = self._remember(key, Linear(self._samples(x, x.shape[:-1], batch_dim)))
        return self.apply(operation, x, weight, bias)

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> Tensor:
        """A 1-, 2- or 3-dimensional convolution with weighted parameter gradients.

        Args:
            x: Input, (M, channels, *space), or without M: then it is one sample.
            weight: A parameter of the layer, (d_out, channels / groups, *kernel).
            bias: Likewise, (d_out,).
            stride: Step of the kernel, a number for each dimension of space.
            padding: Zeros on both sides, likewise.
            dilation: Spacing of the kernel, likewise.
            groups: Groups of channels that do not see each other.

        Returns:
            What `torch.nn.functional.conv1d`, `conv2d` or `conv3d` returns.
        """
        key = (x.shape, self.run.batch, stride, padding, dilation, groups)
        operation = self._operations.get(key)
        if operation is None:
            if x.dim() == weight.dim() - 1:
                return self.convolution(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
            samples = self._samples(x, x.shape[:1], 0)
            operation = self._remember(key, Convolution(samples, stride, padding, dilation, groups=groups))
        return self.apply(operation, x, weight, bias)

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operation, in a graph that returns weighted gradients."""
        if self.run.deriving:
            return self._derive(operation, x, weight, bias)
        c = self._weights.get(operation)
        if c is None:
            c = self._weights[operation] = self._coefficients(operation.samples, x)
        if torch.is_autocast_enabled(x.device.type):
            x, weight, bias = _autocast(x, weight, bias)
        output: Tensor = Weighted.apply(operation, self.run.scratch, x, weight, bias, c)  # type: ignore[no-untyped-call]
        return output

    def _remember(self, key: Hashable, operation: Operation) -> Operation:
        """Keep what was found out about an input's shape: in Python, a look-up costs less than finding out again."""
        if len(self._operations) >= MOST_SHAPES:
            self._operations.clear()
            self._weights.clear()
        self._operations[key] = operation
        return operation

    def finish(self, uses: Sequence[tuple[Use, Label]]) -> tuple[Tensor | None, ...]:
        """Derive the coefficients from all uses of a batch and return the weighted gradient of each parameter."""
        if not uses:
            return tuple(None for parameter in self.parameters)
        with torch.autocast(uses[0][0].z.device.type, enabled=False):
            c = self.derive(uses) if uses[0][0].operation.samples.M else torch.ones(1)
            return self._gradients(uses, c)

    def derive(self, uses: Sequence[tuple[Use, Label]]) -> Tensor:
        """The coefficients of this batch, which also enter the history: K → λ → c → c̃."""
        settings = self.run.settings
        samples = uses[0][0].operation.samples.M
        scale = _scale([use.z for use, _ in uses])
        K = self._gram(uses, scale)
        # z carries the loss's 1/M: `unit` turns numbers on K's scale into numbers on the true gradients' scale.
        unit = (scale.double() * (samples if settings.loss_reduction == "mean" else 1)) ** 2
        lam = damping(K, settings.alpha) if settings.damping is None else (settings.damping / unit).to(K.dtype)
        c = coefficients(K, lam, torch.ones_like(K[0]))
        valid = c.isfinite().all()
        c = torch.where(valid, c, 1.0)
        self.history.add(c, measure(K, c, lam.double() * unit), valid, self.run.policy.weight)
        return torch.where(valid, c / (lam.double() * unit), 1.0).to(c.dtype) if settings.scale_by_damping else c

    def refresh(self) -> None:
        """Take what sharing steps use from the history."""
        self._weights.clear()
        if self.history.mean is None:
            return
        shared = self.run.policy.share(self.history.mean)
        self.shared = shared[:1] if (shared == shared[0]).all() else shared
        if self.run.settings.scale_by_damping:
            self.shared = (self.shared / self.history.measures.damping.to(self.shared.device)).to(self.shared.dtype)

    def _derive(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self.trainable:
            return operation.forward(x, weight, bias)
        label = Label(self.part(weight), None if bias is None else self.part(bias))
        if self not in self.run.notes:
            notes = Notes(self.finish)
            token: Tensor = Join.apply(notes, *self.parameters)  # type: ignore[no-untyped-call]
            self.run.notes[self] = (token, notes)
        token, notes = self.run.notes[self]
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        if torch.is_autocast_enabled(x.device.type):
            x, weight, bias = _autocast(x, weight, bias)
        output: Tensor = Deriving.apply(operation, notes, label, x, token, weight, bias)  # type: ignore[no-untyped-call]
        return output

    def part(self, t: Tensor) -> Part | None:
        """Which piece of which of the layer's parameters t is; None if that parameter is frozen."""
        for index, parameter in enumerate(self.parameters):
            if t is parameter or t._base is parameter:
                piece = Part(index, tuple(t.shape), t.stride(), int(t.storage_offset() - parameter.storage_offset()))
                return piece if parameter.requires_grad else None
        raise RuntimeError(
            f"fngd: layer {self.name!r} was given a tensor of shape {tuple(t.shape)} that is neither one of its "
            "parameters nor a view of one: a layer rule must pass the module's own parameters"
        )

    def _gram(self, uses: Sequence[tuple[Use, Label]], scale: Tensor) -> Tensor:
        """K of the whole layer: the Gram matrices of its weights and biases add up."""
        weights: dict[Part, list[Use]] = {}
        biases: dict[Part, Tensor] = {}
        for use, label in uses:
            if label.weight is not None:
                weights.setdefault(label.weight, []).append(use)
            if label.bias is not None:
                rows = use.operation.bias_rows(use.z)
                biases[label.bias] = biases[label.bias] + rows if label.bias in biases else rows
        self._refuse_overlaps([*weights, *biases])
        K = [gram(group, scale) for group in weights.values()] + [bias_gram(rows, scale) for rows in biases.values()]
        return torch.stack(K).sum(0) if len(K) > 1 else K[0]

    def _refuse_overlaps(self, parts: Sequence[Part]) -> None:
        for index, part in enumerate(parts):
            if any(part.overlaps(other) for other in parts[:index]):
                raise RuntimeError(
                    f"fngd: layer {self.name!r} read different but overlapping pieces of one parameter in a forward "
                    "pass (an attention module called with and without self-attention?), which is not supported: "
                    f"pass exclude=[{self.name!r}]"
                )

    def _gradients(self, uses: Sequence[tuple[Use, Label]], c: Tensor) -> tuple[Tensor | None, ...]:
        totals: list[Tensor | None] = [None for _ in self.parameters]
        for use, label in uses:
            needs = (False, label.weight is not None, label.bias is not None)
            spread = use.operation.samples.spread(c, use.x.dim())
            _, *gradients = weighted_backward(use, spread, needs, self.run.scratch)
            for part, gradient in zip(label, gradients, strict=True):
                if part is not None and gradient is not None:
                    totals[part.parameter] = self._add(totals[part.parameter], part, gradient)
        return tuple(totals)

    def _add(self, total: Tensor | None, part: Part, gradient: Tensor) -> Tensor:
        parameter = self.parameters[part.parameter]
        if total is None and part.shape == parameter.shape and part.stride == parameter.stride():
            return gradient.to(parameter.dtype)
        if total is None:
            total = torch.zeros_like(parameter)
        part.of(total).add_(gradient)
        return total

    def _coefficients(self, samples: Samples, x: Tensor) -> Tensor:
        """The shared coefficients for a batch, shaped like x; a single 1 if none were ever derived."""
        c, M = self.shared, samples.M
        if c is None:
            c = torch.ones(1, dtype=gram_dtype(x.dtype), device=x.device)
        elif M < len(c) > 1:
            c = c[:M] * (c.mean() / c[:M].mean())
        elif M > len(c) > 1:
            raise RuntimeError(
                f"fngd: layer {self.name!r} meets a batch of {M} samples (input {tuple(x.shape)}), but its shared "
                f"coefficients were derived for batches of {len(c)}: derive with the largest batch size, use batches "
                f"of at most {len(c)}, or take policy=fngd.Constant(…), which fits any batch size"
            )
        return samples.spread(c, x.dim())

    def _samples(self, x: Tensor, leading: Sequence[int], batch_dim: int) -> Samples:
        """Where in x the samples of the model's batch are."""
        axis = min(batch_dim, len(leading) - 1)
        size, batch = leading[axis], self.run.batch
        if batch is None or size == batch:
            return Samples(axis, size)
        if batch > 0 and size > 0 and size % batch == 0:
            return Samples(axis, batch, size // batch, sample_major=batch_dim == 0)
        return self.misfit(x, axis) if self.trainable else Samples(axis, size)

    def misfit(self, x: Tensor, axis: int) -> Samples:
        """The input does not fit the batch: stop."""
        raise RuntimeError(f"fngd: {self.misfit_message(x, axis)}")

    def misfit_message(self, x: Tensor, axis: int) -> str:
        """What does not fit, and what to do about it."""
        return (
            f"layer {self.name!r} got an input of shape {tuple(x.shape)}: {x.shape[axis]} entries in dimension {axis} "
            f"are no multiple of the model's batch of {self.run.batch} samples (dimension "
            f"{self.run.settings.batch_dim} of its first input). If the samples lie in another dimension, pass "
            f"batch_dim=…; if this layer does not see samples at all, pass exclude=[{self.name!r}]"
        )


def _autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    dtype = torch.get_autocast_dtype(x.device.type)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _scale(gradients: Sequence[Tensor]) -> Tensor:
    """The power of two at or below the largest |z|: dividing by it is exact and keeps K in range."""
    largest = torch.stack([torch.linalg.vector_norm(z, torch.inf) for z in gradients]).amax()
    mantissa, exponent = torch.frexp(largest.to(gram_dtype(largest.dtype)))
    return torch.where(mantissa > 0, torch.ldexp(torch.ones_like(mantissa), exponent - 1), 1.0)
