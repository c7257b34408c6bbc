"""Horizontal DBSCAN against a slow reference, and the properties of its labels."""

import math
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.utils import check_random_state

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.cells import _offsets

BORDERS, ASSIGNS, ADJACENCIES = ["nearest", "absorb"], ["point", "cell"], ["faces", "full"]


def around(cell, cells, adjacency):
    """Return the occupied cells adjacent to a cell, in lexicographic order."""

    def adjacent(other):
        steps = [abs(a - b) for a, b in zip(cell, other, strict=True)]
        return max(steps) == 1 and (adjacency == "full" or sum(steps) == 1)

    return [other for other in cells if adjacent(other)]


def clusters_of_dense_cells(cells, dense, adjacency):
    """Expand clusters along adjacent dense cells (pseudocode of M1 and M2, §3.1)."""
    cluster = {}
    for number, cell in enumerate(cells):
        if cell in dense and cell not in cluster:
            cluster[cell] = number
            queue = deque([cell])
            while queue:
                for other in around(queue.popleft(), cells, adjacency):
                    if other in dense and other not in cluster:
                        cluster[other] = number
                        queue.append(other)
    return cluster


def clusters_of_visited_cells(cells, dense, adjacency, order):
    """Expand clusters as the listings do: an unvisited cell joins, whether it is dense or not."""
    cluster, visited = {}, set()
    for number, cell in enumerate(order):
        if cell in visited:
            continue
        visited.add(cell)
        if cell not in dense:
            continue  # it is visited now, so no later cluster absorbs it
        cluster[cell] = number
        queue = deque(around(cell, cells, adjacency))
        while queue:
            other = queue.popleft()
            if other in visited:
                continue
            visited.add(other)
            cluster[other] = number
            if other in dense:
                queue.extend(around(other, cells, adjacency))
    return cluster


def reference(X, cell_size, min_samples, border, assign, adjacency, random_state):
    """Return every point's label, computed with plain dicts and loops over all points."""
    cell_of_point = [tuple(math.floor(x / cell_size) for x in point) for point in X.tolist()]
    counts = Counter(cell_of_point)
    cells = sorted(counts)
    dense = {cell for cell in cells if counts[cell] >= min_samples}
    if border == "nearest":
        cluster = clusters_of_dense_cells(cells, dense, adjacency)
    else:
        rank = check_random_state(random_state).permutation(len(cells))
        order = [cells[i] for i in np.argsort(rank)]
        cluster = clusters_of_visited_cells(cells, dense, adjacency, order)
    first_reached = dict.fromkeys(cluster[cell] for cell in cells if cell in dense)
    number = {old: new for new, old in enumerate(first_reached)}

    def distance(point, cell):
        centre = [c * cell_size + cell_size / 2 for c in cell]
        return sum((x - m) ** 2 for x, m in zip(point, centre, strict=True))

    labels = []
    for point, cell in zip(X.tolist(), cell_of_point, strict=True):
        candidates = [cell] if cell in cluster else around(cell, list(cluster), adjacency)
        candidates.sort()
        if not candidates:
            labels.append(-1)
        elif assign == "cell":
            labels.append(number[cluster[candidates[-1]]])
        else:
            nearest = min(candidates, key=lambda c: distance(point, c))
            labels.append(number[cluster[nearest]])
    return labels


@st.composite
def problems(draw, max_features=5):
    """Draw points close together, some on the edges of cells, and the estimator's parameters."""
    d = draw(st.integers(1, max_features))
    n = draw(st.integers(0, 40))
    reach = 8 * draw(st.integers(1, {1: 8, 2: 3}.get(d, 1)))
    cell_size = draw(st.sampled_from([0.3, 0.5, 1.0, 4.0]))
    eighths = draw(arrays(np.int64, (n, d), elements=st.integers(-reach, reach)))
    parameters = {
        "cell_size": cell_size,
        "min_samples": draw(st.integers(1, 4)),
        "border": draw(st.sampled_from(BORDERS)),
        "assign": draw(st.sampled_from(ASSIGNS)),
        "adjacency": draw(st.sampled_from(ADJACENCIES)),
        "random_state": draw(st.integers(0, 99)),
    }
    return eighths * (cell_size / 8), parameters


def distribute(data, X):
    """Distribute the rows over clients at random; return each client's row numbers."""
    n_clients = data.draw(st.integers(1, 5))
    owner = data.draw(arrays(np.int64, len(X), elements=st.integers(0, n_clients - 1)))
    return [np.flatnonzero(owner == i) for i in range(n_clients)]


@given(problems(), st.data())
@settings(max_examples=150)
def test_labels_are_those_of_the_reference(fitted_labels, problem, data):
    """The labels are those of the slow reference, for any distribution over clients."""
    X, parameters = problem
    labels = fitted_labels(HorizontalDBSCAN(**parameters), X, distribute(data, X))
    assert labels == reference(X, **parameters)


@given(problems(), st.data())
@settings(max_examples=60)
def test_labels_do_not_depend_on_the_distribution_over_clients(fitted_labels, problem, data):
    """Neither the client of a row nor the order of the clients changes a label."""
    X, parameters = problem
    model = HorizontalDBSCAN(**parameters)
    together = fitted_labels(model, X, [np.arange(len(X))])
    one = model.model_
    rows = distribute(data, X)
    for order in (rows, data.draw(st.permutations(rows))):
        assert fitted_labels(model, X, order) == together
        assert np.array_equal(model.cells_, one.cells)
        assert np.array_equal(model.cell_counts_, one.counts)
        assert np.array_equal(model.cell_labels_, one.labels)


@given(problems())
def test_predict_repeats_the_labels(problem):
    """A training point gets the label that its client gave it."""
    X, parameters = problem
    model = HorizontalDBSCAN(**parameters).fit([X[::2], X[1::2]])
    for part, labels in zip((X[::2], X[1::2]), model.labels_, strict=True):
        if len(part):
            assert np.array_equal(model.predict(part), labels)


@given(problems())
def test_clusters_are_numbered_by_their_first_dense_cell(problem):
    """In the lexicographic order of the dense cells, each new cluster has the next number."""
    X, parameters = problem
    model = HorizontalDBSCAN(**parameters).fit([X])
    occupied = list(map(tuple, model.cells_.tolist()))
    assert occupied == sorted(set(occupied))
    dense = model.cell_counts_ >= parameters["min_samples"]
    numbers = list(dict.fromkeys(model.cell_labels_[dense].tolist()))
    assert numbers == list(range(len(numbers)))
    assert set(model.cell_labels_.tolist()) <= {-1, *numbers}
    if parameters["border"] == "nearest":
        assert (model.cell_labels_[~dense] == -1).all()


@given(problems(), st.sampled_from([2.0**-30, 0.5, 2.0, 2.0**40]))
def test_units_do_not_matter(problem, factor):
    """Scaling points and cells by a power of two does not change the labels."""
    X, parameters = problem
    labels = HorizontalDBSCAN(**parameters).fit([X]).labels_[0]
    parameters["cell_size"] *= factor
    assert np.array_equal(HorizontalDBSCAN(**parameters).fit([X * factor]).labels_[0], labels)


@given(problems(), st.integers(-(2**40), 2**40))
def test_the_origin_does_not_matter(problem, shift):
    """Moving all points by a whole number of cells does not change the labels."""
    X, parameters = problem
    X, parameters["cell_size"] = X / parameters["cell_size"], 1.0
    X = np.rint(8 * X) / 8
    labels = HorizontalDBSCAN(**parameters).fit([X]).labels_[0]
    assert np.array_equal(HorizontalDBSCAN(**parameters).fit([X + shift]).labels_[0], labels)


@pytest.mark.jit
@pytest.mark.parametrize("assign", ASSIGNS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_large_grid(assign, adjacency):
    """200,000 cells: every other column of cells is dense, the others have one point per cell."""
    width, height = 401, 500
    x, y = np.divmod(np.arange(width * height), height)
    X = np.column_stack([x, y]) + 0.25
    X = np.concatenate([X, X[x % 2 == 0]])  # a second point where x is even
    model = HorizontalDBSCAN(1.0, 2, assign=assign, adjacency=adjacency).fit([X])
    column = X[:, 0].astype(int)
    assert np.array_equal(model.cell_labels_, np.where(x % 2, -1, x // 2))
    # A point at 0.25 of its cell is nearer to the left; a whole cell takes the one to the right.
    assert np.array_equal(model.labels_[0], (column + (assign == "cell")) // 2)


def scattered(d, n):
    """Return points in twelve groups, each in a few adjacent cells of width 1."""
    rng = np.random.default_rng(d)
    X = rng.integers(-3, 4, (12, d))[rng.integers(0, 12, n)] + rng.uniform(0, 1, (n, d))
    X[:, :3] += rng.uniform(0, 0.7, (n, 3))
    return X


@pytest.mark.parametrize("d", [5, 6, 7])
@pytest.mark.parametrize("assign", ASSIGNS)
@pytest.mark.parametrize("border", BORDERS)
def test_both_ways_to_find_neighbours_agree(monkeypatch, d, assign, border):
    """Trying all offsets and comparing all cells give the same labels."""
    X = scattered(d, 200)
    model = HorizontalDBSCAN(1.0, 4, border=border, assign=assign, adjacency="full", random_state=0)
    labels = []
    for n_cells in (0, 3**d):  # forces one method or the other
        offsets = _offsets(d, "full", n_cells)
        assert len(offsets) == (3**d - 1 if n_cells else 0)
        monkeypatch.setattr(
            "fedlib.clustering.density.cells._offsets", lambda *_, offsets=offsets: offsets
        )
        labels.append(model.fit([X]).labels_[0].tolist())
    assert labels[0] == labels[1]
    assert {-1, 0, 1} <= set(labels[0])


@pytest.mark.parametrize("d", [8, 12])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("assign", ASSIGNS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_many_dimensions(d, border, assign, adjacency):
    """The labels are those of the reference when cells have thousands of neighbours."""
    X = scattered(d, 120)
    parameters = {"cell_size": 1.0, "min_samples": 4, "border": border, "assign": assign}
    parameters |= {"adjacency": adjacency, "random_state": 1}
    labels = HorizontalDBSCAN(**parameters).fit([X]).labels_[0].tolist()
    assert labels == reference(X, **parameters)
    assert {-1, 0, 1} <= set(labels)
