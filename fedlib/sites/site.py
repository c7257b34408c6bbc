"""A site's client, made from the name of a protocol, the site's rows and additional options.

The command line and the Flower app create their clients here.
"""

from __future__ import annotations

import codecs
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fedlib.core.client import Client, roles_of
from fedlib.core.columns import check_no_identifiers
from fedlib.core.registry import (
    find_client,
    find_estimator,
    protocols,
    unwrapped,
    wrapper_of,
    wrappers,
)
from fedlib.core.site_memory import TableMemory
from fedlib.protection.secure import Identity, SecureClient
from fedlib.tables.files import Table

if TYPE_CHECKING:
    from fedlib.core.estimator import Federated


def takes_raw_tables(protocol: str) -> bool:
    """Return whether the clients of a protocol take tables with text and gaps.

    Examples
    --------
    >>> takes_raw_tables("pipeline/kmeans"), takes_raw_tables("summary"), takes_raw_tables("kmeans")
    (True, True, False)
    """
    around, name = unwrapped(protocol)
    clients = [*(one.client_class for one in around), find_client(name)]
    return any(getattr(client_class, "raw", False) for client_class in clients)


def make_estimator(protocol: str, parameters: Mapping[str, Any]) -> Federated:
    """Return an estimator that is not fitted.

    Parameters
    ----------
    protocol : str
        The name of the protocol, with the prefix ``pipeline/`` for a pipeline, ``aligned/`` for
        `AlignedRows`, or ``leave-one-site-out/`` for `LeaveOneSiteOut`.
    parameters : mapping
        The parameters of the estimator, and those of the pipeline if there is one. A schema may be
        the path of its file.

    Raises
    ------
    ValueError
        When the protocol is unknown, there is no such parameter, or a required one is missing.

    Examples
    --------
    >>> make_estimator("pipeline/kmeans", {"n_clusters": 3, "scale": "standard"})
    FederatedPipeline(estimator=FederatedKMeans(n_clusters=3), scale='standard')
    """
    if isinstance(schema := parameters.get("schema"), str):
        from fedlib.tables.schema import Schema

        parameters = {**parameters, "schema": Schema.read(schema)}
    estimator_class = find_estimator(protocol)
    if estimator_class is None:
        known, listed = ", ".join(protocols()), " or ".join(f"{one}NAME" for one in wrappers())
        raise ValueError(f"protocol must be one of {known}, or {listed}; got {protocol!r}")
    wrapper, inner = wrapper_of(protocol)
    if wrapper is None:
        _check_parameters(estimator_class, protocol, parameters)
        return estimator_class(**parameters)
    names = wrapper._get_param_names()
    wrapped = {name: value for name, value in parameters.items() if name not in names}
    rest = {name: value for name, value in parameters.items() if name in names}
    return wrapper(make_estimator(inner, wrapped), **rest)


def _check_parameters(
    estimator: type[Federated], protocol: str, parameters: Mapping[str, Any]
) -> None:
    """Raise ValueError when parameters are unknown or missing."""
    known = inspect.signature(estimator).parameters
    if unknown := [name for name in parameters if name not in known]:
        raise ValueError(
            f"{protocol} has no parameter {', '.join(unknown)}; it has {', '.join(known)}"
        )
    required = [name for name, one in known.items() if one.default is inspect.Parameter.empty]
    if missing := [name for name in required if name not in parameters]:
        raise ValueError(f"{protocol} needs the parameter {', '.join(missing)}")


def client_arguments(client_class: type[Client]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a client except the first, which is the data.

    Examples
    --------
    >>> from fedlib.clustering.density.vertical import VerticalDBSCANClient
    >>> list(client_arguments(VerticalDBSCANClient))
    ['ids', 'key', 'n_jobs']
    """
    signature = inspect.signature(client_class)
    return dict(list(signature.parameters.items())[1:])


def argument_types(client_class: type[Client]) -> dict[str, set[Any]]:
    """Return the types in the annotation of each argument of a client.

    Examples
    --------
    >>> from fedlib.clustering.density.vertical import VerticalDBSCANClient
    >>> bytes in argument_types(VerticalDBSCANClient)["key"]
    True
    """
    hints = get_type_hints(client_class.__init__)
    return {
        name: {hints.get(name), *get_args(hints.get(name))}
        for name in client_arguments(client_class)
    }


def make_client(
    protocol: str,
    table: Table,
    options: Mapping[str, Any] | None = None,
    *,
    agreed: str | None = None,
    passive: bool = False,
    eval_table: Table | None = None,
    identity: Identity | None = None,
    memory: TableMemory | None = None,
) -> Client:
    """Return a site's client of a protocol.

    Parameters
    ----------
    protocol : str
        The protocol that the server runs.
    table : Table
        The site's rows. Identifiers and classes are used if the protocol needs them.
    options : mapping, optional
        Additional arguments of the client. For an argument of bytes, such as a secret, the path of
        the file that contains it.
    agreed : str, optional
        The only protocol to which the site agrees; by default it agrees to all.
    passive : bool, default=False
        Whether the client receives the result but shares nothing of its data.
    eval_table : Table, optional
        Further rows for validation only, for a protocol that validates.
    identity : Identity, optional
        The keys of the sites. With it, the client sends data only as terms of secure sums.
    memory : TableMemory, optional
        What the site remembers about the rows over all runs.

    Raises
    ------
    ValueError
        When the protocol is unknown or not the agreed one, the client has no such option, a file
        cannot be read, or the client rejects the data.

    Examples
    --------
    >>> client = make_client("kmeans", Table([[0.1], [0.2]]), passive=True)
    >>> type(client).__name__, client.passive
    ('FederatedKMeansClient', True)
    """
    if agreed is not None and protocol != agreed:
        raise ValueError(f"the server runs {protocol!r}; this site agrees to {agreed!r} only")
    around, name = unwrapped(protocol)
    client_class: Any = find_client(name)
    if client_class is None or (around and find_estimator(protocol) is None):
        known = ", ".join(protocols())
        raise ValueError(f"the protocol {protocol!r} is unknown here; known are {known}")
    arguments = _read_secrets(name, client_class, options or {})
    if "ids" in client_arguments(client_class) and table.ids is not None:
        arguments["ids"] = table.ids
    part = _part(name, client_class, table, eval_table)
    for wrapper in reversed(around):
        arguments[wrapper.client_class.wraps] = client_class
        client_class = wrapper.client_class
    client: Client = client_class(part, **arguments)
    check_no_identifiers(client)
    client.passive, client.memory = passive, memory
    return client if identity is None else SecureClient(client, identity, protocol)


def _part(protocol: str, client_class: type[Client], table: Table, eval_table: Table | None) -> Any:
    """Return the data that the protocol's client takes."""
    if eval_table is not None and not getattr(client_class, "validates", False):
        raise ValueError(f"{protocol} takes no rows for validation")
    roles = roles_of(client_class)
    if "target" in roles and any(one is not None and one.y is None for one in (table, eval_table)):
        raise ValueError(
            f"{protocol} needs a class or label per row: name the column that has them as the"
            " target"
        )
    if eval_table is None:
        return table.part(roles)
    return (table.X, table.y, table.sample_weight, eval_table.eval_set, table.base_margin)


def _read_secrets(
    protocol: str, client_class: type[Client], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a client's options, with the contents of the files that contain secrets."""
    types = argument_types(client_class)
    unknown = [name for name in options if name not in types]
    if unknown:
        raise ValueError(f"a client of {protocol} has no option {', '.join(unknown)}")
    arguments = dict(options)
    for name, value in options.items():
        if bytes in types[name]:
            try:
                arguments[name] = Path(value).read_bytes().removeprefix(codecs.BOM_UTF8)
            except (OSError, TypeError) as error:
                raise ValueError(f"{name} must be a file that can be read: {error}") from error
    return arguments
