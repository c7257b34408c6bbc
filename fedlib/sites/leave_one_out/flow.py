"""The server's side of leave-one-site-out: one fold per site, then the scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd

from fedlib.core.array_types import Ints
from fedlib.core.client import (
    BadRequest,
    Client,
    LostState,
    OddRows,
    WrappingClient,
    decode_state,
    encode_state,
    handles,
    roles_of,
    usable_rows,
)
from fedlib.core.column_names import as_table, listed
from fedlib.core.estimator import Federated
from fedlib.core.in_process import arrays_of
from fedlib.core.messages import Done, Message
from fedlib.core.points import with_weights
from fedlib.core.protocol import Flow, GroupsTooSmall, Reject, Replies
from fedlib.core.registry import innermost
from fedlib.evaluation.class_scores import ClassScores
from fedlib.evaluation.clustering import ClusteringScoreClient, ClusterScores
from fedlib.evaluation.messages import NoRows
from fedlib.evaluation.predictions import EvaluationClient
from fedlib.evaluation.regression_scores import NumberScores, RegressionScoreClient
from fedlib.sites.models import from_bytes, to_bytes


class BeginFold(Message):
    """Begin another fold: forget the model of the one before."""

    discloses = "nothing"
    asks_for_data = False
    begins = True


class TakeModel(Message):
    """Predict your rows with this model, and answer requests about its scores from now on.

    Attributes
    ----------
    model : bytes
        The content of a model file (`fedlib.sites.models`).
    """

    discloses = "the model of all other sites, and the parameters of the estimator"
    asks_for_data = False
    model: bytes


class FoldState(Message):
    """The state of a client between two requests.

    Attributes
    ----------
    inner : bytes
        The state of the protocol's client, encoded; empty if it has none.
    model : bytes
        The model that is scored; empty before it arrives.
    """

    discloses = "nothing: it stays with the client"
    inner: bytes
    model: bytes


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
            raise BadRequest(f"the model is that of {model.name}, another protocol")
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


MIN_SITES = 3  # so that each fold is fitted to more than one site

Model = TypeVar("Model")


@dataclass(frozen=True)
class SiteScores:
    """The scores of the models that were each fitted without one site.

    Attributes
    ----------
    sites : tuple of str
        The sites that were left out and scored; empty if there is one score of all sites together.
    scores : tuple of ClassScores, NumberScores or ClusterScores
        That of each site's rows, or one of the rows of all sites.
    """

    sites: tuple[str, ...]
    scores: tuple[ClassScores | NumberScores | ClusterScores, ...]


class NobodyAnswers(ValueError):
    """All sites to which a request went are passive or declined it, or have left the run."""


def leave_one_site_out(
    fold: Callable[[int, int], Flow[Any]],
    fitted: Callable[[Any], Federated],
    score: Callable[[Federated, int, str], Flow[Any]],
    together: bool,
) -> Flow[SiteScores]:
    """Return the server flow.

    Parameters
    ----------
    fold : callable
        Returns the flow of a fold, for its number and the count of all sites.
    fitted : callable
        Returns the fitted estimator for the model of a fold.
    score : callable
        Returns the flow that scores the rows of sites, for the fitted estimator of a fold, the
        count of all sites, and the name of the site, empty for all together.
    together : bool
        Whether the rows of all sites are scored together, and not those of each site.

    Raises
    ------
    ValueError
        When there are fewer than three sites, or nobody has a score.

    Warns
    -----
    UserWarning
        For each site without a score, such as one without rows, or one without which the others'
        rows cannot be fitted.
    """
    models: dict[str, Federated] = {}
    failure: ValueError | None = None
    replies = yield BeginFold()
    sites, n_sites = Sites(list(replies), set(replies.lost)), replies.n_all
    if n_sites < MIN_SITES:
        raise ValueError(
            f"leaving one site out needs at least {MIN_SITES} sites, so that each model is fitted"
            f" to more than one; got {n_sites}"
        )
    for number, site in enumerate(sites.names):
        if site in sites.lost:
            continue
        if number:
            sites.note((yield BeginFold()))
        if reasons := sites.small:
            sites.note((yield Reject(reasons)))
        if site not in sites.lost:
            others = [name for name in sites.names if name != site]
            try:
                models[site] = fitted((yield from sites.run(fold(number, n_sites), others)))
            except GroupsTooSmall:
                raise
            except ValueError as error:  # the rows of the others, which another fold has not
                failure = failure or error
                _warn_of_no_score(site, f"without it, {error}")
    if failure is not None and not models:
        raise failure
    files = {site: to_bytes(one) for site, one in models.items() if site not in sites.lost}
    sites.note((yield {site: TakeModel(data) for site, data in files.items()}))
    if together:
        flow = score(next(iter(models.values())), n_sites, "")
        return SiteScores((), ((yield from sites.run(flow, list(files))),))
    scores: dict[str, Any] = {}
    for site in files:
        try:
            scores[site] = yield from sites.run(score(models[site], n_sites, site), [site])
        except NobodyAnswers as nobody:
            _warn_of_no_score(site, str(nobody))
        except NoRows:
            _warn_of_no_score(site, "it has no rows")
    if not scores:
        raise ValueError("no site has a score: all are passive, empty or declined")
    return SiteScores(tuple(scores), tuple(scores.values()))


def _warn_of_no_score(site: str, reason: str) -> None:
    warnings.warn(f"there is no score of site {site!r}: {reason}", stacklevel=3)


@dataclass
class Sites:
    """The sites of a run, among some of which a flow runs.

    Attributes
    ----------
    names : list of str
        All sites at the beginning.
    lost : set of str
        Those that have left the run.
    refused : set of str
        Those that have declined because of small groups, and decline all further requests.
    """

    names: list[str]
    lost: set[str]
    refused: set[str] = field(default_factory=set)

    @property
    def small(self) -> dict[str, str]:
        """The reason why each site is excluded that has declined because of small groups."""
        return dict.fromkeys(self.refused - self.lost, "declined in an earlier fold (min_count)")

    def note(self, replies: Replies) -> None:
        """Note which sites have left the run."""
        self.lost |= set(replies.lost)

    def run(self, flow: Flow[Model], members: Collection[str]) -> Flow[Model]:
        """Run a flow among some sites, the members.

        To the flow, the other sites are passive: it gets their names among those that decline, and
        they get no request. So all that holds for passive clients holds for them.

        Raises
        ------
        NobodyAnswers
            When all members that have not left decline a request, or none is left.
        """
        resume: Callable[[], Any] = partial(next, flow)
        while True:
            try:
                asked = resume()
            except StopIteration as finished:
                model: Model = finished.value
                return model
            if isinstance(asked, Message):
                asked = {name: asked for name in members if name not in self.lost}
            elif not isinstance(asked, Reject):  # a passive site would get what delivers a result
                asked = {name: one for name, one in asked.items() if name in members}
            try:
                replies = (yield asked) if asked else Replies({})
            except Exception as error:  # that the flow may handle
                if isinstance(error, GroupsTooSmall):
                    self.refused |= set(error.clients)
                resume = partial(flow.throw, error)
                continue
            self.note(replies)
            if not isinstance(asked, Reject) and self.lost.union(replies.declined).issuperset(
                members
            ):
                raise NobodyAnswers(f"passive, declined or lost: {listed(list(members))}")
            absent = {name for name in self.names if name not in members}.difference(self.lost)
            declined = [name for name in self.names if name in absent.union(replies.declined)]
            lost = [name for name in self.names if name in self.lost]
            resume = partial(flow.send, Replies(dict(replies), declined, lost, replies.combined))
