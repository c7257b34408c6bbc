"""The lines of a command: as text and as JSON, without control characters from a site."""

import json
import logging
import signal
from datetime import datetime

import pandas as pd
import pytest
from cli_helpers import ANSWER, HORIZONTAL, SITES, invoke, joining, refuse, serving

from fedlib.cli.common import JSONLines, TextLines

pytest.importorskip("uvicorn")
IN_JSON = ["--log-format", "json"]
ATTACK = "\x1b[2J\x1b]0;owned\x07finished"  # clears a terminal and sets its title


def lines(output):
    """Return the lines of a command, each of which is a JSON object."""
    parsed = [json.loads(line) for line in output.splitlines()]
    for line in parsed:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert datetime.fromisoformat(line["time"]).utcoffset().total_seconds() == 0
    return parsed


def test_a_run_in_json(command, site):
    server, url = serving(command, protocol=[*IN_JSON, *HORIZONTAL])
    sites = [
        command(*IN_JSON, "join", url, "--data", f"{name}.csv", "--token-file", token)
        for name, token in [(name, f"tokens/{name}.token") for name in SITES]
    ]
    for one in sites:
        joined, finished = lines(one.ends())
        assert (joined["protocol"], joined["rows"]) == ("horizontal-dbscan", 45)
        assert finished["message"] == "finished"
    listening, *progress = lines(server.ends())
    assert (listening["protocol"], listening["url"]) == ("horizontal-dbscan", url)
    assert {line["level"] for line in progress} == {"info"}
    last = progress[-1]
    assert (last["outcome"], last["step"], last["joined"]) == ("finished", 2, 3)
    assert last["bytes"] > 0


def test_an_error_in_json():
    """Also one that is found before the command begins."""
    for arguments in (["no-such-command"], ["token", "../x"]):
        [line] = lines(failing(*IN_JSON, *arguments))
        assert (line["level"], line["exit_status"]) == ("error", 2)


def failing(*arguments):
    """Return what a command that fails prints, by the same way as the program."""
    import click
    from click.testing import CliRunner

    from fedlib.cli import main

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1)
    def program(words):
        before = signal.getsignal(signal.SIGTERM)
        try:
            main.main(words)
        finally:
            signal.signal(signal.SIGTERM, before)

    return CliRunner().invoke(program, arguments).output


def test_a_record_without_fields():
    try:
        raise KeyError("secret")
    except KeyError as error:
        given = {"msg": "a %s", "args": ("b",), "levelname": "ERROR", "levelno": logging.ERROR}
        record = logging.makeLogRecord(given | {"exc_info": (KeyError, error, None)})
    assert TextLines().format(record) == "error: a b"
    line = json.loads(JSONLines().format(record))
    assert (line["message"], line["exception"]) == ("a b", "KeyError")
    assert "secret" not in JSONLines().format(record)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_escape_sequences_of_a_site_do_not_reach_the_operator(log_format, command, site):
    """The name of a feature contains them; the error names it, at the server and in its log."""
    options = ["--min-clients", "2"]
    server, url = serving(command, *options, protocol=["--log-format", log_format, *HORIZONTAL])
    table = pd.read_csv("2.csv")
    table.columns = ["x", ATTACK]
    table.to_csv("2.csv", index=False)
    sites = [joining(command, url, name) for name in SITES]
    output = server.ends()
    assert "clients disagree on the features" in output
    assert "finished" in output
    for one in (*sites[:2],):
        one.ends()
    output += sites[2].ends(1)
    assert "\\x1b[2J" in output.replace("\\\\", "\\")
    assert not {c for c in output if not c.isprintable()} - {"\n"}


def test_escape_sequences_end_a_run_safely(command, site):
    """Without a majority the run ends, and the error is one safe line."""
    for name, columns in (("0", ["x", "y"]), ("1", ["x", ATTACK])):
        table = pd.read_csv(f"{name}.csv")
        table.columns = columns
        table.to_csv(f"{name}.csv", index=False)
    invoke("token", "0", "1", "--dir", "two")
    arguments = [*HORIZONTAL, "--tokens", "two/clients.json", "--bind", "127.0.0.1:0"]
    arguments += ["--gone-after", ANSWER]
    server = command(*arguments)
    url = server.prints(r"at (http://\S+)")[1]
    sites = [
        command("join", url, "--data", f"{n}.csv", "--token-file", f"two/{n}.token") for n in "01"
    ]
    output = server.ends(1) + "".join(one.ends(1) for one in sites)
    assert (
        "Error: clients disagree on the features: 'x', 'y' at '0'; 'y' is missing, and '\\x1b[2J"
        in output
    )
    assert not {c for c in output if not c.isprintable()} - {"\n"}


def test_an_unknown_format_is_refused():
    assert "'xml' is not one of 'text', 'json'" in refuse(
        "--log-format", "xml", "protocols", code=2
    )
