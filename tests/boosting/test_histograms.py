"""The method "histogram": a tree by hand, any distribution of the rows, and a lost client."""

import numpy as np
import pytest

from fedlib import FederatedXGBClassifier
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.histograms import BuildHistograms
from fedlib.core.in_process import InProcess
from fedlib.kernels import splits as kernels

from .common import TOY, Unreliable, assert_same_trees, deal, make_rows


def test_by_hand():
    """Over all rows, the split between 2 and 3 separates the classes, although no client has it."""
    model = FederatedXGBClassifier(1, method="histogram", max_depth=1, min_child_weight=0).fit(TOY)
    assert model.trees_[0].threshold[0] == pytest.approx(2.5, abs=2**-10)


@pytest.mark.jit
def test_the_number_of_clients_does_not_matter(real_data):
    data = real_data("heart")
    X, y = data.X, (data.y == data.y.min()).astype(int)
    model = FederatedXGBClassifier(3, method="histogram", tol=None)
    trees = model.fit([(X, y)]).trees_
    for n_clients in range(2, 11):
        assert_same_trees(model.fit(deal(X, y, n_clients, n_clients)).trees_, trees)


def test_histograms_after_a_loss_are_those_of_the_remaining_clients():
    """A sibling is not computed as a difference to a parent that contains the lost rows."""
    X, y = make_rows(400)
    parts = deal(X, y, 3)
    unreliable = Unreliable(parts[2], BuildHistograms, 2)
    clients = {"A": BoostingClient(parts[0]), "B": BoostingClient(parts[1]), "C": unreliable}
    model = FederatedXGBClassifier(1, method="histogram", max_depth=3, tol=None)
    model.fit(InProcess(clients), min_clients=2)
    tree = model.trees_[0]
    X, y = (np.concatenate(arrays) for arrays in zip(*parts[:2], strict=True))
    node = np.zeros(len(X), np.int32)
    for start in (0, 1, 3):
        level = slice(start, min(len(tree), 2 * start + 1))
        splits = tree.feature, tree.threshold, tree.missing_left, tree.right
        decisions = kernels.Decisions(*splits).take(level)
        node = kernels.move_rows(X.astype(np.float32), node, start, decisions, tree.left[level])
    p = np.float64(model.base_share_)
    for leaf in np.unique(node):
        cover = (node == leaf).sum() * p * (1 - p)
        assert tree.cover[leaf] == pytest.approx(cover, rel=1e-5)
