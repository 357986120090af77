"""What ranks agree on when deriving ends, whatever has happened on each of them."""

import math

import torch

from fngd.history import History
from fngd.ranks import Ranks, _row


def history(c, count, batches=None, skipped=0.0):
    if c is None:
        return History(batches=torch.tensor(0.0), skipped=torch.tensor(skipped))
    total = float(count if batches is None else batches)
    return History(
        mean=torch.tensor(c),
        count=torch.tensor(float(count)),
        totals=torch.full((5,), 2.0 * total, dtype=torch.float64),
        counted=torch.full((5,), total, dtype=torch.float64),
        batches=torch.tensor(total),
        skipped=torch.tensor(skipped),
    )


def averaged(rank, *histories):
    mine = {f"layer {index}": one[rank] for index, one in enumerate(histories)}
    Ranks().average(mine, torch.device("cpu"))
    return [vars(one) for one in mine.values()]


def same(first, second):
    return all(
        a is b is None or (a is not None and a.dtype == b.dtype and torch.equal(a, b))
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def test_what_is_sent_lies_on_the_device_that_sends_it_with_and_without_coefficients():
    rows = [_row(one, 2, torch.device("meta")) for one in (history([1.0, 0.5], 1), history([1.0], 1), history(None, 0))]
    assert {row.device.type for row in rows} == {"meta"}
    assert len({len(row) for row in rows}) == 1


def test_ranks_count_as_many_times_as_they_have_batches(processes):
    first, second = processes.run(2, averaged, [history([1.0, 0.5], 1), history([0.0, 0.5], 3)])
    assert same(first, second)
    assert first[0]["mean"].tolist() == [0.25, 0.5]
    assert first[0]["count"] == first[0]["batches"] == 2.0


def test_the_longest_coefficients_win_and_a_rank_without_any_takes_them_over(processes):
    by_rank = [history([9.0], 7), history([1.0, 0.5], 2), history(None, 0, skipped=4.0), history([0.0, 0.5], 2)]
    nobody = [history(None, 0)] * 4
    everyone = processes.run(4, averaged, by_rank, nobody)
    assert all(same(everyone[0], other) for other in everyone)
    longest, none = everyone[0]
    assert longest["mean"].tolist() == [0.5, 0.5]
    assert longest["count"] == 2.0
    assert longest["skipped"] == 1.0
    assert none["mean"] is None


def averaged_twice(rank, by_rank):
    one = by_rank[rank]
    for _ in range(2):
        Ranks().average({"layer": one}, torch.device("cpu"))
    return [vars(one)]


def test_averaging_again_changes_nothing(processes):
    by_rank = [history([1.0, 0.5], 1, skipped=1.0), history([0.0, 0.5], 3)]
    once = processes.run(2, averaged, by_rank)
    twice = processes.run(2, averaged_twice, by_rank)
    assert same(once[0], twice[1])
    assert math.ceil(twice[0][0]["skipped"]) == 1


def refused(rank):
    try:
        Ranks().average({"stem" if rank == 2 else "head": History()}, torch.device("cpu"))
    except ValueError as error:
        return str(error)
    return ""


def test_ranks_that_train_different_models_are_told_so_on_every_rank(processes):
    for rank, message in enumerate(processes.run(4, refused)):
        assert ("rank 2" if rank != 2 else "rank 0") in message
        assert "process_group" in message
