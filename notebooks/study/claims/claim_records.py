"""Records of all claims of the sources: what is printed, what was measured, and where.

``python -m study.claims.claim_records FOLDER`` writes to the folder

- `claims.json`: one record per claim, in the form of `book/claims.schema.json`,
- `claims-table.html`: the same as the table of the page of all claims.

The records join `datasets/published.csv` and `datasets/claims.csv` with the results in
`book/results`, the pages of the sources in `datasets/pages.csv`, the places in
`book/concordance.csv` and the runs in `notebooks/study.yml`. Nothing is stored twice.
"""

import argparse
import html
import json
import math
import re
import sys
from collections import defaultdict
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

# An optional dependency of jsonschema that is not used here, and slow to import.
sys.modules.setdefault("rfc3987_syntax", None)
sys.path.insert(0, str(Path(__file__).parents[3]))

import jsonschema  # noqa: E402
import pandas as pd  # noqa: E402

import dodo  # noqa: E402
import study  # noqa: E402
from study.claims import claim_ids, claims, elements  # noqa: E402

SCHEMA = study.ROOT / "book/claims.schema.json"
INPUTS = ["datasets/published.csv", "datasets/claims.csv", "datasets/pages.csv"]
INPUTS += ["book/results/fidelity.csv", "book/results/claims.csv", "book/concordance.csv"]
INPUTS += ["notebooks/study.yml"]
DOCUMENTS = {  # the keys of book/references.bib
    "M1": ["marino2021"],
    "M2": ["marino2022"],
    "M": ["marino2021", "marino2022"],
    "K": ["reidy_federated_kmeans"],
    "P": ["gorawski_ppdbdc"],
    "F": ["vasilopoulou2023"],
}


class Run(NamedTuple):
    """A run of a notebook that computes verdicts: one parameter set of one profile."""

    page: str
    notebook: str
    parameters: dict
    settles: list
    settles_in_full: list
    settles_alone: list

    def computes(self, name):
        """Return whether the run computes the verdict on a claim."""
        patterns = [*self.settles, *self.settles_in_full]
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    def alone(self, name):
        """Return whether the run needs no results of other notebooks for the verdict on a claim."""
        return any(fnmatchcase(name, pattern) for pattern in self.settles_alone)


def runs(profile):
    """Return the runs of a profile that compute verdicts, in the order of the study.

    Parameters
    ----------
    profile : {"quick", "full"}

    Returns
    -------
    list of Run
    """
    entries, found = dodo.study(), []
    for page, notebook, parameters, *_ in dodo.pages(profile):
        patterns = [
            [pattern.format_map(parameters) for pattern in entries[notebook].get(key, [])]
            for key in ("settles", "settles_in_full", "settles_alone")
        ]
        if any(patterns):
            found.append(Run(page, notebook, parameters, *patterns))
    return found


def runs_of(name, of_profile):
    """Return the runs of a profile that compute the verdict on a claim.

    A number is computed by one run, so only the first counts. A statement can be tested by several.
    """
    found = [run for run in of_profile if run.computes(name)]
    return found if ":claim:" in name else found[:1]


def records(shown=None):
    """Return the records of all claims: a list of dicts, in the order of the sources' files.

    Parameters
    ----------
    shown : mapping of str to list of str, optional
        For the name of a claim, the pages with a cell that is its place, from `places`.

    Returns
    -------
    list of dict
        In the form of `book/claims.schema.json`.
    """
    of_profile = runs("full")
    found = [*_numbers(), *_statements()]
    for record in found:
        record["runs"] = [
            {
                "notebook": f"notebooks/{run.notebook}.ipynb",
                "page": run.page,
                "parameters": run.parameters,
            }
            for run in runs_of(record["id"], of_profile)
        ]
        record["cells"] = (shown or {}).get(claim_ids.anchor(record["id"]), [])
    return found


def _numbers():
    """Yield the records of printed numbers, without their runs and cells."""
    printed = study.published()
    measured = study.read("fidelity.csv", [study.KEPT])
    rows = printed.merge(
        measured.drop(columns="published"), on=study.KEY, how="left", validate="1:1"
    )
    pages, places = _pages(), _places("table")
    names = claim_ids.of_numbers(rows)
    for name, row in zip(names, rows.to_dict("records"), strict=True):
        known = pd.notna(row["measured"])
        spread = [row["low"], row["high"]]
        yield {
            "id": name,
            "kind": "number",
            "source": row["source"],
            "documents": DOCUMENTS[row["source"]],
            "place": row["table"],
            "pages": pages.get((row["source"], row["table"])),
            "cell": {key: row[key] for key in study.KEY[2:] if row[key]},
            "published": row["published"],
            "measured": row["measured"] if known else None,
            "interval": None if any(map(pd.isna, spread)) else spread,
            "status": row["status"] if known else "not measured",
            "reason": row["note"] if known else "",
            **places[row["source"], row["table"]],
            "data_sha256": [row["sha256"]] if known else [],
            "versions": versions([row["versions"]] if known else []),
        }


def _statements():
    """Yield the records of claims in words, without their runs and cells."""
    tests = study.read("claims.csv", [study.KEPT]).astype({"agreeing": int, "runs": int})
    listed = claims.listed()
    pages, places = _pages(), _places("number")
    by_claim = dict(list(tests.groupby([tests["source"], claims.numbers(tests)])))
    for claim in listed.itertuples():
        rows = by_claim.get((claim.source, claim.number), tests[:0])
        judged = elements.judged(rows)
        yield {
            "id": claim_ids.of_statement(claim.source, claim.number),
            "kind": "statement",
            "source": claim.source,
            "documents": DOCUMENTS[claim.source],
            "place": claim.place,
            "pages": pages.get((claim.source, claim.place)),
            "universal": bool(claim.universal),
            "published": claim.text,
            "measured": None if judged is None else judged.share,
            "interval": None,
            "status": "not measured" if judged is None else judged.status,
            "reason": "" if judged is None else _reason(judged),
            "tests": [_test(row) for row in rows.to_dict("records")],
            **places[claim.source, str(claim.number)],
            "data_sha256": sorted(set(rows["sha256"]) - {""}),
            "versions": versions(rows["versions"]),
        }


def _reason(judged):
    counts = f"{judged.agreeing} of {judged.runs} runs agree"
    return f"{counts}; counterexample: {judged.counterexample}" if judged.counterexample else counts


def _test(row):
    """Return one test of a claim in words."""
    text = {key: row[key] for key in ("dataset", "method", "condition", "note") if row[key]}
    numbers = {key: row[key] for key in ("measured", "low", "high")}
    return {
        **text,
        "on": "printed numbers" if row["run"] == "printed" else "measured values",
        "limit": row["published"],
        **{key: None if math.isnan(value) else value for key, value in numbers.items()},
        "agreeing": row["agreeing"],
        "runs": row["runs"],
        "status": row["status"],
        "counterexample": row["counterexample"],
    }


def versions(texts):
    """Return versions such as ``"python 3.11.7, numpy 2.4.6"`` as a dict.

    Examples
    --------
    >>> versions(["python 3.11.7, numpy 2.4.6"])
    {'python': '3.11.7', 'numpy': '2.4.6'}
    """
    pairs = [part.rsplit(" ", 1) for text in dict.fromkeys(texts) for part in text.split(", ")]
    return dict(pairs)


def _pages():
    """Return the pages of the sources: a dict of ``(source, place)`` to text."""
    table = pd.read_csv(study.ROOT / "datasets/pages.csv", dtype=str)
    return {(row.source, row.place): row.pages for row in table.itertuples()}


def _places(column):
    """Return the places in the book of tables or statements: a dict by source and ``column``."""
    rows = elements.read()
    rows = rows[rows["table"] != ""] if column == "table" else rows[rows["verdict"] == "judged"]
    return {
        (row["source"], row[column]): {
            "page": row["page"],
            "anchor": dict(elements.targets(row["page"]))[row["anchor"]],
        }
        for _, row in rows.iterrows()
    }


def places(folder):
    """Return for each claim the pages with a cell that is its place, in executed notebooks.

    Parameters
    ----------
    folder : Path
        The folder of the executed notebooks.

    Returns
    -------
    dict of str to list of str
        By `claim_ids.anchor` of the claim; the pages are named as in `book/_toc.yml`.
    """
    found = defaultdict(list)
    for path in sorted(Path(folder).glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        for anchor in dict.fromkeys(re.findall(r'class=\\"claim\\" id=\\"([^"\\]+)\\"', text)):
            found[anchor].append(f"notebooks/{path.stem}")
    return dict(found)


def document(found):
    """Return the content of `claims.json`: the records and the checksums of what they are from."""
    files = {name: sha256((study.ROOT / name).read_bytes()).hexdigest() for name in INPUTS}
    return {"files": files, "claims": found}


def check(content):
    """Raise jsonschema.ValidationError if the content of `claims.json` has another form."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(content)


def show(record):
    """Return a record as a row of the table of all claims, in HTML."""
    name, page, status = record["id"], record["page"], record["status"]
    here = claim_ids.anchor(name)
    there = here if page in record["cells"] else record["anchor"]
    reason = f"<small>{html.escape(record['reason'])}</small>" if record["reason"] else ""
    published, in_words = html.escape(record["published"]), record["kind"] == "statement"
    words = f"<p>{published}</p>" if in_words else ""
    columns = [
        f'<a href="#{here}"><code>{name.replace(":", ":<wbr>")}</code></a>{words}{reason}',
        "in words" if in_words else published,
        _measured(record),
        f"<strong>{status}</strong>",
        f'<a href="../{page}.html#{there}">{html.escape(elements.title(page))}</a>',
        (record["pages"] or "").replace("-", "–"),
    ]
    cells = "".join(f"<td>{column}</td>" for column in columns)
    return f'<tr id="{here}" data-source="{record["source"]}" data-status="{status}">{cells}</tr>'


def _measured(record):
    """Return what was measured: a number and its spread, or how many runs agree."""
    if record["measured"] is None:
        return ""
    if record["kind"] == "statement":
        return f"{record['measured']:.0%} of runs agree"
    text = f"{record['measured']:.6g}"
    if record["status"] == "exact":  # equal in all printed digits
        text = f"{record['measured']:.{len(record['published'].partition('.')[2])}f}"
    if record["interval"] is None:
        return text
    low, high = record["interval"]
    return f"{text}<small>{low:.5g} to {high:.5g}</small>"


def table(found):
    """Return the table of all claims, with the fields that filter it, in HTML."""
    titles = ["claim", "printed", "measured", "verdict", "place in the book", "page of the source"]
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    rows = "\n".join(map(show, found))
    return (
        '<form class="claims-filter" role="search">'
        '<label>Name or text <input type="search" name="words" autocomplete="off"></label>'
        + _select("source", [record["source"] for record in found])
        + _select("verdict", [record["status"] for record in found])
        + f"<output>{len(found)} of {len(found)} claims</output></form>\n"
        '<div class="claims-box" tabindex="0"><table class="dataframe claims-table">'
        f"<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody></table></div>\n"
        '<script src="../_static/claims.js"></script>\n'
    )


def _select(name, values):
    """Return a field to choose one of the values, or all."""
    options = "".join(f"<option>{value}</option>" for value in dict.fromkeys(values))
    field = f'<select name="{name}"><option value="">all</option>{options}</select>'
    return f"<label>{name} {field}</label>"


def write(folder, shown=None):
    """Write `claims.json` and `claims-table.html` to a folder, and return the records."""
    found = records(shown)
    content = document(found)
    check(content)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "claims.json").write_text(text + "\n", encoding="utf-8")
    (folder / "claims-table.html").write_text(table(found), encoding="utf-8")
    return found


def main(arguments=None):
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write the files")
    parser.add_argument("--notebooks", type=Path, help="the folder of the executed notebooks")
    options = parser.parse_args(arguments)
    write(options.folder, places(options.notebooks) if options.notebooks else None)


if __name__ == "__main__":
    main()
