"""The commands ``fedlib inspect`` and ``fedlib protocols``."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Annotated

import click
import numpy as np

from fedlib.cli.common import Flag, command
from fedlib.cli.join import JoinCommand, JoinOptions, Patience, take_part
from fedlib.core.estimator import Federated
from fedlib.core.messages import Message, encode
from fedlib.core.registry import protocols, wrappers
from fedlib.core.wording import printable


@partial(command, name="protocols")
def list_protocols(names: Annotated[Flag, "List the names only."] = False) -> None:
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


MAX_VALUES = 200  # of an array with more values, only the first and the last are shown


@partial(command, name="inspect", command_class=JoinCommand)
def inspect_command(
    options: JoinOptions,
    patience: Patience = 30.0,
    confirm: Annotated[Flag, "Ask before each reply is sent."] = False,
) -> None:
    """Take part in a run and see every reply before it is sent.

    The URL and the options are those of `fedlib join`. With --confirm, a reply is sent only if you
    agree. Otherwise the request is declined, and the server receives the reason `review`.
    """
    take_part(options, patience, partial(review, confirm=confirm))


def review(request: Message, reply: Message, *, confirm: bool) -> bool:
    """Print a request and its reply; return whether the reply may be sent."""
    click.echo(f"{as_text(request)}\n{as_text(reply)}", err=True)
    try:
        return not confirm or click.confirm("Send this reply?", err=True)
    except click.Abort:  # an exception of another kind would be sent as the site's failure
        raise KeyboardInterrupt from None


def as_text(message: Message) -> str:
    """Return a message in readable form: its class, size, disclosure and fields.

    Examples
    --------
    >>> from fedlib.clustering.density.horizontal import CellCounts
    >>> print(as_text(CellCounts(np.array([[0, 7]]), np.array([12]))))
    CellCounts, 77 bytes: the occupied cells of a client and its count of points in each
      cells (1, 2) int64
        [[0 7]]
      counts (1,) int64
        [12]
    """
    kind = type(message)
    lines = [f"{kind.__name__}, {len(encode(message)):,} bytes: {message.discloses}"]
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, np.ndarray):
            shown = np.array2string(value, threshold=MAX_VALUES).replace("\n", "\n    ")
            lines += [f"  {name} {value.shape} {value.dtype}", f"    {shown}"]
        elif value != ():
            lines.append(f"  {name} {printable(str(value))}")
    return "\n".join(lines)
