"""Spans from counts with noise: by hand, between two runs of DBSCAN, lost and lying clients."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedlib import ApproximateDBSCAN
from fedlib.clustering.density.approximate import ApproximateDBSCANClient, AssignCoreCells
from fedlib.clustering.density.bounded_cells import CountWithNoise, NoisyCounts
from fedlib.clustering.density.cells import place_points
from fedlib.clustering.density.engine.dbscan import cluster
from fedlib.clustering.density.neighbouring_cells import (
    cell_side,
    find_spans,
    noise_margin,
    squared_reach,
    sum_near,
)
from fedlib.core.messages import Done, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.protection.privacy import Privacy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.messages import MaskValues
from fedlib.protection.secure.points import DescribeFeatures, Features
from fedlib.testing import seeded_noise

# One feature, eps = 1 and rho = 1: cells are just below 0.5 wide, and near if they differ by 3 or
# less. With this epsilon, the noise of a count is about 0.01, and the margin below 1.
TOY = {"eps": 1.0, "min_samples": 4, "rho": 1.0, "bounds": [[0.0], [9.9]], "epsilon": 100.0}
FIRST = [[0.2], [0.3], [6.1], [6.2], [6.3], [-5.0]]  # cells 0 and 12, and a point outside
SECOND = [[0.1], [0.4], [6.4], [6.45], [3.3]]  # cells 0 and 12, and 6, which is in no span
THIRD = [[0.25], [9.8]]
PARTS = [FIRST, SECOND, THIRD]
SPANS = [[[0], [1], [2], [3]], [[9], [10], [11], [12], [13], [14], [15]]]


def clients(secure=False):
    members = {name: ApproximateDBSCANClient(X) for name, X in zip("ABC", PARTS, strict=True)}
    if not secure:
        return members
    identities = simulated_identities(list(members))
    return {name: SecureClient(one, identities[name]) for name, one in members.items()}


def spans(model):
    return [span.tolist() for span in model.spans_]


def test_sums_and_spans_by_hand():
    """The cell 6 has 5 points near it without noise, the others 4 or none."""
    counts = np.array([4.0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4])
    assert sum_near(counts, 1.0).round(9).tolist() == [5, 5, 5, 5, 1, 1, 1, 4, 4, 4, 4]
    places, labels = find_spans(counts, 1.0, 3.5)
    assert places.ravel().tolist() == [0, 1, 2, 3, 7, 8, 9, 10]
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_no_cell_is_dense():
    places, labels = find_spans(np.zeros((3, 4)), 0.5, 1.0)
    assert (places.shape, labels.tolist()) == ((0, 2), [])


@given(data=st.data(), shape=st.lists(st.integers(1, 7), min_size=1, max_size=3))
@settings(max_examples=20)
def test_sums_are_those_over_all_near_cells(data, shape):
    rho = data.draw(st.sampled_from([1.0, 0.6, 0.3]))
    counts = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 9, shape)
    cells = np.argwhere(np.ones(shape))
    distances = np.square(cells[:, np.newaxis] - cells).sum(axis=2)
    expected = (distances <= squared_reach(rho, len(shape))) @ counts.ravel()
    np.testing.assert_allclose(sum_near(counts, rho).ravel(), expected, atol=1e-9)


def test_the_margin_of_gaussian_noise_is_that_of_its_quantiles():
    margin = noise_margin(2.0, Privacy(rho=0.1), n_noises=25, n_sums=1000)
    assert 2 * 1000 * norm.sf(margin / 10) == pytest.approx(0.05)


@pytest.mark.parametrize("n_noises", [1, 10, 200])
def test_the_margin_of_laplace_noise_is_never_too_small(n_noises):
    """Beyond the quantiles of many sums, and near them when the sums are nearly normal."""
    margin = noise_margin(1.0, Privacy(epsilon=1.0), n_noises, n_sums=10)
    sums = np.random.default_rng(0).laplace(size=(10_000, n_noises)).sum(axis=1)
    assert (np.abs(sums) > margin).mean() < 0.005
    assert margin < 2.5 * np.quantile(np.abs(sums), 0.995)


def test_toy():
    """The cells 0 and 12 have 5 points each. The point outside is not counted, but labelled."""
    with seeded_noise(0):
        model = ApproximateDBSCAN(**TOY).fit(PARTS)
    assert spans(model) == SPANS
    assert 0.1 < model.noise_margin_ < 1.0
    labels = [part.tolist() for part in model.labels_]
    assert labels == [[0, 0, 1, 1, 1, -1], [0, 0, 1, 1, -1], [0, -1]]
    assert model.cell_counts_[[0, 4, 7]].tolist() == [5, 0, 5]
    assert model.predict([[1.9], [2.9], [3.4]]).tolist() == [0, 0, -1]


def test_the_conversation(relay):
    """One request for counts; all cells have noise, and no count says how many rows there are."""
    transport = relay(clients())
    model = ApproximateDBSCAN(**TOY).fit(transport)
    kinds = [type(exchange.requests["A"]) for exchange in transport.exchanges]
    assert kinds == [DescribeFeatures, CountWithNoise, AssignCoreCells]
    replies = [type(exchange.replies["A"]) for exchange in transport.exchanges]
    assert replies == [Features, NoisyCounts, Done]
    counted = transport.exchanges[1]
    for reply in counted.replies.values():
        assert (reply.counts != np.rint(reply.counts)).mean() > 0.8  # a noise can be 0
    assert len({len(data) for data in counted.reply_bytes.values()}) == 1
    assert counted.requests["A"].privacy == Privacy(epsilon=100.0)
    assert model.ledger_.lost == {}


def test_secure_sums_have_less_noise_than_noise_of_each_client():
    local, shared = (
        ApproximateDBSCAN(**TOY, delta=1e-3, secure=secure).fit([FIRST] * 4)
        for secure in (False, True)
    )
    assert shared.noise_margin_ < 0.72 * local.noise_margin_  # two of four are honest for certain


def test_secure_sums_give_the_spans_of_the_toy(relay):
    transport = relay(clients(secure=True))
    less_noise = {"epsilon": 1000.0, "delta": 1e-3, "secure": True}
    model = ApproximateDBSCAN(**TOY | less_noise).fit(transport)
    assert model.noise_margin_ < 0.5
    assert spans(model) == SPANS
    assert "NoisyCounts" not in {entry.message for entry in model.ledger_.entries}
    assert MaskValues in {type(exchange.requests["A"]) for exchange in transport.exchanges}


def test_a_client_is_lost(relay):
    """The result is that of the others. Without the second client, nothing is dense."""
    lose = {"B": lambda q, r: None if isinstance(decode(q), CountWithNoise) else r}
    model = ApproximateDBSCAN(**TOY).fit(relay(clients(), lose), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert spans(model) == []
    assert model.predict([[0.2]]).tolist() == [-1]
    with pytest.raises(TooFewClients, match="B"):
        ApproximateDBSCAN(**TOY).fit(relay(clients(), lose))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (NoisyCounts(np.zeros(3)), "must have the shape (20,), got (3,)"),
        (Done(), "NoisyCounts"),
    ],
)
def test_only_the_lying_client_leaves(reply, reason, relay, caplog):
    lie = {"C": lambda q, r: encode(reply) if isinstance(decode(q), CountWithNoise) else r}
    model = ApproximateDBSCAN(**TOY).fit(relay(clients(), lie), min_clients=2)
    assert model.ledger_.lost == {"C": "InvalidReply at CountWithNoise, step 2"}
    assert reason in caplog.text
    assert spans(model) == [[[3]], SPANS[1]]  # only the cell 3 is near five points around cell 0


def test_a_client_refuses_no_row(relay):
    """Neither a point far outside nor no point at all can be seen in its reply."""
    for X in ([[1e300]], np.empty((0, 1))):
        transport = relay({"A": ApproximateDBSCANClient(X)})
        ApproximateDBSCAN(**TOY).fit(transport)
        assert np.abs(transport.exchanges[1].replies["A"].counts).max() < 1


@given(seed=st.integers(0, 2**30), rho=st.sampled_from([1.0, 0.5]), d=st.integers(1, 2))
@settings(max_examples=10, deadline=None)
def test_spans_lie_between_two_runs_of_dbscan(seed, rho, d):
    """The seeds are those whose noise is within the margin, which are at least 95 % of all."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 12, (4, d))
    X = np.concatenate(
        [rng.normal(c, 0.4, (150, d)) for c in centres] + [rng.uniform(0, 12, (40, d))]
    )
    X = np.clip(X, 0, 12)
    options = {"bounds": [[0.0] * d, [12.0] * d], "epsilon": 8.0}
    with seeded_noise(seed):
        model = ApproximateDBSCAN(1.0, 10, rho, **options).fit([X[::2], X[1::2]])
    assert model.noise_margin_ < 60
    core = model.model_.core_cells
    side = cell_side(1.0, rho, d)
    span = place_points(X, side, core.cells, core.labels, adjacency="none")
    dense, dense_core = cluster(X, 1.0, 10 + math.ceil(2 * model.noise_margin_))
    wide, wide_core = cluster(X, 3 * (1 + rho), 10)
    for number in set(dense[dense_core]):
        inside = span[dense_core & (dense == number)]
        assert inside.min() == inside.max() >= 0
    for number in set(span) - {-1}:
        assert wide_core[span == number].all()
        assert len(set(wide[span == number])) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilon": 0.0}, "The 'epsilon' parameter of ApproximateDBSCAN must be"),
        ({"epsilon": 1e-300}, "epsilon must be larger"),
        ({"epsilon": -1.0}, "The 'epsilon' parameter of ApproximateDBSCAN must be"),
        ({"epsilon": math.nan}, "The 'epsilon' parameter of ApproximateDBSCAN must be"),
        ({"delta": 1.0}, "The 'delta' parameter of ApproximateDBSCAN must be"),
        ({"epsilon": None, "delta": 0.1}, "delta needs epsilon, got delta=0.1"),
        ({"bounds": None}, "epsilon needs bounds, the smallest"),
        ({"secure": True}, "needs delta > 0"),
        ({"max_cells": 19}, "bounds must contain at most 19 cells, got 20"),
        ({"rho": 1e-6}, "bounds must contain at most 4194304 cells, got 1.98"),
    ],
)
def test_bad_parameters_raise_before_any_message(changes, reason, relay):
    transport = relay(clients())
    with pytest.raises(ValueError, match=reason):
        ApproximateDBSCAN(**TOY | changes).fit(transport)
    assert transport.exchanges == []
