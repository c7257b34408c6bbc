"""``fedlib unit``: a systemd unit for a server or a site."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

COMMANDS = ("join", "serve")

# Numba writes machine code to memory and runs it, so MemoryDenyWriteExecute=yes is impossible. It
# and OpenMP ask for the processors and priorities, which are system calls of @resources.
UNIT = """\
[Unit]
Description=fedlib {command}
Documentation=https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={user}
ExecStart={start}
# 1: start again, and continue from --state-dir or --journal. 2: the command is wrong.
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2
SuccessExitStatus=130
TimeoutStopSec=60

# Paths in the command are relative to this folder, the only one that can be written.
StateDirectory={user}
StateDirectoryMode=0700
WorkingDirectory=/var/lib/{user}
Environment=FEDLIB_STATE=/var/lib/{user}/memory NUMBA_CACHE_DIR=/var/lib/{user}/kernels
UMask=0077
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RemoveIPC=yes

# No privilege, and no family of sockets but those of the network and of the local resolver.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--user",
    default="fedlib",
    show_default=True,
    help="The user and the folder /var/lib/USER of the service; one per site or server.",
)
@click.argument("command", type=click.Choice(COMMANDS))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def unit(user: str, command: str, arguments: Sequence[str]) -> None:
    """Print a hardened systemd unit that runs `fedlib serve` or `fedlib join`.

    ARGUMENTS are those of the command. Their paths are relative to /var/lib/USER, which has to
    contain the files. A run that fails starts again after 30 seconds.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", user):
        raise click.UsageError(
            "--user must have 1 to 31 small letters, digits, '_' or '-', and begin with a letter or"
            f" '_'; got {user!r}"
        )
    program = Path(sys.executable).with_name("fedlib")
    start = " ".join(map(quoted, (str(program), command, *arguments)))
    click.echo(UNIT.format(command=command, user=user, start=start), nl=False)


def quoted(argument: str) -> str:
    r"""Return an argument as systemd reads it back.

    Examples
    --------
    >>> print(quoted("--cell-size"), quoted("age, years"), quoted("50%"), quoted("$HOME\\"))
    --cell-size "age, years" "50%%" "$$HOME\\"
    """
    if re.fullmatch(r"[\w./:=,@+-]+", argument, re.ASCII):
        return argument
    return json.dumps(argument, ensure_ascii=False).replace("%", "%%").replace("$", "$$")
