"""HTTP: the server waits and clients call it, so no site has to accept a connection.

The rules:

- A client joins, asks for its next request (the server delays the answer until there is one), and
  posts its reply. A held call shows that it is alive, and so do heartbeats during the work, which
  the server holds too. A waiting client needs one connection. The server never connects to a
  client, and no address discloses anyone's data.
- Every call carries the client's token and the identifier that the client's process chose when it
  started. The server keeps only the digests of the tokens. A token serves one live process at a
  time.
- Requests are numbered. A reply is accepted once, from the client and for the number of the open
  request. A copy of it is ignored; a different one is refused.
- A client saves its state and its reply before it sends the reply, so that it can be stopped and
  started again at any moment.
- A server that is started again with its journal continues the run under the same identifier. It
  does not know the sessions of its clients, so they join again. Each keeps its last reply, and
  sends it again if it is asked for it.
- Plain HTTP is allowed on the loopback interface only, unless the user sets ``insecure``.
- A page at ``/`` shows the progress: names, steps, sizes and kinds of disclosed data, but not the
  data.
- A caller without a valid token has a few seconds for its whole connection, and its body is not
  read. When there are too many such strangers, the one that came first is closed (`connections`).
- A body is read only if it is the reply to the open request, up to a size that follows from the
  class of the reply. A malformed reply loses its client at once.

The modules:

- The server side: `sessions` is a state machine and `limits` its limits; `service` adds the clock
  and held calls, in one event loop; `connections` limits what strangers can do; `web` translates
  calls into events of the sessions; `status` describes the progress of a run; `server` has the
  transport `HTTP`, which starts the event loop in a thread and runs Starlette on uvicorn in it.
- The client side: `client` has `join`, and `checkpoint` the file with a client's state.
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
        "server": ["HTTP"],
        "status": ["ClientStatus", "ConversationLine", "Status"],
        "tokens": ["digest", "new_token"],
    },
)

if TYPE_CHECKING:
    from fedlib.transports.http.checkpoint import Checkpoint, kept_state
    from fedlib.transports.http.client import JoinError, Unreachable, join
    from fedlib.transports.http.server import HTTP
    from fedlib.transports.http.status import ClientStatus, ConversationLine, Status
    from fedlib.transports.http.tokens import digest, new_token

__all__ = [
    "HTTP",
    "Checkpoint",
    "ClientStatus",
    "ConversationLine",
    "JoinError",
    "Status",
    "Unreachable",
    "digest",
    "join",
    "kept_state",
    "new_token",
]
