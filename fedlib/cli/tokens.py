"""``fedlib token``: the clients' secret tokens and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from fedlib.cli.common import FOLDER, extra, writing
from fedlib.core.ledger import SERVER
from fedlib.core.texts import read_edited

PUBLIC = "keys.json"
NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--dir", "folder", type=FOLDER, default="tokens", show_default=True, help="The folder to write."
)
@click.option("--renew", is_flag=True, help="Replace the token of a client that has one.")
def token(names: Sequence[str], folder: Path, renew: bool) -> None:
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

    try:
        return read_public_keys(path) if path.exists() else {}
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def read_clients(path: Path) -> dict[str, str]:
    """Return the digests of all clients' tokens by name."""
    try:
        return msgspec.json.decode(read_edited(path), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(
            f"{path} must be a file clients.json written by fedlib token: {error}"
        ) from error
