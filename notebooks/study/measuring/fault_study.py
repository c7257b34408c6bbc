"""Every fault of one client in every exchange of every protocol, and what becomes of the run.

The clients run in this process behind the sessions that the HTTP transport uses. The clock is
simulated, so that timeouts pass at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    AlignedRows,
    ApproximateDBSCAN,
    DensitySuggestion,
    FederatedClusteringScore,
    FederatedEvaluation,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPCA,
    FederatedPipeline,
    FederatedRegressionScore,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    GaussianMixtureDBSCAN,
    GaussianMixtureSelection,
    HorizontalDBSCAN,
    KMeansSelection,
    VerticalDBSCAN,
)
from fedlib.clustering.density.vertical import VerticalDBSCANClient
from fedlib.core.client import Client
from fedlib.core.ledger import SERVER
from fedlib.core.messages import Failure, Labels, Message, encode
from fedlib.core.protocol import TooFewClients, serve
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.sites.site import make_client as make_site
from fedlib.tables.files import Table
from fedlib.testing import seeded_noise
from fedlib.transports.http.limits import Limits
from fedlib.transports.http.session import RefusedCall, Reply
from fedlib.transports.http.sessions import Sessions

CLIENTS = ("A", "B", "C")
# What happens to the reply of one client.
FAULTS = {
    "error": "the client reports an error",
    "timeout": "the client does not reply",
    "garbage": "the reply is not a message",
    "wrong class": "the reply is a message of another class",
    "another number": "the client first replies to another request",
    "twice": "the client replies twice",
    "late": "the reply arrives after the timeout",
    "after leaving": "the client leaves and replies then",
}
HARMLESS = ("another number", "twice")

DENSITY = {"eps": 1.0, "min_samples": 3}
TREES = {"n_trees": 1, "max_depth": 2, "min_child_weight": 0.1, "tol": None}
PACKED = {"method": "histogram", "max_bin": 4, "histograms": "packed"}
TEXTS = 2  # the value of max_cat_to_onehot with which the clients get a column of text
MIXTURE = {"max_rounds": 2, "tol": 0, "random_state": 0}
BOUNDS = [[-3.0, -3.0], [7.0, 7.0]]
PRIVATE = {"epsilon": 9.0, "bounds": BOUNDS}
LLOYD = {"method": "lloyd", "max_iter": 2, "random_state": 0}
# Protocols that label the rows of the clients.
LABELLING = {
    "HorizontalDBSCAN": HorizontalDBSCAN(0.5, 3),
    "ApproximateDBSCAN": ApproximateDBSCAN(**DENSITY, rho=0.5),
    "VerticalDBSCAN": VerticalDBSCAN(**DENSITY),
    "DBDC": DBDC(**DENSITY),
    "SDBDC": SDBDC(**DENSITY),
    "PPDBDC": PPDBDC(**DENSITY),
    "GaussianMixtureDBSCAN": GaussianMixtureDBSCAN(**DENSITY, n_components=1, random_state=0),
    "FederatedKMeans, one_shot": FederatedKMeans(2, method="one_shot", n_init=1, random_state=0),
    "FederatedKMeans, lloyd": FederatedKMeans(2, **LLOYD, n_init=1),
    "FederatedGaussianMixture, em": FederatedGaussianMixture(2, method="em", **MIXTURE),
    "FederatedGaussianMixture, average": FederatedGaussianMixture(2, method="average", **MIXTURE),
    "FederatedXGBClassifier, top_splits": FederatedXGBClassifier(**TREES, method="top_splits"),
    "FederatedXGBClassifier, union": FederatedXGBClassifier(**TREES, method="union"),
    "FederatedXGBClassifier, histogram": FederatedXGBClassifier(
        **TREES, method="histogram", max_bin=4, histograms="dense"
    ),
}
PROTOCOLS = {
    **LABELLING,
    "FederatedXGBClassifier, validation": FederatedXGBClassifier(
        **TREES, **PACKED, validation_fraction=0.3, random_state=0
    ),
    "FederatedXGBClassifier, categories": FederatedXGBClassifier(
        **TREES, **PACKED, max_cat_to_onehot=TEXTS
    ),
    "FederatedXGBRegressor": FederatedXGBRegressor(**TREES, max_bin=4, histograms="dense"),
    "HorizontalDBSCAN, secure": HorizontalDBSCAN(0.5, 3, secure=True, bounds=BOUNDS),
    "FederatedXGBRegressor, secure": FederatedXGBRegressor(
        n_trees=1, max_depth=1, max_bin=4, secure=True, bounds=BOUNDS, max_target=16.0
    ),
    "HorizontalDBSCAN, epsilon": HorizontalDBSCAN(1.0, 3, epsilon=9.0, bounds=BOUNDS),
    "HorizontalDBSCAN, secure, epsilon": HorizontalDBSCAN(
        1.0, 3, secure=True, epsilon=9.0, delta=1e-6, bounds=BOUNDS
    ),
    "FederatedKMeans, epsilon": FederatedKMeans(2, **LLOYD, **PRIVATE),
    "FederatedGaussianMixture, epsilon": FederatedGaussianMixture(
        2, method="em", **MIXTURE, **PRIVATE
    ),
    "FederatedSummary, epsilon": FederatedSummary(
        quantiles=(), n_bins=2, epsilon=9.0, bounds={"0": (-3, 7), "1": (-3, 7)}
    ),
    "FederatedXGBRegressor, epsilon": FederatedXGBRegressor(
        **TREES, max_bin=4, base_score=0.5, max_gradient=1.0, epsilon=9.0, bounds=BOUNDS
    ),
    "AlignedRows": AlignedRows(VerticalDBSCAN(**DENSITY)),
    "FederatedPipeline": FederatedPipeline(
        FederatedKMeans(2, method="one_shot", random_state=0), scale="standard"
    ),
    "FederatedPCA": FederatedPCA(1),
    "FederatedSummary": FederatedSummary(quantiles=[0.5], rank_error=0.5, n_bins=2),
    "DensitySuggestion": DensitySuggestion(2, tolerance=0.8),
    "KMeansSelection": KMeansSelection(2, n_init=1, max_iter=1, random_state=0),
    "GaussianMixtureSelection": GaussianMixtureSelection(2, **MIXTURE),
    "FederatedClusteringScore": FederatedClusteringScore(),
    "FederatedEvaluation": FederatedEvaluation(n_bins=4, n_groups=2),
    "FederatedRegressionScore": FederatedRegressionScore(),
}
NEED_ALL = ("AlignedRows", "VerticalDBSCAN")  # each client holds other features
SECURE = tuple(name for name, one in PROTOCOLS.items() if getattr(one, "secure", False))


def make_parts(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the points of two clusters and their classes, for each client."""
    rng = np.random.default_rng(seed)
    centres = np.repeat([[0.0, 0.0], [4.0, 4.0]], 8, axis=0)
    classes = np.repeat([0, 1], 8)
    return {name: (centres + rng.normal(0, 0.5, centres.shape), classes) for name in CLIENTS}


def make_client(estimator, X, y) -> Client:
    """Return a client of the estimator's protocol."""
    if estimator.name in ("evaluation", "regression-score"):
        X = expit(X[:, :1])
    if estimator.name.startswith("aligned/"):
        return estimator.client_class(X, VerticalDBSCANClient, range(len(X)), bytes(32))
    if getattr(estimator, "max_cat_to_onehot", None) == TEXTS:
        X = pd.DataFrame(X, columns=["x", "y"]).assign(town=np.where(X[:, 0] < 2, "north", "south"))
    options = {"random_state": 0} if estimator.name == "ppdbdc" else {}
    return make_site(estimator.name, Table(X, y), options)


class FaultyTransport:
    """Clients behind sessions; one reply of one of them suffers a fault.

    Parameters
    ----------
    clients : mapping of str to Client
    fault : str, optional
        One of `FAULTS`; by default none.
    client : str
        The client that suffers it.
    step : int
        The exchange in which it does, from 1 on.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        fault: str | None = None,
        client: str = "",
        step: int = 0,
    ):
        self.members = dict(clients)
        self.clients = list(clients)
        self.errors: dict[str, BaseException] = {}
        self.ledger = None
        self.fault, self.client, self.at = fault, client, step
        self.now, self.step = 0.0, 0
        self.sessions = Sessions(self.clients, Limits(), self.now)
        self.last = dict.fromkeys(self.clients, b"")
        for name in self.clients:
            self.sessions[name].join(f"process of {name}", self.now)
            self.members[name].enter(name, len(self.clients))
        assert self.sessions.ready(self.now)

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Deliver the requests and return the replies."""
        self.step += 1
        self.sessions.reject(self.ledger.lost)
        self.sessions.ask(requests, self.now)
        late = [self.answer(name) for name in requests]
        while self.sessions.expire(self.now):
            self.now += 1.0
        for name, reply in filter(None, late):
            assert self.is_refused(name, reply)
        return {
            name: reply or encode(Failure(self.sessions[name].reason))
            for name, reply in self.sessions.take().items()
        }

    def answer(self, name: str) -> tuple[str, Reply] | None:
        """Let a client answer; return a reply that it sends after the timeout, if it does."""
        session, process = self.sessions[name], f"process of {name}"
        number, request = session.next_request(process)
        reply = Reply(number, serve(self.members[name], request))
        fault = self.fault if (name, self.step) == (self.client, self.at) else None
        if fault == "timeout":
            return None
        if fault == "late":
            return name, reply
        if fault == "after leaving":
            session.leave(process, self.now)
            assert self.is_refused(name, reply)
            return None
        if fault == "another number":
            assert self.is_refused(name, Reply(number - 1, self.last[name] + b"other"))
        replaced = {
            "error": encode(Failure("OSError")),
            "garbage": b"\xc1" * 20,
            "wrong class": encode(Labels(np.zeros(3, np.int64))),
        }
        sent = Reply(number, replaced[fault]) if fault in replaced else reply
        for _ in range(2 if fault == "twice" else 1):
            session.accept(process, sent)
        self.last[name] = sent.body
        return None

    def is_refused(self, name: str, reply: Reply) -> bool:
        """Return whether the session refuses a reply."""
        try:
            self.sessions[name].accept(f"process of {name}", reply)
        except RefusedCall:
            return True
        return False


@dataclass(frozen=True)
class Run:
    """The outcome of one run: its model or its error, and its ledger."""

    model: object
    error: TooFewClients | None
    ledger: object


def fit(estimator, parts, min_clients: int, *fault) -> Run:
    """Fit an estimator while one client suffers a fault; see `FaultyTransport`."""
    clients = {name: make_client(estimator, *part) for name, part in parts.items()}
    if getattr(estimator, "secure", False):
        identities = simulated_identities(list(clients))
        clients = {name: SecureClient(one, identities[name]) for name, one in clients.items()}
    transport = FaultyTransport(clients, *fault)
    fitted, error = clone(estimator), None
    try:
        with seeded_noise(0):
            fitted.fit(transport, min_clients=min_clients)
    except TooFewClients as raised:
        error = raised
    return Run(getattr(fitted, "model_", None), error, transport.ledger)


def same(first: object, second: object) -> bool:
    """Return whether two models are equal in every number."""
    if is_dataclass(first) and type(first) is type(second):
        return all(same(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
    if isinstance(first, Message):
        return first == second
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    floats = np.asarray(first).dtype.kind == "f"
    return bool(np.array_equal(first, second, equal_nan=floats))


def outcomes(
    names=tuple(PROTOCOLS), clients=CLIENTS, faults=tuple(FAULTS), strict=tuple(FAULTS)
) -> pd.DataFrame:
    """Return the outcome of each fault of each client in each exchange of each protocol.

    Parameters
    ----------
    names, clients, faults : sequence of str
        Those of `PROTOCOLS`, `CLIENTS` and `FAULTS` to try.
    strict : sequence of str
        The faults that are tried again in a run that needs all clients.

    Returns
    -------
    DataFrame
        Columns ``protocol``, ``step``, ``request``, ``client``, ``fault``, and:

        - ``outcome``, when two clients are enough: ``undisturbed`` (the model of all clients),
          ``without`` (the model of a run without the client), ``partly`` (another model, with what
          the client had reported before), or ``stops`` (`TooFewClients`).
        - ``error``, when all clients are needed: the text of the error, empty if there is none;
          None if it was not tried.
    """
    parts, rows = make_parts(), []
    for name in names:
        estimator = PROTOCOLS[name]
        enough = 3 if name in NEED_ALL else 2
        undisturbed = fit(estimator, parts, 3)
        asked = {
            (entry.step, entry.message, entry.receiver)
            for entry in undisturbed.ledger
            if entry.sender == SERVER and entry.receiver in clients
        }
        without = {
            client: fit(estimator, {c: p for c, p in parts.items() if c != client}, 2)
            for client in clients
        }
        for (step, request, client), fault in product(sorted(asked), faults):
            run = fit(estimator, parts, enough, fault, client, step)
            error = None
            if fault in strict:
                error = str(fit(estimator, parts, 3, fault, client, step).error or "")
            outcome = _outcome(run, undisturbed, without[client])
            rows.append((name, step, request, client, fault, outcome, error))
    columns = ["protocol", "step", "request", "client", "fault", "outcome", "error"]
    return pd.DataFrame(rows, columns=columns)


def invented(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return points, and their classes, that a false client invents to harm a protocol most.

    They are a chain of points that joins both clusters, points far away, a column without
    neighbours, or many copies of an honest client's points, all of one class.
    """
    X, y = make_parts(1)["C"]
    if name == "VerticalDBSCAN":
        return 10.0 * np.arange(len(X)).reshape(-1, 1), y
    if name.startswith("FederatedXGBClassifier"):
        return np.tile(X, (20, 1)), np.zeros(20 * len(X), int)
    if name.startswith(("FederatedKMeans", "FederatedGaussianMixture")):
        return X + 1000.0, y
    along = np.linspace(0, 4, 60)
    chain = np.concatenate(
        [np.column_stack([along, 0 * along]), np.column_stack([4 + 0 * along, along])]
    )
    return chain, np.zeros(len(chain), int)


def damage(names=tuple(LABELLING)) -> pd.DataFrame:
    """Return how well the honest clients' rows are labelled with one client that invents data.

    Returns
    -------
    DataFrame
        One row per protocol: the adjusted Rand index of the rows of ``A`` and ``B`` against the
        truth, ``honest`` if ``C`` is honest and ``invented`` if it is not, and the number of
        clients that the run ``excluded``.
    """
    rows = {}
    for name in names:
        parts, truth = make_parts(), make_parts()["A"][1]
        scores = {}
        for kind, third in (("honest", parts["C"]), ("invented", invented(name))):
            clients = {
                client: make_client(PROTOCOLS[name], *part)
                for client, part in (parts | {"C": third}).items()
            }
            transport = FaultyTransport(clients)
            clone(PROTOCOLS[name]).fit(transport)
            labels = np.concatenate([clients[client].state.labels for client in "AB"])
            scores[kind] = adjusted_rand_score(np.tile(truth, 2), labels)
        rows[name] = scores | {"excluded": len(transport.ledger.lost)}
    return pd.DataFrame(rows).T


def _outcome(run: Run, undisturbed: Run, without: Run) -> str:
    if run.error is not None:
        return "stops"
    if same(run.model, undisturbed.model):
        return "undisturbed"
    return "without" if same(run.model, without.model) else "partly"


def by_request(table: pd.DataFrame) -> pd.DataFrame:
    """Return the outcomes of `outcomes` with one row per request and one column per fault."""
    cells = table.pivot_table(
        index=["protocol", "request"],
        columns="fault",
        values="outcome",
        aggfunc=lambda found: ", ".join(sorted(set(found))),
    )
    order = table[["protocol", "request"]].drop_duplicates()
    faults = [fault for fault in FAULTS if fault in cells]
    return cells.loc[pd.MultiIndex.from_frame(order), faults]
