"""Points: what is no finite number is refused with the column, the row and the remedy."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from fedlib import (
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPCA,
    FederatedPipeline,
    FederatedXGBClassifier,
)
from fedlib.clustering.density.engine.dbscan import dbscan, nearest_within
from fedlib.core.points import check_points
from fedlib.core.targets import read_labels
from fedlib.evaluation.selection import cross_validate_sites


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2], [3, 4]],
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]], np.uint8),
        np.array([[1, 2], [3, 4]], np.float32),
        np.array([[1, 2], [3, 4]], ">f8"),
        np.array([[1, 2], [3, 4]], order="F"),
        np.array([[1, 2], [3, 4]], object),
        np.array([[1, 0, 2], [3, 0, 4]])[:, ::2],
        pd.DataFrame([[1, 2], [3, 4]]),
    ],
)
def test_points_become_contiguous_numbers(X):
    points = check_points(X)
    assert points.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert points.dtype == np.float64
    assert points.dtype.isnative
    assert points.flags.c_contiguous


def test_points_in_the_right_form_are_not_copied():
    """Clients may have many points; a copy would double their memory."""
    X = np.zeros((3, 2))
    assert check_points(X) is X


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[1.0, np.nan]], "contains NaN"),
        ([[1.0, np.inf]], "contains infinity"),
        ([1.0, 2.0], "X must be a table with 2 axes, rows and columns, got 1; X.reshape"),
        ([[1.0, 2.0], [3.0]], "2 axes, rows and columns, got 1"),
        (np.zeros(2, [("a", float)]), r"got 1; .* pd.DataFrame\(X\) a table of records"),
        ({"a": [1.0, 2.0]}, "2 axes, rows and columns, got 0"),
        (3.0, "2 axes, rows and columns, got 0"),
        (np.zeros((1, 1, 1)), "2 axes, rows and columns, got 3"),
        ([["a", "b"]], "column '0' must contain numbers, got 'a'"),
        (np.array([[1j]]), "column '0' .* got complex numbers; write the real"),
        (np.empty((0, 2)), r"Found array with 0 sample\(s\)"),
        (np.empty((2, 0)), r"Found array with 0 feature\(s\)"),
    ],
)
def test_invalid_tables(X, message):
    with pytest.raises(ValueError, match=message):
        check_points(X)


def test_sparse_points_are_rejected():
    """A sparse matrix is not converted without notice, which could exhaust the memory."""
    with pytest.raises(ValueError, match="[Ss]parse"):
        check_points(csr_array(np.eye(2)))


def test_further_checks_of_points():
    assert check_points(np.empty((0, 2)), ensure_min_samples=0).shape == (0, 2)
    with pytest.raises(ValueError, match="a minimum of 3 is required"):
        check_points([[1.0], [2.0]], ensure_min_samples=3)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (
            pd.DataFrame({"x": [1.0], "sex": ["m"]}),
            "column 'sex' must contain numbers, got 'm' in row 1; Fed",
        ),
        ([[1.0, 2.0], [3.0, "low"]], "column '1' must contain numbers, got 'low' in row 2"),
        (
            pd.DataFrame({"x": [1.0, np.nan]}),
            "column 'x' must contain finite numbers, got no value in row 2; Fed",
        ),
        ([[1.0], [None]], "column '0' must contain finite numbers, got no value in row 2"),
        ([[np.inf]], "infinity"),
    ],
)
def test_text_and_gaps_are_named_with_the_remedy(X, message):
    with pytest.raises(ValueError, match=message):
        check_points(X)


def test_texts_of_numbers_are_numbers():
    assert check_points([["1", "2.5"]]).tolist() == [[1.0, 2.5]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "'c' must .* got datetime64.*replace dates"),
        ([datetime.date(2020, 1, 1), None], "'c' must .* got dates; replace dates"),
        (pd.to_timedelta(["1D", "2D"]), "'c' must .* got timedelta64"),
        (
            [1.0, np.inf],
            "contains infinity: column 'c' must contain finite numbers, got inf in row 2",
        ),
        (
            [1.0, None],
            "contains NaN: column 'c' must contain finite numbers, got no value in row 2",
        ),
        (["1", "NA"], "contains NaN: column 'c' .* no value in row 2; FederatedPipeline"),
        ([2**53 + 1, 2], "'c' must contain integers within .* got 9007199254740993 in row 1"),
        ([2, -(2**60)], "'c' must contain integers within .* in row 2"),
        (pd.array([2**60, None], "Int64"), "'c' must contain integers within"),
        ([b"a", b"b"], "'c' must contain numbers or text, got bytes"),
        ([{1}, 2], "'c' must contain numbers or text, got values of the type set; convert"),
    ],
)
def test_the_column_is_named(column, message):
    with pytest.raises(ValueError, match=message):
        check_points(pd.DataFrame({"c": column, "d": [1, 2]}))


def test_numbers_of_all_types_are_numbers():
    frame = pd.DataFrame(
        {
            "truth": [True, False],
            "decimal": [Decimal("1.5"), Decimal(2)],
            "object": np.array([1, 2.5], object),
            "text": ["1", " 2 "],
            "nullable": pd.array([1, 2], "Int64"),
            "category": pd.Categorical([3, 4]),
            "sparse": pd.arrays.SparseArray([0.0, 1.0]),
            "largest": [2**53, -(2**53)],
        }
    )
    assert check_points(frame).tolist() == [
        [1, 1.5, 1, 1, 1, 3, 0, 2**53],
        [0, 2, 2.5, 2, 2, 4, 1, -(2**53)],
    ]


def test_a_masked_value_is_a_gap():
    X = np.ma.masked_values([[0.0, 0.0], [-999.0, 0.0]], -999.0)
    with pytest.raises(ValueError, match="column '0' .* no value in row 2"):
        check_points(X)
    assert check_points(np.ma.array([[1, 2]])).tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="column '1' .* no value in row 1"):
        check_points(np.ma.array([[1, 2]], mask=[[False, True]]))


X = np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 4.0], [6.0, 5.0]])


def hidden(values, place=0, under=0.5):
    """Return an array with one masked value, under which a plausible one is left."""
    array = np.ma.array(values, dtype=float)
    array[place] = under
    array[place] = np.ma.masked
    return array


def mixture(**start):
    return FederatedGaussianMixture(2, covariance_type="spherical", **start)


@pytest.mark.parametrize(
    "read",
    {
        "rows in a list": lambda: FederatedKMeans(2).fit([list(hidden(X, (3, 0))), X]),
        "start": lambda: FederatedKMeans(2, init=hidden(X[:2], (0, 0))).fit([X]),
        "start in a list": lambda: FederatedKMeans(2, init=list(hidden(X[:2], (0, 0)))).fit([X]),
        "means": lambda: mixture(means_init=hidden(X[:2], (0, 0))).fit([X]),
        "weights": lambda: mixture(weights_init=hidden([0.5, 0.5])).fit([X]),
        "precisions": lambda: mixture(precisions_init=hidden([1.0, 1.0])).fit([X]),
        "bounds": lambda: FederatedKMeans(
            2, init=X[:2], secure=True, bounds=hidden([[-1, -1], [9, 9]], (0, 0), under=-2)
        ).fit([X, X, X]),
        "weights of points": lambda: dbscan(X, 2.0, 1, sample_weight=hidden(np.ones(4))),
        "radii": lambda: nearest_within(X, X, hidden(np.ones(4))),
        "labels": lambda: read_labels(hidden(np.ones(4))),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_under_a_mask_is_never_read(read):
    with pytest.raises(ValueError, match="NaN|finite|at least 0|bounds of column 0|no cluster"):
        read[1]()


def test_the_mask_of_targets_reaches_the_clients():
    y = hidden([0.0, 1.0, 0.0, 1.0], under=1.0)
    parts = [(X, np.array([0.0, 1.0, 0.0, 1.0])), (X, y)]
    model = FederatedPipeline(FederatedXGBClassifier(1), scale="standard")
    for fit_ in (lambda: model.fit(parts), lambda: cross_validate_sites(model, parts)):
        with pytest.raises(ValueError, match="y has no class in 1 row"):
            fit_()
    coordinates = FederatedPCA(1).fit([X]).inverse_transform(hidden([[0.0], [1.0]], (0, 0)))
    assert np.isnan(coordinates).tolist() == [[True, True], [False, False]]


def test_large_integers_in_arrays():
    stamps = np.array([[1, 1_700_000_000_000_000_000], [2, 1_700_000_000_000_000_100]])
    with pytest.raises(ValueError, match="column '1' must contain integers within .* in row 1"):
        check_points(stamps)
