"""The methods and their recipes.

Recipes are published ones where there are any, the packages' usual ones elsewhere; each line says which. They are for
a batch of 128 images, and start `fngd tune`, which gives every method the same number of trials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from fngd_bench.baselines import KFAC, Eva
from fngd_bench.errors import InputError
from fngd_bench.optimizers import natural
from fngd_bench.optimizers.method import Maker, Method, Range, Recipe, settings_of
from fngd_bench.optimizers.muon import Muon
from fngd_bench.optimizers.packaged import SOAP, AdaHessian
from fngd_bench.optimizers.shampoo import Shampoo

LARGEST = 4096
"""Longer axes are those of vocabularies: their factors would not fit, nor be worth it."""


def _of_parameters(build: Callable[..., Optimizer], **fixed: Any) -> Maker:
    """The maker of an optimizer that takes parameters."""

    def make(model: nn.Module, recipe: Recipe, _steps: int, params: ParamsT | None = None) -> Optimizer:
        return build(model.parameters() if params is None else params, **settings_of(recipe), **fixed)

    return make


def _of_model(build: Callable[..., Optimizer]) -> Maker:
    """The maker of an optimizer that takes the model, and parameters after it."""

    def make(model: nn.Module, recipe: Recipe, _steps: int, params: ParamsT | None = None) -> Optimizer:
        return build(model, params, **settings_of(recipe))

    return make


_SGD: Recipe = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}  # kfac-pytorch's for ResNet-32 on CIFAR-10
_SGD_TRANSLATION: Recipe = {"lr": 0.1, "weight_decay": 0.0}
_SGD_SPACE = {"lr": Range(low=1e-3, high=1.0), "weight_decay": Range(low=1e-5, high=1e-2)}
# torch's, but for the learning rate, which was looked for by hand on digits. `fngd tune` looks for it properly.
_ADAM: Recipe = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
# A rate above the 5e-4 of Multi30K systems, looked for by hand on number words; β₂ of Vaswani et al.
_ADAM_TRANSLATION: Recipe = {"lr": 1.5e-3, "beta2": 0.98}
_ADAM_SPACE = {"lr": Range(low=1e-4, high=3e-2), "weight_decay": Range(low=1e-4, high=1.0)}
_NATURAL: Recipe = {**_SGD, "nesterov": False, "alpha": 0.005, "damping": None}  # the paper's α, SGD's otherwise
_HEAD: Recipe = {**_SGD, "nesterov": False, "alpha": 0.005}  # the same; the head's λ follows the rule only
_ALPHA = {"alpha": Range(low=1e-3, high=1e-1)}
_DERIVE: Recipe = {"derive_epochs": 1.0}
_LOCAL_FACTORS = (
    "its hooks see the samples of their own process, so that each would have factors of its own and weights would "
    "drift apart"
)

_ROWS = (
    Method(
        name="sgd-m",
        about="SGD with momentum, fused.",
        make=_of_parameters(torch.optim.SGD, fused=True),
        recipe={**_SGD, "nesterov": False},
        translation=_SGD_TRANSLATION,
        space=_SGD_SPACE,
    ),
    Method(
        name="adamw",
        about="Adam with decoupled weight decay, fused.",
        make=_of_parameters(torch.optim.AdamW, fused=True),
        recipe=_ADAM,
        translation=_ADAM_TRANSLATION,
        space=_ADAM_SPACE,
    ),
    Method(
        name="muon",
        about="Orthogonalised momentum for hidden weights, AdamW for the rest.",
        make=_of_model(Muon),
        # Momentum is torch's, weight decay AdamW's. The usual 0.02 without the scaling of `muon` is about this.
        recipe={**_ADAM, "lr": 5e-3, "momentum": 0.95},
        translation={**_ADAM_TRANSLATION, "lr": 3e-3},
        space=_ADAM_SPACE,
    ),
    Method(
        name="shampoo",
        about="A preconditioner for each axis of a weight, grafted to SGD's step size.",
        make=_of_parameters(Shampoo),
        # Intervals are those the paper gives KFAC and Shampoo; grafting makes SGD's learning rate the right one.
        recipe={
            **_SGD,
            "damping": 1e-6,
            "decay": 0.95,
            "statistics_every": 10,
            "inverse_every": 100,
            "largest": LARGEST,
        },
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, "damping": Range(low=1e-8, high=1e-2)},
    ),
    Method(
        name="soap",
        about="Adam in the eigenbasis of Shampoo's preconditioner.",
        make=_of_parameters(SOAP),
        recipe={  # the paper's
            "lr": 3e-3,
            "beta1": 0.95,
            "beta2": 0.95,
            "weight_decay": 0.01,
            "eps": 1e-8,
            "inverse_every": 10,
            "largest": LARGEST,
        },
        translation={},
        space=_ADAM_SPACE,
    ),
    Method(
        name="adahessian",
        about="Adam with an estimate of the Hessian's diagonal; differentiates gradients.",
        make=_of_parameters(AdaHessian),
        recipe={  # the paper's for CIFAR-10: weight decay 5e-4 over the learning rate
            "lr": 0.15,
            "beta1": 0.9,
            "beta2": 0.999,
            "weight_decay": 5e-4 / 0.15,
            "eps": 1e-4,
            "hessian_power": 1.0,
            "samples": 1,
        },
        translation={"weight_decay": 0.0, "beta2": 0.98},
        space={"lr": Range(low=1e-3, high=1.0), "weight_decay": Range(low=1e-5, high=1e-1)},
        second_order=True,
        one_process="it differentiates gradients before they are averaged over the processes",
    ),
    Method(
        name="kfac",
        about="Kronecker factors by eigendecomposition, with a KL clip.",
        make=_of_model(KFAC),
        # kfac-pytorch's for ResNet-32 on CIFAR-10, with the intervals of Pauloski et al.
        recipe={
            **_SGD,
            "damping": 0.003,
            "decay": 0.95,
            "statistics_every": 10,
            "inverse_every": 100,
            "kl_clip": 1e-3,
        },
        translation={**_SGD_TRANSLATION, "lr": 0.01},  # looked for by hand on number words
        space={**_SGD_SPACE, "damping": Range(low=1e-4, high=1e-1)},
        one_process=_LOCAL_FACTORS,
    ),
    Method(
        name="eva",
        about="Rank-one Kronecker factors at every step, with a KL clip.",
        make=_of_model(Eva),
        recipe={**_SGD, "damping": 0.03, "decay": 0.05, "kl_clip": 1e-3},  # its public code's; it calls 1 − decay decay
        translation={**_SGD_TRANSLATION, "lr": 0.03},  # looked for by hand on number words
        space={**_SGD_SPACE, "damping": Range(low=1e-3, high=1.0)},
        one_process=_LOCAL_FACTORS,
    ),
    Method(
        name="fngd",
        about="Fast natural gradient: coefficients derived in the first epoch, shared by position afterwards.",
        make=natural.under_sgd(natural.shared),
        recipe={**_NATURAL, **_DERIVE},
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, **_ALPHA},
    ),
    Method(
        name="ngd",
        about="Natural gradient: coefficients derived at every step.",
        make=natural.under_sgd(natural.fresh),
        recipe=_NATURAL,
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, **_ALPHA},
    ),
    Method(
        name="fngd-constant",
        about="The control: as fngd, with one coefficient for each layer.",
        make=natural.under_sgd(natural.constant),
        recipe={**_NATURAL, **_DERIVE},
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, **_ALPHA},
    ),
    Method(
        name="fngd-refreshed",
        about="As fngd, with coefficients derived anew every few steps.",
        make=natural.under_sgd(natural.refreshed),
        recipe={**_NATURAL, "every": 10, "decay": 0.9},
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, **_ALPHA},
    ),
    Method(
        name="fngd-damped",
        about="As fngd, with each layer's gradient divided by its damping λ, as Algorithm 1 has it.",
        make=natural.under_sgd(natural.shared, scale_by_damping=True),
        # λ is about 1 in networks with BatchNorm (0.2 to 20 in ResNet-18 and ResNet-32) and 0.01 in the Transformer.
        recipe={**_NATURAL, **_DERIVE},
        translation={"lr": 2e-2, "weight_decay": 0.0},
        space={"lr": Range(low=1e-4, high=1.0), "weight_decay": Range(low=1e-5, high=1e-2), **_ALPHA},
    ),
    Method(
        name="fngd-adamw",
        about="The natural gradient of fngd under AdamW.",
        make=natural.under_adamw(natural.shared),
        recipe={**_ADAM, "alpha": 0.005, "damping": None, **_DERIVE},
        translation=_ADAM_TRANSLATION,
        space={**_ADAM_SPACE, **_ALPHA},
    ),
    Method(
        name="fngd-head",
        about="Samples weighted by the output layer's coefficients, derived at every step, in every layer.",
        make=natural.under_sgd(natural.from_head("ones")),
        recipe=_HEAD,
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, **_ALPHA},
    ),
    Method(
        name="fngd-head-residual",
        about="As fngd-head, with the samples' squared output gradients as the right-hand side.",
        make=natural.under_sgd(natural.from_head("residual")),
        recipe=_HEAD,
        translation=_SGD_TRANSLATION,
        space={**_SGD_SPACE, **_ALPHA},
    ),
)
METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def method(name: str) -> Method:
    """The table's row of one method.

    Args:
        name: A key of `METHODS`.

    Returns:
        The row.

    Raises:
        InputError: If there is no such method.
    """
    if name not in METHODS:
        raise InputError(f"method={name!r} is not known: choose one of {', '.join(METHODS)}")
    return METHODS[name]
