"""Numbers for the text of pages without code, counted when the book is built.

``{{ n_published }}``, ``{{ n_exact }}`` and so on are the counts of `study.claims.counts` over the
last complete run, with ``_`` in place of blanks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))


def count():
    """Return the counts by the names that a page uses."""
    from study.claims import counts  # slow to import, and only for a build of the book

    return {f"n_{name.replace(' ', '_')}": f"{value:,}" for name, value in counts.kept().items()}


def substitute(app, config):
    """Give the numbers to the pages."""
    config.myst_substitutions = {**config.myst_substitutions, **count()}


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("config-inited", substitute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
