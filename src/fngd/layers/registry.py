"""The kinds of layer that can be preconditioned: one rule each, found by the module's class.

A rule is the module's forward pass, written with `layer.linear` and `layer.convolution`:

    @fngd.register_layer(MyLinear)
    def my_linear(module, layer, x):
        return layer.linear(x, module.weight, module.bias)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
"""A rule keeps its own type when it is registered."""
COMPILED = "_orig_mod"
"""Under this name torch.compile's wrapper holds the module it wraps."""


class Kind(NamedTuple):
    """A registered kind of layer."""

    rule: Rule
    parameters: tuple[str, ...]
    """The names of the module's parameters that the rule weights; those a module lacks are passed over."""
    replaces: tuple[str, ...]
    """The methods that the rule stands in for: a subclass that overrides one needs a rule of its own."""


_kinds: dict[type[nn.Module] | str, Kind] = {}


def register_layer(
    kind: type[nn.Module] | str,
    *,
    parameters: tuple[str, ...] = ("weight", "bias"),
    replaces: tuple[str, ...] = ("forward",),
) -> Callable[[R], R]:
    """Add a kind of layer: the decorated function becomes its forward pass.

    The rule is called as `rule(module, layer, *args, **kwargs)` in place of `module.forward(*args, **kwargs)` while
    the module trains. It must return what the module's own forward returns, with `layer.linear` or
    `layer.convolution` wherever a parameter named in `parameters` is used.

    Args:
        kind: The module class, or its full dotted name if importing it here is not wanted.
        parameters: Names of the parameters that share a vector of coefficients.
        replaces: Methods that the rule stands in for; a subclass that overrides one of them is not covered.

    Returns:
        A decorator that gives the function back unchanged.

    Raises:
        TypeError: If `kind` is neither a module class nor a dotted name.

    Example:
        >>> import torch, fngd
        >>> class Doubled(torch.nn.Linear):
        ...     def forward(self, x):
        ...         return torch.nn.functional.linear(2 * x, self.weight, self.bias)
        >>> @fngd.register_layer(Doubled)
        ... def doubled(module, layer, x):
        ...     return layer.linear(2 * x, module.weight, module.bias)
    """
    is_class = isinstance(kind, type) and issubclass(kind, nn.Module)
    if not is_class and not (isinstance(kind, str) and "." in kind):
        raise TypeError(f"kind={kind!r} must be a torch.nn.Module class or the full dotted name of one")

    def register(rule: R) -> R:
        _kinds[kind] = Kind(rule, parameters, replaces)
        return rule

    return register


def kinds() -> dict[type[nn.Module] | str, Kind]:
    """All registered kinds."""
    return dict(_kinds)


class Place(NamedTuple):
    """Where a parameter is found: what lies there may be exchanged, as FSDP does before and after each use."""

    module: nn.Module
    key: str

    @property
    def parameter(self) -> nn.Parameter | None:
        """What lies there now."""
        return self.module._parameters.get(self.key)


class Finding(NamedTuple):
    """A module that holds parameters of its own, and whether it can be preconditioned."""

    name: str
    module: nn.Module
    kind: Kind | None
    places: tuple[Place, ...]
    """The parameters that would be weighted."""
    reason: str
    """Why not; empty if `kind` is there."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What lies at the places now, each parameter once."""
        return parameters_at(self.places)


def parameters_at(places: Iterable[Place]) -> list[nn.Parameter]:
    """What lies at the places now, each parameter once."""
    return list(dict.fromkeys(parameter for place in places if (parameter := place.parameter) is not None))


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The model's modules by the names they have when nothing is wrapped by torch.compile."""
    return {plain_name(name): module for name, module in model.named_modules()}


def plain_name(name: str) -> str:
    """A module's or a parameter's name without the part that torch.compile's wrapper adds."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def survey(model: nn.Module, exclude: Collection[str] = ()) -> list[Finding]:
    """Every module with parameters of its own, in the model's order.

    Args:
        model: The model.
        exclude: Names of modules to leave alone, with everything below them.

    Returns:
        A finding for each module.

    Raises:
        ValueError: If a name in `exclude` is not in the model.
    """
    modules = named_modules(model)
    exclude = [plain_name(name) for name in ((exclude,) if isinstance(exclude, str) else exclude)]
    for name in exclude:
        if name not in modules:
            raise ValueError(f"exclude={name!r} names no module of the model; names are those of model.named_modules()")
    owners = {name: module for name, module in modules.items() if any(True for _ in module.parameters(recurse=False))}
    return [_find(name, module, exclude) for name, module in owners.items()]


def _find(name: str, module: nn.Module, exclude: Collection[str]) -> Finding:
    if any(name == outer or name.startswith(f"{outer}.") for outer in exclude):
        return Finding(name, module, None, (), "excluded")
    kind, reason = _kind_of(getattr(type(module), "_fngd_base", type(module)))
    if kind is not None and "forward" in vars(module):
        kind, reason = None, "its forward was replaced on the instance"
    if kind is None:
        return Finding(name, module, None, (), reason)
    held = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    computed = [key for key in kind.parameters if key not in held and getattr(module, key, None) is not None]
    if computed:
        return Finding(name, module, None, (), f"{computed[0]} is computed (parametrized), not a parameter")
    places = tuple(Place(module, key) for key in kind.parameters if key in held)
    parameters = parameters_at(places)
    if any(is_lazy(parameter) for parameter in parameters):
        return Finding(name, module, None, (), "lazy: run one forward pass before you attach")
    if not all(parameter.is_floating_point() for parameter in parameters):
        return Finding(name, module, None, (), f"{parameters[0].dtype} is not real floating point")
    return Finding(name, module, kind, places, "")


def _kind_of(cls: type[nn.Module]) -> tuple[Kind | None, str]:
    """The rule for a class: its own, or that of the nearest base class whose forward it has not overridden."""
    for base in cls.__mro__:
        kind = _kinds.get(base) or _kinds.get(f"{base.__module__}.{base.__qualname__}")
        if kind is None:
            continue
        own = [method for method in kind.replaces if getattr(cls, method) is not getattr(base, method)]
        if not own:
            return kind, ""
        return None, f"{cls.__name__} overrides the {own[0]} of {base.__name__}: add a rule with fngd.register_layer"
    return None, f"no rule for {cls.__name__}"


def tied(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings in groups: modules that share a parameter, if only through others, are in one."""
    groups: list[list[Finding]] = []
    for finding in findings:
        mine = {id(parameter) for parameter in finding.parameters}
        joined = [group for group in groups if any(id(p) in mine for other in group for p in other.parameters)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(other for group in joined for other in group), finding])
    return groups
