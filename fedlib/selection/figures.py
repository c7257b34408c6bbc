"""Figures of the curves from which parameters are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from fedlib.selection.density import DensityCurves

__all__ = ["density_curves", "mark"]


def density_curves(model: DensityCurves) -> Figure:
    """Draw the k-distances with their largest error, and the shares in sparse cells, with knees."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
    ranks, distances = model.ranks, model.distances
    left.fill_between(
        ranks, (distances - model.error).clip(0), distances + model.error, alpha=0.25, lw=0
    )
    left.plot(ranks, distances)
    at = model.distance_knee
    mark(left, ranks[at], distances[at], f"eps = {distances[at]:.3g}")
    left.set(xlabel="share of points", ylabel=f"distance to neighbour {model.min_samples}")
    right.plot(model.sizes, model.shares)
    at = model.size_knee
    mark(right, model.sizes[at], model.shares[at], f"cell_size = {model.sizes[at]:.3g}")
    right.set(xlabel="size of a cell", ylabel="share of points in sparse cells", ylim=(0, None))
    return figure


def mark(ax: Axes, x: float, y: float, text: str) -> None:
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
