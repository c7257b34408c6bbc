"""Points and centres: the nearest centre, sums and counts by centre, centres that move."""

import numpy as np

from fedlib.kernels import kernel


@kernel
def nearest_centres(X, centres, labels):
    """Write the nearest centre of each point into ``labels`` (n,), of equals the first.

    Returns the sum of the squared distances, compensated: its error does not grow with n.
    """
    total, lost = 0.0, 0.0
    for i in range(X.shape[0]):
        nearest, least = find_nearest(X, i, centres)
        labels[i] = nearest
        total, lost = add(total, lost, least)
    return total + lost


@kernel
def sum_by_label(X, labels, sums, counts):
    """Add the points to the ``sums`` (k, d) and ``counts`` (k,) of their labels, both zero before.

    The sums are compensated, so that they hardly depend on the order of the rows.
    """
    lost = np.zeros(sums.shape)
    for i in range(X.shape[0]):
        c = labels[i]
        counts[c] += 1
        for f in range(X.shape[1]):
            sums[c, f], lost[c, f] = add(sums[c, f], lost[c, f], X[i, f])
    sums += lost


@kernel
def move_centres(X, centres, counts):
    """Move, row by row, the centre nearest to each point to the mean of its points and this one.

    ``counts`` (k,) says how many points each of the ``centres`` (k, d) stands for; both change.
    """
    for i in range(X.shape[0]):
        nearest, _ = find_nearest(X, i, centres)
        n = counts[nearest]
        for f in range(X.shape[1]):
            centres[nearest, f] = (centres[nearest, f] * n + X[i, f]) / (n + 1)
        counts[nearest] = n + 1


@kernel
def find_nearest(X, i, centres):
    """Return the centre nearest to point ``i``, of equals the first, and the squared distance."""
    least, nearest = np.inf, 0
    for c in range(centres.shape[0]):
        squared = 0.0
        for f in range(X.shape[1]):
            away = X[i, f] - centres[c, f]
            squared += away * away
        if squared < least:
            least, nearest = squared, c
    return nearest, least


@kernel
def add(total, lost, value):
    """Return ``total + value`` and ``lost`` with what the rounding took off (Neumaier)."""
    new = total + value
    if abs(total) >= abs(value):
        lost += (total - new) + value
    else:
        lost += (value - new) + total
    return new, lost
