"""What is known of one layer: running averages of its two statistics, and what was prepared from them.

Tensors are replaced, never changed in place, so that a saved state stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fngd_bench.baselines.layers import Layer
from fngd_bench.errors import InputError


@dataclass
class LayerState:
    """Running averages of the input side (A or ā) and the output side (G or ḡ)."""

    inputs: Tensor
    outputs: Tensor
    batches: int = 1
    prepared: tuple[Tensor, ...] = ()
    """What a method computes from the averages now and then: the damped inverses of KFAC."""

    def fold(self, inputs: Tensor, outputs: Tensor, decay: float) -> None:
        """Enter the statistics of another batch.

        The k-th one weighs max(1/k, 1 − decay), as in Martens and Grosse (2015): a plain mean at first, so that the
        start is not forgotten slowly.
        """
        self.batches += 1
        weight = max(1 / self.batches, 1 - decay)
        self.inputs = torch.lerp(self.inputs, inputs, weight)
        self.outputs = torch.lerp(self.outputs, outputs, weight)

    def saved(self) -> dict[str, Any]:
        """As plain values for a `state_dict`."""
        return {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "batches": self.batches,
            "prepared": list(self.prepared),
        }


def load(layer: Layer, saved: dict[str, Any]) -> LayerState:
    """A layer's state from what `LayerState.saved` returned.

    Args:
        layer: Whose state it is.
        saved: The values.

    Returns:
        The state, on the layer's device.

    Raises:
        InputError: If it was saved for a layer of another shape.
    """
    weight = layer.module.weight
    found = (len(saved["outputs"]), len(saved["inputs"]))
    if found != (len(weight), layer.width):
        raise InputError(
            f"the state of layer {layer.name!r} is for a gradient of shape {found}, but it has "
            f"{(len(weight), layer.width)}: load it for the model it was saved with"
        )

    def here(t: Tensor) -> Tensor:
        return t.to(weight.device, layer.dtype)

    prepared = tuple(here(t) for t in saved["prepared"])
    return LayerState(here(saved["inputs"]), here(saved["outputs"]), saved["batches"], prepared)
