"""FNGD: the natural gradient at the price of SGD, as a PyTorch optimizer."""

from fngd.doctor import doctor
from fngd.layers import detach, register_layer
from fngd.look import gram_matrices
from fngd.optimizer import FNGD
from fngd.policies import Constant, Fresh, FromHead, Policy, Refreshed, Shared
from fngd.preconditioner import NaturalGradient
from fngd.statistics import LayerStatistics

__all__ = [
    "FNGD",
    "Constant",
    "Fresh",
    "FromHead",
    "LayerStatistics",
    "NaturalGradient",
    "Policy",
    "Refreshed",
    "Shared",
    "detach",
    "doctor",
    "gram_matrices",
    "register_layer",
]
__version__ = "0.1.0"
