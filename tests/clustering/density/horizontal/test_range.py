"""Horizontal DBSCAN with far points and with cells at the ends of the range."""

import subprocess
import sys

import pytest

from fedlib import HorizontalDBSCAN

ADJACENCIES = ["faces", "full"]


# Fits in a new process; prints the peak of its memory after each fit and the time of the second.
OUTLIER = """
import resource, sys, time
import numpy as np
from fedlib import HorizontalDBSCAN

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

X = np.random.default_rng(0).normal(size=(500, 6))
model = HorizontalDBSCAN(1.0, 2, adjacency=sys.argv[1])
usual = model.fit([X]).labels_[0]
before, began = peak(), time.perf_counter()
model.fit([X, [[1e15] * 6, [-1e15] * 6]])
print(peak() - before, time.perf_counter() - began)
assert np.array_equal(model.labels_[0], usual)
assert model.labels_[1].tolist() == [-1, -1]
"""


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_an_outlier_far_away(adjacency):
    """Points at 1e15 in six dimensions cost neither memory nor time.

    A box around all cells would contain 1e90 of them. The memory is measured in a separate
    process, because a process reports only the peak since its start.
    """
    HorizontalDBSCAN(1.0, 2, adjacency=adjacency).fit([[[0.0] * 6] * 3])  # compiles the kernels
    command = [sys.executable, "-c", OUTLIER, adjacency]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kilobytes, seconds = map(float, output.split())
    assert kilobytes < 10_000
    assert seconds < 5


def test_the_ends_of_the_range():
    """Cells at ±2**62 are ordinary cells; the two ends of the range are not adjacent."""
    ends = [[2.0**62, 2.0**62], [-(2.0**62), 2.0**62], [2.0**62, -(2.0**62)], [-(2.0**62)] * 2]
    for adjacency in ADJACENCIES:
        model = HorizontalDBSCAN(1.0, 1, adjacency=adjacency).fit([ends])
        assert model.labels_[0].tolist() == [3, 1, 2, 0]
    beyond = 2 * 2.0**62
    with pytest.raises(ValueError, match="'1': ValueError at CountCells, step 1") as caught:
        HorizontalDBSCAN(1.0, 1).fit([[[0.0]], [[1.0], [beyond]]])
    assert str(caught.value) == "cell_size=1.0 is too small for row 1: its cell lies outside ±2**62"


@pytest.mark.parametrize("cell_size", [5e-324, 1e-300, 1e-19])
def test_a_cell_size_that_is_too_small(cell_size):
    """The quotient may even be infinite: the client fails, and its error states the reason."""
    with pytest.raises(ValueError, match=f"cell_size={cell_size} is too small for row 1"):
        HorizontalDBSCAN(cell_size, 1).fit([[[0.0]], [[0.0], [-5.0]]])


def test_a_whole_number_as_cell_size():
    """An int works like the equal float, for far points too."""
    X = [[1e19], [1e19], [1e19 - 5000], [-1e19]]
    model = HorizontalDBSCAN(4, 2, adjacency="full").fit([X])
    assert model.predict(X).tolist() == model.labels_[0].tolist() == [0, 0, -1, -1]
    near = HorizontalDBSCAN(4096, 2).fit([X])
    exact = HorizontalDBSCAN(4096.0, 2).fit([X])
    assert near.predict(X).tolist() == near.labels_[0].tolist() == exact.labels_[0].tolist()
