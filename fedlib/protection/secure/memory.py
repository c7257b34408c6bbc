"""What a site remembers beside its private key, whatever becomes of a run, a process or a folder.

Two files lie next to NAME.key. NAME.masked lists which values each mask has hidden, and for which
survivors its sum was confirmed. A restored or copied folder of a state could otherwise hide two
different values by one mask, or reveal both kinds of shares of a site. NAME.failed exists after a
protected request has failed unexpectedly, until the operator of the site clears it. A third one,
NAME.counts, belongs to the memory of the tables (`fedlib.core.site_memory`).

Nothing helps if the folder of the key is restored or copied, too.
"""

from __future__ import annotations

from pathlib import Path

from fedlib.core.site_memory import Lock, TableMemory


class ReusedMask(Exception):
    """A mask is used for other values or other survivors than before, as from a restored folder."""


class KeyMemory:
    """The files beside a private key.

    Parameters
    ----------
    key : Path
        The file NAME.key.

    Attributes
    ----------
    lock : Lock
        Exists as a file after a failure.
    """

    def __init__(self, key: Path):
        self.lock = Lock(key.with_suffix(".failed"))
        self._masks = TableMemory(key.with_suffix(".masked"))

    def use(self, mask: bytes, values: bytes) -> None:
        """Note that a mask hides values; both are given by their digests.

        Raises
        ------
        ReusedMask
            When it has hidden other values before.
        ValueError
            When the file cannot be used.
        """
        self._once("mask", mask, values)

    def confirm(self, mask: bytes, survivors: bytes) -> None:
        """Note for which survivors the sum with a mask is confirmed; errors as for `use`."""
        self._once("survivors", mask, survivors)

    def _once(self, kind: str, mask: bytes, value: bytes) -> None:
        if self._masks.first(kind, mask.hex(), value.hex()) != value.hex():
            raise ReusedMask(
                f"the state of this site is older than {self._masks.path}: it was restored or"
                " copied. Start this run again at all sites, with a new state_dir"
            )
