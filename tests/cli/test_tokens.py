"""``fedlib token``."""

import json
from pathlib import Path

from cli_helpers import SITES, invoke


def test_tokens_are_secret_and_remain(site):
    before = json.loads(Path("tokens/clients.json").read_text())
    output = invoke("token", "north", "--dir", "tokens")
    after = json.loads(Path("tokens/clients.json").read_text())
    assert list(after) == [*SITES, "north"]
    assert {name: after[name] for name in SITES} == before
    secret = Path("tokens/north.token").read_text().strip()
    assert secret not in output + Path("tokens/clients.json").read_text()
    assert Path("tokens/north.token").stat().st_mode & 0o077 == 0
    invoke("token", "north", "--renew")
    assert Path("tokens/north.token").read_text().strip() != secret
