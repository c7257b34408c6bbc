"""The app that a site's SuperNode runs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedlib.core.client import Client, LostState
from fedlib.core.messages import decode, encode
from fedlib.core.protocol import serve
from fedlib.tables.schema.schema import OtherSchema
from fedlib.transports.flower.transport import RECORD, failure, fields, reply

logger = logging.getLogger(__name__)


def client_app(
    make_client: Callable[[Context], Client],
    after: Callable[[Client, Context], object] | None = None,
) -> ClientApp:
    """Return the app that a site's SuperNode runs.

    Parameters
    ----------
    make_client : callable
        A function that takes Flower's context and returns the site's client. It is called for every
        request. ``context.node_config`` is the configuration of the site (such as its
        ``partition-id`` and the path of its data), ``context.run_config`` that of the run. If
        ``node_config`` contains ``passive=true``, the client is passive; a value other than true or
        false is an error.
    after : callable, optional
        A function that takes the client and the context. It is called after each answered request,
        for example to write the site's labels to a file.

    Examples
    --------
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> app = client_app(lambda context: HorizontalDBSCANClient([[0.1], [0.2]]))
    """
    app = ClientApp()

    @app.query()
    def report_partition(message: Message, context: Context) -> Message:
        return reply(message, {"partition": context.node_config.get("partition-id", "none")})

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        try:
            data = _answer(fields(message), context, make_client, after)
        except Exception as error:
            logger.exception("a request could not be answered")
            data = failure(type(error).__name__)
        return reply(message, {"reply": data})

    return app


def _answer(
    received: Mapping[str, Any],
    context: Context,
    make_client: Callable[[Context], Client],
    after: Callable[[Client, Context], object] | None,
) -> bytes:
    """Answer a request from the state saved after the previous one, and save the new state."""
    session, sequence, request = (received[name] for name in ("session", "sequence", "request"))
    digest = hashlib.sha256(request).digest()
    kept: Mapping[str, Any] = context.state.get(RECORD, {})
    before = kept.get("state", b"")
    continues = kept.get("session") == session
    if not continues:
        kept = {"sequence": 0, "digest": b"", "state": b""}
    if (kept["sequence"], kept["digest"]) == (sequence, digest):
        return cast(bytes, kept["reply"])
    if sequence != kept["sequence"] + 1:
        raise LostState(
            f"request {sequence} needs the state after request {sequence - 1}, but the saved state"
            f" is that after request {kept['sequence']}"
        )
    try:
        client = make_client(context)
    except OtherSchema as error:  # the site's log names the differences
        raise error.with_descriptor(str(received.get("schema", ""))) from None
    client.passive = client.passive or _is_passive(context)
    name = str(context.node_config.get("partition-id", ""))
    client.enter(name, received.get("clients"), str(session))
    _check_budget(client)
    if before and continues:
        client.state = decode(before)
    elif before:
        client.renew(decode(before))
    data = serve(client, request)
    state = b"" if client.state is None else encode(client.state)
    if after is not None:
        after(client, context)
    context.state[RECORD] = ConfigRecord(
        {"session": session, "sequence": sequence, "digest": digest, "reply": data, "state": state}
    )
    return data


def _check_budget(client: Client) -> None:
    """Raise ValueError when a client has a budget that ends with it."""
    budget = getattr(client, "budget", None)
    if budget is not None and budget.memory.path is None:
        raise ValueError(
            "a budget on Flower needs a memory in a file, because a client is made for each request"
            " and would forget what it has spent: read the policy from a file with Policy.read"
        )


def _is_passive(context: Context) -> bool:
    passive = context.node_config.get("passive", False)
    if not isinstance(passive, bool):
        raise ValueError(f"passive must be true or false, without quotes; got {passive!r}")
    return passive
