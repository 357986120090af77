"""`fngd demo`: a small network on scikit-learn's digits, trained with SGD and with FNGD side by side.

Both start from the same weights, see the same batches in the same order and follow the same schedule; only the
optimizer differs. They take turns step by step, so that times can be compared (`clock`). Evaluation is not timed.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

import fngd
from fngd_bench import clock, models
from fngd_bench.errors import InputError

Advance = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What both optimizers are given."""

    epochs: int = 8
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 2:
            raise InputError(
                f"epochs={self.epochs} must be at least 2: FNGD derives in the first and shares afterwards"
            )
        if self.seed < 0:
            raise InputError(f"seed={self.seed} must be 0 or above")


class Digits(NamedTuple):
    """8×8 images (N, 1, 8, 8) of variance 1, and their classes (N,)."""

    train_images: Tensor
    train_classes: Tensor
    test_images: Tensor
    test_classes: Tensor


def digits(seed: int, test: int = 360) -> Digits:
    """scikit-learn's digits, which come with the package, in a split drawn from the seed.

    Args:
        seed: Of the split.
        test: Images held back for the test; 1,797 less these are trained on.

    Returns:
        The data.
    """
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    classes = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    train, held_back = order[test:], order[:test]
    images = (images - images[train].mean()) / images[train].std()
    return Digits(images[train], classes[train], images[held_back], classes[held_back])


class EpochResult(NamedTuple):
    """One epoch of one optimizer."""

    loss: float
    """Mean over the epoch's training batches."""
    accuracy: float
    """On the test images, after the epoch."""
    step_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """Both runs, epoch by epoch, and what FNGD measured of its coefficients."""

    sgd: tuple[EpochResult, ...]
    natural: tuple[EpochResult, ...]
    statistics: dict[str, fngd.LayerStatistics]


class Contestant:
    """A model with its optimizer and schedule."""

    def __init__(self, model: nn.Module, optimizer: SGD, steps: int) -> None:
        """Put a cosine schedule on the optimizer.

        Args:
            model: The model.
            optimizer: The optimizer of its parameters.
            steps: Steps of the whole run.
        """
        self.model = model
        self.optimizer = optimizer
        self.schedule = CosineAnnealingLR(optimizer, steps)
        self.losses: list[Tensor] = []
        self.seconds: list[float] = []

    def step(self, data: Digits, chosen: Tensor) -> Tensor:
        """One training step on the chosen images; its loss is returned where it was computed, not read."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(data.train_images[chosen]), data.train_classes[chosen])
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.detach())
        return loss

    def end_epoch(self, data: Digits) -> EpochResult:
        """Evaluate, and start a new page."""
        self.model.eval()
        with torch.no_grad():
            right = self.model(data.test_images).argmax(1) == data.test_classes
        self.model.train()
        loss = float(torch.stack(self.losses).mean())
        result = EpochResult(loss, float(right.float().mean()), tuple(self.seconds))
        self.losses, self.seconds = [], []
        return result


def run(plan: Plan, advance: Advance) -> Outcome:
    """Train both.

    Args:
        plan: What both are given.
        advance: Told of each epoch when it is done.

    Returns:
        Both runs.
    """
    data = digits(plan.seed)
    batches = len(data.train_classes) // plan.batch
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        first, second = _contestants(plan, batches)
    shuffle = torch.Generator().manual_seed(plan.seed)
    pages = []
    for number in range(plan.epochs):
        order = torch.randperm(len(data.train_classes), generator=shuffle)
        _epoch((first, second), data, torch.split(order[: batches * plan.batch], plan.batch))
        pages.append((first.end_epoch(data), second.end_epoch(data)))
        advance(f"epoch {number + 1}")
    natural = second.optimizer
    assert isinstance(natural, fngd.FNGD)
    return Outcome(tuple(page[0] for page in pages), tuple(page[1] for page in pages), natural.statistics())


def _contestants(plan: Plan, batches: int) -> tuple[Contestant, Contestant]:
    model = models.build("small-cnn")
    twin = copy.deepcopy(model)
    sgd = SGD(model.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay, fused=True)
    natural = fngd.FNGD(twin, lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay, derive_steps=batches)
    return Contestant(model, sgd, plan.epochs * batches), Contestant(twin, natural, plan.epochs * batches)


def _epoch(contestants: Sequence[Contestant], data: Digits, batches: Sequence[Tensor]) -> None:
    """Every batch once; who goes first changes from batch to batch."""
    for number, chosen in enumerate(batches):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            contestant.seconds.append(clock.seconds(partial(contestant.step, data, chosen)))


def median_ms(results: Sequence[EpochResult]) -> float:
    """Median milliseconds of a step over some epochs.

    Args:
        results: The epochs.

    Returns:
        Milliseconds.
    """
    return 1e3 * statistics.median(second for result in results for second in result.step_seconds)
