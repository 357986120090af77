"""What the layers of one attached model share: the phase, the batch at hand, the forward pass under way.

A sample is what enters the model: inside the model's own forward pass, its first input says how many there are, and
all uses of a layer belong together. A layer called from outside of it is a batch of its own, unless the model has a
`training_step`, as Lightning's have: what is called inside of one belongs to the step's batch. Activation checkpointing
runs parts of the forward pass again during the backward pass; the batch size is then that of the latest forward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fngd.history import History, Report, settle
from fngd.nodes import NO_BACKWARD, Notes, current_backward
from fngd.plain import Truth, all_of
from fngd.planner import Budget, at_most, share_of
from fngd.policies import Policy
from fngd.scratch import Scratch
from fngd.settings import Settings

Open = dict[object, tuple[Tensor, Notes | None]]
"""Layers used in a pass, each with the token its parameters hang on and the notes on its uses, if not in a graph."""

SOON = 32
"""Steps within which deriving is to come again if its memory is to be kept: page faults cost it a part of a percent."""
LATE = 16
"""Reports of each layer, on average, that enter the histories together, if nobody asks before."""

TWO_THREADS = (
    "fngd: the model is in a forward pass in another thread, and a preconditioned model takes one batch at a time. For "
    "several devices use DistributedDataParallel, one process for each, in place of DataParallel; for several threads "
    "give each a model and an optimizer of its own. Under torch.no_grad() any number of threads may evaluate it"
)


@dataclass
class Run:
    """The state of one attached model between and during its forward passes."""

    settings: Settings
    policy: Policy
    deriving: bool
    batch: int | None = None
    """Samples in the batch of the model's forward pass or training step under way; None outside of one."""
    scratch: Scratch = field(default_factory=Scratch)
    watch: Callable[[str, Tensor], None] | None = None
    """Told the name and the Gram matrix, divided by its norm, of each layer that derives."""
    look: Callable[[Any], None] | None = None
    """Shown what the model returns, as long as somebody has yet to find something in it."""
    entered: bool = False
    """Whether a forward pass or a training step of the model has begun since the last optimizer step."""
    used: set[object] | None = None
    """Heads that the forward pass under way has used; None outside of one."""
    traced: bool = False
    """Whether torch.compile makes a graph of the whole forward pass under way."""
    layers: list[Any] = field(default_factory=list)
    """All layers of the model."""
    reports: list[tuple[History, Report]] = field(default_factory=list)
    """What layers have reported of their latest batches and is yet to enter their histories."""
    doubts: list[Truth] = field(default_factory=list)
    """Whether the batches were valid that layers have reported since somebody asked."""
    strayed: bool = False
    """Whether a layer has derived outside of any forward pass of the model."""
    keeps: bool = False
    """Whether sharing steps keep a deriving step's memory for the next one."""
    _held: int = 0
    """Bytes of inputs and outputs of layers that derive, since the pass began."""
    _budget: Budget | None = None
    """What was said of that pass's budget."""
    _depth: int = 0
    """Calls of the model's forward that are under way."""
    _thread: int | None = None
    """The thread they are in; None in a graph that is being made."""
    _latest: int | None = None
    """`batch` of the latest forward pass."""
    _stepping: bool = False
    """Whether a training step that is a method of the model is under way."""
    _step_batch: int | None = None
    """Samples in the batch of that training step; None outside of one."""
    _open: Open = field(default_factory=dict)

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model starts; a model that calls itself is still in the same pass."""
        self._check_thread()
        self._depth += 1
        if self._depth == 1:
            self._begin(args, kwargs)

    def _check_thread(self) -> None:
        """What is known of a pass is known for one pass at a time; a graph that is being made has no thread."""
        here = None if torch.compiler.is_dynamo_compiling() else threading.get_ident()
        if self._depth == 0:
            self._thread = here
        elif here != self._thread and here is not None and self._thread is not None:
            raise RuntimeError(TWO_THREADS)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.entered = True
        self.batch = self._latest = batch_size((*args, kwargs), self.settings.batch_dim)
        if self.deriving:
            self._open, self.used = {}, set()
            self._held, self._budget = 0, None
            self.traced = torch.compiler.is_dynamo_compiling()
            for layer in () if self.traced else self.layers:
                layer.place = ""

    @property
    def inside(self) -> bool:
        """Whether a forward pass or a training step of the model is under way."""
        return self._depth > 0 or self._stepping

    @contextmanager
    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """A training step that is a method of the model; the model's forward pass inside of it still counts for itself.

        Args:
            args: What the step is called with.
            kwargs: Likewise, by name.

        Yields:
            Nothing.
        """
        self._begin(args, kwargs)
        self._stepping, self._step_batch = True, self.batch
        try:
            yield
        finally:
            self._stepping = self.traced = False
            self.batch = self._step_batch = self.used = None

    def show(self, output: Any) -> None:
        """The model's forward pass, or the training step around it, has come to its output."""
        if self.look is not None and self._depth <= 1:
            self.look(output)

    def leave(self) -> None:
        """A forward pass of the model is over."""
        self._depth -= 1
        if self._depth == 0:
            self.batch, self.used = self._step_batch, None
            if self.traced:  # nobody outside of the graph may see its tokens
                self._open, self.traced = {}, False

    def note(self, history: History, report: Report) -> None:
        """A layer reports of its batch."""
        self.reports.append((history, report))
        self.doubts.append(report.valid)
        if len(self.reports) >= LATE * len(self.layers):
            self.settle()

    def settle(self) -> None:
        """Let what layers have reported enter their histories."""
        reports, self.reports = self.reports, []
        if reports:
            self.doubts = [all_of(self.doubts)]
            settle(reports, self.policy.weight)

    def all_valid(self) -> bool:
        """Whether all batches were valid that layers have reported since the last time: one answer to wait for."""
        doubts, self.doubts = self.doubts, []
        return bool(all_of(doubts))

    def end(self) -> None:
        """An optimizer step is over: what was known of its batch does not hold for the next."""
        self._latest, self._open, self.entered = None, {}, False
        self._held, self._budget = 0, None
        self.scratch.forget()
        if not self.deriving and not self.keeps:
            self.scratch.trim()

    def hold(self, x: Tensor, output: Tensor) -> None:
        """A layer that derives has taken and returned these."""
        self._held += x.nbytes + output.nbytes

    @property
    def budget(self) -> Budget:
        """Scratch memory that one Gram matrix of the latest pass may hold: the user's number, or a share of the rest.

        A weight comes with its gradient and its momentum. Nobody counts what is inside of a compiled graph, nor the
        rest of a network whose head alone derives.
        """
        if self._budget is None:
            self._budget = self._share() if self.settings.gram_budget is None else at_most(self.settings.gram_budget)
        return self._budget

    def _share(self) -> Budget:
        if not self._held:
            return share_of(0)
        return share_of(self._held + 3 * sum(p.nbytes for layer in self.layers for p in layer.parameters))

    def prepare(self, step: int) -> bool:
        """Get ready for step number `step`.

        Args:
            step: The step's number.

        Returns:
            Whether it is the first to share what has been derived.
        """
        was_deriving, self.deriving = self.deriving, self.policy.derives(step)
        first = was_deriving and not self.deriving
        if first:
            self.keeps = any(self.policy.derives(step + ahead) for ahead in range(1, SOON))
        return first

    @property
    def at_hand(self) -> int | None:
        """Samples in the batch at hand; None if a layer is called from outside of the model.

        A part that runs outside of a forward pass may be run again by a checkpoint. A compiled graph cannot see
        whether a backward pass is under way: there it is always taken for that.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._latest
        batch = self.batch
        return batch if batch is not None or current_backward() == NO_BACKWARD else self._latest

    def open(self) -> Open:
        """The layers whose uses belong together with a use that is made now."""
        return {} if self.outside else self._open

    @property
    def outside(self) -> bool:
        """Whether a use that is made now belongs to no pass of the model, a part that is run again included."""
        return not self.inside and current_backward() == NO_BACKWARD


def batch_size(inputs: Any, dim: int) -> int | None:
    """How many samples there are in what a model is called with.

    The first tensor says it. Inputs by name come in any order: among them, one of size 1, such as positions that are
    the same for all samples, says it only if there is no other.

    Args:
        inputs: Tensors in tuples, lists and mappings.
        dim: The dimension that counts the samples; tensors that lack it say nothing.

    Returns:
        The number; None if no tensor says it.
    """
    if isinstance(inputs, Tensor):
        return inputs.shape[dim] if inputs.dim() > dim else None
    if isinstance(inputs, Mapping):
        sizes = [size for value in inputs.values() if (size := batch_size(value, dim)) is not None]
        return next((size for size in sizes if size != 1), sizes[0] if sizes else None)
    if isinstance(inputs, tuple | list):
        return next((size for value in inputs if (size := batch_size(value, dim)) is not None), None)
    return None
