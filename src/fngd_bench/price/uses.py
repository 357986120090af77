"""The shapes among a model's preconditioned weights, each with the real tensors of one weight that has it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

import fngd
from fngd.layers.attach import attach_layer, attach_root, detach
from fngd.layers.base import Layer
from fngd.layers.parts import Part
from fngd.layers.registry import Place, survey
from fngd.layers.run import Run
from fngd.operations import Operation
from fngd.planner import Shape
from fngd.policies import Fresh
from fngd.settings import Settings
from fngd.uses import Use, shape_of
from fngd_bench.price import race
from fngd_bench.price.record import StepSettings


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of one shape."""

    shape: Shape
    uses: tuple[Use, ...]
    """Of the first of them; in place of the output gradient z, the output's shape and memory format alone."""
    layer: str
    """The layer of the first of them."""
    count: int

    def drawn(self, generator: torch.Generator) -> tuple[Use, ...]:
        """The uses with random output gradients, as small as those of a mean over the samples are.

        Args:
            generator: What draws.

        Returns:
            The uses.
        """
        return tuple(_drawn(use, generator) for use in self.uses)


def _drawn(use: Use, generator: torch.Generator) -> Use:
    z = torch.empty_like(use.z, device=use.x.device).normal_(generator=generator)
    return use._replace(z=z.div_(use.operation.samples.M))


def diagnosis(wanted: StepSettings) -> fngd.Diagnosis:
    """What the doctor says of a model on a batch: shapes say it all, nothing is computed.

    Args:
        wanted: Resolved settings.

    Returns:
        The diagnosis.
    """
    with torch.random.fork_rng(), torch.device("meta"):
        begin = race.start(wanted)
        return fngd.doctor(begin.model, *begin.batch.inputs)


def weights_by_shape(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Weights, ...]:
    """Run the model once and see which shapes its weights have.

    Args:
        model: The model, in training mode.
        inputs: A batch.

    Returns:
        The shapes in the order in which they are met.
    """
    run, kept = Run(Settings(), Fresh(), deriving=True), dict[Hashable, _Kept]()
    layers = []
    for finding in survey(model):
        if finding.kind is not None:
            layers.append(_Keeper(finding.name, finding.places, run, kept))
            attach_layer(finding.module, layers[-1], finding.kind.rule)
    attach_root(model, run)
    try:
        model(*inputs)
    finally:
        detach(model)
    return _grouped(layers)


def _grouped(layers: Sequence[_Keeper]) -> tuple[Weights, ...]:
    found: dict[Shape, Weights] = {}
    for layer in layers:
        for uses in layer.uses.values():
            shape = shape_of(uses)
            known = found.get(shape) or Weights(shape=shape, uses=tuple(uses), layer=layer.name, count=0)
            found[shape] = replace(known, count=known.count + 1)
    return tuple(found.values())


class _Kept(NamedTuple):
    x: Tensor
    output: Tensor
    """Without content."""


class _Keeper(Layer):
    """A layer that computes what torch would, and keeps its inputs if it is the first to have such inputs."""

    def __init__(self, name: str, places: Sequence[Place], run: Run, kept: dict[Hashable, _Kept]) -> None:
        super().__init__(name, places, run)
        self.uses: dict[Part, list[Use]] = {}
        self._kept = kept

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own forward."""
        output = operation.forward(x, weight, bias)
        part = self.part(weight, self.parameters)
        if part is not None:
            key = (type(operation), operation.samples, operation.geometry, x.shape, weight.shape)
            first = self._kept.setdefault(key, _Kept(x.detach(), output.detach().to("meta")))
            self.uses.setdefault(part, []).append(Use(operation, *first, weight.detach()))
        return output
