"""Stand-ins: random data for the files that are not available.

A stand-in has the columns, rows and classes of its file and the same general shape, so that every
program that runs on the file runs on it too. It is the same at every call. Tables of measurements
approximate the marginal distributions of the file; each column depends on the class, but within a
class the columns are independent. Results on a stand-in say nothing about the real data.

Points in the plane in clusters of various shapes: rings, arcs, bars, waves, places on a map.

P compares its algorithms on two sets of a generator that is not published, and on the places of
SEQUOIA 2000. This module generates sets of the same sizes: shapes with noise between them, and
places along coasts and valleys, whose density varies by orders of magnitude. The points differ from
P's, so they can test P's claims but not reproduce its figures.

The data sets without a file: generated ones, and one that scikit-learn includes.

- Six sets of scikit-learn's example "Comparing different clustering algorithms on toy datasets",
  used by F (Chapter 2).
- Three sets with the sizes of P's (§4.2), which were never published.
- ``breast_cancer``, from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, make_blobs, make_circles, make_moons
from sklearn.preprocessing import StandardScaler

from fedlib.datasets.sources import Dataset

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
    >>> from fedlib.datasets.stand_ins import shapes
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
    >>> from fedlib.datasets.stand_ins import places
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
    """Return the points in random order and the count of their part; the first part is -1."""
    X = np.concatenate(parts)
    y = np.repeat(np.arange(len(parts)) - 1, [len(part) for part in parts])
    order = rng.permutation(len(X))
    return X[order], y[order]


# Shapes. Each function takes a generator and a count of points.


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


Pair = tuple[float, float]


def stand_in(name: str) -> pd.DataFrame:
    """Return the stand-in of a file.

    Parameters
    ----------
    name : str
        The name of the data set in ``sources.csv``.

    Returns
    -------
    DataFrame
        The columns of the file except row indices. The same at every call.

    Examples
    --------
    >>> from fedlib.datasets.stand_ins import stand_in
    >>> stand_in("3MC")["class"].value_counts(sort=False).to_dict()
    {1: 120, 2: 170, 3: 110}
    """
    return _STAND_INS[name](np.random.default_rng(0))


def _points(parts: Mapping[Any, NDArray], target: str = "class") -> pd.DataFrame:
    """Return a table of points in the plane, class by class, from one array per class."""
    frame = pd.DataFrame(np.concatenate(list(parts.values())), columns=["x", "y"])
    frame[target] = np.repeat(list(parts), [len(points) for points in parts.values()])
    return frame


def _banana(rng: np.random.Generator) -> pd.DataFrame:
    def arc(n_rows: int, centre: Pair, height: float) -> NDArray:
        angle = rng.uniform(0, np.pi, n_rows)
        points = np.column_stack([0.23 * np.cos(angle), height * np.sin(angle)]) + centre
        return rng.normal(points, 0.015).round(3)

    return _points(
        {"Class 1": arc(2520, (0.42, 0.5), 0.4), "Class 2": arc(2291, (0.63, 0.6), -0.4)}
    )


def _s_set1(rng: np.random.Generator) -> pd.DataFrame:
    parts = {}
    for label in (0, 1, *range(3, 16)):
        centre = 140_000 + 240_000 * np.array(divmod(label, 4)) + rng.uniform(-3e4, 3e4, 2)
        size = 334 if label < 6 else 333
        parts[label] = rng.normal(centre, rng.uniform(2.2e4, 3.2e4, 2), (size, 2)).round()
    return _points(parts, target="CLASS")


def _ellipse(rng: np.random.Generator, n_rows: int, centre: Pair, radii: Pair) -> NDArray:
    angle = rng.uniform(0, 2 * np.pi, n_rows)
    radius = np.sqrt(rng.uniform(0, 1, n_rows))
    disc = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    return disc * radii + centre


def _aggregation(rng: np.random.Generator) -> pd.DataFrame:
    sizes = (45, 170, 102, 273, 34, 130, 34)
    centres = ((21, 23), (9, 23), (33, 9), (18, 8), (6, 4), (32, 22), (7, 12))
    parts = {}
    for label, (size, centre) in enumerate(zip(sizes, centres, strict=True), start=1):
        radius = np.sqrt(size / (2 * np.pi))  # two points per unit of area
        parts[label] = _ellipse(rng, size, centre, (radius, radius)).round(2)
    return _points(parts)


def _3mc(rng: np.random.Generator) -> pd.DataFrame:
    parts = {
        1: _ellipse(rng, 120, (0, 1), (4.4, 0.5)),
        2: _ellipse(rng, 170, (1.7, 7), (1.7, 4.5)),
        3: _ellipse(rng, 110, (-2.7, 10), (2, 2)),
    }
    return _points({label: points.round(3) for label, points in parts.items()})


_STUDIES = {
    "Horstmann": 162,
    "Kjome": 19,
    "Maia": 40,
    "SteingroverInPrep": 70,
    "Premkumar": 25,
    "Wood": 153,
    "Worthy": 35,
    "Ahn": 125,
}


def _dim_reduced(rng: np.random.Generator, n_components: int) -> pd.DataFrame:
    study = np.repeat(list(_STUDIES), list(_STUDIES.values()))
    # Only the last study, Ahn, has subjects who are not healthy.
    status = np.repeat(["healthy", "heroin", "amphetamine"], [551, 42, 36])
    # Three components in any case, so that the set of two is the set of three without the last.
    X = rng.normal(size=(len(study), 3))
    for name in _STUDIES:
        X[study == name] += rng.normal(0, 0.5, 3)
    X[status != "healthy"] -= 1
    X = (X - X.mean(axis=0)) * (1.7, 1.1, 1.1)
    components = {f"component_{i + 1}": X[:, i] for i in range(n_components)}
    return pd.DataFrame({"study": study, "health status": status, **components})


class _Column(NamedTuple):
    """The distribution of one measurement.

    The rows are ranked by a random score whose mean is `effect` standard deviations higher in class
    1 than in class 0. The values increase with the rank: `counts` of rows have the values 0, 1, 2,
    …, or the values have the 1, 25, 50, 75 and 99 % `quantiles` and are multiples of `step`.
    """

    effect: float
    counts: tuple[int, ...] = ()
    quantiles: tuple[float, ...] = ()
    step: float = 1

    def draw(self, rng: np.random.Generator, y: NDArray) -> NDArray:
        """Return the value of each row with the classes ``y``."""
        order = (self.effect * y + rng.normal(size=len(y))).argsort().argsort()
        if self.counts:
            return np.searchsorted(np.cumsum(self.counts), order, side="right")
        fractions = (order + 0.5) / len(y)
        values = np.interp(fractions, (0.01, 0.25, 0.5, 0.75, 0.99), self.quantiles)
        return (np.rint(values / self.step) * self.step).round(3)


def _table(rng: np.random.Generator, columns: Mapping[str, _Column], y: NDArray) -> pd.DataFrame:
    return pd.DataFrame({name: column.draw(rng, y) for name, column in columns.items()})


_HEART = {
    "age": _Column(-0.5, quantiles=(35, 48, 55, 61, 71)),
    "sex": _Column(-0.8, counts=(96, 207)),
    "cp": _Column(1.2, counts=(143, 50, 87, 23)),
    "trestbps": _Column(-0.3, quantiles=(100, 120, 130, 140, 180)),
    "chol": _Column(-0.2, quantiles=(149, 211, 240, 275, 407)),
    "fbs": _Column(-0.1, counts=(258, 45)),
    "restecg": _Column(0.3, counts=(147, 152, 4)),
    "thalach": _Column(1.0, quantiles=(95, 134, 153, 166, 192)),
    "exang": _Column(-1.2, counts=(204, 99)),
    "oldpeak": _Column(-1.0, quantiles=(0, 0, 0.8, 1.6, 4.2), step=0.1),
    "slope": _Column(0.9, counts=(21, 140, 142)),
    "ca": _Column(-1.1, counts=(175, 65, 38, 20, 5)),
    "thal": _Column(-0.9, counts=(2, 18, 166, 117)),
}


def _heart(rng: np.random.Generator) -> pd.DataFrame:
    y = np.repeat([1, 0], [165, 138])
    return _table(rng, _HEART, y).assign(target=y)


_DIABETES = {
    "Pregnancies": _Column(0.5, quantiles=(0, 1, 3, 6, 13)),
    "Glucose": _Column(1.1, quantiles=(67, 99, 117, 141, 196)),
    "BloodPressure": _Column(0.3, quantiles=(44, 64, 72, 80, 106)),
    "SkinThickness": _Column(0.5, quantiles=(10, 22, 29, 36, 54)),
    "Insulin": _Column(0.6, quantiles=(18, 76, 125, 190, 580)),
    "BMI": _Column(0.7, quantiles=(19.5, 27.5, 32.3, 36.6, 50.8), step=0.1),
    "DiabetesPedigreeFunction": _Column(0.4, quantiles=(0.1, 0.24, 0.37, 0.63, 1.7), step=0.001),
    "Age": _Column(0.6, quantiles=(21, 24, 29, 41, 67)),
}


def _diabetes(rng: np.random.Generator) -> pd.DataFrame:
    y = rng.permutation(np.repeat([0, 1], [500, 268]))
    frame = _table(rng, _DIABETES, y)
    zeros = {"Glucose": 5, "BloodPressure": 35, "SkinThickness": 227, "Insulin": 374, "BMI": 11}
    for column, count in zeros.items():
        frame.loc[rng.choice(len(y), count, replace=False), column] = 0
    return frame.assign(Outcome=y)


_SMOKING = {
    "gender": _Column(0.9, counts=(20291, 35401)),
    "age": _Column(-0.3, quantiles=(20, 40, 40, 55, 75), step=5),
    "height(cm)": _Column(0.4, quantiles=(145, 160, 165, 170, 185), step=5),
    "weight(kg)": _Column(0.3, quantiles=(45, 55, 65, 75, 100), step=5),
    "waist(cm)": _Column(0.2, quantiles=(62.5, 76, 82, 88, 105), step=0.1),
    "eyesight(left)": _Column(0.1, quantiles=(0.2, 0.8, 1, 1.2, 1.5), step=0.1),
    "eyesight(right)": _Column(0.1, quantiles=(0.2, 0.8, 1, 1.2, 1.5), step=0.1),
    "hearing(left)": _Column(-0.1, counts=(0, 54267, 1425)),
    "hearing(right)": _Column(-0.1, counts=(0, 54236, 1456)),
    "systolic": _Column(0.2, quantiles=(92, 112, 120, 130, 159)),
    "relaxation": _Column(0.2, quantiles=(56, 70, 76, 82, 101)),
    "fasting blood sugar": _Column(0.2, quantiles=(73, 89, 96, 104, 188)),
    "Cholesterol": _Column(-0.1, quantiles=(120, 172, 195, 220, 292)),
    "triglyceride": _Column(0.3, quantiles=(34, 74, 108, 160, 361)),
    "HDL": _Column(-0.2, quantiles=(32, 47, 55, 66, 100)),
    "LDL": _Column(-0.1, quantiles=(44, 92, 113, 136, 202)),
    "hemoglobin": _Column(0.4, quantiles=(10.1, 13.6, 14.8, 15.8, 17.6), step=0.1),
    "Urine protein": _Column(0.05, counts=(0, 52599, 1795, 940, 260, 88, 10)),
    "serum creatinine": _Column(0.2, quantiles=(0.5, 0.8, 0.9, 1, 1.3), step=0.1),
    "AST": _Column(0.1, quantiles=(13, 19, 23, 28, 80)),
    "ALT": _Column(0.2, quantiles=(8, 15, 21, 31, 112)),
    "Gtp": _Column(0.5, quantiles=(9, 17, 25, 43, 242)),
    "oral": _Column(0, counts=(0, 55692)),
    "dental caries": _Column(0.2, counts=(43811, 11881)),
    "tartar": _Column(0.2, counts=(24752, 30940)),
}


def _smoking(rng: np.random.Generator) -> pd.DataFrame:
    y = rng.permutation(np.repeat([0, 1], [35237, 20455]))
    frame = _table(rng, _SMOKING, y)
    # One row in five repeats another of its class: a random split leaks, as with the file.
    taken = np.arange(len(y))
    for label in (0, 1):
        rows = rng.permutation(np.flatnonzero(y == label))
        repeats, others = np.split(rows, [len(rows) // 5])
        taken[repeats] = rng.choice(others, len(repeats))
    frame = frame.iloc[taken].reset_index(drop=True)
    frame["gender"] = np.where(frame["gender"] == 1, "M", "F")
    for column in ("oral", "tartar"):
        frame[column] = np.where(frame[column] == 1, "Y", "N")
    return frame.assign(smoking=y)


_STAND_INS: dict[str, Callable[[np.random.Generator], pd.DataFrame]] = {
    "banana": _banana,
    "s-set1": _s_set1,
    "aggregation": _aggregation,
    "3MC": _3mc,
    "dim_reduced_2d": partial(_dim_reduced, n_components=2),
    "dim_reduced_3d": partial(_dim_reduced, n_components=3),
    "heart": _heart,
    "diabetes": _diabetes,
    "smoking": _smoking,
}
# The data sets in sources.csv.
FILES = tuple(_STAND_INS)


def _aniso(n_rows: int) -> tuple[NDArray, NDArray]:
    X, y = make_blobs(n_rows, random_state=170)
    return X @ np.array([[0.6, -0.6], [-0.4, 0.8]]), y


def _no_structure(n_rows: int) -> tuple[NDArray, NDArray]:
    return np.random.RandomState(30).rand(n_rows, 2), np.zeros(n_rows)


_TOYS: dict[str, Callable[[int], tuple[NDArray, NDArray]]] = {
    "circles": partial(make_circles, factor=0.5, noise=0.05, random_state=30),
    "moons": partial(make_moons, noise=0.05, random_state=30),
    "blobs": partial(make_blobs, random_state=8),
    "varied": partial(make_blobs, cluster_std=[1.0, 2.5, 0.5], random_state=170),
    "aniso": _aniso,
    "no_structure": _no_structure,
}
_SHAPES: dict[str, Callable[[], tuple[NDArray, NDArray]]] = {
    "shapes_13147": partial(shapes, 13_147),
    "shapes_38754": partial(shapes, 38_754, crowded=True),
    "places_56417": partial(places, 56_417),
}


def _toy(name: str) -> Dataset:
    X, y = _TOYS[name](1000)
    return Dataset(
        name=name,
        X=StandardScaler().fit_transform(X),
        y=y.astype(np.int64),
        groups=None,
        feature_names=("x", "y"),
        target_names={int(value): f"{value:.0f}" for value in np.unique(y)},
        source="real",
        sha256=None,
        description="1000 points, 2 features, standardised; generated as in scikit-learn's example"
        " 'Comparing different clustering algorithms on toy datasets'",
    )


def _shape(name: str) -> Dataset:
    X, y = _SHAPES[name]()
    return Dataset(
        name=name,
        X=X,
        y=y,
        groups=None,
        feature_names=("x", "y"),
        target_names={int(value): "noise" if value < 0 else str(value) for value in np.unique(y)},
        source="generated",
        sha256=None,
        description=f"{len(X)} points in the plane, as many as in P's set, which is not published;"
        " generated by fedlib.datasets.stand_ins; class -1 is noise",
    )


def _breast_cancer() -> Dataset:
    bunch = load_breast_cancer()
    return Dataset(
        name="breast_cancer",
        X=bunch.data,
        y=bunch.target.astype(np.int64),
        groups=None,
        feature_names=tuple(map(str, bunch.feature_names)),
        target_names=dict(enumerate(map(str, bunch.target_names))),
        source="real",
        sha256=None,
        description="569 tumours, 30 measurements, 212 malignant and 357 benign; Breast Cancer"
        " Wisconsin (Diagnostic), UCI Machine Learning Repository; included in scikit-learn",
    )


# A function without arguments per data set.
GENERATED: dict[str, Callable[[], Dataset]] = {
    "breast_cancer": _breast_cancer,
    **{name: partial(_toy, name) for name in _TOYS},
    **{name: partial(_shape, name) for name in _SHAPES},
}
