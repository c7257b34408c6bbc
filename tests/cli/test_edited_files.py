"""Files that people edit begin with a byte order mark, or are UTF-16, if Windows wrote them."""

from pathlib import Path

import click
import pytest
from cli_helpers import invoke

from fedlib import Schema
from fedlib.cli.join import read_token
from fedlib.cli.preparation import read_clients
from fedlib.protection.policy import Policy
from fedlib.protection.secure import Identity
from fedlib.protection.secure.identities import read_public_keys
from fedlib.sites.site import make_client
from fedlib.tables.alignment import ListPseudonyms
from fedlib.tables.files import Table

SCHEMA = '{"schema": {"fields": [{"name": "age", "type": "number"}]}}'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    invoke("token", "north", "south")


def identity():
    read = Identity.read("tokens/north.key")
    return read.name, read.public_keys


READERS = {
    "north.token": lambda path: read_token(path),
    "clients.json": read_clients,
    "keys.json": read_public_keys,
    "north.key": lambda path: identity(),
    "policy.toml": lambda path: (Policy.read(path).general.min_count, Policy.read(path).budget),
    "schema.json": lambda path: Schema.read(path).digest,
}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", READERS)
def test_a_marked_file_is_read_as_one_without_a_mark(name, encoding):
    path, read = Path("tokens", name), READERS[name]
    Path("tokens/policy.toml").write_text("min_count = 5\nbudget = { epsilon = 0.3 }\n")
    Path("tokens/schema.json").write_text(SCHEMA)
    expected = read(path)
    path.write_bytes(path.read_text().replace("\n", "\r\n").encode(encoding))
    assert read(path) == expected


def test_the_mark_of_a_token_in_the_environment(monkeypatch):
    monkeypatch.setenv("FEDLIB_TOKEN", "\ufeffsecret\n")
    assert read_token(None) == "secret"
    monkeypatch.setenv("FEDLIB_TOKEN", "\ufeff")
    with pytest.raises(click.UsageError, match="the token is missing"):
        read_token(None)


def test_a_shared_key_is_the_same_with_and_without_a_mark():
    digests = []
    for name, mark in (("plain", b""), ("marked", b"\xef\xbb\xbf")):
        Path(name).write_bytes(mark + b"0123456789abcdef\n")
        table = Table([[1.0], [2.0]], ids=["a", "b"])
        client = make_client("aligned/vertical-dbscan", table, {"key": name})
        digests.append(client.handle(ListPseudonyms()).key_digest)
    assert digests[0] == digests[1]
