"""What a site remembers beside its private key, whatever becomes of a run, a process or a folder.

Two files lie next to NAME.key. NAME.masked lists which values each mask has hidden, so that no mask
hides two different ones: a restored or copied folder of a state would otherwise do so, and the
difference of both would be that of the values. NAME.failed exists after a protected request has
failed unexpectedly, until the operator of the site deletes it.

Nothing helps if the folder of the key is restored or copied, too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedlib.core.records import open_private
from fedlib.core.texts import printable

__all__ = ["KeyMemory"]


class ReusedMask(Exception):
    """A mask that has hidden values is asked to hide others, as from a restored folder."""


class SiteIsLocked(Exception):
    """A protected request has failed before, and the operator has not looked at it yet."""


@dataclass(frozen=True)
class KeyMemory:
    """The files beside a private key.

    Parameters
    ----------
    key : Path
        The file NAME.key.
    """

    key: Path

    @property
    def failed(self) -> Path:
        """The file that exists after a failure."""
        return self.key.with_suffix(".failed")

    def check(self) -> None:
        """Raise SiteIsLocked when a protected request has failed before."""
        if self.failed.exists():
            raise SiteIsLocked(
                f"a protected request has failed, so this site takes part in no other one: read"
                f" {self.failed}, repair the cause, and delete the file"
            )

    def fail(self, reason: str) -> None:
        """Note that a protected request has failed."""
        with os.fdopen(open_private(self.failed, os.O_APPEND), "ab") as file:
            file.write(printable(reason).encode() + b"\n")

    def use(self, mask: bytes, values: bytes) -> None:
        """Note that a mask hides values; both are given by their digests.

        Raises
        ------
        ReusedMask
            When it has hidden other values before.
        """
        import fcntl  # not on Windows

        path = self.key.with_suffix(".masked")
        with os.fdopen(open_private(path, os.O_APPEND), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for line in file:
                used, _, hidden = line.decode("ascii").strip().partition(" ")
                if used == mask.hex():
                    if hidden == values.hex():
                        return
                    raise ReusedMask(
                        f"the state of this site is older than {path}: it was restored or copied."
                        " Start this run again at all sites, with a new state_dir"
                    )
            file.write(f"{mask.hex()} {values.hex()}\n".encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
