"""Stand-ins: random data for the files that are not available.

A stand-in has the columns, rows and classes of its file and the same general shape, so that every
program that runs on the file runs on it too. It is the same at every call. Tables of measurements
approximate the marginal distributions of the file; each column depends on the class, but within a
class the columns are independent. Results on a stand-in say nothing about the real data.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
        The columns of the file except row numbers. The same at every call.

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
