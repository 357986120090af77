"""The stopwatch and the ratios made of what it says."""

import gc
import itertools
import math
import statistics

import pytest

from fngd_bench import clock
from fngd_bench.price.neighbours import Reading, Watch, other_cores, ticks
from fngd_bench.price.ratios import Ratio, paired_ratio, rank
from fngd_bench.price.surroundings import Surroundings


def test_collection_is_off_inside_a_section_and_back_afterwards():
    seen = []
    taken = clock.seconds(lambda: seen.append(gc.isenabled()))
    assert seen == [False]
    assert gc.isenabled()
    assert taken >= 0


def test_collection_comes_back_after_an_error_and_stays_off_if_it_was_off():
    with pytest.raises(ZeroDivisionError):
        clock.seconds(lambda: 1 / 0)
    assert gc.isenabled()
    gc.disable()
    try:
        clock.seconds(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_accelerators_are_waited_for_at_both_borders(monkeypatch):
    events = []
    monkeypatch.setattr(clock, "synchronise", lambda: events.append("wait"))
    clock.seconds(lambda: events.append("work"))
    assert events == ["wait", "work", "wait"]


def test_a_round_that_was_slow_for_both_leaves_the_ratio_alone():
    reference = [1.0, 1.0, 50.0, 1.0, 1.0, 3.0, 1.0]
    values = [1.5 * t for t in reference]
    assert paired_ratio(values, reference) == Ratio(1.5, 1.5, 1.5, 7)


def test_the_ratio_is_the_median_of_the_ratios_not_the_ratio_of_the_medians():
    values, reference = [2.0, 9.0, 4.0], [1.0, 3.0, 4.0]
    assert paired_ratio(values, reference) == Ratio(2.0, 1.0, 3.0, 3)


def test_a_periodic_cost_is_in_the_ratio():
    values, reference = [10.0, 1.0, 1.0, 1.0, 1.0] * 4, [1.0] * 20
    assert paired_ratio(values, reference).median == 1.0
    assert paired_ratio(values, reference, period=5) == Ratio(2.8, 2.8, 2.8, 4)


def test_a_process_counts_once_however_many_rounds_it_has():
    values = [1.0, 1.0, 9.0, 2.0, 2.0, 2.0, 3.0, 0.1, 3.0]
    assert paired_ratio(values, [1.0] * 9, processes=3) == Ratio(2.0, 1.0, 3.0, 3)
    assert paired_ratio(values, [1.0] * 9, period=3, processes=3) == Ratio(6.1 / 3, 2.0, 11.0 / 3, 3)
    assert paired_ratio(values, [1.0] * 9).n == 9
    with pytest.raises(ValueError, match="for each process"):
        paired_ratio(values, [1.0] * 9, processes=2)


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interval_is_the_narrowest_that_covers_the_median(n):
    # Oracle: each value falls below the true median like a coin; count the throws where [k-th, n+1−k-th] holds it.
    def coverage(k):
        coins = itertools.product((0, 1), repeat=n)
        return sum(k <= sum(coin) <= n - k for coin in coins) / 2**n

    k = rank(n)
    assert 1 <= k <= math.ceil(n / 2)
    assert n < 6 or coverage(k) >= 0.95
    assert n < 6 or coverage(k + 1) < 0.95


def test_the_interval_of_sixty_is_the_textbook_one():
    values = [float(value) for value in range(1, 61)]
    ratio = paired_ratio(values, [1.0] * 60)
    assert (ratio.low, ratio.high) == (22.0, 39.0)
    assert ratio.median == statistics.median(values)


@pytest.mark.parametrize(("values", "reference", "period"), [([], [], 1), ([1.0], [1.0, 2.0], 1), ([1.0], [1.0], 2)])
def test_what_cannot_be_paired_is_refused(values, reference, period):
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_ratio(values, reference, period)


def test_other_processes_are_what_this_one_did_not_use():
    before, after = Reading(10.0, busy=100.0, own=5.0, stolen=0.0), Reading(20.0, busy=118.0, own=14.0, stolen=9.0)
    assert other_cores(before, after) == pytest.approx(0.9)
    assert other_cores(before, before._replace(wall=11.0, own=5.2)) == 0.0  # ticks are coarse: never below nothing
    assert other_cores(None, after) is None


def test_busy_ticks_leave_out_idling_and_what_was_stolen_and_count_guests_once():
    assert ticks("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 9 9 9 9") == (1 + 2 + 4 + 8 + 16, 32)


def watched(takes, count):
    """What is kept of runs from which a host takes these shares of two cores, and what is said of it."""
    wall, stolen = 0.0, 0.0

    def run(number):
        nonlocal wall, stolen
        wall, stolen = wall + 1, stolen + 2 * takes[number]
        return number

    watch = Watch(lambda: Reading(wall=wall, busy=0.0, own=0.0, stolen=stolen), cores=2)
    return watch.calm(run, count), watch.seen()


def test_runs_that_the_host_left_alone_are_kept_and_others_run_again():
    kept, seen = watched([0, 0.01, 0.015], 3)
    assert kept == [0, 1, 2]
    assert (seen.dropped, seen.stolen) == (0, pytest.approx(0.025 / 3))
    kept, seen = watched([0, 0.3, 0.01, 0.015, 0.015], 4)
    assert kept == [0, 2, 3, 4]
    assert (seen.dropped, seen.stolen) == (1, pytest.approx(0.01))


def test_where_the_host_never_rests_the_runs_it_disturbed_least_are_kept_in_their_order():
    kept, seen = watched([0.5, 0.1, 0.3, 0.2, 0.01, 0.4], 3)
    assert kept == [1, 3, 4]
    assert (seen.dropped, seen.stolen) == (3, pytest.approx(0.31 / 3))


def test_where_the_system_counts_nothing_every_run_is_kept():
    watch = Watch(lambda: None)
    assert watch.calm(lambda number: number, 3) == [0, 1, 2]
    assert watch.seen() == Surroundings()


def test_this_machine_can_be_watched():
    watch = Watch()
    assert len(watch.calm(lambda number: number, 1)) == 1
    assert watch.seen().dropped in (0, 1)


def test_few_rounds_are_marked():
    assert Ratio(1.0, 1.0, 1.0, 2).text() == "1.000 [1.000, 1.000] (n = 2)"
    assert Ratio(1.2345, 1.1, 1.3, 9).text(2) == "1.23 [1.10, 1.30]"
