"""The base class of estimators with ``secure``, ``epsilon`` and ``delta``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.agreed_columns import AgreedColumns
from fedlib.core.bounds import MAX_BOUND, Bounds, check_bounds
from fedlib.core.client import Client
from fedlib.core.estimator import Federated
from fedlib.core.names import listed
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Fraction,
    Kind,
    OptionalBounds,
    OptionalPositiveFloat,
)
from fedlib.core.protocol import Flow
from fedlib.protection.privacy.accounting import privacy_per_request
from fedlib.protection.secure.client import SecureClient
from fedlib.protection.secure.identities import simulated_identities
from fedlib.protection.sums import MaskedNoisySums, MaskedSums, NoisySums

__all__ = ["ProtectedFederated"]


class ProtectedFederated(Federated):
    """An estimator whose sums can be masked, or have noise, or both.

    A subclass has the parameters ``secure``, ``epsilon`` and ``delta``, and gives its flow what
    `_sums` or `_noisy_sums` returns. With ``secure=True``, `fit` simulates the sites' keys for a
    list of parts; over a transport, each client must be a `SecureClient`.
    """

    _: KW_ONLY
    secure: Annotated[
        Flag,
        "Whether the server sees sums over the clients and no client's reply.",
    ] = False
    epsilon: Annotated[
        OptionalPositiveFloat,
        "With an epsilon, the run is (epsilon, delta)-differentially private for each row.",
    ] = None
    delta: Annotated[
        Fraction,
        "The second parameter of the guarantee, at least 0 and below 1.",
    ] = 0.0

    bounds: Annotated[
        OptionalBounds,
        """
        The smallest and the largest value of each feature, on which the sites have agreed and which
        do not depend on the data: by the names of the columns, in their order, or as two rows.
        """,
    ] = None

    schema: Annotated[
        AgreedColumns | None,
        AgreedColumns,
        None,
        Kind("Schema"),
        """
        The columns on which the sites have agreed (`fedlib.Schema`). Its limits are `bounds` where
        they are needed, and the parts are whole tables, with the columns of classes and weights.
        """,
    ] = None
    known_bounds: Mapping[str, tuple[float, float]] | None = None  # if there are no others
    first_sum = 1  # the identifier of the first masked sum; a client answers each once in a run

    def protocol(self) -> Flow[Any]:
        if self.epsilon is None and self.delta:
            raise ValueError(f"delta needs epsilon, got delta={self.delta!r}")
        return super().protocol()

    def _like_fit(self, X: Any) -> Any:
        if self.schema is not None:
            X = self.schema.rows(X, is_protected(self))
        return super()._like_fit(X)

    def _bounds(self, largest: float = MAX_BOUND) -> Bounds:
        """Return the bounds of all features, which must lie within ±``largest``.

        Raises
        ------
        ValueError
            When there are none, or they are not valid.
        """
        if self.bounds is not None:
            return check_bounds(self.bounds, largest)
        if self.known_bounds is not None:
            return check_bounds(self.known_bounds, largest)
        if self.schema is None:
            what = "secure=True" if self.epsilon is None else "epsilon"
            raise ValueError(
                f"{what} needs bounds, the smallest and the largest value of each feature, because"
                " the data must not determine them, or a schema with them; got None"
            )
        limits, names = self.schema.limits, self.schema.features
        unlimited = (np.nan, np.nan)
        if lacking := [n for n in names if not np.isfinite(limits.get(n, unlimited)).all()]:
            raise ValueError(
                f"the run needs a minimum and a maximum of {listed(lacking)} in the schema; a"
                " column of text needs FederatedPipeline(..., encode='one_hot', schema=...)"
            )
        return check_bounds({name: limits[name] for name in names}, largest)

    def _aggregation(self, n_requests: int, bounds: Bounds | None = None) -> Aggregation:
        """Return the sums of a run: in the clear, masked, noisy, or both.

        Parameters
        ----------
        n_requests : int
            As for `_noisy_sums`.
        bounds : Bounds, optional
            Those of all columns. The clients must have columns of their names, in their order.
        """
        if self.epsilon is not None:
            return self._noisy_sums(n_requests, bounds)
        sums = self._sums()
        sums.features = () if bounds is None else bounds.names
        return sums

    def _sums(self) -> Aggregation:
        """Return the sums of a run without noise."""
        return MaskedSums(self.first_sum) if self.secure else Aggregation()

    def _noisy_sums(self, n_requests: int, bounds: Bounds | None = None) -> NoisySums:
        """Return the sums of a run with noise; all requests have the same privacy loss.

        Parameters
        ----------
        n_requests : int
            The largest number of requests for data, which must not depend on the data.
        bounds : Bounds, optional
            Those of all columns.

        Raises
        ------
        ValueError
            When epsilon or delta is out of range, or masked sums are to have noise with delta=0.
        """
        if self.secure and not self.delta:
            raise ValueError(
                "secure=True with epsilon needs delta > 0, because only Gaussian noise is shared"
                f" among the clients; got delta={self.delta}"
            )
        assert self.epsilon is not None
        privacy = privacy_per_request(self.epsilon, self.delta, n_requests)
        aggregation = (
            MaskedNoisySums(privacy, self.first_sum) if self.secure else NoisySums(privacy)
        )
        aggregation.features = () if bounds is None else bounds.names
        return aggregation

    def _client_factory(
        self, options: Sequence[dict[str, Any]]
    ) -> tuple[Any, Sequence[dict[str, Any]]]:
        make, options = super()._client_factory(options)
        if self.schema is None:
            return make, options
        supervised = getattr(make, "supervised", False)
        return self.schema.clients(make, is_protected(self), supervised), options

    def _make_clients(
        self,
        names: Sequence[str],
        parts: Mapping[str, Any],
        client_class: type[Any],
        options: Sequence[Mapping[str, Any]],
        passive: Collection[int],
    ) -> dict[str, Client]:
        clients = super()._make_clients(names, parts, client_class, options, passive)
        return mask_clients(clients) if self.secure else clients


def is_protected(estimator: Any) -> bool:
    """Return whether the server of a run sees only sums over the clients, or noise."""
    return bool(getattr(estimator, "secure", False)) or (
        getattr(estimator, "epsilon", None) is not None
    )


def mask_clients(clients: Mapping[str, Client]) -> dict[str, Client]:
    """Return clients of this process that send data only as terms of secure sums."""
    identities = simulated_identities(list(clients))
    return {name: SecureClient(one, identities[name]) for name, one in clients.items()}
