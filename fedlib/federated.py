"""The base of all estimators, and of clients that hold points.

``fit`` is ``run(self.protocol(), transport)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import _get_feature_names

from fedlib.ledger import Ledger
from fedlib.protocol import Client, Flow, Transport, agree, agree_on_names, run
from fedlib.transports.in_process import InProcess

__all__ = ["Federated", "PointsClient", "check_points", "feature_names", "protocols"]


class Federated(BaseEstimator):
    """Base class of the estimators.

    A subclass gives its protocol's ``name``, names its ``client_class``, gives the server flow by
    ``_flow`` and takes the flow's model in ``_set_model``.
    """

    name: ClassVar[str]
    client_class: ClassVar[type[Any]]
    labels_: Any
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def protocol(self) -> Flow[Any]:
        """Return a new server flow with this estimator's parameters.

        It can be driven by hand: ``next(flow)`` is the message that would leave.

        Raises
        ------
        ValueError
            When a parameter is out of range.
        """
        self._validate_params()
        return self._flow()

    def _flow(self) -> Flow[Any]:
        raise NotImplementedError

    def _set_model(self, model: Any) -> None:
        raise NotImplementedError

    def fit(
        self,
        parts: Sequence[Any] | Transport,
        *,
        passive: Collection[int] = (),
        min_clients: int | None = None,
    ) -> Self:
        """Run the protocol where the data live.

        Parameters
        ----------
        parts : list or Transport
            One part of the data a client, which are then run in this process, or a transport to
            clients that have their data.
        passive : collection of int, default=()
            The numbers of the parts whose clients receive the result and share nothing. Over a
            transport a client decides that itself.
        min_clients : int, optional
            How many clients must stay; by default all.

        Returns
        -------
        self
            With ``ledger_``; with ``labels_`` too if the parts were given: a list of one array a
            client, None for a client that was lost.

        Raises
        ------
        ValueError
            When a parameter or a part is not valid, or the parts do not fit together.
        TooFewClients
            When clients failed and fewer than ``min_clients`` are left.
        """
        return self._fit(parts, passive, min_clients)

    def _fit(
        self,
        parts: Sequence[Any] | Transport,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        options: Sequence[dict[str, Any]] | None = None,
    ) -> Self:
        """Do what `fit` does; ``options`` are each part's further arguments for its client."""
        flow = self.protocol()
        for fitted in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, fitted)
        clients: dict[str, Client] | None = None
        if isinstance(parts, Transport):
            transport = parts
            if passive:
                raise ValueError("passive is for parts; over a transport a client joins as passive")
        else:
            if not isinstance(parts, Sequence | np.ndarray):
                given = type(parts).__name__
                raise ValueError(f"parts must be a list, one part a client; got a {given}")
            clients = self._make_clients(parts, options or [{}] * len(parts), passive)
            transport = InProcess(clients)
        self.ledger_ = Ledger()
        if hasattr(transport, "ledger"):  # one that shows it while the run goes on
            transport.ledger = self.ledger_
        model = run(flow, transport, min_clients=min_clients, ledger=self.ledger_)
        self._set_model(model)
        if clients is not None:
            self._set_labels(clients)
        return self

    def _make_clients(
        self, parts: Sequence[Any], options: Sequence[dict[str, Any]], passive: Collection[int]
    ) -> dict[str, Client]:
        passive = set(_numbers(passive))
        strangers = passive.difference(range(len(parts)))
        if strangers:
            raise ValueError(f"passive must be in 0..{len(parts) - 1}, the parts; got {strangers}")
        clients = {}
        for i, (part, own) in enumerate(zip(parts, options, strict=True)):
            try:
                clients[str(i)] = client = self.client_class(part, **own)
            except (TypeError, ValueError) as error:
                raise ValueError(f"parts[{i}]: {error}") from error
            client.passive = i in passive
        if clients:
            self._check_clients(clients)
        return clients

    def _check_clients(self, clients: dict[str, Client]) -> None:
        """Raise ValueError where clients in this process do not fit together."""
        agree_on_names({name: c.features for name, c in clients.items()})
        agree("the number of features", {name: c.X.shape[1] for name, c in clients.items()})

    def _set_labels(self, clients: dict[str, Client]) -> None:
        lost = self.ledger_.lost
        self.labels_ = [None if name in lost else c.state.labels for name, c in clients.items()]


class PointsClient(Client):
    """A client and its points, an array-like (n_points, n_features) of finite numbers.

    Where the columns of a DataFrame have names, all clients' must be the same in the same order.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers. A client may have no points at all, but
        its table must have columns.
    """

    def __init__(self, X: ArrayLike):
        self.features = feature_names(X)
        self.X = check_points(X, ensure_min_samples=0)


def check_points(X: ArrayLike, **checks: Any) -> NDArray[np.float64]:
    """Return points as a C-ordered float64 array, or raise ValueError."""
    return check_array(X, dtype=np.float64, order="C", **checks)


def feature_names(X: ArrayLike) -> tuple[str, ...]:
    """Return the names of a DataFrame's columns; none where there are none."""
    names = _get_feature_names(X)
    return () if names is None else tuple(map(str, names))


def protocols() -> dict[str, type[Federated]]:
    """Return the estimator of every protocol there is, by the protocol's name.

    A class of one's own is among them as soon as it is defined: it derives from `Federated` and
    has a ``name``. Of two with one name the later counts.

    Examples
    --------
    >>> protocols()["horizontal-dbscan"].__name__
    'HorizontalDBSCAN'
    """
    found: dict[str, type[Federated]] = {}
    classes: list[type[Federated]] = [Federated]
    for estimator in classes:  # grows
        if "name" in vars(estimator):
            found[estimator.name] = estimator
        classes += estimator.__subclasses__()
    return dict(sorted(found.items()))


def _numbers(passive: Collection[int]) -> list[int]:
    """Return the numbers of the passive parts; a mask would make the wrong clients share."""
    listed = isinstance(passive, Iterable)
    numbers = list(passive) if listed else []
    mask = any(isinstance(i, bool | np.bool_) for i in numbers)
    if not listed or mask or not all(isinstance(i, Integral) for i in numbers):
        raise ValueError(f"passive must be a collection of the parts' numbers; got {passive!r}")
    return numbers
