"""Classes of rows from the histograms of the first boosted tree.

Before the first tree, all predictions are the same probability p. So the sums G of gradients and H
of hessians over n rows, of which m have the second class, are G = n·p - m and H = n·p·(1 - p), and
the server computes n and m in each bin of each node. It guesses the more frequent class in each
bin, with the feature that tells most in a node. The deeper the tree, the smaller the groups.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit

from fedlib import FederatedXGBClassifier
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.histograms import BuildHistograms
from fedlib.boosting.messages import BeginBoosting
from fedlib.testing import Recorder
from study.boosting import RULES


class Level(NamedTuple):
    """The histograms (n_nodes, n_bins, 2) of the nodes of a level, and which nodes split then.

    ``seen`` are those that the server uses, and ``true`` the same without noise, of the rows that
    it attacks. Gradients are in their own units.
    """

    seen: np.ndarray
    true: np.ndarray
    splits: np.ndarray


def first_tree(estimator, parts, others):
    """Return the histograms of the first tree as the server sees them, next to the true ones.

    Parameters
    ----------
    estimator : FederatedXGBClassifier
        With ``bounds``. Its clients send histograms, with noise or without.
    parts : list of (X, y)
    others : (X, y)
        Rows of the same distribution that no client has.

    Returns
    -------
    views : dict of str to list of Level
        ``one client``: its histograms, and its rows. ``sum``: the sum over all clients, as a secure
        sum shows it, and the rows of all. ``other rows``: the same sum, and the other rows.
    offsets : array (n_features + 1,)
        The first bin of each feature.
    p : float
        The prediction before the first tree.
    """
    recorder = Recorder({str(i): BoostingClient(part) for i, part in enumerate(parts)})
    estimator.fit(recorder)
    truth = [BoostingClient(part) for part in [*parts, others]]
    levels, splits = [], []
    for exchange in recorder.exchanges:
        request = exchange.requests["0"]
        if isinstance(request, BeginBoosting):
            begin = request
            for client in truth:
                client.handle(request)
        if not isinstance(request, BuildHistograms):
            continue
        if len(request.values):  # the second tree
            break
        asked = {name: getattr(request, name) for name in BuildHistograms.__struct_fields__}
        *true, of_others = [client.handle(BuildHistograms(**asked)).sums for client in truth]
        seen = [exchange.replies[str(i)].sums for i in range(len(parts))]
        splits.append(request.feature >= 0)
        before = levels[-1] if levels else [None] * 5
        levels.append(
            [
                complete(request.wanted, sums, parents, splits[-1])
                for sums, parents in zip(
                    [seen[0], true[0], sum(seen), sum(true), of_others], before, strict=True
                )
            ]
        )
    splits = [*splits[1:], np.zeros(len(levels[-1][0]), bool)]
    unit = 2.0**-begin.bits
    seen_unit = 1.0 if estimator.epsilon is not None else unit  # noisy sums are no integers
    views = {
        name: [
            Level(level[i] * seen_unit, level[j] * unit, split)
            for level, split in zip(levels, splits, strict=True)
        ]
        for name, i, j in (("one client", 0, 1), ("sum", 2, 3), ("other rows", 2, 4))
    }
    return views, begin.offsets, float(expit(begin.first_margins[0]))


def complete(wanted, sums, parents, splits):
    """Return the histograms of all nodes: a missing one is its parent's less its sibling's."""
    if wanted.all():
        return sums
    nodes = np.zeros((len(wanted), *sums.shape[1:]), sums.dtype)
    nodes[wanted] = sums
    siblings = nodes.reshape(-1, 2, *sums.shape[1:])
    missing = ~wanted.reshape(-1, 2)
    siblings[missing] = parents[splits] - siblings.sum(axis=1)
    return nodes


def known_classes(level, offsets, p):
    """Return, for each node, how many classes the server guesses right and how many are certain.

    Examples
    --------
    One feature with two bins: three rows of the first class, and two rows of both.

    >>> rows, second = np.array([3, 2]), np.array([0, 1])
    >>> sums = np.stack([rows * 0.5 - second, rows * 0.25], axis=-1)[None]
    >>> known_classes(Level(sums, sums, np.zeros(1, bool)), np.array([0, 2]), 0.5)
    (array([4.]), array([3.]))
    """
    n_seen, seen = counts(level.seen, p)
    n_rows, second = np.rint(counts(level.true, p))
    right = np.where(seen > n_seen / 2, second, n_rows - second)
    certain = np.where((second == 0) | (second == n_rows), n_rows, 0)
    believed = np.add.reduceat(np.maximum(seen, n_seen - seen), offsets[:-1], axis=1)
    best = believed.argmax(axis=1)[:, None]  # the server does not know which feature is best
    of_feature = [np.add.reduceat(one, offsets[:-1], axis=1) for one in (right, certain)]
    return tuple(np.take_along_axis(one, best, axis=1)[:, 0] for one in of_feature)


def counts(sums, p):
    """Return the numbers of rows, and of rows of the second class, behind sums (…, 2)."""
    n = sums[..., 1] / (p * (1 - p))
    return n, n * p - sums[..., 0]


def by_depth(levels, offsets, p):
    """Return the share of the classes that the server knows after each level.

    Returns
    -------
    DataFrame
        Columns ``levels``, ``right`` and ``certain``: the share of rows whose class is guessed
        right, and of those that are in a bin with one class only. Rows in a node that is not split
        stay as well known as they were there.
    """
    n_rows = counts(levels[0].true, p)[0][0, : offsets[1]].sum()
    kept, rows = np.zeros(2), []
    for depth, level in enumerate(levels, start=1):
        found = np.array(known_classes(level, offsets, p))
        rows.append([depth, *((kept + found.sum(axis=1)) / n_rows)])
        kept += found[:, ~level.splits].sum(axis=1)
    return pd.DataFrame(rows, columns=["levels", "right", "certain"])


def tree(max_depth, max_bin, bounds, **private):
    """Return the estimator of one tree from histograms in bins between bounds."""
    given = {"classes": [0, 1], "base_score": 0.5} if private else {}
    return FederatedXGBClassifier(
        1,
        method="histogram",
        max_depth=max_depth,
        max_bin=max_bin,
        bounds=bounds,
        min_child_weight=0,
        tol=None,
        histograms="dense",
        xgboost_rules=RULES,
        **given,
        **private,
    )
