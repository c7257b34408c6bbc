"""HTTP: the server waits and clients call it, so no site has to accept a connection.

The rules:

- A client joins, asks for its next request (the server delays the answer until there is one), and
  posts its reply. A call that the server holds shows that the client is alive. While the client
  works, it sends heartbeats, which the server holds too. A waiting client needs one connection. The
  server never connects to a client, and no endpoint discloses the data of another client.
- Every call carries the client's token and the identifier that the client's process chose when it
  started. The server keeps only the digests of the tokens. Only one live
  process at a time can use a token.
- Requests are numbered. A reply is accepted once, from the client and for the number of the open
  request. A copy of it is ignored; a different one is refused.
- A client saves its state and its reply before it sends the reply, so that it can be stopped and
  started again at any moment.
- A server that is started again with its journal continues the run under the same identifier. It
  does not know the sessions of its clients, so they join again. Each keeps its last reply and
  sends it again on request.
- Plain HTTP is allowed on the loopback interface only, unless the user sets ``insecure``.
- A page at ``/`` shows the progress: names, steps, sizes and kinds of disclosed data, but not the
  data.
- A caller without a valid token, a stranger, has a few seconds for its whole connection, and its
  body is not read. If there are too many strangers, the oldest connection is closed
  (`connections`).
- A body is read only if it is the reply to the open request, up to a size that follows from the
  request and the class of the reply. A client that sends a malformed reply is lost immediately.
- Programs that watch the server can read ``/health`` and ``/metrics`` if the operator allows their
  addresses (`monitor`). A site can check its way to the server without joining (`diagnosis`).

The modules:

- The server side: `session` and `sessions` are a state machine; `service` adds the clock and held
  calls, in one event loop; `connections` limits what strangers can do; `web` translates calls into
  events of the sessions; `status` describes the progress of a run, and `monitor` exports it;
  `limits` has the times, sizes and counts that the user can set; `server` has the transport `HTTP`,
  which starts the event loop in a thread and runs Starlette on uvicorn in it.
- The client side: `client` has `join`, `checkpoint` the file with a client's state, and `diagnosis`
  the checks of a site.
- Both: `tokens` and `wire`.

The idea of server and clients as Flask programs is that of M1 and M2, chapter 4. There the clients
had to listen, and any caller could start a run or read a client's data.
"""

from typing import TYPE_CHECKING

import lazy_loader

# A site imports only the client side, without the packages that the server needs.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "checkpoint": ["Checkpoint", "kept_state"],
        "client": ["JoinError", "Unreachable", "join"],
        "limits": ["Limits"],
        "server": ["HTTP"],
        "status": ["ClientStatus", "ConversationLine", "Status"],
        "wire": ["digest", "new_token"],
    },
)

if TYPE_CHECKING:
    from fedlib.transports.http.checkpoint import Checkpoint, kept_state
    from fedlib.transports.http.client import JoinError, Unreachable, join
    from fedlib.transports.http.limits import Limits
    from fedlib.transports.http.server import HTTP
    from fedlib.transports.http.status import ClientStatus, ConversationLine, Status
    from fedlib.transports.http.wire import digest, new_token

__all__ = [
    "HTTP",
    "Checkpoint",
    "ClientStatus",
    "ConversationLine",
    "JoinError",
    "Limits",
    "Status",
    "Unreachable",
    "digest",
    "join",
    "kept_state",
    "new_token",
]
