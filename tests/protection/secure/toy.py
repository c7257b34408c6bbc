"""A toy protocol: each client has some whole numbers and one float, and the server adds them."""

from itertools import count
from typing import Annotated

import msgspec
import numpy as np

from fedlib.core.client import Client, handles
from fedlib.core.messages import Array, Message, decode, encode
from fedlib.core.protocol import run
from fedlib.protection.secure import SecureClient, secure_sum, simulated_identities
from fedlib.testing import Recorder

DIGITS = {"share": (40,)}


class ToyTerms(Message):
    discloses = "the numbers"
    counts: Annotated[np.ndarray, Array("int64", ("entries",))]
    share: float


class AddToy(Message):
    discloses = "the number of entries"
    reply = ToyTerms
    entries: int
    places: int = 40

    def reply_lengths(self):
        return {"entries": self.entries}

    def sum_digits(self, n_clients):
        return {"share": (self.places,)}


class ToyClient(Client):
    def __init__(self, X):
        self.X = np.asarray(X)

    @handles(AddToy)
    def add(self, request):
        return ToyTerms(self.X, float(self.X.sum()) / 10)


PARTS = {
    "A": np.array([1, 2, 3]),
    "B": np.array([10, 20, 30]),
    "C": np.array([100, 200, 300]),
    "D": np.array([-1000, 2000, -3000]),
}
IDENTITIES = simulated_identities(list(PARTS))
REQUEST = AddToy(3)


def toy_client(name, identities=IDENTITIES, parts=PARTS):
    return SecureClient(ToyClient(parts[name]), identities[name])


def add(tamper=None, parts=PARTS, n_sums=1, rebuild=False, min_clients=1, places=40, **wrapped):
    """Run secure sums of the toy; return the last sum and the transport."""
    identities = simulated_identities(list(parts))

    def make(name):
        return wrapped.get(name, toy_client)(name, identities, parts)

    clients = {name: make(name) for name in parts}
    transport = Recorder(clients, tamper, make if rebuild else None)

    def flow():
        numbers = count(1)
        for _ in range(n_sums):
            result = yield from secure_sum(AddToy(3, places), numbers, {"share": (places,)})
        return result

    return run(flow(), transport, min_clients=min_clients), transport


def expected(names, parts=PARTS):
    return np.sum([parts[name] for name in names], axis=0).tolist()


def at(request_class, change, nth=1):
    """Return a function for `Recorder` that changes the nth reply to a request, or loses it."""
    remaining = [nth]

    def tamper(request, reply):
        remaining[0] -= isinstance(decode(request), request_class)
        if not isinstance(decode(request), request_class) or remaining[0]:
            return reply
        return change(decode(reply)) if change else None

    return tamper


def changed(**fields):
    """Return a change of fields of a reply; each value is a function of the old one."""

    def change(reply):
        new = {name: f(getattr(reply, name)) for name, f in fields.items()}
        return encode(msgspec.structs.replace(reply, **new))

    return change
