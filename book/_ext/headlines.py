"""Numbers for the text of pages without code, counted or measured when the book is built.

``{{ n_published }}``, ``{{ n_exact }}`` and so on are the counts of `study.claims.counts` over the
last complete run, with ``_`` in place of blanks. ``{{ methods_accuracy }}`` and
``{{ methods_cost }}`` are the tables of `study.measuring.methods`, ``{{ losses_of_sums }}`` is what
its methods of sums lose, and ``{{ citation_text }}`` and ``{{ citation_bibtex }}`` are made from
``CITATION.cff``.
"""

import sys
from pathlib import Path

import yaml

# A build runs in a folder below the repository, with copies of the pages but not of the results.
ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "dodo.py").exists())
sys.path.insert(0, str(ROOT / "notebooks"))


def count():
    """Return the counts by the names that a page uses."""
    from study.claims import counts  # slow to import, and only for a build of the book

    return {f"n_{name.replace(' ', '_')}": f"{value:,}" for name, value in counts.kept().items()}


def tabulate():
    """Return the tables and the losses by the names that a page uses."""
    from study.measuring import methods  # it runs every method, which takes some seconds

    return {**methods.tables(), **methods.sums()}


def cite():
    """Return how to cite the package, in words and in BibTeX, by the names that a page uses."""
    facts = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    authors = [author["name"] for author in facts["authors"]]
    title, version = facts["title"], facts["version"]
    name = title.partition(":")[0]
    fields = {
        "author": " and ".join(f"{{{author}}}" for author in authors),
        "title": title,
        "version": version,
    }
    entry = ",\n".join(f"  {field} = {{{value}}}" for field, value in fields.items())
    return {
        "citation_text": f"{', '.join(authors)}. *{title}*. Version {version}.",
        "citation_bibtex": f"```bibtex\n@software{{{name},\n{entry}\n}}\n```",
    }


def substitute(app, config):
    """Give the numbers, the tables and the citation to the pages."""
    made = {**count(), **tabulate(), **cite()}
    config.myst_substitutions = {**config.myst_substitutions, **made}


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("config-inited", substitute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
