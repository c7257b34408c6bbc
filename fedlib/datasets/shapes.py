"""Points in the plane in clusters of various shapes: rings, arcs, bars, waves, places on a map.

P compares its algorithms on two sets of a generator that is not published, and on the places of
SEQUOIA 2000. This module generates sets of the same sizes: shapes with noise between them, and
places along coasts and valleys, whose density varies by orders of magnitude. The points differ from
P's, so they can test P's claims but not reproduce its figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Points]

EDGE = 100.0  # the edge of the square that contains every set


def shapes(n_points: int, crowded: bool = False, random_state: int = 0) -> tuple[Points, NDArray]:
    """Draw points from shapes with a uniform density each, and noise.

    Parameters
    ----------
    n_points : int
        At least 0.
    crowded : bool, default=False
        False: six shapes with similar densities, far apart, and 6 % noise, half of it uniform and
        half in three thin patches. True: twelve shapes with small gaps, whose densities differ by a
        factor of up to four, and 10 % uniform noise.
    random_state : int, default=0
        The seed.

    Returns
    -------
    X : array (n_points, 2) of float64
        In a square with edges of 100, in random order.
    y : array (n_points,) of int64
        The shape of each point; -1 for noise.

    Raises
    ------
    ValueError
        When ``n_points`` is negative.

    Examples
    --------
    >>> from fedlib.datasets.shapes import shapes
    >>> X, y = shapes(1000)
    >>> X.shape, sorted(set(y.tolist()))
    ((1000, 2), [-1, 0, 1, 2, 3, 4, 5])
    """
    _check(n_points)
    rng = np.random.default_rng(random_state)
    drawn = _CROWDED if crowded else _APART
    noise = _even if crowded else _patchy
    fraction = 0.10 if crowded else 0.06
    weights = np.array([weight for weight, _ in drawn])
    sizes = rng.multinomial(n_points, np.append(fraction, (1 - fraction) * weights / weights.sum()))
    parts = [noise(rng, sizes[0])]
    parts += [draw(rng, n) for (_, draw), n in zip(drawn, sizes[1:], strict=True)]
    return _shuffled(rng, parts)


def places(n_points: int, random_state: int = 0) -> tuple[Points, NDArray]:
    """Draw places along three coasts and five valleys, in towns and between them.

    Parameters
    ----------
    n_points : int
        At least 0.
    random_state : int, default=0
        The seed.

    Returns
    -------
    X : array (n_points, 2) of float64
        In a square with edges of 100 or close to it, in random order.
    y : array (n_points,) of int64
        The coast or valley of each place; -1 for the 3 % that are spread uniformly.

    Raises
    ------
    ValueError
        When ``n_points`` is negative.

    Examples
    --------
    >>> from fedlib.datasets.shapes import places
    >>> X, y = places(1000)
    >>> X.shape, y.min(), y.max()
    ((1000, 2), np.int64(-1), np.int64(7))
    """
    _check(n_points)
    rng = np.random.default_rng(random_state)
    lines = [_coast(rng, 8 + 30 * i) for i in range(3)] + [_valley(rng) for _ in range(5)]
    lengths = np.array([np.hypot(*np.diff(line, axis=0).T).sum() for line in lines])
    fractions = rng.uniform(0.5, 2, len(lines)) * lengths
    sizes = rng.multinomial(n_points, np.append(0.03, 0.97 * fractions / fractions.sum()))
    parts = [_even(rng, sizes[0])]
    parts += [_settle(rng, line, n) for line, n in zip(lines, sizes[1:], strict=True)]
    return _shuffled(rng, parts)


def _check(n_points: int) -> None:
    if n_points < 0:
        raise ValueError(f"n_points must be at least 0, got {n_points}")


def _shuffled(rng: np.random.Generator, parts: list[Points]) -> tuple[Points, NDArray]:
    """Return the points in random order and the number of their part; the first part is -1."""
    X = np.concatenate(parts)
    y = np.repeat(np.arange(len(parts)) - 1, [len(part) for part in parts])
    order = rng.permutation(len(X))
    return X[order], y[order]


# Shapes. Each function takes a generator and a number of points.


def _even(rng: np.random.Generator, n: int) -> Points:
    return rng.uniform(0, EDGE, (n, 2))


def _patchy(rng: np.random.Generator, n: int) -> Points:
    """Draw half of the points uniformly, half in three patches thinner than any shape."""
    centres = np.array([[50.0, 50.0], [88.0, 50.0], [12.0, 50.0]])
    patches = centres[rng.integers(3, size=n // 2)] + rng.uniform(-8, 8, (n // 2, 2))
    return np.concatenate([_even(rng, n - n // 2), patches])


def _disc(rng: np.random.Generator, n: int, x: float, y: float, radius: float) -> Points:
    return _ring(rng, n, x, y, 0.0, radius)


def _ring(
    rng: np.random.Generator,
    n: int,
    x: float,
    y: float,
    inner: float,
    outer: float,
    start: float = 0.0,
    turn: float = 2 * np.pi,
) -> Points:
    """Draw points uniformly between two radii and between the angles start and start + turn."""
    radius = np.sqrt(rng.uniform(inner**2, outer**2, n))
    angle = start + rng.uniform(0, turn, n)
    return np.column_stack([x + radius * np.cos(angle), y + radius * np.sin(angle)])


def _bar(
    rng: np.random.Generator, n: int, x: float, y: float, width: float, height: float, angle: float
) -> Points:
    along = rng.uniform(-0.5, 0.5, (n, 2)) * (width, height)
    cos, sin = np.cos(angle), np.sin(angle)
    return along @ np.array([[cos, sin], [-sin, cos]]) + (x, y)


def _wave(
    rng: np.random.Generator, n: int, x: float, y: float, width: float, height: float, thick: float
) -> Points:
    along = rng.uniform(0, 1, n)
    across = rng.uniform(-0.5, 0.5, n) * thick
    return np.column_stack([x + width * along, y + height * np.sin(2 * np.pi * along) + across])


# The weight of a shape is about its area times its relative density.
_APART: list[tuple[float, Draw]] = [
    (450, partial(_ring, x=22, y=76, inner=9, outer=15)),
    (300, partial(_disc, x=78, y=78, radius=10)),
    (330, partial(_bar, x=24, y=22, width=34, height=9, angle=0.5)),
    (280, partial(_ring, x=72, y=22, inner=11, outer=16, start=0.3, turn=np.pi)),
    (270, partial(_ring, x=82, y=14, inner=6, outer=11, start=np.pi, turn=np.pi)),
    (260, partial(_wave, x=38, y=90, width=26, height=4, thick=6)),
]
_CROWDED: list[tuple[float, Draw]] = [
    (900, partial(_ring, x=20, y=78, inner=11, outer=16)),
    (600, partial(_disc, x=20, y=78, radius=7)),
    (250, partial(_disc, x=45, y=86, radius=7)),
    (500, partial(_bar, x=62, y=84, width=14, height=18, angle=0.0)),
    (300, partial(_wave, x=73, y=84, width=24, height=6, thick=7)),
    (700, partial(_ring, x=28, y=38, inner=13, outer=18, start=0.5, turn=1.2 * np.pi)),
    (350, partial(_disc, x=29, y=38, radius=6)),
    (400, partial(_bar, x=54, y=52, width=32, height=5, angle=0.9)),
    (800, partial(_bar, x=63, y=46, width=32, height=5, angle=0.9)),
    (300, partial(_ring, x=84, y=52, inner=5, outer=10)),
    (450, partial(_wave, x=6, y=9, width=46, height=3, thick=6)),
    (600, partial(_ring, x=76, y=16, inner=9, outer=14, start=-0.4, turn=1.4 * np.pi)),
]


# Places.


def _coast(rng: np.random.Generator, x: float) -> Points:
    """Return a line from south to north: a random walk."""
    y = np.linspace(0, EDGE, 1000)
    return np.column_stack([x + np.cumsum(rng.normal(0, 0.35, len(y))), y])


def _valley(rng: np.random.Generator) -> Points:
    """Return a line that starts in the middle of the square and bends slightly."""
    angles = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0, 0.06, 300))
    steps = 0.15 * np.column_stack([np.cos(angles), np.sin(angles)])
    return rng.uniform(30, 70, 2) + np.cumsum(steps, axis=0)


def _settle(rng: np.random.Generator, line: Points, n: int) -> Points:
    """Return places along a line: three quarters in towns, whose sizes follow a power law."""
    towns = rng.integers(len(line), size=40)
    size = rng.pareto(1.0, len(towns)) + 0.1
    town = rng.choice(len(towns), n, p=size / size.sum())
    in_town = rng.random(n) < 0.75
    near = np.where(in_town, towns[town], rng.integers(len(line), size=n))
    spread = np.where(in_town, 0.15 * np.sqrt(size[town]).clip(0.5, 4), 0.5)
    return line[near] + rng.normal(0, 1, (n, 2)) * spread[:, None]
