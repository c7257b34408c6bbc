"""Choosing representatives: both ways, compared with their definitions; and k-means."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.cluster import KMeans

from fedlib.kernels.representatives import cover_greedily, cover_in_order, move_to_centroids


def distances(X, Y):
    """Return all distances, rounded as in the kernels."""
    total = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        total += (x[:, None] - y) ** 2
    return np.sqrt(total)


@st.composite
def problems(draw, max_features=3, max_points=40):
    """Draw points on a lattice, with many ties and equal points, and a radius."""
    n, d = draw(st.integers(0, max_points)), draw(st.integers(1, max_features))
    width = {1: 30, 2: 6, 3: 3}[d]
    X = draw(hnp.arrays(np.float64, (n, d), elements=st.integers(-width, width).map(float)))
    return X, draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0, 8.0]))


@given(problems(), st.data())
def test_cover_in_order(problem, data):
    """Each candidate that is not covered is chosen, so none is near another and all are covered."""
    X, eps = problem
    candidates = np.array(data.draw(st.permutations(range(len(X)))), np.int64)
    near = distances(X, X) <= eps
    chosen, owner, reach = cover_in_order(X, candidates, eps, len(X))
    assert (near[np.ix_(chosen, chosen)] == np.eye(len(chosen), dtype=bool)).all()
    assert near[:, chosen].any(axis=1).all()
    expected = []
    for i in candidates:
        if not near[i, expected].any():
            expected.append(i)
    assert chosen.tolist() == expected
    assert owner.tolist() == near[:, chosen].argmax(axis=1).tolist() if len(X) else not owner.size
    furthest = np.where(near, distances(X, X), 0)[chosen]
    np.testing.assert_array_equal(reach, furthest.max(axis=1, initial=0))
    maximum = data.draw(st.integers(0, len(X)))
    first, some_owner, _ = cover_in_order(X, candidates, eps, maximum)
    assert first.tolist() == expected[:maximum]
    assert some_owner.tolist() == np.where(owner < len(first), owner, -1).tolist()


def test_only_candidates_are_chosen():
    """The point in the middle would cover all, but it is not a candidate."""
    X = np.array([[0.0], [1.0], [2.0]])
    chosen, owner, reach = cover_in_order(X, np.array([2, 0]), 1.0, 3)
    assert chosen.tolist() == [2, 0]
    assert owner.tolist() == [1, 0, 0]
    assert reach.tolist() == [1.0, 1.0]


def static_rep(X, eps):
    """Return (n, n) how much each point adds to the StatRep of each, by the definition."""
    distance = distances(X, X)
    return np.where(distance <= eps, eps - distance, 0.0)


def greedy(X, eps, max_representatives, min_covered):
    """Choose as in the paper: compute all DynRep for every choice. Ties go to the first row."""
    share, near = static_rep(X, eps), distances(X, X) <= eps
    owner = np.full(len(X), -1)
    chosen = []
    while len(chosen) < max_representatives and (owner >= 0).sum() < min_covered:
        dyn_rep = share[:, owner < 0].sum(axis=1)
        chosen.append(int(dyn_rep.argmax()))
        owner[(owner < 0) & near[chosen[-1]]] = len(chosen) - 1
    return chosen, owner.tolist()


@given(problems(max_features=1), st.data())
def test_cover_greedily_is_the_definition(problem, data):
    """On a line of integers all sums are exact, so the choices, ties and stops are the same.

    Equal points are next to each other or not.
    """
    X, eps = problem
    X = np.repeat(X, data.draw(st.integers(1, 3)), axis=0)
    X = np.sort(X, axis=0) if data.draw(st.booleans()) else X
    maximum = data.draw(st.integers(1, len(X) + 1))
    min_covered = data.draw(st.floats(0, 1)) * len(X)
    chosen, owner, reach = cover_greedily(X, eps, maximum, min_covered)
    assert (chosen.tolist(), owner.tolist()) == greedy(X, eps, maximum, min_covered)
    for r, i in enumerate(chosen):
        assert reach[r] == distances(X[owner == r], X[[i]]).max(initial=0)


@given(problems())
def test_cover_greedily_takes_the_best(problem):
    """With several features sums are rounded: no point is better by more than the rounding."""
    X, eps = problem
    chosen, owner, _ = cover_greedily(X, eps, len(X), len(X))
    share, near = static_rep(X, eps), distances(X, X) <= eps
    assert (owner >= 0).all()
    for r, i in enumerate(chosen):
        dyn_rep = share[:, owner >= r].sum(axis=1)
        assert dyn_rep[i] >= dyn_rep.max() - len(X) * eps * 2.0**-31
        assert ((owner == r) == (near[i] & (owner >= r))).all()
        assert (owner == r).any()


def test_cover_greedily_by_hand():
    """A neighbour at distance 1 adds eps - 1, the point itself eps.

    With eps 2, StatRep is 3, 4, 4, 3, 2. The second point, the first of the best, covers the third
    and even the fourth, which adds 0. With eps 1.5, StatRep is 2, 2.5, 2.5, 2, 1.5. When the second
    point has covered the first three, DynRep of the others is 1.5 each.
    """
    X = np.array([[0.0], [1.0], [2.0], [3.0], [9.0]])
    chosen, owner, reach = cover_greedily(X, 2.0, 5, 5.0)
    assert chosen.tolist() == [1, 4]
    assert owner.tolist() == [0, 0, 0, 0, 1]
    assert reach.tolist() == [2.0, 0.0]
    chosen, owner, reach = cover_greedily(X, 1.5, 5, 5.0)
    assert chosen.tolist() == [1, 3, 4]
    assert owner.tolist() == [0, 0, 0, 1, 2]
    assert cover_greedily(X, 1.5, 2, 5.0)[1].tolist() == [0, 0, 0, 1, -1]
    assert cover_greedily(X, 1.5, 5, 2.5)[1].tolist() == [0, 0, 0, -1, -1]


@given(st.integers(1, 200), st.integers(1, 3), st.integers(1, 12), st.integers(0, 99))
def test_centroids_are_those_of_scikit_learn(n, d, k, seed):
    """From the same initial centroids, k-means ends at the same centroids."""
    X = np.random.default_rng(seed).random((n, d))
    centroids = X[: min(k, n)].copy()
    expected = KMeans(len(centroids), init=centroids, n_init=1, tol=0, max_iter=300).fit(X)
    nearest = move_to_centroids(X, centroids, 300)
    np.testing.assert_array_equal(nearest, distances(X, centroids).argmin(axis=1))
    if len(set(nearest.tolist())) == len(centroids):  # scikit-learn moves those without points
        np.testing.assert_allclose(centroids, expected.cluster_centers_, rtol=0, atol=1e-9)


def test_a_centroid_without_points_stays():
    X, centroids = np.array([[0.0], [1.0]]), np.array([[0.5], [7.0]])
    assert move_to_centroids(X, centroids, 300).tolist() == [0, 0]
    assert centroids.tolist() == [[0.5], [7.0]]


def test_equally_good_points_stay_equally_good():
    """Six points at 0 have nine neighbours at distance 1, seven at 1 have six: both sums are 13.5.

    With units of a rounded third of eps they would differ; the unit is a power of two for any eps.
    """
    X = np.repeat([[0.0], [1.0], [-1.0]], [6, 7, 2], axis=0)
    assert cover_greedily(X, 1.5, 1, len(X))[0].tolist() == [0]
