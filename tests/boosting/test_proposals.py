"""The methods "top_splits" and "union": trees by hand, votes, leaves, and F's order of nodes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import FederatedXGBClassifier
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.trees import predict_margins
from fedlib.kernels import splits as kernels
from fedlib.kernels.gains import SplitRule, score_node, split_gain

from .common import TOY, dealings, replies_to


def test_top_splits_by_hand():
    """Each client has one split, at 2 and at 3, both of gain 2·0.5²/1.25 = 0.4: the lower wins.

    So the row at 1 goes left, −0.5/(0.25 + 1) = −0.4, and the others right, 0.5/(0.75 + 1).
    """
    tree = (
        FederatedXGBClassifier(1, max_depth=1, min_child_weight=0, method="top_splits")
        .fit(TOY)
        .trees_[0]
    )
    assert tree.feature.tolist() == [0, -1, -1]
    assert tree.threshold[0] == 2
    np.testing.assert_allclose(tree.value, [0, 0.3 * -0.4, 0.3 * 0.5 / 1.75], rtol=1e-6)
    assert tree.cover.tolist() == [1, 0.25, 0.75]
    assert tree.gain[0] == pytest.approx(0.25 / 1.25 + 0.25 / 1.75)


def test_union_by_hand():
    """Over all rows, the split at 3 has the larger gain, although clients see no difference."""
    model = FederatedXGBClassifier(1, method="union", max_depth=1, min_child_weight=0).fit(TOY)
    assert model.trees_[0].threshold[0] == 3


def test_votes_are_gains_times_rows():
    """(3.3): two clients with two rows each and equal splits outvote a client with four rows."""
    four = [[1.0], [5.0], [5.0], [5.0]], [0, 1, 0, 1]
    two = [[1.0], [9.0]], [0, 1]
    p = 0.5
    flow = FederatedXGBClassifier(
        1, 1, max_depth=1, min_child_weight=0, method="top_splits"
    ).protocol()
    clients = {"A": BoostingClient(four), "B": BoostingClient(two), "C": BoostingClient(two)}

    begin = flow.send(replies_to(clients, next(flow)))
    assert begin.base_margin == 0 == np.log(p / (1 - p))
    replies = replies_to(clients, flow.send(replies_to(clients, begin)))
    votes = {name: float(reply.weight[0] * reply.gain[0] / 2) for name, reply in replies.items()}
    left, right = 0.25 / 1.25, 0.25 / 1.75
    assert votes["A"] == pytest.approx(4 * (left + right) / 2)
    assert votes["B"] == votes["C"] == pytest.approx(2 * (left + left) / 2)
    assert flow.send(replies)["A"].threshold[0] == 5  # B's and C's; A's is at 3


@pytest.mark.filterwarnings("ignore:.*one class only")
def test_which_rows_determine_a_leaf():
    """A third client has one row, at 1, so it finds no split and its tree ends at the root.

    The base share is 2/5. The split is at 2 again: two rows at 1 lie left, those at 2, 3 and 4
    right.
    """
    parts = [*TOY, ([[1.0]], [0])]
    p = 0.4
    h = p * (1 - p)
    expected = {
        "all": (2 * p / (2 * h + 1), (p - 2 * (1 - p)) / (3 * h + 1)),
        # the third client's row counts in both leaves, but only once in the left one
        "ended": (2 * p / (2 * h + 1), (2 * p - 2 * (1 - p)) / (4 * h + 1)),
        # the gradients of the root's five rows sum to 0, but their hessians count
        "parent": (2 * p / (7 * h + 1), (p - 2 * (1 - p)) / (8 * h + 1)),
    }
    for leaf, steps in expected.items():
        model = FederatedXGBClassifier(
            1, max_depth=1, min_child_weight=0, leaf=leaf, method="top_splits"
        ).fit(parts)
        tree = model.trees_[0]
        assert tree.threshold[0] == 2
        np.testing.assert_allclose(tree.value[1:], -0.3 * np.array(steps), rtol=1e-6, atol=1e-7)


# F's order of nodes ---------------------------------------------------------------------------


def best_splits_of(X, gradients, n_candidates, rule):
    """Return a client's best splits (-gain, feature, threshold) of these rows, one by one."""
    node = score_node(*gradients.sum(axis=0), rule)
    splits = []
    for f in range(X.shape[1]):
        values = np.unique(X[:, f])
        for low, high in pairwise(values):
            left = gradients[X[:, f] <= low].sum(axis=0)
            gain = split_gain(*left, node, rule)
            if gain > kernels.MIN_GAIN:
                splits.append((-float(gain), f, np.float32((float(low) + float(high)) / 2)))
    return sorted(splits)[:n_candidates]


def grow_in_path_order(parts, gradients, rule, n_candidates, depth, ends):
    """Return the splits of one tree by path, visited as in F: always the first path of any client.

    With ``ends``, a client that finds no split for a node keeps its rows there.
    """
    stacks = [{"": np.arange(len(X))} if len(X) else {} for X, _ in parts]
    splits = {}
    while any(stacks):
        path = min(min(paths) for paths in stacks if paths)
        here = {c: paths.pop(path) for c, paths in enumerate(stacks) if path in paths}
        proposals = {
            c: best_splits_of(parts[c][0][at], gradients[c][at], n_candidates, rule)
            for c, at in here.items()
            if len(path) < depth
        }
        votes = {}
        for c, best in proposals.items():
            for gain, f, threshold in best:
                votes.setdefault((f, threshold), []).append(len(here[c]) * -0.5 * gain)
        if not votes:
            continue
        # summed in ascending order as on the server, so that equal votes stay equal
        total = {split: np.add.reduce(sorted(each)) for split, each in votes.items()}
        f, threshold = splits[path] = min(total, key=lambda split: (-total[split], split))
        for c, at in here.items():
            if ends and not proposals[c]:
                continue
            goes_left = parts[c][0][at, f] < threshold
            for side, chosen in (("L", at[goes_left]), ("R", at[~goes_left])):
                if len(chosen):
                    stacks[c][path + side] = chosen
    return splits


def splits_by_path(tree, node=0, path=""):
    if tree.feature[node] < 0:
        return {}
    left = tree.left[node]
    return {
        path: (tree.feature[node], tree.threshold[node]),
        **splits_by_path(tree, left, path + "L"),
        **splits_by_path(tree, left + 1, path + "R"),
    }


@pytest.mark.filterwarnings("ignore:.*one class only")
@settings(max_examples=25)
@given(
    dealings(),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["all", "ended"]),
)
def test_levels_give_the_trees_of_the_path_order(
    parts, n_candidates, depth, min_child_weight, leaf
):
    """Requests for a whole level give the same trees as F's visits node by node."""
    model = FederatedXGBClassifier(
        2,
        n_candidates,
        max_depth=depth,
        min_child_weight=min_child_weight,
        leaf=leaf,
        tol=None,
        method="top_splits",
    ).fit(parts)
    bits = 52 - int(np.ceil(np.log2(sum(len(y) for _, y in parts))))
    base = kernels.log_odds(np.float32(model.base_share_))
    rule = SplitRule(2.0**-bits, 1.0, 0.0, min_child_weight)
    for t, tree in enumerate(model.trees_):
        gradients = []
        for X, y in parts:
            margins = predict_margins(model.trees_[:t], base, X)
            weights = np.ones(len(X), np.float32)
            gradients.append(kernels.compute_gradients(margins, y == 1, weights, bits))
        slow = grow_in_path_order(parts, gradients, rule, n_candidates, depth, leaf == "ended")
        assert splits_by_path(tree) == slow
