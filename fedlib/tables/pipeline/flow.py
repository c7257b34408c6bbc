"""The server's side of a pipeline: fit the preprocessing, then run the protocol.

Pipelines with a schema: the rules follow from what the sites have agreed on, and from sums.

The columns, their kinds, categories and limits are facts of the schema, so no request asks for
them. Only means and spreads depend on rows. They are sums over the clients, which can be masked and
have noise, like those of the protocol after them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import pandas as pd

from fedlib.core.aggregation import Aggregation, exclude
from fedlib.core.array_types import Bytes, Floats, Ints
from fedlib.core.column_names import check_names, listed
from fedlib.core.columns import EMPTY, NUMBER, TEXT, read_columns
from fedlib.core.points import Bounds
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.secure.points import agree_on_bounded_features
from fedlib.protection.sums import NoisySums
from fedlib.tables.components.flow import (
    PCAModel,
    check_n_components,
    component_names,
    find_scatter,
    principal_components,
)
from fedlib.tables.pipeline.messages import (
    KEPT_TEXT,
    Gaps,
    Preprocess,
    PreprocessAndProject,
    Unknown,
)
from fedlib.tables.schema.cells import Column
from fedlib.tables.summary.flow import find_categories, find_extremes, find_moments, find_quantiles
from fedlib.tables.summary.from_schema import UNLIMITED, sum_between
from fedlib.tables.summary.messages import (
    ColumnDescription,
    Columns,
    TableView,
    agree_on_columns,
    describe,
    repeat,
)
from fedlib.tables.summary.private import SumChosenColumnsNoisily, noisy_moments

Model = TypeVar("Model")
Limits = dict[str, tuple[float, float]]

QUARTILES = (0.25, 0.5, 0.75)
EPS = np.finfo(np.float64).eps
NEGLIGIBLE = 2.0**-28  # of the largest part of a component; see `PreprocessAndProject.marks`


class Rules(NamedTuple):
    """The choices of a pipeline; see `FederatedPipeline`.

    Attributes
    ----------
    scale, impute, encode : str or None
    categorical : tuple of str
    unknown : str
    bounds : Bounds
    rank_error : float
    max_categories, min_category_count : int
    gaps_allowed : bool
        Whether the protocol accepts gaps.
    text_allowed : bool
        Whether the protocol accepts text.
    n_components : int, float or None
        The principal components that replace the columns.
    """

    scale: str | None
    impute: str | None
    encode: str | None
    categorical: tuple[str, ...]
    unknown: Unknown
    bounds: Bounds
    rank_error: float
    max_categories: int
    min_category_count: int
    gaps_allowed: bool
    text_allowed: bool
    n_components: float | None = None

    @property
    def gaps(self) -> Gaps:
        """What happens to gaps."""
        if self.impute is None:
            return "keep"
        return "drop" if self.impute == "drop" else "fill"

    @property
    def view(self) -> TableView:
        """What clients do to their tables before they describe them."""
        return TableView(self.categorical, self.gaps == "drop")

    def kinds(self, given: Bytes) -> Bytes:
        """Return the kinds of columns in `Preprocess`."""
        if self.encode is not None or not self.text_allowed:
            return given
        return np.where(given == TEXT, KEPT_TEXT, given).astype(np.uint8)

    def fitted(
        self,
        names: tuple[str, ...],
        kinds: Bytes,
        gaps: Gaps,
        values: tuple[Floats, Floats, Floats],
        categories: Sequence[Sequence[str]],
    ) -> Preprocess:
        """Return the preprocessing with these fills, centres and spreads, and categories."""
        lengths = np.array([len(one) for one in categories], np.int64)
        everything = tuple(name for one in categories for name in one)
        return Preprocess(
            names, kinds, self.categorical, gaps, *values, lengths, everything, self.unknown
        )


@dataclass(frozen=True)
class PipelineModel(Generic[Model]):
    """The fitted preprocessing and the protocol's model.

    Attributes
    ----------
    rules : Preprocess
        The fitted preprocessing.
    model : object
        The model of the protocol.
    """

    rules: Preprocess | PreprocessAndProject
    model: Model


def pipeline(
    rules: Rules,
    protocol: Callable[[Limits], Flow[Model]],
    fitted: Preprocess | None,
    columns: Sequence[Column] | None = None,
    protected: bool = False,
    aggregation: Aggregation | None = None,
) -> Flow[PipelineModel[Model]]:
    """Return the server flow: fit the preprocessing, send it to the clients, run the protocol.

    With the columns of a schema, the preprocessing follows from them and from sums; otherwise,
    clients describe their columns.

    Parameters
    ----------
    rules : Rules
    protocol : callable
        Returns the flow of the protocol for the limits of the transformed columns, by name. Without
        a schema, there are none.
    fitted : Preprocess or None
        The preprocessing, if the protocol continues a model.
    columns : sequence of Column, optional
        The features of the schema, as the run applies them.
    protected : bool, default=False
        Whether the server sees only sums over the clients, or noise; needs ``columns``.
    aggregation : Aggregation, optional
        Adds up the columns; by default in the clear.
    """
    begins, n_components = fitted is None, rules.n_components
    aggregation, limits = aggregation or Aggregation(), Limits()
    if columns is not None:
        names = tuple(column.name for column in columns)
        check_names(names, () if fitted is None else fitted.features)
        aggregation.features = names
        yield from agree_on_bounded_features(aggregation, len(names))
    if fitted is None and columns is not None:
        fitted = yield from _fit_rules(columns, rules, protected, aggregation)
    elif fitted is None:
        fitted = yield from repeat(lambda: preprocess(rules))
    yield fitted
    if columns is not None and (begins or n_components is None):
        limits = _limits_after(fitted, *_ends(columns))
    if begins and n_components is not None:
        ends = np.array(list(limits.values())).T
        bounds = ends if protected else None
        fitted, found = yield from project_rows(fitted, n_components, aggregation, bounds)
        if columns is not None:
            limits = dict(zip(found.names, found.limits(*ends).T.tolist(), strict=True))
    model = yield from protocol(limits)
    return PipelineModel(fitted, model)


def project_rows(
    fitted: Preprocess, n_components: float, aggregation: Aggregation, bounds: Floats | None = None
) -> Flow[tuple[PreprocessAndProject, PCAModel]]:
    """Return the flow that finds the principal components of the clients' preprocessed rows.

    It sends them to the clients, which use them from then on.

    Parameters
    ----------
    fitted : Preprocess
        The rules that the clients have.
    n_components : int or float
        As in `fedlib.FederatedPCA`.
    aggregation : Aggregation
    bounds : array (2, n_columns), optional
        The limits of the preprocessed columns, which masked and noisy sums need.

    Raises
    ------
    ValueError
        When there are fewer columns or rows than components.
    """
    check_n_components(n_components, fitted.n_columns, "pca")
    found = yield from find_scatter(aggregation, fitted.n_columns, bounds)
    model = principal_components(*found, n_components)
    if bounds is None:  # a site with a minimum count declines what only adds rounding errors
        weights = np.abs(model.components) * np.sqrt(np.diagonal(found[2]).clip(0))
        counts = weights >= NEGLIGIBLE * weights.max(axis=1, keepdims=True)
        model = replace(model, components=np.where(counts, model.components, 0.0))
    rules = msgspec.structs.asdict(fitted)
    projected = PreprocessAndProject(**rules, mean=model.mean, components=model.components)
    yield projected
    return projected, model


def preprocess(rules: Rules) -> Flow[Preprocess]:
    """Return the flow that fits the preprocessing.

    It asks only for the statistics that the rules need.

    Raises
    ------
    ValueError
        When a column contains text but is not encoded, or has no values.
    """
    view = rules.view
    described = yield from describe(view)
    described = yield from _without_gaps(described, rules)
    columns = agree_on_columns(described)
    check_columns(columns, rules)
    numbers = columns.of_kind(NUMBER)
    fill = np.zeros(len(columns.names))
    if rules.gaps == "fill":
        fill[numbers] = yield from _find_fill(view, described, numbers, rules)
        view = view._replace(fill_columns=numbers, fill_values=fill[numbers])
        if rules.scale is not None:
            described = yield from describe(view)  # the counts include the filled gaps
    centre, spread = yield from _find_scale(view, described, columns, numbers, rules)
    kinds = rules.kinds(columns.kinds)
    texts = np.flatnonzero(kinds == TEXT)
    categories, *_ = yield from find_categories(
        view, described, texts, rules.max_categories, rules.min_category_count
    )
    if len(texts) == len(kinds) and not any(categories):
        raise ValueError(
            f"no feature is left: no category of {', '.join(map(repr, columns.names[:20]))} has"
            f" min_category_count={rules.min_category_count} rows; a smaller count keeps rarer ones"
        )
    names = columns.names if columns.named else ()
    return rules.fitted(names, kinds, rules.gaps, (fill, centre, spread), categories)


def check_columns(columns: Columns, rules: Rules) -> None:
    """Raise ValueError when the rules do not suit the columns."""
    empty, texts = columns.of_kind(EMPTY), columns.of_kind(TEXT)
    if len(empty) and columns.n_rows == 0:
        after = " after rows with gaps are dropped" if rules.gaps == "drop" else ""
        raise ValueError(f"the clients have no rows{after}")
    if len(empty):
        raise ValueError(
            f"column {columns.names[empty[0]]!r} has no value at any client; leave it out"
        )
    if len(texts) and rules.encode is None:
        name = repr(columns.names[texts[0]])
        if not rules.text_allowed:
            raise ValueError(
                f"column {name} contains text; set encode='one_hot', or leave the column out"
            )
        if rules.unknown == "error":
            raise ValueError(
                "unknown='error' needs encode='one_hot', because the protocol takes the text of"
                f" column {name} as it is and accepts any; got encode=None"
            )
    rules.bounds.by_index(columns.names)


def clients_with_gaps(described: Mapping[str, ColumnDescription], rules: Rules) -> dict[str, str]:
    """Return, for each client with gaps that nothing fills, the first column that has them."""
    if rules.impute is not None or rules.gaps_allowed:
        return {}
    names = agree_on_columns(described).names
    return {
        client: names[int(np.argmax(gaps))]
        for client, reply in described.items()
        if (gaps := reply.counts < reply.n_rows).any()
    }


def gap_error(client: str, column: str) -> ValueError:
    """Return the error for a gap that nothing fills."""
    return ValueError(
        f"column {column!r} has gaps at client {client!r}; set impute='mean', 'median' or 'drop'"
    )


def _without_gaps(described: Replies, rules: Rules) -> Flow[Replies]:
    """Exclude the clients with gaps that nothing fills."""
    found = clients_with_gaps(described, rules)
    if not found:
        return described
    reasons = {client: f"column {column!r} has gaps" for client, column in found.items()}
    return (yield from exclude(described, reasons, gap_error(*next(iter(found.items())))))


def _find_fill(view: TableView, described: Replies, numbers: Ints, rules: Rules) -> Flow[Floats]:
    """Return the value for the gaps of each column of numbers."""
    if rules.impute == "mean":
        means, _ = yield from find_moments(view, described, numbers)
        return means[numbers]
    medians, _ = yield from find_quantiles(view, described, numbers, [0.5], rules.rank_error)
    return medians[0, numbers]


def _find_scale(
    view: TableView, described: Replies, columns: Columns, numbers: Ints, rules: Rules
) -> Flow[tuple[Floats, Floats]]:
    """Return the centre and the spread of each column; 1 is the spread of a constant column.

    A spread counts as 0 under the same condition as in scikit-learn.
    """
    centre, spread = np.zeros(len(columns.names)), np.ones(len(columns.names))
    if rules.scale == "standard":
        means, squares = yield from find_moments(view, described, numbers)
        n = np.sum([reply.counts for reply in described.values()], axis=0)
        variance = squares / n
        constant = variance <= n * EPS * variance + np.square(n * means * EPS)
        low, high = means, means + np.where(constant, 0.0, np.sqrt(variance))
    elif rules.scale == "minmax":
        given = rules.bounds.by_index(columns.names)
        asked = np.setdiff1d(numbers, np.array(list(given), np.int64))
        low, high = yield from find_extremes(view, described, asked)
        for j, limits in given.items():
            low[j], high[j] = limits
    elif rules.scale == "robust":
        found, _ = yield from find_quantiles(view, described, numbers, QUARTILES, rules.rank_error)
        centre[numbers] = found[1, numbers]
        low, high = found[0], found[2]
    else:
        return centre, spread
    if rules.scale != "robust":
        centre[numbers] = low[numbers]
    widths = (high - low)[numbers]
    spread[numbers] = np.where(widths < 10 * EPS, 1.0, widths)
    return centre, spread


def problems_of(columns: Sequence[Column], rules: Rules, protected: bool) -> list[str]:
    """Return everything that the rules need and the schema does not declare.

    Parameters
    ----------
    columns : sequence of Column
        The features.
    rules : Rules
    protected : bool
        Whether the server sees only sums over the clients, or noise.
    """
    problems = []
    for column in columns:
        limits, name = column.limits, repr(column.name)
        if column.kind == TEXT and column.values is None:
            problems.append(f"an enum of {name}")
        elif column.kind == NUMBER:
            limited = limits is not None and np.isfinite(limits).all()
            if rules.scale == "minmax" and not limited:
                problems.append(f"a minimum and a maximum of {name}")
            if protected and rules.impute is None and column.fill is None and not column.required:
                problems.append(f"a fill for the gaps of {name} or required=true")
    return problems


def _fit_rules(
    columns: Sequence[Column], rules: Rules, protected: bool, aggregation: Aggregation
) -> Flow[Preprocess]:
    """Return the rules that follow from the schema and from sums over the clients."""
    numbers = np.array([j for j, column in enumerate(columns) if column.kind == NUMBER], np.int64)
    low, high = _ends(columns)
    fill, centre, spread = low + (high - low) / 2, np.zeros(len(low)), np.ones(len(low))
    for j in numbers.tolist():
        fill[j] = fill[j] if columns[j].fill is None else float(columns[j].fill or 0.0)
    if rules.scale == "standard" or rules.impute == "mean":
        limits = np.array([low[numbers], high[numbers]])
        means, variances = yield from _moments(rules, len(low), numbers, limits, aggregation)
        if rules.impute == "mean":
            fill[numbers] = means
        if rules.scale == "standard":
            hidden = np.isnan(variances)
            if hidden.any():
                _warn_of_hidden([columns[j].name for j in numbers[hidden]])
            half = (limits[1] - limits[0]) / 2
            means = np.where(hidden, limits[0] + half, means)
            deviations = np.where(hidden, half, np.sqrt(variances))
            constant = deviations <= 10 * np.finfo(float).eps * np.maximum(np.abs(means), 1.0)
            centre[numbers], spread[numbers] = means, np.where(constant, 1.0, deviations)
    if rules.scale == "minmax":
        centre[numbers], spread[numbers] = low[numbers], (high - low)[numbers]
    fill[np.setdiff1d(np.arange(len(low)), numbers)] = 0.0
    return _preprocess(columns, rules, protected, (fill, centre, spread))


def _warn_of_hidden(names: Sequence[str]) -> None:
    """Warn that columns are scaled by their limits, because noise hides their variances."""
    warnings.warn(
        f"the noise is too large for the rows: the variance of {listed(names)} is not above its"
        " noise, so that the limits of the schema scale these columns to -1 and 1 in place of"
        " scale='standard'; a larger epsilon_fraction, more rows or a larger epsilon help",
        stacklevel=2,
    )


def limits_without_scale(columns: Sequence[Column], rules: Rules) -> Limits:
    """Return the limits of the columns as if they were not scaled, to check a protocol with.

    Principal components have any limits.
    """
    low, high = _ends(columns)
    zero, one = np.zeros(len(columns)), np.ones(len(columns))
    limits = _limits_after(_preprocess(columns, rules, False, (zero, zero, one)), low, high)
    if rules.n_components is None:
        return limits
    check_n_components(rules.n_components, len(limits), "pca")
    n_components = int(rules.n_components) or len(limits)  # of a fraction, all
    return dict.fromkeys(component_names(n_components), (-1.0, 1.0))


def _ends(columns: Sequence[Column]) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value of each column; 0 for text."""
    low, high = np.array([column.limits or (0.0, 0.0) for column in columns]).reshape(-1, 2).T
    return np.maximum(low, -UNLIMITED), np.minimum(high, UNLIMITED)


def _preprocess(
    columns: Sequence[Column], rules: Rules, protected: bool, values: tuple[Floats, ...]
) -> Preprocess:
    """Return the rules with these fills, centres and spreads."""
    fill, centre, spread = values
    spread = np.where(spread > 0, spread, 1.0)
    names = tuple(column.name for column in columns)
    gaps: Gaps = "fill" if protected and rules.gaps == "keep" else rules.gaps
    kinds = rules.kinds(np.array([column.kind for column in columns], np.uint8))
    categories = [
        () if kind == KEPT_TEXT else column.categories or ()
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return rules.fitted(names, kinds, gaps, (fill, centre, spread), categories)


def _moments(
    rules: Rules, n_columns: int, numbers: Ints, limits: Floats, aggregation: Aggregation
) -> Flow[tuple[Floats, Floats]]:
    """Return the mean and the variance of each column of numbers; NaN if noise hides a variance."""
    if isinstance(aggregation, NoisySums):
        noisily = SumChosenColumnsNoisily(aggregation.privacy, limits, 0, numbers)
        total, clients = yield from aggregation.sum(noisily)
        return noisy_moments(limits, total.values, aggregation.noise(noisily, len(clients)))
    _, means, variances = yield from sum_between(
        rules.view, n_columns, numbers, limits, aggregation
    )
    return means, variances


def _limits_after(fitted: Preprocess, low: Floats, high: Floats) -> Limits:
    """Return the limits of the transformed columns; those of a category are 0 and 1."""
    empty = pd.DataFrame({name: np.empty(0) for name in fitted.features})
    X, _ = fitted.transform(read_columns(empty))
    ends = [(ends - fitted.centre) / fitted.spread for ends in (low, high)]
    limits = {
        name: (float(ends[0][j]), float(ends[1][j]))
        for j, name in enumerate(fitted.features)
        if fitted.kinds[j] == NUMBER
    }
    return {name: limits.get(name, (0.0, 1.0)) for name in X.columns}
