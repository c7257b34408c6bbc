"""The clusters of one clustering paired with those of another one, for colours and scores."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix


def match_clusters(labels: ArrayLike, reference: ArrayLike) -> NDArray[np.int64]:
    """Return labels in which each cluster has the number of its partner in a reference.

    Use it to compare two clusterings of the same rows, for example by colours.

    Parameters
    ----------
    labels : array-like (n_rows,)
        The cluster of each row, an integer; −1 is noise.
    reference : array-like (n_rows,)
        Another clustering of the same rows.

    Returns
    -------
    array (n_rows,) of int64
        The same clusters with other labels. Each is paired with at most one cluster of the
        reference, so that pairs have as many rows in common as possible. A cluster without a
        partner gets a label above those of the reference. Noise stays −1.

    Raises
    ------
    ValueError
        When an argument is empty or not one-dimensional, or their lengths differ.

    Notes
    -----
    Time is linear in the rows and cubic in the clusters, and memory is that of a table of all
    pairs of clusters.

    Examples
    --------
    >>> from fedlib.figures.matching import match_clusters
    >>> match_clusters([1, 1, 0, 0, 2, -1], reference=[0, 0, 1, 1, 1, 0])
    array([ 0,  0,  1,  1,  2, -1])
    """
    reference, labels = check_labellings(reference, labels)
    clusters, cluster = np.unique(labels, return_inverse=True)
    partners = np.unique(reference[reference >= 0])
    common = contingency_matrix(labels, reference)[np.ix_(clusters >= 0, np.unique(reference) >= 0)]
    rows, columns = linear_sum_assignment(common, maximize=True)
    paired = common[rows, columns] > 0
    label = np.full(len(common), -1)
    label[rows[paired]] = partners[columns[paired]]
    alone = np.flatnonzero(label < 0)
    label[alone] = partners.max(initial=-1) + 1 + np.arange(len(alone))
    return np.concatenate([np.full(len(clusters) - len(common), -1), label])[cluster]


def check_labellings(true: ArrayLike, predicted: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both labellings as arrays; raise ValueError when they are invalid."""
    true, predicted = np.asarray(true), np.asarray(predicted)
    for name, labels in (("true", true), ("predicted", predicted)):
        if labels.ndim != 1 or labels.size == 0:
            raise ValueError(
                f"{name} must be a one-dimensional array of at least one label,"
                f" got an array of shape {labels.shape}"
            )
    if len(true) != len(predicted):
        raise ValueError(
            "true and predicted must have the same length,"
            f" got {len(true)} and {len(predicted)} labels"
        )
    return true, predicted
