"""Splits of rows and columns over clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from fedlib.datasets.partition import split_columns, split_rows

HOWS = ["stratified", "uniform", "dirichlet", "spatial"]


def toy(n_rows, n_classes=2, n_columns=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_columns)), np.arange(n_rows) % n_classes


def is_partition(parts, n):
    assert all(part.dtype == np.intp and part.ndim == 1 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)  # ascending
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@given(
    how=st.sampled_from(HOWS),
    n_clients=st.integers(1, 12),
    rows_per_client=st.integers(2, 9),
    extra=st.integers(0, 11),
    seed=st.none() | st.integers(0, 99),
)
def test_each_row_is_at_one_client(how, n_clients, rows_per_client, extra, seed):
    n_rows = 2 * n_clients * rows_per_client + extra  # enough of both classes for every client
    X, y = toy(n_rows)
    parts = split_rows(X, n_clients, y, how=how, random_state=seed)
    assert len(parts) == n_clients
    assert is_partition(parts, n_rows)
    sizes = [len(part) for part in parts]
    if how != "dirichlet":
        assert max(sizes) - min(sizes) <= 1


def test_stratified_is_the_unshuffled_folds_of_scikit_learn():
    X, y = toy(103, n_classes=3)
    expected = [rows for _, rows in StratifiedKFold(n_splits=10).split(X, y)]
    parts = split_rows(X, 10, y)
    assert all(map(np.array_equal, parts, expected))


def test_stratified_by_hand():
    """The rows of each class are split into runs, in their order."""
    y = ["a", "a", "b", "a", "b", "a", "b", "b"]
    first, second = split_rows(np.zeros((8, 1)), 2, y)
    assert first.tolist() == [0, 1, 2, 4]
    assert second.tolist() == [3, 5, 6, 7]


def test_stratified_shuffles_with_a_random_state():
    X, y = toy(100)
    once, again, other = (split_rows(X, 5, y, random_state=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, once, again))
    assert not all(map(np.array_equal, once, other))
    assert not all(map(np.array_equal, once, split_rows(X, 5, y)))
    for part in once:
        assert np.bincount(y[part]).tolist() == [10, 10]


def test_stratified_with_a_class_too_small_for_every_client():
    X, y = np.zeros((12, 1)), [0] * 10 + [1] * 2
    with pytest.warns(UserWarning, match="least populated class"):
        parts = split_rows(X, 4, y)
    assert is_partition(parts, 12)


@pytest.mark.parametrize("how", ["uniform", "dirichlet"])
def test_random_splits_depend_only_on_the_random_state(how):
    X, y = toy(200)
    once, again, other = (split_rows(X, 5, y, how=how, random_state=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, once, again))
    assert not all(map(np.array_equal, once, other))
    state = np.random.RandomState(1)
    assert all(map(np.array_equal, once, split_rows(X, 5, y, how=how, random_state=state)))
    assert not all(map(np.array_equal, once, split_rows(X, 5, y, how=how, random_state=state)))


def skew(alpha):
    """Return the mean over the clients of the share of the most frequent class."""
    X, y = toy(5000, n_classes=5)
    parts = split_rows(X, 10, y, how="dirichlet", random_state=0, alpha=alpha)
    return np.mean([np.bincount(y[part]).max() / len(part) for part in parts if len(part)])


def test_a_smaller_alpha_skews_labels_more():
    assert skew(1e6) == pytest.approx(0.2, abs=0.01)
    assert 0.3 < skew(0.5) < 0.9
    assert skew(1e-6) > skew(0.5)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e300])
def test_dirichlet_with_extreme_alpha(alpha):
    X, y = toy(60, n_classes=3)
    parts = split_rows(X, 4, y, how="dirichlet", random_state=0, alpha=alpha)
    assert is_partition(parts, 60)
    if alpha < 1:  # each class goes to one client
        assert all(np.count_nonzero(np.isin(np.flatnonzero(y == c), p)) in (0, 20)
                   for c in range(3) for p in parts)  # fmt: skip
    else:
        assert [len(part) for part in parts] == [15] * 4


def test_spatial_regions_do_not_overlap():
    X, _ = toy(400, seed=3)
    X *= (10, 1)
    left, right = split_rows(X, 2, how="spatial")
    assert X[left, 0].max() < X[right, 0].min()  # cut along the widest column
    quarters = split_rows(X, 4, how="spatial")
    boxes = [(X[rows].min(axis=0), X[rows].max(axis=0)) for rows in quarters]
    for i, (low, high) in enumerate(boxes):
        for other_low, other_high in boxes[:i]:
            assert ((high < other_low) | (other_high < low)).any()


def test_spatial_with_equal_rows():
    assert is_partition(split_rows(np.zeros((10, 2)), 3, how="spatial"), 10)


@pytest.mark.parametrize("how", HOWS)
def test_one_client_gets_all_rows(how):
    X, y = toy(7)
    (rows,) = split_rows(X, 1, y, how=how)
    assert rows.tolist() == list(range(7))


@pytest.mark.parametrize("how", ["uniform", "spatial"])
def test_as_many_clients_as_rows(how):
    X, _ = toy(7)
    assert [len(part) for part in split_rows(X, 7, how=how, random_state=0)] == [1] * 7


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n_clients", [0, -1, 11, 2.0, True, "2", None])
def test_n_clients_out_of_range(how, n_clients):
    X, y = toy(10)
    with pytest.raises(ValueError, match=f"n_clients must be .* from 1 to 10.*{n_clients!r}"):
        split_rows(X, n_clients, y, how=how)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"how": "fair"}, "how must be one of 'stratified', .* got 'fair'"),
        ({"how": "stratified"}, "y, .* required by how='stratified'"),
        ({"how": "dirichlet"}, "y, .* required by how='dirichlet'"),
        ({"y": np.zeros(9)}, r"each of the 10 rows of X, got shape \(9,\)"),
        ({"y": np.zeros((10, 1))}, r"each of the 10 rows of X, got shape \(10, 1\)"),
        (
            {"y": np.arange(10)},
            "n_clients must be at most the number of rows of the largest class, 1",
        ),
        ({"y": np.zeros(10), "how": "dirichlet", "alpha": 0}, "alpha must be .* got 0"),
        ({"y": np.zeros(10), "how": "dirichlet", "alpha": np.nan}, "alpha must be .* got nan"),
        ({"y": np.zeros(10), "how": "dirichlet", "alpha": np.inf}, "alpha must be .* got inf"),
        ({"y": np.zeros(10), "how": "dirichlet", "alpha": "1"}, "alpha must be .* got '1'"),
    ],
)
def test_bad_input(kwargs, message):
    with pytest.raises(ValueError, match=message):
        split_rows(np.zeros((10, 2)), 2, **kwargs)


def test_x_must_be_a_table():
    with pytest.raises(ValueError, match="X must have two dimensions"):
        split_rows(np.zeros(10), 2, how="uniform")
    with pytest.raises(ValueError, match="X must have two dimensions"):
        split_columns(np.zeros(10), 2)


def test_spatial_needs_finite_values():
    X = np.array([[0.0], [np.nan], [1.0]])
    with pytest.raises(ValueError, match="NaN"):
        split_rows(X, 2, how="spatial")
    assert is_partition(split_rows(X, 2, how="uniform"), 3)  # it does not use the values


@given(n_columns=st.integers(1, 20), data=st.data())
def test_columns_are_split_in_turn(n_columns, data):
    n_clients = data.draw(st.integers(1, n_columns))
    parts = split_columns(np.zeros((3, n_columns)), n_clients)
    assert is_partition(parts, n_columns)
    assert [part.tolist() for part in parts] == [
        list(range(n_columns))[client::n_clients] for client in range(n_clients)
    ]


@pytest.mark.parametrize("n_clients", [0, 4, 1.5, False])
def test_more_clients_than_columns(n_clients):
    with pytest.raises(ValueError, match=f"from 1 to 3, the number of columns.*{n_clients!r}"):
        split_columns(np.zeros((10, 3)), n_clients)
