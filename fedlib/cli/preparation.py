"""What is prepared before a run: tokens and keys, a systemd unit, an app for Flower."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import click

from fedlib.cli.common import FOLDER, Flag, command, extra, in_one_line, writing

PUBLIC = "keys.json"
NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)


@command
def token(
    names: Annotated[Sequence[str], {"metavar": "NAME...", "nargs": -1, "required": True}],
    folder: Annotated[Path, FOLDER, "The folder to write.", {"flag": "--dir"}] = Path("tokens"),
    renew: Annotated[Flag, "Replace the token of a client that has one."] = False,
) -> None:
    """Create a secret token for each client NAME.

    DIR/NAME.token is for that site only. DIR/clients.json is for the server. It contains digests of
    the tokens, from which no token can be derived. Clients that are already in it remain.

    For secure sums, DIR/NAME.key is the private key of that site only, and DIR/keys.json contains
    the public keys of all sites, for all sites. Anyone who has a private key can act as the site.
    If the server is not trusted, each site creates its own key and passes on the public half.
    """
    path = folder / "clients.json"
    clients = read_clients(path) if path.exists() else {}
    existing = [name for name in names if name in clients]
    if existing and not renew:
        raise click.UsageError(f"a token exists for {', '.join(existing)}; replace it with --renew")
    make_tokens(names, folder, clients)
    for name in names:
        click.echo(f"{folder / name}.token, {folder / name}.key: for {name} only")
    click.echo(f"{path}: for the server, {len(clients)} clients")
    click.echo(f"{folder / PUBLIC}: for all sites")


def make_tokens(names: Sequence[str], folder: Path, clients: dict[str, str]) -> None:
    """Write a token and a key for each name, and the digests and public keys of all.

    The digests are added to ``clients``.
    """
    from fedlib.core.ledger import SERVER
    from fedlib.protection.secure.identities import new_identity_key, signing_key
    from fedlib.tables.files import write_file

    with extra("http"):
        from fedlib.transports.http import digest, new_token
    for name in names:
        if not NAME.fullmatch(name) or name == SERVER:
            raise click.UsageError(
                f"a client's name must have 1 to 64 letters, digits, '_', '-' or '.', must not"
                f" begin with '-' or '.' and must not be {SERVER!r}; got {name!r}"
            )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        public = _public_keys(folder / PUBLIC)
        for name in names:
            secret, private = new_token(), new_identity_key()
            write_file(folder / f"{name}.token", f"{secret}\n".encode(), mode=0o600)
            write_file(folder / f"{name}.key", f"{private.hex()}\n".encode(), mode=0o600)
            clients[name], public[name] = digest(secret), signing_key(private)
        encoded = {name: key.hex() for name, key in public.items()}
        write_file(folder / PUBLIC, f"{json.dumps(encoded, indent=1)}\n".encode())
        write_file(folder / "clients.json", f"{json.dumps(clients, indent=1)}\n".encode())


def _public_keys(path: Path) -> dict[str, bytes]:
    """Return the public keys of the sites that have one."""
    from fedlib.protection.secure.identities import read_public_keys

    with in_one_line(ValueError, error_class=click.UsageError):
        return read_public_keys(path) if path.exists() else {}


def read_clients(path: Path) -> dict[str, str]:
    """Return the digests of all clients' tokens by name."""
    import msgspec

    from fedlib.core.wording import read_edited

    errors = OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError
    expected = f"{path} must be a file clients.json written by fedlib token: "
    with in_one_line(*errors, before=expected, error_class=click.UsageError):
        return msgspec.json.decode(read_edited(path), type=dict[str, str])


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


@partial(
    command, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def unit(
    command: Annotated[str, click.Choice(COMMANDS)],
    arguments: Annotated[Sequence[str], click.UNPROCESSED, {"nargs": -1}],
    user: Annotated[
        str, "The user and the folder /var/lib/USER of the service; one per site or server."
    ] = "fedlib",
) -> None:
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


@click.group()
def flower() -> None:
    """Run the protocols on Flower."""


@partial(command, group=flower)
def new(folder: Annotated[Path, FOLDER]) -> None:
    """Write an app that `flwr run` accepts into a new FOLDER."""
    from fedlib.transports.flower_app import new as write_app

    with writing(folder), in_one_line(FileExistsError, error_class=click.UsageError):
        write_app(folder)
    click.echo(
        f"{folder}: start flower-superlink and flower-supernode before flwr run; see README.md"
    )
