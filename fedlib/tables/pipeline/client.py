"""The client of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedlib.core.array_types import Bools
from fedlib.core.client import Client, LostState, OddRows, handles
from fedlib.core.messages import Done, Message, decode, encode
from fedlib.core.points import with_weights
from fedlib.core.wrapping import WrappingClient
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.tables.pipeline.messages import PipelineState, Preprocess
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.private import (
    NoisyColumnSums,
    SumChosenColumnsNoisily,
    sum_columns_noisily,
)

__all__ = ["PipelineClient"]


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
        sample_weight)``; if it takes weights only, the part may be ``(X, sample_weight)``.
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
        wrapped = self.rules is not None and self.inner and type(request) in self.inner.handlers
        return not wrapped and super()._answers(request)

    def __init__(self, part: Any, client_class: type[Client], **options: Any):
        self._make: Callable[..., Client] = lambda data: client_class(data, **options)  # type: ignore[call-arg]
        self._rest: tuple[Any, ...] | None = None
        if getattr(client_class, "supervised", False):
            if not isinstance(part, tuple | list) or len(part) not in (2, 3):
                raise ValueError("a part must be (X, y) or (X, y, sample_weight)")
            part, *rest = part
            self._rest = tuple(None if values is None else np.asarray(values) for values in rest)
        elif getattr(client_class, "takes_weights", False):
            part, weights = with_weights(part)
            self._rest = None if weights is None else (np.asarray(weights),)
        self.rules: Preprocess | None = None
        super().__init__(part)
        self._made(np.zeros((len(self.X), 1)), np.ones(len(self.X), bool))  # checks the rest

    @property
    def state(self) -> PipelineState | None:
        """The rules and the state of the wrapped client; None before the rules arrive."""
        if self.rules is None:
            return None
        return PipelineState(encode(self.rules), self._inner_state(), self._kept)

    @state.setter
    def state(self, state: Message | None) -> None:
        self.rules, self.inner = None, None
        if isinstance(state, PipelineState):
            self._begin(decode(state.rules, Preprocess))  # type: ignore[arg-type]
            self._restore_inner(state.inner)
        elif state is not None:
            raise LostState(f"PipelineClient has no PipelineState but a {type(state).__name__}")

    @handles(SumChosenColumnsNoisily)
    def sum_chosen_columns(self, request: SumChosenColumnsNoisily) -> NoisyColumnSums:
        return sum_columns_noisily(self.X, request, self.n_shares)

    @handles(Preprocess)
    def preprocess(self, request: Preprocess) -> Done:
        if problem := self._begin(request):
            raise OddRows(problem)
        return Done()

    def _begin(self, rules: Preprocess) -> str:
        """Transform the table, create the protocol's client, and return what is odd.

        Rows that cannot be transformed take no part in the protocol.
        """
        X, kept, n_odd, problem = rules.transform_usable(self.X)
        before, inner = self.inner, self._made(X, kept)
        self._wrap(inner, np.flatnonzero(kept))
        self.rules, self._kept = rules, kept
        if before is not None:  # other rules end the session, but not what protects the rows
            inner.renew(before.state)
        return f"{n_odd} of {len(kept)} rows take no part: {problem}" if n_odd else ""

    def _made(self, X: Any, kept: Bools) -> Client:
        """Return the protocol's client with transformed rows and their classes and weights."""
        if self._rest is None:
            return self._make(X)
        rest = (None if values is None else values[kept] for values in self._rest)
        return self._make((X, *rest))
