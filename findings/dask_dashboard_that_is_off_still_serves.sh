#!/usr/bin/env bash
# One would guess: `LocalCluster(dashboard_address=None)`, which the documentation describes as "disable the dashboard",
# starts no web server, and two such clusters on one machine have nothing to share.
# What happens (distributed 2026.8.0): the scheduler still starts its web server, on the usual port 8787, and answers
# there (/health, /json/counts.json). With `processes=False`, the server listens on all interfaces. A second cluster on
# the machine warns "Port 8787 is already in use"; where warnings are errors, as in many test suites, it does not start.
# Instead: give an address that is free and that only this machine reaches, `dashboard_address="127.0.0.1:0"`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  distributed==2026.8.0 dask==2026.8.0 tornado==6.6.1 psutil==7.2.2
cd "$folder"
cat >try.py <<'PYTHON'
import urllib.request
import warnings

import psutil
from distributed import LocalCluster


def addresses():
    """Return where this process listens for HTTP, by asking each port for the health of a scheduler."""
    found = set()
    for connection in psutil.Process().net_connections(kind="inet4"):
        if connection.status == psutil.CONN_LISTEN:
            address, port = connection.laddr
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/counts.json", timeout=10) as reply:
                    assert b'"workers"' in reply.read()
                    found.add((address, port))
            except OSError:
                pass
    return found


def clusters(address):
    """Return where two clusters listen, and the warnings of the second."""
    options = {"n_workers": 1, "processes": False, "dashboard_address": address}
    with LocalCluster(**options), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = addresses()
        with LocalCluster(**options):
            messages = [str(warning.message).splitlines()[0] for warning in caught]
            return first, addresses() - first, messages


if __name__ == "__main__":
    off, second, messages = clusters(None)
    print("dashboard_address=None:", off, second, messages)
    assert off == {("0.0.0.0", 8787)} and len(second) == 1
    assert "Port 8787 is already in use." in messages
    local, second, messages = clusters("127.0.0.1:0")
    print('dashboard_address="127.0.0.1:0":', local, second, messages)
    assert {address for address, _ in local | second} == {"127.0.0.1"} and not any("Port" in line for line in messages)
PYTHON
venv/bin/python try.py
