"""Facts about data sets, and their pictures."""

import matplotlib.pyplot as plt
import numpy as np

import study
from fedlib.figures import plots


def describe(data):
    """Return what a table about data sets prints, with the number of repeated rows."""
    _, sizes = np.unique(data.y[data.y >= 0], return_counts=True)
    return {
        "rows": len(data.X),
        "features": data.X.shape[1],
        "classes": len(sizes),
        "smallest class": sizes.min(),
        "largest class": sizes.max(),
        "noise": int((data.y < 0).sum()),
        "repeated rows": int(study.repeats(data.X).sum()),
    }


def pictures(sets, n_shown, random_state, per_row=4):
    """Draw sets with two features in the colours of their classes.

    Parameters
    ----------
    sets : list of Dataset
    n_shown : int
        At most this many points of a set are drawn.
    random_state : int
        The seed of their choice.
    per_row : int, default=4
        The panels in a row of the figure, all of which must be full.
    """
    rng = np.random.default_rng(random_state)
    n_rows = -(-len(sets) // per_row)
    size = study.PAGE_WIDTH, n_rows * (study.PAGE_WIDTH / per_row + 0.4)
    _, axes = plt.subplots(n_rows, per_row, figsize=size, layout="constrained")
    for ax, data in zip(axes.ravel(), sets, strict=True):
        rows = rng.choice(len(data.X), min(n_shown, len(data.X)), replace=False)
        plots.scatter(data.X[rows], data.y[rows], ax=ax, size=3)
        first = data.X[:, 0]
        ax.set_title(data.name)
        ax.set(xticks=[], yticks=[], xlabel=f"{short(first.min())} to {short(first.max())}")


def short(value):
    """Return a number with three significant digits, without an exponent.

    Examples
    --------
    >>> short(1234.5), short(0.00012345), short(2.0)
    ('1230', '0.000123', '2')
    """
    return np.format_float_positional(value, 3, fractional=False, trim="-")
