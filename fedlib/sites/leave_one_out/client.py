"""The client of leave-one-site-out, around the client of a protocol."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from fedlib.core.array_types import Ints
from fedlib.core.client import Client, LostState, OddRows, Unanswerable, handles, roles_of
from fedlib.core.estimator import Federated
from fedlib.core.in_process import arrays_of
from fedlib.core.messages import Done, Message
from fedlib.core.names import as_table
from fedlib.core.points import with_weights
from fedlib.core.registry import innermost
from fedlib.core.wrapping import WrappingClient, decode_state, encode_state, usable_rows
from fedlib.evaluation.clustering import ClusteringScoreClient
from fedlib.evaluation.numbers import RegressionScoreClient
from fedlib.evaluation.predictions import EvaluationClient
from fedlib.sites.leave_one_out.messages import BeginFold, FoldState, TakeModel
from fedlib.sites.models import from_bytes


class LeftOutClient(WrappingClient):
    """A client that takes part in the folds of other sites, and scores the model of its own.

    It passes all requests of a fold to the client of the protocol, which begins a new session with
    each fold. After `TakeModel`, it passes them to a client of scores, which has the predictions of
    the rows of ``X`` and, if there are some, their targets. Weights do not count in scores.

    Parameters
    ----------
    part
        What the protocol's client takes.
    trained_class : type of Client
        The class of the protocol's clients.
    **options
        Further arguments of the protocol's client.

    Attributes
    ----------
    trained : Client
        The client of the protocol.
    scorers : tuple of Client classes
        The clients of scores.

    Raises
    ------
    ValueError
        When the part or an option is invalid.

    Notes
    -----
    Whether a model can be read and fits the columns does not depend on the rows. A row that it
    cannot predict takes no part in the scores; the site's operator reads how many there are.

    Examples
    --------
    >>> from fedlib import FederatedKMeans
    >>> from fedlib.clustering.kmeans import FederatedKMeansClient
    >>> from fedlib.evaluation.messages import SumLabelledRows
    >>> from fedlib.sites.models import to_bytes
    >>> model = FederatedKMeans(2, init=[[0.0], [8.0]]).fit([[[0.0], [0.2]], [[8.0], [8.2]]])
    >>> client = LeftOutClient([[1.0], [2.0], [9.0]], FederatedKMeansClient)
    >>> client.handle(BeginFold()), client.handle(TakeModel(to_bytes(model)))
    (Done(), Done())
    >>> client.handle(SumLabelledRows("exclude", 1, 10)).counts
    array([2, 1])
    """

    prepares = BeginFold
    wraps: ClassVar[str] = "trained_class"
    scorers: ClassVar[tuple[type[Client], ...]] = (
        EvaluationClient,
        RegressionScoreClient,
        ClusteringScoreClient,
    )

    def __init__(self, part: Any, trained_class: type[Client], **options: Any):
        self._class: type[Client] = options.get("client_class", trained_class)
        self.trained = trained_class(part, **options)  # type: ignore[call-arg]
        self.X, self.features = self.trained.X, self.trained.features
        self.arrays = tuple(array for _, array in arrays_of(self.trained))  # for a journal
        roles = roles_of(self._class)
        self._y = np.asarray(as_table(part[1])) if "target" in roles else None
        margins = part[4] if "base_margin" in roles and len(part) > 4 else None
        self._margins = None if margins is None else np.asarray(as_table(margins))
        table = part[0] if "target" in roles else with_weights(part)[0] if roles else part
        table = as_table(table)
        self._table = table if isinstance(table, pd.DataFrame) else np.asarray(table)
        self._bytes = b""

    @property
    def open_requests(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """The requests whose replies describe no rows: those of the present client."""
        return () if self.inner is None else self.inner.open_requests

    @property
    def state(self) -> FoldState | None:
        """The state of the protocol's client, and the model; None before the first fold."""
        if self.inner is None and not self._bytes:
            return None
        return FoldState(encode_state(self.trained), self._bytes)

    @state.setter
    def state(self, state: Message | None) -> None:
        self._forget()
        self.trained.state = decode_state(state.inner) if isinstance(state, FoldState) else None
        if isinstance(state, FoldState):
            self._wrap(self.trained, np.arange(self._n_rows))
            if state.model:
                self._score(state.model)
        elif state is not None:
            raise LostState(f"LeftOutClient has no FoldState but a {type(state).__name__}")

    def renew(self, state: Message | None) -> None:
        """Forget the model, and renew the protocol's client."""
        self.state = state
        self._forget()
        self.trained.renew(self.trained.state)

    @handles(BeginFold)
    def begin_fold(self, request: BeginFold) -> Done:
        self._forget()
        self.trained.renew(self.trained.state)
        self._wrap(self.trained, np.arange(self._n_rows))
        return Done()

    @handles(TakeModel)
    def take_model(self, request: TakeModel) -> Done:
        if problem := self._score(request.model):
            raise OddRows(problem)
        return Done()

    def preparation(self) -> Iterable[Ints]:
        """Return the groups of rows that a delivered model tells apart: none in the folds."""
        return self._groups

    @property
    def _n_rows(self) -> int:
        return int(getattr(self.trained, "_n_rows", len(self.trained.X)))

    def _forget(self) -> None:
        self.inner, self._bytes, self._groups = None, b"", list[Ints]()

    def _score(self, data: bytes) -> str:
        """Predict the rows, create the client of scores, and return which rows take no part.

        Raises
        ------
        ValueError
            When the model does not fit, whatever the rows are.
        """
        self._forget()
        self._bytes = data
        model = self._loaded(data)
        self._wrap(*self._scores_of(model, np.arange(0)))  # an error is the same for all rows
        everything = np.arange(len(self._table))
        problem = ""
        try:
            scored, rows = self._scores_of(model, everything)
        except Exception:  # of some rows
            rows, problem = usable_rows(partial(self._scores_of, model), everything)
            scored, rows = self._scores_of(model, rows)
        self._wrap(scored, rows)
        self._groups = self._told_apart(model, scored, rows)
        n_odd = len(everything) - len(rows)
        return problem and f"{n_odd} of {len(everything)} rows take no part in scores: {problem}"

    def _told_apart(self, model: Any, scored: Client, rows: Ints) -> list[Ints]:
        """Return the groups of rows with equal predictions, and those that a pipeline makes."""
        groups = (
            [] if isinstance(scored, ClusteringScoreClient) else [scored.X]
        )  # labels are groups
        if hasattr(model, "estimator_"):
            groups.append(model.model_.rules.marks(model._raw(self._rows(rows))))
        found = []
        for marks in groups:
            of_rows = np.full(self._n_rows, -1, np.int64)
            of_rows[rows] = np.unique(marks, axis=0, return_inverse=True)[1].reshape(-1)
            found.append(of_rows)
        return found

    def _rows(self, rows: Ints) -> Any:
        """Return some rows of the table."""
        return (
            self._table.iloc[rows] if isinstance(self._table, pd.DataFrame) else self._table[rows]
        )

    def _loaded(self, data: bytes) -> Federated:
        """Return the estimator in a model file; raise ValueError if it is that of other clients."""
        model = from_bytes(data)
        fits = isinstance(self.trained, model.client_class)
        if not fits or innermost(model).client_class is not self._class:
            raise Unanswerable(f"the model is that of {model.name}, another protocol")
        return model

    def _scores_of(self, model: Any, rows: Ints) -> tuple[Client, Ints]:
        """Return the client of scores for some rows, and which rows it has."""
        X = self._rows(rows)
        if hasattr(model, "estimator_"):
            X, kept = model._transformed(X, "transform")
            model, rows = model.estimator_, rows[kept]
        if self._y is None:
            return ClusteringScoreClient((X, model.predict(X))), rows
        start = {} if self._margins is None else {"base_margin": self._margins[rows]}
        if hasattr(model, "predict_proba"):
            return EvaluationClient((model.predict_proba(X, **start), self._y[rows])), rows
        return RegressionScoreClient((model.predict(X, **start), self._y[rows])), rows
