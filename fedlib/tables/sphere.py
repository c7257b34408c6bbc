"""Places on a sphere, such as latitudes and longitudes, for methods with Euclidean distances.

A place becomes a unit vector of three coordinates, and a distance along the sphere the straight
line between its ends, the chord. The longer the arc, the longer is its chord. So the neighbours
within the chord are those within the arc, and every density method of this package works on places:
give it the vectors of `unit_vectors`, and the `chord` of the radius as ``eps``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedlib.core.column_names import feature_names
from fedlib.core.parameters import check_option
from fedlib.core.points import check_points

Unit = Literal["degrees", "radians"]
AXES = {
    "latitude": {"lat", "lats", "latitude", "latitudes", "latitud", "breite", "breitengrad"},
    "longitude": {"lon", "lons", "long", "lng", "longitude", "longitudes", "longitud", "laenge"},
}
HALF = {"degrees": 180.0, "radians": np.pi}  # half of a circle


def unit_vectors(X: ArrayLike, *, unit: Unit) -> Any:
    """Return the points of the unit sphere with these latitudes and longitudes.

    Parameters
    ----------
    X : array-like (n_rows, 2)
        Latitude and longitude, in this order, as for scikit-learn's ``metric="haversine"``. Columns
        whose names contain a word such as lat, latitude, lon, lng or longitude may have any order.
        A latitude is at most a quarter of a circle, a longitude at most a whole one, either sign.
    unit : {"degrees", "radians"}
        The unit of both. Tables mostly have degrees; scikit-learn takes radians.

    Returns
    -------
    array (n_rows, 3) of float64, or DataFrame
        For a DataFrame, one with the columns x, y and z and the same index.

    Raises
    ------
    ValueError
        When the values are not finite, not two columns, or out of range, or the names of the
        columns do not say which one is the latitude although they seem to.

    Examples
    --------
    Three places near the date line: the clusters do not end there.

    >>> from fedlib import DBDC
    >>> east, west = [[-17.7, 179.9], [-17.6, 179.8]], [[-17.7, -179.9]]
    >>> eps = chord(50 / 6371.0088, unit="radians")  # 50 km, by the mean radius of the Earth
    >>> parts = [unit_vectors(part, unit="degrees") for part in (east, west)]
    >>> DBDC(eps, min_samples=1).fit(parts).labels_
    [array([0, 0]), array([0])]
    """
    check_option("unit", unit, tuple(HALF))
    points = check_points(X, ensure_min_samples=0)
    if points.shape[1] != 2:
        raise ValueError(
            f"X must have two columns, latitude and longitude, got {points.shape[1]}; choose them"
            " by their names"
        )
    labels = feature_names(X) or ("0", "1")
    if _is_swapped(labels):
        points, labels = points[:, ::-1], labels[::-1]
    for j, (what, most) in enumerate(
        (("latitudes", HALF[unit] / 2), ("longitudes", 2 * HALF[unit]))
    ):
        beyond = np.flatnonzero(np.abs(points[:, j]) > most)
        if len(beyond):
            raise ValueError(
                f"column {labels[j]!r} must contain {what} in {unit}, within ±{most:.6g}, got"
                f" {points[beyond[0], j]:.6g} in row {beyond[0] + 1}; the order is latitude,"
                " longitude, and unit is 'degrees' or 'radians'"
            )
    latitude, longitude = (points * (np.pi / HALF[unit])).T
    width = np.cos(latitude)
    vectors = np.column_stack(
        [width * np.cos(longitude), width * np.sin(longitude), np.sin(latitude)]
    )
    return (
        pd.DataFrame(vectors, X.index, ["x", "y", "z"]) if isinstance(X, pd.DataFrame) else vectors
    )


def _is_swapped(labels: Sequence[str]) -> bool:
    """Return whether the names say that the longitude is the first column.

    Raises
    ------
    ValueError
        When both names are those of one axis, or x and y, of which x usually is the longitude.
    """
    first, second = (
        next((axis for axis, words in AXES.items() if words & {*_words(label)}), "")
        for label in labels
    )
    if first == second != "" or [label.lower() for label in labels] == ["x", "y"]:
        raise ValueError(
            f"X must have the columns latitude and longitude, got {labels[0]!r} and {labels[1]!r};"
            " rename them, such as lat and lon"
        )
    return first == "longitude" or second == "latitude"


def _words(label: str) -> list[str]:
    """Return the words of a name such as GPS_Latitude or homeLat in small letters."""
    return [word.lower() for word in re.findall("[A-Z]+(?![a-z])|[A-Z]?[a-z]+", label)]


def chord(angle: float, *, unit: Unit) -> float:
    """Return the distance of two points of the unit sphere that are an angle apart.

    Parameters
    ----------
    angle : float
        Above 0 and at most half of a circle. A distance in kilometres on the Earth, divided by its
        mean radius of 6371.0088 km, is an angle in radians.
    unit : {"degrees", "radians"}

    Returns
    -------
    float
        ``2 * sin(angle / 2)``, with the angle in radians.

    Raises
    ------
    ValueError
        When the angle is out of range.

    Examples
    --------
    >>> round(chord(90, unit="degrees") ** 2, 12), chord(180, unit="degrees")
    (2.0, 2.0)
    """
    check_option("unit", unit, tuple(HALF))
    if not 0 < angle <= HALF[unit]:
        raise ValueError(
            f"angle must be above 0 and at most {HALF[unit]:.6g} {unit}, got {angle!r}; divide"
            " kilometres by 6371.0088 for radians"
        )
    return float(2 * np.sin(angle * (np.pi / HALF[unit]) / 2))
