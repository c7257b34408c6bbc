"""`FederatedXGBClassifier` against F's text, executed node by node (`literal.py`).

With the readings that the package documents, both grow the same trees, for any number of clients.

An implementation that decides a point of F's text differently can agree with the package for few
clients and not for many. `CHOICES` lists these points, and how F's text decides them:

- ``equal``, ``midpoint``: F sends lower values left and greater ones right; it says nothing about
  a value equal to the threshold. A threshold is the midpoint between two values of one client, so
  it never equals a value of that client, but it can equal one of another client: 1.7 lies halfway
  between 1.6 and 1.8. Then ``<`` or ``<=`` decides, or, if the midpoint is rounded, its last digit.
  The package compares float32 values with ``<``, as XGBoost does. One client shows no difference.
- ``leaf``: Algorithm 2 adds to a leaf what its parent stores, and no more ("ended"). Its variables
  look like sums over the path ("path"). The two differ once a client's tree ended two levels above
  a leaf, so with many clients that have few rows each. §3.2 sums over all rows ("all").
- ``limit``: F has no ``min_child_weight``. The package, like XGBoost, has 1 by default, and a
  client applies it to its own rows, which are fewer the more clients share them.
- ``ties``: equal gains and equal votes. F has no rule. The package takes the lower feature, then
  the lower threshold. With few rows per client, many splits have equal gains.
- ``votes``: N_p in (3.3) is "the number of samples that the root node contains", before the split.
  The text also says that it belongs to "the root node of this split": the node, so the package.
  For equal clients, weights by all rows are the same in the root, but not below it.
- ``start``: F weights the initial probabilities, without saying by what. For clients of equal size
  and equal shares of the classes there is no difference.
- ``update``: §3.2 sends the values of the leaves to the clients; the end of §3.3 merges trees after
  the last one. In the second case, a client continues from its own leaves.
"""

import numpy as np
import pytest

from fedlib import FederatedXGBClassifier

from .common import deal
from .literal import Parameters, Reading, fit

SEEDS = range(3)
CLIENTS = [1, 2, 5, 10]
PARAMETERS = Parameters(n_trees=3, n_candidates=4, max_depth=3)


def make_rows(seed, n=120):
    """Return rows with one decimal, so that midpoints of a client are values of another one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).round(1).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(scale=0.5, size=n) > 0.7).astype(int)
    return X.astype(float), y


def fitted(parts, parameters, leaf):
    """Return the package's model with the same parameters."""
    options = vars(parameters)
    return FederatedXGBClassifier(**options, method="top_splits", leaf=leaf, tol=None).fit(parts)


def nodes_of(model):
    """Return the feature, threshold and value of each node of a literal model, by tree and path."""
    found = {}
    waiting = [(t, "", node, (0.0, 0.0)) for t, node in enumerate(model.trees)]
    for t, path, node, above in waiting:
        if node.rule is None:
            value = model.parameters.learning_rate * model.leaf_value(node, *above)
            found[t, path] = -1, 0.0, value
            continue
        found[t, path] = *node.rule, 0.0
        stored = node.residuals, node.cover
        waiting.extend(
            (t, path + side, child, stored) for side, child in (("L", node.left), ("R", node.right))
        )
    return found


def nodes_of_package(trees):
    """Return the same for trees of the package."""
    found = {}
    for t, tree in enumerate(trees):
        paths = {0: ""}
        for j, feature in enumerate(tree.feature.tolist()):
            if feature >= 0:
                paths |= {tree.left[j]: paths[j] + "L", tree.left[j] + 1: paths[j] + "R"}
            found[t, paths[j]] = feature, float(tree.threshold[j]), float(tree.value[j])
    return found


@pytest.mark.filterwarnings("ignore:.*one class only")
@pytest.mark.parametrize("leaf", ["all", "ended", "parent"])
@pytest.mark.parametrize("n_clients", CLIENTS)
def test_the_trees_are_those_of_the_text(n_clients, leaf):
    for seed in SEEDS:
        parts = deal(*make_rows(seed), n_clients, seed)
        literal = nodes_of(fit(parts, PARAMETERS, Reading(leaf=leaf)))
        package = nodes_of_package(fitted(parts, PARAMETERS, leaf).trees_)
        assert literal.keys() == package.keys()
        for place, (feature, threshold, value) in literal.items():
            assert package[place][:2] == (feature, threshold), place
            assert package[place][2] == pytest.approx(value, rel=1e-5, abs=1e-7), place
