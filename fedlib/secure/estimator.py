"""The base class of estimators with ``secure=True``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fedlib.client import Client
from fedlib.federated import Federated
from fedlib.secure.client import SecureClient
from fedlib.secure.identities import simulated_identities

__all__ = ["SecureFederated"]


class SecureFederated(Federated):
    """An estimator whose server can work with secure sums alone.

    A subclass has the parameter ``secure``. For a list of parts, `fit` then simulates the sites'
    keys; over a transport, each client must be a `SecureClient`.
    """

    secure: bool

    def _make_clients(
        self, parts: Sequence[Any], options: Sequence[dict[str, Any]], passive: Collection[int]
    ) -> dict[str, Client]:
        clients = super()._make_clients(parts, options, passive)
        if not self.secure:
            return clients
        identities = simulated_identities(list(clients))
        return {name: SecureClient(one, identities[name]) for name, one in clients.items()}
