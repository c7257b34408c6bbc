"""Federated XGBoost as F describes it: one client, one node and one path at a time.

Written from F's text (§3.2, §3.3, Algorithms 1 and 2), in plain Python and float64, without
anything from `fedlib`, to compare `fedlib.boosting` with it. Sums are rounded once (`math.fsum`),
so that splits with equal sums have equal gains.

F's text leaves some points open. `Reading` has a field for each of them; its defaults are those of
`fedlib.FederatedXGBClassifier`. Three points are corrected as in XGBoost: log-odds move against the
gradients, a leaf has λ in its denominator, and a gain of at most 1e-6 is no gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

MIN_GAIN = 1e-6  # in XGBoost's count, without the ½ of (3.1)

Rule = tuple[int, float]  # a feature and a threshold
Split = tuple[float, Rule]  # a gain (3.1) and its split


@dataclass(frozen=True)
class Parameters:
    """The parameters of a run. F names S (``n_candidates``) and λ; the others are XGBoost's."""

    n_trees: int = 3
    n_candidates: int = 10
    max_depth: int = 3
    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    min_child_weight: float = 1.0


@dataclass(frozen=True)
class Reading:
    """What F's text leaves open, and what another implementation may therefore do otherwise.

    Attributes
    ----------
    leaf : {"all", "ended", "parent", "path", "alone"}
        What determines the value of a leaf.

        - ``"all"``: §3.2. The sums of all clients' rows in the leaf.
        - ``"ended"``: Algorithms 1 and 2 as written. A merged node stores the sums of those clients
          whose tree ends in it. Algorithm 2 adds what the parent stores, and not what the nodes
          above the parent store, because its recursion passes on ``node.residuals`` alone.
        - ``"parent"``: Algorithm 2 alone. Every node stores the sums of all its rows.
        - ``"path"``: as ``"ended"``, but Algorithm 2 sums over the whole path, as its names SUM_R
          and SUM_C suggest.
        - ``"alone"``: as ``"ended"``, but a leaf counts alone, so that rows of clients that ended
          further up are lost.
    update : {"server", "client"}
        From which leaves a client updates its predictions after a tree: from the server's (§3.2),
        or from those of its own tree, if trees are merged after the last one only (§3.3).
    votes : {"node", "client", "equal"}
        By what a client's gains are weighted in (3.3): by its rows in the node, by all its rows, or
        not at all.
    start : {"rows", "clients"}
        Whether the clients' initial probabilities are weighted by their rows.
    ties : {"first", "last"}
        Of equal splits, whether the lowest or the highest feature and threshold wins.
    equal : {"right", "left"}
        The side of a row whose value equals the threshold. In F, lower values go left and greater
        ones right. No value of a client equals a midpoint between two of its own values, so this
        matters from two clients on.
    midpoint : {"float32", "float64"}
        The precision of the midpoint between two values. It decides about the same rows: if values
        have one decimal, the midpoint between 1.6 and 1.8 is, but for rounding, the value 1.7.
    limit : {"client", "none"}
        Whether ``min_child_weight`` limits what a client proposes. F does not mention it.
    """

    leaf: Literal["all", "ended", "parent", "path", "alone"] = "all"
    update: Literal["server", "client"] = "server"
    votes: Literal["node", "client", "equal"] = "node"
    start: Literal["rows", "clients"] = "rows"
    ties: Literal["first", "last"] = "first"
    equal: Literal["right", "left"] = "right"
    midpoint: Literal["float32", "float64"] = "float32"
    limit: Literal["client", "none"] = "client"

    def goes_left(self, values: np.ndarray, threshold: float) -> np.ndarray:
        """Return which values of a split's feature go left."""
        return values < threshold if self.equal == "right" else values <= threshold

    def halfway(self, below: float, above: float) -> float:
        """Return the threshold between two adjacent values."""
        middle = (below + above) / 2
        return float(np.float32(middle)) if self.midpoint == "float32" else middle

    def order(self, split: Split) -> tuple[float, int, float]:
        """Return the key that sorts splits: the largest gain first, then the ties."""
        gain, (feature, threshold) = split
        sign = 1 if self.ties == "first" else -1
        return -gain, sign * feature, sign * threshold


@dataclass
class Node:
    """A node of a client's tree or of the merged tree; an output node has no rule.

    ``residuals`` and ``cover`` are the sums of gradients and hessians that the node stores. A
    client has no node (None) where it has no rows, as in F's Figure 3.1.
    """

    residuals: float = 0.0
    cover: float = 0.0
    rule: Rule | None = None
    left: Node | None = None
    right: Node | None = None


@dataclass
class Client:
    """A client: its rows, its predictions, and the tree that it grows at present.

    ``waiting`` holds the node and the rows of each path that is not decided yet.
    """

    X: np.ndarray
    y: np.ndarray
    parameters: Parameters
    reading: Reading
    log_odds: np.ndarray = field(init=False)
    g: np.ndarray = field(init=False)
    h: np.ndarray = field(init=False)
    root: Node | None = field(init=False)
    waiting: dict[str, tuple[Node, np.ndarray]] = field(init=False)
    ended: list[tuple[Node, np.ndarray]] = field(init=False)

    def begin(self, log_odds: float) -> None:
        """Start from the same prediction for all rows."""
        self.log_odds = np.full(len(self.y), log_odds)

    def begin_tree(self) -> None:
        """Compute the residuals; all rows are in the root."""
        p = 1 / (1 + np.exp(-self.log_odds))
        self.g, self.h = p - self.y, p * (1 - p)
        self.waiting, self.ended = {}, []
        self.root = self.add_node("", np.arange(len(self.y)))

    def add_node(self, path: str, rows: np.ndarray) -> Node | None:
        """Return a node with these rows; None without rows."""
        if not len(rows):
            return None
        node = Node(math.fsum(self.g[rows]), math.fsum(self.h[rows]))
        self.waiting[path] = node, rows
        return node

    def next_path(self) -> str | None:
        """Return the first of the waiting paths in lexicographic order; None if there is none."""
        return min(self.waiting, default=None)

    def best_splits(self, path: str) -> list[Split]:
        """Return the S splits of a node with the largest gains (3.1), γ being 0."""
        node, rows = self.waiting[path]
        if len(path) == self.parameters.max_depth:
            return []
        splits = []
        for feature in range(self.X.shape[1]):
            column = self.X[rows, feature]
            values = np.unique(column)
            for below, above in pairwise(values):
                gain = self.gain(node, rows[column <= below], rows[column >= above])
                if 2 * gain > MIN_GAIN:
                    splits.append((gain, (feature, self.reading.halfway(below, above))))
        return sorted(splits, key=self.reading.order)[: self.parameters.n_candidates]

    def gain(self, node: Node, left: np.ndarray, right: np.ndarray) -> float:
        """Return the gain of a split (3.1) by the similarity scores (3.2); 0 if not allowed."""
        covers = [math.fsum(self.h[side]) for side in (left, right)]
        if self.reading.limit == "client" and min(covers) < self.parameters.min_child_weight:
            return 0.0
        reg_lambda = self.parameters.reg_lambda
        left_score, right_score = (
            math.fsum(self.g[side]) ** 2 / (cover + reg_lambda)
            for side, cover in zip((left, right), covers, strict=True)
        )
        return 0.5 * (left_score + right_score - node.residuals**2 / (node.cover + reg_lambda))

    def decide(self, path: str, rule: Rule | None) -> None:
        """Split a node by the server's rule; without a rule, it becomes an output node."""
        node, rows = self.waiting.pop(path)
        node.rule = rule
        if rule is None:
            self.ended.append((node, rows))
            return
        is_left = self.reading.goes_left(self.X[rows, rule[0]], rule[1])
        node.left = self.add_node(path + "L", rows[is_left])
        node.right = self.add_node(path + "R", rows[~is_left])

    def update(self, model: Model) -> None:
        """Update the predictions after a tree."""
        if self.reading.update == "server":
            outputs = np.array([model.tree_output(row, model.trees[-1]) for row in self.X])
            self.log_odds = self.log_odds + self.parameters.learning_rate * outputs
            return
        for node, rows in self.ended:
            output = -node.residuals / (node.cover + self.parameters.reg_lambda)
            self.log_odds[rows] += self.parameters.learning_rate * output


@dataclass
class Model:
    """The merged trees."""

    trees: list[Node]
    log_odds: float
    parameters: Parameters
    reading: Reading

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return each row's probability of the positive class: PREDICT of Algorithm 2."""
        outputs = [math.fsum(self.tree_output(row, tree) for tree in self.trees) for row in X]
        log_odds = self.log_odds + self.parameters.learning_rate * np.array(outputs)
        return 1 / (1 + np.exp(-log_odds))

    def tree_output(
        self, row: np.ndarray, node: Node, sum_r: float = 0.0, sum_c: float = 0.0
    ) -> float:
        """Return a tree's output for a row: RECURSIVE_TREE_OUTPUT of Algorithm 2."""
        if node.rule is None:
            return self.leaf_value(node, sum_r, sum_c)
        feature, threshold = node.rule
        child = node.left if self.reading.goes_left(row[feature], threshold) else node.right
        assert child is not None
        if self.reading.leaf == "path":
            return self.tree_output(row, child, sum_r + node.residuals, sum_c + node.cover)
        return self.tree_output(row, child, node.residuals, node.cover)

    def leaf_value(self, node: Node, sum_r: float, sum_c: float) -> float:
        """Return line 3 of RECURSIVE_TREE_OUTPUT, with the minus sign and the λ that it lacks."""
        if self.reading.leaf in ("all", "alone"):
            sum_r, sum_c = 0.0, 0.0
        reg_lambda = self.parameters.reg_lambda
        return -(sum_r + node.residuals) / (sum_c + node.cover + reg_lambda)


def merge(nodes: Sequence[Node | None], reading: Reading) -> Node | None:
    """Merge the nodes of all clients on one path: RECURSIVE_TREE_NORMALIZER of Algorithm 1."""
    present = [node for node in nodes if node is not None]
    if not present:
        return None
    merged = Node()
    left, right = [], []
    storing = present  # for "parent", every node stores its sums
    if reading.leaf != "parent":
        storing = [node for node in present if node.rule is None]
    merged.residuals = math.fsum(node.residuals for node in storing)
    merged.cover = math.fsum(node.cover for node in storing)
    for node in present:
        if node.rule is not None:
            left.append(node.left)
            right.append(node.right)
            merged.rule = node.rule
    merged.left = merge(left, reading)
    merged.right = merge(right, reading)
    return merged


def choose(proposals: Sequence[tuple[float, Sequence[Split]]], reading: Reading) -> Rule | None:
    """Return the split with the largest sum (3.3); a proposal is a client's weight and splits."""
    votes: dict[Rule, list[float]] = {}
    for weight, splits in proposals:
        for gain, rule in splits:
            votes.setdefault(rule, []).append(weight * gain)
    summed = [(math.fsum(each), rule) for rule, each in votes.items()]
    return min(summed, key=reading.order)[1] if summed else None


def grow(clients: Sequence[Client], reading: Reading) -> None:
    """Grow one tree at all clients: the lexicographically first path of any client is next."""
    for client in clients:
        client.begin_tree()
    while paths := [path for client in clients if (path := client.next_path()) is not None]:
        path = min(paths)
        taking_part = [client for client in clients if path in client.waiting]
        proposals = []
        for client in taking_part:
            rows_in_node = len(client.waiting[path][1])
            weights = {"node": rows_in_node, "client": len(client.y), "equal": 1}
            proposals.append((weights[reading.votes], client.best_splits(path)))
        rule = choose(proposals, reading)
        for client, (_, splits) in zip(taking_part, proposals, strict=True):
            ends = not splits and reading.leaf in ("ended", "path", "alone")
            client.decide(path, None if ends else rule)


def fit(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], parameters: Parameters, reading: Reading
) -> Model:
    """Grow and merge all trees of clients with these rows (X, y); y is 0 or 1."""
    clients = [Client(np.asarray(X, float), np.asarray(y), parameters, reading) for X, y in parts]
    weights = [len(client.y) if reading.start == "rows" else 1 for client in clients]
    share = np.average([client.y.mean() for client in clients], weights=weights)
    model = Model([], math.log(share / (1 - share)), parameters, reading)
    for client in clients:
        client.begin(model.log_odds)
    for _ in range(parameters.n_trees):
        grow(clients, reading)
        tree = merge([client.root for client in clients], reading)
        assert tree is not None
        model.trees.append(tree)
        for client in clients:
            client.update(model)
    return model
