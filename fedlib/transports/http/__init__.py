"""HTTP: sites call a server, so no site has to accept a connection."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlib.transports.http.client import (
        JoinError,
        Unreachable,
        digest,
        forget,
        join,
        kept_state,
        new_token,
    )
    from fedlib.transports.http.client import _Memory as Checkpoint
    from fedlib.transports.http.server import HTTP

__all__ = [
    "HTTP",
    "Checkpoint",
    "JoinError",
    "Unreachable",
    "digest",
    "forget",
    "join",
    "kept_state",
    "new_token",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(name)
    module = import_module(f"{__name__}.{'server' if name == 'HTTP' else 'client'}")
    return getattr(module, "_Memory" if name == "Checkpoint" else name)
