"""FIN as F designs it (Algorithms 3 and 4): a thread and two queues, and a coroutine per client.

It exists to be compared with `fedlib` on one page. `FinServer`, `MLServer` and `FinClient` follow
the two algorithms. `run_rounds` takes the place of Flower. What F's pseudocode does not have is
marked with "Addition".
"""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from fedlib.core.messages import Message, decode, encode
from fedlib.core.protocol import Replies, run, serve
from fedlib.testing import Recorder

END = None, None  # Addition: ML_SERVER puts it into send_queue when it returns
CLOSED = object()  # Addition: ends a thread that a page has found waiting without end


class Stuck(RuntimeError):
    """Addition: a wait that cannot end, because nobody will fill the queue."""


@dataclass(frozen=True)
class FitInstructions:
    """What Flower carries to a client."""

    client_id: str
    data: bytes


@dataclass(frozen=True)
class FitResponse:
    """What Flower carries back."""

    data: bytes


Cycle = Callable[[str, bytes], bytes]
Calls = list[tuple[str, str, str, bytes]]  # caller, callee, what, data


class MLServer:
    """ML_SERVER of Algorithm 3: the algorithm, which runs in a thread of its own.

    Parameters
    ----------
    algorithm : callable
        The computations of FIT. It takes `send_receive_cycle` and returns the result.
    send_queue, receive_queue : Queue
    calls : list
        Addition: collects the calls.
    """

    def __init__(
        self,
        algorithm: Callable[[Cycle], Any],
        send_queue: Queue,
        receive_queue: Queue,
        calls: Calls,
    ):
        self.algorithm = algorithm
        self.send_queue, self.receive_queue, self.calls = send_queue, receive_queue, calls
        self.result: Any = None

    def send_receive_cycle(self, client_id: str, data: bytes) -> bytes:
        self.calls.append(("ML_SERVER", "send_queue", "put", data))
        self.send_queue.put((client_id, data))
        received = self.receive_queue.get()
        if received is CLOSED:
            raise SystemExit  # ends this thread without a message
        self.calls.append(("receive_queue", "ML_SERVER", "get", received))
        return received

    def fit(self) -> None:
        self.result = self.algorithm(self.send_receive_cycle)
        self.send_queue.put(END)


class FinServer:
    """FIN_SERVER of Algorithm 3.

    Parameters
    ----------
    algorithm : callable
        As in `MLServer`.
    """

    def __init__(self, algorithm: Callable[[Cycle], Any]):
        self.calls: Calls = []
        self.send_queue: Queue = Queue()
        self.receive_queue: Queue = Queue()
        self.ml_server = MLServer(algorithm, self.send_queue, self.receive_queue, self.calls)
        self.thread = threading.Thread(target=self.ml_server.fit, daemon=True)
        self.n_instructions = self.n_responses = 0  # Addition, for `next_data`
        self.thread.start()

    def configure_fit(self) -> FitInstructions | None:
        client_id, data = self.next_data()
        if data is None:
            return None
        self.calls.append(("send_queue", "FIN_SERVER", "get", data))
        return FitInstructions(client_id, data)

    def aggregate_fit(self, fit_response: FitResponse) -> None:
        self.calls.append(("FIN_SERVER", "receive_queue", "put", fit_response.data))
        self.n_responses += 1
        self.receive_queue.put(fit_response.data)

    def next_data(self) -> tuple[str, bytes] | tuple[None, None]:
        """Return send_queue.get(). Addition: raise `Stuck` if it would never return."""
        if self.n_instructions > self.n_responses:
            raise Stuck("FIN_SERVER waits for send_queue, ML_SERVER waits for receive_queue")
        while True:
            running = self.thread.is_alive()  # what it puts, it puts before it ends
            try:
                item = self.send_queue.get(timeout=0.01)
            except Empty:
                if not running:
                    raise Stuck("FIN_SERVER waits for send_queue, its thread has ended") from None
            else:
                self.n_instructions += 1
                return item

    def close(self) -> None:
        """Addition: end the thread if it waits for a response."""
        self.receive_queue.put(CLOSED)
        self.thread.join()


class FinClient:
    """FIN_CLIENT of Algorithm 4.

    Parameters
    ----------
    coroutine : generator
        ML_CLIENT.FIT: it yields a response and receives the next data.
    """

    def __init__(self, coroutine: Generator[bytes, bytes, None]):
        self.client = coroutine
        next(self.client)  # Addition: a new coroutine must first run to its first yield

    def fit(self, fit_instructions: FitInstructions) -> FitResponse:
        response = self.client.send(fit_instructions.data)
        return FitResponse(response)


@dataclass
class Outcome:
    """What became of a run.

    Attributes
    ----------
    result : object
        What the algorithm returned.
    rounds : int
        The number of rounds that Flower needed.
    calls : list of tuple
        Each call: the caller, the callee, what was done, and the data.
    ended : str
        How the run ended.
    errors : list of str
        The types of the errors in the thread and at the clients, which no caller receives.
    """

    result: Any = None
    rounds: int = 0
    calls: Calls = field(default_factory=list)
    ended: str = "a result"
    errors: list[str] = field(default_factory=list)

    @property
    def messages(self) -> list[list[bytes]]:
        """The data of all instructions and of all responses, in order; see `messages_of`."""
        return [
            [data for *_, what, data in self.calls if what == kind]
            for kind in ("fit_instructions", "fit_response")
        ]


def messages_of(recorder: Recorder) -> list[list[bytes]]:
    """Return the bytes of all requests and of all replies of a run of `fedlib`, in order."""
    return [
        [data for exchange in recorder.exchanges for data in getattr(exchange, kind).values()]
        for kind in ("request_bytes", "reply_bytes")
    ]


def outcome_of(flow: Generator, recorder: Recorder) -> str:
    """Return what becomes of a run of `fedlib`, in words."""
    try:
        return f"a result: {run(flow, recorder)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run_rounds(
    algorithm: Callable[[Cycle], Any],
    clients: Mapping[str, FinClient],
    before_round: Callable[[dict[str, FinClient], int], None] = lambda clients, number: None,
    deliveries: Callable[[int], int] = lambda number: 1,
) -> Outcome:
    """Run FIN in rounds, as Flower does, until the algorithm returns or nothing moves any more.

    Parameters
    ----------
    algorithm : callable
        As in `MLServer`.
    clients : mapping of str to FinClient
    before_round : callable, optional
        Called with the clients and the number of the round; it may replace clients.
    deliveries : callable, optional
        Returns how often the response of a round arrives, by default once.

    Notes
    -----
    Flower catches a client's error and counts it as a failure of the round. `aggregate_fit` then
    has no response to put into the queue.
    """
    outcome, present = Outcome(), dict(clients)
    with _errors_of_threads(outcome.errors):
        server = FinServer(algorithm)
        outcome.calls = server.calls
        try:
            while (instructions := server.configure_fit()) is not None:
                outcome.rounds += 1
                before_round(present, outcome.rounds)
                response = _carry(server, present[instructions.client_id], instructions, outcome)
                for _ in range(deliveries(outcome.rounds) if response else 0):
                    server.aggregate_fit(response)
            outcome.result = server.ml_server.result
        except Stuck as error:
            outcome.ended = f"no end: {error}"
        server.close()
    return outcome


def _carry(
    server: FinServer, client: FinClient, instructions: FitInstructions, outcome: Outcome
) -> FitResponse | None:
    """Carry instructions to a client; return its response, or None after an error."""
    server.calls.append(("FIN_SERVER", "FIN_CLIENT", "fit_instructions", instructions.data))
    server.calls.append(("FIN_CLIENT", "ML_CLIENT", "send", instructions.data))
    try:
        response = client.fit(instructions)
    except Exception as error:
        outcome.errors.append(f"{type(error).__name__} at {instructions.client_id}")
        return None
    server.calls.append(("ML_CLIENT", "FIN_CLIENT", "yield", response.data))
    server.calls.append(("FIN_CLIENT", "FIN_SERVER", "fit_response", response.data))
    return response


@contextmanager
def _errors_of_threads(errors: list[str]):
    """Collect the errors that threads would print."""
    before = threading.excepthook

    def collect(raised: Any) -> None:
        if raised.exc_type is not SystemExit:
            errors.append(f"{raised.exc_type.__name__} in the thread")

    threading.excepthook = collect
    try:
        yield
    finally:
        threading.excepthook = before


def algorithm_of(flow: Generator, names: list[str]) -> Callable[[Cycle], Any]:
    """Return FIT of an ML_SERVER that drives a flow of `fedlib`, one cycle per client."""

    def fit(send_receive_cycle: Cycle) -> Any:
        request = next(flow)
        while True:
            asked = dict.fromkeys(names, request) if isinstance(request, Message) else request
            replies = {}
            for name, message in asked.items():
                data = send_receive_cycle(name, encode(message))
                replies[name] = message.accept(decode(data, message.reply))
            try:
                request = flow.send(Replies(replies))
            except StopIteration as finished:
                return finished.value

    return fit


def coroutine_of(client: Any) -> Generator[bytes, bytes, None]:
    """Return FIT of an ML_CLIENT that answers with a client of `fedlib`."""
    reply = b""
    while True:
        reply = serve(client, (yield reply))
