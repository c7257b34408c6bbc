"""The search for the client whose reply ends a run.

A flow compares what clients declare, and excludes those that contradict the others
(`fedlib.core.aggregation`). A reply that passes these checks can still make the next step
impossible: the flow raises an error, or its next request breaks the rules of its own class.
`searching` then repeats the flow with the recorded replies, each time without the last reply of
another client. If the flow works without exactly one client, this client leaves the run, and the
flow goes on. A flow that knows the client raises `Disagreement` with it as the minority.

A flow is deterministic (`fedlib.core.journal`), so a repeated flow sends the same requests. If it
does not, there is no search. No client is asked again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import combinations
from math import comb
from typing import Any, NamedTuple, TypeVar

from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import Message, decode, encode
from fedlib.core.protocol import (
    Flow,
    GroupsTooSmall,
    InvalidRequest,
    Reject,
    Replies,
    TooFewClients,
)

MAX_RECORDED = 2**25  # bytes of messages; the rest of a longer run is not searched
MAX_TRIES = 100  # of repeated flows
# Errors that compare clients already, or are not about replies.
FINAL = (GroupsTooSmall, TooFewClients, MemoryError, Warning)

Model = TypeVar("Model")
Asked = Message | Mapping[str, Message] | Reject

_is_repeated: ContextVar[bool] = ContextVar("_is_repeated", default=False)


class _Step(NamedTuple):
    """What a flow has asked, and what it has received: replies, or an error at its ``yield``."""

    asked: Asked
    outcome: Replies | Exception


class _Repeated(NamedTuple):
    """A repeated flow that has received all recorded replies but some, and works.

    Attributes
    ----------
    flow : generator
    steps : list of _Step
        The steps as this flow has seen them.
    excluded : tuple of str
        The clients without whose last replies it works.
    resume : callable
        Returns what the flow asks next, or raises StopIteration with its model.
    warned : list of warnings.WarningMessage
        The warnings since the last recorded outcome.
    """

    flow: Flow[Any]
    steps: list[_Step]
    excluded: tuple[str, ...]
    resume: Callable[[], Any]
    warned: Sequence[warnings.WarningMessage]


class NotRepeatable(Exception):
    """A flow cannot be repeated, because it asks something else, or would act once more."""


class Once:
    """A function that is called once per value of an attribute of its argument.

    A repeated flow receives what the function returned or raised before, so that a search calls no
    function of the user again.

    Parameters
    ----------
    function : callable
        A function of one argument.
    key : str
        The attribute.

    Raises
    ------
    NotRepeatable
        When a repeated flow calls it for another value.
    """

    def __init__(self, function: Callable[[Any], Any], key: str):
        self.function, self.key = function, key
        self.known: dict[Any, tuple[Any, Exception | None]] = {}

    def __call__(self, argument: Any) -> Any:
        key = getattr(argument, self.key)
        if key not in self.known:
            if _is_repeated.get():
                raise NotRepeatable
            try:
                self.known[key] = self.function(argument), None
            except Exception as error:
                self.known[key] = None, error
        value, raised = self.known[key]
        if raised is not None:
            raise raised
        return value


def searching(flow: Flow[Model], again: Callable[[], Flow[Model]]) -> Flow[Model]:
    """Run a flow; when it fails because of one client's last reply, exclude the client and go on.

    Parameters
    ----------
    flow : generator
        A flow that has not been started.
    again : callable
        Returns an equal flow, which sends the same requests for the same replies.

    Raises
    ------
    Exception
        That of the flow, when no single client is to blame, or too few clients would remain.

    Notes
    -----
    The messages are kept until the flow ends or they exceed `MAX_RECORDED` bytes. A search repeats
    the flow once per client, at most `MAX_TRIES` times; more clients are halved first. In small
    runs, pairs of clients are tried, too.

    Examples
    --------
    >>> import numpy as np
    >>> from fedlib.clustering.kmeans import FederatedKMeansClient
    >>> from fedlib.clustering.kmeans.messages import MeasureInertia
    >>> from fedlib.core.in_process import InProcess
    >>> from fedlib.core.protocol import run
    >>> def flow():
    ...     replies = yield MeasureInertia(np.zeros((1, 1)))
    ...     total = sum(reply.inertia for reply in replies.values())
    ...     if total > 50:
    ...         raise ValueError(f"the inertia must be at most 50; got {total}")
    ...     return total
    >>> parts = {"A": [[1.0]], "B": [[2.0]], "C": [[9.0]]}
    >>> clients = InProcess({name: FederatedKMeansClient(X) for name, X in parts.items()})
    >>> run(searching(flow(), flow), clients, min_clients=2), clients.ledger.lost
    (5.0, {'C': 'InvalidReply at MeasureInertia, step 1'})
    """
    steps: list[_Step] = []
    n_bytes = 0
    resume: Callable[[], Any] = partial(next, flow)
    while True:
        is_asked = False
        try:
            asked = resume()
            is_asked = True
            outcome: Replies | Exception = yield asked
        except StopIteration as finished:
            model: Model = finished.value
            return model
        except Exception as error:
            if not is_asked or isinstance(error, InvalidRequest):
                repeated = _search(again, steps, error) if n_bytes <= MAX_RECORDED else None
                if repeated is None:
                    raise
                yield Reject(
                    dict.fromkeys(repeated.excluded, f"the run ends with it: {error}"), error
                )
                flow, steps, resume = repeated.flow, repeated.steps, repeated.resume
                for one in repeated.warned:
                    warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
                continue
            outcome = error  # the flow may handle it
        if isinstance(outcome, Exception):
            resume = partial(flow.throw, outcome)
        else:
            resume = partial(flow.send, outcome)
            if n_bytes <= MAX_RECORDED:
                n_bytes += _size(asked) + sum(map(_size, outcome.values()))
        steps.append(_Step(asked, outcome))
        if n_bytes > MAX_RECORDED:
            steps.clear()


def _search(
    again: Callable[[], Flow[Any]], steps: Sequence[_Step], error: Exception
) -> _Repeated | None:
    """Return the flow that works without the last reply of one client, or of few; None if none."""
    asked = [k for k, step in enumerate(steps) if not isinstance(step.asked, Reject)]
    if isinstance(error, FINAL) or _is_repeated.get() or not asked:
        return None
    received = steps[asked[-1]].outcome
    if not isinstance(received, Replies) or isinstance(steps[-1].outcome, Exception):
        return None
    works = _Repetitions(again, steps, asked[-1])
    repeated = _is_repeated.set(True)
    try:
        guilty = works.without_the_named(error)
        if not isinstance(error, Disagreement):  # else nobody is in the minority
            guilty = _guilty(list(received), works)
    except NotRepeatable:
        return None
    finally:
        _is_repeated.reset(repeated)
    return works.known[guilty] if guilty else None


class _Repetitions:
    """The repetitions of a flow, each without the last replies of other clients.

    Attributes
    ----------
    known : dict of tuple of str to _Repeated
        Those that work, by the excluded clients.
    error : Exception or None
        That of the last one that does not work.
    """

    def __init__(self, again: Callable[[], Flow[Any]], steps: Sequence[_Step], last: int):
        self._again, self._steps, self._last = again, steps, last
        self.known: dict[tuple[str, ...], _Repeated] = {}
        self.error: Exception | None = None

    def __call__(self, excluded: Sequence[str]) -> bool:
        """Return whether the flow works without these clients."""
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self.known[tuple(excluded)] = _repeat(
                    self._again, self._steps, self._last, excluded, warned
                )
        except NotRepeatable:
            raise
        except Exception as error:
            self.error = error
            return False
        return True

    def without_the_named(self, error: Exception | None) -> tuple[str, ...]:
        """Return the clients that errors of the flow name, if it works without them, else none."""
        named: tuple[str, ...] = ()
        while isinstance(error, Disagreement) and set(error.minority).difference(named):
            named = tuple(dict.fromkeys((*named, *error.minority)))
            if self(named):
                return named
            error = self.error
        return ()


def _guilty(clients: Sequence[str], works: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Return the fewest clients without which a flow works; none if there is another such choice.

    Examples
    --------
    >>> _guilty("ABCDE", lambda excluded: "C" in excluded)
    ('C',)
    >>> _guilty("ABCDE", lambda excluded: {"B", "D"} <= set(excluded))
    ('B', 'D')
    >>> _guilty("ABCDE", lambda excluded: True)
    ()
    """
    n_clients = len(clients)
    while len(clients) > MAX_TRIES:
        middle = len(clients) // 2
        halves = [half for half in (clients[:middle], clients[middle:]) if works(half)]
        if len(halves) != 1:
            return ()
        clients = halves[0]
    for size in (1, 2):
        if comb(len(clients), size) > MAX_TRIES or size > max(1, (n_clients - 1) // 2):
            break
        found = [group for group in combinations(clients, size) if works(group)]
        if found:
            return found[0] if len(found) == 1 else ()
    return ()


def _repeat(
    again: Callable[[], Flow[Any]],
    steps: Sequence[_Step],
    last: int,
    excluded: Sequence[str],
    warned: list[warnings.WarningMessage],
) -> _Repeated:
    """Resume a new flow with recorded outcomes, the last one without the replies of some clients.

    Parameters
    ----------
    again : callable
        Returns a new flow.
    steps : list of _Step
    last : int
        The index of the last step with requests. In those after it, clients were rejected.
    excluded : sequence of str
    warned : list of warnings.WarningMessage
        It contains the warnings of the flow. Those before the last outcome are removed.

    Raises
    ------
    Exception
        That of the flow, or that of its next request, if it breaks the rules of its class.
    NotRepeatable
        When the flow does not send the recorded requests.
    """
    flow, seen = again(), list[_Step]()
    resume: Callable[[], Any] = partial(next, flow)
    try:
        for k, (recorded, outcome) in enumerate(steps[: last + 1]):
            asked = resume()
            if not _are_equal(asked, recorded):
                raise NotRepeatable
            if isinstance(outcome, Exception):
                resume = partial(flow.throw, outcome)
            else:
                if k == last:
                    gone = [*outcome.lost, *_with_combined(excluded, outcome)]
                    declined, outcome = outcome.declined, outcome.without(gone, gone)
                resume = partial(flow.send, outcome)
            seen.append(_Step(asked, outcome))
        warned.clear()
        asked = resume()
        rejected = [step.asked.reasons for step in steps if isinstance(step.asked, Reject)]
        known = {name for reasons in rejected for name in reasons}
        while isinstance(asked, Reject) and known.issuperset(asked.reasons):
            gone.extend(name for name in asked.reasons if name not in gone)
            replies = Replies({}, declined, gone)
            seen.append(_Step(asked, replies))
            asked = flow.send(replies)
    except StopIteration as finished:
        if len(seen) <= last:
            raise NotRepeatable from None
        over = partial(_finish, finished.value)
        return _Repeated(flow, seen, tuple(excluded), over, warned)
    for request in _distinct(asked):
        decode(encode(request), type(request))
    return _Repeated(flow, seen, tuple(excluded), lambda: asked, warned)


def _finish(model: Any) -> Any:
    raise StopIteration(model)


def _with_combined(clients: Sequence[str], replies: Replies) -> list[str]:
    """Return these clients, and those whose data their replies contain."""
    return [*clients, *(name for name, into in replies.combined.items() if into in clients)]


def _distinct(asked: Asked) -> list[Message]:
    """Return the different requests of one step; none if clients are rejected."""
    if isinstance(asked, Mapping):
        return list({id(request): request for request in asked.values()}.values())
    return [asked] if isinstance(asked, Message) else []


def _are_equal(one: Asked, other: Asked) -> bool:
    """Return whether two steps have the same requests, or reject the same clients."""
    if isinstance(one, Reject) and isinstance(other, Reject):
        return one.reasons.keys() == other.reasons.keys()
    if isinstance(one, Reject) or isinstance(other, Reject):
        return False
    return _encoded(one) == _encoded(other)


def _encoded(asked: Message | Mapping[str, Message]) -> Any:
    if isinstance(asked, Message):
        return encode(asked)
    encoded = {id(request): encode(request) for request in asked.values()}
    return {name: encoded[id(request)] for name, request in asked.items()}


def _size(value: Any) -> int:
    """Return about how many bytes a message, or a value of its fields, takes."""
    if isinstance(value, Message):
        return sum(_size(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, Mapping):
        return sum(map(_size, _distinct(value)))
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, str | bytes) else 8)
