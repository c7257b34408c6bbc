"""Boosted trees: their nodes, the shape of a tree, and predictions.

The nodes of a tree are numbered level by level, and the two children of a node have adjacent
numbers. So the shape of a tree follows from which nodes are split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pandas as pd

from fedlib.boosting.objectives import OBJECTIVES, Parameter, check_parameter, n_outputs_of
from fedlib.boosting.rules import RULES, RulesName
from fedlib.core.array_fields import OF_CLIENT, Checked, check_indices
from fedlib.core.array_types import Bools, Bytes, Floats, Floats32, Ints, Ints32
from fedlib.core.messages import Array
from fedlib.kernels.forests import Forest, add_children, sum_trees
from fedlib.kernels.histograms import left_children


@dataclass(frozen=True)
class Tree(Checked):
    """One tree. Every array has one entry per node, the root first.

    Attributes
    ----------
    feature : array (n_nodes,) of int32
        The feature that splits the node; -1 for a leaf.
    threshold : array (n_nodes,) of float32
        Rows with a smaller value go left, all others right.
    missing_left : array (n_nodes,) of bool
        Whether rows without a value go left.
    left : array (n_nodes,) of int32
        The left child, -1 for a leaf. The right child is the next node.
    value : array (n_nodes,) of float32
        What a leaf adds to the margin of its rows (log-odds for classes), including the learning
        rate; 0 for other nodes.
    gain : array (n_nodes,) of float32
        The split's gain over all clients' rows as XGBoost defines it, twice (3.1) without γ; 0 for
        a leaf.
    cover : array (n_nodes,) of float32
        The sum of the hessians of all clients' rows.
    weight : array (n_nodes,) of float32
        −G/(H + λ) of all clients' rows.
    right : array (n_nodes, n_bytes) of uint8
        The sets of categories that go right, where the threshold is
        ``fedlib.kernels.buckets.BY_CATEGORY``: category c is bit c % 8 of byte c // 8.

    Examples
    --------
    A tree with one split. The rows 0.5 and 1.5 reach its left and its right leaf:

    >>> float32, bools = lambda *values: np.array(values, np.float32), np.zeros(3, bool)
    >>> feature = np.array([0, -1, -1], np.int32)
    >>> tree = Tree(feature, float32(1, 0, 0), bools, children(feature), float32(0, -0.25, 0.25),
    ...             float32(2, 0, 0), float32(4, 2, 2), float32(0, -0.5, 0.5), no_sets(3))
    >>> len(tree), tree.depth
    (3, 1)
    >>> predict_margins([tree], 0.0, np.array([[0.5], [1.5]], np.float32))
    array([-0.25,  0.25], dtype=float32)
    """

    feature: Annotated[Ints32, Array("int32", ("nodes",), ge=-1, below=OF_CLIENT)]
    threshold: Annotated[Floats32, Array("float32", ("nodes",))]
    missing_left: Annotated[Bools, Array("bool", ("nodes",))]
    left: Annotated[Ints32, Array("int32", ("nodes",), ge=-1, below="nodes")]
    value: Annotated[Floats32, Array("float32", ("nodes",))]
    gain: Annotated[Floats32, Array("float32", ("nodes",))]
    cover: Annotated[Floats32, Array("float32", ("nodes",))]
    weight: Annotated[Floats32, Array("float32", ("nodes",))]
    right: Annotated[Bytes, Array("uint8", ("nodes", "bytes"))]

    def __len__(self) -> int:
        return len(self.feature)

    def check(self, n_features: int) -> None:
        """Check that the nodes form a tree, so that no kernel reads outside of the arrays.

        Raises
        ------
        ValueError
            When a feature is not in 0..n_features - 1, the nodes do not form one tree, or a child
            is not the one that follows from the splits.
        """
        check_indices(self, {OF_CLIENT: n_features})
        level_starts(self.feature)
        if (self.left != children(self.feature)).any():
            raise ValueError("the children of a tree's nodes do not follow from its splits")

    @property
    def depth(self) -> int:
        """The count of splits on the longest path from the root to a leaf."""
        return len(level_starts(self.feature)) - 2

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per node and one column per attribute.

        ``right`` is the right child, and ``categories`` contains the categories that go right.
        """
        columns = dict(vars(self))
        columns["right"] = np.where(self.left < 0, -1, self.left + 1)
        if self.right.size:
            columns["categories"] = self.categories
        return pd.DataFrame(columns)

    @property
    def categories(self) -> list[list[int]]:
        """The categories of each node that go right; empty where numbers are compared."""
        bits = np.unpackbits(self.right, axis=1, bitorder="little")
        return [np.flatnonzero(row).tolist() for row in bits]


@dataclass(frozen=True)
class BoostedTrees:
    """The model: all trees and the rule for new rows.

    Attributes
    ----------
    trees : list of Tree
        The trees of the first round, those of the second round, …. A round has one tree per output.
    classes : list of bool, int, float or str
        The classes in ascending order; of two, the second one is the positive class. Empty for a
        regression.
    base_scores : list of float
        The prediction before the first tree, one per output: for two classes, the fraction of the
        positive rows by weight.
    base_margins : list of float
        The margins of these predictions, from which the first trees start.
    learning_rate : float
        The learning rate on which the clients agreed, or the first one of several.
    n_features : int
    features : tuple of str
        The features' names; empty if they have none.
    losses : list of float
        The mean loss over all rows before the first round of the last run and after each of its
        rounds but the last.
    objective : str
        XGBoost's name of the objective.
    parameter : float or tuple of float
        The parameter of the objective; the levels of quantiles or expectiles.
    metrics : tuple of str
        The metrics of the rows for validation.
    evaluations : list of lists of float
        The values of each metric after each round; NaN for rounds before a run that continues a
        model without it. With several sets of rows, all metrics of the first set, then those of the
        second set, ….
    evaluation_errors : list of lists of float
        The error bounds of these values; empty for a metric that is exact.
    eval_sets : tuple of str
        The names of the sets of rows for validation; empty if they are one set.
    best_round : int or None
        The round with the best value of the last metric of the last set, the first of which is 0.
    levels : tuple of tuple of str or None
        The categories of each feature, None for a feature of numbers; empty if all features are
        numbers.
    seed : int
        The seed by which rows and features were drawn, also for the rounds that a later run adds;
        0 if none were drawn.
    ended_by : str
        The parameter that ended the last run: ``"n_trees"``, ``"tol"``,
        ``"early_stopping_rounds"`` or ``"callback"``.
    has_noise : bool
        Whether the sums at the nodes have noise.
    has_margins : bool
        Whether the rows of the training started from base margins of their own.
    withheld : tuple of int
        The features of which training rows may have other texts than the categories, because
        clients withhold rare ones or the schema allows others.
    xgboost_rules : str
        The release line of XGBoost whose rules the trees follow; ``"3.2"`` in the files of versions
        that knew no others.
    """

    trees: list[Tree]
    classes: list[bool | int | float | str]
    base_scores: list[float]
    base_margins: list[float]
    learning_rate: float
    n_features: int
    features: tuple[str, ...]
    losses: list[float]
    objective: str = "binary:logistic"
    parameter: Parameter = 0.0
    metrics: tuple[str, ...] = ()
    evaluations: list[list[float]] = field(default_factory=list)
    evaluation_errors: list[list[float]] = field(default_factory=list)
    eval_sets: tuple[str, ...] = ()
    best_round: int | None = None
    levels: tuple[tuple[str, ...] | None, ...] = ()
    seed: int = 0
    ended_by: str = "n_trees"
    has_noise: bool = False
    has_margins: bool = False
    withheld: tuple[int, ...] = ()
    xgboost_rules: RulesName = "3.2"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {list(OBJECTIVES)}; got {self.objective!r}")
        if self.xgboost_rules not in RULES:
            raise ValueError(
                f"xgboost_rules must be one of {list(RULES)}; got {self.xgboost_rules!r}"
            )
        if OBJECTIVES[self.objective].has_several_numbers:
            check_parameter(self.objective, self.parameter)
        n_outputs = n_outputs_of(self.objective, self.parameter, len(self.classes))
        if self.n_outputs != n_outputs or len(self.base_scores) != n_outputs:
            raise ValueError(
                f"a model for {self.objective} with {len(self.classes)} classes must have"
                f" {n_outputs} base_margins and base_scores; got {self.n_outputs} and"
                f" {len(self.base_scores)}"
            )
        if len(self.trees) % self.n_outputs:
            raise ValueError(f"{len(self.trees)} trees for {self.n_outputs} outputs")
        for tree in self.trees:
            tree.check(self.n_features)

    @property
    def n_outputs(self) -> int:
        """The count of margins per row, and of trees per round."""
        return len(self.base_margins)

    @property
    def n_rounds(self) -> int:
        """The count of rounds."""
        return len(self.trees) // self.n_outputs

    def staged_margins(
        self, X: Floats32, base_margin: Floats32 | None = None
    ) -> Iterator[Floats32]:
        """Yield the margins (n_rows, n_outputs) after each round; see `margins`."""
        margins = self._first_margins(X, base_margin)
        for k in range(0, len(self.trees), self.n_outputs):
            margins = margins.copy()
            for output, tree in enumerate(self.trees[k : k + self.n_outputs]):
                margins[:, output] = add_margins([tree], margins[:, output], X)
            yield margins

    def margins(self, X: Floats32, base_margin: Floats32 | None = None) -> Floats32:
        """Return the margins (n_rows, n_outputs) of rows (n_rows, n_features).

        They start from ``base_margin`` (n_rows, n_outputs), or by default from `base_margins`.

        Raises
        ------
        ValueError
            When the rows have another count of features.
        """
        margins = self._first_margins(X, base_margin)
        for output in range(self.n_outputs):
            trees = self.trees[output :: self.n_outputs]
            margins[:, output] = add_margins(trees, margins[:, output], X)
        return margins

    def predictions(self, margins: Floats32) -> Floats:
        """Return the predictions of margins (n_rows, n_outputs).

        They have one column per class, and for a regression one column.
        """
        response = OBJECTIVES[self.objective].response(margins)
        if len(self.classes) == 2 and self.n_outputs == 1:
            return np.column_stack([1 - response, response])
        return response

    def _first_margins(self, X: Floats32, base_margin: Floats32 | None) -> Floats32:
        if X.shape[1] != self.n_features:
            raise ValueError(f"X must have the {self.n_features} features of fit; got {X.shape[1]}")
        if base_margin is not None:
            return base_margin.copy()
        return np.tile(np.array(self.base_margins, np.float32), (len(X), 1))


def no_sets(n_nodes: int) -> Bytes:
    """Return the sets of categories of nodes without any: an array (n_nodes, 0)."""
    return np.zeros((n_nodes, 0), np.uint8)


def stack_sets(sets: Sequence[Bytes]) -> Bytes:
    """Return sets of categories (n, n_bytes) one below the other, as wide as the widest.

    Examples
    --------
    >>> stack_sets([np.ones((1, 2), np.uint8), no_sets(2)]).tolist()
    [[1, 1], [0, 0], [0, 0]]
    """
    width = max((one.shape[1] for one in sets), default=0)
    stacked = np.zeros((sum(map(len, sets)), width), np.uint8)
    end = 0
    for one in sets:
        start, end = end, end + len(one)
        stacked[start:end, : one.shape[1]] = one
    return stacked


def children(feature: Ints32, first: int = 0, n_roots: int = 1) -> Ints32:
    """Return the left child of each node of a level or of a whole tree; -1 for leaves.

    Parameters
    ----------
    feature : array (n_nodes,) of int32
        The feature that splits each node; -1 for a leaf.
    first : int, default=0
        The number of the first node: 0 for a whole tree or the root's level, otherwise the number
        of the level's first node.
    n_roots : int, default=1
        The count of roots, the nodes 0, 1, …, if trees that grow side by side are numbered
        together.

    Examples
    --------
    >>> children(np.array([4, -1, 2, -1, -1]))
    array([ 1, -1,  3, -1, -1], dtype=int32)

    The second level of this tree alone:

    >>> children(np.array([-1, 2]), first=1)
    array([-1,  3], dtype=int32)
    """
    left: Ints32 = left_children(feature, first + len(feature) if first else n_roots)
    return left


def level_starts(feature: Ints32) -> list[int]:
    """Return the number of the first node of each level, and at the end the count of nodes.

    Parameters
    ----------
    feature : array (n_nodes,) of int32
        The feature that splits each node; -1 for a leaf.

    Raises
    ------
    ValueError
        When there are too few or too many nodes to form a tree.

    Examples
    --------
    >>> level_starts(np.array([4, -1, 2, -1, -1]))
    [0, 1, 3, 5]
    """
    n_nodes = (1 + 2 * np.cumsum(feature >= 0)).tolist()  # with the children of nodes so far
    starts = [0, 1]
    while starts[-1] <= len(n_nodes) and n_nodes[starts[-1] - 1] > starts[-1]:
        starts.append(n_nodes[starts[-1] - 1])
    if starts[-1] != len(feature):
        raise ValueError(f"{len(feature)} nodes, but the splits make {starts[-1]}")
    return starts


def node_totals(feature: Ints32, sums: Ints) -> Ints:
    """Return the sums over each node and all nodes below it.

    Parameters
    ----------
    feature : array (n_nodes,) of int32
        The feature that splits each node; -1 for a leaf.
    sums : array (n_nodes, ...) of int64
        The sums at each node itself.

    Examples
    --------
    >>> node_totals(np.array([4, -1, -1]), np.array([0, 2, 3]))
    array([5, 2, 3])
    """
    totals = np.array(sums, np.int64, order="C")  # a copy
    add_children(children(feature), totals.reshape(len(feature), -1))
    return totals


def tree_totals(left: Ints32, n_trees: int, sums: Ints) -> Ints:
    """Return the sums (n_trees, 2) over the nodes of each of several trees numbered together.

    Parameters
    ----------
    left : array (n_nodes,) of int32
        The left child of each node, -1 for a leaf. The roots are the first nodes.
    n_trees : int
    sums : array (n_nodes, 2) of int64
        The sums at each node itself.

    Examples
    --------
    Two trees; the first one has a split:

    >>> tree_totals(np.array([2, -1, -1, -1]), 2, np.array([[0], [5], [1], [2]]))
    array([[3],
           [5]])
    """
    totals = np.array(sums, np.int64, order="C")  # a copy
    add_children(left, totals)
    return totals[:n_trees]


def predict_margins(trees: Sequence[Tree], base_margin: float, X: Floats32) -> Floats32:
    """Return the log-odds of rows by the trees of one output, summed in float32 as XGBoost does.

    Parameters
    ----------
    trees : sequence of Tree
    base_margin : float
        The log-odds before the first tree.
    X : array (n_rows, n_features) of float32
        NaN is a missing value.

    Returns
    -------
    margins : array (n_rows,) of float32
    """
    return add_margins(trees, np.full(len(X), base_margin, np.float32), X)


def add_margins(trees: Sequence[Tree], margins: Floats32, X: Floats32) -> Floats32:
    """Return margins (n_rows,) plus the values of the leaves that rows reach, in float32."""
    margins = np.array(margins, np.float32, order="C")
    if trees:
        forest = Forest(
            start=np.append(0, np.cumsum([len(tree) for tree in trees])),
            feature=np.concatenate([tree.feature for tree in trees]),
            threshold=np.concatenate([tree.threshold for tree in trees]),
            missing_left=np.concatenate([tree.missing_left for tree in trees]),
            left=np.concatenate([tree.left for tree in trees]),
            value=np.concatenate([tree.value for tree in trees]),
            right=stack_sets([tree.right for tree in trees]),
        )
        sum_trees(np.ascontiguousarray(X), forest, margins)
    return margins
