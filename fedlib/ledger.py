"""The ledger of a run: who told whom what, in how many bytes, disclosing what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from fedlib.messages import Failure, Message

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SERVER", "Entry", "Ledger"]

SERVER = "server"


@dataclass(frozen=True)
class Entry:
    """One message that travelled: its step, ends, class, size in bytes, and what it discloses."""

    step: int
    sender: str
    receiver: str
    message: str
    bytes: int
    discloses: str


@dataclass
class Ledger:
    """A record of every message of one run, in the order of the clients within each step.

    A step is one exchange: requests to some or all clients, and their replies. Contents are not
    kept, only each message's class, size and what it discloses by its own declaration.

    Attributes
    ----------
    entries : list of Entry
    lost : dict of str to str
        Each client that left, with its error's type and the request and step at which it happened.

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

    def record(self, step: int, sender: str, receiver: str, message: Message, size: int) -> None:
        """Enter a message of ``size`` bytes."""
        discloses = message.discloses
        if isinstance(message, Failure):
            discloses += f" ({message.error})"
        entry = Entry(step, sender, receiver, type(message).__name__, size, discloses)
        self.entries.append(entry)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def bytes(self) -> int:
        """The size of all messages together."""
        return sum(entry.bytes for entry in self.entries)

    def conversation(self) -> list[str]:
        """Return the classes of the messages, step by step, each named once in its step."""
        seen = dict.fromkeys((e.step, e.sender == SERVER, e.message) for e in self.entries)
        return [message for _, _, message in sorted(seen, key=lambda s: (s[0], not s[1]))]

    def to_frame(self) -> pd.DataFrame:
        """Return the ledger as a table: step, sender, receiver, message, bytes, discloses."""
        columns = list(Entry.__dataclass_fields__)
        return pd.DataFrame([asdict(entry) for entry in self.entries], columns=columns)

    def summary(self) -> pd.DataFrame:
        """Return the table with a step's equal messages summed: their number and bytes."""
        frame = self.to_frame()
        frame["direction"] = (
            frame["sender"].eq(SERVER).map({True: "to clients", False: "to server"})
        )
        keys = ["step", "direction", "message", "discloses"]
        groups = frame.groupby(keys, sort=False)["bytes"]
        return groups.agg(messages="size", bytes="sum").reset_index()

    def plot(self, ax: Axes | None = None, max_clients: int = 4) -> Axes:
        """Draw the conversation as a sequence diagram and return the axes.

        Time runs downwards. Every message is an arrow with its class and size. Of more than
        ``max_clients`` clients the first are drawn, and one column stands for the rest.
        """
        from fedlib.plots import sequence_diagram

        return sequence_diagram(self, ax=ax, max_clients=max_clients)

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, max_rows=12))
