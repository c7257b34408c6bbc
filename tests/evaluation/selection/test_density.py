"""Suggested radii and cell sizes: the k-distance curve from cells, its knee, the conversation."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestNeighbors

from fedlib import DensitySuggestion, FederatedPipeline, suggest_parameters
from fedlib.clustering.density.cells import count_cells
from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import Declined, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.datasets import load
from fedlib.evaluation.selection import DensitySuggestionClient, find_knee
from fedlib.evaluation.selection.grid_search import curve_ranks, k_distances, sparse_fractions
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.sites import models
from fedlib.testing import Recorder

pytestmark = pytest.mark.jit


def points(n=60, seed=0):
    """Return two clusters and a few points far from them."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat([[0.0, 0.0], [4.0, 4.0]], n // 2, axis=0)
    X = np.concatenate([clusters + rng.normal(0, 0.3, (n, 2)), rng.uniform(-9, 9, (n // 10, 2))])
    return X[rng.permutation(len(X))]


def pooled_distances(X, k):
    """Return the sorted distances to the k-th nearest other point."""
    return np.sort(NearestNeighbors(n_neighbors=k + 1).fit(X).kneighbors(X)[0][:, -1])


def clients(**parts):
    return {name: DensitySuggestionClient(part) for name, part in parts.items()}


def parts(seed=0):
    return dict(zip("ABC", np.array_split(points(seed=seed), 3), strict=True))


def content(model):
    return {name: np.asarray(value).tolist() for name, value in vars(model.model_).items()}


# The knee


def test_the_knee_of_a_toy():
    """Both axes are scaled to [0, 1]: the points (0, 0), (.5, .1), (.75, .5), (1, 1)."""
    x, y = np.array([0.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 10.0, 15.0])
    assert find_knee(x, y) == 1  # 0.4 below the chord; the third point is 0.25 below it
    assert find_knee(x, y[::-1].copy()) == 2  # mirrored and shifted: (.75, .1) is 0.15 below
    assert find_knee(x, np.ones(4)) == 3  # a flat curve has all points below its end
    assert find_knee(x[:1], y[:1]) == 0
    assert find_knee(x, -((x - 4) ** 2)) == 3  # a curve above its chord has no knee


# The curves


def test_the_distances_of_a_toy():
    """Two cells of size 2, three cells apart, with 3 and 2 points, in the plane.

    For k = 2, the points of the first cell have two others next to them: sqrt(2 * 4 / 6), the root
    of the mean squared distance in a square with edges of 2. The points of the second cell have
    only one, so their second neighbour is 6 away.
    """
    cells, counts = np.array([[0, 0], [3, 0]]), np.array([3, 2])
    distances, numbers = k_distances(cells, counts, 2.0, min_samples=2)
    np.testing.assert_allclose(distances, [np.sqrt(8 / 6), 6])
    assert numbers.tolist() == [3, 2]
    assert curve_ranks(numbers).tolist() == [0.5, 1.0]


def test_the_shares_of_a_toy():
    """Six points in cells 0, 1, 2 and 7 of a line, with 2, 1, 2 and 1 points; k = 2.

    Cells of size 1 all have at most 2 points. Cells of size 2 have 3, 2 and 1 points, so three of
    six points are in sparse cells; cells of size 3 have 5 and 1, and cells of size 4 too.
    """
    sizes, shares = sparse_fractions(
        np.array([[0], [1], [2], [7]]), np.array([2, 1, 2, 1]), 1.0, min_samples=2
    )
    assert sizes.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    np.testing.assert_allclose(shares, [1, 1 / 2, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 0])


@given(
    st.integers(1, 3).flatmap(
        lambda d: st.lists(
            st.lists(st.floats(-8, 8), min_size=d, max_size=d), min_size=3, max_size=25
        )
    ),
    st.integers(1, 5),
    st.integers(-3, 2),
)
@settings(max_examples=25)
def test_no_distance_has_a_larger_error_than_the_diagonal_of_a_cell(rows, k, exponent):
    X, size = np.array(rows), 2.0**exponent
    k = min(k, len(X) - 1)
    distances, numbers = k_distances(*count_cells(X, size), size, k)
    error = np.abs(np.repeat(distances, numbers) - pooled_distances(X, k)).max()
    assert error <= size * np.sqrt(X.shape[1]) * (1 + 1e-9)
    assert numbers.sum() == len(X)
    assert (np.diff(distances) > 0).all()


@pytest.mark.parametrize("k", [1, 6])
def test_a_search_in_blocks_finds_the_same(k, monkeypatch):
    cells = count_cells(points(), 0.25)
    found = k_distances(*cells, 0.25, k)
    monkeypatch.setattr("fedlib.evaluation.selection.grid_search.BLOCK", 7)
    again = k_distances(*cells, 0.25, k)
    assert [a.tolist() for a in found] == [a.tolist() for a in again]


# The protocol


def test_the_conversation():
    """The coordinates are below 8, so the cells begin at 8 and are halved until they are small."""
    recorder = Recorder(clients(A=[[0.0], [1.0], [2.5]], B=[[3.5], [7.0]]))
    model = DensitySuggestion(1, tolerance=0.9).fit(recorder)
    requests = [exchange.requests["A"] for exchange in recorder.exchanges]
    names = [type(request).__name__ for request in requests]
    assert names == ["ReportMagnitude"] + ["CountCells"] * (len(names) - 1)
    sizes = [request.cell_size for request in requests[1:]]
    assert sizes == [8.0 / 2**i for i in range(len(sizes))]
    assert [reply.magnitude for reply in recorder.exchanges[0].replies.values()] == [2, 3]
    assert model.error_ == sizes[-1] <= 0.9 * model.eps_
    assert set(model.ledger_.summary()["message"]) == {
        "ReportMagnitude",
        "PointsMagnitude",
        "CountCells",
        "CellCounts",
    }


NAMES = ["moons", "circles", "blobs", "varied", "aniso", "no_structure", "shapes_13147"]
REAL = ["banana", "s-set1", "aggregation", "3MC", "dim_reduced_2d", "dim_reduced_3d"]


@pytest.mark.parametrize("name", NAMES + REAL)
def test_the_curve_is_that_of_the_pooled_points(name, request):
    """Its knee is one of the pooled curve: no point is much farther from the chord."""
    data = request.getfixturevalue("real_data")(name) if name in REAL else load(name)
    X = data.X
    model = DensitySuggestion(4).fit(np.array_split(X, 3))
    expected = pooled_distances(X, 4)
    curve = np.repeat(model.model_.distances, model.model_.counts)
    assert np.abs(curve - expected).max() <= model.error_ <= 0.25 * model.eps_
    ranks = np.linspace(0, 1, len(X))
    below = ranks - (expected - expected[0]) / (expected[-1] - expected[0])
    at = model.model_.counts[: model.model_.distance_knee + 1].sum() - 1
    margin = 4 * model.error_ / (expected[-1] - expected[0])
    assert find_knee(ranks, expected) == below.argmax()
    assert below[at] >= below.max() - margin


def test_the_division_of_the_rows_changes_nothing():
    X = points()
    pooled = content(DensitySuggestion(3).fit([X]))
    assert content(DensitySuggestion(3).fit([X[::2], X[1::2], X[:0]])) == pooled
    assert content(DensitySuggestion(3).fit([X[5:][::-1], X[:5]])) == pooled


def test_scaled_tables():
    """The suggestion for scaled features is in their units."""
    X = points() * [1.0, 1000.0]
    pipeline = FederatedPipeline(DensitySuggestion(3), scale="standard").fit(np.array_split(X, 3))
    scaled = DensitySuggestion(3).fit([(X - X.mean(axis=0)) / X.std(axis=0)])
    assert pipeline.estimator_.eps_ == pytest.approx(scaled.eps_, rel=1e-9)


def test_the_smallest_cells_that_clients_count_can_be_limited():
    recorder = Recorder(clients(**parts()))
    with pytest.warns(UserWarning, match="min_cell_size is too large") as caught:
        model = DensitySuggestion(3, min_cell_size=0.7).fit(recorder)
    assert caught[0].filename == __file__
    assert recorder.exchanges[-1].requests["A"].cell_size == model.model_.cell_size == 1.0
    with pytest.warns(UserWarning, match="too many points are equal"):
        equal = DensitySuggestion(2, tolerance=0.5).fit([[[1.0]] * 3, [[1.0]] * 2])
    assert equal.eps_ < 1e-15
    assert len(equal.ledger_.to_frame()) == 2 * 2 * (1 + 53)


def test_no_points_or_too_few():
    with pytest.raises(ValueError, match="the clients have no points"):
        DensitySuggestion(1).fit([np.empty((0, 2))])
    with pytest.raises(ValueError, match="min_samples must be less than the number of .* 2; got 2"):
        DensitySuggestion(2).fit([[[1.0]], [[2.0]]])
    with pytest.raises(ValueError, match=r"parts\[1\]: the points must lie within ±1e\+100"):
        DensitySuggestion(1).fit([[[1.0]], [[2e100]]])
    with pytest.warns(UserWarning, match="too many points are equal"):
        DensitySuggestion(1).fit([[[1e-300]], [[-1e-300]], [[2e-300]]])


@pytest.mark.parametrize(
    "parameters",
    [
        {"min_samples": 0},
        {"min_samples": 2.5},
        {"min_samples": 1, "tolerance": 0},
        {"min_samples": 1, "tolerance": 1},
        {"min_samples": 1, "min_cell_size": 0},
    ],
)
def test_bad_parameters(parameters):
    with pytest.raises(ValueError, match=f"'{list(parameters)[-1]}' parameter"):
        DensitySuggestion(**parameters).protocol()


def test_conventions(tmp_path):
    model = DensitySuggestion(3, tolerance=0.5)
    assert clone(model).get_params() == model.get_params()
    for method in (model.to_frame, model.plot):
        with pytest.raises(NotFittedError):
            method()
    data = list(parts().values())
    models.save(model.fit(data), tmp_path / "curve.json")
    loaded = models.load(tmp_path / "curve.json")
    assert content(loaded) == content(model)
    assert (loaded.eps_, loaded.error_) == (model.eps_, model.error_)
    assert not hasattr(model, "labels_")
    assert suggest_parameters(data, min_samples=3, tolerance=0.5) == {
        "eps": model.eps_,
        "cell_size": model.cell_size_,
    }
    frame = model.to_frame()
    assert frame["n"].sum() == sum(map(len, data))
    assert frame.loc[model.model_.distance_knee, "distance"] == model.eps_


def test_the_figure_marks_the_knees():
    model = DensitySuggestion(3).fit([points()])
    left, right = model.plot().axes
    assert [text.get_text() for text in left.texts] == [f"eps = {model.eps_:.3g}"]
    assert [text.get_text() for text in right.texts] == [f"cell_size = {model.cell_size_:.3g}"]
    assert left.lines[1].get_ydata()[0] == model.eps_
    assert right.lines[1].get_xdata()[0] == model.cell_size_


# Clients that differ, fail or lie


def test_a_passive_client_shares_nothing():
    data = list(parts().values())
    model = DensitySuggestion(3).fit(data, passive=[1])
    assert content(model) == content(DensitySuggestion(3).fit([data[0], data[2]]))
    assert {entry.message for entry in model.ledger_ if entry.sender == "1"} == {"Declined"}


def test_features_that_differ():
    with pytest.raises(Disagreement, match="the number of features: 2 at '0'; 1 at '1'"):
        DensitySuggestion(1).fit([[[1.0, 2.0]], [[1.0]]])


@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_lost_client_has_no_part_in_the_curves(step):
    data = parts()
    seen = []

    def fail(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply

    model = DensitySuggestion(3).fit(Recorder(clients(**data), {"B": fail}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    alone = DensitySuggestion(3).fit([data["A"], data["C"]])
    assert content(model) == content(alone)
    seen.clear()
    with pytest.raises(TooFewClients, match="Lost: 'B'"):
        DensitySuggestion(3).fit(Recorder(clients(**data), {"B": fail}))


def change(message, **fields):
    """Return the bytes of a message with other values in some fields."""
    return encode(msgspec.structs.replace(message, **fields))


def moved(message):
    return change(message, cells=message.cells + 1)


def one_more(message):
    counts = message.counts.copy()
    counts[0] += 1
    return change(message, counts=counts)


LIES = {
    "a huge magnitude": (1, lambda reply: change(reply, magnitude=300)),
    "no magnitude, but points": (1, lambda reply: change(reply, magnitude=None)),
    "other features": (1, lambda reply: change(reply, n_features=3)),
    "names for the first time": (3, lambda reply: change(reply, features=("x", "y"))),
    "cells beyond the magnitude": (2, moved),
    "no cells": (2, lambda reply: change(reply, cells=reply.cells[:0], counts=reply.counts[:0])),
    "cells elsewhere": (4, moved),
    "new cells": (4, lambda reply: change(reply, cells=reply.cells + np.array([0, 100]))),
    "more points than before": (4, one_more),
    "one more column": (4, lambda reply: change(reply, cells=reply.cells.repeat(2, axis=1))),
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    data, (step, lie) = parts(), LIES[name]
    seen = []

    def tamper(request, reply):
        seen.append(request)
        return lie(decode(reply)) if len(seen) == step else reply

    model = DensitySuggestion(3).fit(Recorder(clients(**data), {"B": tamper}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert model.ledger_.lost["B"].startswith("InvalidReply at ")
    assert content(model) == content(DensitySuggestion(3).fit([data["A"], data["C"]]))


def fit_guarded(data, names):
    """Fit with sites that withhold counts below 3; return the model and the counts of each step."""
    sites = clients(**data)
    policy = Policy.from_dict({"min_count": 3, "groups": "singly"})
    recorder = Recorder(
        {n: GuardedClient(c, policy, "suggest") if n in names else c for n, c in sites.items()}
    )
    model = DensitySuggestion(3).fit(recorder)
    replies = [exchange.replies.values() for exchange in recorder.exchanges[1:]]
    return model, [[int(reply.counts.sum()) for reply in step] for step in replies]


def test_a_site_that_withholds_small_counts_does_not_count():
    """At the end B has less than 75 % of its points; then the curves are those of the others."""
    data = parts()
    model, numbers = fit_guarded(data, ["B"])
    assert numbers[-1][1] < 0.75 * numbers[0][1]
    assert model.ledger_.lost == {}
    assert content(model) == content(DensitySuggestion(3).fit([data["A"], data["C"]]))


def test_most_sites_withhold_small_counts():
    """The refinement ends before less than 75 % of the points of two sites are left."""
    with pytest.warns(UserWarning, match="sites withhold small counts"):
        model, numbers = fit_guarded(parts(), ["B", "C"])
    left = np.array(numbers)[:, 1:] / numbers[0][1:]
    assert (left[-1] < 0.75).any()
    assert model.model_.cell_size == 16.0 / 2 ** (len(numbers) - 2)
    assert model.model_.counts.sum() <= sum(numbers[-2])


def test_sharing_after_declining():
    data, replies = parts(), []

    def decline_first(request, reply):
        replies.append(reply)
        return encode(Declined()) if len(replies) == 1 else reply

    recorder = Recorder(clients(**data), {"B": decline_first})
    model = DensitySuggestion(3).fit(recorder, min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at CountCells, step 2"}
