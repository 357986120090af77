"""From the uses of a layer in one batch to its coefficients, K → λ → c, and on to the gradients of its parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fngd.coefficients import Solution, solve
from fngd.gram import bias_gram, gram, is_in_range, scale_of
from fngd.history import Report, report
from fngd.layers.parts import Label, Part, overlapping
from fngd.plain import Number, chosen, over, plain
from fngd.planner import Budget
from fngd.scratch import Scratch
from fngd.settings import Settings
from fngd.uses import Use
from fngd.weighted import weighted_backward

Uses = Sequence[tuple[Use, Label]]
Weigh = Callable[[Tensor], Tensor]
"""Σ_m c_m u_m as a function of c."""


class Derived(NamedTuple):
    """What one batch says of a layer."""

    report: Report
    """The coefficients, all ones if the batch is not valid, and what is to be kept of K."""
    factors: Tensor
    """What the samples' gradients are multiplied by: c, or c/λ where the settings ask for it."""
    K: Tensor
    """The Gram matrix / scale², (M, M)."""
    at_hand: dict[Part, Weigh]
    """How to weight samples' gradients that are at hand, by the piece of a parameter that they are of."""
    scale: Tensor | None
    """What to begin with in the layer's next batch."""


class Solved(NamedTuple):
    """A batch's equations, and what solves them."""

    K: Tensor
    """The Gram matrix / scale², (M, M)."""
    solution: Solution
    unit: Number
    """What the samples' own gradients have been divided by."""
    at_hand: dict[Part, Weigh]
    """As in `Derived`."""
    scale: Tensor | None
    """What to begin with in the layer's next batch."""

    @property
    def is_in_range(self) -> bool:
        """Whether ‖K‖ is far enough from the ends of the range of numbers."""
        return is_in_range(self.solution.norm, self.K.dtype)


def derive(uses: Uses, settings: Settings, budget: Budget, scratch: Scratch, scale: Tensor | None = None) -> Derived:
    """The coefficients of one batch.

    Args:
        uses: All uses of the layer, on the same samples.
        settings: The damping and its units, and the route.
        budget: Bytes of scratch memory to hold at most.
        scratch: Where intermediate results are put.
        scale: What to divide by at first, a power of two: what was needed for the layer's last batch.

    Returns:
        The coefficients with what was measured on the way. To the bit, they do not depend on the scale.
    """
    K, solution, unit, at_hand, scale = solved(uses, settings, budget, scratch, scale)
    factors = solution.c
    if settings.scale_by_damping:
        lam = solution.damping * (unit * unit)
        factors = chosen(solution.valid & (lam > 0), factors / lam, 1.0).to(factors.dtype)
    return Derived(report(K, solution, unit), factors, K, at_hand, scale)


def solved(
    uses: Uses,
    settings: Settings,
    budget: Budget,
    scratch: Scratch,
    scale: Tensor | None = None,
    rhs: Tensor | None = None,
) -> Solved:
    """The Gram matrix of a layer, and what solves its equations.

    Most gradients need not be divided by anything: on a CPU K is made of them as they are, and once more if it turns
    out to be near the ends of the range of numbers. Elsewhere to look at a number is to wait for it: they are divided.

    Args:
        uses: All uses of the layer, on the same samples.
        settings: The damping and its units, and the route.
        budget: Bytes of scratch memory to hold at most.
        scratch: Where intermediate results are put.
        scale: What to divide by at first.
        rhs: The right-hand side, (M,); ones by default.

    Returns:
        Both. To the bit, the coefficients do not depend on the scale.
    """
    gradients = [use.z for use, _ in uses]
    if gradients[0].device.type != "cpu":
        return _solved(uses, settings, budget, scratch, scale_of(gradients), rhs)
    found = _solved(uses, settings, budget, scratch, scale, rhs)
    if found.is_in_range:
        return found
    found = _solved(uses, settings, budget, scratch, scale_of(gradients), rhs)
    return found if found.is_in_range else found._replace(scale=None)


def _solved(
    uses: Uses, settings: Settings, budget: Budget, scratch: Scratch, scale: Tensor | None, rhs: Tensor | None
) -> Solved:
    K, at_hand = layer_gram(uses, scale, scratch, budget, settings.gram_route)
    unit = true_unit(scale, K.shape[0], settings)
    given = None if settings.damping is None else over(settings.damping, unit * unit)
    solution = solve(K, K.new_ones(K.shape[0]) if rhs is None else rhs, settings.alpha, given)
    return Solved(K, solution, unit, at_hand, scale)


def true_unit(scale: Tensor | None, M: int, settings: Settings) -> Number:
    """What the samples' own gradients have been divided by: z carries the loss's 1/M."""
    carried = float(M) if settings.loss_reduction == "mean" else 1.0
    return carried if scale is None else plain(scale.double()) * carried


def layer_gram(
    uses: Uses, scale: Tensor | None, scratch: Scratch, budget: Budget, route: str | None
) -> tuple[Tensor, dict[Part, Weigh]]:
    """K of a whole layer: the Gram matrices of its weights and biases add up.

    Args:
        uses: All uses of the layer.
        scale: What gradients are divided by, to keep their products in range; None for 1.
        scratch: Where intermediate results are put.
        budget: Bytes of scratch memory to hold at most.
        route: Take this route where it is possible.

    Returns:
        K / scale², (M, M), and how to weight what is at hand: the samples' gradients of biases, and those of the weight
        if the layer has one and its route has left them.

    Raises:
        ValueError: If two uses read different but overlapping parts of a parameter, or differ in their samples.
    """
    weights: dict[Part, list[Use]] = {}
    biases: dict[Part, Tensor] = {}
    beside: dict[Part, list[Part | None]] = {}  # the weights that each bias is used with
    if len({use.operation.samples.M for use, _ in uses}) > 1:
        raise ValueError("was used on batches of different sizes in one forward pass")
    for use, label in uses:
        if label.weight is not None:
            weights.setdefault(label.weight, []).append(use)
        if label.bias is not None:
            rows = use.operation.bias_rows(use.z)
            biases[label.bias] = biases[label.bias] + rows if label.bias in biases else rows
            beside.setdefault(label.bias, []).append(label.weight)
    if overlapping([*weights, *biases]):
        raise ValueError(
            "read different but overlapping pieces of one parameter in one forward pass (an attention module called "
            "both with and without self-attention?)"
        )
    grams = {part: gram(group, scale, scratch, budget, route) for part, group in weights.items()}
    K = [found.K for found in grams.values()]
    for bias, rows in biases.items():
        weight, *others = beside[bias]
        made = None if weight is None or others else grams[weight].of_bias
        K.append(bias_gram(rows, scale) if made is None else made)
    at_hand: dict[Part, Weigh] = {part: partial(_weighed, rows) for part, rows in biases.items()}
    if len(grams) == 1 and (weigh := next(iter(grams.values())).weigh) is not None:
        at_hand[next(iter(weights))] = weigh if scale is None else lambda c: weigh(c * scale)
    return functools.reduce(torch.add, K), at_hand


def _weighed(rows: Tensor, c: Tensor) -> Tensor:
    return c @ rows


def known_sums(derived: Derived) -> dict[Part, Tensor]:
    """The weighted gradients of all pieces of parameters whose samples' gradients are at hand."""
    return {part: weigh(derived.factors) for part, weigh in derived.at_hand.items()}


def weighted_gradients(
    uses: Uses, factors: Tensor, parameters: Sequence[nn.Parameter], scratch: Scratch, known: Mapping[Part, Tensor]
) -> tuple[Tensor | None, ...]:
    """Σ_m c_m u_m for each parameter of a layer.

    Args:
        uses: All uses of the layer.
        factors: What the samples are multiplied by, (M,) or (1,).
        parameters: The layer's parameters.
        scratch: Where scaled copies are put.
        known: That sum for pieces of them, where it is known already.

    Returns:
        A gradient for each parameter, None for those that no use reads or that are frozen.
    """
    totals: list[Tensor | None] = [None for _ in parameters]
    for use, label in uses:
        needs_weight, needs_bias = (part is not None and part not in known for part in label)
        if not (needs_weight or needs_bias):
            continue
        spread = use.operation.samples.spread(factors, use.x.dim())
        _, weight, bias = weighted_backward(use, spread, (False, needs_weight, needs_bias), scratch)
        for part, gradient in ((label.weight, weight), (label.bias, bias)):
            if part is not None and gradient is not None:
                totals[part.parameter] = _added(totals[part.parameter], parameters[part.parameter], part, gradient)
    for part, gradient in known.items():
        totals[part.parameter] = _added(totals[part.parameter], parameters[part.parameter], part, gradient)
    return tuple(totals)


def _added(total: Tensor | None, parameter: nn.Parameter, part: Part, gradient: Tensor) -> Tensor:
    if total is None and part.shape == parameter.shape and part.stride == parameter.stride():
        if gradient.stride() == parameter.stride():
            return gradient.to(parameter.dtype)
        return torch.empty_like(parameter).copy_(gradient)  # autograd's layout contract, which DDP's buckets rely on
    if total is None:
        total = torch.zeros_like(parameter)
    part.of(total).add_(gradient)
    return total
