"""The client of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import (
    BadRequest,
    Client,
    LostState,
    OddRows,
    WrappingClient,
    handles,
    partitions,
    usable_rows,
)
from fedlib.core.column_names import as_table, in_order
from fedlib.core.columns import TEXT, RawTable, read_columns
from fedlib.core.messages import Done, Message, decode, encode
from fedlib.core.points import eval_sets_of, with_weights
from fedlib.core.targets import read_weights
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.protection.sums import RowTotals
from fedlib.tables.components.flow import Scatter, SumClippedScatter, SumScatter, scatter
from fedlib.tables.pipeline.messages import (
    KEPT_TEXT,
    PipelineState,
    Preprocess,
    PreprocessAndProject,
    Transformed,
)
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.private import (
    NoisyColumnSums,
    SumChosenColumnsNoisily,
    sum_columns_noisily,
)


class PipelineClient(WrappingClient, SummaryClient):
    """A client that preprocesses its table and hands the result to a protocol's client.

    It answers the requests for statistics and `Preprocess` itself, and passes every other request
    to the client that it wraps. That client is created when the rules arrive. The state contains
    the rules and the state of the wrapped client, so a restarted client continues with the same
    table.

    Parameters
    ----------
    part : DataFrame or array-like (n_rows, n_columns), or a tuple with it
        The raw table. If the protocol learns classes, the part is ``(X, y)`` or ``(X, y,
        sample_weight)``; if it takes weights only, the part may be ``(X, sample_weight)``. If it
        validates, rows for validation may follow, as the fourth of ``(X, y, sample_weight,
        eval_set)``. The rules are applied to them and do not depend on them, nor on rows of weight
        0.
    client_class : type of Client
        The class of the protocol's clients.
    **options
        Further arguments of the protocol's client.

    Raises
    ------
    ValueError
        When the table, the classes or an option is invalid.

    Examples
    --------
    >>> from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
    >>> client = PipelineClient([[10.0], [None]], HorizontalDBSCANClient)
    >>> one = np.ones(1)
    >>> zero, kinds = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    >>> rules = Preprocess((), kinds, (), "fill", 8 * one, 6 * one, 2 * one, zero, (), "ignore")
    >>> client.handle(rules)
    Done()
    >>> client.handle(CountCells(cell_size=1.0)).cells
    array([[1],
           [2]])
    """

    prepares = Preprocess

    @property
    def open_requests(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """The requests whose replies describe no rows, also of the protocol's client."""
        return (DescribeFeatures, *(() if self.inner is None else self.inner.open_requests))

    def _answers(self, request: Message) -> bool:
        """Return whether this client answers a request; the other one comes first, once it can."""
        begun = self.rules is not None and not self._renewed
        wrapped = begun and self.inner and type(request) in self.inner.handlers
        return not wrapped and super()._answers(request)

    def renew(self, state: Message | None) -> None:
        """Renew the wrapped client, which takes part again once other rules have arrived."""
        super().renew(state)
        self._renewed = True

    def __init__(self, part: Any, client_class: type[Client], **options: Any):
        self._class = client_class
        self._make: Callable[..., Client] = lambda data: client_class(data, **options)  # type: ignore[call-arg]
        rest: Sequence[Any] = ()
        evaluated: dict[str, Sequence[Any]] = {}
        supervised = bool(getattr(client_class, "supervised", False))
        if supervised:
            validates = getattr(client_class, "validates", False)
            margins = getattr(client_class, "takes_margins", False)
            most = 3 + validates + margins
            if not isinstance(part, tuple | list) or not 2 <= len(part) <= most:
                raise ValueError("a part must be (X, y) or (X, y, sample_weight)")
            part, *rest = part
            if len(rest) > 2:
                evaluated = eval_sets_of(rest.pop(2))
        else:
            part, weights = with_weights(part, getattr(client_class, "takes_weights", False))
            rest = () if weights is None else (weights,)
        self.rules: Preprocess | None = None
        self._renewed = False  # the rules are those of the session before
        super().__init__(part)
        self._rest = _arrays(rest)
        self._eval_sets: dict[str, tuple[RawTable, tuple[Any, ...]]] = {}
        for name, (X, *others) in evaluated.items():
            texts = np.flatnonzero(self.X.kinds == TEXT).tolist()
            table = read_columns(in_order(X, self.features, "eval_set"), texts)
            if table.shape[1] != self.n_features:
                raise ValueError(
                    f"eval_set must have {self.n_features} features; got {table.shape[1]}"
                )
            self._eval_sets[name] = table, _arrays(others)
        self._made([np.zeros((len(one), 1)) for one in self._tables()])  # checks the rest
        weights = self._rest[supervised : supervised + 1]
        if weights and weights[0] is not None:
            counted = read_weights(weights[0]) > 0
            self.counted = None if counted.all() else counted

    @property
    def state(self) -> PipelineState | None:
        """The rules and the state of the wrapped client; None before the rules arrive."""
        if self.rules is None:
            return None
        return PipelineState(encode(self.rules), self._inner_state(), self._kept, self._renewed)

    @state.setter
    def state(self, state: Message | None) -> None:
        self.rules, self.inner, self._renewed = None, None, False
        if isinstance(state, PipelineState):
            rules = decode(state.rules, Preprocess, PreprocessAndProject)
            self._begin(rules)  # type: ignore[arg-type]
            self._restore_inner(state.inner)
            self._renewed = state.renewed
        elif state is not None:
            raise LostState(f"PipelineClient has no PipelineState but a {type(state).__name__}")

    @handles(SumChosenColumnsNoisily)
    def sum_chosen_columns(self, request: SumChosenColumnsNoisily) -> NoisyColumnSums:
        return sum_columns_noisily(self.described, request, self.n_shares)

    @handles(Preprocess)
    def preprocess(self, request: Preprocess) -> Done:
        if problem := self._begin(request):
            raise OddRows(problem)
        return Done()

    @handles(PreprocessAndProject)
    def preprocess_and_project(self, request: PreprocessAndProject) -> Done:
        return self.preprocess(request)

    @handles(SumScatter)
    def sum_scatter(self, request: SumScatter) -> Scatter:
        return scatter(self._preprocessed(), request)

    @handles(SumClippedScatter)
    def sum_clipped_scatter(self, request: SumClippedScatter) -> RowTotals:
        return request.total(np.nan_to_num(self._preprocessed()), self)

    @partitions(SumScatter, terms=())
    def kept_rows(self, request: SumScatter) -> Iterable[Ints]:
        (groups,) = self.preparation()
        groups = groups[: len(self.X)]
        yield groups if self.counted is None else np.where(self.counted, groups, -1)

    def preparation(self) -> Iterable[Ints]:
        """Return the groups of rows that the rules tell apart; rows that are left out are one."""
        assert self.rules is not None  # there is a wrapped client
        marks = np.concatenate([self.rules.marks(table) for table in self._tables()])
        groups = np.unique(marks, axis=0, return_inverse=True)[1].reshape(-1)
        left = np.ones(len(groups), bool)
        left[self.inner_rows] = False
        return [np.where(left, -1, groups).astype(np.int64)]

    def _preprocessed(self) -> Floats:
        """Return the rows that the wrapped client has, without those of weight 0."""
        if self.rules is None:
            raise LostState(f"{type(self).__name__} has no {self.prepares.__name__}")
        if (self.rules.kinds == KEPT_TEXT).any():
            raise BadRequest("there are no sums of columns of text; encode them")
        return np.asarray(self.rules.transform_usable(self.described).X, np.float64)

    def _begin(self, rules: Preprocess) -> str:
        """Transform the table, create the protocol's client, and return what is odd.

        Rows that cannot be transformed, or that the protocol's client cannot take, take no part in
        the protocol. So whether there is a client of the protocol does not depend on the rows.

        Raises
        ------
        BadRequest
            A ValueError: when the rules do not fit the columns or the protocol, whatever the rows
            are.
        """
        if (rules.kinds == KEPT_TEXT).any() and not getattr(self._class, "raw", False):
            raise BadRequest(f"{self._class.__name__} takes no columns of text; encode them")
        if not rules.n_new:
            raise BadRequest("there must be a column after preprocessing, got none")
        largest, gaps = self._class.max_feature, self._class.gaps_allowed
        done = [rules.transform_usable(table).within(largest, gaps) for table in self._tables()]
        try:
            before, inner = self.inner, self._made_of(done)
        except Exception:  # there are other rows that the protocol's client cannot take
            empty = [one.chosen(np.arange(0)) for one in done]
            for i, one in enumerate(done):
                alone = partial(self._made_with, empty, i, one)
                rows, problem = usable_rows(alone, np.arange(len(one.X)))
                done[i] = one.chosen(rows, problem)
            before, inner = self.inner, self._made_of(done)
        self._wrap(inner, np.flatnonzero(np.concatenate([one.kept for one in done])))
        self.rules, self._kept, self._renewed = rules, done[0].kept, False
        if before is not None:  # other rules end the session, but not what protects the rows
            inner.renew(before.state)
        return "; ".join(
            f"{one.n_odd} of {len(one.kept)} rows take no part: {one.problem}"
            for one in done
            if one.n_odd
        )

    def _made_of(self, done: Sequence[Transformed]) -> Client:
        """Return the protocol's client with transformed tables."""
        return self._made([one.X for one in done], [one.kept for one in done])

    def _made_with(
        self, others: Sequence[Transformed], i: int, one: Transformed, rows: Ints
    ) -> Client:
        """Return the protocol's client with some rows of the i-th transformed table."""
        return self._made_of([*others[:i], one.chosen(rows), *others[i + 1 :]])

    @property
    def _n_rows(self) -> int:
        return sum(map(len, self._tables()))

    def _tables(self) -> list[RawTable]:
        """Return the table, and those of the rows for validation."""
        return [self.X, *(table for table, _ in self._eval_sets.values())]

    def _made(self, tables: Sequence[Any], kept: Sequence[Any] | None = None) -> Client:
        """Return the protocol's client with transformed tables, their classes and weights."""
        kept = [slice(None)] * len(tables) if kept is None else kept
        rests = [self._rest, *(rest for _, rest in self._eval_sets.values())]
        parts = [
            (X, *(None if values is None else values[rows] for values in rest))
            for X, rest, rows in zip(tables, rests, kept, strict=True)
        ]
        part, *sets = parts
        if sets or len(part) > 3:
            named = dict(zip(self._eval_sets, sets, strict=True))
            return self._make((*(*part, None)[:3], named, *part[3:]))
        return self._make(part if len(part) > 1 else part[0])


def _arrays(rest: Sequence[Any]) -> tuple[Any, ...]:
    """Return the classes and weights of rows as arrays."""
    return tuple(None if values is None else np.asarray(as_table(values)) for values in rest)
