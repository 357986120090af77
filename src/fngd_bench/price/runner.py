"""One kind of step, with its own model and optimizer, and what its optimizer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fngd_bench import optimizers
from fngd_bench.price.batches import Batch
from fngd_bench.price.kinds import Kind
from fngd_bench.price.methods import DERIVE_STEPS, check_sharing


class Runner:
    """One kind of step of one method on a model of its own."""

    def __init__(self, kind: Kind, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Make the optimizer.

        Args:
            kind: The kind of step.
            model: Its own model.
            loss: Of outputs and targets.
        """
        self.kind, self.model, self.loss = kind, model, loss
        self.optimizer = kind.make(model)

    def step(self, batch: Batch) -> None:
        """One whole training step.

        Args:
            batch: What it eats.
        """
        self.optimizer.zero_grad()
        for x in batch.inputs:
            x.grad = None  # otherwise each method would add its input gradient to the last one's
        error = self.loss(self.model(*batch.inputs), batch.targets)
        optimizers.backward(error, self.model, second_order=self.kind.second_order)
        self.optimizer.step()

    def derive(self, batches: Sequence[Batch]) -> None:
        """Take the steps that derive, where the kind of step is one that shares.

        Args:
            batches: What they eat, in turn.
        """
        for number in range(DERIVE_STEPS if self.kind.shares else 0):
            self.step(batches[number % len(batches)])

    def share_at_once(self, samples: int) -> None:
        """Skip the deriving: coefficients of one, where the kind of step is one that shares.

        Args:
            samples: Of a batch, M.
        """
        if not self.kind.shares:
            return
        state = self.optimizer.state_dict()
        known = {"mean": torch.ones(samples), "count": torch.ones(())}
        layers = {name: {**history, **known} for name, history in state["natural_gradient"]["layers"].items()}
        self.optimizer.load_state_dict({**state, "natural_gradient": {"step": DERIVE_STEPS, "layers": layers}})

    def check_phase(self) -> None:
        """Refuse to time a method that still derives when it is to share."""
        if self.kind.shares:
            check_sharing(self.kind.method, self.optimizer)

    @property
    def state_bytes(self) -> int:
        """What the optimizer keeps between two steps."""
        return tensor_bytes(self.optimizer.state_dict())


def tensor_bytes(value: Any) -> int:
    """The bytes of all tensors inside of dictionaries and lists; one that is there twice counts once.

    Args:
        value: Such as a `state_dict`.

    Returns:
        Their sum.
    """
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in _tensors(value)}.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case Mapping():
            for inside in value.values():
                yield from _tensors(inside)
        case str():
            return
        case Sequence():
            for inside in value:
                yield from _tensors(inside)
