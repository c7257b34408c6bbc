"""Text that comes from another machine: one form for what looks the same, and safe to print."""

from __future__ import annotations

import unicodedata

__all__ = ["composed", "printable"]


def composed(text: str) -> str:
    r"""Return a text with composed characters (Unicode's NFC): é is one character, and not two.

    Some programs write é as e and an accent, which looks the same. All names, categories, classes
    and identifiers are read by this function, so that they meet between sites.

    Examples
    --------
    >>> len("Ge\u0301rard"), len(composed("Ge\u0301rard"))
    (7, 6)
    """
    return unicodedata.normalize("NFC", text)


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
