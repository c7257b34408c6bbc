"""Helpers of the tests of the command line: data, cases per protocol, processes."""

import os
import re
import runpy
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from click.testing import CliRunner

from fedlib.cli.main import cli
from fedlib.core.registry import protocols
from fedlib.sites import models

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "book" / "run_at_real_sites.md"
ANSWER = 60  # seconds after which a test that still waits has failed
SITES = ("0", "1", "2")
WITHOUT_LABELS = (
    "clustering-score",
    "evaluation",
    "regression-score",
    "suggest",
    "summary",
    "pca",
)
HORIZONTAL = ["serve", "horizontal-dbscan", "--cell-size", "0.5", "--min-samples", "4"]


def _points():
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]], 40, axis=0)
    X = np.vstack([centres + rng.normal(scale=0.4, size=(120, 2)), rng.uniform(-2, 7, (15, 2))])
    return rng.permutation(X)


def rows():
    """Return three sites' rows of the same two features."""
    return [pd.DataFrame(part, columns=["x", "y"]) for part in np.array_split(_points(), 3)]


def columns():
    """Return three sites' features of the same rows, with identifiers."""
    X = np.column_stack([_points(), np.zeros(135)])
    ids = [f"{i:04d}" for i in range(len(X))]
    return [pd.DataFrame({"id": ids, name: X[:, i]}) for i, name in enumerate("xyz")]


def classes():
    """Return three sites' rows with a class each."""
    return [part.assign(kind=(part["x"] > 2).astype(int)) for part in rows()]


def heights():
    """Return three sites' rows with a number each."""
    return [part.assign(height=part["x"] + part["y"]) for part in rows()]


def estimates():
    """Return three sites' predictions with a number each."""
    return [part[["height"]].assign(p=part["x"]) for part in heights()]


def predictions():
    """Return three sites' probabilities with a class each."""
    return [part[["kind"]].assign(p=(part["x"] % 1)) for part in classes()]


class Case(NamedTuple):
    """How one protocol is tested: its parameters, its data, and the options of the sites."""

    parameters: dict[str, Any]
    data: Any = rows
    join: str = ""  # {site} is the site's number
    options: Any = None  # the client's arguments in process, if the result depends on them
    target: str = ""


DENSITY = {"eps": 0.4, "min_samples": 4}
CASES = {
    "horizontal-dbscan": Case(
        {"cell_size": 0.5, "min_samples": 4, "border": "absorb", "random_state": 0}
    ),
    "approximate-dbscan": Case(DENSITY | {"rho": 0.5}),
    "vertical-dbscan": Case(
        DENSITY,
        columns,
        "--ids id --key rows.key --n-jobs 1",
        lambda site, data: {"ids": data["id"].tolist(), "key": bytes(range(32))},
    ),
    "dbdc": Case(DENSITY),
    "sdbdc": Case(DENSITY),
    "ppdbdc": Case(
        DENSITY, rows, "--random-state {site}", lambda site, data: {"random_state": site}
    ),
    "kmeans": Case({"n_clusters": 3, "method": "one_shot", "random_state": 0}),
    "gaussian-mixture": Case({"n_components": 3, "method": "average", "random_state": 0}),
    "gaussian-mixture-dbscan": Case({**DENSITY, "n_components": 3, "random_state": 0}),
    "clustering-score": Case({"min_group_size": 2}, classes, "--target kind", target="kind"),
    "evaluation": Case({"n_bins": 5}, predictions, "--target kind", target="kind"),
    "regression-score": Case({}, estimates, "--target height", target="height"),
    "summary": Case({"rank_error": 0.1, "n_bins": 4}),
    "pca": Case({"n_components": 0.9}),
    "suggest": Case({"min_samples": 4, "tolerance": 0.5}),
    "kmeans-selection": Case({"max_clusters": 3, "n_init": 1, "random_state": 0}),
    "gaussian-mixture-selection": Case({"max_components": 3, "random_state": 0}),
    "xgboost": Case({"n_trees": 3, "n_candidates": 4}, classes, "--target kind", target="kind"),
    "xgb-regressor": Case(
        {"n_trees": 2, "max_depth": 2}, heights, "--target height", target="height"
    ),
}


def flags(parameters):
    """Return parameters as options."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]


def fitted(name):
    """Return the estimator fitted in this process on the sites' data."""
    case = CASES[name]
    estimator = protocols()[name](**case.parameters)
    options, parts = [], []
    for site, data in enumerate(case.data()):
        X = data.drop(columns=[c for c in ("id", case.target) if c in data])
        parts.append((X, data[case.target].to_numpy()) if case.target else X)
        options.append(case.options(site, data) if case.options else {})
    return estimator._fit(parts, options=options)


def invoke(*arguments, code=0, **options):
    """Run the command line in this process and return its output."""
    result = CliRunner().invoke(cli, [str(a) for a in arguments], **options)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def refuse(*arguments, code=1, **options):
    """Return the one line with which the command line refuses its arguments."""
    output = invoke(*arguments, code=code, **options)
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, output
    return errors[0]


class Command:
    """A process of the command line and its output."""

    def __init__(self, context, folder, arguments, **more):
        self.file = folder / f"out-{len(list(folder.glob('out-*')))}"
        self.file.touch()
        settings = {"folder": str(folder), "output": str(self.file), "arguments": list(arguments)}
        settings |= more
        options = {"init_globals": {"settings": settings}, "run_name": "__main__"}
        path = str(Path(__file__).with_name("command.py"))
        self.process = context.Process(target=runpy.run_path, args=(path,), kwargs=options)
        self.process.start()

    @property
    def output(self):
        return self.file.read_text()

    def prints(self, pattern, seconds=ANSWER):
        """Wait until the output contains a pattern, and return the match."""
        until = time.monotonic() + seconds
        while not (match := re.search(pattern, self.output, re.M)):
            assert time.monotonic() < until, f"{pattern!r} is not in:\n{self.output}"
            assert self.process.is_alive() or re.search(pattern, self.output, re.M), self.output
            time.sleep(0.01)
        return match

    def ends(self, code=0):
        """Wait until the process ends with an exit status, and return its output."""
        self.process.join(ANSWER)
        assert self.process.exitcode == code, self.output
        assert "Traceback" not in self.output
        return self.output

    def signal(self, number):
        os.kill(self.process.pid, number)


def serving(command, *options, protocol=HORIZONTAL, bind="127.0.0.1:0"):
    """Start a server; return it and its address."""
    server = command(*protocol, "--tokens", "tokens/clients.json", "--bind", bind, *options)
    return server, server.prints(r"at (https?://[^\s\"]+)")[1]


def joining(command, url, name, *options):
    """Start a site that writes its labels."""
    arguments = ["--data", f"{name}.csv", "--labels-out", f"labels-{name}.csv"]
    return command("join", url, *arguments, "--token-file", f"tokens/{name}.token", *options)


def labels(name):
    """Return the labels that a site has written."""
    return pd.read_csv(f"labels-{name}.csv")["label"].to_numpy()


def assert_labels_as_in_process(estimator):
    """Check the labels of all sites against those of an estimator fitted in process."""
    for name, expected in zip(SITES, estimator.fit(rows()).labels_, strict=True):
        assert labels(name).tobytes() == expected.tobytes()


def site_arguments(name):
    """Write the data of the three sites of a case; return the arguments with which each joins."""
    case = CASES[name]
    Path("rows.key").write_bytes(bytes(range(32)))
    arguments = []
    for i, data in enumerate(case.data()):
        data.to_csv(f"{i}.csv", index=False)
        given = ["--data", f"{i}.csv", "--token-file", f"tokens/{i}.token"]
        if name not in WITHOUT_LABELS:
            given += ["--labels-out", f"labels-{i}.csv"]
        arguments.append([*given, *case.join.format(site=i).split()])
    return arguments


def assert_run_as_in_process(name):
    """Check model.npz, ledger.csv and the labels of a run against the estimator, in bytes."""
    case, here = CASES[name], fitted(name)
    ledger = here.ledger_.to_frame().to_csv(index=False, lineterminator="\n")
    assert Path("ledger.csv").read_text() == ledger
    models.save(here, "here.npz")
    assert Path("model.npz").read_bytes() == Path("here.npz").read_bytes()
    known = getattr(here, "labels_", [])
    common = isinstance(known, np.ndarray)  # one array for the rows that all sites share
    for i, expected in enumerate([known] * 3 if common else known):
        table = pd.read_csv(f"labels-{i}.csv", dtype=str)
        assert table["label"].to_numpy(str).astype(expected.dtype).tobytes() == expected.tobytes()
        assert len(set(expected)) > 1
        if "--ids" in case.join:
            assert table["id"].tolist() == case.data()[i]["id"].tolist()
