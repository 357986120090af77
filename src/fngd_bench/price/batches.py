"""Synthetic batches of realistic shape: what a step eats when only its price matters."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fngd_bench.models import Images, Tokens
from fngd_bench.models.transformer import PAD


class Batch(NamedTuple):
    """Inputs of the model and the classes its scores are held against."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


def synthetic(inputs: Images | Tokens, batch: int, classes: int, seed: int) -> Batch:
    """Random inputs and targets.

    Args:
        inputs: What the model eats.
        batch: Samples, M.
        classes: Classes of an image, or words of the vocabulary.
        seed: The same for the same batch.

    Returns:
        The batch.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(inputs, Images):
        return _images(inputs, batch, classes, generator)
    return _tokens(inputs, batch, classes, generator)


def _images(inputs: Images, batch: int, classes: int, generator: torch.Generator) -> Batch:
    shape = (batch, inputs.channels, inputs.size, inputs.size)
    images = torch.randn(shape, generator=generator)
    return Batch((images,), torch.randint(classes, (batch,), generator=generator))


def _tokens(inputs: Tokens, batch: int, classes: int, generator: torch.Generator) -> Batch:
    """Sentences without padding; what is to be said next is the target moved on by one word."""
    source = torch.randint(PAD + 1, classes, (batch, inputs.length), generator=generator)
    target = torch.randint(PAD + 1, classes, (batch, inputs.length + 1), generator=generator)
    return Batch((source, target[:, :-1].contiguous()), target[:, 1:].contiguous())


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over samples, and over positions where there are any.

    Args:
        scores: (M, classes) or (M, T, classes).
        targets: (M,) or (M, T).

    Returns:
        The loss.
    """
    return F.cross_entropy(scores.flatten(end_dim=-2), targets.flatten())
