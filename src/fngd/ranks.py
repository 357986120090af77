"""What several processes that train one model agree on: the coefficients, once, when deriving ends.

While coefficients are derived, each process (rank) has those of its own batches. Gradients are averaged as they always
are; the histories differ. At the switch to sharing they are averaged too, so that from then on every rank's state is
the same and a checkpoint of one of them is a checkpoint of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fngd.history import History


class Ranks:
    """The processes that train one model together."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Remember the group.

        Args:
            group: The process group; None for the default one, if torch.distributed has been initialised by the time
                it is needed.
        """
        self._group = group

    @property
    def several(self) -> bool:
        """Whether there is anybody to agree with."""
        return dist.is_available() and dist.is_initialized() and dist.get_world_size(self._group) > 1

    def average(self, histories: Mapping[str, History], device: torch.device) -> None:
        """Make the histories of all ranks the same; every rank must call it.

        c̃ becomes the mean over the ranks, weighted by the batches in each. As within a rank, the longest wins: a rank
        whose c̃ is shorter, or that has none, does not enter it, but takes it over. All other numbers become means over
        the ranks, so that averaging again later counts nothing twice.

        What is sent does not depend on what happened on this rank: first the names and lengths of all ranks, then one
        vector of all numbers, of a size that follows from them.

        Args:
            histories: The layers' histories, by name; changed in place.
            device: Where the vector is put: one that the group's backend can send from.

        Raises:
            ValueError: If the ranks have different layers, on all ranks alike.
        """
        mine = {name: _length(history) for name, history in histories.items()}
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        _check_same_layers(everyone, mine)
        lengths = [max(one[name] for one in everyone) for name in histories]
        rows = [_row(history, length[0], device) for history, length in zip(histories.values(), lengths, strict=True)]
        flat = torch.cat(rows)
        dist.all_reduce(flat, group=self._group)
        for history, (_, dtype), row in zip(
            histories.values(), lengths, flat.split([len(row) for row in rows]), strict=True
        ):
            _take(history, row, getattr(torch, dtype), len(everyone))

    def __deepcopy__(self, memo: object) -> Ranks:
        """A copy of a model's optimizer belongs to the same processes."""
        return self


def _length(history: History) -> tuple[int, str]:
    """How long c̃ is, 0 if there is none, and of which type."""
    if history.mean is None:
        return 0, "float32"
    return len(history.mean), str(history.mean.dtype).removeprefix("torch.")


def _check_same_layers(everyone: list[dict[str, Any]], mine: dict[str, Any]) -> None:
    odd = [(rank, name) for rank, other in enumerate(everyone) for name in sorted(other.keys() ^ mine.keys())]
    if odd:
        raise ValueError(
            f"the ranks of the process group have different layers: {odd[0][1]!r} is only here or only on rank "
            f"{odd[0][0]}. Coefficients are averaged over ranks that train the same model: pass their group as "
            "process_group=…; where every rank trains a model of its own, torch.distributed.new_subgroups(1)[0]"
        )


def _row(history: History, length: int, device: torch.device) -> Tensor:
    """A history as numbers that may be added: whether it enters c̃, its batches in c̃, their sum, and the rest."""
    mean, count = torch.zeros(length, dtype=torch.float64, device=device), torch.zeros((), device=device)
    if history.mean is not None and len(history.mean) == length:
        mean, count = history.mean.to(mean), history.count.to(device)
    heads = [count > 0, count, history.batches, history.skipped]
    head = torch.stack([number.to(mean) for number in heads])
    return torch.cat([head, history.totals.to(mean), history.counted.to(mean), count * mean])


def _take(history: History, row: Tensor, dtype: torch.dtype, ranks: int) -> None:
    """The averaged history out of the sum of all ranks' rows."""
    measures = len(history.totals)
    head, totals, counted, summed = row.split([4, measures, measures, len(row) - 4 - 2 * measures])
    entered, count, batches, skipped = head.unbind()
    history.totals, history.counted = totals / ranks, counted / ranks
    history.batches, history.skipped = (batches / ranks).float(), (skipped / ranks).float()
    if len(summed):
        place = row.device if history.mean is None else history.mean.device
        history.mean, history.count = (summed / count).to(place, dtype), (count / entered).to(place, dtype)
