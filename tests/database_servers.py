"""Servers of databases for the tests, in a temporary folder and on a socket there."""

import os
import pwd
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path


def _as_user(user):
    """Return the words before a command that is run as another user, who may not be root."""
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"]


def _unprivileged(folder):
    """Give a folder to an ordinary user if the tests run as root; return the words before."""
    if os.getuid():
        return []
    shutil.chown(folder, "nobody", pwd.getpwnam("nobody").pw_gid)
    return _as_user("nobody")


def find_postgresql():
    """Return the folder with the programs of PostgreSQL; None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = shutil.which("initdb") or (found and found[-1])
    return Path(program).parent if program else None


@contextmanager
def postgresql(programs, folder):
    """Run a server of PostgreSQL in a folder; return the folder of its socket."""
    before = _unprivileged(folder)
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TZ": "Europe/Berlin"}
    settings = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    data = folder / "data"
    initialise = [programs / "initdb", "-D", data, "-U", "tester", "--no-sync", "-E", "UTF8"]
    made = subprocess.run([*before, *initialise, "--auth=trust"], **settings)
    assert made.returncode == 0, made.stderr
    (data / "pg_hba.conf").write_text("local all locked,nurse scram-sha-256\nlocal all all trust\n")
    words = [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="]
    words += ["-c", "fsync=off", "-c", "log_statement=all", "-c", "timezone=Europe/Berlin"]
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [*before, *words], cwd=folder, env=environment, stdout=log, stderr=log
    )
    try:
        socket = folder / ".s.PGSQL.5432"
        until = time.monotonic() + 60
        while not (socket.exists() and "ready to accept" in (folder / "log").read_text()):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        yield folder
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def find_mariadb():
    """Return the program of MariaDB's server; None if it is not installed."""
    return next(filter(None, map(shutil.which, ("mariadbd", "/usr/sbin/mariadbd"))), None)


@contextmanager
def mariadb(program, folder):
    """Run a server of MariaDB in a folder; return the path of its socket."""
    before = _unprivileged(folder)
    data, socket = folder / "data", folder / "socket"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    install.append("--auth-root-authentication-method=normal")
    made = subprocess.run([*before, *install], cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    log = (folder / "log").open("w")
    words = [
        program,
        "--no-defaults",
        f"--datadir={data}",
        f"--socket={socket}",
        "--skip-networking",
    ]
    server = subprocess.Popen([*before, *words], cwd=folder, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        while not (socket.exists() and "ready for connections" in (folder / "log").read_text()):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        yield socket
    finally:
        server.terminate()
        server.wait(60)
        log.close()
