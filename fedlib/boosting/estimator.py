"""Federated XGBoost: clients hold rows of the same features and grow the same trees.

Trees grow a level at a time. For each node of a level, clients tell what the server needs to choose
its split, learn the choice and divide their rows by it. What they tell is the ``method``:

- ``"top_splits"`` (F): the splits that are best for their own rows. The server takes the split with
  the greatest sum of gains, each weighted by its client's rows in the node (3.3).
- ``"union"``: these, and in a second question the sums left of every split that any client named.
- ``"histogram"``: sums for bins that all agreed on beforehand, so that nothing is lost by dealing.

F visits the nodes of a tree one by one, the lexicographically first path of any client next; a
client without rows on a path stays out. No choice depends on another path, so asking for a whole
level gives the same trees in far fewer messages.

Source: F, chapter 3. Its log-odds grow against the gradients, which its formula for a leaf leaves
out, and its γ is half of XGBoost's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, log2
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.cuts import (
    LARGEST,
    CountBuckets,
    Cuts,
    RowsPerBucket,
    agree_on_cuts,
    bucket_counts,
    crowded,
)
from fedlib.boosting.growers import (
    MAX_NODES,
    MAX_WEIGHT,
    NO_BOOL,
    NO_FEATURE,
    NO_FLOAT,
    BuildHistograms,
    CandidateSums,
    Class,
    EvaluateSplits,
    Growth,
    Histograms,
    LeafSums,
    Node,
    ProposeSplits,
    SplitProposals,
    Step,
    SumLeaves,
    Training,
    growers,
)
from fedlib.boosting.trees import Tree, children, level_starts, predict_margins, to_booster
from fedlib.federated import Federated
from fedlib.kernels import splits as kernels
from fedlib.messages import Array, Done, FeatureNames, Message, MessageError
from fedlib.protocol import Client, Flow, Replies, agree, agree_on_features, handles
from fedlib.validation import Interval, StrOptions, feature_names

if TYPE_CHECKING:
    from xgboost import Booster

__all__ = [
    "BeginBoosting",
    "BoostedTrees",
    "BoostingClient",
    "DescribeTraining",
    "FederatedXGBClassifier",
    "KeepTrees",
    "Predictions",
    "TrainingDescription",
    "boosting",
]

ONE = np.float32(1)
SUM_BITS = 52  # no client's sums reach 2**52 units, so each is a float64 exactly


class TrainingDescription(Message):
    """What a client has: features, and the weight of its rows (their number) in each class."""

    discloses = "the number of a client's rows in each class, its features and learning rate"
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    classes: Annotated[tuple[Class, ...], msgspec.Meta(max_length=2**10)]
    weights: Annotated[np.ndarray, Array("float64", ("classes",), ge=0, le=MAX_WEIGHT)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)]
    features: FeatureNames = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) != len(self.weights):
            raise MessageError(f"{len(self.weights)} weights for {len(self.classes)} classes")
        if len(self.features) not in (0, self.n_features):
            raise MessageError(f"{len(self.features)} names for {self.n_features} features")
        if len({isinstance(label, str) for label in self.classes}) > 1:
            raise MessageError("some classes are text and some are numbers")
        if not all(isfinite(label) for label in self.classes if isinstance(label, float)):
            raise MessageError("a class is not finite")


class DescribeTraining(Message):
    """Say which classes your rows have, and your learning rate if you do not like this one."""

    discloses = "the learning rate"
    reply = TrainingDescription
    learning_rate: float


class BeginBoosting(Message):
    """Start from these log-odds; the second class is the positive one.

    Gradients are reported as multiples of 2**-bits. ``offsets`` and ``thresholds`` are the bins of
    all features, where histograms will be asked for.
    """

    discloses = (
        "the classes, their shares, roughly the number of all rows, and the cuts between bins"
    )
    classes: tuple[Class, Class]
    base_margin: float
    bits: Annotated[int, msgspec.Meta(ge=-200, le=1000)]
    offsets: Annotated[np.ndarray, Array("int64", ("edges",), ge=0)]
    thresholds: Annotated[np.ndarray, Array("float32", ("bins",))]


class KeepTrees(Message):
    """These are all trees, one after the other, ``sizes`` of nodes each: predict your rows."""

    discloses = "the model: its splits, their thresholds and the leaves' values"
    asks_for_data = False
    base_margin: float
    sizes: Annotated[np.ndarray, Array("int64", ("trees",), ge=1, le=MAX_NODES)]
    feature: Annotated[np.ndarray, Node]
    threshold: Annotated[np.ndarray, Array("float32", ("nodes",))]
    missing_left: Annotated[np.ndarray, Array("bool", ("nodes",))]
    value: Annotated[np.ndarray, Array("float32", ("nodes",))]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes.sum() != len(self.feature):
            raise MessageError(f"{len(self.feature)} nodes for trees of {self.sizes.sum()}")

    def trees(self) -> list[Tree]:
        """Return the trees; their gains, covers and weights stay at the server.

        Raises
        ------
        ValueError
            When nodes lack children.
        """
        trees = []
        ends = np.cumsum(self.sizes)
        for low, high in zip(ends - self.sizes, ends, strict=True):
            feature, unknown = self.feature[low:high], np.zeros(high - low, np.float32)
            level_starts(feature)
            trees.append(
                Tree(
                    feature,
                    self.threshold[low:high],
                    self.missing_left[low:high],
                    children(feature),
                    self.value[low:high],
                    unknown,
                    unknown,
                    unknown,
                )
            )
        return trees


class Growing(Message):
    """The state of a client while trees grow: what it was told to begin with, and its rows' places.

    ``margins`` are the rows' log-odds by all finished trees; ``node`` is where each is in the
    growing tree, ``ended`` the node in which the client found no split for it, -1 before that.
    """

    discloses = "nothing: it stays with the client"
    positive: Class
    bits: int
    offsets: Annotated[np.ndarray, Array("int64", ("edges",))]
    thresholds: Annotated[np.ndarray, Array("float32", ("bins",))]
    margins: Annotated[np.ndarray, Array("float32", ("rows",))]
    node: Annotated[np.ndarray, Array("int32", ("rows",))]
    ended: Annotated[np.ndarray, Array("int32", ("rows",))]


class Predictions(Message):
    """The state of a client at the end: its rows' classes (0 or 1) and positive probabilities."""

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=0, le=1)]
    probabilities: Annotated[np.ndarray, Array("float64", ("rows",), ge=0, le=1)]


@dataclass(frozen=True)
class BoostedTrees:
    """What the server knows at the end.

    ``share`` is that of the positive rows, ``base_margin`` its log-odds, and ``losses`` the mean
    log-loss over all rows before the first tree and after each but the last.
    """

    trees: list[Tree]
    classes: list[Class]
    share: float
    base_margin: float
    learning_rate: float
    n_features: int
    features: tuple[str, ...]
    losses: list[float]


def boosting(
    n_trees: int = 100,
    n_candidates: int = 10,
    method: str = "top_splits",
    max_depth: int = 6,
    learning_rate: float = 0.3,
    reg_lambda: float = 1.0,
    gamma: float = 0.0,
    min_child_weight: float = 1.0,
    max_bin: int = 256,
    tol: float | None = 0.004,
    leaf: str = "all",
) -> Flow[BoostedTrees]:
    """Return the server flow; for the parameters see `FederatedXGBClassifier`.

    Examples
    --------
    >>> flow = boosting(n_trees=1, max_depth=1)
    >>> next(flow)
    DescribeTraining(learning_rate=0.3)
    """
    settings = {
        "n_candidates": int(n_candidates),
        "max_depth": int(max_depth),
        "reg_lambda": _float32(reg_lambda),
        "gamma": _float32(gamma),
        "min_child_weight": _float32(min_child_weight),
        "tol": tol,
        "leaf": leaf,
    }
    bins = int(max_bin) if method == "histogram" else 0
    training = yield from _set_up(settings, float(learning_rate), bins)
    grower = growers[method](training)
    trees: list[Tree] = []
    while len(trees) < n_trees:
        tree = yield from grower.grow(trees[-1].value if trees else NO_FLOAT)
        if tree is None:
            break
        trees.append(tree)
    yield _keep_trees(trees, training.base_margin)
    return BoostedTrees(
        trees,
        training.classes,
        training.share,
        training.base_margin,
        training.learning_rate,
        training.n_features,
        training.features,
        training.losses,
    )


def _float32(value: float) -> float:
    return float(np.float32(value))


def _set_up(settings: dict[str, Any], learning_rate: float, max_bin: int) -> Step:
    """Agree on features, classes, initial log-odds, learning rate and, for ``max_bin``, on cuts."""
    replies = yield DescribeTraining(learning_rate)
    n_features = agree_on_features(replies)
    names = {name: reply.features for name, reply in replies.items()}
    features = next(filter(None, names.values()), ())
    nameless = ", ".join(repr(name) for name, own in names.items() if not own)
    if features and nameless:
        warnings.warn(
            f"no names of features at {nameless}: taken to be {', '.join(features)}, as elsewhere",
            stacklevel=2,
        )
    classes, totals = _agree_on_classes(replies)
    weights = {name: float(reply.weights.sum()) for name, reply in replies.items()}
    total = sum(weights.values())
    low, high = np.nextafter(np.float32(0), ONE), np.nextafter(ONE, np.float32(0))
    share = min(max(np.float32(totals[1] / total), low), high)
    rates = {reply.learning_rate for reply in replies.values()}
    if len(rates) > 1:
        rates = {sum(r.learning_rate * weights[name] for name, r in replies.items()) / total}
    cuts = Cuts(np.zeros(1, np.int64), NO_FLOAT)
    if max_bin:
        cuts = yield from agree_on_cuts(n_features, max_bin)
    training = Training(
        settings,
        classes,
        float(share),
        float(kernels.log_odds(share)),
        _float32(rates.pop()),
        SUM_BITS - ceil(log2(total)),
        n_features,
        features,
        weights | dict.fromkeys(replies.declined, 0.0),
        cuts,
    )
    begun = yield BeginBoosting(
        (classes[0], classes[1]),
        training.base_margin,
        training.bits,
        cuts.offsets,
        cuts.thresholds,
    )
    training.forget(begun.lost)
    return training


def _agree_on_classes(replies: Replies) -> tuple[list[Class], list[float]]:
    """Return the two classes that clients have, in order, and the weight of each."""
    kinds = {
        name: "text" if isinstance(reply.classes[0], str) else "numbers"
        for name, reply in replies.items()
        if reply.classes
    }
    if kinds:
        agree("whether classes are numbers or text", kinds)
    total: dict[Class, float] = {}
    for reply in replies.values():
        for label, weight in zip(reply.classes, reply.weights.tolist(), strict=True):
            total[label] = total.get(label, 0.0) + weight
    classes = sorted(total)
    if len(classes) != 2:
        shown = ", ".join(map(repr, classes[:10])) + (", …" if len(classes) > 10 else "")
        raise ValueError(f"there must be 2 classes; the clients have {len(classes)}: {shown}")
    weights = [total[label] for label in classes]
    if min(weights) == 0:
        raise ValueError(f"both classes need rows of weight above 0; {classes} have {weights}")
    return classes, weights


def _keep_trees(trees: Sequence[Tree], base_margin: float) -> KeepTrees:
    names = ("feature", "threshold", "missing_left", "value")
    empty = (NO_FEATURE, NO_FLOAT, NO_BOOL, NO_FLOAT)
    nodes = [
        np.concatenate([none, *(getattr(tree, name) for tree in trees)])
        for name, none in zip(names, empty, strict=True)
    ]
    return KeepTrees(base_margin, np.array([len(tree) for tree in trees], np.int64), *nodes)


class BoostingClient(Client):
    """A client and its rows.

    Parameters
    ----------
    part : tuple (X, y) or (X, y, sample_weight)
        ``X`` (n_rows, n_features), NaN where a value is missing, within ±2**127; ``y`` (n_rows,)
        the classes, or None for a client that stays passive; ``sample_weight`` (n_rows,) at least
        0, in sum at most 2**40.
    learning_rate : float, optional
        This client's choice, above 0 and at most 1; the clients' weighted mean counts. By default
        the server's.

    Raises
    ------
    ValueError
        When the part is no such tuple. There may be no rows, but there must be columns.

    Examples
    --------
    >>> client = BoostingClient(([[1.0], [2.0], [4.0]], ["ill", "well", "ill"]))
    >>> client.handle(DescribeTraining(learning_rate=0.3)).weights
    array([2., 1.])
    """

    supervised: ClassVar[bool] = True

    def __init__(self, part: Sequence[Any], learning_rate: float | None = None):
        if not isinstance(part, tuple | list) or len(part) not in (2, 3):
            raise ValueError("a part must be (X, y) or (X, y, sample_weight)")
        self.features = feature_names(part[0])
        self.X = check_rows(part[0], ensure_min_samples=0)
        self.y = None if part[1] is None else check_classes(part[1], len(self.X))
        self.weight = check_weights(part[2] if len(part) == 3 else None, len(self.X))
        if learning_rate is not None and not 0 < learning_rate <= 1:
            raise ValueError(f"learning_rate must be above 0 and at most 1; got {learning_rate}")
        self.learning_rate = learning_rate
        self._sorted: tuple[NDArray[Any], ...] | None = None
        self._known: dict[str, tuple[Any, Any]] = {}

    @handles(DescribeTraining)
    def describe_training(self, request: DescribeTraining) -> TrainingDescription:
        if self.y is None:
            raise ValueError("a client without classes (y=None) can only be passive")
        classes, codes = np.unique(self.y, return_inverse=True)
        weights = np.bincount(codes, self.weight, len(classes)).astype(np.float64)
        rate = request.learning_rate if self.learning_rate is None else float(self.learning_rate)
        labels = tuple(classes.tolist())
        return TrainingDescription(self.X.shape[1], labels, weights, rate, self.features)

    @handles(CountBuckets)
    def count_buckets(self, request: CountBuckets) -> RowsPerBucket:
        return bucket_counts(self.X, request)

    @handles(BeginBoosting)
    def begin_boosting(self, request: BeginBoosting) -> Done:
        if len(request.thresholds):
            self._warn_of_crowds(request.offsets)
        n = len(self.X)
        margins = np.full(n, request.base_margin, np.float32)
        self.state = Growing(
            request.classes[1],
            request.bits,
            request.offsets,
            request.thresholds,
            margins,
            np.zeros(n, np.int32),
            np.full(n, -1, np.int32),
        )
        return Done()

    @handles(ProposeSplits)
    def propose_splits(self, request: ProposeSplits) -> SplitProposals:
        state = self._advance(request)
        slot, gradients = self._slots(state, request.first, request.n_open), self._gradients(state)
        shape = request.n_open, request.n_candidates
        totals, count = np.zeros((request.n_open, 2), np.int64), np.zeros(request.n_open, np.int64)
        kernels.sum_by_slot(slot, gradients, totals)
        feature, threshold = np.empty(shape, np.int32), np.empty(shape, np.float32)
        direction, gain = np.empty(shape, np.uint8), np.empty(shape, np.float32)
        order, values, n_present = self._order()
        kernels.propose_splits(
            order,
            values,
            n_present,
            slot,
            gradients,
            totals,
            2.0**-state.bits,
            request.reg_lambda,
            request.gamma,
            request.min_child_weight,
            feature,
            threshold,
            direction,
            gain,
            count,
        )
        given = np.arange(request.n_candidates) < count[:, None]
        if request.may_end and not count.all():
            ends = (slot >= 0) & (count[slot] == 0)
            ended = np.where(ends, state.node, state.ended)
            self.state = msgspec.structs.replace(state, ended=ended)
        here = slot >= 0
        weight = np.bincount(slot[here], self.weight[here], request.n_open)
        return SplitProposals(
            weight.astype(np.float64),
            count,
            feature[given],
            threshold[given],
            direction[given],
            gain[given],
            self._loss(state),
        )

    @handles(EvaluateSplits)
    def evaluate_splits(self, request: EvaluateSplits) -> CandidateSums:
        state = self.recall(Growing)
        self._check_features(request.feature)
        n_open = len(request.count)
        slot, gradients = self._slots(state, request.first, n_open), self._gradients(state)
        start = np.append(0, np.cumsum(request.count))
        if start[-1] != len(request.feature):
            raise ValueError(f"{len(request.feature)} splits, {start[-1]} counted")
        left, missing = np.zeros((2, len(request.feature), 2), np.int64)
        totals = np.zeros((n_open, 2), np.int64)
        kernels.sum_by_slot(slot, gradients, totals)
        kernels.sum_candidates(
            self.X, slot, gradients, start, request.feature, request.threshold, left, missing
        )
        return CandidateSums(left, missing, totals)

    @handles(SumLeaves)
    def sum_leaves(self, request: SumLeaves) -> LeafSums:
        state = self._advance(request)
        at = np.where(state.ended >= 0, state.ended, state.node)
        if at.max(initial=-1) >= request.n_nodes:
            raise ValueError(f"a row is in node {at.max()} of {request.n_nodes}")
        sums = np.zeros((request.n_nodes, 2), np.int64)
        kernels.sum_by_slot(at, self._gradients(state), sums)
        return LeafSums(sums)

    @handles(BuildHistograms)
    def build_histograms(self, request: BuildHistograms) -> Histograms:
        state = self._advance(request)
        if len(request.wanted) != request.n_open or request.n_bins != len(state.thresholds):
            raise ValueError(f"{request.n_bins} bins of {len(request.wanted)} nodes asked for")
        place = np.where(request.wanted, np.cumsum(request.wanted) - 1, -1).astype(np.int32)
        slot = np.append(place, np.int32(-1))[self._slots(state, request.first, request.n_open)]
        sums = np.zeros((int(request.wanted.sum()), request.n_bins, 2), np.int64)
        bins = self._remember("bins", state.thresholds, self._bins, state)
        kernels.sum_histograms(bins, state.offsets, slot, self._gradients(state), sums)
        return Histograms(sums, self._loss(state))

    @handles(KeepTrees)
    def keep_trees(self, request: KeepTrees) -> Done:
        self._check_features(request.feature)
        margins = predict_margins(request.trees(), request.base_margin, self.X)
        self.state = Predictions((margins > 0).astype(np.int64), expit(margins.astype(np.float64)))
        return Done()

    def _advance(self, request: Growth) -> Growing:
        """Move the rows by the choices that a request tells, and begin a new tree where it does."""
        state = self.recall(Growing)
        self._check_features(request.feature)
        node, ended, margins = state.node, state.ended, state.margins
        if len(request.feature):
            node = node.copy()
            child = children(request.feature, request.decided)
            decisions = request.feature, request.threshold, request.missing_left
            kernels.move_rows(self.X, node, request.decided, *decisions, child)
        if len(request.values):
            if node.max(initial=-1) >= len(request.values):
                raise ValueError(f"{len(request.values)} values, but a row in node {node.max()}")
            margins = margins + request.values[node]
            node, ended = np.zeros_like(node), np.full_like(ended, -1)
        self.state = msgspec.structs.replace(state, margins=margins, node=node, ended=ended)
        return self.state

    def _warn_of_crowds(self, offsets: NDArray[np.int64]) -> None:
        if len(offsets) == self.X.shape[1] + 1 and (found := crowded(self.X, offsets)):
            names = self.features or range(self.X.shape[1])
            shown = ", ".join(repr(names[f]) for f in found)
            warnings.warn(
                f"features {shown}: many values fall into one bin, because they differ by less than"
                " one part in 2**11; let all clients subtract the same number from them",
                stacklevel=2,
            )

    def _check_features(self, feature: NDArray[np.int32]) -> None:
        if feature.max(initial=-1) >= self.X.shape[1]:
            raise ValueError(f"feature {feature.max()} of a client with {self.X.shape[1]}")

    def _slots(self, state: Growing, first: int, n_open: int) -> NDArray[np.int32]:
        """Return each row's number among the open nodes, -1 for those elsewhere."""
        slot = state.node - np.int32(first)
        slot[(slot < 0) | (slot >= n_open) | (state.ended >= 0)] = -1
        return slot

    def _remember(self, name: str, key: Any, make: Any, *arguments: Any) -> Any:
        """Return what was made last time for the same key, or make it."""
        known, value = self._known.get(name, (None, None))
        if known is not key:
            value = make(*arguments)
            self._known[name] = key, value
        return value

    def _gradients(self, state: Growing) -> NDArray[np.int64]:
        return self._remember("gradients", state.margins, self._compute_gradients, state)

    def _compute_gradients(self, state: Growing) -> NDArray[np.int64]:
        gradients = np.empty((len(self.X), 2), np.int64)
        positive = self._positive(state)
        kernels.sum_gradients(state.margins, positive, self.weight, state.bits, gradients)
        return gradients

    def _loss(self, state: Growing) -> float:
        def compute() -> float:
            return float(kernels.sum_losses(state.margins, self._positive(state), self.weight))

        return self._remember("loss", state.margins, compute)

    def _positive(self, state: Growing) -> NDArray[np.bool_]:
        assert self.y is not None
        return self._remember("positive", self.y, lambda: self.y == state.positive)

    def _bins(self, state: Growing) -> NDArray[np.uint16]:
        offsets, thresholds = state.offsets, state.thresholds
        ends = len(offsets) == self.X.shape[1] + 1 and offsets[-1] == len(thresholds)
        if not ends or offsets[0] != 0 or (np.diff(offsets) < 1).any():
            raise ValueError("the bins do not fit the features")
        return Cuts(offsets, thresholds).bins(self.X)

    def _order(self) -> tuple[NDArray[Any], ...]:
        """Return the rows in the order of each feature, their values, and how many have one."""
        if self._sorted is None:
            columns = self.X.T
            order = np.argsort(columns, axis=1, kind="stable").astype(np.int32)
            values = np.take_along_axis(columns, order, axis=1)
            self._sorted = order, values, (~np.isnan(columns)).sum(axis=1)
        return self._sorted


class FederatedXGBClassifier(Federated):
    """Boosted trees for two classes, over clients that hold rows of the same features.

    Parameters
    ----------
    n_trees : int, default=100
        The greatest number of trees, at least 1.
    n_candidates : int, default=10
        How many splits of a node each client proposes, at least 1 (F's S).
    method : {"top_splits", "union", "histogram"}, default="top_splits"
        What clients tell of each node. ``"top_splits"``: their own best splits (F). ``"union"``:
        these, then sums for every split that any of them named, so that the server knows each one's
        gain over all rows. ``"histogram"``: sums in bins agreed on beforehand, which give the trees
        of XGBoost's ``hist`` on the pooled rows and the same bins, however the rows are dealt.
    max_depth : int, default=6
        The number of splits on the way to a leaf, in 1..30.
    learning_rate : float, default=0.3
        What a leaf's weight is multiplied by, above 0 and at most 1. A client may prefer another;
        the mean weighted by rows counts.
    reg_lambda : float, default=1.0
        λ of (3.1), in 0..1e30.
    gamma : float, default=0.0
        The least gain of a split as XGBoost has it, twice the γ of (3.1), in 0..1e30.
    min_child_weight : float, default=1.0
        The least sum of hessians on either side of a split, in 0..1e30: of all rows, but for
        ``"top_splits"`` of each proposer's own, so that it bars more splits the more clients share
        the rows. (Clients propose for ``"union"`` what leaves them the n-th part of it, n being the
        number of clients with rows.)
    max_bin : int, default=256
        The greatest number of bins of a feature for ``"histogram"``, in 2..32768.
    tol : float or None, default=0.004
        Stop after a tree that lowers the mean log-loss of all rows by less. F lets each client stop
        for itself and merges as many trees as the last of them has grown. None: grow all trees.
    leaf : {"all", "ended", "parent"}, default="all"
        Which rows make the weight −G/(H + λ) of a leaf. ``"all"``: all rows in it, as in XGBoost.
        ``"ended"``: of clients whose tree goes so far, their rows in it, and of those whose tree
        ended at its parent because they found no split, their rows there (F, Algorithms 1 and 2 as
        written); rows that ended further up count nowhere. ``"parent"``: all rows in it and all
        rows of its parent besides (Algorithm 2 alone). The last two are for ``"top_splits"`` only.
        On F's three small sets ``"parent"``, which shrinks leaves, has the better mean AUC, and in
        log-loss neither is better throughout. The default is XGBoost's own step all the same: with
        it one client's trees are XGBoost's, and the three methods differ in their splits alone.

    Attributes
    ----------
    trees_ : list of Tree
    classes_ : array (2,)
        The classes of all clients in order; the second is the positive one.
    labels_ : list of array
        The predicted classes of each client's rows. Only if the parts were given to `fit`.
    losses_ : list of float
        The mean log-loss over all rows before the first tree and after each but the last.
    base_share_ : float
        The share of the positive class, from which the log-odds start.
    learning_rate_ : float
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if the clients' features have names.
    ledger_ : Ledger

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    A client may have no rows, or those of one class. A passive one gets the trees, and predictions,
    and may lack ``y``. When a client is lost, the others go on: its rows count in what is decided
    already, and no longer in what is decided next.

    Arithmetic is XGBoost's: features, thresholds, margins, gradients and gains in float32. Sums are
    whole multiples of a unit of about 2**-52 of the rows' weight, so they depend on no order.

    Of equal gains the lower feature wins, then the lower threshold. That a value is missing does
    not split a node for ``"top_splits"`` and ``"union"``; it decides the side of rows that lack it.

    The bins of ``"histogram"`` tell values apart that differ by one part in 2**11 of themselves.
    What varies little about a large number (days since 1900, identifiers) falls into few of them; a
    client that has such a feature warns, and all should subtract the same number from it. The other
    methods divide between any two values of a client.

    No method hides classes or rare values from the server, though F says that classes do not leak:
    sums of few rows tell how many of each class there are, thresholds and counts in bins tell
    values. Of a client that does not name its features those of the others are taken to be meant.

    Source: F, chapter 3.

    Examples
    --------
    >>> from fedlib import FederatedXGBClassifier
    >>> first = [[1.0], [2.0], [3.0]], ["no", "no", "yes"]
    >>> second = [[4.0], [5.0], [0.0]], ["yes", "yes", "no"]
    >>> model = FederatedXGBClassifier(20, method="histogram", min_child_weight=0)
    >>> model.fit([first, second]).predict([[0.5], [4.5]])
    array(['no', 'yes'], dtype='<U3')
    >>> model.trees_[0].to_frame()[["feature", "threshold", "left", "right"]].loc[0].tolist()
    [0.0, 2.50048828125, 1.0, 2.0]
    """

    name = "xgboost"
    client_class = BoostingClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_trees": [Interval(Integral, 1, None, closed="left")],
        "n_candidates": [Interval(Integral, 1, 2**16, closed="both")],
        "method": [StrOptions({"top_splits", "union", "histogram"})],
        "max_depth": [Interval(Integral, 1, 30, closed="both")],
        "learning_rate": [Interval(Real, 0, 1, closed="right")],
        "reg_lambda": [Interval(Real, 0, 1e30, closed="both")],
        "gamma": [Interval(Real, 0, 1e30, closed="both")],
        "min_child_weight": [Interval(Real, 0, 1e30, closed="both")],
        "max_bin": [Interval(Integral, 2, 2**15, closed="both")],
        "tol": [Interval(Real, None, None, closed="neither"), None],
        "leaf": [StrOptions({"all", "ended", "parent"})],
    }

    def __init__(
        self,
        n_trees: int = 100,
        n_candidates: int = 10,
        *,
        method: Literal["top_splits", "union", "histogram"] = "top_splits",
        max_depth: int = 6,
        learning_rate: float = 0.3,
        reg_lambda: float = 1.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        max_bin: int = 256,
        tol: float | None = 0.004,
        leaf: Literal["all", "ended", "parent"] = "all",
    ):
        self.n_trees = n_trees
        self.n_candidates = n_candidates
        self.method = method
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.reg_lambda = reg_lambda
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.max_bin = max_bin
        self.tol = tol
        self.leaf = leaf

    def _flow(self) -> Flow[BoostedTrees]:
        if self.leaf != "all" and self.method != "top_splits":
            raise ValueError(f"leaf must be 'all' for method={self.method!r}; got {self.leaf!r}")
        return boosting(**self.get_params())

    def _set_model(self, model: BoostedTrees) -> None:
        self.trees_ = model.trees
        self.classes_ = np.array(model.classes)
        self.losses_ = model.losses
        self.base_share_ = model.share
        self.learning_rate_ = model.learning_rate
        self.n_features_in_ = model.n_features
        if model.features:
            self.feature_names_in_ = np.array(model.features, dtype=object)
        self._base_margin = model.base_margin

    def _set_labels(self, clients: dict[str, Client]) -> None:
        super()._set_labels(clients)
        self.labels_ = [None if codes is None else self.classes_[codes] for codes in self.labels_]

    def decision_function(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the log-odds (n_rows,) of the second class, as `predict_proba`."""
        check_is_fitted(self, "trees_")
        rows = check_rows(X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X must have the {self.n_features_in_} features of fit; got {rows.shape[1]}"
            )
        names, known = feature_names(X), getattr(self, "feature_names_in_", ())
        if len(names) and len(known) and list(names) != list(known):
            raise ValueError(f"X must have the features {list(known)}; got {list(names)}")
        return predict_margins(self.trees_, self._base_margin, rows)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability (n_rows, 2) of each class for rows (n_rows, n_features).

        NaN is a missing value.

        Raises
        ------
        ValueError
            When the rows have infinite values or other features than those of `fit`.
        """
        positive = expit(self.decision_function(X).astype(np.float64))
        return np.column_stack([1 - positive, positive])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the more probable class (n_rows,) of rows; for errors see `predict_proba`."""
        return self.classes_[(self.decision_function(X) > 0).astype(int)]

    def to_xgboost(self) -> Booster:
        """Return an `xgboost.Booster` with the same predictions: the second class's probabilities.

        So saving, plotting and explaining the model work as with any other of XGBoost's. Gains and
        covers are those over all clients' rows. In features' names ``[``, ``]`` and ``<``, which
        XGBoost refuses, become ``(``, ``)`` and ``_``: ``feature_names`` tells.

        Raises
        ------
        ImportError
            When xgboost is not installed.
        """
        check_is_fitted(self, "trees_")
        names = list(getattr(self, "feature_names_in_", ()))
        return to_booster(self.trees_, self.base_share_, self.n_features_in_, names)


def check_rows(X: Any, **checks: Any) -> NDArray[np.float32]:
    """Return rows as a C-ordered float32 array, NaN where a value is missing; or ValueError."""
    with np.errstate(over="ignore"):
        X = check_array(X, dtype=np.float32, order="C", ensure_all_finite="allow-nan", **checks)
    if X.size and np.nanmax(np.abs(X), initial=0) > LARGEST:
        raise ValueError("X must lie within ±2**127")
    return X


def check_classes(y: Any, n_rows: int) -> NDArray[Any]:
    """Return the classes of rows: text, or numbers that are all there."""
    y = column_or_1d(y)
    check_consistent_length(y, np.empty(n_rows))
    if y.dtype.kind == "O":
        y = np.array(y.tolist()) if len(y) else y.astype(np.int64)
    if y.dtype.kind not in "biufU":
        raise ValueError(f"y must be text or numbers; got {y.dtype}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y must be finite")
    return y


def check_weights(weights: Any, n_rows: int) -> NDArray[np.float32]:
    """Return the weights of rows as float32, 1 by default, or raise ValueError."""
    if weights is None:
        return np.ones(n_rows, np.float32)
    weights = column_or_1d(weights, dtype=np.float32)
    check_consistent_length(weights, np.empty(n_rows))
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("sample_weight must be finite and at least 0")
    if weights.sum(dtype=np.float64) > MAX_WEIGHT:
        total = weights.sum(dtype=np.float64)
        raise ValueError(f"sample_weight must add up to at most 2**40; got {total:g}")
    return weights
