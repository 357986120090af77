"""The supported kinds of layer, one file each; importing this package registers them."""

from fngd.layers import attention, convolution, linear
from fngd.layers.attach import detach
from fngd.layers.base import Layer
from fngd.layers.registry import register_layer

__all__ = ["Layer", "attention", "convolution", "detach", "linear", "register_layer"]
