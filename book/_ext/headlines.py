"""Numbers for the text of pages without code, counted when the book is built.

``{{ n_published }}`` is the number of published values in ``book/results/fidelity.csv``, and
``{{ n_exact }}``, ``{{ n_within }}``, ``{{ n_differs }}`` and ``{{ n_misprint }}`` count them by
status; ``{{ share_exact }}`` and so on are their shares. The file has the last complete run.
"""

import csv
from collections import Counter
from pathlib import Path

STATUSES = ("exact", "within", "differs", "misprint")


def count(path):
    """Return the numbers of a result file, by the names that a page uses."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        counts = Counter(row["status"] for row in csv.DictReader(file))
    total = counts.total()
    numbers = {"n_published": f"{total:,}"}
    for status in STATUSES:
        numbers[f"n_{status}"] = f"{counts[status]:,}"
        numbers[f"share_{status}"] = f"{counts[status] / total:.0%}"
    return numbers


def substitute(app, config):
    """Give the numbers to the pages."""
    found = count(Path(app.srcdir, "book/results/fidelity.csv"))
    config.myst_substitutions = {**config.myst_substitutions, **found}


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("config-inited", substitute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
