"""`Problem`: the one interface between the loop and what it trains.

A batch is a function of the run's seed, the epoch and the step, and of nothing else: whoever knows these three numbers
has the same samples, cropped and flipped the same way. A run can therefore be resumed anywhere, no method can disturb
another's data by drawing random numbers, and several processes that take a part each have one batch together.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fngd_bench.errors import InputError

WHOLE = slice(None)
"""Every sample of a batch."""


class Batch(NamedTuple):
    """Inputs of the model and what its scores are held against."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    weight: float = 1.0
    """How much the mean loss of a part counts in that of the whole batch; 1 on average over the parts."""


class Score(NamedTuple):
    """What a test says."""

    loss: float
    metric: float


class Problem(ABC):
    """A model, its training batches, its loss, its test."""

    metric: str
    """What `Score.metric` is."""

    def __init__(self, model: nn.Module, samples: int, batch: int, seed: int) -> None:
        """Check that there is a batch at all.

        Args:
            model: The model, with fresh weights.
            samples: Training samples.
            batch: Samples of a batch, M; what is left over at the end of an epoch is left out.
            seed: Of the order and of all that is drawn for a batch.

        Raises:
            InputError: If the samples do not fill one batch.
        """
        if not 1 <= batch <= samples:
            raise InputError(f"batch={batch} must be between 1 and the {samples} training samples")
        self.model = model
        self.samples = samples
        self.batch_size = batch
        self.seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return self.samples // self.batch_size

    def batch(self, epoch: int, step: int, part: slice = WHOLE) -> Batch:
        """Batch number `step` of an epoch, both counted from 0, or a part of it."""
        chosen = _order(self.seed, epoch, self.samples)[step * self.batch_size : (step + 1) * self.batch_size]
        batch = self.prepare(chosen, generator(self.seed, "batch", epoch, step), part)
        return batch._replace(inputs=tuple(map(self.here, batch.inputs)), targets=self.here(batch.targets))

    def here(self, t: Tensor) -> Tensor:
        """The tensor where the model is."""
        return t.to(next(self.model.parameters()).device)

    @abstractmethod
    def prepare(self, chosen: Tensor, random: torch.Generator, part: slice) -> Batch:
        """Some of the chosen training samples as a batch.

        Args:
            chosen: The numbers of all samples of the batch, (M,).
            random: The batch's own random numbers, the same for all its parts.
            part: Which of them are wanted.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""

    @abstractmethod
    def evaluate(self) -> Score:
        """The test; the model is in evaluation mode and without gradients meanwhile."""


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Random numbers for one purpose, independent of those for any other.

    Args:
        seed: The run's.
        purpose: What they are for.

    Returns:
        A generator of its own.
    """
    text = "/".join(map(str, (seed, *purpose)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, samples: int) -> Tensor:
    """The order of an epoch."""
    return torch.randperm(samples, generator=generator(seed, "order", epoch))
