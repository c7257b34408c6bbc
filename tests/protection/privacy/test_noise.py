"""Noise: its distribution, its scale, and what the sums must be to which it is added."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedlib.core.messages import MessageError
from fedlib.protection.privacy import Privacy, Sensitivity, add_noise, noise, noise_scale, quantise
from fedlib.protection.privacy.accounting import gaussian_rho, laplace_epsilon, shares_rho
from fedlib.testing import seeded_noise

ONE_COUNT = Sensitivity(l1=1.0, l2=1.0, n_entries=1)


def gaussian_weights(x, scale):
    return np.exp(-(x.astype(float) ** 2) / (2 * scale**2))


def laplace_weights(x, scale):
    return np.exp(-np.abs(x) / scale)


# The distribution --------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("scale", [3, 20])
@pytest.mark.parametrize("gaussian", [True, False])
def test_the_noise_has_the_stated_distribution(gaussian, scale, seeded):
    values = np.full(20_000, 7)
    with seeded_noise(0) if seeded else nullcontext():
        drawn = noise.draw(values, scale, gaussian=gaussian) - values
    x = np.arange(-40 * scale, 40 * scale + 1)
    weights = gaussian_weights(x, scale) if gaussian else laplace_weights(x, scale)
    if seeded:  # rounded floats; the difference is below 1 % of a standard deviation of 20
        check_moments(drawn, x, weights)
        return
    expected = weights / weights.sum() * len(values)
    common = expected >= 10
    observed = np.array([(drawn == one).sum() for one in x[common]])
    observed = np.append(observed, len(values) - observed.sum())
    expected = np.append(expected[common], len(values) - expected[common].sum())
    assert chisquare(observed, expected).pvalue > 1e-9  # without a seed


def check_moments(drawn, x, weights):
    deviation = np.sqrt((weights * x**2).sum() / weights.sum())
    assert drawn.std() == pytest.approx(deviation, rel=0.03)
    assert abs(drawn.mean()) < 5 * deviation / np.sqrt(len(drawn))


@pytest.mark.parametrize("gaussian", [True, False])
def test_the_largest_scale_does_not_overflow(gaussian):
    values = np.full(2000, 2**53 - 1)
    drawn = noise.draw(values, noise.MAX_SCALE, gaussian=gaussian) - values
    assert 0.9 < np.abs(drawn).max() / 2**40 < 40
    assert abs(np.sign(drawn).sum()) < 400


def test_no_values_have_no_noise():
    assert add_noise(np.zeros((0, 3)), ONE_COUNT, Privacy(rho=0.1)).shape == (0, 3)


# The scale ---------------------------------------------------------------------------------------


def test_a_toy_by_hand():
    """Two counts of a row that adds at most 3 in the L1 norm: Laplace noise of scale 3 / 0.5 = 6.

    Its variance is 2 * 6**2, and the reply is the count plus the noise, in units of 2**-19.
    """
    sensitivity = Sensitivity(l1=3.0, l2=2.0, n_entries=2)
    assert sensitivity.digits == 19  # l2 is in [2, 4), so a unit is 2 * 2**-20
    assert noise_scale(sensitivity, Privacy(epsilon=0.5)) == pytest.approx(6.0, rel=1e-5)
    with seeded_noise(1):
        noisy = add_noise(np.full((200, 50), 7), sensitivity, Privacy(epsilon=0.5))
    assert noisy.shape == (200, 50)
    assert noisy.mean() == pytest.approx(7.0, abs=0.5)
    assert noisy.var() == pytest.approx(72.0, rel=0.1)
    np.testing.assert_array_equal(noisy * 2**19, np.rint(noisy * 2**19))


@settings(max_examples=25)
@given(
    l2=st.floats(1e-6, 1e6),
    n_entries=st.integers(1, 1000),
    rho=st.floats(1e-4, 10),
    n_shares=st.integers(1, 20),
)
def test_the_noise_suffices_for_the_loss(l2, n_entries, rho, n_shares):
    sensitivity = Sensitivity(l2, l2, n_entries)
    scale = noise_scale(sensitivity, Privacy(rho=rho), n_shares, n_values=10**6)
    unit, rounded = 2.0**-sensitivity.digits, sensitivity.units[1]
    assert l2 / 2**20 / 2 <= unit <= l2 / 2**20 * 2
    if n_shares == 1:
        assert gaussian_rho(rounded, scale / unit) <= rho
    else:
        assert shares_rho(rounded, scale / unit, n_shares, 10**6) <= rho
    ideal = rounded * unit / np.sqrt(2 * rho * n_shares)
    assert ideal <= scale * (1 + 1e-12)
    assert scale <= ideal + 65 * unit  # not more than needed, but for whole units
    pure = noise_scale(sensitivity, Privacy(epsilon=rho))
    assert laplace_epsilon(sensitivity.units[0], pure / unit) <= rho


def test_shares_of_coarse_noise_lose_more_than_one_noise():
    """Theorem 1 of Kairouz et al. by hand: tau = 10 exp(-pi**2 / 4) for two shares of scale 0.5."""
    tau = 10 * np.exp(-(np.pi**2) / 4)
    assert shares_rho(1.0, 0.5, 2, 3) == pytest.approx((1 / 0.5 + tau * 3 / 2) / 2)
    assert shares_rho(1.0, 64.0, 2, 10**6) == gaussian_rho(1.0, 64 * np.sqrt(2))


# The values --------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.randoms())
def test_sums_of_rounded_rows_are_exact(rows, random):
    rounded = quantise(np.array(rows), ONE_COUNT)
    assert np.abs(rounded - rows).max() <= 2.0**-21
    total = rounded.sum()
    shuffled = rounded.tolist()
    random.shuffle(shuffled)
    assert sum(shuffled) == total
    assert total - rounded[0] == rounded[1:].sum()  # the change by one row is that row


@pytest.mark.parametrize(
    ("values", "privacy", "options", "message"),
    [
        ([0.1], Privacy(rho=0.1), {}, "values must be sums of rows from quantise"),
        ([1.0], Privacy(epsilon=1.0), {"n_shares": 3}, "needs delta > 0, got delta=0"),
        ([1.0], Privacy(rho=1e-30), {}, "epsilon must be larger: rho=1e-30 .* needs noise of more"),
    ],
)
def test_invalid_values_and_losses_are_refused(values, privacy, options, message):
    with pytest.raises(ValueError, match=message):
        add_noise(np.array(values), ONE_COUNT, privacy, **options)


def test_a_value_beyond_2_53_units_is_clipped():
    """An error would disclose, without noise, that the sum is so large."""
    largest = 2.0 ** (53 - ONE_COUNT.digits)
    noisy = add_noise(np.array([2.0 * largest, -(2.0**60)]), ONE_COUNT, Privacy(rho=0.1))
    assert (np.abs(noisy) < largest + 1000).all()
    assert (np.abs(noisy) > largest - 1000).all()


def test_noise_is_not_the_same_twice():
    first, second = (add_noise(np.zeros(4), ONE_COUNT, Privacy(rho=0.1)) for _ in range(2))
    assert (first != second).any()
    with seeded_noise(0):
        third, fourth = (add_noise(np.zeros(4), ONE_COUNT, Privacy(rho=0.1)) for _ in range(2))
    assert (third != fourth).any()


@pytest.mark.parametrize("losses", [(0.0, 0.0), (0.1, 0.1), (-1.0, 0.1)])
def test_a_privacy_part_has_one_loss(losses):
    with pytest.raises(MessageError, match="Privacy must have either epsilon or rho above 0, got"):
        Privacy(*losses) if min(losses) >= 0 else Privacy(0.0, 0.0)
