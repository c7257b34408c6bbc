"""Latitudes and longitudes as points of the unit sphere."""

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import haversine_distances

from fedlib import DBDC, PPDBDC, SDBDC, ApproximateDBSCAN, HorizontalDBSCAN
from fedlib.clustering.density.engine.dbscan import cluster
from fedlib.tables.sphere import chord, unit_vectors


def places(n, seed):
    """Return clusters of places in degrees: at the date line, at a pole, elsewhere; and noise."""
    rng = np.random.default_rng(seed)
    centres = np.array([[-17.0, 179.9], [89.0, 0.0], [52.0, 20.0], [-33.0, -70.0]])
    spread = np.array([[0.5, 0.5], [0.5, 90.0], [0.5, 0.8], [0.5, 0.6]])
    chosen = rng.integers(len(centres), size=n)
    X = centres[chosen] + spread[chosen] * rng.normal(size=(n, 2))
    X[:, 1] = (X[:, 1] + 180) % 360 - 180
    X[np.abs(X[:, 0]) > 90, 0] = 89.9
    noise = np.column_stack([rng.uniform(-80, 80, n // 10), rng.uniform(-180, 180, n // 10)])
    return rng.permutation(np.concatenate([X, noise]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kilometres", [12, 15, 25])
def test_the_engine_finds_the_clusters_of_the_haversine_metric(kilometres, seed):
    X, eps = places(1500, seed), kilometres / 6371.0088
    pooled = DBSCAN(eps=eps, min_samples=5, metric="haversine", algorithm="ball_tree")
    expected = pooled.fit(np.radians(X))
    labels, core = cluster(unit_vectors(X, unit="degrees"), chord(eps, unit="radians"), 5)
    assert np.array_equal(np.flatnonzero(core), expected.core_sample_indices_)
    assert np.array_equal(labels[core], expected.labels_[core])
    assert np.array_equal(labels == -1, expected.labels_ == -1)
    border = (labels >= 0) & ~core  # which joins the nearest core point, and here not the first
    assert border.any()
    apart = haversine_distances(np.radians(X[border]), np.radians(X[core]))
    assert np.array_equal(labels[border], labels[core][apart.argmin(axis=1)])
    assert expected.labels_.max() >= 3


def test_chords_are_those_of_the_angles():
    X = np.radians(places(50, 0))
    vectors = unit_vectors(X, unit="radians")
    apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    angles = haversine_distances(X)
    expected = [[chord(a, unit="radians") if a else 0.0 for a in row] for row in angles]
    np.testing.assert_allclose(apart, expected, atol=1e-12)
    assert chord(60, unit="degrees") == pytest.approx(chord(np.pi / 3, unit="radians"))


EPS = chord(200 / 6371.0088, unit="radians")


@pytest.mark.parametrize(
    "estimator",
    [
        DBDC(EPS, min_samples=5),
        SDBDC(EPS, min_samples=5),
        PPDBDC(EPS, min_samples=5, random_state=0),
        HorizontalDBSCAN(cell_size=EPS, min_samples=5),
        ApproximateDBSCAN(EPS, min_samples=5, rho=0.5),
    ],
    ids=lambda estimator: estimator.name,
)
def test_every_density_method_finds_a_cluster_at_the_date_line_and_at_the_pole(estimator):
    X = places(900, 4)
    eps = 200 / 6371.0088
    pooled = DBSCAN(eps=eps, min_samples=5, metric="haversine", algorithm="ball_tree")
    expected = pooled.fit_predict(np.radians(X))
    parts = np.array_split(unit_vectors(X, unit="degrees"), 3)
    found = np.concatenate(estimator.fit(parts).labels_)
    assert adjusted_rand_score(expected, found) > 0.9
    in_degrees = DBSCAN(eps=np.degrees(eps), min_samples=5).fit_predict(X)
    assert adjusted_rand_score(expected, in_degrees) < 0.9  # so the transform matters


def test_a_table_keeps_its_index():
    frame = pd.DataFrame({"lat": [0.0, 90.0], "lon": [90.0, 12.0]}, index=[7, 9])
    vectors = unit_vectors(frame, unit="degrees")
    assert vectors.columns.tolist() == ["x", "y", "z"]
    assert vectors.index.tolist() == [7, 9]
    np.testing.assert_allclose(vectors, [[0, 1, 0], [0, 0, 1]], atol=1e-15)


@pytest.mark.parametrize(
    ("X", "unit", "message"),
    [
        ([[1.0, 2.0]], "km", "unit must be one of 'degrees', 'radians'; got 'km'"),
        ([[1.0, 2.0, 3.0]], "degrees", "two columns, latitude and longitude, got 3"),
        ([[1.0, 2.0], [91.0, 2.0]], "degrees", r"column '0' .* latitudes .* got 91 in row 2"),
        ([[52.0, 2.0]], "radians", r"column '0' must contain latitudes in radians, .* got 52"),
        ([[1.0, 361.0]], "degrees", r"column '1' must contain longitudes .* ±360, got 361"),
        (pd.DataFrame({"a": [170.0], "b": [1.0]}), "degrees", "column 'a' must .* order"),
    ],
)
def test_wrong_places(X, unit, message):
    with pytest.raises(ValueError, match=message):
        unit_vectors(X, unit=unit)


@pytest.mark.parametrize("angle", [0, -1, 181, np.nan])
def test_wrong_angles(angle):
    with pytest.raises(ValueError, match="angle must be above 0 and at most 180 degrees, got"):
        chord(angle, unit="degrees")


def test_the_unit_is_never_guessed():
    with pytest.raises(TypeError, match="unit"):
        unit_vectors([[1.0, 2.0]])
    with pytest.raises(TypeError, match="unit"):
        chord(1.0)


@pytest.mark.parametrize(
    "names",
    [
        ("lat", "lon"),
        ("Latitude", "Longitude"),
        ("GPS_LATITUDE", "GPS_LONGITUDE"),
        ("homeLat", "homeLng"),
        ("position lat", "position long"),
        ("lat", "place"),
        ("place", "lon"),
    ],
)
def test_named_columns_may_have_any_order(names):
    table = pd.DataFrame([[52.0, 8.0], [52.4, -120.0]], columns=names)
    expected = unit_vectors(table.to_numpy(), unit="degrees")
    for order in (names, names[::-1]):
        np.testing.assert_array_equal(unit_vectors(table[list(order)], unit="degrees"), expected)
    with pytest.raises(ValueError, match=f"column {names[0]!r} must contain latitudes"):
        unit_vectors(pd.DataFrame([[8.0, 152.0]], columns=names[::-1]), unit="degrees")


@pytest.mark.parametrize("names", [("lat", "latitude"), ("lon", "lng"), ("x", "y"), ("X", "Y")])
def test_names_that_leave_the_order_open_are_refused(names):
    with pytest.raises(ValueError, match=f"got '{names[0]}' and '{names[1]}'; rename them"):
        unit_vectors(pd.DataFrame([[8.0, 52.0]], columns=names), unit="degrees")


def test_names_without_a_meaning_have_the_documented_order():
    for names in (("a", "b"), ("y", "x"), ("slate", "balloon")):
        table = pd.DataFrame([[52.0, 8.0]], columns=names)
        expected = unit_vectors([[52.0, 8.0]], unit="degrees")
        np.testing.assert_array_equal(unit_vectors(table, unit="degrees"), expected)
