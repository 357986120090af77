"""The learning rate's way."""

import pytest

from fngd_bench.train.schedule import SCHEDULES, factor


def test_steps_fall_to_a_tenth_at_half_and_at_three_quarters():
    assert [round(factor("steps", step, 8), 5) for step in range(8)] == [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]


def test_a_warm_up_climbs_for_a_tenth_and_then_falls_to_nothing():
    values = [factor("warm-up", step, 1000) for step in range(1000)]
    top = values.index(max(values))
    assert 95 <= top <= 105
    assert max(values) == pytest.approx(1, abs=0.01)
    assert values[:top] == sorted(values[:top])
    assert values[top:] == sorted(values[top:], reverse=True)
    assert 0 < values[0] < 0.01
    assert 0 < values[-1] < 0.01


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_step_of_a_schedule_is_without_effect(name):
    assert all(0 < factor(name, step, 7) <= 1 for step in range(7))
