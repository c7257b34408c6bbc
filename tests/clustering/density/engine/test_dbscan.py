"""DBSCAN compared with scikit-learn and with its definition; searches; memory, threads, errors."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import DBSCAN

from fedlib.clustering.density.engine.dbscan import (
    cluster,
    dbscan,
    nearest_within,
    neighbours_within,
)
from fedlib.kernels.density import squared_distance


def squared_distances(X, Y):
    """Return all squared distances, summed in the order of the features."""
    total = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        total += (x[:, None] - y[None, :]) ** 2
    return total


def by_definition(X, eps, min_samples, weights, radii):
    """Return labels and core points from the matrix of all distances."""
    squared = squared_distances(X, X)
    inside = squared <= ((eps + radii) ** 2)[:, None]
    core = inside @ weights >= min_samples
    linked = inside & core[:, None] & core[None, :]
    components = connected_components(linked, connection="weak")[1]
    numbers = {}
    labels = np.array(
        [
            numbers.setdefault(component, len(numbers)) if is_core else -1
            for component, is_core in zip(components, core, strict=True)
        ],
        int,
    )
    for j in np.flatnonzero(~core):
        reaching = np.flatnonzero(core & inside[:, j])
        if reaching.size:
            labels[j] = labels[min(reaching, key=lambda i: (squared[i, j], *X[i]))]
    return labels, core


@st.composite
def problems(draw, max_features=8):
    """Draw a few points, many of them equal or exactly eps apart, parameters and weights."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, max_features))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        X = rng.integers(0, (12, 8, 6, 5, 4, 4, 3, 3)[d - 1], (n, d)).astype(float)
    else:
        X = rng.random((n, d)) * 5
    scale = draw(st.sampled_from([1.0, 2.0**-30, 2.0**40]))
    offset = draw(st.sampled_from([0.0, -(2.0**20)]))
    eps, min_samples = draw(st.integers(1, 4)) / 2, draw(st.integers(1, 8))
    return (X + offset) * scale, eps * scale, min_samples, rng.integers(0, 3, n)


def test_eight_points_on_a_line():
    """With eps 1 and three points, 1 is a core point, with 0 and 2 at its border; 5 is noise.

    9, 9.5 and 10 are core points: each has all three as neighbours. The neighbours of 10.8 are only
    10 and itself.
    """
    X = np.array([[0.0], [1.0], [2.0], [5.0], [9.0], [9.5], [10.0], [10.8]])
    labels, core = cluster(X, 1, 3)
    assert labels.tolist() == [0, 0, 0, -1, 1, 1, 1, 1]
    assert core.tolist() == [False, True, False, False, True, True, True, False]
    # With a weight of 3, 5 is a core point; with a weight of 0, 1 does not count for 0 and 2.
    weights = [1, 0, 1, 3, 1, 1, 1, 1]
    assert dbscan(X, 1, 3, weights).tolist() == [-1, -1, -1, 0, 1, 1, 1, 1]
    # With a radius of 4, the neighbourhood of 5 contains 2 and 9, so that all are one cluster.
    radii = [0, 0, 0, 3, 0, 0, 0, 0]
    assert dbscan(X, 1, 3, radii=radii).tolist() == [0, 0, 0, 0, 0, 0, 0, 0]


def test_a_border_point_joins_the_nearest_core_point():
    """3 is 1.5 from 1.5 and 1.4 from 4.4. Ties go to the smaller coordinate."""
    left, right = [[0.0], [0.5], [1.0], [1.5]], [[4.4], [5.0], [5.5], [6.0]]
    X = np.array([*left, *right, [3.0]])
    assert dbscan(X, 1.5, 4).tolist() == [0] * 4 + [1] * 5
    X[4] = 4.5
    for order in (np.arange(9), np.arange(9)[::-1]):
        labels = dbscan(X[order], 1.5, 4)[np.argsort(order)]
        assert labels[8] == labels[3] != labels[4]


@given(problems(), st.booleans(), st.integers(1, 3))
def test_agrees_with_scikit_learn(problem, weighted, n_jobs):
    """The same core points, labels of core points and noise.

    A border point is in the neighbourhood of a core point of its cluster.
    """
    X, eps, min_samples, weights = problem
    assume(weights.any())  # scikit-learn requires it
    weights = weights if weighted else None
    labels, core = cluster(X, eps, min_samples, weights, n_jobs=n_jobs)
    theirs = DBSCAN(eps=eps, min_samples=min_samples, algorithm="kd_tree")
    theirs.fit(X, sample_weight=weights)
    np.testing.assert_array_equal(np.flatnonzero(core), theirs.core_sample_indices_)
    np.testing.assert_array_equal(labels[core], theirs.labels_[core])
    np.testing.assert_array_equal(labels < 0, theirs.labels_ < 0)
    inside = squared_distances(X, X) <= eps * eps
    for i in np.flatnonzero(~core & (labels >= 0)):
        assert (inside[i] & core & (labels == labels[i])).any()


@given(problems(), st.booleans(), st.booleans(), st.integers(1, 3), st.data())
def test_agrees_with_the_definition(problem, weighted, varied, n_jobs, data):
    """Individual weights and radii, compared with the matrix of all distances."""
    X, eps, min_samples, weights = problem
    weights = weights if weighted else np.ones(len(X))
    radii = np.zeros(len(X))
    if varied:
        radii = eps * np.array(data.draw(st.lists(st.integers(0, 2), min_size=60))[: len(X)])
    given_radii = radii if varied else None
    labels, core = cluster(
        X, eps, min_samples, weights if weighted else None, given_radii, n_jobs=n_jobs
    )
    expected_labels, expected_core = by_definition(X, eps, min_samples, weights, radii)
    np.testing.assert_array_equal(core, expected_core)
    np.testing.assert_array_equal(labels, expected_labels)


@given(problems(), st.booleans(), st.integers(0, 2**32))
def test_the_order_of_rows_only_numbers_the_clusters(problem, varied, seed):
    X, eps, min_samples, weights = problem
    rng = np.random.default_rng(seed)
    radii = eps * rng.integers(0, 3, len(X)) if varied else None
    order = rng.permutation(len(X))
    labels = dbscan(X, eps, min_samples, weights, radii)
    again = np.empty_like(labels)
    again[order] = dbscan(
        X[order], eps, min_samples, weights[order], radii[order] if varied else None
    )
    pairs = set(zip(labels, again, strict=True))
    assert len(pairs) == len(set(labels)) == len(set(again))
    np.testing.assert_array_equal(labels < 0, again < 0)


@given(problems(), problems(), st.data())
def test_searches_agree_with_all_distances(problem, other, data):
    (X, eps, *_), (Y, *_) = problem, other
    Y = np.resize(Y, (len(Y), X.shape[1]))
    Y[: len(X) // 2] = X[: len(Y)][: len(X) // 2]
    squared = squared_distances(X, Y)
    start, index = neighbours_within(X, Y, eps)
    rows, columns = np.nonzero(squared <= eps * eps)
    np.testing.assert_array_equal(np.repeat(np.arange(len(X)), np.diff(start)), rows)
    np.testing.assert_array_equal(index, columns)
    radius = eps * np.random.default_rng(len(Y)).integers(0, 4, len(Y))
    reached = np.where(squared <= radius**2, squared, np.inf)
    nearest = np.where(np.isinf(reached).all(axis=1), -1, reached.argmin(axis=1))
    np.testing.assert_array_equal(nearest_within(X, Y, radius), nearest)
    np.testing.assert_array_equal(nearest_within(X, Y, np.inf), squared.argmin(axis=1))


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_many_leaves_in_five_dimensions(n_jobs):
    """Clouds, bridges between some of them, and noise: buckets in one set and in several."""
    rng = np.random.default_rng(1)
    centres = rng.random((12, 5))
    clouds = np.repeat(centres, 150, axis=0) + rng.normal(size=(1800, 5)) * 0.03
    steps = np.linspace(0, 1, 200)[:, None]
    bridges = [a * steps + b * (1 - steps) for a, b in zip(centres[:4], centres[4:8], strict=True)]
    X = rng.permutation(np.concatenate([clouds, *bridges, rng.random((600, 5))]))
    model = DBSCAN(eps=0.06, min_samples=5).fit(X)
    labels, core = cluster(X, 0.06, 5, n_jobs=n_jobs)
    assert np.flatnonzero(core).tolist() == model.core_sample_indices_.tolist()
    assert labels[core].tolist() == model.labels_[core].tolist()
    assert ((labels < 0) == (model.labels_ < 0)).all()
    assert 4 <= labels.max() < 12
    assert 0.1 < np.mean(labels < 0) < 0.5


def test_no_points_and_one_point():
    labels, core = cluster(np.empty((0, 3)), 1, 1)
    assert labels.shape == core.shape == (0,)
    assert dbscan([[3.0]], 1, 1).tolist() == [0]
    assert dbscan([[3.0]], 1, 2).tolist() == [-1]
    start, index = neighbours_within(np.empty((0, 2)), np.empty((0, 2)), 1)
    assert (start.tolist(), index.tolist()) == ([0], [])
    assert nearest_within([[1.0]], np.empty((0, 1)), 1).tolist() == [-1]


def test_one_point_needs_no_other_kernels_than_two():
    assert dbscan([[0.0, 0.0], [9.0, 9.0]], 1, 1).tolist() == [0, 1]
    compiled = list(squared_distance.signatures)
    assert dbscan([[3.0, 4.0]], 1, 1).tolist() == [0]
    assert squared_distance.signatures == compiled


def test_coordinates_whose_sums_overflow():
    """The coordinates themselves are finite, so there is no warning and no error."""
    X = np.repeat([[1.5e308], [-1.5e308]], 20, axis=0)
    assert dbscan(X, 1, 3).tolist() == [0] * 20 + [1] * 20


@pytest.mark.jit
@pytest.mark.parametrize("radii", [None, 0.0])
def test_many_equal_points_and_one_far_away(radii):
    """One cell contains nearly all points, and no cell number is large enough for the outlier."""
    X = np.zeros((200_000, 2))
    X[-1] = 1e300
    labels = dbscan(X, 1e-3, 5, radii=None if radii is None else np.full(len(X), radii))
    assert (labels[:-1] == 0).all()
    assert labels[-1] == -1
    assert (dbscan(np.arange(10.0)[:, None], 1e-300, 1) == np.arange(10)).all()


@pytest.mark.jit
def test_two_dense_lines_about_eps_apart():
    """All pairs of points in two cells would be about 10**9 distances; trees need few."""
    line = np.column_stack([np.zeros(30_000), np.linspace(0, 0.5, 30_000)])
    for gap, n_clusters in ((1.0001, 2), (0.9999, 1)):
        labels, core = cluster(np.vstack([line, line + np.array([gap, 0])]), 1, 5)
        assert core.all()
        assert len(np.unique(labels)) == n_clusters


@pytest.mark.jit
@pytest.mark.parametrize("radii", [None, 0.0])
def test_memory_grows_with_the_points_only(radii):
    """Every point has 3,000 neighbours: all neighbourhoods together would take 480 MB."""
    X = np.random.default_rng(0).random((20_000, 2))
    radii = None if radii is None else np.full(len(X), radii)
    dbscan(X, 0.22, 4_000, radii=radii)  # compiles
    tracemalloc.start()
    dbscan(X, 0.22, 4_000, radii=radii)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500 * len(X)


@pytest.mark.jit
def test_concurrent_calls():
    """Concurrent calls, each with one to three threads, return what a single call returns."""
    X = np.random.default_rng(0).random((20_000, 2))
    expected = dbscan(X, 0.01, 6)
    with ThreadPoolExecutor(8) as threads:
        for labels in threads.map(lambda n_jobs: dbscan(X, 0.01, 6, n_jobs=n_jobs), [1, 2, 3] * 8):
            np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize(
    ("n_jobs", "n_cores", "n_threads"),
    [(None, 5, 1), (1, 5, 1), (3, 1, 3), (-1, 5, 5), (-1, None, 1)],
)
def test_number_of_threads(n_jobs, n_cores, n_threads, monkeypatch):
    """It follows from n_jobs and the number of cores, and the result does not depend on it.

    The number of cores is simulated, so that the test means the same on every machine.
    """
    pools = []

    class RecordedPool(ThreadPoolExecutor):
        def __init__(self, max_workers):
            pools.append(max_workers)
            super().__init__(max_workers)

    X = np.random.default_rng(0).random((500, 2))
    expected = cluster(X, 0.05, 4)
    monkeypatch.setattr("fedlib.core.threads.os.cpu_count", lambda: n_cores)
    monkeypatch.setattr("fedlib.clustering.density.engine.dbscan.ThreadPoolExecutor", RecordedPool)
    for result, wanted in zip(cluster(X, 0.05, 4, n_jobs=n_jobs), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
    assert pools == [n_threads]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eps": 0}, "eps must be a finite number above 0, got 0"),
        ({"eps": np.inf}, "eps must be a finite number above 0, got inf"),
        ({"eps": 10**400}, "eps must be a finite number above 0, got 10000"),
        ({"radii": ["a", 0, 0]}, "radii must be numbers: could not convert string to float: 'a'"),
        ({"min_samples": 0}, "min_samples must be a finite number above 0, got 0"),
        ({"min_samples": "5"}, "min_samples must be a finite number above 0, got '5'"),
        ({"sample_weight": [1, 2]}, r"sample_weight must have shape \(3,\), got \(2,\)"),
        ({"sample_weight": [1, -2, 1]}, "sample_weight must be finite and at least 0, got -2.0"),
        ({"radii": [1, np.inf, 1]}, "radii must be finite and at least 0, got inf"),
        ({"radii": [1, np.nan, 1]}, "radii must be finite and at least 0, got nan"),
        ({"X": [[np.nan], [1], [2]]}, "X contains NaN"),
        ({"X": [1, 2, 3]}, "2 axes, rows and columns, got 1"),
        ({"n_jobs": 0}, "n_jobs must be -1 or an integer of at least 1, got 0"),
    ],
)
def test_invalid_input(changed, message):
    arguments = {"X": [[1.0], [2.0], [3.0]], "eps": 1, "min_samples": 2} | changed
    with pytest.raises(ValueError, match=message):
        cluster(**arguments)


def test_invalid_queries():
    with pytest.raises(ValueError, match="the same number of features, got 1 and 2"):
        neighbours_within([[1.0]], [[1.0, 2.0]], 1)
    with pytest.raises(ValueError, match="radius must be at least 0, got -1.0"):
        nearest_within([[1.0]], [[1.0]], -1)


@pytest.mark.parametrize(("side", "expected"), [(0.5, [0, 0]), (0.5 * (1 + 2**-29), [-1, -1])])
def test_opposite_corners_of_a_cell_with_four_features(side, expected):
    """A cell is half of eps wide and a little more. Its diagonal may be too long by that."""
    assert dbscan([[0.0] * 4, [side] * 4], eps=1, min_samples=2).tolist() == expected


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, Fraction])
def test_the_type_of_eps_does_not_matter(kind):
    """Bounds that are computed with 32 bits would miss that the last two points are neighbours."""
    X = np.array([[0, 0, 0, 0], [9, 9, 9, 0.5 - 2.0**-54], [9, 9, 9, 1.5]])
    assert dbscan(X, kind(1), kind(1)).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("eps", "places", "expected"),
    [
        (1e160, [0, 1e165], [0, 0]),  # the square is infinite
        (1e308, [0, 1e300], [0, 0]),
        (1e-170, [0, 0, 1e-160], [0, 0, 1]),  # the square is 0
        (1e-150, [0, 1e-150, 3e-150], [0, 0, 1]),
        (1e150, [0, 1e150, 3e150], [0, 0, 1]),
    ],
)
def test_extreme_radii_mean_the_same_on_the_grid_and_on_the_tree(eps, places, expected):
    X = np.array(places, float)[:, np.newaxis]
    assert dbscan(X, eps, 1).tolist() == expected
    assert dbscan(X, eps, 1, radii=0.0).tolist() == expected
    assert dbscan(X, eps, 1, radii=np.full(len(X), eps)).max() <= max(expected)
