"""The estimator of federated summaries."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import AgreedColumns, agree_on_features
from fedlib.core.array_types import Ints
from fedlib.core.client import Client
from fedlib.core.columns import NUMBER, TEXT, RawTable
from fedlib.core.estimator import EXAMPLE_BOUNDS, Example
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Fraction,
    Interval,
    Kind,
    OptionalBounds,
    OptionalNames,
    OptionalPositiveFloat,
)
from fedlib.core.points import NO_BOUNDS
from fedlib.core.protocol import Flow
from fedlib.protection.estimator import WeightedFederated, in_schema, is_protected
from fedlib.tables.schema.cells import IDENTIFIER, Column
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.flow import TableSummary, summarise
from fedlib.tables.summary.from_schema import AgreedTable
from fedlib.tables.summary.messages import (
    MAX_BINS,
    TableView,
    agree_on_columns,
)
from fedlib.tables.summary.private import clipped_summary, leads

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FederatedSummary(WeightedFederated):
    """Statistics of every column over clients that hold different rows of the same columns.

    A part is a table, or, with `max_weight`, ``(X, sample_weight)`` with one weight per row.

    Attributes
    ----------
    model_ : TableSummary
        All statistics.
    categories_ : dict of str to Series
        The count of rows with each category, for every column of text, without those withheld.
    intervals_ : dict of str to array (n_columns, 2)
        With `epsilon`, the ends of the intervals that contain the true ``"count"``, ``"missing"``
        (the count of gaps), ``"mean"`` and ``"std"`` with a probability of 99%. A mean or a
        standard deviation that the noise hides is NaN, with a warning.
    count_error_ : float
        With `epsilon`, the largest error of a count in a bin or of a category, with a probability
        of 99%. Such a count is cut at 0; with weights, it is a part of `max_weight`.
    n_features_in_ : int
        The count of columns.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    See Also
    --------
    FederatedPipeline : scales, fills and encodes the columns before any other protocol.

    Notes
    -----
    Counts, extremes and categories are those of the pooled rows. Means and variances equal the
    pooled ones up to rounding. For the quantiles, each round divides an interval per rank into 256
    parts, so exact quantiles take at most 8 rounds, in each of which a client sends at most 2 kB
    per rank. There are at most two ranks per quantile and column.

    *Disclosure.* Extremes and exact quantiles are values of single rows. Give `bounds` and
    `rank_error` to avoid this. A client with one row discloses the row by its means.

    With ``secure=True``, the server sees sums over all clients, whose values are clipped to
    `bounds`; texts count as gaps. Counts are exact. A mean is wrong by at most
    ``n_clients * n_rows**2 * 2**-61 * width / count``, in addition to rounding, where ``width`` is
    the difference of the bounds.

    With `schema`, the columns with the classes, the weights and the base margins are described,
    too, behind the features. Gaps are counted before they are filled. No request asks for kinds,
    extremes or names of categories. The rows with each category of the schema are counted, also
    with ``secure=True`` and `epsilon`, and the histograms lie between the limits.

    *Weights.* With `max_weight`, means, variances and histograms are weighted, and ``model_`` has
    the sums of the weights. A row with an integer weight counts like as many equal rows, so a
    variance is divided by the sum of the weights less 1. Counts and categories are of rows. It
    needs the limits of all columns of numbers and ``quantiles=None``, with any kind of sums: there
    are no extremes, and no weighted quantiles. Without `max_weight`, each row counts once.

    If a client is lost between two requests, the statistics are computed again without it.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedlib import FederatedSummary
    >>> north = pd.DataFrame({"age": [41, 57, None], "sex": ["m", "f", "f"]})
    >>> south = pd.DataFrame({"age": [30.0], "sex": ["m"]})
    >>> model = FederatedSummary(min_category_count=1).fit([north, south])
    >>> model.to_frame()[["count", "missing", "min", "50%", "max"]].loc["age"].tolist()
    [3.0, 1.0, 30.0, 41.0, 57.0]
    >>> model.categories_["sex"].to_dict()
    {'f': 2, 'm': 2}
    """

    name = "summary"
    example = Example("rows", {"quantiles": [0.5]}, {"quantiles": (), "bounds": EXAMPLE_BOUNDS})
    client_class = SummaryClient
    has_labels = False
    _: KW_ONLY
    quantiles: Annotated[
        Any,
        list,
        "array-like",
        None,
        Kind("array-like of float, or None"),
        "The fractions of the quantiles, in [0, 1]; none of them for ``()`` or None.",
    ] = (0.25, 0.5, 0.75)
    rank_error: Annotated[
        Fraction,
        """
        The largest error of a quantile's rank, as a fraction of the values, in [0, 1). With 0, the
        quantiles are those of the pooled values. A larger error discloses less and needs fewer
        rounds.
        """,
    ] = 0.0
    bounds: Annotated[
        OptionalBounds,
        """
        Known limits of columns. Clients do not report the extremes of these columns, which are
        values of single rows, and the histograms lie between the limits.
        """,
    ] = None
    n_bins: Annotated[
        int,
        Interval(Integral, 0, MAX_BINS, closed="both"),
        """
        The count of bins of the histograms, in 0..65536; 0 for no histograms.
        """,
    ] = 10
    categorical: Annotated[
        OptionalNames,
        """
        The columns whose numbers are codes of categories. Columns without names are called 0, 1 and
        so on.
        """,
    ] = None
    max_categories: Annotated[
        int,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        The maximum count of categories of a column, at least 1. A client with more leaves the run.
        """,
    ] = 1000
    min_category_count: Annotated[
        int,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        A client withholds the categories with fewer rows, at least 1. Their rows are counted
        together, as ``other`` in `to_frame`.
        """,
    ] = 5
    max_weight: Annotated[
        OptionalPositiveFloat,
        """
        For rows that have weights: the largest weight, on which the sites have agreed and to which
        they clip, above 0 and at most 2**40.
        """,
    ] = None
    secure: Annotated[
        Flag,
        """
        Whether the server sees sums over the clients and no client's reply; see
        `fedlib.protection.secure` for what remains open. It needs ``quantiles=None`` and `bounds`
        of all columns in their order; values beyond are moved to them. There are counts, means,
        variances and histograms, but no extremes, and only the categories of a schema.
        """,
    ] = False
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        With an epsilon, the run is (epsilon, delta)-differentially private for each row, added or
        removed; see `fedlib.protection.privacy`. It needs ``quantiles=None`` and `bounds` of all
        columns in their order, which must not depend on the data; values beyond are moved to them.
        There are counts, means, variances and histograms with noise, but no extremes and no
        categories.
        """,
    ] = None
    delta: Annotated[
        float,
        Interval(Real, 0, 1, closed="left"),
    ] = 0.0

    def _lacking(self) -> list[str]:
        lacking = super()._lacking()
        if (is_protected(self) or self.max_weight is not None) and len(self._fractions):
            lacking.append(f"quantiles=None (got {self.quantiles!r})")
        if self.max_weight is not None and not is_protected(self):
            if self.bounds is None and self.schema is None:
                lacking.append("bounds of all columns, or a schema with them, for max_weight")
            elif self.schema is not None:
                lacking += in_schema(self.schema.lacking())
        if (is_protected(self) or self.schema is not None) and self.categorical:
            lacking.append(
                "categorical=None, because codes of categories are an enum of a schema (got"
                f" categorical={self.categorical!r})"
            )
        return lacking

    def _lacking_in(self, schema: AgreedColumns) -> list[str]:
        texts = [column for column in _described(schema) if column.kind == TEXT]
        enums = [f"an enum of {column.name!r}" for column in texts if column.values is None]
        return super()._lacking_in(schema) or enums

    @property
    def _fractions(self) -> list[float]:
        """The fractions of the quantiles."""
        given = () if self.quantiles is None else self.quantiles
        try:
            fractions: list[float] = np.array(given, np.float64).ravel().tolist()
        except (TypeError, ValueError):
            fractions = [np.nan]
        if not all(0 <= fraction <= 1 for fraction in fractions):
            raise ValueError(
                "quantiles must be numbers in [0, 1], such as [0.5], or None for no quantiles; got"
                f" {self.quantiles!r}"
            )
        return fractions

    def _flow(self) -> Flow[TableSummary]:
        fractions, schema = self._fractions, self.schema
        bounds = NO_BOUNDS if self.bounds is None else self._bounds()
        agreed = None
        if schema is not None:
            columns = _described(schema)
            if is_protected(self):
                columns = [column.protected() for column in columns]
            agreed, bounds = AgreedTable.of(columns, bounds.by_index(schema.features)), NO_BOUNDS
        if is_protected(self) or self.max_weight is not None:
            agreed, sums = agreed or AgreedTable.of_bounds(bounds), self._aggregation(1)
            largest = None if self.max_weight is None else self._largest_weight()
            return clipped_summary(agreed, self.n_bins, sums, largest)
        return summarise(
            TableView(check_names(self.categorical)),
            fractions,
            self.rank_error,
            bounds,
            self.n_bins,
            self.max_categories,
            self.min_category_count,
            agreed,
        )

    def _check_clients(self, clients: dict[str, Client]) -> None:
        agree_on_features(clients)
        if self.schema is not None:
            return
        if self.max_weight is None:
            for name, client in clients.items():
                if getattr(client, "weight", None) is not None:
                    raise ValueError(
                        f"parts[{name}] has weights, so the run needs max_weight, the largest of"
                        " them, bounds, and quantiles=None (got max_weight=None)"
                    )
        if is_protected(self) or self.max_weight is not None:  # kinds follow from the bounds
            for name, client in clients.items():
                _check_numbers(name, client.X)
            return
        view = TableView(check_names(self.categorical))
        agree_on_columns({name: client.describe_columns(view) for name, client in clients.items()})  # type: ignore[attr-defined]

    def _set_model(self, model: TableSummary) -> None:
        super()._set_model(model)
        self.n_features_in_ = len(model.features)
        if model.intervals.size:  # with noise
            *others, variances = model.intervals
            ends = [*others, np.sqrt(np.maximum(variances, 0))]
            self.intervals_ = dict(zip(("count", "missing", "mean", "std"), ends, strict=True))
            self.count_error_ = model.count_error
        self.categories_ = {
            model.features[j]: pd.Series(
                model.category_counts[j], pd.Index(model.categories[j], dtype=object), name="count"
            )
            for j in np.flatnonzero(model.kinds == TEXT)
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one row per column of the data, and one column per statistic.

        Returns
        -------
        DataFrame
            With the columns ``content`` (numbers, text or nothing), ``count``, ``missing``,
            ``mean``, ``std``, ``min``, the quantiles, ``max``, ``categories`` (their number),
            ``top`` (the most frequent one) and ``other`` (the count of values whose categories
            are withheld). With `epsilon`, the ends of the intervals of ``count``, ``missing``,
            ``mean`` and ``std`` follow; ``count`` and ``missing`` can be negative, so that their
            means over many runs are right, and ``top`` is None unless its count is above all others
            by more than twice ``count_error_``.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        tops = [self._top(j) for j in range(len(model.features))]
        percent = [f"{100 * q:g}%" for q in model.fractions]
        columns = {
            "content": np.array(["numbers", "text", "nothing"], object)[model.kinds],
            "count": model.counts,
            "missing": self._missing,
            "mean": model.means,
            "std": np.sqrt(model.variances),
            "min": model.minima,
            **dict(zip(percent, model.quantiles, strict=True)),
            "max": model.maxima,
            "categories": [len(names) for names in model.categories],
            "top": np.array(tops, object),
            "other": model.category_others,
        }
        for name, ends in getattr(self, "intervals_", {}).items():
            columns |= {f"{name} (low)": ends[:, 0], f"{name} (high)": ends[:, 1]}
        return pd.DataFrame(columns, index=pd.Index(model.features, dtype=object))

    @property
    def _missing(self) -> Ints:
        """The gaps of each column. Noisy ones can be negative, so that their mean is right."""
        gaps = self.model_.n_rows - self.model_.counts
        return gaps if self.model_.intervals.size else np.maximum(gaps, 0)

    def _top(self, j: int) -> str | None:
        names, counts = self.model_.categories[j], self.model_.category_counts[j]
        noisy = self.model_.intervals.size > 0
        known = leads(counts, self.model_.count_error) if noisy else counts.any()
        return names[int(counts.argmax())] if known else None

    def plot(self) -> Figure:
        """Draw a histogram of each column of numbers and the counts of each column of text.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        from fedlib.figures.plots import column_histograms

        model, panels = self.model_, {}
        for j, name in enumerate(model.features):
            names = model.categories[j]
            panels[f"{name} ({self._missing[j]} missing)"] = (
                (model.category_counts[j], names)
                if names
                else (model.histograms[j], model.edges[j])
            )
        return column_histograms(panels)

    def _repr_html_(self) -> str:
        """Return the table of statistics with small histograms, or the parameters before `fit`."""
        if not hasattr(self, "model_"):
            return str(super()._repr_html_())
        frame = self.to_frame()
        frame.insert(1, "histogram", [self._bars(j) for j in range(len(frame))])
        return str(frame.to_html(na_rep=""))

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _bars(self, j: int) -> str:
        """Return a histogram as a line of blocks of eight heights."""
        model = self.model_
        counts = model.histograms[j] if model.kinds[j] == NUMBER else model.category_counts[j][:20]
        heights = np.ceil(8 * counts / max(1, counts.max(initial=0))).astype(int)
        return "".join(" ▁▂▃▄▅▆▇█"[height] for height in heights)


def _described(schema: AgreedColumns) -> list[Column]:
    """Return the columns that a summary describes: the features, and behind them the others."""
    columns: list[Column] = [one for one in schema.columns if one.role != IDENTIFIER]
    return sorted(columns, key=lambda one: one.role != "feature")


def _check_numbers(name: str, table: RawTable) -> None:
    """Raise ValueError, with the client's name, when a column of its table contains text."""
    for j in range(table.shape[1]):
        try:
            table.numbers(j)
        except ValueError as error:
            raise ValueError(f"parts[{name}]: {error}") from error


def check_names(names: Sequence[Any] | None) -> tuple[str, ...]:
    """Return names of columns as text; positions are names too."""
    return tuple(f"{n:.0f}" if isinstance(n, Real) else str(n) for n in names or ())
