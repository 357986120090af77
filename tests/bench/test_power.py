"""The fit of a power law finds the exponent that made the values, and how well it is known."""

import math

import numpy as np
import pytest

from fngd_bench.price.power import Power, fit

SIZES = (16, 32, 64, 128, 256, 512)


def law(exponent, offset=0.0, factor=1.0, sizes=SIZES):
    return np.array([offset + factor * size**exponent for size in sizes])


def relative(values, error):
    return error * np.abs(values)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, -0.5])
@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
def test_an_exact_power_law_is_found_exactly(exponent, factor):
    values = law(exponent, factor=factor)
    found = fit(SIZES, values, relative(values, 0.01))
    assert found.exponent == pytest.approx(exponent, abs=1e-6)
    assert found.offset == 0
    assert [found.at(size) for size in SIZES] == pytest.approx(list(values), rel=1e-6)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_a_constant_beside_the_power_does_not_fool_it(exponent, share):
    grown = law(exponent)
    values = grown + share / (1 - share) * grown[-1]
    found = fit(SIZES, values, relative(values, 1e-5))
    assert found.exponent == pytest.approx(exponent, abs=1e-3)
    assert found.fixed(SIZES[-1]) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(("exponent", "share"), [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 0.2), (2.0, 0.05)])
def test_the_standard_error_tells_how_far_off_a_noisy_fit_is(exponent, share):
    draw = np.random.default_rng(0)
    exact = law(exponent) + share / (1 - share) * law(exponent)[-1]
    off = []
    for _ in range(200):
        found = fit(SIZES, exact * (1 + 0.02 * draw.standard_normal(len(SIZES))), relative(exact, 0.02))
        off.append((found.exponent - exponent) / found.error)
    # A fit that chooses its law is a little surer than it should be; 95 % would be within 2.
    assert np.mean(np.abs(off) < 2) > 0.85
    assert abs(np.median(off)) < 0.5


def test_noise_that_the_errors_do_not_tell_of_widens_the_interval():
    values = law(1.0) * (1 + 0.1 * np.array([1, -1, 1, -1, 1, -1]))
    assert fit(SIZES, values, relative(values, 1e-4)).error > 0.02
    assert fit(SIZES, law(1.0), relative(values, 1e-4)).error < 1e-3


def test_a_point_whose_rounds_happened_to_agree_does_not_pull_the_law_to_itself():
    values = law(2.0, offset=law(2.0)[1])
    values[-2] *= 2
    errors = relative(values, 0.05)
    errors[-2] *= 0.01
    found = fit(SIZES, values, errors)
    assert found.exponent == pytest.approx(2.0, abs=2 * found.error)
    assert all(0.5 < found.at(size) / value < 2 for size, value in zip(SIZES, values, strict=True))


def test_what_is_lost_in_noise_has_no_exponent():
    values = 1e-3 * np.array([1, -1, 1, -1, 1, -1])
    assert fit(SIZES, values, np.full(6, 1e-3)).error > 0.5
    assert math.isinf(fit(SIZES, -np.ones(6), np.ones(6)).error)


def test_three_sizes_take_the_pure_law():
    values = law(1.0, offset=10.0, sizes=SIZES[:3])
    found = fit(SIZES[:3], values, relative(values, 1e-6))
    assert found.offset == 0
    assert 0 < found.exponent < 1


def test_the_fixed_share_of_a_pure_law_is_zero():
    assert Power(1.0, 0.0, 0.0, 2.0).fixed(8) == 0
    assert Power(1.0, 0.0, 16.0, 2.0).fixed(8) == 0.5


@pytest.mark.parametrize(
    ("sizes", "values", "errors"),
    [
        ((1, 2), (1, 2), (1, 1)),
        ((1, 2, 2), (1, 2, 2), (1, 1, 1)),
        ((0, 1, 2), (1, 2, 3), (1, 1, 1)),
        ((1, 2, 3), (1, 2), (1, 1, 1)),
        ((1, 2, 3), (1, 2, 3), (1, 0, 1)),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes, values, errors):
    with pytest.raises(ValueError, match="three different sizes"):
        fit(sizes, values, errors)
