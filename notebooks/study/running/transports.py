"""One run on several transports, and a transport that loses replies."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedlib.core.in_process import InProcess
from fedlib.core.messages import decode
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.sites.models import save
from fedlib.transports.http import HTTP, Limits, digest, join, new_token

JOIN_SECONDS = 10


@contextmanager
def joined(clients, tokens=None, **limits):
    """Start the HTTP transport on this machine, and a thread that joins it for each client.

    Parameters
    ----------
    clients : mapping of str to Client
    tokens : mapping of str to str, optional
        The tokens of all sites, which can be more than the clients; by default new ones.
    **limits
        Of `Limits`.
    """
    tokens = tokens or {name: new_token() for name in clients}
    digests = {name: digest(token) for name, token in tokens.items()}
    pool = ThreadPoolExecutor(len(clients) or 1)
    with pool, HTTP(digests, "127.0.0.1:0", limits=Limits(**limits)) as transport:
        for name, client in clients.items():
            pool.submit(join, transport.url, client, tokens[name])
        until = time.monotonic() + JOIN_SECONDS
        while transport.status().joined < len(clients) and time.monotonic() < until:
            time.sleep(0.001)
        yield transport


def in_process(estimator, make, n_clients):
    """Return the estimator, fitted in this process; ``make(i)`` returns client number i."""
    return estimator.fit(InProcess({str(i): make(i) for i in range(n_clients)}))


def over_http(estimator, make, n_clients):
    """Return the estimator, fitted over HTTP with one thread per client; see `in_process`."""
    with joined({str(i): make(i) for i in range(n_clients)}) as transport:
        return estimator.fit(transport)


def on_grid(estimator, make, n_clients):
    """Return the estimator, fitted with Flower's messages in this process; see `in_process`."""
    from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app  # an optional package

    app = client_app(lambda context: make(context.node_config["partition-id"]))
    return estimator.fit(Flower(LocalFlowerGrid(app, n_clients), n_clients))


def round_trips(model):
    """Return the number of exchanges of a fitted estimator."""
    return max(entry.step for entry in model.ledger_)


def content(model):
    """Return what is saved of a fitted estimator, to the bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        save(model, path)
        with np.load(path) as arrays:
            return frozen(arrays)


def frozen(arrays):
    """Return arrays so that ``==`` compares their types, shapes and bits."""
    return {key: (value.dtype.str, value.shape, value.tobytes()) for key, value in arrays.items()}


def secured(clients):
    """Return clients with keys, for secure sums in this process.

    Parameters
    ----------
    clients : mapping of str to Client
    """
    identities = simulated_identities(list(clients))
    return {name: SecureClient(client, identities[name]) for name, client in clients.items()}


class Losing(InProcess):
    """A transport that loses the replies of the first clients to one kind of request.

    Parameters
    ----------
    clients : mapping of str to Client
    request : type of Message
    n_lost : int
    """

    def __init__(self, clients, request, n_lost):
        super().__init__(clients)
        self.request, self.n_lost = request, n_lost

    def exchange(self, requests):
        replies = super().exchange(requests)
        if isinstance(decode(next(iter(requests.values()))), self.request):
            for name in list(replies)[: self.n_lost]:
                del replies[name]
        return replies
