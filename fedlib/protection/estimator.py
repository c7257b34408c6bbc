"""The base class of estimators with ``secure``, ``epsilon`` and ``delta``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from fedlib.core.aggregation import Aggregation
from fedlib.core.bounds import MAX_BOUND, Bounds, check_bounds
from fedlib.core.client import Client
from fedlib.core.estimator import Federated
from fedlib.core.parameters import KW_ONLY, Flag, Fraction, OptionalBounds, OptionalPositiveFloat
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

    def protocol(self) -> Flow[Any]:
        if self.epsilon is None and self.delta:
            raise ValueError(f"delta needs epsilon, got delta={self.delta!r}")
        return super().protocol()

    def _bounds(self, largest: float = MAX_BOUND) -> Bounds:
        """Return the bounds of all features, which must lie within ±``largest``.

        Raises
        ------
        ValueError
            When there are none, or they are not valid.
        """
        if self.bounds is None:
            what = "secure=True" if self.epsilon is None else "epsilon"
            raise ValueError(
                f"{what} needs bounds, the smallest and the largest value of each feature, because"
                " the data must not determine them; got None"
            )
        return check_bounds(self.bounds, largest)

    def _sums(self, bounds: Bounds | None = None) -> Aggregation:
        """Return the sums of a run without noise, of columns with these bounds."""
        aggregation = MaskedSums() if self.secure else Aggregation()
        aggregation.features = () if bounds is None else bounds.names
        return aggregation

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
        aggregation = MaskedNoisySums(privacy) if self.secure else NoisySums(privacy)
        aggregation.features = () if bounds is None else bounds.names
        return aggregation

    def _make_clients(
        self,
        parts: Mapping[str, Any],
        client_class: type[Any],
        options: Sequence[Mapping[str, Any]],
        passive: Collection[int],
    ) -> dict[str, Client]:
        clients = super()._make_clients(parts, client_class, options, passive)
        if not self.secure:
            return clients
        identities = simulated_identities(list(clients))
        return {name: SecureClient(one, identities[name]) for name, one in clients.items()}
