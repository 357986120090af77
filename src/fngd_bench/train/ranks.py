"""What several processes (ranks) that train one model do together; one process alone does none of it.

The workload's batch is that of all ranks: each takes its part of it, gradients are averaged by DistributedDataParallel,
and a step's loss is the mean over the ranks, so that all of them skip it or none. Rank 0 alone writes: the record, the
checkpoints, the terminal.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from fngd_bench.errors import InputError
from fngd_bench.problems.base import generator
from fngd_bench.train import torchrun
from fngd_bench.train.meeting import meet

PATIENCE = timedelta(hours=2)
"""How long a rank waits for another: rank 0's test and checkpoint are in it. A dead one is noticed at once."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""What carries tensors between ranks, by the kind of device that they train on; plain numbers always go by gloo."""


class Ranks(ABC):
    """The processes that train one model."""

    rank: int
    size: int
    backend: str | None
    """Of torch.distributed; None for one process."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def part(self, batch: int) -> slice:
        """Which samples of a batch are this rank's.

        Args:
            batch: Samples of all ranks.

        Returns:
            Their places, one after the other.

        Raises:
            InputError: If the ranks would not have the same number of samples, at least two.
        """
        each, left = divmod(batch, self.size)
        if self.size > 1 and (left or each < 2):
            raise InputError(
                f"batch={batch} must be a multiple of the {self.size} ranks, with two samples or more for each: pass "
                f"--batch {self.size * max(2, each)}, or start another number of ranks"
            )
        return slice(self.rank * each, (self.rank + 1) * each)

    def draw_apart(self, seed: int, step: int) -> None:
        """Let this rank's random numbers, dropout's say, be its own from now on.

        Args:
            seed: The run's.
            step: Steps that are over.
        """
        torch.manual_seed(generator(seed, "rank", self.rank, step).initial_seed())

    @abstractmethod
    def device(self, name: str) -> str:
        """The device of this rank, where the user has said `name`."""

    @abstractmethod
    def wrap(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> nn.Module:
        """The model whose backward pass averages gradients over the ranks.

        Args:
            model: The model.
            loss: Its loss on some batch.
        """

    @abstractmethod
    def mean(self, value: float) -> float:
        """The mean over the ranks, the same to the bit on all of them."""

    @abstractmethod
    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """What at least one rank wishes."""

    @abstractmethod
    def gather(self, own: Any) -> list[Any]:
        """What each rank has, in their order; empty on all but the first."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """What the first rank has."""

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """What is refused inside by one rank ends all of them, and the first says why. No other call goes inside."""


@final
class Alone(Ranks):
    """One process: nothing is sent, nothing is wrapped."""

    rank, size, backend = 0, 1, None

    def device(self, name: str) -> str:
        """The device that the user names."""
        return name

    def wrap(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> nn.Module:  # noqa: ARG002
        """The model itself."""
        return model

    def mean(self, value: float) -> float:
        """The value itself."""
        return value

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """The wishes themselves."""
        return wishes

    def gather(self, own: Any) -> list[Any]:
        """The one value."""
        return [own]

    def share(self, value: Any) -> Any:
        """The value itself."""
        return value

    def together(self) -> AbstractContextManager[None]:
        """Nobody else is to be told."""
        return nullcontext()


@final
class Several(Ranks):
    """The ranks of torch.distributed's process group, which is there already."""

    def __init__(self, backend: str) -> None:
        """Take a place among them.

        Args:
            backend: What the group was made with.
        """
        self.rank, self.size, self.backend = dist.get_rank(), dist.get_world_size(), backend

    def device(self, name: str) -> str:
        """Each rank of a machine takes an accelerator of its own.

        Args:
            name: Such as "cuda".

        Returns:
            Such as "cuda:1".

        Raises:
            InputError: If `name` is one accelerator for all.
        """
        if name == "cpu":
            return name
        if ":" in name:
            kind = name.partition(":")[0]
            raise InputError(f"device={name!r} is one device for {self.size} ranks: pass --device {kind}")
        return f"{name}:{torchrun.local_rank()}"

    def wrap(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> nn.Module:
        """DistributedDataParallel, after a backward pass whose gradients are thrown away.

        It arranges gradients anew after its first backward pass, and in which order three ranks or more are added up
        depends on the arrangement. A resumed run must add up as one that was not interrupted.

        Args:
            model: The model, before any optimizer is attached to it.
            loss: Its loss on some batch.

        Returns:
            The wrapped model.
        """
        wrapped = DistributedDataParallel(model)
        wrapped.eval()  # changes no statistics and draws no random numbers
        loss(wrapped).backward()
        wrapped.zero_grad()
        wrapped.train()
        return wrapped

    def mean(self, value: float) -> float:
        """The mean; not finite if one rank's is not."""
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total) / self.size

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """What at least one rank wishes."""
        found = torch.tensor(wishes, dtype=torch.uint8)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return tuple(map(bool, found.tolist()))

    def gather(self, own: Any) -> list[Any]:
        """What each rank has, in their order; empty on all but the first."""
        everyone: list[Any] = [None] * self.size if self.first else []
        dist.gather_object(own, everyone if self.first else None)
        return everyone

    def share(self, value: Any) -> Any:
        """What the first rank has."""
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """End all ranks if one has refused something: the first says what, and who it was if not everybody.

        Yields:
            Nothing.

        Raises:
            InputError: On the first rank; the others go without a word.
        """
        said: tuple[str, str] | None = None
        try:
            yield
        except InputError as error:
            said = str(error), platform.node()
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, said)
        wrong = [(rank, *words) for rank, words in enumerate(everyone) if words is not None]
        if not wrong:
            return
        if not self.first:
            torchrun.leave()
        rank, text, host = wrong[0]
        raise InputError(text if len(wrong) == self.size else f"rank {rank} on {host}: {text}")


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks that torchrun has started, in one process group; one process alone without torchrun.

    Args:
        device: What the user wants to train on.

    Yields:
        The ranks.

    Raises:
        RuntimeError: As it came.
        SystemExit: If another rank has gone.
    """
    if torchrun.size() == 1:
        yield Alone()
        return
    backend = _backend(device)
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    dist.init_process_group(backend, store=meet(store, rank, size), rank=rank, world_size=size, timeout=PATIENCE)
    try:
        ranks = Several(backend)
        yield ranks
        ranks.any()  # rank 0 may still be reading what others have sent
    except RuntimeError as error:
        if not _from_group(error):
            raise
        raise SystemExit(f"fngd: rank {torchrun.rank()} has lost another rank and ends ({error})") from None
    dist.destroy_process_group()


def _backend(device: str) -> str:
    """The backend for a device."""
    kind = device.partition(":")[0]
    if kind not in BACKENDS:
        torchrun.refuse(f"device={device!r} cannot be used by several ranks: choose {' or '.join(BACKENDS)}")
    missing = [name for pair in BACKENDS[kind].split(",") if not dist.is_backend_available(name := pair.split(":")[-1])]
    if missing:
        torchrun.refuse(f"several ranks on device={device!r} need {missing[0]}, which this torch was built without")
    return BACKENDS[kind]


def _from_group(error: RuntimeError) -> bool:
    """Whether it says that a rank has gone; gloo has no type of error for it."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
