import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlib.kernels.centres import (
    BLOCK,
    FEW,
    find_mean_and_squares,
    move_centres,
    nearest_centres,
    sum_by_label,
    sum_nearest,
)


@st.composite
def problems(draw):
    """Draw points and centres on a coarse lattice, which has many ties and repeated points."""
    n = draw(st.one_of(st.integers(0, 30), st.integers(BLOCK - 9, BLOCK + 9)))
    k, d = draw(st.integers(1, 6)), draw(st.integers(1, FEW + 6))
    step = draw(st.sampled_from([1.0, 0.1, 1e-3, 1e6]))
    numbers = st.integers(-5, 5).map(float)
    offset = draw(st.sampled_from([0.0, 3.0, 1e9]))
    points = draw(arrays(np.float64, (min(n, 30), d), elements=numbers))
    centres = draw(arrays(np.float64, (k, d), elements=numbers))
    return offset + step * np.resize(points, (n, d)), offset + step * centres


def squared(X, centres):
    """Return all squared distances (n, k), summed in the order of the features."""
    total = np.zeros((len(X), len(centres)))
    for x, c in zip(X.T, centres.T, strict=True):
        total += (x[:, None] - c) ** 2
    return total


@given(problems())
def test_the_nearest_centre_and_the_first_in_case_of_ties(problem):
    X, centres = problem
    labels = np.empty(len(X), np.int64)
    inertia = nearest_centres(X, centres, labels)
    distances = squared(X, centres)
    assert labels.tolist() == distances.argmin(axis=1).tolist()
    np.testing.assert_allclose(inertia, distances.min(axis=1).sum(), rtol=1e-14)


@given(problems())
def test_sums_of_the_nearest_centres_have_the_bits_of_two_steps(problem):
    X, centres = problem
    labels = np.empty(len(X), np.int64)
    inertia = nearest_centres(X, centres, labels)
    wanted = np.zeros(centres.shape), np.zeros(len(centres), np.int64)
    sum_by_label(X, labels, *wanted)
    found = np.zeros(centres.shape), np.zeros(len(centres), np.int64)
    largest = abs(X).max(initial=0) + abs(centres).max()
    rounded = sum_nearest(X, None, centres, *found)
    np.testing.assert_allclose(rounded, inertia, rtol=1e-13, atol=1e-30 * len(X) * largest**2)
    for a, b in zip(found, wanted, strict=True):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("scale", [1e-320, 1e-170, 1e-160, 1e-150, 1.0, 1e120, 1e154, 1e200])
def test_rounding_never_decides_between_centres(scale):
    """Centres differ in the last bits; their squares are subnormal, finite or too large."""
    rng = np.random.default_rng(0)
    for d in (FEW, FEW + 1, 20):
        around = rng.normal(size=d)
        centres = scale * (around + 2.0**-50 * rng.integers(-3, 4, (9, d)))
        X = scale * (around + 2.0**-50 * rng.integers(-3, 4, (500, d)))
        X[::3] = scale * rng.normal(size=(167, d))
        labels = np.empty(len(X), np.int64)
        nearest_centres(X, centres, labels)
        with np.errstate(over="ignore"):
            assert labels.tolist() == squared(X, centres).argmin(axis=1).tolist()


@given(problems())
def test_means_and_squares(problem):
    X, _ = problem
    mean, squares = np.empty(X.shape[1]), np.zeros(X.shape[1])
    find_mean_and_squares(X, None, mean, squares)
    wanted = X.mean(axis=0) if len(X) else np.zeros(X.shape[1])
    np.testing.assert_allclose(mean, wanted, rtol=1e-13, atol=1e-16 * abs(X).sum())
    np.testing.assert_allclose(squares, ((X - mean) ** 2).sum(axis=0), rtol=1e-12)


@given(problems(), st.randoms(use_true_random=False))
def test_sums_and_counts(problem, random):
    X, centres = problem
    labels = np.array([random.randrange(len(centres)) for _ in X], np.int64)
    sums, counts = np.zeros(centres.shape), np.zeros(len(centres), np.int64)
    sum_by_label(X, labels, sums, counts)
    assert counts.tolist() == np.bincount(labels, minlength=len(centres)).tolist()
    for c in range(len(centres)):
        np.testing.assert_allclose(sums[c], X[labels == c].sum(axis=0), rtol=1e-13, atol=1e-8)


def test_small_numbers_are_not_lost_between_large_ones():
    """The plain sum is 0, the compensated sum is 2 for every order of the rows."""
    X = np.array([[1.0], [1e100], [1.0], [-1e100]])
    for order in ([0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0]):
        sums, counts = np.zeros((1, 1)), np.zeros(1, np.int64)
        sum_by_label(X[order], np.zeros(4, np.int64), sums, counts)
        assert sums == 2


def test_centres_move_row_by_row():
    """The first point moves a centre, which therefore becomes the nearest of the second point."""
    centres, counts = np.array([[0.0], [10.0]]), np.array([1, 3])
    X = np.array(
        [
            [4.0],  # moves 0, the mean of one point, to (0 * 1 + 4) / 2 = 2
            [5.8],  # is nearer to 2 than to 10, but not nearer to 0: moves 2 to (2 * 2 + 5.8) / 3
            [14.0],  # moves 10, the mean of three points, to (10 * 3 + 14) / 4 = 11
        ]
    )
    labels = np.empty(len(X), np.int64)
    move_centres(X, None, centres, counts, labels)
    assert centres.ravel().tolist() == [(2.0 * 2 + 5.8) / 3, 11.0]
    assert counts.tolist() == [3, 4]
    assert labels.tolist() == [0, 0, 1]


@given(problems())
def test_moved_centres_are_those_of_the_formula(problem):
    """The same as K's formula in NumPy, to the last bit; ties go to the first centre."""
    X, centres = problem
    counts = np.arange(1, len(centres) + 1)
    moved, moved_counts = centres.copy(), counts.copy()
    labels = np.empty(len(X), np.int64)
    move_centres(X, None, moved, moved_counts, labels)
    for i, x in enumerate(X):
        nearest = squared(x[None], centres)[0].argmin()
        centres[nearest] = (centres[nearest] * counts[nearest] + x) / (counts[nearest] + 1)
        counts[nearest] += 1
        assert labels[i] == nearest
    assert moved.tolist() == centres.tolist()
    assert moved_counts.tolist() == counts.tolist()


@given(problems(), st.randoms(use_true_random=False))
def test_integer_weights_count_as_many_equal_points(problem, random):
    X, centres = problem
    weights = np.array([random.randrange(4) for _ in X], float)
    repeated = np.repeat(X, weights.astype(int), axis=0)
    found = np.zeros(centres.shape), np.zeros(len(centres))
    wanted = np.zeros(centres.shape), np.zeros(len(centres), np.int64)
    inertia = sum_nearest(X, weights, centres, *found)
    np.testing.assert_allclose(inertia, sum_nearest(repeated, None, centres, *wanted), rtol=1e-13)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-13, atol=1e-15 * abs(X).sum())
    assert found[1].tolist() == wanted[1].tolist()
    mean, squares = np.empty(X.shape[1]), np.zeros(X.shape[1])
    find_mean_and_squares(X, weights, mean, squares)
    wanted_mean = repeated.mean(axis=0) if len(repeated) else np.zeros(X.shape[1])
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-13, atol=1e-16 * abs(repeated).sum())
    np.testing.assert_allclose(squares, ((repeated - mean) ** 2).sum(axis=0), rtol=1e-12)


def test_a_weighted_point_moves_a_centre_by_its_weight():
    """The point 4 of weight 3 moves 0, of weight 1, to (0 * 1 + 4 * 3) / 4."""
    centres, weights = np.array([[0.0], [10.0]]), np.array([1.0, 1.0])
    labels = np.empty(1, np.int64)
    move_centres(np.array([[4.0]]), np.array([3.0]), centres, weights, labels)
    assert centres.ravel().tolist() == [3.0, 10.0]
    assert weights.tolist() == [4.0, 1.0]
    assert labels.tolist() == [0]
