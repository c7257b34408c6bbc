"""The ledger of a run: sender, receiver, size and disclosure of every message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from fedlib.core.messages import Declined, Failure, Message, privacy_of
from fedlib.core.wording import printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


SERVER = "server"
MAX_REASON = 300  # characters of the reason why a reply is rejected
ROW_RULES = ("max_bytes", "min_count", "review")  # the others depend on the request only

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One message: its step, sender, receiver, class, size in bytes, and disclosed information."""

    step: int
    sender: str
    receiver: str
    message: str
    bytes: int
    discloses: str


@dataclass
class Ledger:
    """All messages of one run. Those of one step are in the order of the clients.

    A step is one exchange: requests to some or all clients, and their replies. The ledger keeps the
    class of a message, its size, and the disclosure that its class declares, but not its contents.

    Attributes
    ----------
    entries : list of Entry
    lost : dict of str to str
        For each client that left the run, the type of the error, the request and the step.
    rejected : dict of str to str
        The reason why a client's reply was rejected. The transport may send it to the client. A
        ledger that is read from a file does not have it.
    features : tuple of str
        The names of the columns, as the first client with names has stated them; empty if none has.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit([[[0.1], [0.2]], [[5.0]]])
    >>> model.ledger_.conversation()
    ['CountCells', 'CellCounts', 'AssignCells', 'Done']
    >>> model.ledger_.to_frame().columns.tolist()
    ['step', 'sender', 'receiver', 'message', 'bytes', 'discloses']
    """

    entries: list[Entry] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict, compare=False)
    features: tuple[str, ...] = ()

    def note_rejected(self, client: str, request: str, problem: str) -> None:
        """Log why the reply of a client to a request is rejected, and keep the reason."""
        self.rejected[client] = printable(problem, MAX_REASON)
        shown = printable(problem)
        logger.warning("the reply of client %r to %s was rejected: %s", client, request, shown)

    def why_lost(self, client: str) -> str:
        """Return why a client left the run, with the reason in words if its reply was rejected."""
        words = self.rejected.get(client)
        return self.lost[client] + (f" ({words})" if words else "")

    def record(self, step: int, sender: str, receiver: str, message: Message, size: int) -> None:
        """Record one message of ``size`` bytes."""
        name = type(message).__name__
        self.entries.append(Entry(step, sender, receiver, name, size, _disclosed_by(message)))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def bytes(self) -> int:
        """The total size of all messages, in bytes."""
        return sum(entry.bytes for entry in self.entries)

    def conversation(self) -> list[str]:
        """Return the names of the message classes in order, each once per step."""
        seen = dict.fromkeys((e.step, e.sender == SERVER, e.message) for e in self.entries)
        return [message for _, _, message in sorted(seen, key=lambda s: (s[0], not s[1]))]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per message: step, sender, receiver, message, bytes, discloses."""
        import pandas as pd

        return pd.DataFrame(self.entries, columns=Entry._fields)

    def summary(self) -> pd.DataFrame:
        """Return one row per step and message class, with the count of messages and bytes."""
        import pandas as pd

        sizes: dict[tuple[int, str, str, str], list[int]] = {}
        for step, sender, _, message, size, discloses in self.entries:
            direction = "to clients" if sender == SERVER else "to server"
            sizes.setdefault((step, direction, message, discloses), []).append(size)
        rows = [(*group, len(of_group), sum(of_group)) for group, of_group in sizes.items()]
        columns = ["step", "direction", "message", "discloses", "messages", "bytes"]
        return pd.DataFrame(rows, columns=columns)

    def plot(self, ax: Axes | None = None, max_clients: int = 4, max_steps: int = 6) -> Axes:
        """Draw the conversation as a sequence diagram.

        Time runs downwards. Every message is an arrow with its class and size.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw into; by default those of a new figure.
        max_clients : int, default=4
            The count of clients drawn separately; one more column represents the rest.
        max_steps : int, default=6
            If there are more steps, only the first ones and the last one are drawn.

        Returns
        -------
        Axes
        """
        from fedlib.figures.plots import sequence_diagram

        return sequence_diagram(
            self.to_frame(), ax=ax, max_clients=max_clients, max_steps=max_steps
        )

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, max_rows=12))


def _disclosed_by(message: Message) -> str:
    """Return what a message discloses, with what its class cannot say."""
    if isinstance(message, Failure):
        return f"{message.discloses} ({message.error})"
    if isinstance(message, Declined) and message.rule:
        because = ", which depends on the rows" if message.rule in ROW_RULES else ""
        return f"the rule that forbids the reply ({message.rule}){because}"
    if (privacy := privacy_of(message)) is not None:
        return f"{message.discloses}; the reply has {privacy}"
    return message.discloses


class Progress:
    """Prints lines about the steps of a run on standard output.

    Parameters
    ----------
    verbose : bool or int
        False: nothing. True: at most one line per second, and one at the end. 2: one line per step.

    Raises
    ------
    ValueError
        When it is anything else.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> parts = [[[0.1], [0.2]], [[5.0]]]
    >>> model = HorizontalDBSCAN(1.0, 2).fit(parts, verbose=2)  # doctest: +ELLIPSIS
    step 1: CountCells to 2 clients, 210 bytes, ... s
    step 2: AssignCells to 2 clients, 468 bytes, ... s
    the run has ended after 2 steps, 468 bytes, ... s
    """

    def __init__(self, verbose: bool | int):
        if verbose not in (0, 1, 2):
            raise ValueError(f"verbose must be False, True or 2; got {verbose!r}")
        self._every = None if not verbose else 0.0 if verbose == 2 else 1.0
        self._began = self._shown = monotonic()
        self._n_seen = self._n_bytes = self._n_steps = 0

    def show(self, ledger: Ledger) -> None:
        """Print a line about the last step, if it is time for one."""
        if self._every is None:
            return
        new = ledger.entries[self._n_seen :]
        requests = [entry for entry in new if entry.sender == SERVER]
        if not requests:
            return
        self._n_seen, self._n_steps = len(ledger.entries), requests[0].step
        self._n_bytes += sum(entry.bytes for entry in new)
        if monotonic() - self._shown < self._every:
            return
        self._shown = monotonic()
        lost = f", {len(ledger.lost)} lost" if ledger.lost else ""
        self._print(f"step {self._n_steps}: {requests[0].message} to {len(requests)} clients{lost}")

    def finish(self) -> None:
        """Print the last line."""
        if self._every is not None:
            self._print(f"the run has ended after {self._n_steps} steps")

    def _print(self, text: str) -> None:
        seconds = monotonic() - self._began
        print(f"{text}, {self._n_bytes:,} bytes, {seconds:.0f} s", flush=True)
