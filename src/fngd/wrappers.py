"""What may be wrapped around a model: the model itself is inside, and its modules' names do not depend on it."""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Unwrapped(NamedTuple):
    """A model without its wrappers."""

    model: nn.Module
    prefix: str
    """What the wrappers put in front of its modules' names."""

    def bare(self, name: str) -> str:
        """A module's name without what the wrappers put in front of it."""
        return name.removeprefix(self.prefix)


def unwrapped(model: nn.Module) -> Unwrapped:
    """The model inside of DistributedDataParallel and torch.compile, in whatever order they were applied."""
    prefix = ""
    while (key := _wrapped(model)) is not None:
        model, prefix = model.get_submodule(key), f"{prefix}{key}."
    return Unwrapped(model, prefix)


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model, to try something on; of its parts, those that torch.compile has wrapped are plain in it.

    Args:
        model: The model, unwrapped.

    Returns:
        The copy.

    Raises:
        ValueError: If it is sharded, which cannot be copied.
    """
    for module in model.modules():
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            raise ValueError(
                f"{type(module).__name__} is sharded by fully_shard, and a copy is needed, which FSDP does not allow: "
                "ask before fully_shard is called, or on one more model that is built the same way"
            )
    copied = copy.deepcopy(model)
    for module in copied.modules():
        for name, child in module._modules.items():
            module._modules[name] = child if child is None else unwrapped(child).model
    return copied


def _wrapped(model: nn.Module) -> str | None:
    """The name of the module that a wrapper holds; None if the model is none."""
    if isinstance(model, DistributedDataParallel):
        return "module"
    return "_orig_mod" if "_orig_mod" in model._modules else None
