"""Figures of scores: profiles of clusters, ROC and calibration curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from fedlib.scores.clustering import ClusterScores
    from fedlib.scores.evaluation import PredictionScores

__all__ = ["curves", "profiles"]

WIDEST = 7.5  # width of a page, in inches
LONG = 9  # letters of a name that is drawn at an angle
LIMIT = 2.0  # standard deviations at which the colours end


def profiles(scores: ClusterScores) -> Figure:
    """Draw the mean of each feature in each cluster.

    The colour of a cell is the distance of the cluster's mean from the mean of all rows, in
    standard deviations of all rows. The number in it is the cluster's mean itself.

    Parameters
    ----------
    scores : ClusterScores
        The model of a fitted `fedlib.FederatedClusteringScore`.

    Returns
    -------
    Figure
    """
    n_clusters, n_features = scores.means.shape
    width = min(WIDEST, 2.0 + 0.9 * n_features)
    figure, ax = plt.subplots(figsize=(width, 1.2 + 0.42 * n_clusters), layout="constrained")
    std = np.where(scores.std > 0, scores.std, 1.0)
    shifts = (scores.means - scores.mean) / std
    image = ax.imshow(shifts, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    for (k, j), shift in np.ndenumerate(shifts):
        colour = "white" if abs(shift) > 0.7 * LIMIT else "black"
        ax.text(j, k, f"{scores.means[k, j]:.3g}", ha="center", va="center", color=colour)
    names = [str(j) for j in range(n_features)] if not scores.features else scores.features
    ax.set_xticks(range(n_features), names)
    if max(map(len, names), default=0) > LONG:
        for label in ax.get_xticklabels():
            label.set(rotation=30, ha="right")
    rows = zip(scores.labels.tolist(), scores.counts.tolist(), strict=True)
    ax.set_yticks(range(n_clusters), [f"cluster {k} (n={n:,})" for k, n in rows])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    figure.colorbar(image, ax=ax, label="standard deviations", extend="both")
    return figure


def curves(scores: PredictionScores) -> Figure:
    """Draw the ROC curve and the calibration curve side by side.

    Parameters
    ----------
    scores : PredictionScores
        The model of a fitted `fedlib.FederatedEvaluation`.

    Returns
    -------
    Figure
    """
    figure, (roc, calibration) = plt.subplots(1, 2, figsize=(WIDEST, 3.6), layout="constrained")
    shares = np.cumsum(scores.counts[:, ::-1], axis=1) / scores.counts.sum(axis=1, keepdims=True)
    roc.plot([0, *shares[0]], [0, *shares[1]])
    roc.set(
        xlabel=f"share of {scores.classes[0]} above the threshold",
        ylabel=f"share of {scores.classes[1]} above the threshold",
        title=f"AUC = {scores.auc:.3f}",
    )
    n = scores.groups.sum(axis=0)
    share = scores.groups[1, n > 0] / n[n > 0]
    calibration.plot(scores.group_means[n > 0], share, marker="o")
    calibration.set(
        xlabel="mean probability",
        ylabel=f"share of {scores.classes[1]}",
        title=f"log-loss = {scores.log_loss:.3f}",
    )
    for ax in (roc, calibration):
        ax.plot([0, 1], [0, 1], color="#8c8c8c", lw=0.8, ls="--")
        ax.set_aspect("equal")
    return figure
