"""The base class of estimators with ``secure``, ``epsilon`` and ``delta``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from fedlib.core.aggregation import Aggregation, AgreedColumns
from fedlib.core.client import Client, roles_of
from fedlib.core.column_names import listed
from fedlib.core.columns import TEXT
from fedlib.core.estimator import Federated
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Fraction,
    Kind,
    OptionalBounds,
    OptionalPositiveFloat,
)
from fedlib.core.points import MAX_BOUND, MAX_WEIGHT, Bounds, check_bounds
from fedlib.core.protocol import Flow
from fedlib.protection.privacy.accounting import privacy_per_request
from fedlib.protection.secure.client import SecureClient
from fedlib.protection.secure.identities import simulated_identities
from fedlib.protection.sums import MaskedNoisySums, MaskedSums, NoisySums


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
    n_runs = 1  # in how many runs a row takes part, which share epsilon and delta

    def protocol(self) -> Flow[Any]:
        self._validate_params()
        if self.epsilon is None and self.delta:
            raise ValueError(f"delta needs epsilon, got delta={self.delta!r}")
        lacking = self._lacking()
        if self.schema is not None:
            lacking += in_schema(self._lacking_in(self.schema))
            lacking += self._pipelines(self.schema)
        elif self.bounds is None and self.known_bounds is None and is_protected(self):
            lacking.append(
                "bounds, the smallest and the largest value of each feature, because the data must"
                " not determine them, or a schema with them (got bounds=None)"
            )
        check_nothing_lacks(self, lacking)
        return super().protocol()

    def _lacking(self) -> list[str]:
        """Return the other parameters that the run needs, each with its remedy, for one error."""
        lacking = []
        if self.secure and self.epsilon is not None and not self.delta:
            lacking.append(
                "delta > 0, because only Gaussian noise is shared among the clients (got"
                f" delta={self.delta})"
            )
        return lacking

    def _lacking_in(self, schema: AgreedColumns) -> list[str]:
        """Return everything that the run needs of a schema."""
        return schema.lacking() if is_protected(self) else []

    def _pipelines(self, schema: AgreedColumns) -> list[str]:
        """Return what makes numbers of the text in a schema, unless the clients take text."""
        texts = [c.name for c in schema.columns if c.role == "feature" and c.kind == TEXT]
        if not is_protected(self) or getattr(self.client_class, "raw", False) or not texts:
            return []
        return [
            "FederatedPipeline(..., encode='one_hot', schema=...), because there is text in"
            f" {listed(texts)}"
        ]

    def _refuse_limits(self) -> None:
        """Raise ValueError when a run without masks and noise has limits, which it would ignore."""
        for name, verb in (("bounds", "need"), ("max_weight", "needs")):
            if getattr(self, name, None) is not None:
                raise ValueError(f"{name} {verb} secure=True or epsilon, got neither")

    def _like_fit(self, X: Any) -> Any:
        if self.schema is not None:
            X = self.schema.rows(X, is_protected(self))
        return super()._like_fit(X)

    def _bounds(self, largest: float = MAX_BOUND) -> Bounds:
        """Return the bounds of all features, which must lie within ±``largest``.

        Raises
        ------
        ValueError
            When they are not valid.
        """
        if self.bounds is not None:
            return check_bounds(self.bounds, largest)
        if self.known_bounds is not None:
            return check_bounds(self.known_bounds, largest)
        assert self.schema is not None  # or `_lacking` has named the bounds
        limits = self.schema.limits
        return check_bounds({name: limits[name] for name in self.schema.features}, largest)

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
            The largest count of requests for data, which must not depend on the data.
        bounds : Bounds, optional
            Those of all columns.

        Raises
        ------
        ValueError
            When epsilon or delta is out of range.
        """
        assert self.epsilon is not None
        privacy = privacy_per_request(self.epsilon, self.delta, n_requests * self.n_runs)
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
        return self.schema.clients(make, is_protected(self), roles_of(make)), options

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


class WeightedFederated(ProtectedFederated):
    """An estimator whose rows may have weights, of which protected sums need the largest one.

    Its clients have ``takes_weights`` (`fedlib.core.points.PointsClient`).
    """

    _: KW_ONLY
    max_weight: Annotated[
        OptionalPositiveFloat,
        """
        With `secure` or `epsilon`, and rows that have weights: the largest weight, on which the
        sites have agreed and to which they clip. A site logs how many of its weights are larger. By
        default the limit of the weights in `schema`.
        """,
    ] = None

    def _largest_weight(self) -> float | None:
        """Return the largest weight of a row in a protected run, or None if rows have no weights.

        Raises
        ------
        ValueError
            When it is 0, or more than all weights of a client may be.
        """
        largest = self.max_weight
        if largest is None and self.schema is not None and self.schema.weight is not None:
            largest = self.schema.limits[self.schema.weight][1]
        if largest is not None and not 0 < largest <= MAX_WEIGHT:
            raise ValueError(
                "max_weight, or the largest weight in the schema, must be above 0 and at most"
                f" 2**40, got {largest:g}"
            )
        return largest


def is_protected(estimator: Any) -> bool:
    """Return whether the server of a run sees only sums over the clients, or noise."""
    return bool(getattr(estimator, "secure", False)) or (
        getattr(estimator, "epsilon", None) is not None
    )


def check_nothing_lacks(estimator: Any, lacking: Sequence[str]) -> None:
    """Raise ValueError with everything that a run still needs, before any message.

    Parameters
    ----------
    estimator : Federated
        The estimator of the protocol.
    lacking : sequence of str
        Each with its remedy.
    """
    given = {"secure=True": getattr(estimator, "secure", False)}
    given["epsilon"] = getattr(estimator, "epsilon", None) is not None
    what = " with ".join(name for name, is_given in given.items() if is_given) or "the run"
    if lacking:
        raise ValueError(f"{what} needs {'; '.join(lacking)}")


def in_schema(lacking: Sequence[str]) -> list[str]:
    """Return what a schema lacks as one thing that a run needs, or none."""
    return [f"in the schema of all sites {', '.join(lacking)}"] if lacking else []


def mask_clients(clients: Mapping[str, Client]) -> dict[str, Client]:
    """Return clients of this process that send data only as terms of secure sums."""
    identities = simulated_identities(list(clients))
    return {name: SecureClient(one, identities[name]) for name, one in clients.items()}
