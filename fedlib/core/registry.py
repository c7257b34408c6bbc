"""The estimators and the clients by the names of their protocols.

No module imports the estimators for this: they are read from the package when a name is asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlib.core.estimator import Federated


ALIGNED, PIPELINE, LEAVE_ONE_OUT = "aligned/", "pipeline/", "leave-one-site-out/"
WRAPPERS = {
    PIPELINE: "FederatedPipeline",
    ALIGNED: "AlignedRows",
    LEAVE_ONE_OUT: "LeaveOneSiteOut",
}
# The clients whose modules import no estimator, so that a site starts without scikit-learn.
CLIENTS = {
    "xgboost": ("fedlib.boosting.client", "BoostingClient"),
    "xgb-regressor": ("fedlib.boosting.client", "RegressionClient"),
}


def wrappers() -> dict[str, type[Federated]]:
    """Return the estimators that wrap another one, by the prefix of their protocols' names."""
    return {prefix: _wrapper(prefix) for prefix in WRAPPERS}


def _wrapper(prefix: str) -> type[Federated]:
    wrapper: type[Federated] = getattr(import_module("fedlib"), WRAPPERS[prefix])
    return wrapper


def wrapper_of(protocol: str) -> tuple[type[Federated] | None, str]:
    """Return the estimator that wraps another one, if any, and the name of the other's protocol.

    Examples
    --------
    >>> wrapper_of("pipeline/kmeans")
    (<class 'fedlib.tables.pipeline.estimator.FederatedPipeline'>, 'kmeans')
    >>> wrapper_of("kmeans")
    (None, 'kmeans')
    """
    for prefix in WRAPPERS:
        if protocol.startswith(prefix):
            return _wrapper(prefix), protocol.removeprefix(prefix)
    return None, protocol


def unwrapped(protocol: str) -> tuple[list[type[Federated]], str]:
    """Return the estimators that wrap others, the outermost first, and the name of the innermost.

    Examples
    --------
    >>> around, name = unwrapped("leave-one-site-out/pipeline/kmeans")
    >>> [estimator.__name__ for estimator in around], name
    (['LeaveOneSiteOut', 'FederatedPipeline'], 'kmeans')
    """
    around: list[type[Federated]] = []
    wrapper, name = wrapper_of(protocol)
    while wrapper is not None:
        around.append(wrapper)
        wrapper, name = wrapper_of(name)
    return around, name


def innermost(estimator: Federated) -> Federated:
    """Return the estimator of the protocol inside all that wrap it."""
    while hasattr(estimator, "estimator"):
        estimator = estimator.estimator
    return estimator


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
        of_pipelines = protocol.startswith(LEAVE_ONE_OUT + PIPELINE)
        nests = wrapper_of(inner)[0] is not None and not of_pipelines
        return None if nests or find_estimator(inner) is None else wrapper
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
