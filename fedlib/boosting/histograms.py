"""The method ``"histogram"``: clients sum their gradients per bin, the server finds the splits.

The messages about histograms of gradients: dense, packed, as a secure sum, or with noise.

Most bins of a small node are empty, and the lowest bits of sums of float32 numbers are often 0. A
packed histogram leaves both out. It is written from a client's rows and added to the sums of all
clients without a dense histogram of its own, and has exactly the same sums.

The method ``"histogram"`` with XGBoost's ``grow_policy="lossguide"``.

In each step, every tree of the round splits its leaf with the largest gain, so a tree of n leaves
costs n - 1 exchanges. Nodes are numbered in the order in which they appear.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.messages import (
    Count,
    Loss,
    Splits,
    Weight,
    check_length,
    problem_of_extremes,
)
from fedlib.boosting.server_state import (
    ColumnSampler,
    OpenNodes,
    Round,
    Training,
    finish_round,
    joined,
    leaves,
    reasons,
)
from fedlib.boosting.tree_growers import Grower, Level
from fedlib.boosting.trees import children
from fedlib.core.array_types import Bools, Ints
from fedlib.core.messages import Array, Message, MessageError, Privacy
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.histograms import HistogramSplits, add_dense, children_sums, subtract_siblings
from fedlib.kernels.histograms import best_splits as best_splits_by_kernel
from fedlib.kernels.histograms import decide as decide_by_kernel
from fedlib.kernels.packing import (
    N_BYTES,
    Packed,
    add_packed,
    count_filled,
    pack_pairs,
)
from fedlib.kernels.splits import Decisions
from fedlib.protection.privacy.noise import NOISY, NoisyRequest
from fedlib.protection.secure.fixed_point import digits_of_limits


class Measured(NamedTuple):
    """What a server checks of a client's histograms.

    Attributes
    ----------
    totals : array (n_nodes, 2) of int64
        The sums over the bins of the first feature.
    are_equal : bool
        Whether those of every other feature are the same.
    extremes : sequence of int
        The smallest and the largest sum of gradients, and the same of hessians.
    """

    totals: Ints
    are_equal: bool
    extremes: Sequence[int]


class Histograms(Message):
    """The sums of gradients and hessians in each bin of each feature, for the requested nodes."""

    discloses = (
        "sums that disclose a client's rows of each class in every bin of every node "
        "(tree 1: exactly); its log-loss"
    )
    sums: Annotated[np.ndarray, Array("int64", ("nodes", "bins", "pair"))]
    loss: Loss

    @staticmethod
    def add_up(
        replies: Mapping[str, Any], nodes: Ints, offsets: Ints, histograms: Ints
    ) -> dict[str, Measured]:
        """Add the clients' sums to those of ``nodes`` among all ``histograms``; measure them.

        The bins of feature f are ``offsets[f]`` to ``offsets[f + 1]``. The histograms are an array
        (n_nodes, n_bins, 2).
        """
        return {
            name: Measured(*add_dense(reply.sums, nodes, offsets, histograms))
            for name, reply in replies.items()
        }


class BuildHistograms(Splits, kw_only=True):
    """Sum your gradients in every bin, for the ``wanted`` ones of the open nodes."""

    discloses = "the splits chosen so far and the leaves of the finished tree"
    reply: ClassVar[type[Message]] = Histograms
    wanted: Annotated[np.ndarray, Array("bool", ("open",))]
    n_bins: Count

    def reply_lengths(self) -> dict[str, int]:
        return {"nodes": int(np.count_nonzero(self.wanted)), "bins": self.n_bins, "pair": 2}

    def accept(self, reply: Message) -> AnyHistograms:
        """Raise MessageError unless there is one pair of sums per node and bin.

        Whether they are possible, the flow checks while it adds them up.
        """
        assert isinstance(reply, Histograms)
        check_length("nodes", len(reply.sums), int(np.count_nonzero(self.wanted)))
        check_length("bins", reply.sums.shape[1], self.n_bins)
        check_length("sums", reply.sums.shape[2], 2)
        return reply


class SummableHistograms(Histograms):
    """Histograms of which only the sum over all clients reaches the server, with their weight."""

    discloses = "the rows of each class in every bin of every node (tree 1: exactly); the log-loss"
    weight: Annotated[float, msgspec.Meta(ge=0)]


class SumHistograms(BuildHistograms, kw_only=True):
    """Sum your gradients as for `BuildHistograms`, for a sum over all clients.

    A sum that fails is requested again. ``n_rounds`` is the count of rounds that were finished
    when this request was first made, so that a client adds the values of a tree only once. The sums
    of all clients are at most ``max_sum`` and ``max_loss``, and a larger loss of one row counts as
    ``max_loss``.
    """

    discloses = BuildHistograms.discloses
    reply: ClassVar[type[Message]] = SummableHistograms
    n_rounds: Count
    max_loss: Loss
    max_sum: Weight

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits({"loss": self.max_loss, "weight": self.max_sum}, n_clients)


class NoisyHistograms(Message):
    """Histograms with noise in every bin, occupied or not."""

    discloses = "a client's sums of clipped gradients in every bin of every node, with noise"
    sums: Annotated[np.ndarray, Array("float64", ("nodes", "bins", "pair"), -NOISY, NOISY)]


class SumNoisyHistograms(NoisyRequest, BuildHistograms, kw_only=True):
    """Clip the gradients of your rows, sum them as for `BuildHistograms`, and add noise.

    ``max_gradient`` is the largest gradient of a row of a regression; see
    `fedlib.boosting.secure`. For ``n_rounds`` see `SumHistograms`.
    """

    discloses = "the splits chosen so far and the leaves of the finished tree, which have noise"
    reply: ClassVar[type[Message]] = NoisyHistograms
    n_rounds: Count
    privacy: Privacy
    max_gradient: Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class PackedHistograms(Message):
    """The same as `Histograms`, in fewer bytes.

    ``filled`` has one bit per node and bin, which says whether its sums are not 0; the first bin is
    the lowest bit of the first byte. Each of these sums is an integer of ``width`` bytes, the
    lowest byte first, times 2**shift.
    """

    discloses = Histograms.discloses
    shift: Annotated[int, msgspec.Meta(ge=0, le=62)]
    width: Annotated[int, msgspec.Meta(ge=1, le=N_BYTES)]
    filled: Annotated[np.ndarray, Array("uint8", ("bytes of bits",))]
    values: Annotated[np.ndarray, Array("uint8", ("bytes",))]
    loss: Loss

    @staticmethod
    def add_up(
        replies: Mapping[str, Any], nodes: Ints, offsets: Ints, histograms: Ints
    ) -> dict[str, Measured]:
        """Do the same as `Histograms.add_up`."""
        ends = np.cumsum([len(reply.values) for reply in replies.values()])
        packed = Packed(
            filled=np.stack([reply.filled for reply in replies.values()]),
            values=np.concatenate([reply.values for reply in replies.values()]),
            first_byte=np.append(0, ends[:-1]),
            width=np.array([reply.width for reply in replies.values()]),
            shift=np.array([reply.shift for reply in replies.values()]),
        )
        totals, are_equal, extremes = add_packed(packed, nodes, offsets, histograms)
        return {
            name: Measured(of_client, is_equal, [value << reply.shift for value in found])
            for (name, reply), of_client, is_equal, found in zip(
                replies.items(), totals, are_equal.tolist(), extremes.tolist(), strict=True
            )
        }


AnyHistograms = Histograms | PackedHistograms


class BuildPackedHistograms(BuildHistograms, kw_only=True):
    """Sum your gradients as for `BuildHistograms`; reply in fewer bytes."""

    discloses = BuildHistograms.discloses
    reply = PackedHistograms

    def reply_lengths(self) -> dict[str, int]:
        n_sums = int(self.wanted.sum()) * self.n_bins
        return {"bytes of bits": -(-n_sums // 8), "bytes": 2 * N_BYTES * n_sums}

    def memory(self) -> float:
        """Return the largest count of sums: the reply's values are bytes."""
        return float(prod(super().reply_lengths().values()))

    def accept(self, reply: Message) -> PackedHistograms:
        """Raise MessageError unless there is one pair of sums per bin that is filled."""
        assert isinstance(reply, PackedHistograms)
        n_bins = int(np.count_nonzero(self.wanted)) * self.n_bins
        if len(reply.filled) != -(-n_bins // 8):
            raise MessageError(f"{len(reply.filled)} bytes of bits for {n_bins} bins")
        n_values = 2 * count_filled(reply.filled, 0, n_bins)
        if len(reply.values) != n_values * reply.width:
            raise MessageError(f"{len(reply.values)} bytes for {n_values} sums of {reply.width}")
        return reply


def pack(
    bits: NDArray[np.uint64], n_bits: int, pairs: Ints, measured: tuple[int, int, int], loss: float
) -> PackedHistograms:
    """Return packed histograms from what `fedlib.kernels.packing.move_and_pack` has written."""
    n_filled, used, magnitude = map(int, measured)  # of NumPy, if the kernel is not compiled
    shift = (used & -used).bit_length() - 1 if used else 0
    width = max(1, ((magnitude >> shift).bit_length() + 8) // 8)  # with the sign
    values = np.empty(2 * n_filled * width, np.uint8)
    pack_pairs(pairs[:n_filled], shift, width, values)
    filled = bits.view(np.uint8)[: -(-n_bits // 8)]
    return PackedHistograms(shift=shift, width=width, filled=filled, values=values, loss=loss)


def unpack(reply: PackedHistograms, request: BuildPackedHistograms) -> Histograms:
    """Return the histograms of a reply to this request that was accepted."""
    sums = np.zeros((np.count_nonzero(request.wanted), request.n_bins, 2), np.int64)
    reply.add_up({"": reply}, np.arange(len(sums)), np.array([0, request.n_bins]), sums)
    return Histograms(sums, reply.loss)


class HistogramGrower(Grower):
    """Chooses the best cut by the histograms of all clients' rows.

    Of two siblings, clients send the histogram only for the one with the smaller sum of hessians;
    the other is the difference to their parent. When a client was lost since the parent's
    histogram, the remaining clients send both.

    Attributes
    ----------
    lost : list of str
        The clients that were lost before the last histograms.
    histograms : array (n_nodes, n_bins, 2) of int64
        The histograms of the nodes among which the last splits were chosen.
    memory, spare : array (n,) of int64
        The memory of these histograms, and that of the next ones, which `add_up` overwrites. Both
        are used again and again, because new pages of memory take longer than the sums in them.
    parents : array (n_parents,) of int64
        The places in ``histograms`` of the nodes that were split.
    sides : array (2 * n_parents, 2) of int64
        The sums of their children.
    nodes : OpenNodes
        The nodes of the level.
    n_leaves : array (n_outputs,) of int64
        The count of leaves that each tree has so far.
    leaf_sums : list of pairs of arrays
        The indices (n,) and sums (n, 2) of the leaves found so far, level by level.
    """

    def __init__(self, training: Training):
        super().__init__(training)
        self.sampler = ColumnSampler(training.settings, training.described.n_features)
        self.nodes = OpenNodes.roots(training)
        self.n_leaves = np.ones(training.n_outputs, np.int64)
        self.lost: list[str] = []
        self.histograms = np.empty((0, 0, 2), np.int64)
        self.memory, self.spare = np.empty(0, np.int64), np.empty(0, np.int64)
        self.parents = np.empty(0, np.int64)
        self.sides = np.empty((0, 2), np.int64)
        self.leaf_sums: list[tuple[Ints, Ints]] = []

    def grow_round(self) -> Flow[Round | None]:
        """Grow the trees of a round; the sums in their leaves follow from the histograms."""
        self.begin_round()
        decisions = yield from self.split_all_levels()
        if decisions is None:
            return None
        sums = np.zeros((len(decisions.feature), 2), np.int64)
        for nodes, at_nodes in self.leaf_sums:
            sums[nodes] = at_nodes
        if len(self.sides):  # the deepest level, for which no histogram was requested
            sums[-len(self.sides) :] = self.sides
        left = children(decisions.feature, n_roots=self.training.n_outputs)
        return finish_round(decisions, left, sums, self.training)

    def begin_round(self) -> None:
        """Begin the trees of a round."""
        n_trees = self.training.n_outputs
        self.leaf_sums = []
        self.sampler.begin_round(n_trees, self.n_rounds)
        self.nodes = OpenNodes.roots(self.training)
        self.n_leaves = np.ones(n_trees, np.int64)

    def split_level(self, level: Level) -> Flow[Decisions | None]:
        """Choose the splits of a level, as `Grower.split_level`."""
        histograms = yield from self.sum_histograms(level)
        return None if histograms is None else self.choose(level, histograms)

    def sum_histograms(self, level: Level) -> Flow[Ints | None]:
        """Return the sums of the clients' histograms of a level; None when boosting ends."""
        wanted = self.smaller_siblings() if level.first else np.ones(level.n_open, bool)
        histograms, replies = yield from self.ask_for_histograms(level, wanted)
        while level.first and replies.lost != self.lost:
            self.lost, wanted = replies.lost, np.ones(level.n_open, bool)
            histograms, replies = yield from self.ask_for_histograms(level, wanted)
        self.lost = replies.lost
        if self.converged(level, replies):
            return None
        if not wanted.all():
            flat, before = (sums.reshape(len(sums), -1) for sums in (histograms, self.histograms))
            subtract_siblings(flat, wanted, before, self.parents)
        return histograms

    def smaller_siblings(self) -> Bools:
        """Return which nodes of the level have the smaller sum of hessians of two siblings."""
        smaller = np.empty(len(self.sides), bool)
        smaller[0::2] = self.sides[0::2, 1] <= self.sides[1::2, 1]
        smaller[1::2] = ~smaller[0::2]
        return smaller

    def ask_for_histograms(self, level: Level, wanted: Bools) -> Flow[tuple[Ints, Replies]]:
        """Ask for the histograms of the wanted nodes; return their sums over all clients.

        The sums are an array (n_open, n_bins, 2), as in `add_up`. Histograms are checked while they
        are added. If some roots are wrong, those of the other clients are added again; about other
        nodes, `sum_histograms` asks again.
        """
        is_packed = self.training.settings.histograms == "packed"
        request = BuildPackedHistograms if is_packed else BuildHistograms
        largest, n_bins = self.largest_sums(), len(self.training.cuts.thresholds)
        replies = yield from self.ask_about(level, request, largest, wanted=wanted, n_bins=n_bins)
        histograms, measured = self.add_up(wanted, replies)
        found = reasons(
            {
                name: self.problem_of_histograms(level, wanted, name, of_client, largest[name])
                for name, of_client in measured.items()
            }
        )
        replies = yield from self.exclude(replies, found)
        if found and not level.first:
            histograms, _ = self.add_up(wanted, replies)
        return histograms, replies

    def add_up(self, wanted: Bools, replies: Replies) -> tuple[Ints, dict[str, Measured]]:
        """Return the sums of histograms, and what is measured of each.

        The sums of nodes that are not wanted mean nothing. The next call overwrites all, unless
        `choose` has kept them.
        """
        offsets = self.training.cuts.offsets
        size = 2 * offsets[-1] * len(wanted)
        if len(self.spare) < size:
            self.spare = np.empty(size, np.int64)
        histograms = self.spare[:size].reshape(len(wanted), -1, 2)
        histograms[wanted] = 0
        first: AnyHistograms = next(iter(replies.values()))
        return histograms, first.add_up(replies, np.flatnonzero(wanted), offsets, histograms)

    def problem_of_histograms(
        self, level: Level, wanted: Bools, name: str, measured: Measured, weight: float
    ) -> str | None:
        """Return why a client's histograms cannot be right; None if they can."""
        if problem := problem_of_extremes(measured.extremes, weight):
            return problem
        if not measured.are_equal:
            return "the bins of two features do not have the same sum"
        return self.problem_of_sums(level, name, self.sums.complete(name, wanted, measured.totals))

    def choose(self, level: Level, histograms: Ints) -> Decisions:
        """Return each node's best split, and keep what its children and leaves need."""
        splits = self.best_splits(histograms)
        self.keep_max_leaves(splits)
        self.sides, split, leaf = children_sums(splits)
        self.leaf_sums.append((level.first + leaf, splits.sums[leaf]))
        self.histograms, self.parents = histograms, split
        self.memory, self.spare = self.spare, self.memory
        self.nodes = self.nodes.children(split, splits.feature, self.sides, self.training)
        return self.decide(splits)

    def best_splits(self, histograms: Ints) -> HistogramSplits:
        """Return the best split of each open node."""
        training = self.training
        limits = self.sampler.limits(self.nodes, training, self.categories)
        splits: HistogramSplits = best_splits_by_kernel(
            histograms, training.cuts.offsets, training.rule, limits
        )
        return splits

    def decide(self, splits: HistogramSplits) -> Decisions:
        """Return the decisions that make these splits."""
        cuts = self.training.cuts
        decisions: Decisions = decide_by_kernel(
            splits, cuts.offsets, cuts.thresholds, self.categories.is_category
        )
        return decisions

    def keep_max_leaves(self, splits: HistogramSplits) -> None:
        """Make a leaf of each node whose split would give its tree more leaves than allowed."""
        max_leaves = self.training.settings.max_leaves
        if not max_leaves:
            return
        for node in np.flatnonzero(splits.feature >= 0):
            tree = self.nodes.tree[node]
            if self.n_leaves[tree] == max_leaves:
                splits.feature[node] = -1
            else:
                self.n_leaves[tree] += 1


class Candidate(NamedTuple):
    """A leaf that can be split: sorted by its gain, then by its number.

    ``decision`` is its split; ``sides`` (2, 2) are the sums of its children. ``lost`` are the
    clients that were lost before its histogram.
    """

    falling_gain: float
    node: int
    decision: Decisions
    sides: Ints
    histogram: Ints
    nodes: OpenNodes
    lost: list[str]


class LossguideGrower(HistogramGrower):
    """Splits the leaf with the largest gain first.

    Attributes
    ----------
    queues : list of lists of Candidate
        The leaves of each tree that can be split, as a heap.
    split : dict of int to tuple
        The decision and the left child of each node that is split.
    totals : dict of int to array (2,)
        The sums in each node.
    reported : dict of str to dict of int to array (2,)
        The sums in each node that each client has reported.
    """

    def __init__(self, training: Training):
        super().__init__(training)
        self.queues: list[list[Candidate]] = []
        self.split: dict[int, tuple[Decisions, int]] = {}
        self.totals: dict[int, Ints] = {}
        self.reported: dict[str, dict[int, NDArray[Any]]] = {}

    def grow_round(self) -> Flow[Round | None]:
        """Grow the trees of a round."""
        self.begin_round()
        self.queues = [[] for _ in range(self.training.n_outputs)]
        self.split, self.totals, self.reported = {}, {}, {}
        level = Level(0, self.training.n_outputs)
        self.sums.begin_tree()
        while level.n_open:
            self.sums.begin_level()
            histograms = yield from self.sum_histograms(level)
            if histograms is None:
                return None
            self.add_candidates(level, histograms)
            level = self.split_best()
            while level.n_open and not self.can_be_split():
                level = self.split_best()
        return self.finish()

    def add_candidates(self, level: Level, histograms: Ints) -> None:
        """Add the open nodes with an allowed split to the queues of their trees."""
        settings = self.training.settings
        splits = self.best_splits(histograms)
        decisions = self.decide(splits)
        for name, sums in self.sums.open.items():
            of_client = self.reported.setdefault(name, {})
            of_client.update(zip(range(level.first, level.first + len(sums)), sums, strict=True))
        for i in range(level.n_open):
            node = level.first + i
            self.totals[node] = splits.sums[i]
            too_deep = settings.max_depth and self.nodes.depth[i] >= settings.max_depth
            if decisions.feature[i] < 0 or too_deep:
                continue
            sides = np.stack([splits.left_sums[i], splits.sums[i] - splits.left_sums[i]])
            candidate = Candidate(
                -float(splits.gain[i]),
                node,
                decisions.take(slice(i, i + 1)),
                sides,
                histograms[i].copy(),
                self.nodes.take(np.array([i])),
                self.lost,
            )
            heapq.heappush(self.queues[self.nodes.tree[i]], candidate)

    def split_best(self) -> Level:
        """Split the best leaf of each tree; return the level of their children."""
        max_leaves = self.training.settings.max_leaves
        chosen = []
        for tree, queue in enumerate(self.queues):
            if queue and (not max_leaves or self.n_leaves[tree] < max_leaves):
                chosen.append(heapq.heappop(queue))
                self.n_leaves[tree] += 1
        first = self.training.n_outputs + 2 * len(self.split)
        if not chosen:
            return Level(first, 0)
        for i, candidate in enumerate(chosen):
            child = first + 2 * i
            self.split[candidate.node] = candidate.decision, child
            self.totals[child], self.totals[child + 1] = candidate.sides
        decisions = joined([candidate.decision for candidate in chosen])
        self.report_split(first, [candidate.node for candidate in chosen], decisions)
        self.sides = np.concatenate([candidate.sides for candidate in chosen])
        self.histograms = np.stack([candidate.histogram for candidate in chosen])
        self.parents = np.arange(len(chosen))
        self.lost = min((candidate.lost for candidate in chosen), key=len)
        self.sums.parents = {
            name: np.stack([sums[candidate.node] for candidate in chosen])
            for name, sums in self.reported.items()
            if all(candidate.node in sums for candidate in chosen)
        }
        nodes = joined([candidate.nodes for candidate in chosen])
        everything = np.arange(len(chosen))
        self.nodes = nodes.children(everything, decisions.feature, self.sides, self.training)
        return Level(first, 2 * len(chosen))

    def report_split(self, first: int, parents: list[int], decisions: Decisions) -> None:
        """Add splits to those that the next request reports; ``first`` is the first child."""
        reported = self.update.get("parents", ())
        if not reported:
            self.report(first, decisions)
        else:
            for name, array in decisions._asdict().items():
                self.update[name] = np.concatenate([self.update[name], array])
        self.update["parents"] = (*reported, *parents)

    def can_be_split(self) -> bool:
        """Return whether any of the open nodes may be split again."""
        settings = self.training.settings
        shallow = self.nodes.depth < (settings.max_depth or np.inf)
        few = self.n_leaves[self.nodes.tree] < (settings.max_leaves or np.inf)
        return bool((shallow & few).any())

    def finish(self) -> Round:
        """Return the trees of the round."""
        n_nodes = self.training.n_outputs + 2 * len(self.split)
        decisions, left = leaves(n_nodes, self.n_bytes), np.full(n_nodes, -1, np.int32)
        sums = np.zeros((n_nodes, 2), np.int64)
        for node, total in self.totals.items():
            if node not in self.split:
                sums[node] = total
        for node, (decision, child) in self.split.items():
            columns: tuple[NDArray[Any], ...] = decisions
            split: tuple[NDArray[Any], ...] = decision
            for column, of_node in zip(columns, split, strict=True):
                column[node] = of_node[0]
            left[node] = child
        return finish_round(decisions, left, sums, self.training)
