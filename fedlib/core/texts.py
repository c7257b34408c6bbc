"""Text that comes from another machine, made safe to print."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, length: int = 2000) -> str:
    r"""Return a text without control characters, shortened: a part of it may come from a site.

    Parameters
    ----------
    text : str
    length : int, default=2000
        The maximum number of characters before the ellipsis.

    Examples
    --------
    >>> print(printable("\x1b[2J finished", 12))
    \x1b[2J fini…
    """
    safe = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[:length])
    return safe if max(len(text), len(safe)) <= length else safe[:length] + "…"
