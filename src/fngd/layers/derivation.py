"""From the uses of a layer in one batch to its coefficients, K → λ → c, and on to the gradients of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fngd.coefficients import Measures, coefficients, damping, measure
from fngd.gram import Use, bias_gram, gram, gram_dtype
from fngd.layers.parts import Label, Part, overlapping
from fngd.settings import Settings
from fngd.weighted import Scratch, weighted_backward

Uses = Sequence[tuple[Use, Label]]


class Derived(NamedTuple):
    """What one batch says of a layer."""

    c: Tensor
    """The coefficients, (M,); all ones if the batch is not valid."""
    factors: Tensor
    """What the samples' gradients are multiplied by: c, or c/λ where the settings ask for it."""
    measures: Measures
    valid: Tensor
    """Whether the Gram matrix was finite and could be factorised."""
    K: Tensor
    """The Gram matrix over the square of a power of two, (M, M)."""


def derive(uses: Uses, settings: Settings) -> Derived:
    """The coefficients of one batch.

    Args:
        uses: All uses of the layer, on the same samples.
        settings: The damping and its units.

    Returns:
        The coefficients with what was measured on the way.
    """
    M = uses[0][0].operation.samples.M
    scale = _scale([use.z for use, _ in uses])
    K = layer_gram(uses, scale)
    # z carries the loss's 1/M: `unit` turns numbers on K's scale into numbers on the true gradients' scale.
    unit = (scale.double() * (M if settings.loss_reduction == "mean" else 1)) ** 2
    lam = damping(K, settings.alpha) if settings.damping is None else (settings.damping / unit).to(K.dtype)
    c = coefficients(K, lam, torch.ones_like(K[0]))
    valid = c.isfinite().all()
    c = torch.where(valid, c, 1.0)
    true_lam = lam.double() * unit
    scaled = torch.where(valid & (true_lam > 0), c / true_lam, 1.0).to(c.dtype)
    factors = scaled if settings.scale_by_damping else c
    return Derived(c, factors, measure(K, c, true_lam), valid, K)


def layer_gram(uses: Uses, scale: Tensor) -> Tensor:
    """K of a whole layer: the Gram matrices of its weights and biases add up.

    Args:
        uses: All uses of the layer.
        scale: What gradients are divided by, to keep their products in range.

    Returns:
        K / scale², (M, M).

    Raises:
        ValueError: If two uses read different but overlapping parts of a parameter, or differ in their samples.
    """
    weights: dict[Part, list[Use]] = {}
    biases: dict[Part, Tensor] = {}
    if len({use.operation.samples.M for use, _ in uses}) > 1:
        raise ValueError("was used on batches of different sizes in one forward pass")
    for use, label in uses:
        if label.weight is not None:
            weights.setdefault(label.weight, []).append(use)
        if label.bias is not None:
            rows = use.operation.bias_rows(use.z)
            biases[label.bias] = biases[label.bias] + rows if label.bias in biases else rows
    if overlapping([*weights, *biases]):
        raise ValueError(
            "read different but overlapping pieces of one parameter in one forward pass (an attention module called "
            "both with and without self-attention?)"
        )
    K = [gram(group, scale) for group in weights.values()] + [bias_gram(rows, scale) for rows in biases.values()]
    return torch.stack(K).sum(0) if len(K) > 1 else K[0]


def weighted_gradients(
    uses: Uses, factors: Tensor, parameters: Sequence[nn.Parameter], scratch: Scratch
) -> tuple[Tensor | None, ...]:
    """Σ_m c_m u_m for each parameter of a layer.

    Args:
        uses: All uses of the layer.
        factors: What the samples are multiplied by, (M,) or (1,).
        parameters: The layer's parameters.
        scratch: Where scaled copies are put.

    Returns:
        A gradient for each parameter, None for those that no use reads or that are frozen.
    """
    totals: list[Tensor | None] = [None for _ in parameters]
    for use, label in uses:
        needs = (False, label.weight is not None, label.bias is not None)
        spread = use.operation.samples.spread(factors, use.x.dim())
        _, *gradients = weighted_backward(use, spread, needs, scratch)
        for part, gradient in zip(label, gradients, strict=True):
            if part is not None and gradient is not None:
                totals[part.parameter] = _added(totals[part.parameter], parameters[part.parameter], part, gradient)
    return tuple(totals)


def _added(total: Tensor | None, parameter: nn.Parameter, part: Part, gradient: Tensor) -> Tensor:
    if total is None and part.shape == parameter.shape and part.stride == parameter.stride():
        return gradient.to(parameter.dtype)
    if total is None:
        total = torch.zeros_like(parameter)
    part.of(total).add_(gradient)
    return total


def _scale(gradients: Sequence[Tensor]) -> Tensor:
    """The power of two at or below the largest |z|: dividing by it is exact and keeps K in range."""
    largest = torch.stack([torch.linalg.vector_norm(z, torch.inf) for z in gradients]).amax()
    mantissa, exponent = torch.frexp(largest.to(gram_dtype(largest.dtype)))
    return torch.where(mantissa > 0, torch.ldexp(torch.ones_like(mantissa), exponent - 1), 1.0)
