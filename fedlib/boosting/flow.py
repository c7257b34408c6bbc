"""The server of federated boosting: the agreement before the first tree, and the flow."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import ceil, log2

import numpy as np

from fedlib.agreement import agree_on_features, settle
from fedlib.boosting.checks import DeclaredRows
from fedlib.boosting.classes import agree_on_kind, agree_on_two_classes, class_weights
from fedlib.boosting.cuts import Cuts, agree_on_cuts
from fedlib.boosting.growers import Grower, Settings, Training, leaves
from fedlib.boosting.histograms import HistogramGrower
from fedlib.boosting.messages import BeginBoosting, DescribeTraining, KeepTrees
from fedlib.boosting.proposals import TopSplits, UnionSplits
from fedlib.boosting.trees import BoostedTrees, Tree
from fedlib.kernels import splits as kernels
from fedlib.protocol import Flow, Replies

__all__ = ["boosting"]

SUM_BITS = 52  # no sum of a client reaches 2**52 units, so each is exact as a float64
NO_CUTS = Cuts(np.zeros(1, np.int64), np.empty(0, np.float32))
GROWERS: dict[str, type[Grower]] = {
    "top_splits": TopSplits,
    "union": UnionSplits,
    "histogram": HistogramGrower,
}


def boosting(settings: Settings) -> Flow[BoostedTrees]:
    """Return the server flow.

    Examples
    --------
    >>> from fedlib import FederatedXGBClassifier
    >>> flow = FederatedXGBClassifier(n_trees=1, max_depth=1).protocol()
    >>> next(flow)
    DescribeTraining(learning_rate=0.3)
    """
    training = yield from _agree_on_training(settings)
    grower = GROWERS[settings.method](training)
    trees: list[Tree] = []
    while len(trees) < settings.n_trees:
        values = trees[-1].value if trees else np.empty(0, np.float32)
        tree = yield from grower.grow(values)
        if tree is None:
            break
        trees.append(tree)
    yield _keep_trees(trees, training.base_margin)
    return BoostedTrees(
        trees=trees,
        classes=training.classes,
        share=training.share,
        base_margin=training.base_margin,
        learning_rate=training.learning_rate,
        n_features=training.n_features,
        features=training.features,
        losses=training.losses,
    )


def _agree_on_training(settings: Settings) -> Flow[Training]:
    """Agree on everything that must be fixed before the first tree."""
    replies = yield DescribeTraining(settings.learning_rate)
    replies = yield from settle(replies, agree_on_features)
    replies = yield from settle(replies, agree_on_kind)
    replies = yield from settle(replies, agree_on_two_classes)
    n_features = agree_on_features(replies)
    features = _agree_on_names(replies)
    classes, totals = class_weights(replies)
    weights = {name: float(reply.weights.sum()) for name, reply in replies.items()}
    n_rows = {name: int(reply.n_rows) for name, reply in replies.items()}
    total = sum(weights.values())
    share = _inside_0_and_1(totals[1] / total)
    cuts = NO_CUTS
    if settings.method == "histogram":
        cuts = yield from agree_on_cuts(n_rows, n_features, settings.max_bin)
    training = Training(
        settings=settings,
        classes=classes,
        share=float(share),
        base_margin=float(kernels.log_odds(share)),
        learning_rate=_mean_learning_rate(replies, weights),
        bits=SUM_BITS - ceil(log2(total)),
        n_features=n_features,
        features=features,
        weights=weights | dict.fromkeys(replies.declined, 0.0),
        declared={name: DeclaredRows.of(reply, classes[1]) for name, reply in replies.items()},
        cuts=cuts,
    )
    started = yield BeginBoosting(
        classes=(classes[0], classes[1]),
        base_margin=training.base_margin,
        bits=training.bits,
        offsets=cuts.offsets,
        thresholds=cuts.thresholds,
    )
    training.remove(started.lost)
    return training


def _agree_on_names(replies: Replies) -> tuple[str, ...]:
    """Return the features' names; warn of clients that sent none when others did."""
    names: dict[str, tuple[str, ...]] = {name: reply.features for name, reply in replies.items()}
    features = next(filter(None, names.values()), ())
    nameless = ", ".join(repr(client) for client, sent in names.items() if not sent)
    if features and nameless:
        warnings.warn(
            f"no feature names from {nameless}: assumed to be {', '.join(features)}, as at the"
            " other clients",
            stacklevel=2,
        )
    return features


def _inside_0_and_1(share: float) -> np.float32:
    """Return the nearest float32 above 0 and below 1."""
    zero, one = np.float32(0), np.float32(1)
    return min(max(np.float32(share), np.nextafter(zero, one)), np.nextafter(one, zero))


def _mean_learning_rate(replies: Replies, weights: dict[str, float]) -> float:
    """Return the mean of the clients' learning rates, weighted by rows and rounded to float32."""
    rates = {name: reply.learning_rate for name, reply in replies.items()}
    if len(set(rates.values())) == 1:  # not changed by rounding errors of a mean
        return float(np.float32(next(iter(rates.values()))))
    total = sum(weights.values())
    return float(np.float32(sum(rate * weights[name] for name, rate in rates.items()) / total))


def _keep_trees(trees: Sequence[Tree], base_margin: float) -> KeepTrees:
    empty = leaves(0)
    return KeepTrees(
        base_margin=base_margin,
        sizes=np.array([len(tree) for tree in trees], np.int64),
        feature=np.concatenate([empty.feature, *(tree.feature for tree in trees)]),
        threshold=np.concatenate([empty.threshold, *(tree.threshold for tree in trees)]),
        missing_left=np.concatenate([empty.missing_left, *(tree.missing_left for tree in trees)]),
        value=np.concatenate([np.empty(0, np.float32), *(tree.value for tree in trees)]),
    )
