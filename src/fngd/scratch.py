"""Memory that is used again, since fresh memory costs more than the arithmetic done in it, and results that are.

A buffer is known by its name, dtype and device and grows to the largest size asked for. What lies in it is valid until
the next taker of the same name: "rows" are gathered for a Gram matrix or weighted for the gradient that follows, never
both; "read" and "sent" are the input and the output gradient in a route's own order, and U lies in "U". Between two
sharing steps large buffers are given back (`trim`), unless deriving is to come again soon: a forward pass that piles up
its activations should not find them held.

Products of an input with itself are kept for inputs that several layers read: queries, keys and values, or what every
layer of a decoder looks back at. They are kept until the step is over, or the input is gone.

On a GPU torch runs the backward pass in a thread of its own: every thread has its own memory, and whoever ends a step
ends it for all of them.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

KEPT_BYTES = 8 << 20
"""What a buffer may hold on to between two sharing steps; what such steps scale in blocks fits into it."""
MOST_VIEWS = 1024
"""Shapes to keep in mind: inputs may come in any number of them."""

MOST_INPUTS = 64
"""Inputs to keep in mind: those of a deriving step that are still alive."""

Key = tuple[str, torch.dtype, torch.device]
Products = dict[int, Tensor]
"""Products of some rows of an input with others, by the first row."""


@dataclass
class Memory:
    """What one thread holds."""

    buffers: dict[Key, Tensor] = field(default_factory=dict)
    views: dict[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], Tensor] = field(default_factory=dict)
    inputs: dict[Hashable, tuple[weakref.ref[Tensor], Products | None]] = field(default_factory=dict)


class Scratch:
    """Reusable buffers, each thread's own."""

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._by_thread: dict[int, Memory] = {}

    @property
    def memory(self) -> Memory:
        """What this thread holds."""
        thread = threading.get_ident()
        found = self._by_thread.get(thread)
        if found is None:
            found = self._by_thread[thread] = Memory()
        return found

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor whose content is whatever was there last.

        Args:
            name: Of the buffer.
            shape: Of the tensor.
            dtype: Of the tensor.
            device: Of the tensor.

        Returns:
            The tensor.
        """
        return self._buffer((name, dtype, device), math.prod(shape)).view(*shape)

    def like(self, t: Tensor) -> Tensor:
        """A tensor of t's shape, dtype and memory format whose content is whatever was there last."""
        key, views = (t.shape, t.stride(), t.dtype, t.device), self.memory.views
        view = views.get(key)
        if view is None:
            if len(views) >= MOST_VIEWS:
                views.clear()
            buffer = self._buffer(("rows", t.dtype, t.device), t.numel())
            view = views[key] = buffer.as_strided(t.shape, torch.empty_like(t, device="meta").stride())
        return view

    def product(self, t: Tensor, c: Tensor) -> Tensor:
        """The product t · c in t's dtype, valid until the next product. A compiled graph plans its own memory."""
        if torch.compiler.is_compiling():
            return (t * c).to(t.dtype)
        return torch.mul(t, c, out=self.like(t))

    def products(self, x: Tensor, of: Hashable) -> Products | None:
        """Where the products of an input with itself are kept, as long as it lives and is not changed.

        Args:
            x: The input.
            of: What distinguishes these products from others of the same input.

        Returns:
            None when an input is met for the first time: most are never met again. From the second time on, the
            products so far, to read and to add to.
        """
        key, inputs = (id(x), x._version, of), self.memory.inputs
        if key not in inputs:
            if len(inputs) >= MOST_INPUTS:
                inputs.clear()
            inputs[key] = weakref.ref(x, lambda _: inputs.pop(key, None)), None
            return None
        met, kept = inputs[key]
        if kept is None:
            kept = {}
            inputs[key] = met, kept
        return kept

    def forget(self) -> None:
        """The step is over: no layer will read its inputs again."""
        for memory in self._by_thread.values():
            memory.inputs.clear()

    def trim(self) -> None:
        """Give everything back if any buffer is large."""
        held = (buffer.nbytes for memory in self._by_thread.values() for buffer in memory.buffers.values())
        if max(held, default=0) > KEPT_BYTES:
            self._by_thread.clear()

    def _buffer(self, key: Key, entries: int) -> Tensor:
        memory = self.memory
        buffer = memory.buffers.get(key)
        if buffer is None or buffer.numel() < entries:
            memory.buffers.pop(key, None)
            memory.views.clear()
            buffer = memory.buffers[key] = torch.empty(entries, dtype=key[1], device=key[2])
        return buffer[:entries]
