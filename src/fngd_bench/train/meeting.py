"""How the ranks of one attempt find each other in torchrun's store, which remembers the attempts before.

torchrun keeps one store for a job, and torch puts the addresses of its processes there under names that are the same in
every attempt: after a restart a rank may read where a dead one was (github.com/pytorch/pytorch/issues/135712). The
number of the attempt does not help, since each node counts for itself. So rank 0 draws a name for the attempt. Whoever
reads it must know that it is new: each rank sends a word of its own and takes the answer that repeats this word.
This may go when torch keeps attempts apart.
"""

from __future__ import annotations

import time
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

PAUSE = 0.01
"""Seconds between two looks."""


def meet(store: Store, rank: int, size: int) -> Store:
    """The part of a store that belongs to this attempt.

    Args:
        store: What all attempts share.
        rank: The number of this process.
        size: Processes of the attempt.

    Returns:
        The same part for all ranks; nothing is in it yet but who has come.
    """
    here = PrefixStore("fngd", store)
    name = _invite(here, size) if rank == 0 else _accept(here, rank)
    return PrefixStore(name, here)


def _invite(store: Store, size: int) -> str:
    """Answer every rank until it has come."""
    name, awaited = uuid4().hex, set(range(1, size))
    while awaited:
        for rank in tuple(awaited):
            if store.check([f"{name}/{rank}"]):
                awaited.remove(rank)
            elif store.check([f"word/{rank}"]):
                store.set(f"answer/{rank}", f"{store.get(f'word/{rank}').decode()} {name}")
        time.sleep(PAUSE)
    return name


def _accept(store: Store, rank: int) -> str:
    """Wait for the answer to one's own word, and come."""
    word = uuid4().hex
    store.set(f"word/{rank}", word)
    while True:
        repeated, name = store.get(f"answer/{rank}").decode().split()
        if repeated == word:
            store.set(f"{name}/{rank}", "")
            return name
        time.sleep(PAUSE)
