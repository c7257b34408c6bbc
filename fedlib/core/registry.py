"""The estimators and the clients by the names of their protocols.

No module imports the estimators for this: they are read from the package when a name is asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlib.core.estimator import Federated

__all__ = [
    "ALIGNED",
    "PIPELINE",
    "find_client",
    "find_estimator",
    "protocols",
    "wrapper_of",
    "wrappers",
]

ALIGNED, PIPELINE = "aligned/", "pipeline/"
# The clients whose modules import no estimator, so that a site starts without scikit-learn.
CLIENTS = {
    "xgboost": ("fedlib.boosting.client", "BoostingClient"),
    "xgb-regressor": ("fedlib.boosting.client", "RegressionClient"),
}


def wrappers() -> dict[str, type[Federated]]:
    """Return the estimators that wrap another one, by the prefix of their protocols' names."""
    package = import_module("fedlib")
    return {PIPELINE: package.FederatedPipeline, ALIGNED: package.AlignedRows}


def wrapper_of(protocol: str) -> tuple[type[Federated] | None, str]:
    """Return the estimator that wraps another one, if any, and the name of the other's protocol.

    Examples
    --------
    >>> wrapper_of("pipeline/kmeans")
    (<class 'fedlib.tables.pipeline.federated.FederatedPipeline'>, 'kmeans')
    >>> wrapper_of("kmeans")
    (None, 'kmeans')
    """
    for prefix in (PIPELINE, ALIGNED):
        if protocol.startswith(prefix):
            return wrappers()[prefix], protocol.removeprefix(prefix)
    return None, protocol


def find_estimator(protocol: str) -> type[Federated] | None:
    """Return the estimator of a protocol, or None if there is no such protocol.

    Equal to ``protocols().get(protocol)``, but a class of this package that is named like its
    protocol is found without importing the others.

    Examples
    --------
    >>> find_estimator("horizontal-dbscan").__name__
    'HorizontalDBSCAN'
    >>> find_estimator("xgboost").__name__
    'FederatedXGBClassifier'
    >>> find_estimator("pipeline/xgboost").__name__
    'FederatedPipeline'
    >>> find_estimator("dbscan") is None
    True
    """
    wrapper, inner = wrapper_of(protocol)
    if wrapper is not None:
        return None if find_estimator(inner) is None else wrapper
    package = import_module("fedlib")
    for name in package.__all__:
        if name.lower() in {protocol.replace("-", ""), f"federated{protocol.replace('-', '')}"}:
            estimator: type[Federated] = getattr(package, name)
            # A subclass may have the same protocol name; then `protocols` decides.
            if estimator.name == protocol and not estimator.__subclasses__():
                return estimator
    return protocols().get(protocol)


def find_client(protocol: str) -> type[Any] | None:
    """Return the class of a protocol's clients, or None if there is no such protocol.

    Equal to ``find_estimator(protocol).client_class``. If no estimator has been imported, the
    clients of some protocols are found without them.

    Examples
    --------
    >>> find_client("xgboost").__name__, find_client("dbscan")
    ('BoostingClient', None)
    """
    if protocol in CLIENTS and "fedlib.core.estimator" not in sys.modules:
        module, name = CLIENTS[protocol]
        found: type[Any] = getattr(import_module(module), name)
        return found
    return getattr(find_estimator(protocol), "client_class", None)


def protocols() -> dict[str, type[Federated]]:
    """Return the estimator of each protocol, by the protocol's name.

    They are the estimators of this package and every other subclass of `Federated` that has a
    ``name`` and has been imported. If two have the same name, the later definition counts.

    Examples
    --------
    >>> protocols()["horizontal-dbscan"].__name__
    'HorizontalDBSCAN'
    """
    from fedlib.core.estimator import Federated

    package = import_module("fedlib")
    for attribute in package.__all__:  # loads the modules of all estimators
        getattr(package, attribute)
    by_name: dict[str, type[Federated]] = {}
    classes: list[type[Federated]] = [Federated]
    for estimator in classes:  # grows while it is read
        name = vars(estimator).get("name")
        if isinstance(name, str):  # the name of a pipeline is a property
            by_name[name] = estimator
        classes += estimator.__subclasses__()
    return dict(sorted(by_name.items()))
