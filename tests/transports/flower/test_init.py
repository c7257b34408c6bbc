"""Importing the package switches off telemetry, update checks and usage statistics."""

import subprocess
import sys
import textwrap

import pytest


def isolated(program, home, **environment):
    """Return the output of a program in a new process with an empty environment."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(home), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_connection_is_opened(tmp_path):
    """The program runs in a process in which every connection is an error."""
    program = """
        import os, socket, sys
        def refuse(*arguments, **options):
            os._exit(99)
        socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
        from fedlib import HorizontalDBSCAN
        from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
        from fedlib.transports.flower import FIN, LocalFlowerGrid, client_app
        from flwr.supercore import telemetry
        assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
        telemetry.event(telemetry.EventType.PING).result()
        assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        grid = LocalFlowerGrid(client_app(lambda context: HorizontalDBSCANClient([[0.1]])), 1)
        FIN(HorizontalDBSCAN(cell_size=1.0, min_samples=1), n_clients=1).start(grid)
        print("done")
    """
    assert isolated(program, tmp_path) == "done\n"


@pytest.mark.parametrize(
    ("environment", "flag"),
    [({}, "0"), ({"FLWR_TELEMETRY_ENABLED": "1"}, "1")],
    ids=["unset", "on"],
)
def test_telemetry_is_off_unless_the_environment_switches_it_on(environment, flag, tmp_path):
    """It is off even if Flower was imported first and has read the environment."""
    program = """
        from flwr.supercore import telemetry
        assert telemetry.FLWR_TELEMETRY_ENABLED == "1"
        import fedlib.transports.flower
        print(telemetry.FLWR_TELEMETRY_ENABLED)
    """
    assert isolated(program, tmp_path, **environment) == f"{flag}\n"
