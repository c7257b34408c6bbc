"""DBSCAN on cells: core points, connections, border points and numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from fedlib.kernels import density, leaf_connections, range_search
from fedlib.kernels import density as connections

INDEX = np.int32  # as in the engine, so that the kernels are those that it has compiled


def make_cells(parts, squared_radii, weights=(), core=None, few=0):
    """Return the cells of a grid that consist of these points (n, d), with their boxes."""
    points = np.asfortranarray(np.concatenate(parts))
    n, d = points.shape
    start = np.cumsum([0, *map(len, parts)], dtype=INDEX)
    core = np.zeros(n, bool) if core is None else core
    cells = density.Cells(
        points=points,
        rows=np.empty(0, INDEX),
        axes=tuple(range(d)),
        squared_radii=np.asarray(squared_radii, np.float64),
        weights=np.array(weights, np.float64),
        start=start,
        box=np.where(np.diff(start) > few, np.arange(len(parts)), -1).astype(INDEX),
        boxes=np.empty((len(parts), 2, d)),
        core=core,
        has_core=how_many(core, start),
    )
    density.bound_cells(cells, 0, len(parts))
    return cells


def how_many(core, start):
    """Return for each cell that begins at ``start`` whether none, some or all points are core."""
    n_core, size = np.add.reduceat(core.astype(np.int64), start[:-1]), np.diff(start)
    numbers = np.where(n_core == size, density.ALL, np.where(n_core, density.SOME, density.NONE))
    return numbers.astype(np.int8)


def block_of_all(n_cells, group_start=None):
    """Return a block of all cells, by default each in its own group, all near each other."""
    group_start = np.arange(n_cells + 1) if group_start is None else np.array(group_start)
    near = np.tile([[0, n_cells]], (n_cells, 1)).astype(INDEX)
    return density.Block(np.arange(n_cells), group_start, np.arange(n_cells + 1), near)


def squared_distances(X, Y):
    total = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        total += (x[:, None] - y) ** 2
    return total


@st.composite
def two_cells(draw):
    """Draw two cells of lattice points with core points in each, and squared radii."""
    sizes = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = [rng.integers(0, 6, (n, 2)).astype(float) for n in sizes]
    parts[1][:, 0] += draw(st.integers(0, 12))
    n = sum(sizes)
    core = rng.random(n) < draw(st.sampled_from([0.2, 1.0]))
    core[[0, -1]] = True
    return parts, rng.integers(1, 30, n), core


@given(two_cells())
def test_two_cells_are_connected(problem):
    """One pair of core points, either of which is near the other, is enough; all ways agree."""
    parts, squared_radii, core = problem
    cells = make_cells(parts, squared_radii, core=core)
    leaves = cells._replace(
        points=np.concatenate(parts), rows=np.arange(len(core), dtype=INDEX), axes=np.arange(2)
    )
    n = len(parts[0])
    squared = squared_distances(*parts)
    near = squared <= np.maximum(squared_radii[:n, None], squared_radii[None, n:])
    expected = (near & core[:n, None] & core[None, n:]).any()
    assert leaf_connections._connected_by_pairs(leaves, 0, 1, cells.boxes, 1) == expected
    assert leaf_connections._connected_by_pairs(leaves, 1, 0, cells.boxes, 0) == expected
    assert connections.are_connected_by_trees(leaves, 0, 1) == expected
    assert connections.are_connected_by_trees(cells, 0, 1) == expected


@given(st.integers(0, 2**32), st.sampled_from([3, 40, 150]), st.booleans())
def test_searches_in_ranges(seed, size, weighted):
    """Core points, and the cells that border points join, compared with all distances.

    Lattice points make ties and distances equal to the radius. Cells have few and many points.
    """
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 8, (12, 2)) * 2.0
    sizes = rng.integers(1, size, 12)
    parts = [
        corner + rng.integers(0, 20, (n, 2)) / 20 for corner, n in zip(corners, sizes, strict=True)
    ]
    n, min_samples = sum(sizes), 0.3 * sum(sizes)
    weights = rng.integers(0, 3, n) if weighted else ()
    cells = make_cells(parts, np.full(1, 4.0), weights, few=20)
    range_search.find_core(block_of_all(12), cells, min_samples)
    squared = squared_distances(cells.points, cells.points)
    expected = (squared <= 4) @ (weights if weighted else np.ones(n)) >= min_samples
    np.testing.assert_array_equal(cells.core, expected)
    np.testing.assert_array_equal(cells.has_core, how_many(expected, cells.start))
    joined = np.full(n, -9, INDEX)
    range_search.find_border(block_of_all(12), cells, joined)
    check_joined(joined, cells, squared)


def check_joined(joined, cells, squared):
    """Check that each border point joins a cell with its nearest core point, the first of equals.

    Core points in different cells may be equal; then both cells are right.
    """
    squared_radii = np.broadcast_to(cells.squared_radii, len(joined))
    cell_of = np.repeat(np.arange(len(cells.has_core)), np.diff(cells.start))
    for i in np.flatnonzero(~cells.core):
        reaching = np.flatnonzero(cells.core & (squared[i] <= squared_radii))
        keys = [(squared[i, j], *cells.points[j]) for j in reaching]
        right = {cell_of[j] for j, key in zip(reaching, keys, strict=True) if key == min(keys)}
        assert joined[i] in (right or {-1})


@pytest.mark.parametrize(
    ("weights", "dense"), [((), [False, True]), (np.array([3, 3, 1, 1, 1]), [True, False])]
)
def test_dense_cells_by_hand(weights, dense):
    """Of cells with two and three points, those of weight 5, or of 3 points, need no search."""
    parts = [np.array([[0.0], [0.1]]), np.array([[5.0], [5.1], [5.2]])]
    cells = make_cells(parts, np.full(5, 1.0), weights)
    cells.core[:] = False
    min_samples = 5.0 if len(weights) else 3.0
    assert density.find_dense(cells, 0, 2, min_samples).tolist() == dense
    assert cells.core.tolist() == [dense[0]] * 2 + [dense[1]] * 3


@pytest.mark.parametrize("group_start", [None, [0, 2]])
def test_a_group_near_an_earlier_share_is_marked(group_start):
    """Cells 1 and 2 are joined. Cell 0, near both, is left out, so both are marked."""
    parts = [np.array([[0.0]]), np.array([[0.5]]), np.array([[1.0]])]
    cells = make_cells(parts, np.full(1, 1.0), core=np.ones(3, bool))
    parent, crossing = np.arange(3, dtype=INDEX), np.zeros(3, bool)
    block = block_of_all(2, group_start)._replace(cells=np.arange(1, 3))
    block.near[:, 1] = 3
    connections.join_cells(block, cells, 1, parent, crossing)
    assert parent.tolist() == [0, 1, 1]
    assert crossing.tolist() == [False, True, True]


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 6))
def test_groups_of_cells_are_joined(seed, n_cells, group_size):
    """The sets are the connected components, for groups of any size, with boxes and without.

    Cells are one point each; cells without core points connect nothing.
    """
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 12, (n_cells, 2)).astype(float)
    core = rng.random(n_cells) < 0.8
    cells = make_cells(list(points[:, None]), np.full(1, 4.0), core=core, few=seed % 2)
    wanted = np.flatnonzero(core)
    group_start = np.append(np.arange(0, len(wanted), group_size), len(wanted))
    block = block_of_all(n_cells, group_start)._replace(cells=wanted)
    parent = np.arange(n_cells, dtype=INDEX)
    connections.join_cells(block, cells, 0, parent, np.zeros(n_cells, bool))
    density.flatten(parent)
    linked = (squared_distances(points, points) <= 4) & core & core[:, None]
    components = connected_components(linked)[1]
    first = np.array([np.flatnonzero(components == c)[0] for c in components], int)
    np.testing.assert_array_equal(parent, first)


def test_border_points_and_numbers_by_hand():
    """1.0 is as near to 0.0 as to 2.0 and joins the smaller; 9.0 is in no neighbourhood.

    Clusters are numbered by their first core row: that of 2.0 is row 0.
    """
    parts = [np.array([[2.0]]), np.array([[1.0]]), np.array([[0.0]]), np.array([[9.0]])]
    core = np.array([True, False, True, False])
    cells = make_cells(parts, np.full(1, 1.0), core=core)
    order, first_row = np.array([0, 3, 2, 1], INDEX), np.empty(4, INDEX)
    density.find_first_rows(cells.start, core, order, first_row, 0, 4)
    assert first_row.tolist() == [0, -1, 2, -1]
    number = density.number_sets(np.arange(4, dtype=INDEX), first_row)
    assert number.tolist() == [0, -1, 1, -1]
    labels, is_core, joined = np.empty(4, np.int64), np.empty(4, bool), np.empty(4, INDEX)
    range_search.find_border(block_of_all(4), cells, joined)
    assert joined[~core].tolist() == [2, -1]
    found = cells.start, core, order, joined, number
    density.write_labels(*found, labels, is_core, 0, 4)
    assert labels.tolist() == [0, -1, 1, 1]
    assert is_core.tolist() == [True, False, True, False]


def test_the_root_of_a_set_is_its_first_element():
    parent = np.array([0, 0, 1, 3, 2, 3], INDEX)
    density.flatten(parent)
    assert parent.tolist() == [0, 0, 0, 3, 0, 3]
