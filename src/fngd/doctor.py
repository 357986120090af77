"""What would be preconditioned, how, and why not: known before a training run is started.

`doctor` runs one forward pass of a copy of the model, so that shapes, and with them the route and price of every Gram
matrix, are those of real inputs. The model itself is not touched. A model and inputs on the meta device do as well:
nothing is computed then, however large they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fngd.autocast import cast_as_autocast
from fngd.diagnosis import FROZEN, Diagnosis, Row
from fngd.gram import plan_of
from fngd.layers.attach import attach_layer, attach_root, detach
from fngd.layers.base import Layer
from fngd.layers.parts import Part
from fngd.layers.registry import Finding, Place, survey
from fngd.layers.run import Run
from fngd.layers.search import Search
from fngd.operations import Operation, Samples
from fngd.policies import Fresh, FromHead
from fngd.settings import Settings
from fngd.uses import Use, shape_of
from fngd.wrappers import copied, unwrapped

STOP = "training will stop here"


def doctor(
    model: nn.Module,
    *example_inputs: object,
    batch_dim: int = 0,
    exclude: Collection[str] = (),
    gram_budget: int | None = None,
    gram_route: str | None = None,
    **keyword_inputs: object,
) -> Diagnosis:
    """Say which modules FNGD would precondition, by which route and at what price, and why not the others.

    Args:
        model: The model; it is copied, not changed.
        example_inputs: What the model is called with, a batch of at least two samples. Without it there are no shapes.
        batch_dim: The dimension of the model's inputs that counts the samples.
        exclude: Names of modules to leave alone, as for `FNGD`.
        gram_budget: Bytes of scratch memory for one layer's Gram matrix, as for `FNGD`.
        gram_route: A route to take wherever it is possible, as for `FNGD`.
        keyword_inputs: What the model is called with by name: `doctor(model, **batch)` for `model(**batch)`.

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
    inside = unwrapped(model)
    exclude = [inside.bare(name) for name in ([exclude] if isinstance(exclude, str) else exclude)]
    specimen = copied(inside.model).train()
    settings = Settings(batch_dim=batch_dim, gram_budget=gram_budget, gram_route=gram_route)
    run = Run(settings, Fresh(), deriving=True)
    findings = survey(specimen, exclude)
    layers = _attach(findings, run)
    attach_root(specimen, run)
    call = functools.partial(_called, specimen, *example_inputs, **keyword_inputs)
    runs = bool(example_inputs or keyword_inputs)
    if runs:
        call()
    rows = tuple(_row(finding, layers.get(finding.name), runs) for finding in findings)
    remarks = [remark for layer in dict.fromkeys(layers.values()) for remark in layer.remarks]
    mode = [] if model.training else ["the model is in eval mode: until model.train(), gradients are plain"]
    warnings = (*mode, *_batch_dim(specimen, batch_dim), *_ties(findings), *_few(remarks))
    heads, objection = _heads(specimen, call, settings, exclude) if runs else ((), "")
    return Diagnosis(rows, _coverage(findings, rows), warnings, heads, objection, run.budget.bytes)


def _called(specimen: nn.Module, *args: object, **kwargs: object) -> object:
    """What the model returns; random numbers are given back."""
    devices = {p.device for p in specimen.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
        return specimen(*args, **kwargs)


def _heads(
    specimen: nn.Module, call: Callable[[], object], settings: Settings, exclude: Collection[str]
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
    found = search.reached(call())
    objection = found.objection or found.heads[0].objection
    return tuple(head.name for head in found.heads), objection


class Recorder(Layer):
    """A layer that computes nothing but what torch would, and notes down how it is used."""

    def __init__(self, name: str, places: Sequence[Place], run: Run) -> None:
        """As a layer, with nothing noted down.

        Args:
            name: The module's name in the model.
            places: Where the parameters are whose gradients would be weighted together.
            run: What it shares with the other layers.
        """
        super().__init__(name, places, run)
        self.uses: dict[Part, list[Use]] = {}
        self.called: bool = False
        self.remarks: list[str] = []

    def apply(self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own forward."""
        self.called, part = True, self.part(weight, self.parameters)
        x, weight, bias = cast_as_autocast(x, weight, bias)
        output = operation.forward(x, weight, bias)
        self.run.hold(x, output)
        if part is not None and operation.samples.M:
            use = Use(operation, *(t.detach().to("meta") for t in (x, output, weight)))
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
            layers[finding.name] = Recorder(finding.name, finding.places, run)
            attach_layer(finding.module, layers[finding.name], finding.kind.rule)
    return layers


def _row(finding: Finding, layer: Recorder | None, ran: bool) -> Row:
    held = list(finding.module.parameters(recurse=False))
    row = Row(finding.name, type(finding.module).__name__, sum(p.numel() for p in held))
    if not any(parameter.requires_grad for parameter in finding.parameters or held):
        return replace(row, reason=FROZEN)
    if layer is None:
        return replace(row, reason=finding.reason)
    if ran and not layer.called:
        return replace(row, reason="not called with these inputs")
    shapes = tuple(shape_of(uses) for uses in layer.uses.values())
    reason = "" if shapes else "only the bias is trainable" if ran else "no example inputs"
    route = layer.run.settings.gram_route
    plans = tuple(plan_of(uses, layer.run.budget, route) for uses in layer.uses.values())
    return replace(row, preconditioned=True, reason=reason, shapes=shapes, plans=plans)


def _coverage(findings: Sequence[Finding], rows: Sequence[Row]) -> float:
    """The share of the trained parameters that some module weights."""
    weighted = [finding for finding, row in zip(findings, rows, strict=True) if row.preconditioned]
    held = {p for finding in findings for p in finding.module.parameters(recurse=False) if p.requires_grad}
    covered = {p for finding in weighted for p in finding.parameters if p.requires_grad}
    return sum(p.numel() for p in covered) / max(sum(p.numel() for p in held), 1)


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


def _few(remarks: Sequence[str]) -> list[str]:
    """The remarks without repetition, and no more than two of those that say the same of many layers."""
    unique = list(dict.fromkeys(remarks))
    errors = [remark for remark in unique if remark.startswith(STOP)]
    foldings = [remark for remark in unique if not remark.startswith(STOP)]
    return [*_two(foldings, "rows are read as samples' in {} more layers"), *_two(errors, STOP + " in {} more places")]


def _two(remarks: Sequence[str], more: str) -> list[str]:
    return [*remarks[:2], *([more.format(len(remarks) - 2)] if len(remarks) > 2 else [])]


def _ties(findings: Sequence[Finding]) -> list[str]:
    """A warning for each trained parameter that a weighted module shares with others."""
    owners: dict[nn.Parameter, list[Finding]] = {}
    for finding in findings:
        for parameter in finding.module.parameters(recurse=False):
            if parameter.requires_grad:
                owners.setdefault(parameter, []).append(finding)
    return [_tie(tied) for tied in owners.values() if len(tied) > 1 and any(finding.kind for finding in tied)]


def _tie(tied: Sequence[Finding]) -> str:
    shared = f"{' and '.join(repr(finding.name) for finding in tied)} share a parameter"
    plain = [f"{finding.name!r} ({type(finding.module).__name__})" for finding in tied if finding.kind is None]
    if plain:
        adds = "adds its plain gradient" if len(plain) == 1 else "add their plain gradients"
        return f"{shared}: {' and '.join(plain)} {adds} to the weighted one"
    return f"{shared}: they are one layer, and their contributions add up within each sample"
