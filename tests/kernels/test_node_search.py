"""Core points and border points that are found in a tree, compared with all distances."""

import numpy as np
import pytest

from fedlib.clustering.density.engine.index import index_by_tree
from fedlib.kernels import density, node_search


def tree_cells(X, squared_radii, weights):
    """Return the cells of a tree of some points, and what the searches take."""
    order, start, tree, leaves = index_by_tree(X, squared_radii, 1)
    n, d = X.shape
    cells = density.Cells(
        points=X,
        rows=order,
        axes=np.arange(d),
        squared_radii=squared_radii,
        weights=weights[order] if len(weights) else weights,
        start=start,
        box=np.empty(0, order.dtype),
        boxes=np.empty((0, 2, d)),
        core=np.empty(n, bool),
        has_core=np.empty(len(start) - 1, np.int8),
    )
    return cells, tree, leaves


@pytest.mark.parametrize("kind", ["uniform", "lattice", "clouds"])
@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_core_and_border_points(kind, varied, weighted):
    """Lattice points make ties and distances equal to the radius; clouds make cells of many."""
    rng = np.random.default_rng(0)
    X = {
        "uniform": rng.random((400, 3)) * 4,
        "lattice": rng.integers(0, 6, (400, 3)).astype(float),
        "clouds": rng.integers(0, 3, (400, 3)) + rng.normal(size=(400, 3)) / 20,
    }[kind]
    squared_radii = rng.integers(1, 4, 400).astype(float) if varied else np.full(1, 1.0)
    weights = rng.integers(0, 3, 400).astype(float) if weighted else np.empty(0)
    cells, tree, leaves = tree_cells(X, squared_radii, weights)
    points, radii = X[tree.order], np.broadcast_to(squared_radii, 400)[tree.order]
    squared = np.zeros((400, 400))
    for x in points.T:
        squared += (x[:, None] - x) ** 2
    totals = (squared <= radii[:, None]) @ (cells.weights if weighted else np.ones(400))
    wanted = np.arange(len(cells.has_core))
    for enough in np.quantile(totals, [0.3, 0.8]) + 0.5:
        node_search.find_core(wanted, cells, tree, enough)
        core = totals >= enough
        np.testing.assert_array_equal(cells.core, core)
        n_core = np.add.reduceat(core.astype(int), cells.start[:-1])
        np.testing.assert_array_equal(cells.has_core == density.NONE, n_core == 0)
        np.testing.assert_array_equal(cells.has_core == density.ALL, n_core == np.diff(cells.start))
        joined = np.full(400, -9, tree.order.dtype)
        node_search.find_border(wanted, cells, tree, leaves, joined)
        check_joined(joined, cells, points, squared <= radii, squared)


def check_joined(joined, cells, points, reached, squared):
    """Check the cell of the nearest core point, of which the first in lexicographic order counts.

    Core points in different cells may be equal; then both cells are right.
    """
    cell_of = np.repeat(np.arange(len(cells.has_core)), np.diff(cells.start))
    assert (joined[cells.core] == -9).all()
    for i in np.flatnonzero(~cells.core):
        reaching = np.flatnonzero(cells.core & reached[i])
        keys = [(squared[i, j], *points[j]) for j in reaching]
        right = {cell_of[j] for j, key in zip(reaching, keys, strict=True) if key == min(keys)}
        assert joined[i] in (right or {-1})
