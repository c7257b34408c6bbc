"""Figures of the curves from which parameters are chosen."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray


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
