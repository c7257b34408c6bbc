"""Figures of the curves from which parameters are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from fedlib.selection.density import DensityCurves

__all__ = ["criteria", "density_curves"]


def density_curves(model: DensityCurves) -> Figure:
    """Draw the k-distances with their largest error, and the shares in sparse cells, with knees."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
    ranks, distances = model.ranks, model.distances
    left.fill_between(
        ranks, (distances - model.error).clip(0), distances + model.error, alpha=0.25, lw=0
    )
    left.plot(ranks, distances)
    at = model.distance_knee
    _mark(left, ranks[at], distances[at], f"eps = {distances[at]:.3g}")
    left.set(xlabel="share of points", ylabel=f"distance to neighbour {model.min_samples}")
    right.plot(model.sizes, model.shares)
    at = model.size_knee
    _mark(right, model.sizes[at], model.shares[at], f"cell_size = {model.sizes[at]:.3g}")
    right.set(xlabel="size of a cell", ylabel="share of points in sparse cells", ylim=(0, None))
    return figure


def criteria(frame: pd.DataFrame, best: Mapping[str, int]) -> Figure:
    """Draw one panel per column of a table against its index, with a row marked in each."""
    figure, axes = plt.subplots(
        1, len(best), figsize=(3.75 * len(best), 3), layout="constrained", squeeze=False
    )
    numbers = frame.index.to_numpy()
    for ax, (name, row) in zip(axes[0], best.items(), strict=True):
        values = frame[name].to_numpy()
        ax.plot(numbers, values, ".-")
        _mark(ax, numbers[row], values[row], f"{frame.index.name} = {numbers[row]}")
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
