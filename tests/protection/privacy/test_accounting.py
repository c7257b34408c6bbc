"""Conversions of the guarantee of a run into the losses of its requests."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedlib.core.messages import exact, shown
from fedlib.protection.privacy import (
    Privacy,
    Sensitivity,
    accounting,
    epsilon_of,
    noise_scale,
    privacy_per_request,
    rho_of,
    split_guarantee,
)


def epsilon_by_formula(rho, delta):
    """Return epsilon after Canonne, Kamath and Steinke (2020), proposition 7, by a search."""

    def epsilon(log_excess):
        alpha = 1 + math.exp(log_excess)
        return (
            alpha * rho + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
        )

    return minimize_scalar(epsilon, bounds=(-5, 15), method="bounded").fun


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_epsilon_is_that_of_the_formula(rho, delta):
    assert epsilon_of(rho, delta) == pytest.approx(epsilon_by_formula(rho, delta), rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_rho_is_the_largest_with_the_guarantee(epsilon):
    rho = rho_of(epsilon, 1e-6)
    assert epsilon_of(rho, 1e-6) <= epsilon < epsilon_of(rho * 1.0001, 1e-6)


def test_the_losses_of_the_requests_never_exceed_the_guarantee():
    for n in (1, 3, 7, 10, 49, 1000):
        pure, concentrated = (privacy_per_request(0.7, delta, n) for delta in (0.0, 1e-6))
        assert exact(pure.epsilon) * n <= Fraction(7, 10)
        assert pure.epsilon * n == pytest.approx(0.7)
        assert exact(concentrated.rho) * n <= exact(rho_of(0.7, 1e-6))


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 2.3])
def test_the_decimal_of_a_guarantee_is_never_exceeded(epsilon):
    """Half of the floats are above their decimals, such as 0.1, and the others below, as 0.3."""
    for delta in (1e-6, 0.3e-5):
        converted = epsilon_of(rho_of(epsilon, delta), delta)
        assert 0.9999 * epsilon < converted
        assert Fraction(converted) <= exact(epsilon)
    for sensitivity in (Sensitivity(1.0, 1.0, 1), Sensitivity(3.0, 1.7, 9)):
        l1, l2 = (Fraction(math.ldexp(one, -sensitivity.digits)) for one in sensitivity.units)
        assert l1 / Fraction(noise_scale(sensitivity, Privacy(epsilon=epsilon))) <= exact(epsilon)
        scale = Fraction(noise_scale(sensitivity, Privacy(rho=epsilon)))
        assert l2**2 / (2 * scale**2) <= exact(epsilon)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.7, 1 / 3, 0.0])
def test_the_parts_of_a_guarantee_add_up_to_the_whole(fraction):
    for epsilon, delta in ((0.3, 1e-6), (0.7, 0.0), (1.1, 3e-7)):
        first, rest = split_guarantee(epsilon, delta, fraction)
        for name, whole in (("epsilon", epsilon), ("delta", delta)):
            total = exact(first[name]) + exact(rest[name])
            assert total <= exact(whole)
            assert float(total) == pytest.approx(whole, rel=1e-15)
            assert first[name] == pytest.approx(fraction * whole)


def test_a_loss_is_shown_rounded_up():
    losses = 0.1, 3 * exact(0.1), 0.1 + 0.2, 1e-7, 12345678, 0.0, math.inf
    assert list(map(shown, losses)) == [
        *("0.1", "0.3", "0.300001", "1e-07", "1.23457e+07", "0", "inf"),
    ]


def test_limits():
    assert epsilon_of(0.0, 0.0) == 0.0
    assert epsilon_of(0.1, 0.0) == math.inf
    assert epsilon_of(1e6, 1e-6) == math.inf


@pytest.mark.parametrize("epsilon", [1e5, 1e6])
def test_a_very_large_epsilon_means_almost_no_noise(epsilon):
    assert privacy_per_request(epsilon, 1e-6, 4) == Privacy(rho=accounting.MAX_RHO / 4)
    assert privacy_per_request(epsilon, 0.0, 4) == Privacy(epsilon=epsilon / 4)


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0, 0.0, "epsilon must be a positive number up to 1e\\+06, got 0"),
        (-1.0, 0.0, "epsilon must be a positive number up to 1e\\+06, got -1.0"),
        (1e6 + 1, 1e-6, "epsilon must be a positive number up to 1e\\+06, got 1000001.0"),
        (10**400, 0.0, "epsilon must be a positive number up to 1e\\+06, got 1000"),
        (math.inf, 0.0, "epsilon must be a positive number up to 1e\\+06, got inf"),
        (math.nan, 0.0, "epsilon must be a positive number up to 1e\\+06, got nan"),
        ("1", 0.0, "epsilon must be a positive number up to 1e\\+06, got '1'"),
        (True, 0.0, "epsilon must be a positive number up to 1e\\+06, got True"),
        (1.0, 1.0, "delta must be at least 0 and below 1, got 1.0"),
        (1.0, -1e-9, "delta must be at least 0 and below 1, got -1e-09"),
        (1.0, None, "delta must be at least 0 and below 1, got None"),
        (5e-324, 0.0, "epsilon must be larger for 3 requests, got 5e-324"),
    ],
)
def test_what_is_no_guarantee_is_refused(epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        privacy_per_request(epsilon, delta, 3)


def test_without_opendp_the_error_names_what_to_install(monkeypatch):
    accounting.opendp.cache_clear()
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ValueError, match='pip install "fedlib-study\\[privacy\\]"'):
        privacy_per_request(np.float64(1.0), 0.0, 3)


@pytest.mark.parametrize("delta", [1e-6, 0.5])
def test_a_loss_that_a_server_chooses_is_converted_at_once(delta):
    """Also where a float has few digits: the least floats, and those whose square is no float."""
    rhos = [5e-324, 1e-320, 1e-300, 1e-200, 1e-100, 1e-3, 1e3, 1e160, 1e300, Fraction(10) ** 400]
    converted = [epsilon_of(rho, delta) for rho in rhos]
    assert converted == sorted(converted)
    assert 0 <= converted[0] < 1e-6 < 100 < converted[-4]
    assert converted[-1] == np.inf
