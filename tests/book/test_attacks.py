"""The attacks of the pages on disclosure, on examples by hand."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from fedlib import ApproximateDBSCAN, FederatedKMeans, HorizontalDBSCAN
from fedlib.representatives.ppdbdc import BlurredRepresentatives

ROOT = Path(__file__).parents[2]
PARTS = [np.array([[0.1, 0.2], [0.4, 0.4], [5.0, 5.0]]), np.array([[0.2, 0.2], [7.0, 7.0]])]


@pytest.fixture
def attacks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    return importlib.import_module("attacks")


def test_located(attacks):
    """Points at 0, 1 and 5; guesses at 0.5 and 5."""
    X, guesses = np.array([[0.0], [1.0], [5.0]]), np.array([[0.5], [5.0]])
    assert attacks.located(X, guesses, 0.4) == pytest.approx(1 / 3)
    assert attacks.located(X, guesses, 0.5) == 1.0
    assert attacks.located(X, guesses[:0], 9.0) == 0.0


def test_points_are_in_the_middle_of_their_cells(attacks):
    (request, reply), _ = attacks.replies_of(HorizontalDBSCAN(1.0, 2), PARTS)
    assert attacks.cell_centres(request, reply).tolist() == [[0.5, 0.5], [5.5, 5.5]]
    (request, reply), _ = attacks.replies_of(ApproximateDBSCAN(1.0, 2, 0.1), PARTS)
    gaps = np.abs(attacks.cell_centres(request, reply) - PARTS[0])
    assert gaps.max() <= 0.1 / (2 * np.sqrt(2)) / 2


def test_the_sum_of_a_single_point_is_the_point(attacks):
    start = np.array([[0.2, 0.2], [5.0, 5.0]])
    estimator = FederatedKMeans(2, method="lloyd", init=start, max_iter=1)
    rng = np.random.default_rng(0)
    rows = attacks.attack("Lloyd", estimator, PARTS, PARTS[1], 1e-9, rng)
    assert rows["message"].tolist() == ["ClusterSums"]
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
