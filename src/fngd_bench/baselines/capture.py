"""Hooks that measure a layer's inputs and output gradients while the loss is differentiated.

A forward hook on each layer keeps the input and puts a tensor hook on the output, which fires when the gradient
arrives: full backward hooks of a module do not survive an in-place ReLU behind it. The method's sums over the columns
are formed at once, in the backward pass, so that neither activations nor gradients are held until the step. A forward
pass that is never differentiated leaves no trace.

What the leading dimension of the model's first input counts are the samples; each call of the model has samples of its
own. A layer that is called while the model has not been counts the leading dimension of its own input.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fngd_bench.baselines.layers import Layer
from fngd_bench.clock import section


@dataclass(eq=False)
class Batch:
    """The samples of one call of the model."""

    samples: int


class Sums(NamedTuple):
    """What a method adds up over the columns that one use of a layer met."""

    inputs: Tensor
    outputs: Tensor
    columns: int


@dataclass
class Notes:
    """What all uses of one layer since the last step add up to."""

    sums: Sums
    batches: set[Batch]

    @property
    def samples(self) -> int:
        """Samples M in all calls of the model that used the layer."""
        return sum(batch.samples for batch in self.batches)

    def add(self, sums: Sums, batch: Batch) -> None:
        """Enter another use."""
        inputs, outputs, columns = self.sums
        self.sums = Sums(inputs + sums.inputs, outputs + sums.outputs, columns + sums.columns)
        self.batches.add(batch)


Measure = Callable[[Layer, Tensor, Tensor], Sums]
"""A layer, the entries of its input and those of the gradient at its output → what is to be added up."""


class Capture:
    """The hooks on one model, and what they have noted since the last step."""

    def __init__(self, model: nn.Module, layers: dict[str, Layer], measure: Measure) -> None:
        """Attach.

        Args:
            model: The model.
            layers: Its layers to measure, by name.
            measure: What is added up over a layer's columns.
        """
        self.model, self.layers, self.on = model, layers, True
        self._measure = measure
        self._notes: dict[str, Notes] = {}
        self._batch: Batch | None = None
        _drop_dead_hooks(model)
        self._handles = [model.register_forward_pre_hook(Hook(self), with_kwargs=True)]
        for name, layer in layers.items():
            self._handles.append(layer.module.register_forward_hook(Hook(self, name), with_kwargs=True))

    @property
    def wanted(self) -> bool:
        """Whether a use of a layer is measured now."""
        return self.on and self.model.training and torch.is_grad_enabled()

    def take(self) -> dict[str, Notes]:
        """The notes since the last step, by layer; there are none afterwards."""
        notes, self._notes, self._batch = self._notes, {}, None
        return notes

    def forget(self) -> None:
        """Drop the notes: the gradients they belong to are dropped too."""
        self._notes = {}

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.take()

    def enter(self, values: Iterable[Any]) -> None:
        """The model is called with these arguments."""
        sizes = [value.shape[0] for value in values if isinstance(value, Tensor) and value.dim() > 0]
        self._batch = Batch(sizes[0]) if sizes else None

    def use(self, name: str, x: Tensor, output: Tensor) -> None:
        """A layer was called."""
        layer = self.layers[name]
        if output.requires_grad and layer.module.weight.requires_grad:
            batch = self._batch or Batch(x.shape[0] if x.dim() > layer.features else 1)
            output.register_hook(partial(self._arrive, layer, x.detach(), batch))

    @torch.no_grad()
    def _arrive(self, layer: Layer, x: Tensor, batch: Batch, z: Tensor) -> None:
        if z.numel() == 0:
            return
        with section("precondition"):
            x, z = (layer.entries(t.detach()).to(layer.dtype) for t in (x, z))
            sums = self._measure(layer, x, z)
            if layer.name in self._notes:
                self._notes[layer.name].add(sums, batch)
            else:
                self._notes[layer.name] = Notes(sums, {batch})


class Hook:
    """A hook that does nothing once its owner is gone; copies and pickles of it have no owner.

    So a copy of a hooked model is a model of its own, and a forgotten optimizer is not kept alive by the model.
    """

    def __init__(self, owner: Capture | None = None, name: str | None = None) -> None:
        """Make one.

        Args:
            owner: Whom to tell.
            name: The layer it is on; None for the model.
        """
        self._owner = None if owner is None else weakref.ref(owner)
        self._name = name

    @property
    def owner(self) -> Capture | None:
        """Whom it tells, if still there."""
        return None if self._owner is None else self._owner()

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None) -> None:
        """What torch calls: before the model's forward, after a layer's."""
        owner = self.owner
        if owner is None or not owner.wanted:
            return
        if self._name is None:
            owner.enter((*args, *kwargs.values()))
        else:
            owner.use(self._name, args[0] if args else kwargs["input"], output)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        """A copy has no owner."""
        return Hook, ()


def _drop_dead_hooks(model: nn.Module) -> None:
    for module in model.modules():
        for hooks, with_kwargs in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        ):
            for key in [key for key, hook in hooks.items() if isinstance(hook, Hook) and hook.owner is None]:
                del hooks[key]
                with_kwargs.pop(key, None)
