"""Text that comes from another machine: one form for what looks the same, and safe to print."""

from __future__ import annotations

import codecs
import unicodedata
from pathlib import Path

MARKS = {  # the longer marks come first, since that of UTF-16 begins that of UTF-32
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def marked_encoding(data: bytes) -> str | None:
    """Return the encoding whose byte order mark begins some bytes; None without a mark."""
    return next((name for mark, name in MARKS.items() if data.startswith(mark)), None)


def without_mark(data: bytes) -> bytes:
    """Return the bytes of a text in UTF-8, and without the byte order mark of an editor.

    Examples
    --------
    >>> without_mark("\ufeffmin_count = 5".encode()), without_mark("5".encode("utf-16"))
    (b'min_count = 5', b'5')
    """
    encoding = marked_encoding(data)
    return data if encoding is None else data.decode(encoding, "replace").encode()


def read_edited(path: str | Path) -> bytes:
    """Return the bytes of a file that people edit: a policy, a key, a token, or a schema.

    Editors and shells of Windows begin such a file with a byte order mark, or write UTF-16.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    return without_mark(Path(path).read_bytes())


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
        The maximum count of characters before the ellipsis.

    Examples
    --------
    >>> print(printable("\x1b[2J finished", 12))
    \x1b[2J fini…
    """
    safe = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[:length])
    return safe if max(len(text), len(safe)) <= length else safe[:length] + "…"
