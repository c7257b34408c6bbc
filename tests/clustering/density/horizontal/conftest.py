"""The toy problem that several tests of horizontal DBSCAN share."""

from typing import NamedTuple

import pytest

# Cells of width 1, dense from 4 points on; two clients.
#
#     y
#     1   .  .  s  .  .        d: dense with the points of both clients together, not of one alone
#     0   .  d  s  d  .        s: occupied, but not dense
#    -1   s  .  .  .  .
#        -1  0  1  2  3  x
#
# The comments state the cluster of each point in the default reading, and why.
FIRST = [
    [0.2, 0.5],  # 0: in the dense cell (0, 0), the first cluster
    [0.8, 0.5],  # 0
    [2.1, 0.1],  # 1: in the dense cell (2, 0); a second cluster, since (1, 0) is not dense
    [2.9, 0.9],  # 1
    [1.4, 0.5],  # 0: in (1, 0), nearer to the centre of (0, 0)
    [1.6, 0.5],  # 1: in (1, 0), nearer to the centre of (2, 0)
]
SECOND = [
    [0.5, 0.0],  # 0: a cell contains its lower edge
    [0.5, 0.9],  # 0
    [2.5, 0.4],  # 1
    [2.5, 0.6],  # 1
    [1.5, 0.1],  # 0: in (1, 0), midway; ties go to the smaller cell (0, 0)
    [1.5, 1.2],  # -1: (1, 1) shares only corners with the dense cells
    [-0.5, -0.5],  # -1: (-1, -1) shares only a corner with (0, 0)
]


class Toy(NamedTuple):
    """The points of two clients and their labels in the default reading."""

    first: list
    second: list
    labels: list

    @property
    def parts(self):
        return [self.first, self.second]


@pytest.fixture(scope="session")
def toy():
    """Return the toy problem; cells of width 1, dense from 4 points on."""
    return Toy(FIRST, SECOND, [[0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 0, -1, -1]])


@pytest.fixture(scope="session")
def lists():
    """Return a function that turns the labels of each part into lists."""

    def as_lists(labels):
        return [None if part is None else part.tolist() for part in labels]

    return as_lists


@pytest.fixture(scope="session")
def fitted_labels():
    """Return a function that fits clients with given rows of X and returns the labels of X."""

    def fit(model, X, rows):
        model.fit([X[part] for part in rows])
        labels = [-9] * len(X)
        for part, part_labels in zip(rows, model.labels_, strict=True):
            for row, label in zip(part.tolist(), part_labels.tolist(), strict=True):
                labels[row] = label
        return labels

    return fit
