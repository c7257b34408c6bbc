"""The agreement of a clustering with the true classes: the scores of the sources, and accuracy.

All scores derive from one sparse contingency table, whose cell :math:`n_{ij}` is the count of rows
of class *i* in cluster *j*. Noise (−1) counts as one cluster, as in the sources (M1, Section 5.1).
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from fedlib.core.targets import read_classes, read_labels
from fedlib.figures.scores import check_labellings


def clustering_scores(true: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return five scores of a clustering, compared with the true classes.

    Parameters
    ----------
    true : array-like (n_rows,)
        The class of each row: integers or strings.
    predicted : array-like (n_rows,)
        The cluster of each row. Noise, −1, counts as one cluster.

    Returns
    -------
    dict of str to float
        In this order:

        ``AMI``
            Adjusted mutual information [1]_ with the arithmetic mean of the entropies, as in
            scikit-learn; about 0 for random labels, at most 1.
        ``ARI``
            Adjusted Rand index [2]_; about 0 for random labels, in [−0.5, 1].
        ``Purity``
            Fraction of rows that belong to the most frequent class of their cluster, in (0, 1].
        ``BCubed precision``, ``BCubed recall``
            Mean over the rows of the fraction of the row's cluster that has the row's class, and of
            the fraction of the row's class that is in the row's cluster [3]_; in (0, 1].

    Raises
    ------
    ValueError
        When ``true`` or ``predicted`` is empty or not one-dimensional, a label is missing, or their
        lengths differ.

    Notes
    -----
    Time and memory are proportional to the count of rows and of occupied cells of the contingency
    table, not to the pairs of rows. Only the expectation in AMI takes O(classes * clusters) time.

    References
    ----------
    .. [1] N. X. Vinh, J. Epps, J. Bailey, "Information theoretic measures for clusterings
       comparison", Journal of Machine Learning Research 11, 2010.
    .. [2] L. Hubert, P. Arabie, "Comparing partitions", Journal of Classification 2, 1985.
    .. [3] E. Amigó, J. Gonzalo, J. Artiles, F. Verdejo, "A comparison of extrinsic clustering
       evaluation metrics based on formal constraints", Information Retrieval 12, 2009.

    Examples
    --------
    >>> from fedlib.evaluation.metrics import clustering_scores
    >>> scores = clustering_scores([0, 0, 0, 1, 1, 1], [5, 5, 5, 5, 7, -1])
    >>> for name, score in scores.items():
    ...     print(f"{name}: {score:.4f}")
    AMI: 0.1017
    ARI: 0.1667
    Purity: 0.8333
    BCubed precision: 0.7500
    BCubed recall: 0.6667
    """
    check_labellings(true, predicted)
    true, predicted = read_classes(true, "true"), read_classes(predicted, "predicted")
    table = contingency_matrix(true, predicted, sparse=True).tocoo()
    cells = table.data
    classes = np.bincount(table.row, weights=cells).astype(np.int64)
    clusters = np.bincount(table.col, weights=cells).astype(np.int64)
    majority = np.zeros_like(clusters)
    np.maximum.at(majority, table.col, cells)

    n_rows = len(true)
    return {
        "AMI": float(adjusted_mutual_info_score(true, predicted)),
        "ARI": _adjusted_rand_index(cells, classes, clusters),
        "Purity": float(majority.sum() / n_rows),
        "BCubed precision": float((cells**2 / clusters[table.col]).sum() / n_rows),
        "BCubed recall": float((cells**2 / classes[table.row]).sum() / n_rows),
    }


def matched_accuracy(true: ArrayLike, predicted: ArrayLike) -> float:
    """Return the fraction of rows with the same label under the best matching of the clusters.

    Parameters
    ----------
    true : array-like (n_rows,)
        The cluster of each row, an integer; −1 is noise.
    predicted : array-like (n_rows,)
        Another clustering of the same rows. Each of its clusters is matched with at most one of
        ``true``, so that the count of rows that agree is maximal. Noise agrees only with noise.

    Returns
    -------
    float
        In [0, 1].

    Notes
    -----
    P (Section 4.3) reports accuracy as the percentage of agreement with DBSCAN on all data, and
    does not specify how clusters are matched. This is the usual definition.

    Raises
    ------
    ValueError
        When ``true`` or ``predicted`` is empty or not one-dimensional, a label is no integer from
        -1, or their lengths differ.

    Examples
    --------
    Cluster 7 matches cluster 0 and contains all of its three rows. Cluster 5 matches cluster 1 and
    contains two of its four rows. One of three noise rows is noise in both.

    >>> from fedlib.evaluation.metrics import matched_accuracy
    >>> matched_accuracy([0, 0, 0, 1, 1, 1, 1, -1, -1, -1], [7, 7, 7, 5, 5, -1, -1, -1, 7, 8])
    0.6
    """
    check_labellings(true, predicted)
    true, predicted = read_labels(true, "true"), read_labels(predicted, "predicted")
    both = (true >= 0) & (predicted >= 0)
    agree = np.count_nonzero((true < 0) & (predicted < 0))
    if both.any():
        table = contingency_matrix(true[both], predicted[both])
        agree += table[linear_sum_assignment(table, maximize=True)].sum()
    return float(agree / len(true))


def _adjusted_rand_index(cells: np.ndarray, classes: np.ndarray, clusters: np.ndarray) -> float:
    """Return the adjusted Rand index, from the sizes of cells, classes and clusters.

    It is the value of `sklearn.metrics.adjusted_rand_score`, which would build the table again.
    """
    # Ordered pairs of different rows, as Python integers, since their products may exceed 64 bits.
    n_rows = int(cells.sum())
    together = int((cells**2).sum()) - n_rows
    same_class = int((classes**2).sum()) - n_rows
    same_cluster = int((clusters**2).sum()) - n_rows
    all_pairs = n_rows * (n_rows - 1)
    if same_class == same_cluster == together:
        return 1.0
    # (index − expected) / (maximum − expected), both multiplied by 2 · all_pairs.
    chance = same_class * same_cluster
    return (2 * (together * all_pairs - chance)) / (
        (same_class + same_cluster) * all_pairs - 2 * chance
    )
