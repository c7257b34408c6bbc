"""A replica of Marino's programs for horizontal DBSCAN (M1 and M2, §4.2), with their weaknesses.

It exists to be compared with `fedlib` and attacked on one page. Never run it with data that matter:
every caller can start a run, read a client's rows, and execute code in the server.

It keeps M's calls, their JSON and their order. It differs from M in four ways: the programs listen
on free ports of the loopback interface, they end with their ``with`` statement, the order in which
cells are visited has a seed, and the calls through the server are recorded.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from threading import Thread

import httpx
import numpy as np
from flask import Flask, request
from werkzeug.serving import WSGIRequestHandler, make_server

from fedlib.core.ledger import SERVER, Entry, Ledger

TIMEOUT = 10  # seconds for one call
STRANGER = "any caller"
EXECUTED = []  # what crafted keys leave here shows that the server has executed them

# The calls through the server, in their order, and what each discloses to its receiver.
CALLS = {
    "connect": "a name and an address to call",
    "Connected": "nothing",
    "start": "nothing",
    "compute_local_update": "nothing",
    "counts": "the occupied cells of a client and its number of points in each",
    "assign_points_to_cluster": "the cells of all clients' clusters",
    "null": "nothing",
    "Training completed": "nothing",
}


class Quiet(WSGIRequestHandler):
    """A handler that prints no line per call."""

    def log_request(self, *_):
        """Print nothing."""


class Program:
    """A Flask program with one resource at ``/``, in a thread that ends with the ``with`` block.

    Attributes
    ----------
    address : str
        Host and port.
    """

    def __init__(self):
        app = Flask("replica")
        app.add_url_rule("/", "get", lambda: self.get(request.args.get("action")))
        app.add_url_rule("/", "post", lambda: self.post(request.get_json()), methods=["POST"])
        # Flask-RESTful, which M uses, answers an exception in this way.
        app.register_error_handler(500, lambda _: ({"message": "Internal Server Error"}, 500))
        app.logger.disabled = True
        self._server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Stop listening."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()


def get(program, action=""):
    """Call a program with GET, as a browser does; return the status and the JSON of the answer."""
    answer = httpx.get(
        f"http://{program.address}/", params={"action": action}, timeout=TIMEOUT, trust_env=False
    )
    return answer.status_code, answer.json()


def post(address, data):
    """Call an address with POST; return the status and the JSON of the answer."""
    answer = httpx.post(f"http://{address}/", json=data, timeout=TIMEOUT, trust_env=False)
    return answer.status_code, answer.json()


def post_to_all(addresses, data):
    """Return the answers by name, without their status, and the errors of the calls.

    As in M: an answer with the status 500 is an answer like any other.
    """
    with ThreadPoolExecutor() as pool:
        calls = {name: pool.submit(post, address, data) for name, address in addresses.items()}
    errors = {name: call.exception() for name, call in calls.items() if call.exception()}
    answers = {name: call.result()[1] for name, call in calls.items() if name not in errors}
    return answers, list(errors.values())


def faces(cell):
    """Return the cells that share a face with a cell, in lexicographic order."""
    steps = product((-1, 0, 1), repeat=len(cell))
    return [tuple(np.add(cell, s).tolist()) for s in steps if np.count_nonzero(s) == 1]


def cells_of(X, size):
    """Return the cell of each point as a tuple."""
    return [tuple(cell) for cell in np.floor(np.divide(X, size)).astype(int).tolist()]


class Client(Program):
    """A client's program: it keeps points, their true labels and the labels that it receives."""

    def __init__(self, name, X, y, cell_size):
        self.name, self.X, self.y, self.cell_size = name, X, y, cell_size
        self.labels, self.passive = [], True
        super().__init__()

    def connect(self, server):
        """Announce this program's address; return the status of the answer."""
        data = {"action": "connect", "client_id": self.name, "address": self.address}
        return post(server.address, data)[0]

    def get(self, action):
        """Answer `results` with all that the client has."""
        if action != "results":
            return {"message": "Hello World from Client", "client_id": self.name}
        return {
            "passive": self.passive,
            "dataset": self.X.tolist(),
            "labels": self.labels,
            "true_labels": self.y.tolist(),
        }

    def post(self, data):
        """Answer the calls that Marino's server makes."""
        if data.get("action") == "compute_local_update":
            return self.counts()
        if data.get("action") == "assign_points_to_cluster":
            self.assign(data["cells"], data["labels"])
            return "null", 200, {"Content-Type": "application/json"}
        return {"message": "Action not Supported"}, 201

    def counts(self):
        """Return the number of points per occupied cell; a key is the cell as text."""
        self.passive = False
        cells, counts = np.unique(cells_of(self.X, self.cell_size), axis=0, return_counts=True)
        keys = (",".join(map(str, cell)) for cell in cells.tolist())
        return dict(zip(keys, counts.astype(float).tolist(), strict=True))

    def assign(self, cells, labels):
        """Label the points by M1's rule. As in M1, labels are added to those of earlier runs."""
        clusters = dict(zip(map(tuple, cells), labels, strict=True))
        for point, cell in zip(self.X, cells_of(self.X, self.cell_size), strict=True):
            near = [cell] if cell in clusters else [c for c in faces(cell) if c in clusters]
            if not near:
                self.labels.append(-1)
                continue
            gaps = np.linalg.norm((np.array(near) + 0.5) * self.cell_size - point, axis=1)
            self.labels.append(clusters[near[np.argmin(gaps)]])


class Server(Program):
    """The server's program.

    Parameters
    ----------
    min_samples : int
        The number of points that make a cell dense.
    order_seed : int, default=0
        Determines the order in which cells are visited. M's has no seed.
    """

    def __init__(self, min_samples, order_seed=0):
        self.min_samples, self.order_seed = min_samples, order_seed
        self.clients, self.running = {}, False  # addresses by name
        self.calls, self.lost = Ledger(), []
        super().__init__()

    def record(self, message, sender, receiver, *content):
        """Record a call with the size of its JSON, if it has any."""
        size = sum(len(json.dumps(part, separators=(",", ":"))) for part in content)
        step = list(CALLS).index(message) + 1
        entry = Entry(step, sender, receiver, message, size, CALLS[message])
        self.calls.entries.append(entry)

    def get(self, action):
        """Answer `start` after a complete run, and any other call with the clients' addresses."""
        if action != "start":
            return {"message": "Hello world from server", "clients": [*self.clients.values()]}
        self.record("start", STRANGER, SERVER)
        self.running = True
        self.train()
        self.running = False
        done = {"message": "Training completed"}
        self.record("Training completed", SERVER, STRANGER, done)
        return done

    def post(self, data):
        """Answer `connect`: any caller becomes a client, unless a run is in progress."""
        if data.get("action") != "connect":
            return {"message": "Action not Supported"}, 201
        if self.running:
            return {"message": "Unable to connect: a training process is running"}, 500
        name = data["client_id"]
        self.clients[name] = data["address"]
        done = {"message": f"Client {name} Connected"}
        self.record("connect", name, SERVER, data)
        self.record("Connected", SERVER, name, done)
        return done

    def train(self):
        """Ask for the counts, cluster the cells, and send the clusters to all clients."""
        updates = self.call_clients("compute_local_update", "counts")
        total = {}
        for update in updates:
            for key, count in update.items():
                cell = eval(key)  # noqa: S307 - as in M; the page shows what this allows
                total[cell] = total.get(cell, 0) + count
        cells, labels = grow(total, self.min_samples, self.order_seed)
        self.call_clients("assign_points_to_cluster", "null", cells=cells, labels=labels)

    def call_clients(self, action, answer, **content):
        """Call all clients; return their answers. Errors are kept in ``lost`` and not read."""
        data = {"action": action} | content
        answers, errors = post_to_all(self.clients, data)
        self.lost += errors
        for name in self.clients:
            self.record(action, SERVER, name, data)
        for name, received in answers.items():
            self.record(answer, name, SERVER, received)
        return answers.values()


@contextmanager
def programs(sites, cell_size, min_samples, order_seed=0):
    """Start a server and one client per site, connect them, and stop them at the end.

    Parameters
    ----------
    sites : mapping of str to (X, y)
        The points of each client and their true labels.
    cell_size : float
    min_samples, order_seed : int

    Yields
    ------
    server : Server
    clients : dict of str to Client
    """
    with ExitStack() as stack:
        server = stack.enter_context(Server(min_samples, order_seed))
        clients = {
            name: stack.enter_context(Client(name, X, y, cell_size))
            for name, (X, y) in sites.items()
        }
        for client in clients.values():
            client.connect(server)
        yield server, clients


def grow(total, min_samples, seed):
    """Return the cells of all clusters and their labels, as Marino's server computes them.

    A cluster absorbs the cells at its border that have not been visited before.
    """
    waiting = sorted(total)
    rank = np.random.RandomState(seed).permutation(len(waiting))
    visited, found = set(), {}
    n_clusters = 0
    for start in (waiting[i] for i in np.argsort(rank)):
        if start in visited:
            continue
        visited.add(start)
        if total[start] < min_samples:
            continue
        found[start] = n_clusters
        queue = faces(start)
        while queue:
            cell = queue.pop(0)
            if cell in total and cell not in visited:
                visited.add(cell)
                found[cell] = n_clusters
                if total[cell] >= min_samples:
                    queue += faces(cell)
        n_clusters += 1
    return list(found), list(found.values())
