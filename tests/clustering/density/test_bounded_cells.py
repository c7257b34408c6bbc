"""Counts on an agreed grid: the same cells as without bounds, refined blocks, false replies."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import ApproximateDBSCAN
from fedlib.clustering.density.approximate import ApproximateDBSCANClient, AssignCoreCells
from fedlib.clustering.density.bounded_cells import (
    CountGrid,
    GridCounts,
    TooManyBlocks,
    bounded_grid,
    count_in_grid,
    count_on_grid,
)
from fedlib.clustering.density.cells import count_cells
from fedlib.clustering.density.neighbouring_cells import cell_side
from fedlib.core.aggregation import Aggregation
from fedlib.core.in_process import InProcess
from fedlib.core.messages import decode, encode
from fedlib.core.protocol import run
from fedlib.protection.secure import ImpossibleSum, SecureClient, simulated_identities
from fedlib.protection.secure import messages as steps
from fedlib.protection.secure.points import DescribeFeatures

ALL = np.empty(0, np.int64)
RNG = np.random.default_rng(0)
PARTS = [np.concatenate([RNG.normal(c, 0.3, (40, 2)) for c in (0.0, 4.0)]) for _ in range(3)]
BOUNDS = [[-2.0, -2.0], [6.0, 6.0]]


def bounded(**changes):
    return ApproximateDBSCAN(1.0, 5, 0.5, **{"bounds": BOUNDS} | changes)


def clients():
    return {name: ApproximateDBSCANClient(X) for name, X in zip("ABC", PARTS, strict=True)}


def test_counts_by_hand():
    """Cells just below 0.5 wide; the grid reaches from cell -2 to cell 3, in blocks of two."""
    side = cell_side(1.0, 1.0, 1)
    grid = bounded_grid(np.array([[-0.9], [1.9]]), side)
    assert (grid.low.tolist(), grid.shape.tolist()) == ([-2], [6])
    X = np.array([[-0.9], [0.1], [0.2], [1.9]])
    assert count_in_grid(X, CountGrid(side, *grid, 1, ALL)).counts.tolist() == [1, 0, 2, 0, 0, 1]
    assert count_in_grid(X, CountGrid(side, *grid, 2, ALL)).counts.tolist() == [1, 2, 1]
    assert count_in_grid(X, CountGrid(side, *grid, 1, np.array([2, 3]))).counts.tolist() == [2, 0]


@given(data=st.data(), d=st.integers(1, 3), max_blocks=st.sampled_from([200, 4096, 10**6]))
@settings(max_examples=30)
def test_the_cells_are_those_of_all_points(data, d, max_blocks):
    """Whatever the number of exchanges is; points may lie exactly on the bounds."""
    coordinate = st.one_of(st.sampled_from([-2.0, 2.0]), st.floats(-2, 2))
    X = np.array(data.draw(st.lists(st.tuples(*[coordinate] * d), min_size=1, max_size=20)))
    side = cell_side(1.0, 0.9, d)
    grid = bounded_grid(np.array([[-2.0] * d, [2.0] * d]), side)
    transport = InProcess({"A": ApproximateDBSCANClient(X), "B": ApproximateDBSCANClient(X[::2])})
    flow = count_on_grid(side, grid, max_blocks, Aggregation(), 1.0, 0.9)
    cells, counts = run(flow, transport)
    expected = count_cells(np.concatenate([X, X[::2]]), side)
    assert cells.tolist() == expected[0].tolist()
    assert counts.tolist() == expected[1].tolist()


@pytest.mark.parametrize(("max_cells", "sides"), [(None, [1]), (2000, [2, 1]), (600, [2, 1])])
def test_the_result_is_the_same_with_and_without_bounds(max_cells, sides, relay):
    model, transport = bounded(max_cells=max_cells), relay(clients())
    model.fit(transport)
    assert [e.requests["A"].side for e in transport.exchanges[1:-1]] == sides
    kinds = [type(e.requests["A"]) for e in transport.exchanges]
    assert kinds == [DescribeFeatures, *[CountGrid] * len(sides), AssignCoreCells]
    expected = bounded(bounds=None).fit(PARTS)
    for name in ("cells_", "cell_counts_", "cell_labels_"):
        assert getattr(model, name).tolist() == getattr(expected, name).tolist()
    labels = [client.state.labels.tolist() for client in transport.members.values()]
    assert labels == [part.tolist() for part in expected.labels_]


def test_a_reply_does_not_show_which_cells_are_occupied_by_its_size(relay):
    transport = relay(
        {"A": ApproximateDBSCANClient(PARTS[0]), "B": ApproximateDBSCANClient([[0, 0]])}
    )
    bounded().fit(transport)
    sizes = {len(data) for data in transport.exchanges[1].reply_bytes.values()}
    assert len(sizes) == 1


def test_too_many_occupied_cells():
    spread = [RNG.uniform(-2, 6, (150, 2)) for _ in range(3)]
    with pytest.raises(TooManyBlocks, match=r"\d+ blocks of 1 cells per feature .* max_cells=700"):
        bounded(max_cells=700).fit(spread)


@pytest.mark.parametrize(
    ("X", "reason"),
    [
        ([[0.0, 99.0]], "InvalidReply at CountGrid, step 2"),
        ([[0.0]], "InvalidReply at DescribeFeatures, step 1"),
    ],
    ids=["outside", "another feature"],
)
def test_a_client_that_does_not_fit_the_grid_leaves(X, reason, relay):
    """Its points are not cut off silently."""
    members = clients() | {"D": ApproximateDBSCANClient(X)}
    model = bounded().fit(relay(members), min_clients=3)
    assert model.ledger_.lost == {"D": reason}
    assert model.cell_counts_.sum() == 240


def test_bounds_of_another_number_of_features(relay):
    transport = relay(clients())
    with pytest.raises(ValueError, match="must have the 2 features of the clients' points, got 1"):
        bounded(bounds=[[0.0], [1.0]]).fit(transport)
    assert len(transport.exchanges) == 1


@pytest.mark.parametrize(
    ("step", "change", "reason"),
    [
        (1, lambda counts: counts[1:], "must have 529 entries, got 528"),
        (1, lambda counts: counts + 2**39, "must sum to at most"),
        (1, lambda counts: counts + 1, "must have at most 2000 parts, got 2116"),
        (2, lambda counts: counts + 1, "must sum to 80 as before"),
    ],
)
def test_only_the_lying_client_leaves(step, change, reason, relay, caplog):
    seen = []

    def lie(request, reply):
        if isinstance(decode(request), CountGrid):
            seen.append(request)
            if len(seen) == step:
                return encode(GridCounts(change(decode(reply).counts), 0))
        return reply

    transport = relay(clients(), {"C": lie})
    model = bounded(max_cells=2000).fit(transport, min_clients=2)
    assert model.ledger_.lost == {"C": f"InvalidReply at CountGrid, step {step + 1}"}
    assert reason in caplog.text
    assert model.cells_.tolist() == bounded(bounds=None).fit(PARTS[:2]).cells_.tolist()


def test_a_client_that_reports_points_outside_leaves(relay):
    def lie(request, reply):
        if isinstance(decode(request), CountGrid):
            return encode(GridCounts(decode(reply).counts, 1))
        return reply

    model = bounded().fit(relay(clients(), {"C": lie}), min_clients=2)
    assert model.ledger_.lost == {"C": "InvalidReply at CountGrid, step 2"}


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_client_leaves(step, relay):
    """The result is that of the others, even if its points were counted in larger blocks."""
    seen = []

    def lose(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply  # step 1 only describes the features

    model = bounded(max_cells=2000).fit(relay(clients(), {"B": lose}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    expected = bounded(bounds=None).fit(PARTS[::2])
    assert model.cell_counts_.tolist() == expected.cell_counts_.tolist()


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ([0.0, 1.0], "two rows with a number per column"),
        ([[0.0], [1.0], [2.0]], "two rows with a number per column"),
        ([[], []], "two rows with a number per column"),
        ([[1.0], [0.0]], "column 0 must be two numbers, the lower below the upper"),
        ([[0.0], [math.inf]], "must be two numbers, the lower below the upper"),
        ([[0.0], [math.nan]], "must be two numbers, the lower below the upper"),
        ([[0.0], [1e15]], "must lie within .*, 1099511627776 cells of size 0.249"),
        ([[0.0] * 9, [1e3] * 9], "at most 4611686018427387903 cells"),
    ],
)
def test_invalid_bounds(bounds, reason, relay):
    transport = relay(clients())
    with pytest.raises(ValueError, match=reason):
        bounded(bounds=bounds).fit(transport)
    assert transport.exchanges == []


# Secure sums ------------------------------------------------------------------------------------

IDENTITIES = simulated_identities(["A", "B", "C", "D"])
MANY = dict(zip("ABCD", [*PARTS, PARTS[0][::3]], strict=True))


def secure_clients():
    return {
        name: SecureClient(ApproximateDBSCANClient(X), IDENTITIES[name]) for name, X in MANY.items()
    }


def equal(model, expected):
    names = ("cells_", "cell_counts_", "cell_labels_")
    return [np.array_equal(getattr(model, name), getattr(expected, name)) for name in names]


@pytest.mark.parametrize(("max_cells", "n_sums"), [(None, 1), (600, 2)])
def test_secure_sums_give_the_plain_result(max_cells, n_sums, relay):
    """The server receives masked values only, for the blocks and for their parts."""
    transport = relay(secure_clients())
    model = bounded(secure=True, max_cells=max_cells).fit(transport)
    expected = bounded(bounds=None).fit(list(MANY.values()))
    assert all(equal(model, expected))
    labels = [client.state.labels.tolist() for client in transport.members.values()]
    assert labels == [part.tolist() for part in expected.labels_]
    a_sum = [
        steps.SignedKeys,
        steps.EncryptedShares,
        steps.MaskedValues,
        steps.Confirmation,
        steps.RevealedShares,
    ]
    sent = [type(exchange.replies["A"]).__name__ for exchange in transport.exchanges]
    assert sent == ["Features", *[kind.__name__ for kind in a_sum] * n_sums, "Done"]


@pytest.mark.parametrize(
    "step",
    [
        steps.AdvertiseKeys,
        steps.ShareSecrets,
        steps.MaskValues,
        steps.ConfirmSurvivors,
        steps.RevealShares,
    ],
)
def test_a_client_is_lost_in_a_secure_sum(step, relay):
    """Until it has sent its masked values, it is as if it had never been there."""
    tamper = {"B": lambda q, r: None if isinstance(decode(q), step) else r}
    model = bounded(secure=True).fit(relay(secure_clients(), tamper), min_clients=3)
    assert list(model.ledger_.lost) == ["B"]
    counted = step in (steps.ConfirmSurvivors, steps.RevealShares)
    rest = [X for name, X in MANY.items() if counted or name != "B"]
    assert all(equal(model, bounded(bounds=None).fit(rest)))


def test_a_point_outside_is_noise_in_a_secure_sum(relay):
    """The server learns how many there are at all sites, and not at which site."""
    members = secure_clients()
    members["D"] = SecureClient(ApproximateDBSCANClient([[0.0, 99.0]]), IDENTITIES["D"])
    with pytest.warns(UserWarning, match="1 points lie outside of the bounds: they are noise"):
        model = bounded(secure=True).fit(relay(members))
    assert model.ledger_.lost == {}
    assert members["D"].problems == ("1 of 1 points lie outside the agreed bounds: they are noise",)
    assert all(equal(model, bounded(bounds=None).fit(PARTS)))


@pytest.mark.parametrize(
    ("nth", "added", "reason"),
    [
        (1, [2**63], "at least one client has sent wrong values"),
        (2, [1, 0], r"contain \d+ points, but the blocks 267"),
    ],
    ids=["negative counts", "more points than before"],
)
def test_an_impossible_secure_sum_ends_the_run(nth, added, reason, relay):
    """Masked values cannot be checked, so nobody knows who has lied."""
    seen = []

    def lie(request, reply):
        if isinstance(decode(request), steps.MaskValues):
            seen.append(request)
            if len(seen) == nth:
                words = decode(reply).words.copy()
                words[:-1] += np.uint64(added[0])
                words[-1:] += np.uint64(added[-1])
                return encode(steps.MaskedValues(words))
        return reply

    with pytest.raises(ImpossibleSum, match=reason):
        bounded(secure=True, max_cells=600).fit(relay(secure_clients(), {"C": lie}))
