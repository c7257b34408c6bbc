"""Whole runs by the command line give the same results as `fit` in process."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import reading
from cli_helpers import (
    ANSWER,
    CASES,
    HORIZONTAL,
    PAGE,
    SITES,
    assert_labels_as_in_process,
    assert_run_as_in_process,
    classes,
    flags,
    invoke,
    joining,
    labels,
    rows,
    serving,
    site_arguments,
)

from fedlib import FederatedXGBClassifier, HorizontalDBSCAN
from fedlib.core.registry import protocols
from fedlib.sites import models

pytest.importorskip("uvicorn")


@pytest.mark.parametrize("name", CASES)
def test_every_protocol_gives_the_same_as_in_process(name, command, site):
    options = ["--model-out", "model.npz", "--ledger-out", "ledger.csv"]
    protocol = ["serve", name, *flags(CASES[name].parameters)]
    server, url = serving(command, *options, protocol=protocol)
    sites = [command("join", url, *arguments) for arguments in site_arguments(name)]
    for one in (*sites, server):
        assert "warning" not in one.ends()
    assert_run_as_in_process(name)


def test_base_margins_over_http_and_of_new_rows(command, site):
    tables = [part.assign(start=part["y"] - 1) for part in classes()]
    for i, table in enumerate(tables):
        table.to_csv(f"{i}.csv", index=False)
    protocol = ["serve", "xgboost", "--n-trees", "3", "--eval-metric", "error"]
    server, url = serving(command, "--model-out", "model.json", protocol=protocol)
    columns = ["--target", "kind", "--base-margin", "start"]
    sites = [joining(command, url, name, *columns, "--eval-data", "2.csv") for name in SITES]
    for one in (*sites, server):
        one.ends()
    parts = [(table[["x", "y"]], table["kind"], None, None, table["start"]) for table in tables]
    evaluated = (*parts[2][:3], parts[2][4])
    parts = [(*part[:3], evaluated, part[4]) for part in parts]
    here = FederatedXGBClassifier(3, eval_metric="error").fit(parts)
    model = models.load("model.json")
    assert model.evals_result_ == here.evals_result_
    for name, expected in zip(SITES, here.labels_, strict=True):
        assert labels(name).tolist() == expected.tolist()
    predicting = ["predict", "model.json", "--data", "0.csv", "--labels-out", "new.csv"]
    invoke(*predicting, *columns, "--probabilities")
    shares = pd.read_csv("new.csv")["probability_1"].to_numpy()
    expected = here.predict_proba(parts[0][0], base_margin=parts[0][4])[:, 1]
    np.testing.assert_allclose(shares, expected, rtol=1e-12)
    with pytest.warns(UserWarning, match="fitted with base_margin"):
        without = here.predict_proba(parts[0][0])[:, 1]
    assert (np.abs(shares - without) > 0.01).any()


def test_every_protocol_of_the_package_is_tested():
    package = {n for n, kind in protocols().items() if kind.__module__.startswith("fedlib.")}
    assert package <= set(CASES)


def test_the_installed_command(site):
    """The shell command works: tokens from the server, a passive site, two kinds of files."""
    program = [Path(sys.executable).with_name("fedlib")]
    parts = rows()[:2]
    shutil.copy("0.csv", "1.csv")
    parts[1].to_parquet("2.parquet")
    arguments = [*HORIZONTAL, "--clients", "2", "--bind", "127.0.0.1:0", "--model-out", "m.json"]
    server = subprocess.Popen([*program, *arguments], stderr=subprocess.PIPE, text=True)
    url = re.search(r"at (http://\S+)", server.stderr.readline())[1]
    assert "site-N.token" in server.stderr.readline()
    sites = [
        subprocess.Popen(
            [*program, "join", url, "--data", data, "--labels-out", f"labels-{i}.npy", *more],
            env={**os.environ, "FEDLIB_TOKEN": Path(f"tokens/site-{i}.token").read_text().strip()},
        )
        for i, data, *more in [
            (1, "1.csv", "--passive"),
            (2, "2.parquet", "--protocol", "horizontal-dbscan"),
        ]
    ]
    assert [one.wait(ANSWER) for one in (*sites, server)] == [0] * 3
    lines = server.stderr.read().splitlines()
    server.stderr.close()
    assert "0 of 2 clients joined" in lines
    assert re.fullmatch(r"finished after 2 steps, [\d.]+ kB", lines[-1])
    here = HorizontalDBSCAN(cell_size=0.5, min_samples=4).fit(parts, passive=[0])
    for i, expected in enumerate(here.labels_, start=1):
        assert np.load(f"labels-{i}.npy").tobytes() == expected.tobytes()
    model = models.load("m.json")
    assert model.cell_labels_.tobytes() == here.cell_labels_.tobytes()
    assert model.get_params() == here.get_params()


def certify(folder):
    """Make the certificates of the page about real sites, for this machine."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    for block in blocks:
        lines = "\n".join(re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.M))
        if lines.startswith("openssl"):
            text = lines.replace("fedlib.example.org", "localhost")
            subprocess.run(text, shell=True, check=True, cwd=folder, capture_output=True)


def test_the_commands_for_those_who_come_from_another_system(command, tmp_path, monkeypatch):
    """They give the model of the page's call in one process."""
    monkeypatch.chdir(tmp_path)
    certify(tmp_path)
    page = reading.pages()["book/coming_from.md"]
    token, serve, join = (shlex.split(line)[1:] for line in reading.commands(page))
    invoke(*token)
    names, tables = token[1:], [part.rename(columns={"kind": "ill"}) for part in classes()]
    for name, table in zip(names, tables, strict=True):
        table.to_csv(f"{name}.csv", index=False)
    serve[serve.index("--bind") + 1] = "127.0.0.1:0"
    server = command(*serve)
    join[1] = server.prints(r"at (https://[^\s\"]+)")[1].replace("127.0.0.1", "localhost")
    sites = [command(*(word.replace("north", name) for word in join)) for name in names]
    for one in (*sites, server):
        one.ends()
    parts = [(table[["x", "y"]], table["ill"].to_numpy()) for table in tables]
    here = FederatedXGBClassifier(n_trees=20, max_depth=4, learning_rate=0.3).fit(parts)
    assert "FederatedXGBClassifier(n_trees=20, max_depth=4, learning_rate=0.3).fit(parts)" in page
    model = models.load("model.json")
    X = tables[0][["x", "y"]]
    assert model.predict_proba(X).tobytes() == here.predict_proba(X).tobytes()


def test_over_tls(command, site):
    """A run works with the certificates from the page's commands."""
    certify(site)
    server, url = serving(command, "--cert", "server.pem", "--key", "server.key")
    assert url.startswith("https://")
    url = url.replace("127.0.0.1", "localhost")
    stranger = joining(command, url, "0", "--patience", "0")
    assert "certificate verify failed" in stranger.ends(1)
    sites = [joining(command, url, name, "--ca", "ca.pem") for name in SITES]
    for one in (*sites, server):
        one.ends()
    assert_labels_as_in_process(HorizontalDBSCAN(cell_size=0.5, min_samples=4))


def test_an_interrupted_server_stops_its_clients(command, site):
    server, url = serving(command, "--ledger-out", "ledger.csv")
    sites = [joining(command, url, name) for name in SITES[:2]]
    server.prints("2 of 3 clients joined")
    server.signal(signal.SIGINT)
    assert server.ends(130).endswith("interrupted\n")
    for one in sites:
        assert "the server has stopped the run" in one.ends(1)
    assert set(pd.read_csv("ledger.csv")["message"]) == {"CountCells"}  # not sent before all join


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_client_leaves_and_the_server_reports_it(number, command, site):
    server, url = serving(command, "--ledger-out", "ledger.csv", "--gone-after", ANSWER)
    frozen, leaves = joining(command, url, "0"), joining(command, url, "1")
    server.prints("2 of 3 clients joined")
    frozen.signal(signal.SIGSTOP)
    stays = joining(command, url, "2")
    server.prints("step 1: CountCells, 2 of 3 answered")
    leaves.signal(number)
    assert leaves.ends(130).endswith("interrupted\n")
    frozen.signal(signal.SIGCONT)
    output = server.ends(1)
    assert re.search(r"lost at \d\d:\d\d:\d\d: 1, Left at AssignCells, step 2", output)
    error = "Error: 2 of 3 clients remain, 3 are needed. Lost: '1': Left at AssignCells, step 2"
    assert error in output
    for one in (stays, frozen):
        assert "the server has stopped the run" in one.ends(1)
    ledger = pd.read_csv("ledger.csv")  # it is written although the run failed
    assert "Failure" in set(ledger["message"])


def test_a_killed_client_and_a_frozen_client_continue(command, site):
    """The frozen client keeps the step open while another one that has answered is killed."""
    server, url = serving(command, "--rejoin-timeout", ANSWER, "--gone-after", "1")
    victim = joining(command, url, "0", "--state-dir", "state")
    frozen = joining(command, url, "1")
    server.prints("2 of 3 clients joined")
    frozen.signal(signal.SIGSTOP)
    last = joining(command, url, "2")
    server.prints("step 1: CountCells, 2 of 3 answered")
    victim.signal(signal.SIGKILL)
    victim.process.join(ANSWER)
    again = joining(command, url, "0", "--state-dir", "state")
    again.prints("joined")
    frozen.signal(signal.SIGCONT)
    for one in (server, again, frozen, last):
        one.ends()
    assert_labels_as_in_process(HorizontalDBSCAN(cell_size=0.5, min_samples=4))
    Path("labels-0.csv").unlink()  # it was killed while it was exiting, and is started again
    begin = time.monotonic()
    after = joining(command, url, "0", "--state-dir", "state", "--patience", "1000")
    assert "using the labels saved in state" in after.ends()
    assert time.monotonic() - begin < ANSWER
    assert_labels_as_in_process(HorizontalDBSCAN(cell_size=0.5, min_samples=4))


def test_kept_labels_are_written_when_the_server_has_gone(site):
    from fedlib.core.messages import Labels, encode
    from fedlib.transports.http import Checkpoint

    known = np.arange(len(rows()[0]))
    Checkpoint("run", "0", 2, b"", encode(Labels(known))).save(site / "state")
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    arguments = ["join", url, "--patience", "0", "--token-file", "tokens/0.token"]
    arguments += ["--data", "0.csv", "--labels-out", "labels-0.csv"]
    assert "no answer" in invoke(*arguments, "--state-dir", "empty", code=1)
    assert not Path("labels-0.csv").exists()
    assert "using the labels saved in state" in invoke(*arguments, "--state-dir", "state")
    assert labels("0").tolist() == known.tolist()


def test_a_state_folder_that_cannot_be_used_is_named_and_not_the_server(site):
    arguments = ["join", "http://127.0.0.1:1", "--patience", "0", "--token-file", "tokens/0.token"]
    output = invoke(*arguments, "--data", "0.csv", "--state-dir", "0.csv/state", code=1)
    assert "Error: state_dir 0.csv/state cannot be used: Not a directory; free space" in output
    assert "127.0.0.1" not in output


def test_a_result_that_does_not_fit_a_row_is_an_error_of_the_site_alone(command, site):
    """The server and the other sites see an ordinary run; the row out of range has no label."""
    rows()[2].assign(x=[1e300, *rows()[2]["x"][1:]]).to_csv("2.csv", index=False)
    server, url = serving(command)
    ordinary = [joining(command, url, name) for name in SITES[:2]]
    odd = joining(command, url, "2", "--passive", "--state-dir", "state")
    error = "Error: the run has finished, but its result does not fit all rows: AssignCells: 1 of"
    assert error in odd.ends(1)
    for one in (*ordinary, server):
        one.ends()
    assert labels("2")[0] == -1
    again = joining(command, url, "2", "--passive", "--state-dir", "state")
    assert error in again.ends(1)


def test_a_site_runs_only_the_agreed_protocol(command, site):
    server, url = serving(command, "--join-timeout", "5", "--min-clients", "1")
    refusing = joining(command, url, "0", "--protocol", "vertical-dbscan")
    error = "the server runs 'horizontal-dbscan'; this site agrees to 'vertical-dbscan' only"
    assert error in refusing.ends(1)
    server.signal(signal.SIGINT)
    server.ends(130)


def test_a_served_model_is_a_model_file(command, site):
    """The document in it can be read without this package."""
    server, url = serving(command, "--model-out", "model.npz")
    for one in [joining(command, url, name) for name in SITES]:
        one.ends()
    server.ends()
    with np.load("model.npz") as file:
        document = json.loads(str(file["model.json"]))
        assert document["protocol"] == "horizontal-dbscan"
        assert set(document["arrays"]) < set(file)


def test_sites_with_text_gaps_and_rows_for_validation(command, site):
    """The model is that of the same parts in process, with early stopping."""
    parts = []
    for i, data in enumerate(classes()):
        town = np.where(np.arange(len(data)) % 3 == 0, "north", "south")
        data = data.assign(town=town)
        data.loc[data.index[:4], ["x", "town"]] = np.nan
        data.to_csv(f"{i}.csv", index=False)
        data[::4].to_csv(f"eval-{i}.csv", index=False)
        X = data.drop(columns="kind")
        parts.append((X, data["kind"], None, (X[::4], data["kind"][::4])))
    early = {"n_trees": 30, "method": "histogram", "early_stopping_rounds": 2}
    here = FederatedXGBClassifier(**early, eval_metric=["error", "logloss"]).fit(parts)
    options = ["--eval-metric", "error,logloss", "--model-out", "model.npz"]
    server, url = serving(command, *flags(early), *options, protocol=["serve", "xgboost"])
    for name in SITES:
        given = ["--protocol", "xgboost", "--target", "kind", "--eval-data", f"eval-{name}.csv"]
        joining(command, url, name, *given)
    server.ends()
    model = models.load("model.npz")
    assert model.evals_result_ == here.evals_result_
    assert model.model_.levels == here.model_.levels == (None, None, ("north", "south"))
    assert len(model.trees_) == model.best_iteration_ + 1
