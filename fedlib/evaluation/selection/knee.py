"""The knee of a curve: where it bends most.

Source: V. Satopää, J. Albrecht, D. Irwin, B. Raghavan, Finding a "kneedle" in a haystack: detecting
knee points in system behavior, ICDCS Workshops 2011. For a curve without noise, their knee is the
point that is farthest from the chord between both ends, after both axes are scaled to [0, 1].
"""

from __future__ import annotations

from fedlib.core.array_types import Floats


def find_knee(x: Floats, y: Floats) -> int:
    """Return the index of the point that is farthest below the chord between both ends.

    Parameters
    ----------
    x : array (n,)
        In ascending order, n > 0.
    y : array (n,)
        Monotone.

    Returns
    -------
    int
        Ties go to the first point. For a curve without a point below its chord, 0 if it descends
        and n - 1 if it ascends or is flat.

    Examples
    --------
    >>> import numpy as np
    >>> find_knee(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 3.0, 2.0, 1.0]))
    1
    """
    width, height = x[-1] - x[0], y[-1] - y[0]
    if height == 0 or width == 0:
        return len(x) - 1
    across, along = (x - x[0]) / width, (y - y[0]) / height  # both from 0 to 1
    below = across - along if height > 0 else along - across
    best = int(below.argmax())
    return len(x) - 1 if height > 0 and below[best] <= 0 else best
