"""The concordance: where each element of the sources is in the book.

`book/concordance.csv` has one row per element, in the order of the sources:

- ``source``: ``M`` if both editions of M agree, else ``M1`` or ``M2``; ``K``, ``P``, ``F``; or
  ``book`` for a page that goes beyond the sources.
- ``kind`` and ``number``: what the element is, and its number in the source, or a short name if it
  has none. The number of a judged claim is that of `datasets/claims.csv`.
- ``title``: the element in words of our own.
- ``page`` and ``anchor``: the page, as in `book/_toc.yml`, and the name of the place in it. A text
  names a place by ``(name)=``, or by the label of a formula. Several elements can share one.
- ``verdict``: one of `VERDICTS`.
- ``table``: the name of a table with numbers in `datasets/published.csv`.
- ``note``: what was corrected, or why an element is partial or missing.
"""

import html
import os
import re
from functools import cache

import nbformat
import pandas as pd
from IPython.display import HTML

from study import ROOT, published, styled
from study.claims import claim_ids, claims

LIST = ROOT / "book/concordance.csv"
WIDTHS = {"number": "5rem", "element": "15rem", "place": "9rem", "results": "7rem"}
SOURCES = {
    "M": "M, both editions, and M1 and M2 where they differ",
    "K": "K",
    "P": "P",
    "F": "F",
    "book": "Pages that go beyond the sources",
}
KINDS = ["section", "definition", "algorithm", "listing", "step"]
KINDS += ["equation", "figure", "table", "claim", "page"]
VERDICTS = {
    "reproduced": "the book has it, and it is as the source states",
    "corrected": "the book has it, and shows what is wrong in the source",
    "judged": "a claim that was tested; the results state whether it holds",
    "partial": "a part is missing; the note gives the reason",
    "not done": "the book does not have it; the note gives the reason",
    "not applicable": "there is nothing to reproduce; the note gives the reason",
    "beyond": "no source has it",
}
NAME = rf"([mkpf][12]?-(?:{'|'.join(KINDS[:-1])})-[a-z0-9-]+)"
PLACE = re.compile(rf"^\({NAME}\)=", re.MULTILINE)
FORMULA = re.compile(rf"^:label: {NAME}$|\$\$ *\({NAME}\)$", re.MULTILINE)


def read():
    """Return the rows of the list; all values are text."""
    return pd.read_csv(LIST, dtype=str, keep_default_na=False)


@cache
def text(page):
    """Return the text of a page: its file, or the Markdown cells of its notebook."""
    path = ROOT / f"{page}.md"
    if path.exists():
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(ROOT / f"{page}.ipynb", as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def pages():
    """Return the names of all pages, without those that repeat a notebook."""
    paths = sorted([*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.ipynb")])
    return [path.relative_to(ROOT).with_suffix("").as_posix() for path in paths]


def targets(page):
    """Return the places named in a page: a list of pairs of a name and its identifier in HTML."""
    named = [(match[1], match[1]) for match in PLACE.finditer(text(page))]
    labels = [match[1] or match[2] for match in FORMULA.finditer(text(page))]
    return named + [(label, f"equation-{label}") for label in labels]


def title(page):
    """Return the title of a page."""
    return re.search(r"^# (.+)$", text(page), re.MULTILINE)[1]


def link(row):
    """Return a link from the page of the concordance to an element, as HTML."""
    if not row["page"]:
        return ""
    address = os.path.relpath(f"{row['page']}.html", "notebooks").replace(os.sep, "/")
    if row["anchor"]:
        address += f"#{dict(targets(row['page']))[row['anchor']]}"
    return f'<a href="{address}">{html.escape(title(row["page"]))}</a>'


def in_html(words):
    """Return a text with `code` as HTML."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(words, quote=False))


def claim(row):
    """Return the name of the claim of an element, of a table's first number, or ``""``."""
    if row["verdict"] == "judged":
        return claim_ids.of_statement(row["source"], row["number"])
    if row["table"]:
        return claim_ids.of_numbers(published(source=row["source"], table=row["table"])[:1])[0]
    return ""


def judged(tests):
    """Return the verdict on the claim of these tests: a row of `claims.combine`, as a named tuple.

    Returns None without tests. Tests on measured values count; a claim that has none is judged by
    those on printed numbers.
    """
    if tests.empty:
        return None
    printed = bool(tests["run"].eq("printed").all())
    [claim] = claims.combine(tests, printed=printed).itertuples(index=False)
    return claim


def results(row, numbers, tests):
    """Return what was measured of a table or a claim, in a few words.

    Parameters
    ----------
    row : mapping
        A row of the list.
    numbers : DataFrame
        The rows of `fidelity.csv`, of printed numbers.
    tests : DataFrame
        The rows of `claims.csv`, of tests of claims.
    """
    if row["verdict"] == "judged":
        tests = tests[tests["source"] == row["source"]]
        claim = judged(tests[claims.numbers(tests) == int(row["number"])])
        return f"{claim.status}, in {claim.agreeing} of {claim.runs} runs" if claim else ""
    rows = numbers[(numbers["source"] == row["source"]) & (numbers["table"] == row["table"])]
    counts = rows["status"].value_counts(sort=False)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def listed(some, columns):
    """Return elements as an HTML table; the note is below the title."""
    some = some.reset_index(drop=True)
    edition = some["source"].where(some["source"].isin(["M1", "M2"]), "")
    some["number"] = (edition + " " + some["number"]).str.strip()
    notes = some["note"].map(in_html)
    notes = ("<br><em>" + notes + "</em>").where(notes != "", "")
    some["element"] = some["title"].map(in_html) + notes
    table = styled(some[columns])
    for column, width in WIDTHS.items():
        wrapped = {"white-space": "normal", "min-width": width, "text-align": "left"}
        wrapped |= {"overflow-wrap": "anywhere"} if column == "number" else {}
        if column in columns:
            table.set_properties(subset=[column], **wrapped)
    return table.to_html()


def folds(some, columns=("number", "element", "verdict", "place", "results")):
    """Return one folded table per kind of element."""
    parts = []
    for kind in KINDS:
        group = some[some["kind"] == kind]
        if len(group):
            number = f"{len(group)} {kind}{'' if len(group) == 1 else 's'}"
            used = [name for name in columns if name == "element" or (group[name] != "").any()]
            table = listed(group, used)
            parts.append(f"<details><summary>{number}</summary>{table}</details>")
    return HTML("".join(parts))
