"""How trees grow: what is said for each level of a tree, and how the server chooses its splits.

A level's request tells the choices for the level before, and its replies what the next choices
need; so a tree costs one exchange a level. Three growers choose: by the clients' votes, by the sums
of all splits that any client named, and by histograms.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.cuts import Cuts
from fedlib.boosting.trees import Tree, children, node_totals
from fedlib.kernels import splits as kernels
from fedlib.messages import Array, Message, MessageError
from fedlib.protocol import Replies

__all__ = [
    "BuildHistograms",
    "CandidateSums",
    "EvaluateSplits",
    "Grower",
    "Growth",
    "Histograms",
    "LeafSums",
    "ProposeSplits",
    "SplitProposals",
    "SumLeaves",
    "Training",
    "growers",
]

LIMIT = 2**53  # what one client may report; the sums of a thousand clients still fit
MAX_NODES = 2**31 - 2
MAX_WEIGHT = 2.0**40  # of a client's rows; squares of a thousand clients' sums fit a float32

Class = bool | int | float | str
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NODES)]
Node = Array("int32", ("nodes",), ge=-1)
Setting = Annotated[float, msgspec.Meta(ge=0)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=LIMIT)]
Loss = Annotated[float, msgspec.Meta(ge=0, le=2.0**200)]
NO_FEATURE, NO_FLOAT, NO_BOOL = np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, bool)


class Growth(Message):
    """What a request to grow further tells: the choices for the level before, and which nodes next.

    The nodes ``decided``, decided + 1, … are split by these features and thresholds, or are leaves
    where the feature is -1. Where there are ``values``, they are those of the finished tree's
    nodes, and a new tree begins. The nodes ``first``, … , first + n_open - 1 are then the open
    ones. ``weight`` is what the client said that its rows weigh, in the unit of its reply: no reply
    may exceed it.
    """

    discloses = "nothing by itself"
    decided: Count
    feature: Annotated[np.ndarray, Node]
    threshold: Annotated[np.ndarray, Array("float32", ("nodes",))]
    missing_left: Annotated[np.ndarray, Array("bool", ("nodes",))]
    values: Annotated[np.ndarray, Array("float32", ("tree",))]
    first: Count
    n_open: Count
    weight: Weight


class SplitProposals(Message):
    """A client's best splits of each open node, the best first, and what its rows there weigh.

    ``direction`` is 0 where missing values go right, 1 left, 2 where it has none. A threshold lies
    halfway between two values: where these are whole numbers, it tells them. ``gain`` depends on
    the classes on either side, and so tells something of them.
    """

    discloses = (
        "the best splits for a client's rows, halfway between two of its values; its rows in each "
        "node; its log-loss"
    )
    weight: Annotated[np.ndarray, Array("float64", ("nodes",), ge=0, le=MAX_WEIGHT)]
    count: Annotated[np.ndarray, Array("int64", ("nodes",), ge=0)]
    feature: Annotated[np.ndarray, Array("int32", ("splits",), ge=0)]
    threshold: Annotated[np.ndarray, Array("float32", ("splits",))]
    direction: Annotated[np.ndarray, Array("uint8", ("splits",), le=2)]
    gain: Annotated[np.ndarray, Array("float32", ("splits",), ge=0)]
    loss: Loss


class ProposeSplits(Growth):
    """Propose the best ``n_candidates`` splits of each open node for your rows.

    With ``may_end``, a client that finds none in a node keeps its rows there.
    """

    discloses = "the splits chosen so far and the leaves of the finished tree"
    reply = SplitProposals
    n_features: Count
    n_candidates: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    reg_lambda: Setting
    gamma: Setting
    min_child_weight: Setting
    may_end: bool

    def accept(self, reply: Message) -> SplitProposals:
        """Raise MessageError where the proposals are not those of these nodes."""
        assert isinstance(reply, SplitProposals)
        _fits("nodes", len(reply.count), self.n_open)
        _fits("splits", len(reply.gain), int(reply.count.sum()))
        if reply.count.max(initial=0) > self.n_candidates:
            raise MessageError(f"more than {self.n_candidates} splits of a node")
        if reply.feature.max(initial=0) >= self.n_features:
            raise MessageError(f"a feature that is not among the {self.n_features}")
        if reply.weight.sum() > self.weight * (1 + 1e-6):  # sums in another order
            raise MessageError("rows of more weight than the client has")
        return reply


class CandidateSums(Message):
    """The sums of gradients and hessians left of each split, of its missing values, and in all.

    While all predictions are alike, that is in the first tree, G and H are n·p − n₁ and n·p(1 − p)
    for n rows, n₁ of them positive: they tell both numbers. That holds for all such sums.
    """

    discloses = (
        "sums that tell a client's rows of each class on either side of every proposed split "
        "(tree 1: exactly)"
    )
    left: Annotated[np.ndarray, Array("int64", ("splits", "pair"), ge=-LIMIT, le=LIMIT)]
    missing: Annotated[np.ndarray, Array("int64", ("splits", "pair"), ge=-LIMIT, le=LIMIT)]
    totals: Annotated[np.ndarray, Array("int64", ("nodes", "pair"), ge=-LIMIT, le=LIMIT)]


class EvaluateSplits(Message):
    """Add up your gradients left of these splits of the open nodes, ``count`` of each."""

    discloses = "the splits that clients proposed, without their names"
    reply = CandidateSums
    first: Count
    count: Annotated[np.ndarray, Array("int64", ("nodes",), ge=0)]
    feature: Annotated[np.ndarray, Array("int32", ("splits",), ge=0)]
    threshold: Annotated[np.ndarray, Array("float32", ("splits",))]
    weight: Weight

    def accept(self, reply: Message) -> CandidateSums:
        """Raise MessageError where there are other sums than one for each split and node."""
        assert isinstance(reply, CandidateSums)
        _fits("splits", len(reply.left), len(self.feature))
        _fits("nodes", len(reply.totals), len(self.count))
        for sums in (reply.left, reply.missing, reply.totals):
            _possible(sums, self.weight)
        return reply


class LeafSums(Message):
    """The sums of gradients and hessians of a client's rows at each node."""

    discloses = "sums that tell a client's rows of each class in every leaf (tree 1: exactly)"
    sums: Annotated[np.ndarray, Array("int64", ("tree", "pair"), ge=-LIMIT, le=LIMIT)]


class SumLeaves(Growth):
    """Add up your gradients in each node of the finished tree, which has ``n_nodes``."""

    discloses = "the splits chosen last"
    reply = LeafSums
    n_nodes: Count

    def accept(self, reply: Message) -> LeafSums:
        """Raise MessageError where there are other sums than one for each node."""
        assert isinstance(reply, LeafSums)
        _fits("nodes", len(reply.sums), self.n_nodes)
        _possible(reply.sums, self.weight)
        return reply


class Histograms(Message):
    """The sums of gradients and hessians in each bin of each feature, for the nodes asked for."""

    discloses = (
        "sums that tell a client's rows of each class in every bin of every node "
        "(tree 1: exactly); its log-loss"
    )
    sums: Annotated[np.ndarray, Array("int64", ("nodes", "bins", "pair"))]
    loss: Loss


class BuildHistograms(Growth):
    """Add up your gradients in every bin of the ``wanted`` ones among the open nodes."""

    discloses = "the splits chosen so far and the leaves of the finished tree"
    reply = Histograms
    wanted: Annotated[np.ndarray, Array("bool", ("open",))]
    n_bins: Count

    def accept(self, reply: Message) -> Histograms:
        """Raise MessageError where there are other sums than one for each node and bin."""
        assert isinstance(reply, Histograms)
        _fits("nodes", len(reply.sums), int(self.wanted.sum()))
        _fits("bins", reply.sums.shape[1], self.n_bins)
        _possible(reply.sums, self.weight)
        return reply


def _fits(what: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise MessageError(f"{given} {what} where {wanted} were asked for")


def _possible(sums: NDArray[np.int64], weight: float) -> None:
    """Raise MessageError where a pair of sums (…, 2) is of no rows of at most this weight.

    A row's gradient is at most its weight and its hessian a quarter of that; making either a whole
    number at most doubles it.
    """
    _fits("sums", sums.shape[-1], 2)
    g, h = sums[..., 0], sums[..., 1]
    if h.min(initial=0) < 0:
        raise MessageError("a negative sum of hessians")
    if max(g.max(initial=0), -int(g.min(initial=0))) > 2 * weight or h.max(initial=0) > weight / 2:
        raise MessageError("sums of more weight than the client has")


@dataclass
class Training:
    """What the server learns from the clients before the first tree, and its settings.

    ``weights`` are those of each client's rows by its own word, 0 of passive ones.
    """

    settings: dict[str, Any]
    classes: list[Class]
    share: float
    base_margin: float
    learning_rate: float
    bits: int
    n_features: int
    features: tuple[str, ...]
    weights: dict[str, float]
    cuts: Cuts
    loss_of: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    @property
    def unit(self) -> float:
        return 2.0**-self.bits

    def forget(self, lost: Sequence[str]) -> None:
        """Ask nothing more of the clients that are lost."""
        for name in lost:
            self.weights.pop(name, None)

    def goes_on(self, losses: Mapping[str, float]) -> bool:
        """Return whether the last tree made the log-loss of the rows at hand small enough."""
        known = {name: loss for name, loss in losses.items() if name in self.weights}
        weight = sum(self.weights[name] for name in known) or 1.0
        before = sum(self.loss_of.get(name, 0.0) for name in known) / weight
        after = sum(known.values()) / weight
        first = not self.loss_of
        self.loss_of = known
        self.losses.append(after)
        tol = self.settings["tol"]
        return first or tol is None or before - after >= tol


Decisions = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]
Step = Generator[Any, Replies, Any]


class Grower:
    """Grows trees level by level; subclasses say how a level's splits are chosen."""

    def __init__(self, training: Training):
        self.training = training
        self.told: dict[str, Any] = {}
        self.tell()

    def tell(
        self,
        decided: int = 0,
        decisions: Decisions = (NO_FEATURE, NO_FLOAT, NO_BOOL),
        values: NDArray[np.float32] = NO_FLOAT,
    ) -> None:
        """Set what the next request tells of the choices made."""
        feature, threshold, missing_left = decisions
        self.told = {
            "decided": decided,
            "feature": feature,
            "threshold": threshold,
            "missing_left": missing_left,
            "values": values,
        }

    def grow(self, values: NDArray[np.float32]) -> Step:
        """Grow a tree after one with these values; return None where the one before was the last.

        Only the request for the root tells the clients these values, and only its replies tell what
        they did to the log-loss, which so costs no message of its own.
        """
        self.told["values"] = values
        levels: list[Decisions] = []
        first, n_open = 0, 1
        while n_open:
            if len(levels) == self.training.settings["max_depth"]:
                levels.append(_undecided(n_open))
                break
            replies = yield from self.ask(first, n_open)
            if first == 0:
                losses = {name: reply.loss for name, reply in replies.items()}
                if not self.training.goes_on(losses):
                    return None
            levels.append((yield from self.choose(replies, first, n_open)))
            self.tell(first, levels[-1])
            first, n_open = first + n_open, 2 * int((levels[-1][0] >= 0).sum())
        decisions = tuple(np.concatenate(arrays) for arrays in zip(*levels, strict=True))
        sums = yield from self.sum_leaves(len(decisions[0]))
        return _finish(decisions, sums, self.training)

    def put(self, question: type[Message], unit: float, **fields: Any) -> Step:
        """Ask every client the same; each is held to its own weight, in the unit of its reply."""
        weights = self.training.weights
        replies = yield {name: question(**fields, weight=w / unit) for name, w in weights.items()}
        self.training.forget(replies.lost)
        return replies

    def ask(self, first: int, n_open: int) -> Step:
        """Ask for what the choice of the open nodes' splits needs."""
        raise NotImplementedError

    def choose(self, replies: Replies, first: int, n_open: int) -> Step:
        """Return the decisions for the open nodes."""
        raise NotImplementedError

    def sum_leaves(self, n_nodes: int) -> Step:
        """Return all clients' sums at each node, beside what they hold below it."""
        unit = self.training.unit
        replies = yield from self.put(
            SumLeaves, unit, **self.told, first=0, n_open=0, n_nodes=n_nodes
        )
        self.tell()
        return sum(reply.sums for reply in replies.values())


class TopSplits(Grower):
    """Chooses the split with the greatest sum of its proposers' gains, weighted by rows (3.3)."""

    def ask(self, first: int, n_open: int) -> Step:
        settings = self.training.settings
        gamma, min_child_weight = self.own_limits()
        return self.put(
            ProposeSplits,
            1.0,
            **self.told,
            first=first,
            n_open=n_open,
            n_features=self.training.n_features,
            n_candidates=settings["n_candidates"],
            reg_lambda=settings["reg_lambda"],
            gamma=gamma,
            min_child_weight=min_child_weight,
            may_end=settings["leaf"] == "ended",
        )

    def own_limits(self) -> tuple[float, float]:
        """Return the γ and the least weight of a side that a client minds for its own rows."""
        settings = self.training.settings
        return settings["gamma"], settings["min_child_weight"]

    def choose(self, replies: Replies, first: int, n_open: int) -> Step:
        gamma = self.training.settings["gamma"]
        node, feature, threshold, direction, gain = _proposals(replies)
        n_rows = [np.repeat(reply.weight, reply.count) for reply in replies.values()]
        vote = np.concatenate(n_rows) * (0.5 * (gain.astype(np.float64) - gamma))
        left, right = (np.where(direction == way, vote, 0.0) for way in (kernels.LEFT, 0))
        start, order = _same_splits(node, feature, threshold, vote, direction)
        vote, left, right = (
            np.add.reduceat(of[order], start) if len(start) else of for of in (vote, left, right)
        )
        at = order[start]
        best = _first_greatest(node[at], vote)
        decisions = _undecided(n_open)
        _decide(decisions, node, feature, threshold, at[best], (left > right)[best])
        return decisions
        yield  # a generator, though it asks for nothing


class UnionSplits(TopSplits):
    """Chooses among all proposed splits the one with the greatest gain over all clients' rows."""

    def own_limits(self) -> tuple[float, float]:
        """Return no γ, and the share of the least weight that falls to each client."""
        n_clients = sum(weight > 0 for weight in self.training.weights.values())
        return 0.0, self.training.settings["min_child_weight"] / n_clients

    def choose(self, replies: Replies, first: int, n_open: int) -> Step:
        settings = self.training.settings
        node, feature, threshold, _, gain = _proposals(replies)
        start, order = _same_splits(node, feature, threshold, gain, gain)
        at = order[start]
        node, feature, threshold = node[at], feature[at], threshold[at]
        count = np.bincount(node, minlength=n_open)
        if not len(node):
            return _undecided(n_open)
        replies = yield from self.put(
            EvaluateSplits,
            self.training.unit,
            first=first,
            count=count,
            feature=feature,
            threshold=threshold,
        )
        names = ("left", "missing", "totals")
        left, missing, totals = (sum(getattr(r, n) for r in replies.values()) for n in names)
        total_gain, direction = np.empty(len(node), np.float32), np.empty(len(node), np.uint8)
        kernels.gains_of_candidates(
            np.append(0, np.cumsum(count)),
            left,
            missing,
            totals,
            self.training.unit,
            settings["reg_lambda"],
            settings["gamma"],
            settings["min_child_weight"],
            total_gain,
            direction,
        )
        best = _first_greatest(node, total_gain)
        best = best[total_gain[best] > 0]
        decisions = _undecided(n_open)
        _decide(decisions, node, feature, threshold, best, direction[best] == kernels.LEFT)
        return decisions


class Binned(Grower):
    """Chooses the best cut by the histograms of all clients' rows.

    Of two siblings only the lighter one is asked for; the other is what is left of the parent. When
    a client was lost since the parent's histogram, both are asked for.
    """

    def __init__(self, training: Training):
        super().__init__(training)
        self.lost: list[str] = []
        self.sums = np.empty((0, 0, 2), np.int64)
        self.leaves: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.sides = np.empty((0, 2), np.int64)

    def ask(self, first: int, n_open: int) -> Step:
        wanted = np.ones(n_open, bool)
        if first:
            light = self.sides[0::2, 1] <= self.sides[1::2, 1]
            wanted[0::2], wanted[1::2] = light, ~light
        replies = yield from self._ask(first, n_open, wanted)
        self.tell()
        while first and replies.lost != self.lost:
            self.lost, wanted = replies.lost, np.ones(n_open, bool)
            replies = yield from self._ask(first, n_open, wanted)
        self.lost = replies.lost
        asked = sum(reply.sums for reply in replies.values())
        if wanted.all():
            self.sums = asked
        else:
            parents, self.sums = self.sums, np.empty((n_open, *asked.shape[1:]), np.int64)
            self.sums[wanted] = asked
            self.sums[~wanted] = parents - asked
        return replies

    def _ask(self, first: int, n_open: int, wanted: NDArray[np.bool_]) -> Step:
        n_bins = len(self.training.cuts.thresholds)
        place = {"first": first, "n_open": n_open, "wanted": wanted, "n_bins": n_bins}
        return self.put(BuildHistograms, self.training.unit, **self.told, **place)

    def choose(self, replies: Replies, first: int, n_open: int) -> Step:
        settings, cuts = self.training.settings, self.training.cuts
        if first == 0:
            self.leaves = []
        decisions = feature, threshold, missing_left = _undecided(n_open)
        cut, gain = np.zeros(n_open, np.int64), np.empty(n_open, np.float32)
        left = np.zeros((n_open, 2), np.int64)
        kernels.best_splits(
            self.sums,
            cuts.offsets,
            self.training.unit,
            settings["reg_lambda"],
            settings["gamma"],
            settings["min_child_weight"],
            feature,
            cut,
            missing_left,
            gain,
            left,
        )
        split = np.flatnonzero(feature >= 0)
        threshold[split] = cuts.thresholds[cuts.offsets[feature[split]] + cut[split]]
        missing_left[feature < 0] = False
        totals = self.sums[:, : cuts.offsets[1]].sum(axis=1)
        self.leaves.append((first + np.flatnonzero(feature < 0), totals[feature < 0]))
        self.sides = np.stack([left[split], totals[split] - left[split]], axis=1).reshape(-1, 2)
        self.sums = self.sums[split]
        return decisions
        yield  # a generator, though it asks for nothing

    def sum_leaves(self, n_nodes: int) -> Step:
        """Return the sums at the leaves, which the histograms told already."""
        sums = np.zeros((n_nodes, 2), np.int64)
        for nodes, totals in self.leaves:
            sums[nodes] = totals
        if len(self.sides):
            sums[n_nodes - len(self.sides) :] = self.sides
        return sums
        yield  # a generator, though it asks for nothing


def _undecided(n_open: int) -> Decisions:
    """Return the decisions by which all open nodes are leaves."""
    return np.full(n_open, -1, np.int32), np.zeros(n_open, np.float32), np.zeros(n_open, bool)


def _decide(
    decisions: Decisions,
    node: NDArray[np.int64],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    chosen: NDArray[np.int64],
    missing_left: NDArray[np.bool_],
) -> None:
    at = node[chosen]
    decisions[0][at], decisions[1][at] = feature[chosen], threshold[chosen]
    decisions[2][at] = missing_left


def _proposals(replies: Replies) -> list[NDArray[Any]]:
    """Return the node, feature, threshold, direction and gain of all clients' proposals."""
    node = [np.repeat(np.arange(len(reply.count)), reply.count) for reply in replies.values()]
    names = ("feature", "threshold", "direction", "gain")
    arrays = ([getattr(reply, name) for reply in replies.values()] for name in names)
    return [np.concatenate(of) for of in (node, *arrays)]


def _same_splits(
    node: NDArray[np.int64], *keys: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order of proposals and where in it each distinct split starts.

    Of the keys, the first two are the feature and threshold; the others fix the order of equal
    splits, so that sums over them do not depend on the clients' order.
    """
    order = np.lexsort((*keys[:1:-1], keys[1], keys[0], node))
    columns = [of[order] for of in (node, keys[0], keys[1])]
    new = np.ones(len(order), bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(new), order


def _first_greatest(node: NDArray[np.int64], vote: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each node's greatest vote stands, of equal ones the first."""
    order = np.lexsort((np.arange(len(vote)), -vote, node))
    first = np.ones(len(order), bool)
    first[1:] = node[order][1:] != node[order][:-1]
    return order[first]


def _finish(decisions: Any, sums: NDArray[np.int64], training: Training) -> Tree:
    """Return the tree with the values of its leaves, from the sums at each node itself."""
    feature, threshold, missing_left = decisions
    settings = training.settings
    reg_lambda = settings["reg_lambda"]
    left = children(feature)
    totals = node_totals(feature, sums)
    split = np.flatnonzero(feature >= 0)
    parent = np.full(len(feature), -1)
    parent[left[split]] = parent[left[split] + 1] = split
    beside = {"all": None, "ended": sums, "parent": totals}[settings["leaf"]]
    basis = totals.copy()
    if beside is not None:
        basis[1:] += beside[parent[1:]]
    weight = _weights(totals * training.unit, reg_lambda, settings["min_child_weight"])
    value = _weights(basis * training.unit, reg_lambda, settings["min_child_weight"])
    value *= np.float32(training.learning_rate)
    value[split] = 0
    g, h = (totals * training.unit).T
    scores = kernels.scores(g, h, reg_lambda)
    gain = np.zeros(len(feature), np.float32)
    gain[split] = (scores[left[split]] + scores[left[split] + 1]) - scores[split]
    cover = h.astype(np.float32)
    return Tree(feature, threshold, missing_left, left, value, gain, cover, weight)


def _weights(
    sums: NDArray[np.floating], reg_lambda: float, min_child_weight: float
) -> NDArray[np.float32]:
    """Return −G/(H + λ) of sums (n, 2), 0 where there is too little weight for one."""
    g, h = sums.T
    enough = (h > 0) & (h >= min_child_weight)
    return np.where(enough, -g / np.where(enough, h + reg_lambda, 1), 0).astype(np.float32)


growers = {"top_splits": TopSplits, "union": UnionSplits, "histogram": Binned}
