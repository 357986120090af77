"""Cells: means with spreads, times to a target, paired differences."""

import math

import pytest
from scipy import stats

from fngd_bench.report.numbers import Reach, counted, quantity, spread, unit, value_range
from fngd_bench.report.paired import difference, inside, quantile


def test_a_spread_is_the_deviation_of_a_sample():
    found = spread([0.90, 0.92, 0.94])
    assert found.mean == pytest.approx(0.92)
    assert found.deviation == pytest.approx(0.02)
    assert found.text(unit("accuracy")) == "92.00 ± 2.00 % (n = 3)"
    assert found.text(unit("BLEU")) == "0.92 ± 0.02 (n = 3)"


def test_few_runs_are_marked_and_one_has_no_deviation():
    assert spread([0.9]).text(unit("accuracy")) == "90.00 % (n = 1 < 3)"
    assert spread([0.9, 0.9]).text(unit("accuracy")) == "90.00 ± 0.00 % (n = 2 < 3)"
    assert spread([]) is None
    assert counted(3) == "n = 3"


@pytest.mark.parametrize(
    ("values", "reached", "median", "text"),
    [
        ((1.0, 2.0, 3.5), 3, 2.0, "2 s (3 of 3)"),
        ((1.0, 2.5, math.inf), 2, 2.5, "2.5 s (2 of 3)"),
        ((1.0, math.inf, math.inf), 1, math.inf, "∞ (1 of 3)"),
        ((1.0, math.inf), 1, math.inf, "∞ (1 of 2 < 3)"),
        ((1234.5,), 1, 1234.5, "1,234.5 s (1 of 1 < 3)"),
        ((math.inf,) * 4, 0, math.inf, "∞ (0 of 4)"),
    ],
)
def test_a_miss_is_infinite_and_stays_in_the_median(values, reached, median, text):
    found = Reach(values)
    assert (found.reached, found.median) == (reached, median)
    assert found.text(" s") == text


def test_a_range_holds_median_and_extremes():
    found = value_range([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.n) == (2.0, 1.0, 3.0, 3)
    assert value_range([]) is None


def test_infinity_has_no_unit():
    assert quantity(math.inf, " s") == "∞"
    assert quantity(12345.678, " s", 2) == "12,345.68 s"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30])
def test_students_distribution_is_scipys(freedom):
    for t in (0.0, 0.3, 1.0, 4.0):
        assert inside(t, freedom) == pytest.approx(1 - 2 * stats.t.sf(t, freedom), abs=1e-12)
    assert quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_a_paired_difference_has_scipys_interval():
    values, others = [0.97, 0.95, 0.96], [0.96, 0.955, 0.94]
    found = difference(values, others)
    expected = stats.ttest_rel(values, others).confidence_interval(0.95)
    assert found.mean == pytest.approx(0.025 / 3)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert not found.shown


def test_a_difference_is_shown_when_its_interval_leaves_out_zero():
    assert difference([1.0, 1.1, 1.2], [0.0, 0.11, 0.19]).shown
    assert difference([0.0, 0.11, 0.19], [1.0, 1.1, 1.2]).shown


def test_one_pair_has_no_interval():
    found = difference([1.0], [0.5])
    assert (found.mean, found.low, found.high, found.n) == (0.5, -math.inf, math.inf, 1)
    assert not found.shown
