"""The first lines of a text file: its separator and the names of its columns.

Quotation marks are respected. What can be read in two ways is refused; the error names the line and
the option that decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlib.core.wording import composed
from fedlib.tables.columns import CODE, COMMA, POINT, QUOTED, without_formula_guard
from fedlib.tables.streams import ReadOptions, open_text

SEPARATORS = ",;\t|"  # spaces are tried too, but may be in any text
HEAD = 2**18  # characters that are examined
MAX_LINE = 2**26
N_LINES = 100  # from which the separator is found, and that are compared with the names
ENOUGH = 0.8  # of the score of the best separator, at which another one is as good
GOOD = 0.8  # a score from which no other separator is considered that fits all lines
NAMES = {",": "the comma", ";": "the semicolon", "\t": "the tab", "|": "|", " ": "spaces"}
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
UNNAMED = re.compile(r"Unnamed: \d+")  # what pandas writes for a column without a name
# Characters that stand for those in quotation marks, until the fields are separated.
HIDDEN = 0xE000  # private characters begin here
UNQUOTED = {HIDDEN + i: i for i in range(256)}
QUOTE, BREAK = chr(HIDDEN + ord('"')), chr(HIDDEN + ord("\n"))


@dataclass(frozen=True)
class Layout:
    """How a text file is written.

    Attributes
    ----------
    encoding, separator : str
        The separator is empty if there is one column.
    skip : int
        The lines before the first row.
    names : list of str
        The names of the columns, or their positions.
    n_extra : int
        The count of separators at the end of each row.
    codes : mapping of str to str
        By column, a text that can be a code, such as 007.
    spaced_quotes : bool
        Whether there are spaces between a separator and a quotation mark.
    """

    encoding: str
    separator: str
    skip: int
    names: list[str]
    n_extra: int
    codes: dict[str, str]
    spaced_quotes: bool


def find_layout(path: Path, encoding: str, options: ReadOptions) -> Layout:
    """Return how a file is written.

    Raises
    ------
    ValueError
        When the separator or the names are not clear, or the file is empty.
    """
    lines, whole = _head(path, encoding)
    separator, skip = options.separator, options.skip_lines
    if lines and re.fullmatch(r"sep=.\s*", lines[0]):  # written by Excel
        separator = separator or lines[0][4]
        skip = max(skip, 1)
    numbered = list(_logical_lines(lines[skip:], skip + 1, separator or "", whole))
    if not numbered:
        raise ValueError(f"nothing follows the first {skip} lines" if skip else "the file is empty")
    if separator is None:
        separator = _find_separator([line for _, line in numbered[:N_LINES]])
        if separator == "\t":
            numbered = list(_logical_lines(lines[skip:], skip + 1, separator, whole))
    rows = [(number, _split(line, separator)) for number, line in numbered]
    names, n_extra = _find_names(rows, separator, options)
    if options.header is False:
        first = rows[0][0]
    else:
        rows = rows[1:]
        first = rows[0][0] if rows else len(lines) + 1
    codes: dict[str, str] = {}
    for _, cells in rows:
        for name, cell in zip(names, cells, strict=False):
            text = cell.strip(QUOTE)
            if CODE.fullmatch(text):
                codes.setdefault(name, text)
    spaced = bool(separator) and any(f'{separator} "' in line for line in lines[:N_LINES])
    return Layout(encoding, separator, first - 1, names, n_extra, codes, spaced)


def _head(path: Path, encoding: str) -> tuple[list[str], bool]:
    """Return the first lines of a file, and whether they are all lines."""
    lines: list[str] = []
    n = 0
    with open_text(path, encoding) as file:
        while n < HEAD or len(lines) < 3:
            line = file.readline(MAX_LINE)
            if not line:
                return lines, True
            if len(line) == MAX_LINE:
                raise ValueError(f"line {len(lines) + 1} has more than {MAX_LINE:,} characters")
            lines.append(line.rstrip("\r\n"))
            n += len(line)
    return lines, False


def _logical_lines(
    lines: Sequence[str], first: int, separator: str, whole: bool
) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers.

    Below the names, a line of tabs is a row of gaps if they are the separator.
    Marks in quotation marks are replaced by private characters. Lines behind a quotation mark
    that is not closed are left out, unless the lines are the ``whole`` file.
    """
    start = rf"(?<![^{re.escape(SEPARATORS + separator)} \n])"  # of a field
    quoted = {ord(mark): HIDDEN + ord(mark) for mark in '"\n ' + SEPARATORS + separator}
    text = re.sub(
        start + r'"(?:[^"]|"")*"', lambda match: match[0].translate(quoted), "\n".join(lines)
    )
    if not whole and (opened := re.search(start + '"', text)):
        text = text[: opened.start()].rpartition("\n")[0]
    number, blank = first, None
    for line in text.split("\n"):
        if line.strip(blank):
            yield number, line
            blank = " " if separator == "\t" else None
        number += 1 + line.count(BREAK)


def _split(line: str, separator: str) -> list[str]:
    """Return the fields of a line; the characters in quotation marks remain replaced."""
    if separator == " ":
        return re.split(" +", line.strip(" "))
    return [cell.strip(" ") for cell in line.split(separator)] if separator else [line.strip(" ")]


def _find_separator(lines: Sequence[str]) -> str:
    """Return the separator of lines, or "" for one column.

    A separator is good if the lines have the same count of fields, and if the fields are numbers,
    or texts in which no other separator occurs. If many are not, no other one may divide all
    lines into the same count of fields.
    """
    scores = {mark: _score(lines, mark) for mark in (*SEPARATORS, " ")}
    first, *rest = sorted(scores, key=lambda mark: -scores[mark])
    if not scores[first]:
        return ""
    for mark in rest:
        as_good = scores[mark] >= ENOUGH * scores[first]
        if as_good or (scores[mark] and scores[first] < GOOD and _fits(lines, mark)):
            raise ValueError(
                f"the separator can be {NAMES[first]} or {NAMES[mark]}; name it with --separator"
            )
    return first


def _score(lines: Sequence[str], separator: str) -> float:
    """Return how well a separator explains lines, from 0 to 1; 0 if it does not occur."""
    rows = [_split(line, separator) for line in lines]
    width = _usual_width(rows)
    if width < 2:
        return 0.0
    rows = [row for row in rows if len(row) == width]
    if separator == " " and not any(
        all(map(_is_number, column)) for column in zip(*rows[1:], strict=True)
    ):
        return 0.0
    other = re.compile("[" + re.escape(SEPARATORS.replace(separator, "")) + "]")
    clean = sum(
        not other.search(cell) or (separator != "," and bool(DECIMAL_COMMA.fullmatch(cell)))
        for row in rows
        for cell in row
    )
    return len(rows) / len(lines) * clean / (len(rows) * width)


def _fits(lines: Sequence[str], separator: str) -> bool:
    """Return whether all lines have the same count of fields."""
    return len({len(_split(line, separator)) for line in lines}) == 1


def _usual_width(rows: Sequence[Sequence[str]]) -> int:
    """Return the most frequent count of fields; ties go to the last row."""
    return Counter(len(row) for row in reversed(rows)).most_common(1)[0][0]


def _is_number(cell: str) -> bool:
    text = cell.translate(UNQUOTED).strip('"')
    return bool(POINT.fullmatch(text) or COMMA.fullmatch(text))


# The names of the columns.


def _find_names(
    rows: Sequence[tuple[int, list[str]]], separator: str, options: ReadOptions
) -> tuple[list[str], int]:
    """Return the names of the columns, and the count of empty fields at the ends of the rows."""
    (number, first), body = rows[0], [cells for _, cells in rows[1:]]
    width = _usual_width([*body, first] if body else [first])
    usual = [cells for cells in body if len(cells) == width]
    if options.header is False:
        if len(first) != width:
            raise _other_width(rows, width, separator)
        return [str(i) for i in range(width)], 0
    names = [_name(cell) for cell in first]
    named = max((j for j, name in enumerate(names, 1) if name), default=0)
    empty = usual and named and not any(any(cells[named:]) for cells in usual)
    if empty and width > named and len(names) in (named, width):
        names = names[:named]
    elif len(names) != width:
        raise _other_width(rows, width, separator)
    check_names(names, usual, f"line {number}", options)
    return names, width - len(names)


def _name(cell: str) -> str:
    """Return the name in a field."""
    cell = cell.translate(UNQUOTED)
    if len(cell) > 1 and cell[0] == cell[-1] == '"':
        cell = cell[1:-1].replace('""', '"')
    return composed(without_formula_guard(" ".join(cell.split("\n"))).strip("\ufeff").strip())


def _check_no_values(names: Sequence[str], rows: Sequence[Sequence[str]], place: str) -> None:
    """Raise ValueError if names look like values of their columns, or are in quotation marks."""
    if quoted := next(filter(QUOTED.fullmatch, names), None):
        raise ValueError(
            f'the name {quoted} in {place} has quotation marks of another kind than "; replace'
            " them, or use --header if they belong to the names"
        )
    numeric = [_is_number(name) for name in names]
    if all(numeric):
        raise ValueError(
            "the first row contains numbers instead of names; use --no-header, or --header if they"
            " are names"
        )
    alike = [
        number == all(_is_number(cell) for cell in cells if cell)
        for number, cells in zip(numeric, zip(*rows[:N_LINES], strict=True), strict=False)
    ]
    if any(numeric) and alike and all(alike):
        values = ", ".join(map(repr, names[:5]))
        raise ValueError(
            f"{place} looks like values ({values}) and not like names; use --no-header, or --header"
            " if these are names"
        )


def check_names(
    names: Sequence[str], rows: Sequence[Sequence[str]], place: str, options: ReadOptions
) -> None:
    """Raise ValueError if names of columns are empty or repeated, or values unless options say so.

    Parameters
    ----------
    names : sequence of str
    rows : sequence of sequence of str
        The texts of the cells below the names.
    place : str
        Where the names are, for errors.
    options : ReadOptions
    """
    if options.header is None:
        _check_no_values(names, rows, place)
    nameless = [not name or bool(UNNAMED.fullmatch(name)) for name in names]
    if any(nameless):
        remedy = "name it, or leave out lines above the names with --skip-lines"
        if nameless[0]:
            remedy = (
                "if it contains row names, write the file without them (in R row.names=FALSE, in"
                " pandas index=False), or name it"
            )
        raise ValueError(f"column {nameless.index(True) + 1} has no name in {place}; {remedy}")
    check_unique(names)


def check_unique(names: Sequence[str]) -> None:
    """Raise ValueError if columns have the same name."""
    repeated = sorted(name for name, n in Counter(names).items() if n > 1)
    if repeated:
        raise ValueError(f"columns with the same name: {', '.join(repeated)}; rename them")


def _other_width(
    rows: Sequence[tuple[int, Sequence[str]]], width: int, separator: str
) -> ValueError:
    """Return an error for a first line with another count of fields than the rows."""
    number, first = rows[0]
    other = next(line for line, cells in rows if len(cells) == width)
    text = " ".join(first).translate(UNQUOTED)[:40]
    problem = (
        f"line {number} ({text!r}) has {counted(len(first), 'field')}, but line {other} has {width}"
    )
    if 1 < len(first) == width - 1:
        return ValueError(
            f"{problem}; if the first field is a row name, write the file without row names (in R"
            " row.names=FALSE), or add a name for them; if commas are decimal marks, use another"
            " separator"
        )
    used = separator_name(separator)
    return ValueError(
        f"{problem}; if it is a title, leave it out with --skip-lines {other - 1}; if the separator"
        f" is not {used}, name it with --separator"
    )


def separator_name(separator: str) -> str:
    """Return a separator in words, such as "the comma"."""
    return NAMES.get(separator, separator)


def counted(n: int, noun: str) -> str:
    """Return a number with a noun, such as "1 field" or "2 fields"."""
    return f"{n} {noun}" + "s" * (n != 1)
