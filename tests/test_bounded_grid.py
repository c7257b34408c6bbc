"""Counts on an agreed grid: the same cells as without bounds, refined blocks, false replies."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import ApproximateDBSCAN
from fedlib.approximate_dbscan import ApproximateDBSCANClient, AssignCoreCells
from fedlib.bounded_grid import (
    BlockCounts,
    CountBlocks,
    TooManyBlocks,
    add_replies,
    count_blocks,
    count_on_grid,
    make_grid,
)
from fedlib.cells import count_cells
from fedlib.messages import decode, encode
from fedlib.near_cells import cell_side
from fedlib.protocol import run
from fedlib.secure.points import DescribeFeatures
from fedlib.transports.in_process import InProcess

ALL = np.empty(0, np.int64)
RNG = np.random.default_rng(0)
PARTS = [np.concatenate([RNG.normal(c, 0.3, (40, 2)) for c in (0.0, 4.0)]) for _ in range(3)]
BOUNDS = [[-2.0, -2.0], [6.0, 6.0]]


def bounded(**changes):
    return ApproximateDBSCAN(1.0, 5, 0.5, **{"grid_bounds": BOUNDS} | changes)


def clients():
    return {name: ApproximateDBSCANClient(X) for name, X in zip("ABC", PARTS, strict=True)}


def test_counts_by_hand():
    """Cells just below 0.5 wide; the grid reaches from cell -2 to cell 3, in blocks of two."""
    grid = make_grid(1.0, 1.0, [[-0.9], [1.9]])
    assert (grid.low.tolist(), grid.shape.tolist()) == ([-2], [6])
    X = np.array([[-0.9], [0.1], [0.2], [1.9]])
    assert count_blocks(X, CountBlocks(*grid, 1, ALL)).tolist() == [1, 0, 2, 0, 0, 1]
    assert count_blocks(X, CountBlocks(*grid, 2, ALL)).tolist() == [1, 2, 1]
    assert count_blocks(X, CountBlocks(*grid, 1, np.array([2, 3]))).tolist() == [2, 0]


@given(data=st.data(), d=st.integers(1, 3), max_blocks=st.sampled_from([200, 4096, 10**6]))
@settings(max_examples=30)
def test_the_cells_are_those_of_all_points(data, d, max_blocks):
    """Whatever the number of exchanges is; points may lie exactly on the bounds."""
    coordinate = st.one_of(st.sampled_from([-2.0, 2.0]), st.floats(-2, 2))
    X = np.array(data.draw(st.lists(st.tuples(*[coordinate] * d), min_size=1, max_size=20)))
    grid = make_grid(1.0, 0.9, [[-2.0] * d, [2.0] * d])
    transport = InProcess({"A": ApproximateDBSCANClient(X), "B": ApproximateDBSCANClient(X[::2])})
    cells, counts = run(count_on_grid(grid, max_blocks, add_replies(max_blocks)), transport)
    expected = count_cells(np.concatenate([X, X[::2]]), cell_side(1.0, 0.9, d))
    assert cells.tolist() == expected[0].tolist()
    assert counts.tolist() == expected[1].tolist()


@pytest.mark.parametrize(("max_cells", "sides"), [(None, [1]), (2000, [2, 1]), (600, [2, 1])])
def test_the_result_is_the_same_with_and_without_bounds(max_cells, sides, relay):
    model, transport = bounded(max_cells=max_cells), relay(clients())
    model.fit(transport)
    assert [e.requests["A"].side for e in transport.exchanges[1:-1]] == sides
    kinds = [type(e.requests["A"]) for e in transport.exchanges]
    assert kinds == [DescribeFeatures, *[CountBlocks] * len(sides), AssignCoreCells]
    expected = bounded(grid_bounds=None).fit(PARTS)
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
    with pytest.raises(TooManyBlocks, match=r"\d+ blocks of 1 cells per feature .* max_blocks=700"):
        bounded(max_cells=700).fit(spread)


@pytest.mark.parametrize(
    ("X", "reason"),
    [
        ([[0.0, 99.0]], "ValueError at CountBlocks, step 2"),
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
        bounded(grid_bounds=[[0.0], [1.0]]).fit(transport)
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
        if isinstance(decode(request), CountBlocks):
            seen.append(request)
            if len(seen) == step:
                return encode(BlockCounts(change(decode(reply).counts)))
        return reply

    transport = relay(clients(), {"C": lie})
    model = bounded(max_cells=2000).fit(transport, min_clients=2)
    assert model.ledger_.lost == {"C": f"InvalidReply at CountBlocks, step {step + 1}"}
    assert reason in caplog.text
    assert model.cells_.tolist() == bounded(grid_bounds=None).fit(PARTS[:2]).cells_.tolist()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_client_leaves(step, relay):
    """The result is that of the others, even if its points were counted in larger blocks."""
    seen = []

    def lose(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply  # step 1 only describes the features

    model = bounded(max_cells=2000).fit(relay(clients(), {"B": lose}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    expected = bounded(grid_bounds=None).fit(PARTS[::2])
    assert model.cell_counts_.tolist() == expected.cell_counts_.tolist()


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ([0.0, 1.0], "must have shape"),
        ([[0.0], [1.0], [2.0]], "must have shape"),
        ([[], []], "must have shape"),
        ([[0.0], [0.0]], "must be finite and ascending"),
        ([[0.0], [math.inf]], "must be finite and ascending"),
        ([[0.0], [math.nan]], "must be finite and ascending"),
        ([[0.0], [1e15]], "fewer than 2\\*\\*62 cells"),
        ([[0.0] * 9, [1e3] * 9], "fewer than 2\\*\\*62 cells, got about"),
    ],
)
def test_invalid_bounds(bounds, reason, relay):
    transport = relay(clients())
    with pytest.raises(ValueError, match=reason):
        bounded(grid_bounds=bounds).fit(transport)
    assert transport.exchanges == []
