"""Run what a claim of a source was measured with, and compare the verdict with the kept one.

``make verify CLAIM=M1:passive:10:II:AMI`` runs the notebook that computes the verdict, with the
quickest parameters that reach it. It prints the published and the measured value and both verdicts.
It needs the real data. The exit status is 0 if the verdict equals the kept one, 1 if it does not,
and 2 if there is no such claim or a notebook fails.

``make verify LIST='K:*'`` lists claims: those with these parts in their names or texts.
"""

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import dodo
import study
from study.building import run
from study.claims import claim_ids, claim_records, claims, elements

NEAREST = 5


class VerifyError(Exception):
    """What prevented the comparison; the text is the report to print."""


def find(name, records):
    """Return the record of a claim.

    Raises
    ------
    VerifyError
        When there is none. The text lists the nearest names.
    """
    by_name = {record["id"]: record for record in records}
    if name in by_name:
        return by_name[name]
    lower = {other.lower(): other for other in by_name}
    near = difflib.get_close_matches(name.lower(), lower, NEAREST, cutoff=0.5)
    nearest = "\n".join(["the nearest are", *(f"  {lower[other]}" for other in near)])
    raise VerifyError(
        f"claim must be a name such as {next(iter(by_name))}, got {name!r}; "
        + (nearest if near else "make verify LIST='*' lists all")
    )


def matching(pattern, records):
    """Return the records whose name or text matches a pattern with ``*``, or contains it."""
    pattern = pattern.lower()
    return [
        record
        for record in records
        if any(
            fnmatchcase(text.lower(), pattern) or pattern in text.lower()
            for text in (record["id"], record["published"])
        )
    ]


def profile_of(name):
    """Return the profile with the quickest parameters that reach the verdict on a claim."""
    quick = claim_records.runs_of(name, claim_records.runs("quick"))
    reach = [any(fnmatchcase(name, pattern) for pattern in one.settles) for one in quick]
    return "quick" if all(reach) else "full"


def steps(name, profile):
    """Return the runs for a claim, those that another needs first.

    Parameters
    ----------
    name : str
        The claim.
    profile : {"quick", "full"}

    Returns
    -------
    list of tuple
        ``(notebook, parameters, results)``. A notebook that can judge either kept results or those
        of this run judges those of this run, unless it needs no other results for this claim.
    """
    pages = {page: rest for page, *rest in dodo.pages(profile)}
    ordered = {}

    def add(page, alone=False):
        notebook, parameters, results, needs = pages[page]
        for other, (its_notebook, *_) in pages.items():
            if its_notebook in needs and other not in ordered and not alone:
                add(other)
        fresh = {"complete": not alone} if "complete" in parameters else {}
        ordered[page] = notebook, parameters | fresh, results

    for one in claim_records.runs_of(name, claim_records.runs(profile)):
        add(one.page, one.alone(name))
    return list(ordered.values())


def execute(name, profile, folder):
    """Run the notebooks for a claim; their results are in the folder.

    Raises
    ------
    VerifyError
        When a notebook fails. The text is the runner's report.
    """
    for notebook, parameters, results in steps(name, profile):
        source = f"notebooks/{notebook}.ipynb"
        print(f"running {run.describe(source, parameters)}", flush=True)
        command = [
            sys.executable,
            *("-m", "study.building.run"),
            source,
            str(folder / "executed.ipynb"),
            "--build",
        ]
        command += ["--parameters", json.dumps(parameters), "--results-dir", str(folder)]
        done = subprocess.run(
            [*command, "--results", *results],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": "notebooks"},
        )
        if done.returncode:
            raise VerifyError(done.stdout + done.stderr)


def measured(record, folder):
    """Return what the runs of a claim measured: value, verdict and whether the data are real.

    Parameters
    ----------
    record : dict
        From `claim_records.records`.
    folder : Path
        With the files ``fidelity-*.csv`` of the runs.

    Returns
    -------
    tuple of (str, str, bool)

    Raises
    ------
    VerifyError
        When the runs have no verdict on the claim.
    """
    rows = study.read("fidelity-*.csv", [folder])
    tests = claims.are_tests(rows)
    if record["kind"] == "statement":
        rows = rows[tests & rows["source"].eq(record["source"])]
        rows = rows[claims.numbers(rows).eq(int(record["id"].rpartition(":")[2]))]
        rows = rows.astype({"agreeing": int, "runs": int})
    else:
        rows = rows[~tests]
        rows = rows[[name == record["id"] for name in claim_ids.of_numbers(rows)]]
    if rows.empty:
        raise VerifyError(f"{record['id']}: its notebooks wrote no verdict; study.yml is wrong")
    on_data = rows[rows["run"].ne("printed") & rows["dataset"].ne("")]
    real = bool(on_data["sha256"].ne("").all())
    if record["kind"] == "statement":
        judged = elements.judged(rows)
        return f"{judged.agreeing} of {judged.runs} runs agree", judged.status, real
    row = rows.iloc[0]
    spread = "" if row[["low", "high"]].isna().any() else f", {row['low']:.6g} to {row['high']:.6g}"
    return f"{row['measured']}{spread}", row["status"], real


def verify(name, records, profile=None):
    """Print the comparison for one claim and return the exit status."""
    record = find(name, records)
    with tempfile.TemporaryDirectory() as folder:
        profile = profile or profile_of(name)
        if profile == "full":
            print("the quick parameters do not reach this verdict; it takes minutes to hours")
        execute(name, profile, Path(folder))
        value, status, real = measured(record, Path(folder))
    same = status == record["status"]
    pages = f", p. {record['pages']}" if record["pages"] else ""
    print(f"claim      {name} ({record['source']}, {record['place']}{pages})")
    print(f"published  {record['published']}")
    print(f"measured   {value}")
    print(f"verdict    {status}; kept: {record['status']}")
    if not real:
        print("The data are stand-ins: the verdict cannot be compared. See datasets/README.md.")
    return 0 if same and real else 1


def main(arguments=None):
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claim", nargs="?", help="the name of a claim")
    parser.add_argument("--list", metavar="PATTERN", help="list the claims that match, run nothing")
    parser.add_argument(
        "--profile", choices=dodo.PROFILES, help="default: the quickest that suffices"
    )
    options = parser.parse_args(arguments)
    if (options.claim is None) == (options.list is None):
        parser.error("give the name of a claim, or --list PATTERN")
    records = claim_records.records()
    if options.list is not None:
        for record in matching(options.list, records):
            print(f"{record['id']:60} {record['status']:14} {record['published']}")
        return 0
    try:
        return verify(options.claim, records, options.profile)
    except VerifyError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
