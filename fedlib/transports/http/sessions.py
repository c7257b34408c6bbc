"""The sessions of a run: one `Session` per client, and the rules that concern all of them.

`fedlib.transports.http.session` explains the states and the events. This module has no threads, no
sockets and no clock either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedlib.transports.http.limits import Limits
from fedlib.transports.http.session import (
    AWAY,
    EXPECTED,
    Session,
)


class Sessions:
    """The sessions of a run.

    Parameters
    ----------
    names : iterable of str
        The clients' names.
    limits : Limits
    now : float
        The time at which the run begins.

    Attributes
    ----------
    by_name : dict of str to Session
    outcome : str
        How the run ended; empty before.
    opened : bool
        Whether the run has stopped waiting for clients to join.

    Examples
    --------
    >>> from fedlib.transports.http.session import Reply
    >>> sessions = Sessions(["north", "south"], Limits(join_timeout=60), now=0)
    >>> sessions["north"].join("process 1", now=5)
    >>> sessions.ready(now=5), sessions.ready(now=60)
    (False, True)
    >>> sessions.ask({"north": b"request", "south": b"request"}, now=60)
    >>> sessions.expire(now=60)  # the clients whose replies are awaited
    ['north']
    >>> sessions["north"].accept("process 1", Reply(1, b"reply"))
    >>> sessions.expire(now=61)
    []
    >>> sessions.take(), sessions["south"].reason
    ({'north': b'reply', 'south': None}, 'NeverJoined')
    """

    def __init__(self, names: Iterable[str], limits: Limits, now: float):
        self.limits = limits
        self.by_name = {name: Session(limits) for name in names}
        self.outcome = ""
        self.opened = False
        self._last = now + (math.inf if limits.max_seconds is None else limits.max_seconds)
        self._join_by = min(now + limits.join_timeout, self._last)
        self._asked: dict[str, None] = {}  # the clients of the current exchange
        self._started, self._reply_by = now, self._last
        # Clients that were absent, and that owed a reply, when they were last checked. Checking
        # only the last one of a list until it changes costs O(1) per event, for any n_clients.
        self._absent: list[str] = list(self.by_name)
        self._owing: list[str] = []
        self._returning: set[str] = set()  # clients of the run that this one continues

    def __getitem__(self, name: str) -> Session:
        return self.by_name[name]

    @property
    def n_present(self) -> int:
        """The count of clients with a process present."""
        return sum(bool(session.process) for session in self.by_name.values())

    def resume(self, numbers: Mapping[str, int]) -> None:
        """Continue a run in which each client has answered this count of requests."""
        for name, number in numbers.items():
            self[name].number = number
            if number:
                self._returning.add(name)

    def await_clients(self, now: float) -> None:
        """Start to wait for clients to join."""
        self._join_by = min(now + self.limits.join_timeout, self._last)

    def ready(self, now: float) -> bool:
        """Return whether an exchange can begin: all clients are present, or joining is over.

        Joining is over, too, if every client has refused. Lost clients do not count: those of a run
        that is continued are not expected.
        """
        if not self.opened:
            self.opened = bool(self.outcome) or now >= self._join_by or self._everybody()
            self.opened = self.opened or all(s.refused for s in self.by_name.values())
        return self.opened

    def _everybody(self) -> bool:
        """Return whether all clients are present."""
        while self._absent and not self[self._absent[-1]].absent:
            self._absent.pop()
        if not self._absent:  # others may have left since they were checked
            self._absent = [name for name, s in self.by_name.items() if s.absent]
        return not self._absent

    def ask(self, requests: Mapping[str, bytes], now: float) -> None:
        """Begin an exchange: open each client's request."""
        self._asked, self._started = dict.fromkeys(requests), now
        self._reply_by = min(now + self.limits.request_timeout, self._last)
        for name, request in requests.items():
            self[name].ask(request)
        self._owing = list(requests)

    def expire(self, now: float) -> list[str]:
        """Lose the clients whose deadline has passed; return those whose replies are awaited."""
        self._owing = list(self._awaited())
        for name in self._owing:
            self.check(name, now)
        return list(self._awaited())

    def check(self, name: str, now: float) -> None:
        """Lose one client if its reply is awaited and its deadline has passed."""
        session = self[name]
        owes = name in self._asked and session.awaited
        if owes and (reason := self._reason_to_lose(session, now)):
            session.lose(reason, now)

    def excuse(self, now: float) -> None:
        """Ignore all silence until now, because the server was too busy to accept calls."""
        self._started = max(self._started, now)

    def complete(self) -> bool:
        """Return whether each client of the exchange has replied or is lost."""
        while self._owing and not self[self._owing[-1]].awaited:
            self._owing.pop()
        return not self._owing

    def _awaited(self) -> dict[str, Session]:
        return {name: self[name] for name in self._asked if self[name].awaited}

    def _reason_to_lose(self, session: Session, now: float) -> str:
        if session.state is EXPECTED:
            refused = f"_{session.refused}" if session.refused else ""
            return "Gone" if session.number > 1 else f"NeverJoined{refused}"
        if now >= self._reply_by:
            return "TimedOut"
        if now >= session.missed_at(self._started):
            return "Left" if session.state is AWAY else "Gone"
        return "Closed" if self.outcome else ""

    def take(self) -> dict[str, bytes | None]:
        """End the exchange; return each client's reply, or None for a client that is lost."""
        replies = {name: self[name].take() for name in self._asked}
        self._asked, self._owing = {}, []
        return replies

    def abort(self) -> None:
        """End the exchange without its replies. Clients may still send them, without effect."""
        self._asked, self._owing = {}, []

    def reject(self, lost: Mapping[str, str]) -> None:
        """Lose the clients whose replies the run has rejected, given with the reasons."""
        for name, reason in lost.items():
            if name in self.by_name:
                self[name].lose(reason)

    def end(self, outcome: str, now: float) -> None:
        """End the run. The first outcome counts."""
        if self.outcome:
            return
        self.outcome = outcome
        self.expire(now)
        for session in self.by_name.values():
            session.end(outcome)

    def uninformed(self, now: float) -> list[str]:
        """Return the clients whose process is present but does not know that the run is over.

        In a run that is continued, the clients that have not joined again yet count as well.
        """
        return [
            name
            for name, session in self.by_name.items()
            if (session.alive(now) and not session.informed)
            or (name in self._returning and session.state is EXPECTED)
        ]
