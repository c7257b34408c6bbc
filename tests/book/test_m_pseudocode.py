"""M's pseudocode, executed line by line, against the programs of the book."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import DBSCAN
from sklearn.neighbors import NearestNeighbors

from fedlib import VerticalDBSCAN

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def m_pseudocode():
    """Return the module, imported as the notebooks import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.clustering.m_pseudocode")


def points(seed, n=80):
    """Return points in the unit square, dense enough for clusters, border points and noise."""
    return np.random.default_rng(seed).random((n, 2))


@pytest.mark.parametrize("seed", range(8))
def test_dbscan_in_the_order_of_the_rows_is_that_of_scikit_learn(m_pseudocode, seed):
    X = points(seed)
    near = NearestNeighbors(radius=0.1).fit(X).radius_neighbors(X, return_distance=False)
    expected = DBSCAN(eps=0.1, min_samples=4).fit_predict(X)
    assert len(np.unique(expected)) > 2
    assert m_pseudocode.dbscan(near, 4, range(len(X))).tolist() == expected.tolist()


def test_the_order_decides_on_a_contested_border_point(m_pseudocode):
    """Point 3 is a neighbour of the core points 1 and 5, which are not neighbours."""
    near = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2], [1, 3, 5], [4, 5, 6], [3, 4, 5, 6], [4, 5, 6]]
    first = m_pseudocode.dbscan(near, 4, range(7))
    last = m_pseudocode.dbscan(near, 4, range(6, -1, -1))
    assert first.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert last.tolist() == [1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(8))
def test_the_server_of_vertical_dbscan_gives_the_labels_of_the_package(m_pseudocode, seed):
    X = points(seed)
    near = np.all(np.abs(X[:, None] - X[None]) < 0.1, axis=2)
    expected = VerticalDBSCAN(eps=0.1, min_samples=5).fit([X[:, :1], X[:, 1:]]).labels_
    assert len(np.unique(expected)) > 2
    assert m_pseudocode.server_dbscan(near, 5).tolist() == np.asarray(expected).tolist()
