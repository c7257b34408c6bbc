"""The example of the page on Vasilopoulou's threads: clients find a median, and one of them fails.

The server halves an interval until one number remains. In each step it sends which half to keep;
each client returns how many of its values are in each half of what remains.
"""

from typing import Annotated, Literal

import msgspec

from fedlib.core.client import Client, handles
from fedlib.core.messages import Message
from fedlib.testing import Recorder


class HalfCounts(Message):
    """The numbers of a client's values in the lower and the upper half of its interval."""

    discloses = "how many of a client's values are in either half of an interval"
    lower: Annotated[int, msgspec.Meta(ge=0)]
    upper: Annotated[int, msgspec.Meta(ge=0)]


class Halve(Message):
    """Keep this part of your interval, and count your values in the halves of what remains."""

    discloses = "the half that contains the median"
    reply = HalfCounts
    keep: Literal["both", "lower", "upper"]


class Interval(Message):
    """The state of a client."""

    discloses = "nothing: it stays with the client"
    low: int
    high: int


def kept(low, high, keep):
    """Return the interval that remains.

    Examples
    --------
    >>> kept(0, 32, "both"), kept(0, 32, "upper")
    ((0, 32), (16, 32))
    """
    middle = (low + high) // 2
    return {"both": (low, high), "lower": (low, middle), "upper": (middle, high)}[keep]


def count(values, low, high):
    """Count the values in the halves of an interval."""
    middle = (low + high) // 2
    lower, upper = (values >= low) & (values < middle), (values >= middle) & (values < high)
    return HalfCounts(int(lower.sum()), int(upper.sum()))


def decide(rank, replies):
    """Return the half with the median, and the median's rank in it; at first, rank is None.

    Examples
    --------
    >>> decide(None, [HalfCounts(1, 2), HalfCounts(0, 2)])
    ('upper', 2)
    """
    lower, upper = (sum(getattr(r, side) for r in replies) for side in ("lower", "upper"))
    rank = (lower + upper + 1) // 2 if rank is None else rank
    return ("lower", rank) if rank <= lower else ("upper", rank - lower)


def leaving(coroutine, n_replies):
    """Run a coroutine of Vasilopoulou's design that is gone after so many replies."""
    reply = next(coroutine)
    for _ in range(n_replies):
        reply = coroutine.send((yield reply))
    yield reply
    raise ConnectionError


class Leaving(Client):
    """A client of `fedlib` that is gone after so many replies."""

    def __init__(self, client, n_replies):
        self.client, self.n_left = client, n_replies

    def handle(self, request):
        self.n_left -= 1
        if self.n_left < 0:
            raise ConnectionError
        return self.client.handle(request)


class Number(Message):
    """A number."""

    discloses = "a number"
    value: float


class SendNumber(Message):
    """Send your number."""

    discloses = "nothing"
    reply = Number


class NumberClient(Client):
    """A client with a number."""

    def __init__(self, value):
        self.value = value

    @handles(SendNumber)
    def send(self, request):
        return Number(self.value)


class Arrival(Recorder):
    """A transport that returns the replies in a given order of the clients."""

    def __init__(self, clients, order):
        super().__init__(clients)
        self.order = order

    def exchange(self, requests):
        replies = super().exchange(requests)
        return {name: replies[name] for name in self.order}
