"""The kl-clip: a bound on how far one step moves the model's predictions.

To second order a step −lr·v changes them by a KL divergence of lr² vᵀF v / 2, and with v = F⁻¹g that is lr² vᵀg / 2.
The step is shortened so that Σ lr² vᵀg is at most κ (Ba, Grosse and Martens, 2017; Pauloski et al., 2020):

    ν = min(1, √(κ / Σ_layers lr² |vᵀg|))

The sum runs over the preconditioned layers, weight and bias, and ν shortens these layers only. Parameters that take the
plain gradient neither enter the sum nor are shortened. Momentum and weight decay come after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Directions = list[tuple[nn.Parameter, Tensor]]
"""Parameters, and what their gradients are replaced with."""


def squared_length(directions: Directions, rates: dict[nn.Parameter, float | Tensor]) -> Tensor:
    """The sum of lr² vᵀg over the parameters of one layer, each with its own group's learning rate.

    Args:
        directions: The layer's parameters, which have gradients g, and their directions v.
        rates: The learning rates.

    Returns:
        The sum, a tensor without dimensions.
    """
    return torch.stack([rates[p] ** 2 * (v * p.grad).sum() for p, v in directions if p.grad is not None]).sum()


def clip_factor(products: Sequence[Tensor], kl_clip: float) -> Tensor:
    """The factor ν by which every preconditioned gradient is shortened.

    Args:
        products: lr² vᵀg of each layer, at least one, each a tensor without dimensions.
        kl_clip: The bound κ; infinity for none.

    Returns:
        ν, a tensor without dimensions: at most 1, and 1 if all products are 0.
    """
    return (kl_clip / torch.stack(tuple(products)).abs().sum()).sqrt().clamp(max=1.0)


def shortened(directions: Directions, factor: Tensor) -> Directions:
    """Each direction times ν, in its parameter's dtype and memory layout.

    The layout matters: the fused update reads parameter and gradient side by side.

    Args:
        directions: Parameters and directions.
        factor: ν.

    Returns:
        The same parameters with new tensors.
    """
    return [(p, torch.mul(v, factor, out=torch.empty_like(p))) for p, v in directions]
