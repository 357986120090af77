"""Deriving inside a graph that torch.compile makes of the model, without a break.

A compiled graph holds tensors and operators only, but deriving keeps Python objects: notes, histories, plans. So a
layer's derivation is one operator of that graph, `fngd::derive`, which no compiler looks into; it takes x, z and the
weight of every use and returns the gradients, and inside it runs what runs without torch.compile.

`Deriving` and `Join` stay what they are. The functions marked by `in_graph` are run by Python while the backward graph
is made, on tensors without content, and so are the nodes' backward methods: `Join` finds the notes of all uses, and
what it puts into the graph is the call of the operator. Layers are named by a tensor that holds their number, so that
blocks of the same make can share one graph.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fngd.autocast import cast_as_autocast
from fngd.layers.parts import Label, Part, part_of
from fngd.nodes import Deriving, Join, Notes
from fngd.operations import Convolution, Linear, Needs, Operation, Samples
from fngd.uses import Use

Gradients = tuple[Tensor | None, ...]


class Deriver(Protocol):
    """The layer, as the operators see it."""

    def finish(self, parameters: Sequence[Tensor], uses: Sequence[tuple[Use, Label]]) -> Gradients:
        """The weighted gradient of each parameter."""

    def scaled(self, use: Use, label: Label) -> Tensor:
        """The output gradient weighted, if the layer is a head."""


_layers: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = itertools.count()
_marked: list[Callable[..., Tensor]] = []


def number(layer: object) -> Tensor:
    """A number by which the operators find a layer as long as it lives."""
    new = next(_numbers)
    _layers[new] = layer
    return torch.tensor(new)


def in_graph(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Mark a function that a compiled graph calls as a whole."""
    _marked.append(function)
    return function


@functools.cache
def prepare() -> None:
    """Tell torch of the operators and of the marked functions. Not done on import, which it would slow down."""
    torch.library.custom_op("fngd::derive", derive, mutates_args=()).register_fake(_derived)
    torch.library.custom_op("fngd::judge", judge, mutates_args=()).register_fake(_judged)
    for function in _marked:
        torch.compiler.allow_in_graph(function)


class Static(NamedTuple):
    """An operation but for the number of samples, which may differ from call to call of one graph."""

    axis: int
    repeats: int
    sample_major: bool
    geometry: tuple[Any, ...]
    """A convolution's stride, padding, dilation and groups."""

    def on(self, x: Tensor) -> Operation:
        """The operation on this input."""
        samples = Samples(self.axis, x.shape[self.axis] // self.repeats, self.repeats, self.sample_major)
        if not self.geometry:
            return Linear(samples)
        *spatial, groups = self.geometry
        return Convolution(samples, *spatial, groups=groups)


def static(operation: Operation) -> Static:
    """What of an operation is fixed in a graph."""
    axis, _, repeats, sample_major = operation.samples
    return Static(axis, repeats, sample_major, operation.geometry)


@in_graph
def join(layer: Tensor, *parameters: Tensor) -> Tensor:
    """The token that all uses of a layer in a graph hang on."""
    notes = Notes(functools.partial(_derive, layer, parameters))
    token: Tensor = Join.apply(notes, *parameters)  # type: ignore[no-untyped-call]
    return token


@in_graph
def use(operation: tuple[Any, ...], token: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A use of the layer whose token it is."""
    held = (weight, bias)
    notes = token.grad_fn.notes  # type: ignore[union-attr]
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    x, weight, bias = cast_as_autocast(x, weight, bias)
    output: Tensor = Deriving.apply(Static(*operation).on(x), notes, held, x, token, weight, bias)  # type: ignore[no-untyped-call]
    return output


def _derive(
    layer: Tensor, parameters: tuple[Tensor, ...], uses: Sequence[tuple[Use, tuple[Tensor, Tensor | None]]]
) -> Gradients:
    """Put the derivation into the graph."""
    labels = [Label(*(None if t is None else part_of(t, parameters) for t in held)) for _, held in uses]
    specs = [(static(use.operation), label) for (use, _), label in zip(uses, labels, strict=True)]
    tensors = ([getattr(use, name) for use, _ in uses] for name in ("x", "z", "weight"))
    gradients = torch.ops.fngd.derive(layer, _text(specs), *tensors, list(parameters))
    found = dict(zip(_parameters_of(specs), gradients, strict=True))
    return tuple(found.get(index) for index in range(len(parameters)))


def derive(
    layer: Tensor, specs: str, x: list[Tensor], z: list[Tensor], weights: list[Tensor], parameters: list[Tensor]
) -> list[Tensor]:
    """The weighted gradients of the parameters that the uses read; the coefficients enter the layer's history."""
    uses = [
        (Use(spec.on(a), a, b, w), label) for (spec, label), a, b, w in zip(_read(specs), x, z, weights, strict=True)
    ]
    gradients = _layers[int(layer)].finish(parameters, uses)
    return [_laid_out_as(parameters[index], gradients[index]) for index in _parameters_of(_read(specs))]


def _derived(*given: Any) -> list[Tensor]:
    """What `derive` returns, but for its content."""
    _, specs, *_, parameters = given
    return [torch.empty_like(parameters[index]) for index in _parameters_of(_read(specs))]


class Judge:
    """`FromHead`'s head, as a graph knows it."""

    def __init__(self, layer: Tensor) -> None:
        """The head of this number."""
        self._layer = layer

    def backward(self, use: Use, label: Label, needs: Needs) -> Gradients:
        """Put the weighting of the output gradient into the graph, and torch's own gradients after it."""
        weighted: Tensor = torch.ops.fngd.judge(
            self._layer, _text([(static(use.operation), label)]), use.x, use.z, use.weight
        )
        return use.operation.backward(weighted, use.x, use.weight, needs)


def judge(layer: Tensor, specs: str, x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
    """The head's output gradient weighted by coefficients that are derived from it."""
    ((spec, label),) = _read(specs)
    weighted: Tensor = _layers[int(layer)].scaled(Use(spec.on(x), x, z, weight), label)
    return _laid_out_as(z, z.clone() if weighted is z else weighted)


def _judged(*given: Any) -> Tensor:
    """What `judge` returns, but for its content."""
    *_, z, _weight = given
    return torch.empty_like(z)


def _parameters_of(specs: Sequence[tuple[Static, Label]]) -> list[int]:
    """Which of the layer's parameters the uses read, frozen ones left out."""
    return sorted({part.parameter for _, label in specs for part in label if part is not None})


def _laid_out_as(t: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the strides that the graph was promised."""
    like = torch.empty_like(t)
    return gradient if gradient.stride() == like.stride() else like.copy_(gradient)


def _text(specs: Sequence[tuple[Static, Label]]) -> str:
    """Operations and labels as a constant of the graph."""
    plain = [(tuple(spec), tuple(None if part is None else tuple(part) for part in label)) for spec, label in specs]
    return repr(plain)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> tuple[tuple[Static, Label], ...]:
    return tuple(
        (Static(*spec), Label(*(None if part is None else Part(*part) for part in label)))
        for spec, label in ast.literal_eval(text)
    )
