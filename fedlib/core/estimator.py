"""The base class of the estimators.

``fit`` is ``run(self.protocol(), transport)``.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self, dataclass_transform

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import agree_on_features
from fedlib.core.array_types import Floats
from fedlib.core.client import Client
from fedlib.core.column_names import in_common_order, in_order
from fedlib.core.columns import check_no_identifiers
from fedlib.core.in_process import InProcess, Parts
from fedlib.core.journal import Journal
from fedlib.core.ledger import Ledger
from fedlib.core.parameters import declare, plain_value
from fedlib.core.points import check_points
from fedlib.core.protocol import Flow, LocalTransport, TooFewClients, Transport, run
from fedlib.core.search import searching

EXAMPLE_BOUNDS = ((-3.0, -3.0), (7.0, 7.0))  # of the points of examples


@dataclass(frozen=True)
class Example:
    """A small run of a protocol: every list of all protocols is a loop over these.

    Parameters
    ----------
    parts : {"rows", "columns", "classes", "numbers", "probabilities", "estimates"}
        What each client holds: points in the plane, one column of all points, points with classes
        or numbers, probabilities with classes, or predicted numbers with numbers.
    parameters : mapping of str to Any
        The parameters of the estimator with which a run takes less than a second.
    protected : mapping of str to Any, optional
        What it needs besides for sums that are masked or have noise. None if it has no such sums.
    masked, noisy : mapping of str to Any
        What only one of them needs.
    """

    parts: str
    parameters: Mapping[str, Any]
    protected: Mapping[str, Any] | None = None
    masked: Mapping[str, Any] = field(default_factory=dict)
    noisy: Mapping[str, Any] = field(default_factory=dict)


@dataclass_transform()
class Federated(BaseEstimator):
    """Base class of the estimators.

    A subclass sets the protocol's ``name`` and ``client_class``, returns the server flow from
    ``_flow``, and derives its fitted attributes from the flow's model in ``_set_model``.

    Attributes
    ----------
    name : str
        The protocol's name on the command line.
    client_class : type of Client
        The class of the protocol's clients, called with one part of the data.
    example : Example
        A small run, with which tests check what all protocols promise.
    former_names : dict of str to str
        The present names of parameters, by those that earlier versions wrote into model files.
    former_values : dict of str to Any
        The values of parameters that the model files of earlier versions do not contain, where they
        differ from the present defaults.
    same_columns : bool
        Whether the clients hold rows of the same columns, which `fit` puts into one order.
    has_labels : bool
        Whether each client has labels of its rows after a run.
    """

    name: ClassVar[str]
    client_class: ClassVar[type[Any]]
    example: ClassVar[Example]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}
    former_names: ClassVar[dict[str, str]] = {}
    former_values: ClassVar[dict[str, Any]] = {}
    same_columns: ClassVar[bool] = True
    has_labels: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declare(cls)

    def protocol(self) -> Flow[Any]:
        """Return a new server flow with this estimator's parameters.

        You can drive it by hand: ``next(flow)`` is the first request.

        Raises
        ------
        ValueError
            When a parameter is out of range.
        """
        self._validate_params()
        again = self._repeated_flow()
        flow = self._plain()._flow()
        searched: Any = searching(flow, again)
        searched.__qualname__ = getattr(flow, "__qualname__", "")  # by which a journal knows it
        return searched

    def _plain(self) -> Self:
        """Return a copy whose parameters are plain Python values."""
        plain = copy.copy(self)
        for name, constraints in self._parameter_constraints.items():
            setattr(plain, name, plain_value(getattr(self, name), constraints))
        return plain

    def _repeated_flow(self) -> Callable[[], Flow[Any]]:
        """Return a function that returns the flow again, which then draws the same numbers."""
        drawn = {
            name: copy.deepcopy(value)
            for name, value in self.get_params().items()
            if isinstance(value, np.random.RandomState)
        }
        common = check_random_state(None)  # which random_state=None stands for
        first = common.get_state()

        def again() -> Flow[Any]:
            before = common.get_state()
            common.set_state(first)
            try:
                return self._with(copy.deepcopy(drawn))._plain()._flow()
            finally:
                common.set_state(before)

        return again

    def _with(self, parameters: Mapping[str, Any]) -> Self:
        """Return a copy with other parameters, also of an estimator inside this one.

        A clone would not be fitted, and could not continue a model.
        """
        other = copy.copy(self)
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, Federated):
                setattr(other, name, copy.copy(value))
        return other.set_params(**parameters)

    def _flow(self) -> Flow[Any]:
        """Return the server flow; the parameters are valid, and plain Python values."""
        raise NotImplementedError

    def _set_model(self, model: Any) -> None:
        """Set the fitted attributes; subclasses add theirs.

        A loaded estimator gets its attributes here too, so they must depend on nothing but the
        model.
        """
        self.model_ = model

    def fit(
        self,
        parts: Sequence[Any] | Transport,
        *,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        verbose: bool | int = False,
    ) -> Self:
        """Fit the model to the data of several clients.

        Parameters
        ----------
        parts : list, mapping, Series or Transport
            A list with one part of the data per client, or a mapping or Series with their names, to
            run all clients in this process; or a transport to clients that hold their data. Columns
            with names may have another order in each part.
        passive : collection of int, default=()
            The indices of the parts whose clients receive the result but share nothing. Over a
            transport to other sites, each client decides this itself.
        min_clients : int, optional
            The count of clients that must remain to the end; by default all.
        journal : path, optional
            A file that records the run. After a crash the same call continues the run: it reads the
            recorded replies and asks the clients only for what is missing. For a list of parts, the
            file also contains the states of the clients. It contains private data; its mode is
            0600. See `fedlib.core.journal`.
        verbose : bool or int, default=False
            True: print a line about the run at most once per second, and one at its end; 2: one per
            step. Nothing crosses the network for it.

        Returns
        -------
        self
            With ``ledger_``. If a list was given, also with ``labels_``: a list with one array per
            client, None for a client that was lost. On Dask, ``labels_`` is a Dask Series or Array.
            If `fit` raises an error, the fitted attributes are those of before.

        Raises
        ------
        ValueError
            When a parameter or a part is invalid, the parts do not fit together, or the result does
            not fit the rows of a part; with ``min_clients``, the latter is a warning.
        TooFewClients
            When clients failed and fewer than ``min_clients`` remain. If the clients are in this
            process, the error of the client that failed is raised instead, with notes about the
            other clients.
        fedlib.core.journal.JournalError
            A ValueError: when the journal is of another run, damaged or in use.
        """
        return self._fit(parts, passive, min_clients, journal=journal, verbose=verbose)

    def _fit(
        self,
        parts: Sequence[Any] | Transport,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        options: Sequence[dict[str, Any]] | None = None,
        journal: str | os.PathLike[str] | None = None,
        verbose: bool | int = False,
    ) -> Self:
        """Do the work of `fit`; ``options`` contains other arguments of each part's client."""
        if journal is None:
            return self._run(self, parts, passive, min_clients, options, verbose=verbose)
        with Journal(journal) as opened:
            seeded = self._with_recorded_seed(opened)
            return self._run(seeded, parts, passive, min_clients, options, opened, verbose)

    def _with_recorded_seed(self, journal: Journal) -> Federated:
        """Return this estimator, or one with the journal's seed instead of ``random_state=None``.

        The seed is recorded, so that the run that continues this one draws the same numbers.
        """
        parameters = self.get_params()
        seedless = [  # also those of an estimator inside this one
            name
            for name, value in parameters.items()
            if value is None and name.rpartition("__")[2] == "random_state"
        ]
        seed = int(check_random_state(None).randint(2**31 - 1)) if seedless else 0
        seed = journal.begin(getattr(self, "name", type(self).__name__), parameters, seed)
        return self._with(dict.fromkeys(seedless, seed)) if seedless else self

    def _run(
        self,
        seeded: Federated,
        parts: Sequence[Any] | Transport,
        passive: Collection[int],
        min_clients: int | None,
        options: Sequence[dict[str, Any]] | None,
        journal: Journal | None = None,
        verbose: bool | int = False,
    ) -> Self:
        """Run the protocol of the estimator ``seeded`` and set the fitted attributes.

        They are set on a copy and kept when all are there: an error leaves the former ones.
        """
        flow, names = seeded.protocol(), seeded._column_names()
        make = partial(self._make_clients, names)
        transport = parts if isinstance(parts, Transport) else Parts(parts, make)
        if isinstance(transport, LocalTransport):
            _check_keys(seeded, transport)
            given = options or seeded._client_options(len(transport.clients))
            transport.create_clients(
                *seeded._client_factory(given), _indices_within(passive, transport.clients)
            )
        elif passive:
            raise ValueError(
                "passive applies to a list of parts; over a transport, a client joins as passive;"
                f" got {passive!r}"
            )
        ledger = Ledger()
        model = _model_of(
            flow,
            transport,
            min_clients=min_clients,
            ledger=ledger,
            journal=journal,
            verbose=verbose,
        )
        if isinstance(transport, Parts):
            transport.report_problems(ledger.lost, min_clients)
        fitted = copy.copy(self)
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(fitted, name)
        fitted.ledger_ = ledger
        fitted._set_model(model)
        fitted._set_names(ledger.features)
        if isinstance(transport, LocalTransport):
            fitted._set_labels(transport)
        if isinstance(transport, Parts):
            transport.close()
        # One by one, because two estimators that share their dictionary could lose what is in it to
        # the garbage collector of Python 3.13.0: https://github.com/python/cpython/issues/130327
        for name in vars(self).keys() - vars(fitted).keys():
            delattr(self, name)
        for name, value in vars(fitted).items():
            setattr(self, name, value)
        return self

    def _set_labels(self, host: LocalTransport) -> None:
        """Set the labels of the rows of all clients, if the protocol has labels."""
        if self._has_labels():
            reader = copy.copy(self)
            del reader.ledger_  # the reader may be sent to workers, which do not need it
            self.labels_ = host.labels(reader._labels_of, self.ledger_.lost)

    def _has_labels(self) -> bool:
        """Return whether `fit` sets the labels of the rows of all clients."""
        return self.has_labels

    def _labels_of(self, client: Client) -> NDArray[Any] | None:
        """Return the labels of the rows of one client after a run."""
        return getattr(client.state, "labels", None)

    def _client_factory(
        self, options: Sequence[dict[str, Any]]
    ) -> tuple[type[Any], Sequence[dict[str, Any]]]:
        """Return the class of the clients and all arguments of each, except its data."""
        return self.client_class, options

    def _client_options(self, n_parts: int) -> Sequence[dict[str, Any]]:
        """Return further arguments of the client of each part."""
        return [{}] * n_parts

    def _make_clients(
        self,
        names: Sequence[str],
        parts: Mapping[str, Any],
        client_class: type[Any],
        options: Sequence[Mapping[str, Any]],
        passive: Collection[int],
    ) -> dict[str, Client]:
        clients: dict[str, Client] = {}
        parts = in_common_order(parts, names) if self.same_columns else parts
        for i, ((name, part), arguments) in enumerate(zip(parts.items(), options, strict=True)):
            try:
                clients[name] = client = client_class(part, **arguments)
                check_no_identifiers(client)
            except (TypeError, ValueError) as error:
                row = isinstance(part, list | np.ndarray) and len(part) and np.isscalar(part[0])
                advice = "; parts is a list of tables: for one client pass [X]" if row else ""
                raise ValueError(f"parts[{name}]: {error}{advice}") from error
            client.passive = i in passive
        if clients:
            self._check_clients(clients)
        return clients

    @property
    def _start(self) -> Any:
        """The model that `fit` continues, by ``warm_start``; None if it begins a new one."""
        return vars(self).get("model_") if getattr(self, "warm_start", False) else None

    def _column_names(self) -> tuple[str, ...]:
        """Return the names of the columns before the run, if they are known.

        They are those of the model that the run continues. A schema has its own order.
        """
        if self._start is None or getattr(self, "schema", None) is not None:
            return ()
        return tuple(getattr(self, "feature_names_in_", ()))

    def _check_clients(self, clients: dict[str, Client]) -> None:
        """Raise ValueError when clients in this process do not fit together."""
        agree_on_features(clients)

    def _set_names(self, names: Sequence[str]) -> None:
        """Keep the names of the columns, by which `_like_fit` finds those of new rows."""
        if len(names) == getattr(self, "n_features_in_", 0) > 0:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _like_fit(self, X: Any) -> Any:
        """Return new rows with their columns in the order of `fit`.

        Raises
        ------
        NotFittedError
            When `fit` has not been called.
        ValueError
            When the names of columns are not those of `fit`.
        """
        check_is_fitted(self, "model_")
        return in_order(X, tuple(getattr(self, "feature_names_in_", ())))

    def _new_points(self, X: ArrayLike) -> Floats:
        """Return new rows like those of `fit`, as finite numbers; there may be none."""
        return check_points(self._like_fit(X), ensure_min_samples=0)

    def report(self) -> str:
        """Return the result as text, which the command line prints after a run.

        It is the table of ``to_frame``, and empty for an estimator that has none.
        """
        to_frame = getattr(self, "to_frame", None)
        return (
            ""
            if to_frame is None
            else to_frame().to_string(na_rep="", float_format="{:.6g}".format)
        )


class Clusterer:
    """What all estimators of clusters have; a mixin class."""

    def fit_predict(self, parts: Sequence[Any] | LocalTransport, **options: Any) -> Any:
        """Fit the model and return the cluster of each row, as scikit-learn's clusterers do.

        Parameters
        ----------
        parts : list, mapping, Series or LocalTransport
            As for `fit`. Over a transport to other sites, the labels stay at the sites.
        **options
            Those of `fit`.

        Returns
        -------
        list of array, or array
            ``labels_``.

        Raises
        ------
        ValueError
            When ``parts`` is a transport to other sites, before any message; and as `fit`.

        Examples
        --------
        >>> from fedlib import HorizontalDBSCAN
        >>> HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit_predict([[[0.1], [0.2]], [[5.0]]])
        [array([0, 0]), array([-1])]
        """
        elsewhere = isinstance(parts, Transport) and not isinstance(parts, LocalTransport)
        if elsewhere and self._has_labels():  # type: ignore[attr-defined]
            raise ValueError(
                "fit_predict needs the data of all clients, such as a list of parts: over a"
                f" transport the labels stay at the sites; got {type(parts).__name__}"
            )
        return self.fit(parts, **options).labels_  # type: ignore[attr-defined]


def _model_of(flow: Flow[Any], transport: Transport, **options: Any) -> Any:
    """Return the model of `run`; raise a client's own error if it is in this process."""
    try:
        return run(flow, transport, **options)
    except TooFewClients as ended:
        error = transport.own_error(ended) if isinstance(transport, InProcess) else None
        if error is None:
            raise
    raise error  # outside of the clause, so that the user does not read of both


def _check_keys(estimator: Federated, host: LocalTransport) -> None:
    """Raise ValueError when an estimator, or one inside it, needs keys that its clients lack."""
    if isinstance(host, Parts):  # simulates them
        return
    parameters = estimator.get_params().items()
    masked = [name for name, value in parameters if name.rpartition("__")[2] == "secure" and value]
    if masked:
        raise ValueError(
            f"{masked[0]} must be False over {type(host).__name__}, got True: its clients have no"
            " keys for secure sums, because all data belong to one user; for a trial of masks, fit"
            " a list of parts"
        )


def _indices_within(passive: Collection[int], parts: Sequence[Any]) -> set[int]:
    """Return the indices of the passive parts; a boolean mask would select other parts."""
    indices = list(passive) if isinstance(passive, Iterable) else [None]
    if not all(isinstance(i, Integral) and not isinstance(i, bool | np.bool_) for i in indices):
        raise ValueError(f"passive must be a collection of indices of parts; got {passive!r}")
    if unknown := sorted(set(indices) - set(range(len(parts)))):
        raise ValueError(
            f"passive must contain indices of parts, 0..{len(parts) - 1}; got {unknown}"
        )
    return set(map(int, indices))
