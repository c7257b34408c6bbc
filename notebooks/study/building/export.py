"""Write the records of the claims, with what is needed to cite and repeat them, as an RO-Crate.

``python -m study.building.export --crate FOLDER`` writes to the folder the records and their
schema, the published numbers, the results, the notebooks, the articles (`articles.py`),
`codemeta.json`, and `ro-crate-metadata.json`, which describes them. `study.building.check_crate`
validates the crate.
``--codemeta`` rewrites `codemeta.json` from `CITATION.cff` and `pyproject.toml`.
"""

import argparse
import json
import os
import shutil
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

import study
from study.building import articles
from study.claims import claim_records

LICENSE = "https://spdx.org/licenses/BSD-3-Clause"
COPIED = {  # what the crate has besides results and notebooks, and the title of each
    "book/claims.schema.json": "The form of claims.json",
    "datasets/published.csv": "All published numbers",
    "datasets/claims.csv": "All statements in words",
    "datasets/pages.csv": "The pages of tables and statements in the sources",
    "datasets/sources.csv": "The origin and the checksum of each data set",
    "notebooks/study.yml": "The parameters of all runs",
    "requirements.lock": "The locked versions of all packages",
    "codemeta.json": "Metadata of the software",
    "CITATION.cff": "How to cite the project",
    "LICENSE": "The licence",
}
FORMATS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".ipynb": "application/x-ipynb+json",
}


def read_citation():
    """Return the content of `CITATION.cff`."""
    return yaml.safe_load((study.ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def codemeta():
    """Return the content of `codemeta.json`, from `CITATION.cff` and `pyproject.toml`."""
    citation = read_citation()
    project = tomllib.loads((study.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    people = [{"@type": "Organization", "name": one["name"]} for one in citation["authors"]]
    described = {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "name": citation["title"],
        "description": " ".join(citation["abstract"].split()),
        "identifier": project["name"],
        "version": citation["version"],
        "license": LICENSE,
        "author": people,
        "keywords": citation["keywords"],
        "programmingLanguage": "Python",
        "runtimePlatform": f"Python {project['requires-python']}",
        "softwareRequirements": project["dependencies"],
        "developmentStatus": "wip",
    }
    if "repository-code" in citation:
        described["codeRepository"] = citation["repository-code"]
    return described


def write(folder):
    """Write the crate to a folder that is empty or absent.

    Raises
    ------
    ValueError
        When the folder has files.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder must be empty or absent, got {folder}, which has files")
    records = claim_records.write(folder)
    (folder / "claims-table.html").unlink()  # of the book
    crate = _describe(read_citation())
    _add(crate, folder, "claims.json", f"Records of {len(records)} claims")
    for name, title in COPIED.items():
        _copy(crate, folder, name, title)
    for path in sorted(claim_records.study.KEPT.glob("*.csv")):
        _copy(crate, folder, f"book/results/{path.name}", f"Results: {path.stem}")
    for written in articles.write(folder / "article", records):
        for path in sorted(written.iterdir()):
            title = f"Replication of {written.name}: {path.stem}"
            _add(crate, folder, path.relative_to(folder).as_posix(), title)
    _add_runs(crate, folder, records)
    crate.metadata.write(folder)


def _describe(citation):
    """Return a crate with a description of the whole and of the sources."""
    crate = ROCrate()
    crate.name = "Claims of five documents on federated clustering and boosting, measured again"
    crate.description = " ".join(citation["abstract"].split())
    crate.license = crate.add(
        ContextEntity(
            crate,
            LICENSE,
            {
                "@type": "CreativeWork",
                "name": "BSD 3-Clause License",
                "description": "Use and redistribution are permitted if the notice is kept.",
                "url": LICENSE,
            },
        )
    )
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(int(seconds), UTC)
    crate.datePublished = now.date().isoformat()
    root = crate.root_dataset
    root["keywords"] = ", ".join(citation["keywords"])
    root["version"] = citation["version"]
    authors = [
        crate.add(
            ContextEntity(
                crate, f"#author-{number}", {"@type": "Organization", "name": one["name"]}
            )
        )
        for number, one in enumerate(citation["authors"])
    ]
    root["author"] = root["publisher"] = _one_or_all(authors)
    for key in dict.fromkeys(key for keys in claim_records.DOCUMENTS.values() for key in keys):
        text = articles.reference(key)["text"]
        values = {"@type": "CreativeWork", "name": text}
        root.append_to("isBasedOn", crate.add(ContextEntity(crate, f"#{key}", values)))
    return crate


def _copy(crate, folder, name, title):
    """Copy a file of the repository to the crate, at the same path."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(study.ROOT / name, target)
    return _add(crate, folder, name, title)


def _add(crate, folder, name, title, kind=None):
    """Add a file that is in the folder of the crate, and return its entity."""
    path = folder / name
    described = {
        "name": Path(name).name,
        "description": title,
        "encodingFormat": FORMATS.get(path.suffix, "text/plain"),
        "contentSize": str(path.stat().st_size),
    }
    if kind:
        described["@type"] = ["File", kind]
    return crate.add_file(path, dest_path=name, properties=described)


def _add_runs(crate, folder, records):
    """Add the notebooks, and an action for each run that computes verdicts."""
    release = records[0]["versions"]["python"]
    language = {"@type": "ComputerLanguage", "name": "Python", "version": release}
    language["url"] = f"https://www.python.org/downloads/release/python-{release.replace('.', '')}/"
    crate.add(ContextEntity(crate, "#python", language))
    runs = {run["page"]: run for record in records for run in record["runs"]}
    notebooks = {}
    for page, run in runs.items():
        name = run["notebook"]
        if name not in notebooks:
            notebooks[name] = _copy_notebook(crate, folder, name)
        values = {"@type": "CreateAction", "name": f"The run of the page {page}"}
        action = crate.add(ContextEntity(crate, f"#run-{page}", values))
        action["instrument"] = notebooks[name]
        action["result"] = crate.get("claims.json")
        parameters = []
        for parameter, value in run["parameters"].items():
            values = {"@type": "PropertyValue", "name": parameter, "value": json.dumps(value)}
            identifier = f"#run-{page}-{parameter}"
            parameters.append(crate.add(ContextEntity(crate, identifier, values)))
        if parameters:
            action["object"] = _one_or_all(parameters)
        crate.root_dataset.append_to("mentions", action)


def _one_or_all(entities):
    """Return the only entity, or the list: RO-Crate recommends no list of one."""
    return entities[0] if len(entities) == 1 else entities


def _copy_notebook(crate, folder, name):
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(study.ROOT / name, target)
    title = claim_records.elements.title(name.removesuffix(".ipynb"))
    entity = _add(crate, folder, name, title, "SoftwareSourceCode")
    entity["programmingLanguage"] = crate.get("#python")
    return entity


def main(arguments=None):
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--crate", type=Path, metavar="FOLDER", help="write the crate, in a new folder"
    )
    what.add_argument("--codemeta", action="store_true", help="rewrite codemeta.json")
    options = parser.parse_args(arguments)
    if options.codemeta:
        text = json.dumps(codemeta(), indent=2) + "\n"
        (study.ROOT / "codemeta.json").write_text(text, encoding="utf-8")
    else:
        shutil.rmtree(options.crate, ignore_errors=True)
        write(options.crate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
