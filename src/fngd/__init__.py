"""FNGD: the natural gradient at the price of SGD, as a PyTorch optimizer."""

from fngd.diagnosis import Diagnosis
from fngd.doctor import doctor
from fngd.layers import Layer, detach, register_layer
from fngd.look import gram_matrices
from fngd.optimizer import FNGD
from fngd.policies import Constant, Fresh, FromHead, Policy, Refreshed, Shared
from fngd.preconditioner import NaturalGradient
from fngd.statistics import LayerStatistics

__all__ = [
    "FNGD",
    "Constant",
    "Diagnosis",
    "Fresh",
    "FromHead",
    "Layer",
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
