"""What a run prints while it works, for those who wait."""

from __future__ import annotations

from time import monotonic

from fedlib.core.ledger import SERVER, Ledger


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
