"""The modules of the pages on what P builds on: CLARANS, the steps of DBSCAN, the quadtree."""

import importlib
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN

from fedlib import DBDC
from fedlib.clustering.density.engine.dbscan import neighbours_within
from fedlib.figures.plots import in_words

ROOT = Path(__file__).parents[2]


def module(name):
    """Return a module of the notebooks, imported as they import it."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "notebooks")
        return importlib.import_module(name)


clarans = module("study.clustering.clarans")
dbscan_steps = module("study.clustering.dbscan_steps")
spatial_indexes = module("study.clustering.spatial_indexes")
figures = module("study.clustering.background_figures")


def test_clarans_finds_the_optimum_of_a_small_set():
    """All 455 choices of 3 medoids among 15 points are tried."""
    X = np.random.default_rng(0).random((15, 2))
    distances = cdist(X, X)
    lowest = min(distances[list(m)].min(axis=0).sum() for m in combinations(range(15), 3))
    found = clarans.clarans(distances, 3, random_state=0)
    assert found.cost == pytest.approx(lowest, rel=1e-12)
    assert found.cost == distances[found.medoids].min(axis=0).sum() == found.local_costs.min()


def test_clarans_is_never_better_than_the_recorded_costs_and_rarely_worse():
    record = pd.read_csv(ROOT / "notebooks/kmedoids_costs.csv", index_col="set")
    for name, (X, _) in clarans.sample_sets().items():
        assert sha256(X.tobytes()).hexdigest() == record.loc[name, "sha256"]
        cost = clarans.clarans(cdist(X, X), 4, random_state=0, n_local=4).cost
        assert 1 - 1e-12 <= cost / record.loc[name, "cost"] < 1.02


def test_the_best_medoid_of_a_class_has_the_smallest_sum_of_distances():
    distances = cdist(x := np.array([[0.0], [1.0], [5.0], [9.0], [8.0], [7.0]]), x)
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert clarans.best_of_class(distances, labels).tolist() == [1, 4]


def neighbourhoods(X, eps):
    return [np.flatnonzero(row <= eps).tolist() for row in cdist(X, X)]


@pytest.mark.parametrize("seed", range(10))
def test_the_completed_steps_give_the_labels_of_scikit_learn(seed):
    X = np.random.default_rng(seed).uniform(0, 10, (100, 2))
    labels, record = dbscan_steps.run_steps(neighbourhoods(X, 1.0), 4, range(100))
    assert labels == DBSCAN(eps=1.0, min_samples=4).fit(X).labels_.tolist()
    assert labels == dbscan_steps.labels_after(record, 100)


def test_the_printed_steps_lose_the_neighbours_of_a_lonely_core_point():
    star = np.array([[0.0, 0], [1, 0], [-1, 0], [0, 1]])
    near = neighbourhoods(star, 1.0)
    assert dbscan_steps.run_steps(near, 4, range(4))[0] == [0, 0, 0, 0]
    assert dbscan_steps.run_steps(near, 4, range(4), assign_first=False)[0] == [0, -1, -1, -1]


def test_noise_that_is_taken_first_is_assigned_again():
    line = np.array([[0.0], [1.0], [2.0]])
    labels, record = dbscan_steps.run_steps(neighbourhoods(line, 1.0), 3, range(3))
    assert labels == [0, 0, 0]
    assert dbscan_steps.labels_after(record[:1], 3) == [-1, -2, -2]
    assert record[1]["from noise"] == [0]


def points_of_kind(kind):
    rng = np.random.default_rng(1)
    if kind == "plane":
        return rng.random((500, 2))
    if kind == "space":
        return rng.random((300, 3))
    return np.repeat(rng.random((30, 2)).round(1), 10, axis=0)  # equal points


@pytest.mark.jit
@pytest.mark.parametrize("kind", ["plane", "space", "equal points"])
def test_all_indexes_find_the_neighbours_of_fedlib(kind):
    X, eps, rows = points_of_kind(kind), 0.2, np.arange(0, 300, 3)
    start, index = neighbours_within(X[rows], X, eps)
    quadtree = spatial_indexes.build_quadtree(X, leaf_size=4)
    tree = spatial_indexes.build_kd_tree(X, leaf_size=4)
    for work in (
        spatial_indexes.search_tree(quadtree, X[rows], eps),
        spatial_indexes.search_tree(tree, X[rows], eps),
        spatial_indexes.search_grid(*spatial_indexes.build_grid(X, eps), rows, eps),
    ):
        np.testing.assert_array_equal(work.start, start)
        np.testing.assert_array_equal(work.index, index)
        assert (work.distances >= np.diff(start)).all()
        assert (work.distances < len(X)).any()
        assert (work.boxes >= 1).all()


@pytest.mark.parametrize("kind", ["plane", "space", "equal points"])
def test_leaves_of_a_quadtree_contain_each_point_once(kind):
    X = points_of_kind(kind)
    tree = spatial_indexes.build_quadtree(X, leaf_size=4)
    leaves = [node for node, children in enumerate(tree.children) if not children]
    members = [tree.order[tree.first[leaf] : tree.stop[leaf]] for leaf in leaves]
    assert sorted(np.concatenate(members)) == list(range(len(X)))
    for leaf, rows in zip(leaves, members, strict=True):
        assert (X[rows] >= tree.lower[leaf]).all()
        assert (X[rows] <= tree.upper[leaf]).all()
        assert len(rows) <= 4 or len(np.unique(X[rows], axis=0)) == 1
    assert max(map(len, tree.children)) <= 2 ** X.shape[1]


def test_the_work_of_a_search_is_counted_by_walking_too():
    X = points_of_kind("plane")
    tree = spatial_indexes.build_quadtree(X, leaf_size=4)
    work = spatial_indexes.search_tree(tree, X[:1], 0.1)
    opened, excluded = spatial_indexes.walk_tree(tree, X[0], 0.1)
    assert work.distances[0] == sum(tree.stop[leaf] - tree.first[leaf] for leaf in opened)
    passed = work.boxes[0] - len(opened) - len(excluded)  # nodes whose children were compared
    assert 0 < passed < len(tree.children)


@pytest.mark.jit
def test_a_flow_chart_names_every_message_of_the_ledger():
    parts = [np.array([[0.0], [1.0], [2.0]]), np.array([[3.0], [4.0], [9.0]])]
    model = DBDC(eps=1.0, min_samples=2).fit(parts)
    figure = figures.flow_chart(model.ledger_, {"LocalModel": "joins them"}, "toy")
    texts = [text.get_text() for text in figure.axes[0].texts]
    plt.close(figure)
    for row in model.ledger_.summary().itertuples():
        assert f"{row.messages} × {in_words(row.message)}, {row.bytes:,} bytes" in texts
    assert "server: joins them" in texts
