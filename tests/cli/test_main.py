"""The command line: real processes give what fit gives in process, and errors are one clear line.

Processes are forked from one that has imported everything; one test starts them as a shell does.
"""

import json
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.utils._param_validation import Interval, StrOptions

from fedlib import HorizontalDBSCAN, cli
from fedlib.federated import Federated, protocols
from fedlib.files import read_table

pytest.importorskip("flask")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "book" / "run_at_real_sites.md"
ANSWER = 60  # seconds within which everything ends that ends at all
SITES = ("0", "1", "2")


# Data


def _points():
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]], 40, axis=0)
    X = np.vstack([centres + rng.normal(scale=0.4, size=(120, 2)), rng.uniform(-2, 7, (15, 2))])
    return rng.permutation(X)


def rows():
    """Three sites' rows of the same two features."""
    return [pd.DataFrame(part, columns=["x", "y"]) for part in np.array_split(_points(), 3)]


def columns():
    """Three sites' features of the same rows, which carry identifiers."""
    X = np.column_stack([_points(), np.zeros(135)])
    ids = [f"{i:04d}" for i in range(len(X))]
    return [pd.DataFrame({"id": ids, name: X[:, i]}) for i, name in enumerate("xyz")]


def classes():
    """Three sites' rows with a class each."""
    return [part.assign(kind=(part["x"] > 2).astype(int)) for part in rows()]


class Case(NamedTuple):
    """How one protocol is tried: its parameters, data, and what else a site says."""

    parameters: dict[str, Any]
    data: Any = rows
    join: str = ""  # {site} is the site's number
    own: Any = None  # what `join` gives each client in process, if that matters for the result
    target: str = ""


DENSITY = {"eps": 0.4, "min_samples": 4}
CASES = {
    "horizontal-dbscan": Case(
        {"cell_size": 0.5, "min_samples": 4, "border": "absorb", "random_state": 0}
    ),
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
    "kmeans": Case({"n_clusters": 3, "random_state": 0}),
    "gaussian-mixture": Case({"n_components": 3, "random_state": 0}),
    "gaussian-mixture-dbscan": Case({**DENSITY, "n_components": 3, "random_state": 0}),
    "xgboost": Case({"n_trees": 3, "n_candidates": 4}, classes, "--target kind", target="kind"),
}
HORIZONTAL = ["serve", "horizontal-dbscan", "--cell-size", "0.5", "--min-samples", "4"]


def flags(parameters):
    return [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]


def fitted(name):
    """Return the estimator fitted in this process on what the sites have."""
    case = CASES[name]
    estimator = protocols()[name](**case.parameters)
    own, parts = [], []
    for site, data in enumerate(case.data()):
        X = data.drop(columns=[c for c in ("id", case.target) if c in data])
        parts.append((X, data[case.target].to_numpy()) if case.target else X)
        own.append(case.own(site, data) if case.own else {})
    return estimator._fit(parts, options=own)


# Processes


class Command:
    """A process of the command line, and what it says."""

    def __init__(self, context, folder, arguments):
        self.output = folder / f"out-{len(list(folder.glob('out-*')))}"
        self.output.touch()
        given = {"folder": str(folder), "output": str(self.output), "arguments": list(arguments)}
        options = {"init_globals": {"settings": given}, "run_name": "__main__"}
        path = str(Path(__file__).with_name("command.py"))
        self.process = context.Process(target=runpy.run_path, args=(path,), kwargs=options)
        self.process.start()

    @property
    def said(self):
        return self.output.read_text()

    def says(self, pattern, seconds=ANSWER):
        """Wait until it has said something."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said, re.M)):
            assert time.monotonic() < until, f"{pattern!r} is not in:\n{self.said}"
            assert self.process.is_alive() or re.search(pattern, self.said, re.M), self.said
            time.sleep(0.01)
        return found

    def ends(self, code=0):
        self.process.join(ANSWER)
        assert self.process.exitcode == code, self.said
        assert "Traceback" not in self.said
        return self.said

    def signal(self, number):
        os.kill(self.process.pid, number)


@pytest.fixture(scope="module")
def forkserver():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedlib.cli.main", "fedlib.transports.http.server"])
    return context


@pytest.fixture
def command(forkserver, tmp_path):
    """Return what starts the command line in a folder of the test's own."""
    started = []

    def begin(*arguments):
        started.append(Command(forkserver, tmp_path, map(str, arguments)))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.join()


def tell(*arguments, code=0, **options):
    """Run the command line in this process and return what it says."""
    result = CliRunner().invoke(cli.cli, [str(a) for a in arguments], **options)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder with three sites' rows and tokens; the test runs in it."""
    monkeypatch.chdir(tmp_path)
    tell("token", *SITES)
    for name, part in zip(SITES, rows(), strict=True):
        part.to_csv(f"{name}.csv", index=False)
    return tmp_path


def serving(command, *options, protocol=HORIZONTAL, bind="127.0.0.1:0"):
    """Start a server; return it and its address."""
    server = command(*protocol, "--tokens", "tokens/clients.json", "--bind", bind, *options)
    return server, server.says(r"at (https?://\S+)")[1]


def joining(command, url, name, *options):
    arguments = ["--data", f"{name}.csv", "--labels-out", f"labels-{name}.csv"]
    return command("join", url, *arguments, "--token-file", f"tokens/{name}.token", *options)


def labels(name):
    return pd.read_csv(f"labels-{name}.csv")["label"].to_numpy()


# The same results


@pytest.mark.parametrize("name", CASES)
def test_every_protocol_gives_what_it_gives_in_process(name, command, site):
    case, here = CASES[name], fitted(name)
    Path("rows.key").write_bytes(bytes(range(32)))
    options = ["--model-out", "model.npz", "--ledger-out", "ledger.csv"]
    server, url = serving(command, *options, protocol=["serve", name, *flags(case.parameters)])
    sites = []
    for i, data in enumerate(case.data()):
        data.to_csv(f"{i}.csv", index=False)
        own = case.join.format(site=i).split()
        known = getattr(here, "labels_", None)
        write = [] if known is None else ["--labels-out", f"labels-{i}.csv"]
        token = ["--token-file", f"tokens/{i}.token"]
        sites.append(command("join", url, "--data", f"{i}.csv", *token, *write, *own))
    for one in (*sites, server):
        assert "warning" not in one.ends()
    ledger = here.ledger_.to_frame().to_csv(index=False, lineterminator="\n")
    assert Path("ledger.csv").read_text() == ledger
    cli.save_model(here, Path("here.npz"))
    there, expected = (dict(np.load(file)) for file in ("model.npz", "here.npz"))
    for told in (there, expected):
        told["model.json"] = json.loads(str(told["model.json"]))
        if name == "vertical-dbscan":
            continue
        if isinstance(known_labels := told["model.json"]["attributes"].pop("labels_", None), list):
            for place in known_labels:
                del told[place["array"]]
    assert there.keys() == expected.keys()
    assert there.pop("model.json") == expected.pop("model.json")
    for array, values in expected.items():
        assert there[array].tobytes() == values.tobytes(), array
    known = getattr(here, "labels_", [])
    common = isinstance(known, np.ndarray)  # of all sites' rows
    for i, expected in enumerate([known] * 3 if common else known):
        table = pd.read_csv(f"labels-{i}.csv", dtype={"id": str})
        assert table["label"].to_numpy(np.int64).tobytes() == expected.tobytes()
        assert len(set(expected)) > 1
        if "--ids" in case.join:
            assert table["id"].tolist() == case.data()[i]["id"].tolist()


def test_every_protocol_of_the_package_is_tried():
    package = {n for n, kind in protocols().items() if kind.__module__.startswith("fedlib.")}
    assert package <= set(CASES)


def test_as_a_shell_starts_it(site):
    """The installed command itself, tokens made on the way, passive, and three kinds of files."""
    run = [Path(sys.executable).with_name("fedlib")]
    parts = rows()
    np.save("2.npy", parts[1].to_numpy())
    parts[2].to_parquet("3.parquet")
    shutil.copy("0.csv", "1.csv")
    arguments = [*HORIZONTAL, "--clients", "3", "--bind", "127.0.0.1:0", "--model-out", "m.json"]
    server = subprocess.Popen([*run, *arguments], stderr=subprocess.PIPE, text=True)
    url = re.search(r"at (http://\S+)", server.stderr.readline())[1]
    assert "site-N.token" in server.stderr.readline()
    sites = [
        subprocess.Popen(
            [*run, "join", url, "--data", data, "--labels-out", f"labels-{i}.npy", *more],
            env={**os.environ, "FEDLIB_TOKEN": Path(f"tokens/site-{i}.token").read_text().strip()},
        )
        for i, data, *more in [
            (1, "1.csv", "--passive"),
            (2, "2.npy"),
            (3, "3.parquet", "--protocol", "horizontal-dbscan"),
        ]
    ]
    assert [one.wait(ANSWER) for one in (*sites, server)] == [0] * 4
    said = server.stderr.read().splitlines()
    server.stderr.close()
    assert "0 of 3 clients joined" in said
    assert re.fullmatch(r"finished after 2 steps, [\d.]+ kB", said[-1])
    here = HorizontalDBSCAN(cell_size=0.5, min_samples=4).fit(parts, passive=[0])
    for i, expected in enumerate(here.labels_, start=1):
        assert np.load(f"labels-{i}.npy").tobytes() == expected.tobytes()
    model = json.loads(Path("m.json").read_text())
    assert model["attributes"]["cell_labels_"] == here.cell_labels_.tolist()
    assert model["parameters"]["cell_size"] == 0.5


def test_over_tls(command, site):
    """With the certificates that the page's commands make."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    for block in console_blocks():
        if block.startswith("openssl"):
            subprocess.run(
                block.replace("fedlib.example.org", "localhost"),
                shell=True,
                check=True,
                cwd=site,
                capture_output=True,
            )
    server, url = serving(command, "--cert", "server.pem", "--key", "server.key")
    assert url.startswith("https://")
    url = url.replace("127.0.0.1", "localhost")
    stranger = joining(command, url, "0", "--patience", "0")
    assert "certificate verify failed" in stranger.ends(1)
    sites = [joining(command, url, name, "--ca", "ca.pem") for name in SITES]
    for one in (*sites, server):
        one.ends()
    expected = HorizontalDBSCAN(cell_size=0.5, min_samples=4).fit(rows()).labels_
    for name, own in zip(SITES, expected, strict=True):
        assert labels(name).tobytes() == own.tobytes()


# Ends


def test_an_interrupted_server_tells_its_clients(command, site):
    server, url = serving(command, "--ledger-out", "ledger.csv")
    sites = [joining(command, url, name) for name in SITES[:2]]
    server.says("2 of 3 clients joined")
    server.signal(signal.SIGINT)
    assert server.ends(130).endswith("interrupted\n")
    for one in sites:
        assert "the server has stopped the run" in one.ends(1)
    assert set(pd.read_csv("ledger.csv")["message"]) == {"CountCells"}  # for when all are there


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_client_leaves_and_the_server_says_who_and_when(number, command, site):
    server, url = serving(command, "--ledger-out", "ledger.csv", "--gone-after", ANSWER)
    frozen, leaves = joining(command, url, "0"), joining(command, url, "1")
    server.says("2 of 3 clients joined")
    frozen.signal(signal.SIGSTOP)
    stays = joining(command, url, "2")
    server.says("step 1: CountCells, 2 of 3 answered")
    leaves.signal(number)
    assert leaves.ends(130).endswith("interrupted\n")
    frozen.signal(signal.SIGCONT)
    said = server.ends(1)
    assert re.search(r"lost at \d\d:\d\d:\d\d: 1, Left at AssignCells, step 2", said)
    assert "Error: 2 of 3 clients left, 3 needed. Lost: '1': Left at AssignCells, step 2" in said
    for one in (stays, frozen):
        assert "the server has stopped the run" in one.ends(1)
    ledger = pd.read_csv("ledger.csv")  # it is there all the same
    assert "Failure" in set(ledger["message"])


def test_a_killed_client_is_started_again_and_a_frozen_one_goes_on(command, site):
    """One is frozen, so the step is not over while another that has answered is killed."""
    server, url = serving(command, "--rejoin-timeout", ANSWER, "--gone-after", "1")
    victim = joining(command, url, "0", "--state-dir", "state")
    frozen = joining(command, url, "1")
    server.says("2 of 3 clients joined")
    frozen.signal(signal.SIGSTOP)
    last = joining(command, url, "2")
    server.says("step 1: CountCells, 2 of 3 answered")
    victim.signal(signal.SIGKILL)
    victim.process.join(ANSWER)
    again = joining(command, url, "0", "--state-dir", "state")
    again.says("joined")
    frozen.signal(signal.SIGCONT)
    for one in (server, again, frozen, last):
        one.ends()
    expected = HorizontalDBSCAN(cell_size=0.5, min_samples=4).fit(rows()).labels_
    for name, own in zip(SITES, expected, strict=True):
        assert labels(name).tobytes() == own.tobytes()
    assert list(Path("state").iterdir()) == []


def test_labels_that_were_kept_are_written_when_the_server_has_gone(site):
    from fedlib.messages import Labels, encode
    from fedlib.transports.http.client import _Memory

    known = np.arange(len(rows()[0]))
    _Memory("run", "0", 2, b"", encode(Labels(known))).save(site / "state")
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    arguments = ["join", url, "--patience", 0, "--token-file", "tokens/0.token"]
    arguments += ["--data", "0.csv", "--labels-out", "labels-0.csv"]
    assert "no answer" in tell(*arguments, "--state-dir", "empty", code=1)
    assert not Path("labels-0.csv").exists()
    assert "are the ones kept in state" in tell(*arguments, "--state-dir", "state")
    assert labels("0").tolist() == known.tolist()
    assert "no answer" in tell(*arguments, "--state-dir", "state", code=1)  # it was done


# Bad input


def refuse(*arguments, code=1, **options):
    """Return the one line with which the command line refuses."""
    said = tell(*arguments, code=code, **options)
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, said
    return errors[0]


FILES = {
    "good.csv": "id,a,b\n1,0.5,1\n2,1.5,2\n",
    "text.csv": "a,b\n1,2\n3,four\n",
    "gap.csv": "a,b\n1,2\n,3\n",
    "nan.csv": "a,b\n1,inf\n",
    "bare.csv": "1,2\n3,4\n",
    "ragged.csv": 'a,b\n1,2\n3,"4\n',
    "empty.csv": "",
    "data.xls": "a",
    "data.parquet": "a",
    "data.npy": "a",
    "data.arff": "a",
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("text.csv", "column 'b' holds 'four' in row 2, no number"),
        ("gap.csv", "column 'a' has no value in row 2"),
        ("nan.csv", "column 'b' holds 'inf' in row 1, no number"),
        ("bare.csv", "the first row holds numbers, not names: --no-header"),
        ("ragged.csv", "cannot be read"),
        ("empty.csv", "cannot be read"),
        ("data.xls", "cannot be read: .xls is none of the known kinds"),
        ("data.parquet", "cannot be read"),
        ("data.npy", "cannot be read"),
        ("data.arff", "cannot be read"),
        ("good.csv --columns a,c", "there is no column c; there are id, a, b"),
        ("good.csv --columns a,a", "columns that are used twice: a"),
        ("good.csv --columns a --ids a", "columns that are used twice: a"),
        ("good.csv --target kind", "there is no column kind"),
        ("good.csv --protocol vertical-dbscan --ids id", "key must be 16 to 64 secret bytes"),
        ("good.csv --protocol horizontal-dbscan --n-jobs 2", "no use for --n-jobs"),
    ],
)
def test_what_is_wrong_with_the_data_is_said_before_any_call(options, message, site, monkeypatch):
    for name, text in FILES.items():
        Path(name).write_text(text)
    monkeypatch.setenv("FEDLIB_TOKEN", "secret")
    monkeypatch.setattr("httpx.Client.request", None)
    assert message in refuse("join", "http://127.0.0.1:9", "--data", *options.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("join http://127.0.0.1:9 --data 0.csv", "the token is missing: --token-file, or FEDLIB"),
        ("join http://127.0.0.1:9 --data no.csv", "'no.csv' does not exist"),
        ("join http://127.0.0.1:9 --data 0.csv --labels-out no/l.csv", "does not exist or cannot"),
        (
            "join http://127.0.0.1:9 --data 0.csv --token-file tokens/0.token --protocol dbscan",
            "there is no protocol 'dbscan' here",
        ),
        ("serve dbscan", "No such command 'dbscan'"),
        ("serve horizontal-dbscan --min-samples 4", "Missing option '--cell-size'"),
        ("serve horizontal-dbscan --min-samples 4 --cell-size x", "'x' is none of: FLOAT"),
        ("serve horizontal-dbscan --min-samples 4 --cell-size 1", "either --clients or --tokens"),
        ("serve horizontal-dbscan --min-samples 4 --cell-size 0 --clients 2", "'cell_size' param"),
        (
            "serve horizontal-dbscan --min-samples 4 --cell-size 1 --border x --clients 2",
            "'x' is none of: absorb, nearest",
        ),
        (
            "serve horizontal-dbscan --min-samples 4 --cell-size 1 --clients 2 --bind 0.0.0.0:0",
            "beyond the loopback interface: use TLS, or say insecure",
        ),
        (
            "serve horizontal-dbscan --min-samples 4 --cell-size 1 --clients 2 --min-clients 3",
            "--min-clients is 3, of 2 clients",
        ),
        (
            "serve horizontal-dbscan --min-samples 4 --cell-size 1 --tokens 0.csv",
            "0.csv is no file of clients",
        ),
        ("token server", "a client's name is"),
        ("token ../x", "a client's name is"),
        ("token 0", "0: there is a token already; --renew replaces it"),
        ("--import no.such.module protocols", "cannot import no.such.module"),
    ],
)
def test_a_wrong_command_is_refused(arguments, message, site, monkeypatch):
    monkeypatch.delenv("FEDLIB_TOKEN", raising=False)
    assert message in refuse(*arguments.split(), code=2)


def test_a_site_runs_only_what_it_agrees_to(command, site):
    server, url = serving(command, "--join-timeout", "5", "--min-clients", "1")
    refuses = joining(command, url, "0", "--protocol", "vertical-dbscan")
    said = "the server runs 'horizontal-dbscan'; this site agrees to 'vertical-dbscan' only"
    assert said in refuses.ends(1)
    server.signal(signal.SIGINT)
    server.ends(130)


# Pieces


def test_tokens_are_secret_and_stay(site):
    kept = json.loads(Path("tokens/clients.json").read_text())
    said = tell("token", "north", "--dir", "tokens")
    now = json.loads(Path("tokens/clients.json").read_text())
    assert list(now) == [*SITES, "north"]
    assert {name: now[name] for name in SITES} == kept
    secret = Path("tokens/north.token").read_text().strip()
    assert secret not in said + Path("tokens/clients.json").read_text()
    assert Path("tokens/north.token").stat().st_mode & 0o077 == 0
    tell("token", "north", "--renew")
    assert Path("tokens/north.token").read_text().strip() != secret


def test_files_of_every_kind_hold_the_same(site):
    part = rows()[0].assign(kind=["a", "b", "c"] * 15, id=range(45))
    part.to_csv("data.csv", index=False)
    part.to_csv("data.tsv", index=False, sep="\t")
    part.to_csv("bare.csv", index=False, header=False)
    part.to_parquet("data.parquet")
    head = "@relation r\n@attribute x numeric\n@attribute y numeric\n@attribute kind {a,b,c}\n"
    text = part.to_csv(index=False, header=False)
    Path("data.arff").write_text(f"{head}@attribute id numeric\n@data\n{text}")
    for name in ("data.csv", "data.tsv", "data.parquet", "data.arff"):
        table = read_table(Path(name), "y,x", target="kind", ids="id")
        pd.testing.assert_frame_equal(table.X, part[["y", "x"]])
        assert table.y.tolist() == part["kind"].tolist()
        assert [str(int(i)) for i in table.ids] == [str(i) for i in part["id"]]
    bare = read_table(Path("bare.csv"), "0,1", header=False)
    assert bare.X.tobytes() == part[["x", "y"]].to_numpy().tobytes()
    np.save("data.npy", part[["x", "y"]].to_numpy())
    table = read_table(Path("data.npy"), target="1")
    assert table.X.tobytes() == part[["x"]].to_numpy().tobytes()
    assert table.y.tobytes() == part["y"].to_numpy().tobytes()


def test_options_come_from_constraints(tmp_path):
    def convert(text, *constraints):
        return cli.Parameter(constraints).convert(text, None, None)

    whole = Interval(Integral, 0, None, closed="left")
    real = Interval(Real, 0, None, closed="left")
    assert convert("3", whole) == 3
    assert convert("3", real) == 3.0
    assert convert("none", whole, None) is None
    assert convert("7", "random_state") == 7
    assert convert("mean", StrOptions({"mean"}), whole) == "mean"
    assert convert(None, whole, None) is None
    for text in ("x", "1.5", "none"):
        with pytest.raises(click.BadParameter, match=f"'{text}' is none of: INTEGER"):
            convert(text, whole)
    np.save(tmp_path / "init.npy", np.eye(2))
    (tmp_path / "init.csv").write_text("1,0\n0,1\n")
    for name in ("init.npy", "init.csv"):
        found = convert(str(tmp_path / name), StrOptions({"k-means++"}), "array-like")
        assert found.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(click.BadParameter, match="is no array"):
        convert("no.npy", "array-like")


@pytest.mark.parametrize("name", protocols())
def test_every_parameter_has_an_option_and_a_text(name):
    estimator = protocols()[name]
    options = {option.name: option for option in cli.protocol_options(estimator)}
    assert set(options) == set(estimator._get_param_names())
    for option in options.values():
        assert option.help, option.name
    common = {flag for option in cli.SERVE for flag in option.opts}
    assert not common & {flag for option in options.values() for flag in option.opts}
    told = cli.messages_of(estimator)
    assert told
    assert all(message.discloses for message in told)
    text = tell("serve", name, "--help")
    assert all(option.opts[0] in text for option in options.values())


def test_a_protocol_of_ones_own_is_served(site):
    Path("mine_for_test.py").write_text(
        "from fedlib import HorizontalDBSCAN\n"
        "class Mine(HorizontalDBSCAN):\n"
        '    """Mine."""\n'
        '    name = "mine-for-test"\n'
    )
    assert "mine-for-test: Mine." in tell("--import", "mine_for_test", "protocols")
    assert protocols()["mine-for-test"].__name__ == "Mine"
    protocols()["mine-for-test"].name = "mine-for-test"
    del sys.modules["mine_for_test"]


def test_what_a_model_file_cannot_hold_is_said(tmp_path, capsys):
    class Odd(Federated):
        """It has learnt all sorts of things."""

        def __init__(self, a=1):
            self.a = a

    Odd.name = "odd"
    model = Odd()
    model.points_, model.parts_ = np.eye(2), [np.zeros(1), {"n": np.int64(3)}]
    model.model_, model.words_ = object(), np.array([object()])
    cli.save_model(model, tmp_path / "model.npz")
    said = capsys.readouterr().err
    for name in ("model_", "words_"):
        assert f"model.npz is without {name}: it holds a value of class object" in said
    model.names_ = np.array(["a", "b"], object)
    cli.save_model(model, tmp_path / "model.npz")
    saved = np.load(tmp_path / "model.npz")
    told = json.loads(str(saved["model.json"]))
    assert told["attributes"] == {
        "points_": {"array": "points_"},
        "parts_": [{"array": "parts_.0"}, {"n": 3}],
        "names_": ["a", "b"],
    }
    assert saved["parts_.0"].tolist() == [0.0]
    cli.save_model(model, tmp_path / "model.json")
    told = json.loads((tmp_path / "model.json").read_text())
    assert told["attributes"]["points_"] == [[1, 0], [0, 1]]


# The page


def console_blocks():
    """Return the commands of the page's console blocks, a block each."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return ["\n".join(re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.M)) for block in blocks]


def commands():
    for block in console_blocks():
        for line in block.replace("\\\n", " ").splitlines():
            if "fedlib " in line and not line.startswith(("openssl", "python", "curl")):
                yield line


@pytest.mark.parametrize("line", list(commands()))
def test_every_command_on_the_page_exists(line):
    words = [w for w in shlex.split(line) if not re.match(r"[A-Z_]+=", w)]
    assert words.pop(0) == "fedlib"
    command: click.Command = cli.cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
    context = click.Context(command)
    known = {flag for p in command.get_params(context) for flag in (*p.opts, *p.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known
    options = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    required = [option for option in options if option.required]
    assert all(any(flag in words for flag in p.opts) for p in required), line


def test_the_page_says_what_leaves_the_building():
    rows = []
    for name, estimator in protocols().items():
        if estimator.__module__.startswith("fedlib."):
            told = cli.messages_of(estimator)
            for request, reply in zip(told[::2], told[1::2], strict=True):
                asks = f"| `{name}` | `{request.__name__}` | {request.discloses} |"
                rows.append(f"{asks} `{reply.__name__}` | {reply.discloses} |")
    table = "\n".join(rows)
    shown = re.findall(r"^\| `[a-z-]+` \|.*", PAGE.read_text(encoding="utf-8"), re.M)
    assert "\n".join(shown) == table, f"the page's table has to be:\n{table}"
