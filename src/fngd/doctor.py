"""What would be preconditioned, how, and why not: known before a training run is started.

`doctor` runs one forward pass of a copy of the model, so that shapes, and with them the route and price of every Gram
matrix, are those of real inputs. The model itself is not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fngd.gram import Use, plan_of, shape_of
from fngd.layers.attach import attach_layer, attach_root, detach
from fngd.layers.base import Layer
from fngd.layers.parts import Part
from fngd.layers.registry import Finding, survey
from fngd.layers.run import Run
from fngd.layers.search import Search
from fngd.operations import Operation, Samples
from fngd.planner import Plan, Shape
from fngd.policies import Fresh, FromHead
from fngd.settings import Settings

STOP = "training will stop here"


@dataclass(frozen=True)
class Row:
    """One module with parameters of its own."""

    name: str
    kind: str
    parameters: int
    preconditioned: bool
    reason: str
    """Why it is not preconditioned, or why there are no shapes; else empty."""
    shapes: tuple[Shape, ...] = ()
    """Canonical sizes (M, G, T, d_in, d_out), one for each weight or separately used part of one."""
    plans: tuple[Plan, ...] = ()
    """How each one's Gram matrix is computed."""

    @property
    def flops(self) -> int:
        """Operations to derive the layer's Gram matrix from a batch like the example."""
        return sum(chosen.flops for chosen in self.plans)

    @property
    def bytes(self) -> int:
        """Scratch memory held at once meanwhile."""
        return max((chosen.bytes for chosen in self.plans), default=0)


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found; `print` it, or read its fields."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    heads: tuple[str, ...] = ()
    """The layers through which the output is reached: what `FromHead` takes for the head, if there is one."""
    head_objection: str = ""
    """Why `FromHead` must be told the head; empty if it need not, or if there were no example inputs."""

    @property
    def coverage(self) -> float:
        """The share of the model's parameters that is preconditioned."""
        total = sum(row.parameters for row in self.rows)
        return sum(row.parameters for row in self.rows if row.preconditioned) / total if total else 0.0

    def __str__(self) -> str:
        """The table, the coverage and the warnings."""
        header = ("module", "kind", "parameters", "gradient", "M × T × d_in → d_out", "route", "GFLOP", "MiB")
        lines = _aligned([header, *(_cells(row) for row in self.rows)])
        counted = sum(row.preconditioned for row in self.rows)
        summary = f"{counted} of {len(self.rows)} modules, {self.coverage:.1%} of the parameters are preconditioned."
        return "\n".join([*lines, "", summary, *self._head(), *(f"warning: {warning}" for warning in self.warnings)])

    def _head(self) -> list[str]:
        """A line on what `FromHead` would make of the model, if that is known."""
        if self.head_objection:
            return [f"FromHead needs head=…: {self.head_objection}."]
        return [f"Head for FromHead: {name!r}." for name in self.heads]


def doctor(model: nn.Module, *example_inputs: object, batch_dim: int = 0, exclude: Collection[str] = ()) -> Diagnosis:
    """Say which modules FNGD would precondition, by which route and at what price, and why not the others.

    Args:
        model: The model; it is copied, not changed.
        example_inputs: What the model is called with, a batch of at least two samples. Without it there are no shapes.
        batch_dim: The dimension of the model's inputs that counts the samples.
        exclude: Names of modules to leave alone, as for `FNGD`.

    Returns:
        A table that prints itself and can be read as data.

    Example:
        >>> import torch, fngd
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        >>> diagnosis = fngd.doctor(model, torch.randn(16, 4))
        >>> [row.preconditioned for row in diagnosis.rows]
        [True, False]
        >>> diagnosis.rows[1].reason
        'no rule for LayerNorm'
    """
    specimen = copy.deepcopy(model).train()
    run = Run(Settings(batch_dim=batch_dim), Fresh(), deriving=True)
    findings = survey(specimen, exclude)
    layers = _attach(findings, run)
    attach_root(specimen, run)
    if example_inputs:
        _called(specimen, example_inputs)
    rows = tuple(_row(finding, layers.get(finding.name), bool(example_inputs)) for finding in findings)
    remarks = [remark for layer in dict.fromkeys(layers.values()) for remark in layer.remarks]
    mode = [] if model.training else ["the model is in eval mode: until model.train(), gradients are plain"]
    warnings = (*mode, *_batch_dim(specimen, batch_dim), *_ties(findings), *_stops(remarks))
    heads, objection = _heads(specimen, example_inputs, run.settings, exclude) if example_inputs else ((), "")
    return Diagnosis(rows, warnings, heads, objection)


def _called(specimen: nn.Module, inputs: tuple[object, ...]) -> object:
    """What the model returns; random numbers are given back."""
    devices = {p.device for p in specimen.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
        return specimen(*inputs)


def _heads(
    specimen: nn.Module, inputs: tuple[object, ...], settings: Settings, exclude: Collection[str]
) -> tuple[tuple[str, ...], str]:
    """The layers that the output is reached through, and why `FromHead` cannot take one of them unless it is told."""
    detach(specimen)
    run = Run(settings, FromHead(), deriving=True)
    try:
        search = Search(specimen, run, FromHead(), exclude)
    except ValueError:
        return (), "the model has no layer that could be it"
    run.look = None
    attach_root(specimen, run)
    found = search.reached(_called(specimen, inputs))
    objection = found.objection or found.heads[0].objection
    return tuple(head.name for head in found.heads), objection


class Recorder(Layer):
    """A layer that computes nothing but what torch would, and notes down how it is used."""

    def __init__(self, name: str, parameters: Sequence[nn.Parameter], run: Run) -> None:
        """As a layer, with nothing noted down.

        Args:
            name: The module's name in the model.
            parameters: The parameters whose gradients would be weighted together.
            run: What it shares with the other layers.
        """
        super().__init__(name, parameters, run)
        self.uses: dict[Part, list[Use]] = {}
        self.called = False
        self.remarks: list[str] = []

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own forward."""
        self.called = True
        output = operation.forward(x, weight, bias)
        part = self.part(weight)
        if part is not None and operation.samples.M:
            use = Use(operation, x.detach().to("meta"), output.detach().to("meta"), weight.detach())
            self.uses.setdefault(part, []).append(use)
        if operation.samples.repeats > 1:
            self.remarks.append(self._folding(operation.samples))
        return output

    def misfit(self, message: str, otherwise: Samples) -> Samples:
        """Note down what would be an error in training."""
        self.remarks.append(f"{STOP}: {message}")
        return otherwise

    def _folding(self, samples: Samples) -> str:
        order = "one after the other (sample-major)" if samples.sample_major else "in turn (position-major)"
        return (
            f"{self.name!r} sees {samples.M * samples.repeats} rows for a batch of {samples.M}: read as "
            f"{samples.repeats} rows a sample, the samples {order}"
        )


def _attach(findings: Sequence[Finding], run: Run) -> dict[str, Recorder]:
    """A recorder for every module that has a rule, by name."""
    layers: dict[str, Recorder] = {}
    for finding in findings:
        if finding.kind is not None:
            layers[finding.name] = Recorder(finding.name, finding.parameters, run)
            attach_layer(finding.module, layers[finding.name], finding.kind.rule)
    return layers


def _row(finding: Finding, layer: Recorder | None, ran: bool) -> Row:
    parameters = sum(parameter.numel() for parameter in finding.module.parameters(recurse=False))
    kind = type(finding.module).__name__
    if layer is None:
        return Row(finding.name, kind, parameters, preconditioned=False, reason=finding.reason)
    if not layer.trainable:
        return Row(finding.name, kind, parameters, preconditioned=False, reason="frozen")
    if ran and not layer.called:
        reason = "not called with these inputs"
        return Row(finding.name, kind, parameters, preconditioned=False, reason=reason)
    shapes = tuple(shape_of(uses) for uses in layer.uses.values())
    reason = "" if shapes else "only the bias is trainable" if ran else "no example inputs"
    plans = tuple(plan_of(uses) for uses in layer.uses.values())
    return Row(finding.name, kind, parameters, preconditioned=True, reason=reason, shapes=shapes, plans=plans)


def _batch_dim(model: nn.Module, batch_dim: int) -> list[str]:
    """A warning if an attention module says that samples come second, and nobody else does."""
    if batch_dim > 0:
        return []
    attentions = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
    second = [name for name, module in attentions if not module.batch_first]
    if not second:
        return []
    return [
        f"{second[0]!r} has batch_first=False: if samples come second in the whole model, pass batch_dim=1, or every "
        "other layer will take positions for samples"
    ]


def _stops(remarks: Sequence[str]) -> list[str]:
    """The remarks without repetition, and no more than two of those that say the same of many layers."""
    unique = list(dict.fromkeys(remarks))
    errors = [remark for remark in unique if remark.startswith(STOP)]
    more = [f"{STOP} in {len(errors) - 2} more places"] if len(errors) > 2 else []
    return [*(remark for remark in unique if not remark.startswith(STOP)), *errors[:2], *more]


def _ties(findings: Sequence[Finding]) -> list[str]:
    """A warning for each parameter that several modules hold."""
    owners: dict[int, list[Finding]] = {}
    for finding in findings:
        for parameter in finding.module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(finding)
    return [_tie(tied) for tied in owners.values() if len(tied) > 1]


def _tie(tied: Sequence[Finding]) -> str:
    names = " and ".join(repr(finding.name) for finding in tied)
    plain = [finding for finding in tied if finding.kind is None]
    if plain:
        kind = type(plain[0].module).__name__
        return f"{names} share a parameter: {plain[0].name!r} ({kind}) adds its plain gradient to the weighted one"
    return f"{names} share a parameter: they are one layer, and their contributions add up within each sample"


def _cells(row: Row) -> tuple[str, ...]:
    gradient = "weighted" if row.preconditioned else f"plain: {row.reason}"
    shapes = ", ".join(_shape(shape) for shape in row.shapes) or (row.reason if row.preconditioned else "")
    routes = ", ".join(dict.fromkeys(chosen.route for chosen in row.plans))
    price = (f"{row.flops / 1e9:.3g}", f"{row.bytes / 2**20:.3g}") if row.plans else ("", "")
    return (row.name or "(model)", row.kind, f"{row.parameters:,}", gradient, shapes, routes, *price)


def _shape(shape: Shape) -> str:
    groups = f"{shape.G} groups of " if shape.G > 1 else ""
    return f"{groups}{shape.M} × {shape.T} × {shape.d_in} → {shape.d_out}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
