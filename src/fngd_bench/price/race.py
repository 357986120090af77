"""Methods side by side: each with its own copy of a model, all on one batch, one step each in every round.

The order inside a round is drawn anew each time: a fixed one would give each method its own neighbours in cache and
heap, worth a percent or two. Warm-up rounds are not timed; in them the sharing methods derive their coefficients.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fngd_bench import clock, models, optimizers
from fngd_bench.models import Images
from fngd_bench.price.batches import Batch, loss, synthetic
from fngd_bench.price.methods import METHODS, Method, check_sharing
from fngd_bench.price.neighbours import Watch
from fngd_bench.price.record import StepSettings

Advance = Callable[[str], None]
"""Told what was done, each time a piece of work is done."""


class Start(NamedTuple):
    """What all methods start from."""

    model: nn.Module
    batch: Batch


def start(wanted: StepSettings) -> Start:
    """The model and the batch that the settings name; seeds torch's generator, so call it where that is restored.

    Args:
        wanted: Resolved settings.

    Returns:
        The same weights and samples for the same settings.
    """
    torch.manual_seed(wanted.seed)
    inputs = models.entry(wanted.model).inputs
    if isinstance(inputs, Images) and wanted.image_size is not None:
        inputs = replace(inputs, size=wanted.image_size)
    batch = synthetic(inputs, wanted.batch, wanted.classes, wanted.seed)
    return Start(models.build(wanted.model, wanted.classes), batch)


class Racer:
    """One method with its own model and optimizer."""

    def __init__(self, method: Method, model: nn.Module, batch: Batch, *, compiled: bool = False) -> None:
        """Make the optimizer.

        Args:
            method: The method.
            model: Its own model.
            batch: The batch that every step eats.
            compiled: Whether the model is compiled, at the first step.
        """
        self.method = method
        self.model = model
        self.batch = batch
        self.optimizer = method.make(model)
        self.forward: Callable[..., Any] = torch.compile(model) if compiled else model

    def step(self) -> None:
        """One whole training step."""
        self.optimizer.zero_grad()
        error = loss(self.forward(*self.batch.inputs), self.batch.targets)
        optimizers.backward(error, self.model, second_order=self.method.second_order)
        self.optimizer.step()

    def coefficients(self) -> dict[str, Any] | None:
        """The derived coefficients of a method that shares, as a checkpoint holds them; None for other methods."""
        return self.optimizer.state_dict()["natural_gradient"] if self.method.shares else None

    def take(self, coefficients: dict[str, Any] | None) -> None:
        """Start from coefficients derived elsewhere.

        Args:
            coefficients: What `coefficients` returned; None leaves all as it is.
        """
        if coefficients is not None:
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "natural_gradient": coefficients})

    def check_phase(self) -> None:
        """Refuse to time a method that still derives when it is to share."""
        if self.method.shares:
            check_sharing(self.method.name, self.optimizer)


def racers(methods: Sequence[Method], begin: Start, *, compiled: bool = False) -> list[Racer]:
    """A racer for each method, all from the same weights.

    Args:
        methods: The methods.
        begin: Model and batch; the model itself is left alone.
        compiled: Whether each one's model is compiled.

    Returns:
        The racers, in the methods' order.
    """
    return [Racer(method, copy.deepcopy(begin.model), begin.batch, compiled=compiled) for method in methods]


def room_for_graphs(wanted: StepSettings) -> AbstractContextManager[Any]:
    """Where all racers' graphs are kept: they share the model's code, and torch gives up on code of many graphs.

    Args:
        wanted: Resolved settings.

    Returns:
        What to enter.
    """
    if not wanted.compiled:
        return nullcontext()
    from torch._dynamo import config

    room: AbstractContextManager[Any] = config.patch(recompile_limit=8 * len(wanted.methods))
    return room


def interleave(runners: Sequence[Racer], wanted: StepSettings, advance: Advance, watch: Watch) -> list[list[float]]:
    """Run the warm-up and the timed rounds, again where the host disturbed them; whole periods of all methods.

    Args:
        runners: The racers.
        wanted: Resolved settings.
        advance: Told of each round when it is done.
        watch: Says which rounds count.

    Returns:
        Seconds of each step: a list for each racer.
    """
    order = np.random.default_rng(wanted.seed)
    for number in range(wanted.warmup):
        _round(runners, order)
        advance(f"warm-up {number + 1}/{wanted.warmup}")
    for runner in runners:
        runner.check_phase()
    period = math.lcm(*(METHODS[name].period for name in wanted.methods))

    def block(before: int) -> list[list[float]]:
        rounds = []
        for number in range(before * period, (before + 1) * period):
            rounds.append(_round(runners, order))
            if number < wanted.steps:  # those that are run again are not reported twice
                advance(f"round {number + 1}/{wanted.steps}")
        return rounds

    kept = watch.calm(block, wanted.steps // period, period)
    return [list(times) for times in zip(*(seconds for rounds in kept for seconds in rounds), strict=True)]


def _round(runners: Sequence[Racer], order: np.random.Generator) -> list[float]:
    """One step of each racer, in an order of its own; seconds in the racers' order."""
    elapsed = [0.0] * len(runners)
    for column in order.permutation(len(runners)).tolist():
        elapsed[column] = clock.seconds(runners[column].step)
    gc.collect()
    return elapsed
