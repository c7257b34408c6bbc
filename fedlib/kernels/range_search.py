"""Core points and border points of DBSCAN on a grid: points compared with ranges of points.

With a grid (`fedlib.kernels.grid`), the cells near a cell are a few ranges, and so are their
points. A point is compared with all points of a range one after the other. Only if the cells of a
range have many points, each cell is looked at first.

`Cells` and `Block` are those of `fedlib.kernels.density`. All radii are the same. The points should
be in Fortran order, so that the coordinates along a feature are next to each other, for vector
instructions. These also need unsigned indices: signed ones might count from the end.

The cells of a grid around which enough points lie, found from counts per cell.

The cells are sorted by key, as in `fedlib.kernels.grid`. The cells near a cell are a range
of keys in each row near it, so one subtraction of cumulative counts sums a row.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.density import (
    NONE,
    how_many,
    precedes,
    squared_distance,
    squared_distance_to_box,
    squared_distances_of_box,
    sum_weights,
)


@kernel
def _advance(keys, at, wanted):
    """Return the first index from ``at`` on whose key is at least ``wanted``.

    The steps double until they pass the key, so that a long way takes logarithmic time.
    """
    step = 1
    while at + step <= keys.size and keys[at + step - 1] < wanted:
        at += step
        step *= 2
    stop = min(keys.size, at + step - 1)  # its key is at least wanted, or it is the end
    while at < stop:
        middle = (at + stop) // 2
        if keys[middle] < wanted:
            at = middle + 1
        else:
            stop = middle
    return at


@kernel
def find_heavy(grid, totals, enough, first, stop, heavy):
    """Write to ``heavy[first:stop]`` which cells have near cells with enough points in all.

    Rows are added for all cells in turn, nearest first. A cell with enough points drops out, so
    that dense regions cost a few rows only. Within a row both ends of the range only move forward.

    Parameters
    ----------
    grid : fedlib.kernels.grid.Grid
        With the nearest rows first.
    totals : array (n_cells + 1,) of int64
        The count of points in all cells before each cell.
    enough : int
        The count of points from which a cell is heavy.
    first, stop : int
        The range of cells.
    heavy : array (n_cells,) of bool
    """
    keys = grid.keys
    heavy[first:stop] = False
    undecided = np.arange(first, stop)
    sums = np.zeros(undecided.size, np.int64)
    n = undecided.size
    for row in range(grid.row_offsets.size):
        low = grid.row_offsets[row] - grid.row_reach[row]
        high = grid.row_offsets[row] + grid.row_reach[row]
        a = b = n_left = 0
        for i in range(n):
            cell = undecided[i]
            a = _advance(keys, a, keys[cell] + low)
            b = _advance(keys, max(a, b), keys[cell] + high + 1)
            total = sums[i] + totals[b] - totals[a]
            if total >= enough:
                heavy[cell] = True
            else:
                undecided[n_left], sums[n_left] = cell, total
                n_left += 1
        n = n_left
        if n == 0:
            break


LARGE_CELL = 16  # mean count of points in the cells of a range from which each is looked at


@kernel
def _count(points, axes, i, first, stop, limit):
    """Return how many of the points ``first..stop`` are within a squared radius of point i."""
    count = 0
    for j in range(np.uint64(first), np.uint64(stop)):
        count += squared_distance(points, axes, i, j) <= limit
    return count


@kernel
def _weigh(points, axes, weights, i, first, stop, limit):
    """Return the weight of the points that `_count` counts."""
    if weights.size == 0:
        return float(_count(points, axes, i, first, stop, limit))
    total = 0.0
    for j in range(first, stop):
        if squared_distance(points, axes, i, j) <= limit:
            total += weights[j]
    return total


@kernel
def find_core(block, cells, min_samples):
    """Write which points of a block are core points, and if none, some or all of a cell are.

    The nearest ranges come first, and a search stops when the weight is enough. A cell within the
    radius is counted as a whole, as a node is in `fedlib.kernels.node_search`.
    """
    points, axes, weights, limit = cells.points, cells.axes, cells.weights, cells.squared_radii[0]
    start, core, boxes = cells.start, cells.core, cells.boxes
    near, box = block.near, cells.box
    for g in range(block.group_start.size - 1):
        for a in block.cells[block.group_start[g] : block.group_start[g + 1]]:
            n_core = 0
            for i in range(start[a], start[a + 1]):
                total = 0.0
                r = block.near_start[g]
                while total < min_samples and r < block.near_start[g + 1]:
                    b, last = near[r, 0], near[r, 1]
                    if start[last] - start[b] < LARGE_CELL * (last - b):
                        total += _weigh(points, axes, weights, i, start[b], start[last], limit)
                        b = last
                    while total < min_samples and b < last:
                        nearest, farthest = 0.0, np.inf
                        if box[b] >= 0:
                            nearest, farthest = squared_distances_of_box(
                                points, axes, i, boxes, box[b]
                            )
                        if farthest <= limit:
                            total += sum_weights(weights, start[b], start[b + 1])
                        elif nearest <= limit:
                            total += _weigh(points, axes, weights, i, start[b], start[b + 1], limit)
                        b += 1
                    r += 1
                core[i] = total >= min_samples
                n_core += core[i]
            cells.has_core[a] = how_many(n_core, start[a + 1] - start[a])


@kernel
def _count_core(points, axes, core, i, first, stop, limit):
    """Return how many of the points that `_count` counts are core points."""
    count = 0
    for j in range(np.uint64(first), np.uint64(stop)):
        count += core[j] & (squared_distance(points, axes, i, j) <= limit)
    return count


@kernel
def _find_nearest(points, axes, core, i, first, stop, best, bound):
    """Return the nearest core point of some points to point i, if it is better than ``best``.

    Also return its squared distance, else ``bound``, beyond which points do not matter.
    """
    for j in range(first, stop):
        if core[j]:
            squared = squared_distance(points, axes, i, j)
            if squared <= bound and (
                best < 0 or squared < bound or precedes(points, axes, j, best)
            ):
                best, bound = j, squared
    return best, bound


@kernel
def find_border(block, cells, joined):
    """Write to ``joined`` (n,) which cell each point of a block joins that is no core point.

    It is the cell of the nearest core point that has it in its neighbourhood, or -1. Ties go to the
    first core point in lexicographic order.
    """
    points, axes, core, has_core = cells.points, cells.axes, cells.core, cells.has_core
    start, boxes, box, near = cells.start, cells.boxes, cells.box, block.near
    for g in range(block.group_start.size - 1):
        for a in block.cells[block.group_start[g] : block.group_start[g + 1]]:
            for i in range(start[a], start[a + 1]):
                if core[i]:
                    continue
                # A bare -1 would have a type of its own, and what it is passed to a second variant.
                best, bound, best_cell = np.int64(-1), cells.squared_radii[0], -1
                for r in range(block.near_start[g], block.near_start[g + 1]):
                    b, last = near[r, 0], near[r, 1]
                    if start[last] - start[b] < LARGE_CELL * (last - b) and not _count_core(
                        points, axes, core, i, start[b], start[last], bound
                    ):
                        continue
                    for c in range(b, last):
                        if has_core[c] == NONE or (
                            box[c] >= 0
                            and squared_distance_to_box(points, axes, i, boxes, box[c]) > bound
                        ):
                            continue
                        before = best
                        best, bound = _find_nearest(
                            points, axes, core, i, start[c], start[c + 1], best, bound
                        )
                        if best != before:
                            best_cell = c
                joined[i] = best_cell
