"""The order and the values of one column, computed from which of its rows are neighbours.

The order of each connected piece of the neighbour relation is that of the Fiedler vector of its
graph (Atkins, Boman, Hendrickson 1998). It is unknown which end of a piece is the larger one.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, laplacian


def matrix_of(replies):
    """Return the neighbour matrix (n_rows, n_rows) of uint8 behind the blocks of one client.

    Parameters
    ----------
    replies : list of (FindNeighbours, NeighbourBlock)
    """
    n_rows = replies[0][0].n_rows
    matrix = np.eye(n_rows, dtype=np.uint8)
    for request, reply in replies:
        block = request.accept(reply).view(np.uint8)
        rows = np.unpackbits(block, axis=1, bitorder="little")[:, :n_rows]
        matrix[request.first : request.stop] |= rows
    return matrix | matrix.T


def recovered_order(matrix):
    """Return the rows in an order of their values: one list per piece, of groups of rows.

    Rows with the same neighbours cannot be distinguished and form a group.
    """
    _, first, group = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    reduced = matrix[np.ix_(first, first)].astype(float)
    n_pieces, piece = connected_components(reduced)
    order = []
    for p in range(n_pieces):
        members = np.flatnonzero(piece == p)
        vectors = np.linalg.eigh(laplacian(reduced[np.ix_(members, members)]))[1]
        along = np.argsort(vectors[:, min(1, len(members) - 1)])
        order.append([np.flatnonzero(group.ravel() == g) for g in members[along]])
    return order


def steps_in_order(order, values):
    """Return how many steps of an order are those of the values, and how many there are.

    A step goes from one group to the next. A piece may be reversed.
    """
    right = total = 0
    for piece in order:
        low = np.array([values[rows].min() for rows in piece])
        high = np.array([values[rows].max() for rows in piece])
        ups, downs = (high[:-1] < low[1:]).sum(), (low[:-1] > high[1:]).sum()
        right += max(ups, downs)
        total += len(piece) - 1
    return right, total


def ranks(order):
    """Return each row's place in a recovered order, from 0 to 1; the rows of a group share one."""
    groups = [rows for piece in order for rows in piece]
    place = np.empty(sum(map(len, groups)))
    for k, rows in enumerate(groups):
        place[rows] = k / len(groups)
    return place


def recovered_values(piece, matrix, eps):
    """Return one value per group of a piece in recovered order, up to a shift and a reflection.

    The values of neighbours differ by less than ``eps``, those of others by more. A linear program
    satisfies all these inequalities with the largest margin.
    """
    one = [rows[0] for rows in piece]
    near = matrix[np.ix_(one, one)].astype(bool)
    groups = len(one)
    entries, bounds = [], []  # the entries of a sparse matrix: row, column, factor

    def require(smaller, larger, bound, margin=1.0):
        """Require that values[larger] - values[smaller] is at most the bound less the margin."""
        row = len(bounds)
        entries.extend([(row, larger, 1.0), (row, smaller, -1.0), (row, groups, margin)])
        bounds.append(bound)

    for i in range(groups - 1):
        last = np.flatnonzero(near[i]).max()  # the farthest neighbour; the next row is not one
        if last > i:
            require(i, last, eps)
        if last + 1 < groups:
            require(last + 1, i, -eps)
        require(i + 1, i, 0.0, margin=0.0)
    row, column, factor = map(np.array, zip(*entries, strict=True))
    shape = (len(bounds), groups + 1)
    constraints = coo_matrix((factor, (row.astype(int), column.astype(int))), shape)
    objective = np.append(np.zeros(groups), -1.0)
    return linprog(objective, constraints.tocsr(), bounds).x[:-1]


def aligned_values(values, true):
    """Return values after the shift and the reflection with which they are nearest to the true."""
    both = [sign * values + np.median(true - sign * values) for sign in (1, -1)]
    return min(both, key=lambda one: np.median(np.abs(one - true)))


def values_of_rows(matrix, eps, true):
    """Return the value of each row that the server computes.

    The shift and the reflection of each piece are those with the smallest error: the server may
    know both from a few rows.
    """
    computed = np.full(len(true), np.nan)
    for piece in recovered_order(matrix):
        if len(piece) < 3:
            continue
        values = np.repeat(recovered_values(piece, matrix, eps), [len(rows) for rows in piece])
        rows = np.concatenate(piece)
        computed[rows] = aligned_values(values, true[rows])
    return computed
