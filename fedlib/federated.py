"""The base of all estimators: ``fit`` is ``run(self.protocol(), transport)``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator

from fedlib.ledger import Ledger
from fedlib.protocol import Client, Flow, Transport, agree, agree_on_names, run
from fedlib.transports.in_process import InProcess

__all__ = ["Federated"]


class Federated(BaseEstimator):
    """Base class of the estimators.

    A subclass names its ``client_class``, gives the server flow by ``protocol`` and takes the
    flow's model in ``_set_model``.
    """

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
        agree("the number of features", {name: c.X.shape[1] for name, c in clients.items()})
        agree_on_names({name: c.features for name, c in clients.items()})

    def _set_labels(self, clients: dict[str, Client]) -> None:
        lost = self.ledger_.lost
        self.labels_ = [None if name in lost else c.state.labels for name, c in clients.items()]


def _numbers(passive: Collection[int]) -> list[int]:
    """Return the numbers of the passive parts; a mask would make the wrong clients share."""
    listed = isinstance(passive, Iterable)
    numbers = list(passive) if listed else []
    mask = any(isinstance(i, bool | np.bool_) for i in numbers)
    if not listed or mask or not all(isinstance(i, Integral) for i in numbers):
        raise ValueError(f"passive must be a collection of the parts' numbers; got {passive!r}")
    return numbers
