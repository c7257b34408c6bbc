"""The server's side of a pipeline: fit the preprocessing, then run the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.agreement import exclude
from fedlib.core.array_types import Bytes, Floats, Ints
from fedlib.core.columns import EMPTY, NUMBER, TEXT
from fedlib.core.points import Bounds
from fedlib.core.protocol import Flow, Replies
from fedlib.tables.components.flow import (
    PCAModel,
    check_n_components,
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
from fedlib.tables.summary.flow import find_categories, find_extremes, find_moments, find_quantiles
from fedlib.tables.summary.messages import (
    ColumnDescription,
    Columns,
    TableView,
    agree_on_columns,
    describe,
    repeat,
)

Model = TypeVar("Model")

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
    rules: Rules, protocol: Flow[Model], fitted: Preprocess | None
) -> Flow[PipelineModel[Model]]:
    """Return the server flow: fit the preprocessing, send it to the clients, run the protocol.

    If the preprocessing is ``fitted``, because the protocol continues a model, it stays.
    """
    if fitted is not None:
        yield fitted
    else:
        fitted = yield from repeat(lambda: preprocess(rules))
        yield fitted
        if rules.n_components is not None:
            fitted, _ = yield from project_rows(fitted, rules.n_components, Aggregation())
    model = yield from protocol
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
    return Preprocess(
        columns.names if columns.named else (),
        kinds,
        rules.categorical,
        rules.gaps,
        fill,
        centre,
        spread,
        np.array([len(names) for names in categories], np.int64),
        tuple(name for names in categories for name in names),
        rules.unknown,
    )


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
