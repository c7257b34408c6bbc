"""``fedlib protocols``: list the protocols and what their messages disclose."""

from __future__ import annotations

import inspect

import click

from fedlib.core.estimator import Federated
from fedlib.core.messages import Message
from fedlib.core.registry import protocols, wrappers


@click.command("protocols")
@click.option("--names", is_flag=True, help="List the names only.")
def list_protocols(names: bool) -> None:
    """List the protocols and their disclosures."""
    listed: dict[str, type[Federated]] = {**protocols()}
    if not names:
        listed |= {f"{prefix}NAME": wrapper for prefix, wrapper in wrappers().items()}
    for name, estimator in listed.items():
        if names:
            click.echo(name)
            continue
        click.echo(f"{name}: {(inspect.getdoc(estimator) or '').partition(chr(10))[0]}")
        for request, reply in messages_of(estimator):
            click.echo(f"  server  {request.__name__}: {request.discloses}")
            click.echo(f"  site    {reply.__name__}: {reply.discloses}")


def messages_of(estimator: type[Federated]) -> list[tuple[type[Message], type[Message]]]:
    """Return the requests of a protocol, each with the class of its reply.

    Examples
    --------
    >>> from fedlib import DBDC
    >>> [(request.__name__, reply.__name__) for request, reply in messages_of(DBDC)]
    [('BuildLocalModel', 'LocalModel'), ('RelabelPoints', 'Done')]
    """
    return [(request, request.reply) for request in estimator.client_class.handlers]
