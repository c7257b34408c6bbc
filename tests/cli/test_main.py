"""The command line as a whole: its list of commands, wrong commands, and the page about it."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest
import reading
from cli_helpers import invoke, refuse

from fedlib.cli.join import EXTENDED
from fedlib.cli.main import COMMANDS, cli
from fedlib.core.registry import protocols

HEAVY = ("numpy", "sklearn", "scipy", "numba", "pandas", "matplotlib", "msgspec")
WEB = ("httpx", "starlette", "uvicorn", "httptools", "flwr")


def isolated(program, code=0):
    """Run a program in a new process and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


# Start


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import fedlib", 0),
        ("from fedlib.cli.main import main; main(['--help'])", 0),
        ("from fedlib.cli.main import main; main(['--version'])", 0),
        ("from fedlib.cli.main import main; main(['no-such-command'])", 2),
    ],
)
def test_the_start_imports_nothing_heavy(program, code):
    """Importing the package and listing the commands load no heavy module."""
    text = f"""
        import atexit, sys
        absent = {HEAVY + WEB!r}
        loaded = lambda: [name for name in absent if name in sys.modules]
        atexit.register(lambda: print("loaded:", loaded()))
        {program}
    """
    assert "loaded: []" in isolated(text, code)


def test_join_imports_only_what_it_needs():
    """A site imports neither the web server nor the protocols that it does not join."""
    output = isolated(
        """
        import sys
        import fedlib.cli.join, fedlib.sites.site, fedlib.transports.http
        from fedlib.transports.http import join
        fedlib.core.registry.find_estimator("horizontal-dbscan")
        absent = ["starlette", "uvicorn", "flwr", "matplotlib"]
        absent += ["fedlib.clustering.kmeans", "fedlib.boosting"]
        print([name for name in absent if name in sys.modules])
        """
    )
    assert output == "[]\n"


def test_the_listed_help_texts_are_those_of_the_commands():
    context = click.Context(cli)
    for name, (_, _, text) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command.name == name
        assert command.get_short_help_str(200) == text
    assert cli.list_commands(context) == sorted(COMMANDS)
    output = invoke("--help")
    assert all(name in output for name in COMMANDS)


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("httpx", "join http://127.0.0.1:9 --data rows.csv"),
        ("uvicorn", "serve kmeans --n-clusters 2 --tokens clients.json"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(missing, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLIB_TOKEN", "secret")
    Path("rows.csv").write_text("x\n1\n2\n")
    Path("clients.json").write_text('{"a": "00"}')
    program = f"""
        import sys
        sys.modules[{missing!r}] = None
        from fedlib.cli.main import main
        main({arguments.split()!r})
    """
    error = f'Error: {missing} is not installed: pip install "fedlib-study[http]"\n'
    assert isolated(program, 1) == error


def test_commands_work_without_the_extra(tmp_path):
    program = """
        import sys
        for name in ("httpx", "starlette", "uvicorn", "httptools", "flwr", "pyarrow"):
            sys.modules[name] = None
        from fedlib.cli.main import main
        main(["protocols", "--names"])
    """
    assert "kmeans" in isolated(program)


# Wrong commands


SERVE = "serve horizontal-dbscan --min-samples 4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "join http://127.0.0.1:9 --data 0.csv",
            "the token is missing: use --token-file or FEDLIB_TOKEN",
        ),
        ("join http://127.0.0.1:9 --data no.csv", "'no.csv' does not exist"),
        ("join http://127.0.0.1:9 --data 0.csv --labels-out no/l.csv", "does not exist or cannot"),
        ("join http://127.0.0.1:9 --data 0.csv --lables-out l.csv", "No such option"),
        (
            "join http://127.0.0.1:9 --data 0.csv --token-file tokens/0.token --protocol dbscan",
            "--protocol must be one of approximate-dbscan, clustering-score,",
        ),
        ("serve dbscan", "No such command 'dbscan'"),
        (SERVE, "Missing option '--cell-size'"),
        (f"{SERVE} --cell-size x", "'x' is not one of: FLOAT"),
        (f"{SERVE} --cell-size 1", "name the sites with either --clients or --tokens"),
        (f"{SERVE} --cell-size 0 --clients 2", "'cell_size' param"),
        (f"{SERVE} --cell-size 1 --border x --clients 2", "'x' is not one of: absorb, nearest"),
        (f"{SERVE} --cell-size 1 --clients 2 --bind 0.0.0.0:0", "beyond the loopback interface"),
        (
            f"{SERVE} --cell-size 1 --clients 2 --min-clients 3",
            "--min-clients must be at most 2, the number of clients; got 3",
        ),
        (f"{SERVE} --cell-size 1 --tokens 0.csv", "0.csv must be a file clients.json"),
        ("token server", "a client's name must"),
        ("token ../x", "a client's name must"),
        ("token 0", "a token exists for 0; replace it with --renew"),
        ("--import no.such.module protocols", "cannot import no.such.module"),
        ("no-such-command", "No such command 'no-such-command'"),
    ],
)
def test_a_wrong_command_is_refused(arguments, message, site, monkeypatch):
    monkeypatch.delenv("FEDLIB_TOKEN", raising=False)
    assert message in refuse(*arguments.split(), code=2)


# User-defined protocols


def test_a_protocol_of_the_user_is_served(site):
    Path("mine_for_test.py").write_text(
        "from fedlib import HorizontalDBSCAN\n"
        "class Mine(HorizontalDBSCAN):\n"
        '    """Mine."""\n'
        '    name = "mine-for-test"\n'
    )
    assert "mine-for-test: Mine." in invoke("--import", "mine_for_test", "protocols")
    assert protocols()["mine-for-test"].__name__ == "Mine"
    assert "--cell-size" in invoke("serve", "mine-for-test", "--help")
    del sys.modules["mine_for_test"]


# The pages


def typed():
    """Return the commands of this package that the README and the pages tell to type.

    Those within sentences may lack options that are required.
    """
    found = {}
    for text in reading.pages().values():
        for lines, is_whole in ((reading.commands(text), True), (reading.mentions(text), False)):
            for line in lines:
                is_ours = re.match(r"([A-Z_]+=\S+ )*fedlib [a-z]", line) and "--" in line
                names_all = "…" not in line and "serve --" not in line
                if is_ours and names_all and not line.endswith("--help"):
                    found.setdefault(line, is_whole)
    return list(found.items())


def test_the_commands_of_all_pages_are_found():
    found = dict(typed())
    assert sum(found.values()) > 30
    assert any(line.startswith("fedlib predict model.npz --data new.csv") for line in found)
    assert any(line.startswith("fedlib serve xgboost") and found[line] for line in found)


@pytest.mark.parametrize(("line", "is_whole"), typed())
def test_every_command_on_a_page_exists(line, is_whole):
    words = [w for w in shlex.split(line) if not re.match(r"[A-Z_]+=", w)]
    assert words.pop(0) == "fedlib"
    if words[0] == "unit":  # the other words are those of the command that it wraps
        words.pop(0)
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
    context = click.Context(command)
    context.meta[EXTENDED] = True
    known = {flag for p in command.get_params(context) for flag in (*p.opts, *p.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known
    options = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    required = [option for option in options if option.required and is_whole]
    assert all(any(flag in words for flag in p.opts) for p in required), line
