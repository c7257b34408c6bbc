"""Choosing representatives: both ways against their definitions, taken word by word."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.cluster import KMeans

from fedlib.kernels.representatives import cover_greedily, cover_in_order, move_to_centroids


def distances(X, Y):
    """Return all distances, in the kernels' arithmetic."""
    total = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        total += (x[:, None] - y) ** 2
    return np.sqrt(total)


@st.composite
def problems(draw, max_features=3, max_points=40):
    """Draw points on a lattice, so that ties and repeated points abound, and a radius."""
    n, d = draw(st.integers(0, max_points)), draw(st.integers(1, max_features))
    width = {1: 30, 2: 6, 3: 3}[d]
    X = draw(hnp.arrays(np.float64, (n, d), elements=st.integers(-width, width).map(float)))
    return X, draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0, 8.0]))


@given(problems(), st.data())
def test_cover_in_order(problem, data):
    """Who is not covered covers; nobody chosen is within eps of another; all are covered."""
    X, eps = problem
    candidates = np.array(data.draw(st.permutations(range(len(X)))), np.int64)
    near = distances(X, X) <= eps
    chosen, owner, reach = cover_in_order(X, candidates, eps, len(X))
    assert (near[np.ix_(chosen, chosen)] == np.eye(len(chosen), dtype=bool)).all()
    assert near[:, chosen].any(axis=1).all()
    wanted = []
    for i in candidates:
        if not near[i, wanted].any():
            wanted.append(i)
    assert chosen.tolist() == wanted
    assert owner.tolist() == near[:, chosen].argmax(axis=1).tolist() if len(X) else not owner.size
    furthest = np.where(near, distances(X, X), 0)[chosen]
    np.testing.assert_array_equal(reach, furthest.max(axis=1, initial=0))
    most = data.draw(st.integers(0, len(X)))
    first, some_owner, _ = cover_in_order(X, candidates, eps, most)
    assert first.tolist() == wanted[:most]
    assert some_owner.tolist() == np.where(owner < len(first), owner, -1).tolist()


def test_only_candidates_are_chosen():
    """The middle one would cover all; it is not asked."""
    X = np.array([[0.0], [1.0], [2.0]])
    chosen, owner, reach = cover_in_order(X, np.array([2, 0]), 1.0, 3)
    assert chosen.tolist() == [2, 0]
    assert owner.tolist() == [1, 0, 0]
    assert reach.tolist() == [1.0, 1.0]


def static_rep(X, eps):
    """Return (n, n) what each point adds to StatRep of each, by the definition."""
    away = distances(X, X)
    return np.where(away <= eps, eps - away, 0.0)


def greedy(X, eps, most, enough):
    """Choose as the paper does: compute every DynRep anew for every choice; of equals the first."""
    share, near = static_rep(X, eps), distances(X, X) <= eps
    owner = np.full(len(X), -1)
    chosen = []
    while len(chosen) < most and (owner >= 0).sum() < enough:
        dyn_rep = share[:, owner < 0].sum(axis=1)
        chosen.append(int(dyn_rep.argmax()))
        owner[(owner < 0) & near[chosen[-1]]] = len(chosen) - 1
    return chosen, owner.tolist()


@given(problems(max_features=1), st.data())
def test_cover_greedily_is_the_definition(problem, data):
    """On a line of whole numbers all sums are exact: the same choices, ties and stops included."""
    X, eps = problem
    most = data.draw(st.integers(1, len(X) + 1))
    enough = data.draw(st.floats(0, 1)) * len(X)
    chosen, owner, reach = cover_greedily(X, eps, most, enough)
    assert (chosen.tolist(), owner.tolist()) == greedy(X, eps, most, enough)
    for r, i in enumerate(chosen):
        assert reach[r] == distances(X[owner == r], X[[i]]).max(initial=0)


@given(problems())
def test_cover_greedily_takes_the_best(problem):
    """In the plane and in space, where sums are rounded: none is better by more than rounding."""
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

    With eps 2, StatRep is 3, 4, 4, 3, 2. The second point, of equals the first, covers the third
    and even the fourth, which adds nothing. With eps 1.5 StatRep is 2, 2.5, 2.5, 2, 1.5; when the
    second covers the first three, DynRep of the others is 1.5 each.
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
    """From the same starts, k-means ends at the same centroids."""
    X = np.random.default_rng(seed).random((n, d))
    centroids = X[: min(k, n)].copy()
    wanted = KMeans(len(centroids), init=centroids, n_init=1, tol=0, max_iter=300).fit(X)
    nearest = move_to_centroids(X, centroids, 300)
    np.testing.assert_array_equal(nearest, distances(X, centroids).argmin(axis=1))
    if len(set(nearest.tolist())) == len(centroids):  # scikit-learn moves those without points
        np.testing.assert_allclose(centroids, wanted.cluster_centers_, rtol=0, atol=1e-9)


def test_a_centroid_without_points_stays():
    X, centroids = np.array([[0.0], [1.0]]), np.array([[0.5], [7.0]])
    assert move_to_centroids(X, centroids, 300).tolist() == [0, 0]
    assert centroids.tolist() == [[0.5], [7.0]]


def test_equally_good_points_stay_equally_good():
    """Six points at 0 with nine neighbours at distance 1, seven at 1 with six: both add up to 13.5.

    Thirds of eps, rounded, would not: units are a power of two, whatever eps is.
    """
    X = np.repeat([[0.0], [1.0], [-1.0]], [6, 7, 2], axis=0)
    assert cover_greedily(X, 1.5, 1, len(X))[0].tolist() == [0]
