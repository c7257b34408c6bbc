"""Figures of scores: profiles of clusters, ROC, calibration and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    >>> from fedlib.figures.scores import match_clusters
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


def density_curves(
    distances: pd.Series,
    error: float,
    fractions: pd.Series,
    *,
    distance_knee: int,
    size_knee: int,
    min_samples: int,
) -> Figure:
    """Draw the k-distances with their largest error, and the fractions in sparse cells, with knees.

    Parameters
    ----------
    distances : Series
        The k-distances; the index is the fraction of the points that have a smaller one.
    error : float
        The largest error of a distance.
    fractions : Series
        The fraction of the points in sparse cells; the index is the side of a cell.
    distance_knee, size_knee : int
        The index of the knee in each of the two curves.
    min_samples : int
        The k of the k-distances.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
    ranks, heights = _points(distances)
    left.fill_between(ranks, (heights - error).clip(0), heights + error, alpha=0.25, lw=0)
    left.plot(ranks, heights)
    at = distance_knee
    _mark(left, ranks[at], heights[at], f"eps = {heights[at]:.3g}")
    left.set(xlabel="share of points", ylabel=f"distance to neighbour {min_samples}")
    sizes, sparse = _points(fractions)
    right.plot(sizes, sparse)
    at = size_knee
    _mark(right, sizes[at], sparse[at], f"cell_size = {sizes[at]:.3g}")
    right.set(xlabel="size of a cell", ylabel="share of points in sparse cells", ylim=(0, None))
    return figure


def _points(curve: pd.Series) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the coordinates of a curve."""
    return curve.index.to_numpy(float), curve.to_numpy(float)


def criteria(frame: pd.DataFrame, best: Mapping[str, int]) -> Figure:
    """Draw one panel per column of a table against its index, with a row marked in each."""
    figure, axes = plt.subplots(
        1, len(best), figsize=(3.75 * len(best), 3), layout="constrained", squeeze=False
    )
    counts = frame.index.to_numpy()
    for ax, (name, row) in zip(axes[0], best.items(), strict=True):
        values = frame[name].to_numpy()
        ax.plot(counts, values, ".-")
        _mark(ax, counts[row], values[row], f"{frame.index.name} = {counts[row]}")
        ax.set(xlabel=frame.index.name, ylabel=name)
    return figure


def _mark(ax: Axes, x: float, y: float, text: str) -> None:
    """Mark a point of a curve and write a text next to it."""
    ax.plot([x], [y], "o", color="C1")
    left_half = x < sum(ax.get_xlim()) / 2
    ax.annotate(
        text,
        (x, y),
        xytext=(8 if left_half else -8, 8),
        textcoords="offset points",
        ha="left" if left_half else "right",
    )


WIDEST = 7.5  # width of a page, in inches
LONG = 9  # letters of a name that is drawn at an angle
LIMIT = 2.0  # standard deviations at which the colours end


def profiles(
    means: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    rows: Sequence[str],
    features: Sequence[str],
) -> Figure:
    """Draw the mean of each feature in each cluster.

    The colour of a cell is the distance of the cluster's mean from the mean of all rows, in
    standard deviations of all rows. The text in it is the cluster's mean itself.

    Parameters
    ----------
    means : array (n_clusters, n_features)
    mean, std : array (n_features,)
        Of all rows. A standard deviation of 0 counts as 1.
    rows : sequence of str
        The name of each cluster.
    features : sequence of str
        The name of each feature.

    Returns
    -------
    Figure

    Examples
    --------
    >>> from fedlib.figures.scores import profiles
    >>> figure = profiles([[1.0, 5.0], [3.0, 5.0]], [2.0, 5.0], [1.0, 0.0], ["A", "B"], ["x", "y"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1', '5', '3', '5']
    """
    means, mean, std = (np.asarray(values, float) for values in (means, mean, std))
    n_clusters, n_features = means.shape
    width = min(WIDEST, 2.0 + 0.9 * n_features)
    figure, ax = plt.subplots(figsize=(width, 1.2 + 0.42 * n_clusters), layout="constrained")
    shifts = (means - mean) / np.where(std > 0, std, 1.0)
    image = ax.imshow(shifts, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    for (k, j), shift in np.ndenumerate(shifts):
        colour = "white" if abs(shift) > 0.7 * LIMIT else "black"
        ax.text(j, k, f"{means[k, j]:.3g}", ha="center", va="center", color=colour)
    ax.set_xticks(range(n_features), features)
    if max(map(len, features), default=0) > LONG:
        for label in ax.get_xticklabels():
            label.set(rotation=30, ha="right")
    ax.set_yticks(range(n_clusters), rows)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    figure.colorbar(image, ax=ax, label="standard deviations", extend="both")
    return figure


def curves(
    above: ArrayLike,
    classes: Sequence[object],
    means: ArrayLike,
    fractions: ArrayLike,
    *,
    auc: float,
    log_loss: float,
) -> Figure:
    """Draw the ROC curve and the calibration curve side by side.

    Parameters
    ----------
    above : array (2, n_thresholds)
        The fraction of the rows of each class above each threshold, ascending.
    classes : sequence of two
        The negative and the positive class.
    means, fractions : array (n_groups,)
        The mean probability in each group of rows, and the fraction of the positive class in it.
    auc, log_loss : float
        For the titles.

    Returns
    -------
    Figure

    Examples
    --------
    >>> from fedlib.figures.scores import curves
    >>> figure = curves([[0, 1], [1, 1]], ["no", "yes"], [0.2], [0.3], auc=1.0, log_loss=0.5)
    >>> figure.axes[0].get_title()
    'AUC = 1.000'
    """
    figure, (roc, calibration) = plt.subplots(1, 2, figsize=(WIDEST, 3.6), layout="constrained")
    above = np.asarray(above, float)
    roc.plot([0, *above[0]], [0, *above[1]])
    roc.set(
        xlabel=f"share of {classes[0]} above the threshold",
        ylabel=f"share of {classes[1]} above the threshold",
        title=f"AUC = {auc:.3f}",
    )
    calibration.plot(means, fractions, marker="o")
    calibration.set(
        xlabel="mean probability",
        ylabel=f"share of {classes[1]}",
        title=f"log-loss = {log_loss:.3f}",
    )
    for ax in (roc, calibration):
        ax.plot([0, 1], [0, 1], color="#8c8c8c", lw=0.8, ls="--")
        ax.set_aspect("equal")
    return figure


def class_curves(above: ArrayLike, classes: Sequence[object], *, auc: float) -> Figure:
    """Draw the ROC curve of each class against the others.

    Parameters
    ----------
    above : array (n_classes, 2, n_thresholds)
        The fraction of the rows of the other classes and of the class above each threshold,
        ascending.
    classes : sequence (n_classes,)
        Those of the curves.
    auc : float
        For the title.

    Returns
    -------
    Figure

    Examples
    --------
    >>> figure = class_curves([[[0, 1], [1, 1]]], ["no"], auc=1.0)
    >>> figure.axes[0].get_title()
    'mean AUC = 1.000'
    """
    figure, ax = plt.subplots(figsize=(WIDEST / 2, 3.6), layout="constrained")
    for (others, own), label in zip(np.asarray(above, float), classes, strict=True):
        ax.plot([0, *others], [0, *own], label=str(label))
    ax.plot([0, 1], [0, 1], color="#8c8c8c", lw=0.8, ls="--")
    ax.set(
        xlabel="share of the other classes above the threshold",
        ylabel="share of the class above the threshold",
        title=f"mean AUC = {auc:.3f}",
        aspect="equal",
    )
    ax.legend()
    return figure


def learning_curve(
    values: ArrayLike, name: str, *, best: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a metric after each round, and mark the best round.

    Parameters
    ----------
    values : array (n_rounds,)
    name : str
        The name of the metric.
    best : int, optional
        The index of the best round, from 0.
    ax : Axes, optional
        By default the current ones.

    Examples
    --------
    >>> from fedlib.figures.scores import learning_curve
    >>> learning_curve([3.0, 1.0, 2.0], "mae", best=1, ax=plt.figure().subplots()).get_ylabel()
    'mae'
    """
    values = np.asarray(values, float)
    ax = plt.gca() if ax is None else ax
    ax.plot(range(1, len(values) + 1), values)
    if best is not None:
        ax.plot(best + 1, values[best], "o")
        ax.annotate(
            f"round {best + 1}", (best + 1, values[best]), (4, 6), textcoords="offset points"
        )
    ax.set_xlabel("rounds")
    ax.set_ylabel(name)
    return ax


def contributions(
    values: ArrayLike,
    X: ArrayLike,
    names: Sequence[str],
    *,
    most: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Draw what each feature adds to the prediction of each row, one point per row and feature.

    The features with the largest mean absolute value come first. The colour of a point is the rank
    of the row's value of the feature; grey is a missing value.

    Parameters
    ----------
    values : array (n_rows, n_features)
        SHAP values, without their mean.
    X : array (n_rows, n_features)
        The values of the features.
    names : sequence of str
        The name of each feature.
    most : int, default=10
        The count of features that are drawn, at least 1.
    ax : Axes, optional
        By default the current ones.

    Examples
    --------
    >>> from fedlib.figures.scores import contributions
    >>> ax = plt.figure().subplots()
    >>> ax = contributions([[0.1, -2.0], [0.0, 1.0]], [[1, 2], [3, 4]], ["age", "sex"], ax=ax)
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['sex', 'age']
    """
    values, X = np.asarray(values, float), np.asarray(X, float)
    ax = plt.gca() if ax is None else ax
    shown = np.argsort(-np.abs(values).mean(axis=0), kind="stable")[:most]
    shades = plt.get_cmap("viridis")
    for place, f in enumerate(shown):
        known = ~np.isnan(X[:, f])
        _, ranks = np.unique(X[known, f], return_inverse=True)
        colours = np.full((len(X), 4), 0.6)
        colours[known] = shades(ranks / max(ranks.max(initial=0), 1))
        ax.scatter(values[:, f], place + _spread(values[:, f]), s=6, color=colours, linewidths=0)
    ax.axvline(0, color="#8c8c8c", lw=0.8)
    ax.set_yticks(range(len(shown)), [names[f] for f in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlabel("contribution to the margin (dark: low values, bright: high values)")
    return ax


def _spread(values: NDArray[np.float64], n_bins: int = 60) -> NDArray[np.float64]:
    """Return heights within ±0.4 for points, so that equal ones do not cover each other."""
    low, high = values.min(initial=0), values.max(initial=0)
    bins = np.floor((values - low) / ((high - low) or 1.0) * (n_bins - 1)).astype(int)
    order = np.argsort(bins, kind="stable")
    counts = np.bincount(bins, minlength=n_bins)
    rank = np.empty(len(values), int)
    rank[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    side = np.where(rank % 2, -1, 1) * ((rank + 1) // 2)
    heights: NDArray[np.float64] = 0.8 * side / max(counts.max(), 1)
    return np.clip(heights, -0.4, 0.4)
