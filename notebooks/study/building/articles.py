"""Articles in the form of ReScience C: for each source, what replicates, what does not, and why.

``article/`` has the templates and, for each source, what was proposed and the reasons in words. All
numbers and verdicts come from the records of the claims. All titles begin with ``[Re]``. A
replication is *partial*, and title and abstract state it, unless more than half of the printed
results have the same digits, or of the statements hold if the source prints no numbers. ReScience's
other mark, ``[¬Re]``, would state that a replication failed.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jinja2
import yaml
from pybtex.database import parse_file
from pybtex.richtext import Text

import study
from study.claims import counts

FOLDER = study.ROOT / "article"
SOURCES = {"M": ["M", "M1", "M2"], "K": ["K"], "P": ["P"], "F": ["F"]}
TITLES = {
    "M": "Federated DBSCAN over rows and over columns",
    "K": "Federated k-means",
    "P": "PPDBDC: clustering from representatives that are no points",
    "F": "FIN, with federated XGBoost, Gaussian mixtures and DBSCAN",
}
NUMBERS = ["exact", "within", "misprint", "differs"]
STATEMENTS = ["holds", "holds partly", "refuted"]


def replicates(numbers, statements):
    """Return whether more than half of the numbers, or of the statements without any, replicate."""
    if numbers:
        return 2 * _count(numbers, NUMBERS)["exact"] > len(numbers)
    return 2 * _count(statements, STATEMENTS)["holds"] > len(statements)


def content(source, records, citation):
    """Return the values for the templates: a dict.

    Parameters
    ----------
    source : {"M", "K", "P", "F"}
    records : list of dict
        From `claim_records.records`.
    citation : mapping
        The content of `CITATION.cff`.
    """
    own = [record for record in records if record["source"] in SOURCES[source]]
    printed = [record for record in own if record["kind"] == "number"]
    numbers = [r for r in printed if (r["source"], r["place"]) not in counts.OF_DATA]
    statements = [record for record in own if record["kind"] == "statement"]
    by_status = {
        status: [record for record in statements if record["status"] == status]
        for status in STATEMENTS
    }
    cited = [reference(key) for key in dict.fromkeys(k for r in own for k in r["documents"])]
    exact = [r for r in numbers if r["status"] == "exact"]
    found = [r for r in exact if "found by search" in r["reason"]]
    of_found = [r for r in exact if r["cell"].get("run") in ("mean", "std")]
    partial = "" if replicates(numbers, statements) else " (partial)"
    return {
        "source": source,
        "title": f"[Re] {TITLES[source]}{partial}",
        "citation": "; ".join(cite["text"] for cite in cited),
        "citations": cited,
        "first": own[0]["id"],
        "numbers": numbers,
        "n": _count(numbers, NUMBERS),
        "searched": len(found),
        "of_found": len(of_found),
        "of_data": len(printed) - len(numbers),
        "tables": _tables(numbers),
        "statements": statements,
        "w": _count(statements, STATEMENTS),
        "holds": by_status["holds"],
        "partly": by_status["holds partly"],
        "refuted": by_status["refuted"],
        "share": lambda count, records: f"{count / len(records):.0%}",
        "versions": _versions(own),
        "data": _data(own),
        "authors": [author["name"] for author in citation["authors"]],
        "abstract": _abstract(source, numbers, statements),
        "keywords": ["replication", *citation["keywords"]],
        "version": citation["version"],
        "repository": citation.get("repository-code", ""),
        "data_url": "datasets/README.md",
    }


def _count(records, statuses):
    return dict.fromkeys(statuses, 0) | Counter(record["status"] for record in records)


def _tables(numbers):
    """Return for each table its name and how many of its numbers have each status."""
    tables = {}
    editions = len({record["source"] for record in numbers}) > 1
    for record in numbers:
        name = f"{record['source']}, {record['place']}" if editions else record["place"]
        tables.setdefault(name, []).append(record)
    return [
        (name, SimpleNamespace(total=len(records), **_count(records, NUMBERS)))
        for name, records in tables.items()
    ]


def _versions(records):
    """Return the versions of the packages with which the records were measured, in words."""
    lists = [", ".join(map(" ".join, record["versions"].items())) for record in records]
    return "; and with ".join(dict.fromkeys(lists))


def _data(records):
    """Return the names of the data sets, in words."""
    tests = [test for record in records for test in record.get("tests", [])]
    cells = [record["cell"] for record in records if "cell" in record]
    names = dict.fromkeys(item["dataset"] for item in [*cells, *tests] if "dataset" in item)
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _abstract(source, numbers, statements):
    n, w = _count(numbers, NUMBERS), _count(statements, STATEMENTS)
    kind = "A replication" if replicates(numbers, statements) else "A partial replication"
    texts = [f"{kind} of {TITLES[source]}."]
    if numbers:
        texts.append(f"Of {len(numbers)} printed results, {n['exact']} have the same digits.")
    texts.append(
        f"Of {len(statements)} statements in words, {w['holds']} hold, {w['holds partly']} hold"
        f" partly and {w['refuted']} are refuted."
    )
    return " ".join(texts)


def reference(key):
    """Return a document of the book's bibliography: its key, its text and its address."""
    entry = parse_file(study.ROOT / "book/references.bib").entries[key]
    names = [
        " ".join([*author.first_names, *author.last_names]) for author in entry.persons["author"]
    ]
    fields = {name: _plain(value) for name, value in entry.fields.items()}
    where = fields.get("school") or fields.get("howpublished") or ""
    parts = [", ".join(map(_plain, names)), fields["title"], where, fields["year"]]
    return {"key": key, "text": ", ".join(filter(None, parts)), "url": fields.get("url", "")}


def _plain(text):
    """Return a text of the bibliography without the marks of TeX."""
    return str(Text.from_latex(text))


def write(folder, records):
    """Write the articles and their metadata to a folder, and return their folders.

    Parameters
    ----------
    folder : Path
    records : list of dict
        From `claim_records.records`.

    Returns
    -------
    list of Path
        One folder per source, with the files ``article.md`` and ``metadata.yaml``.
    """
    citation = yaml.safe_load((study.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    loader = jinja2.FileSystemLoader(FOLDER, encoding="utf-8")
    templates = jinja2.Environment(
        loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    folders = []
    for source in SOURCES:
        values = content(source, records, citation)
        target = Path(folder) / source
        target.mkdir(parents=True, exist_ok=True)
        for name in ("article.md", "metadata.yaml"):
            text = templates.get_template(f"{name}.jinja").render(values)
            (target / name).write_text(text.rstrip() + "\n", encoding="utf-8")
        folders.append(target)
    return folders
