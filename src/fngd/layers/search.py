"""Which layer is the head: the one that every path from the model's output back to its parameters goes through.

In the first forward pass every layer that could be the head carries a `Scaling` node. When the model returns, the
graph is walked back from every tensor in what it returned, and the walk stops at these nodes. One layer is met: that is
the head, and the first step is already its. Several, or none, or parameters that lie above: somebody has to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from fngd.layers.attach import attach_layer, detach_layer
from fngd.layers.head import Head
from fngd.layers.registry import Finding, named_modules, plain_name, survey
from fngd.layers.run import Run
from fngd.policies import FromHead

CHECKPOINT = "CheckpointFunctionBackward"
"""The node of torch's activation checkpointing with use_reentrant=True, which hides what is inside."""
SHOWN = 4
"""Names in a message at most."""


class Reached(NamedTuple):
    """What a model's output is reached through."""

    heads: tuple[Head, ...]
    """The layers met first on the way back, in the model's order."""
    parameters: tuple[str, ...]
    """Names of parameters that lie above them."""
    hidden: bool
    """Whether some of the graph cannot be seen."""

    @property
    def objection(self) -> str:
        """Why none of the layers can be taken for the head without being named; empty if one can."""
        if self.hidden:
            return "the output is reached through a checkpoint with use_reentrant=True, which hides its layers"
        if len(self.heads) > 1:
            return f"the output is reached through several layers: {_listed([head.name for head in self.heads])}"
        if not self.heads and not self.parameters:
            return "the output is reached through no supported layer that trains"
        if self.parameters:
            return f"the output is reached through {_listed(self.parameters)}, which no supported layer holds"
        return ""


class Search:
    """The head of one model: named, or found in the first forward pass."""

    def __init__(
        self,
        model: nn.Module,
        run: Run,
        policy: FromHead,
        exclude: Collection[str] = (),
        found: Callable[[Head], None] | None = None,
    ) -> None:
        """Attach every layer that could be the head, or the one that is named.

        Args:
            model: The model.
            run: Its state.
            policy: The head's name, if it has been named, and the right-hand side of its solve.
            exclude: Names of modules that are not the head, with everything below them.
            found: Told of the head as soon as it is known.

        Raises:
            ValueError: If there is no module of that name, or it or the whole model cannot be a head.
        """
        self.head: Head | None = None
        self._model, self._run, self._found = model, run, found
        findings = survey(model, exclude)
        could_be = candidates(findings)
        named = None if policy.head is None else plain_name(policy.head)
        if named is not None:
            could_be = {named: _named(model, named, findings, could_be)}
        if not could_be:
            raise ValueError(
                f"{type(model).__name__} has no layer that FromHead could take for the head; fngd.doctor(model) says "
                "why for each module"
            )
        self._modules = {name: finding.module for name, finding in could_be.items()}
        self._heads = {name: Head(name, finding.places, run, policy.rhs) for name, finding in could_be.items()}
        for name, finding in could_be.items():
            if finding.kind is not None:
                attach_layer(finding.module, self._heads[name], finding.kind.rule)
        run.look = self._look
        if named is not None:
            self._take(self._heads[named])

    def reached(self, output: Any) -> Reached:
        """What something the model has returned is reached through."""
        return reached(output, self._model, tuple(self._heads.values()))

    def adopt(self, name: str) -> None:
        """Take the layer of that name for the head, without looking, if it could be and nobody has looked yet."""
        if self.head is None and name in self._heads:
            self._take(self._heads[name])
            self.tidy()

    def tidy(self) -> None:
        """Give the layers that are not the head back, once it is known.

        Not before the first step is over: a checkpoint that runs a part again must find the layers it ran at first.
        """
        if self.head is not None and len(self._modules) > 1:
            for name in [name for name, head in self._heads.items() if head is not self.head]:
                detach_layer(self._modules.pop(name))
                del self._heads[name]

    def _look(self, output: Any) -> None:
        if not self._model.training and not any(head.used for head in self._heads.values()):
            return
        tensors = list(_tensors(output))
        if tensors and not any(tensor.requires_grad for tensor in tensors):
            return
        found = self.reached(output)
        if found.objection:
            name = found.heads[-1].name if found.heads else next(reversed(self._heads))
            raise RuntimeError(
                f"fngd: FromHead needs to be told the head of {type(self._model).__name__}: {found.objection}. Name "
                f"the layer whose output gradient is to be weighted, such as fngd.FromHead(alpha, head={name!r}); what "
                "does not lie below it takes the plain gradient"
            )
        self._take(found.heads[0])

    def _take(self, head: Head) -> None:
        self.head, self._run.look = head, None
        for other in self._heads.values():
            other.chosen = False
        if self._found is not None:
            self._found(head)
        head.choose()


def candidates(findings: Collection[Finding]) -> dict[str, Finding]:
    """The layers that could be the head, by name.

    A layer that holds others (attention), or that another holds, cannot: the outer one may use the inner one's weight
    without calling it.
    """
    supported = {finding.name: finding for finding in findings if finding.kind is not None}
    inside = {name: [outer for outer in _outer(name) if outer in supported] for name in supported}
    holders = {outer for found in inside.values() for outer in found}
    return {name: finding for name, finding in supported.items() if not inside[name] and name not in holders}


def reached(output: Any, model: nn.Module, heads: Collection[Head]) -> Reached:
    """Walk back from every tensor in the output until a layer that could be the head is met.

    Args:
        output: What the model returned.
        model: The model.
        heads: The layers that could be the head.

    Returns:
        What was met.
    """
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    met: set[Head] = set()
    above: set[str] = set()
    hidden = False
    waiting = [tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node: Any = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(head := getattr(node, "head", None), Head):
            met.add(head)
            continue
        hidden = hidden or type(node).__name__ == CHECKPOINT
        if (name := names.get(id(getattr(node, "variable", None)))) is not None:
            above.add(name)
        waiting.extend(following for following, _ in node.next_functions if following is not None)
    parameters = tuple(name for name in names.values() if name in above)
    return Reached(tuple(head for head in heads if head in met), parameters, hidden)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside of what a model returns."""
    if isinstance(value, Tensor):
        yield value
        return
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, tuple | list):
        inside = value
    elif is_dataclass(value):
        inside = [getattr(value, field.name) for field in fields(value)]
    for part in inside:
        yield from _tensors(part)


def _named(model: nn.Module, name: str, findings: Collection[Finding], could_be: dict[str, Finding]) -> Finding:
    """The finding of a head that the user has named."""
    if name in could_be:
        return could_be[name]
    names = _listed(list(reversed(could_be))) or "none"
    if name not in named_modules(model):
        raise ValueError(
            f"head={name!r} names no module of the model; names are those of model.named_modules(), and these could be "
            f"the head: {names}"
        )
    finding = next((finding for finding in findings if finding.name == name), None)
    reason = "it has no parameters of its own" if finding is None else finding.reason
    reason = reason or "it holds, or is held by, another supported layer, which may not call it"
    raise ValueError(f"head={name!r} cannot be the head: {reason}; these could be: {names}")


def _outer(name: str) -> Iterator[str]:
    """The names of the modules around a module, the model's own included."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _listed(names: Collection[str]) -> str:
    shown = [repr(name) for name in list(names)[:SHOWN]]
    return ", ".join([*shown, *([f"{len(names) - SHOWN} more"] if len(names) > SHOWN else [])])
