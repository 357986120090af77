"""How a module is made to run its rule: its class is swapped for a subclass whose forward asks the rule.

Parameters, buffers, hooks, `state_dict` keys and `isinstance` stay as they were. Copies and pickles of an attached
module are plain modules of the original class; `detach` gives the module itself back as it was. A model whose forward
was replaced on the instance, as accelerate does for mixed precision, has it wrapped in place.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any, cast

import torch
from torch import nn

from fngd.layers.base import Layer
from fngd.layers.compiled import prepare
from fngd.layers.registry import Rule
from fngd.layers.run import Run

_KEY = "_fngd"


@dataclass
class Attachment:
    """What an attached module knows: the layer it is, and the runs it is the root of."""

    layer: Layer | None = None
    rule: Rule | None = None
    roots: list[Run] = field(default_factory=list)
    replaced: Callable[..., Any] | None = None
    """The forward that somebody put on the instance before us, if any."""
    eagerly: Callable[..., Any] | None = None
    """A root's forward pass that torch.compile keeps out of."""

    @property
    def as_root(self) -> Callable[..., Any]:
        """A root's forward pass; whoever looks for something in what it returns needs torch's own nodes there."""
        looked_at = any(run.look is not None for run in self.roots)
        return self.eagerly if looked_at and self.eagerly is not None else _as_root


def attach_layer(module: nn.Module, layer: Layer, rule: Rule) -> None:
    """Let the module compute its forward pass by the rule while it trains.

    Args:
        module: The module.
        layer: What the rule is handed.
        rule: The rule.

    Raises:
        ValueError: If the module is preconditioned already.
    """
    attachment = _attachment(module)
    if attachment.layer is not None:
        raise ValueError(
            f"{layer.name or type(module).__name__!r} is preconditioned already: call detach() on the optimizer that "
            "holds it, or fngd.detach(model) if that optimizer is gone"
        )
    attachment.layer, attachment.rule = layer, rule


def attach_root(module: nn.Module, run: Run) -> None:
    """Let the module tell the run when a forward pass begins and how large its batch is."""
    prepare()
    attachment = _attachment(module)
    attachment.roots.append(run)
    attachment.eagerly = torch.compiler.disable(_as_root)
    if "forward" in vars(module) and attachment.replaced is None:
        attachment.replaced = vars(module)["forward"]
        vars(module)["forward"] = _around(attachment.replaced, attachment)


def detach(model: nn.Module, run: Run | None = None) -> None:
    """Give a model back as it was before it was attached.

    Args:
        model: The model.
        run: Only what belongs to this run; everything by default.

    Example:
        >>> import torch, fngd
        >>> model = torch.nn.Linear(4, 2)
        >>> natural = fngd.NaturalGradient(model, derive_steps=10)
        >>> type(model) is torch.nn.Linear, isinstance(model, torch.nn.Linear)
        (False, True)
        >>> fngd.detach(model)
        >>> type(model) is torch.nn.Linear
        True
    """
    for module in model.modules():
        attachment: Attachment | None = module.__dict__.get(_KEY)
        if attachment is None:
            continue
        attachment.roots = [root for root in attachment.roots if run is not None and root is not run]
        if attachment.layer is not None and (run is None or attachment.layer.run is run):
            attachment.layer = attachment.rule = None
        _restore_if_idle(module, attachment)


def detach_layer(module: nn.Module) -> None:
    """Let a module compute its own forward pass again; what it is the root of stays."""
    attachment: Attachment | None = module.__dict__.get(_KEY)
    if attachment is not None:
        attachment.layer = attachment.rule = None
        _restore_if_idle(module, attachment)


def layer_of(module: nn.Module) -> Layer | None:
    """The layer an attached module is; None if it is not attached."""
    attachment: Attachment | None = module.__dict__.get(_KEY)
    return None if attachment is None else attachment.layer


def _attachment(module: nn.Module) -> Attachment:
    if _KEY not in module.__dict__:
        module.__class__ = _attached(cast(Any, type(module)))
        module.__dict__[_KEY] = Attachment()
    return cast(Attachment, module.__dict__[_KEY])


def _restore_if_idle(module: nn.Module, attachment: Attachment) -> None:
    if attachment.layer is not None or attachment.roots:
        return
    del module.__dict__[_KEY]
    if attachment.replaced is not None:
        module.__dict__["forward"] = attachment.replaced
    base = type(module).__dict__.get("_fngd_base")
    if base is not None:  # else another library has swapped the class after us: without the key, forward is plain
        module.__class__ = base


@cache
def _attached(base: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `base` that attached modules are of."""

    @wraps(base.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        attachment: Attachment | None = self.__dict__.get(_KEY)
        if attachment is None or not torch.is_grad_enabled():
            return base.forward(self, *args, **kwargs)
        rule = attachment.rule if self.training else None
        if attachment.roots:
            compute = partial(base.forward, self) if rule is None else partial(rule, self, attachment.layer)
            return attachment.as_root(attachment, compute, *args, **kwargs)
        if rule is not None:
            return rule(self, attachment.layer, *args, **kwargs)
        return base.forward(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        plain = base.__new__(base)
        plain.__dict__ = {key: value for key, value in self.__dict__.items() if key != _KEY}
        if self.__dict__[_KEY].replaced is not None:
            plain.__dict__["forward"] = self.__dict__[_KEY].replaced
        function, args, *rest = cast(tuple[Any, ...], plain.__reduce_ex__(protocol))
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            # pickle insists that __newobj__ makes an object of self's own class; this makes the same one.
            function, args = copyreg._reconstructor, (base, object, None)  # type: ignore[attr-defined]
        return function, args, *rest

    members = {"forward": forward, "__reduce_ex__": reduce, "_fngd_base": base, "__module__": base.__module__}
    return type(base.__name__, (base,), {**members, **_more_members(base)})


def _more_members(base: type[nn.Module]) -> dict[str, Any]:
    """What only some classes need in the subclass."""
    members: dict[str, Any] = {}
    if callable(training_step := getattr(base, "training_step", None)):
        members["training_step"] = _as_step(training_step)
    if base.__new__ is not object.__new__:  # FSDP's counts the bases to find the original class, of which slices are
        members["__new__"] = lambda _, *args, **kwargs: base(*args, **kwargs)
    return members


def _around(replaced: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    """A forward pass that somebody put on the instance of a root, with what the class's forward does for a root."""

    @wraps(replaced)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return attachment.as_root(attachment, replaced, *args, **kwargs)
        return replaced(*args, **kwargs)

    return forward


def _as_root(attachment: Attachment, compute: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The forward pass of a module that tells its runs when it begins and ends."""
    for run in attachment.roots:
        run.enter(args, kwargs)
    try:
        output = compute(*args, **kwargs)
        for run in attachment.roots:
            run.show(output)
        return output
    finally:
        for run in attachment.roots:
            run.leave()


def _as_step(training_step: Callable[..., Any]) -> Callable[..., Any]:
    """The training step of a module that tells its runs when it begins and ends: it may never call its own forward."""

    @wraps(training_step)
    def step(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        attachment: Attachment | None = self.__dict__.get(_KEY)
        roots = [] if attachment is None or not torch.is_grad_enabled() else attachment.roots
        with ExitStack() as stack:
            for run in roots:
                stack.enter_context(run.step(args, kwargs))
            output = training_step(self, *args, **kwargs)
            for run in roots if output is not None else []:
                run.show(output)
            return output

    return step
