"""The attacks of the pages on disclosure, on examples by hand."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedlib import ApproximateDBSCAN, FederatedKMeans, HorizontalDBSCAN
from fedlib.boosting.messages import BeginBoosting
from fedlib.clustering.density.bounded_cells import CountGrid, GridCounts
from fedlib.clustering.density.horizontal import CellCounts
from fedlib.clustering.density.ppdbdc import BlurredRepresentatives
from fedlib.clustering.density.vertical import FindNeighbours, VerticalDBSCANClient
from fedlib.clustering.kmeans.messages import ClusterSums
from fedlib.tables.summary.messages import BinCounts, CountBins, to_keys

ROOT = Path(__file__).parents[2]
PARTS = [np.array([[0.1, 0.2], [0.4, 0.4], [5.0, 5.0]]), np.array([[0.2, 0.2], [7.0, 7.0]])]


@pytest.fixture
def attacks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    return importlib.import_module("study.attacks.attacks")


@pytest.fixture
def attack_guesses(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    return importlib.import_module("study.attacks.attack_guesses")


@pytest.fixture
def attack_summary(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    return importlib.import_module("study.attacks.attack_summary")


@pytest.fixture
def neighbour_attack(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    return importlib.import_module("study.attacks.neighbour_attack")


def test_located(attacks):
    """Points at 0, 1 and 5; guesses at 0.5 and 5."""
    X, guesses = np.array([[0.0], [1.0], [5.0]]), np.array([[0.5], [5.0]])
    assert attacks.located(X, guesses, 0.4) == pytest.approx(1 / 3)
    assert attacks.located(X, guesses, 0.5) == 1.0
    assert attacks.located(X, guesses[:0], 9.0) == 0.0


def test_points_are_in_the_middle_of_their_cells(attacks, attack_guesses):
    (request, reply), _ = attacks.replies_of(HorizontalDBSCAN(1.0, 2), PARTS)
    assert attack_guesses.cell_centres(request, reply).tolist() == [[0.5, 0.5], [5.5, 5.5]]
    (request, reply), _ = attacks.replies_of(ApproximateDBSCAN(1.0, 2, 0.1), PARTS)
    gaps = np.abs(attack_guesses.cell_centres(request, reply) - PARTS[0])
    assert gaps.max() <= 0.1 / (2 * np.sqrt(2)) / 2


def test_points_are_in_the_middle_of_their_blocks(attack_guesses):
    """A grid of 6 by 6 cells with a side of 1, in blocks of 2: points at (0.1, 0.2) and (5, 5)."""
    six = np.array([6, 6])
    request = CountGrid(1.0, 0 * six, six, side=2)
    counts = np.array([1, 0, 0, 0, 0, 0, 0, 0, 1])
    assert attack_guesses.block_centres(request, GridCounts(counts, 0)).tolist() == [[1, 1], [5, 5]]
    request = CountGrid(1.0, 0 * six, six, keys=np.array([0, 1, 35]))
    reply = GridCounts(np.array([0, 2, 1]), 0)
    assert attack_guesses.block_centres(request, reply).tolist() == [[0.5, 1.5], [5.5, 5.5]]


def test_the_sum_of_a_single_point_is_the_point(attacks):
    start = np.array([[0.2, 0.2], [5.0, 5.0]])
    estimator = FederatedKMeans(2, method="lloyd", init=start, max_iter=1)
    rng = np.random.default_rng(0)
    rows = attacks.attack("Lloyd", estimator, PARTS, PARTS[1], 1e-9, rng)
    assert rows["message"].tolist() == ["GroupMeans", "ClusterSums"]
    rows = rows[rows["message"] == "ClusterSums"]
    assert rows["located"].tolist() == [pytest.approx(1 / 3)]  # (5, 5), alone in its cluster
    assert rows["by guessing"].tolist() == [0.0]


def test_membership(attacks):
    """Of two members one shares a cell with nobody; one of four others is in an occupied cell."""
    cells = np.array([[0], [3]])
    members, others = np.array([[0.5], [3.5]]), np.array([[0.1], [1.5], [2.5], [9.0]])
    assert attacks.membership_advantage(cells, 1.0, members, others) == 0.75


@pytest.mark.parametrize("factor", [2, 0.5])
def test_two_amounts_of_noise_cancel(attacks, factor):
    means, noise = np.array([[1.0], [4.0]]), np.array([[0.3], [-0.2]])
    replies = [BlurredRepresentatives(means + k * noise, np.array([1, 1])) for k in (1, factor)]
    assert attacks.remove_noise(*replies, factor) == pytest.approx(means)


def sums(points, counts):
    return ClusterSums(np.array([points]), np.array([counts]), np.zeros(1))


def test_a_point_that_moves_between_clusters_is_known(attack_guesses):
    """The point (1, 2) leaves the first cluster and joins the second one."""
    before = sums([[3.0, 5.0], [9.0, 9.0]], [2, 3])
    after = sums([[2.0, 3.0], [10.0, 11.0]], [1, 4])
    assert attack_guesses.moved_points([before, after]).tolist() == [[1.0, 2.0]]
    assert attack_guesses.moved_points([after, before]).tolist() == [[1.0, 2.0]]


def test_points_that_move_at_the_same_time_are_not_claimed(attack_guesses):
    """One point leaves the first cluster, another one that was not there joins the second one."""
    before = sums([[3.0, 5.0], [9.0, 9.0], [4.0, 4.0]], [2, 3, 2])
    after = sums([[2.0, 3.0], [13.0, 13.0], [1.0, 2.0]], [1, 4, 2])
    assert attack_guesses.moved_points([before, after]).shape == (0, 2)


def test_two_points_behind_a_mean_and_a_covariance(attack_guesses):
    """The points (1, 0) and (3, 4): the mean is (2, 2), and v = (1, 2)."""
    found = attack_guesses.both_points(np.array([[2.0, 2.0]]), np.array([[[1.0, 2.0], [2.0, 4.0]]]))
    assert sorted(map(tuple, found.round(9).tolist())) == [(1.0, 0.0), (3.0, 4.0)]


def test_values_are_guessed_in_the_middle_of_occupied_bins(attack_guesses):
    """Two of four bins between 1 and 2 are occupied; the middle of a bin is that of its ends."""
    low, high = to_keys(np.array([1.0, 2.0]))
    request = CountBins(
        (),
        False,
        np.empty(0, np.int64),
        np.empty(0),
        np.array([3]),
        *(np.array([end], np.uint64) for end in (low, high)),
        4,
    )
    guesses = attack_guesses.bin_middles(request, BinCounts(np.array([[2, 0, 0, 1]])))
    assert (guesses[:, 0] / attack_guesses.COLUMN).tolist() == [3, 3]
    assert guesses[:, 1] == pytest.approx([1.125, 1.875])


def test_classes_behind_gradients(attacks):
    """Bins with 3 rows of the first class, and with 1 of each: 4 of 5 are guessed, 3 are certain.

    p is 1/2, so n rows with n₁ positive ones have G = n/2 - n₁ and H = n/4.
    """
    begin = BeginBoosting(
        classes=(0, 1),
        base_margin=0.0,
        bits=10,
        offsets=np.array([0, 2]),
        thresholds=np.zeros(2, np.float32),
    )
    gradients = np.array([[1.5, 0.75], [0.0, 0.5]]) * 2**10
    score = attacks.score_of_classes(None, gradients.astype(np.int64), begin)
    assert score == (5, 0.8, 0.8, 0.6)


def test_order_and_values_from_neighbours(neighbour_attack):
    """Values 0 to 0.9 in steps of 0.1, shuffled; rows within 0.25 are neighbours."""
    values = np.random.default_rng(0).permutation(10) / 10
    request = FindNeighbours(0.25, 10, 0, 10)
    client = VerticalDBSCANClient(values[:, np.newaxis])
    matrix = neighbour_attack.matrix_of([(request, client.handle(request))])
    expected = np.abs(values[:, np.newaxis] - values) < 0.25
    assert (matrix == expected).all()
    order = neighbour_attack.recovered_order(matrix)
    right, total = neighbour_attack.steps_in_order(order, values)
    assert (right, total) == (9, 9)
    found = neighbour_attack.values_of_rows(matrix, 0.25, values)
    assert np.abs(found - values).max() < 0.125


def test_every_reply_has_an_attack_or_a_reason(attack_summary, monkeypatch):
    assert attack_summary.missing() == []
    both = set(attack_summary.attacks.ATTACKS) & set(attack_summary.attacks.WITHOUT_ATTACK)
    assert both == set()
    monkeypatch.delitem(attack_summary.attacks.ATTACKS, CellCounts)
    assert attack_summary.missing() == ["CellCounts"]


@pytest.mark.jit
@pytest.mark.filterwarnings("ignore")  # such small data need few rounds
def test_every_reply_of_every_protocol_has_a_row(attack_summary):
    X = np.random.default_rng(0).uniform(0, 1, (80, 2))
    y = (X[:, 0] > 0.5).astype(int)
    few = {"eps": 0.2, "min_samples": 3, "n_clusters": 3, "n_components": 2}
    (attacked, others), again = (
        attack_summary.summary(
            X[:60], y[:60], X[60:], y[60:], 3, 0.01, rng=np.random.default_rng(1), **few
        )
        for _ in range(2)
    )
    pd.testing.assert_frame_equal(attacked, again[0])  # masks and noise have seeds
    pd.testing.assert_frame_equal(others, again[1])
    names = {name: one.name for name, one in attack_summary.systems(X, 0.2, 3, 3, 2).items()}
    rows = {(names[row.protocol], row.message.partition(",")[0]) for row in attacked.itertuples()}
    rows |= {(row.protocol, row.message) for row in others.itertuples()}
    for protocol, kind in attack_summary.expected():
        wrapped = [row for row in rows if row[0].startswith(protocol.rstrip("…"))]
        secured = [row for row in rows if protocol == attack_summary.SECURE]
        assert kind.__name__ in {name for _, name in wrapped} or secured, (protocol, kind)
    masked = attacked[attacked["message"].str.endswith(", masked")]
    assert masked["message"].nunique() == 7
    assert (masked["exactly"] == 0).all()


def test_classes_after_each_level_of_a_tree(monkeypatch):
    """Four rows of one client in two bins of one feature: the classes 0, 0 and 0, 1.

    At the root, three guesses are right and two rows are in a bin with one class. The other
    client's row has the class 1 and the larger value, so the tree splits between the bins.
    """
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    attack = importlib.import_module("study.attacks.gradient_attack")
    one = np.array([[1.0], [1.5], [3.0], [3.5]]), np.array([0, 0, 0, 1])
    parts = [one, (np.array([[3.2]]), np.array([1]))]
    estimator = attack.tree(2, 2, [[0.0], [5.0]])
    views, offsets, p = attack.first_tree(estimator, parts, (one[0][:1], one[1][:1]))
    assert p == pytest.approx(0.4)
    first = attack.by_depth(views["one client"], offsets, p).iloc[0]
    assert first.tolist() == pytest.approx([1, 0.75, 0.5])
    of_all = attack.by_depth(views["sum"], offsets, p).iloc[0]
    assert of_all.tolist() == pytest.approx([1, 0.8, 0.4])
    assert attack.by_depth(views["other rows"], offsets, p)["right"].iloc[0] == pytest.approx(1.0)


def test_a_missing_histogram_is_the_difference_to_the_parent(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    attack = importlib.import_module("study.attacks.gradient_attack")
    parents, sums = np.array([[[5, 5]], [[9, 9]]]), np.array([[[2, 1]]])
    nodes = attack.complete(np.array([False, True]), sums, parents, np.array([False, True]))
    assert nodes.tolist() == [[[7, 8]], [[2, 1]]]
