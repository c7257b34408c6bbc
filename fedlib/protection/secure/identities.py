"""The long-term keys of the sites, which sign the keys of every secure sum.

A site has a private Ed25519 key and the public halves of all sites' keys. `fedlib token` writes
both. Anyone who creates a private key can act in the site's name: for protection against a server
that is not trusted, each site creates its own key and passes on only the public half.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from fedlib.core.texts import read_edited
from fedlib.protection.secure.memory import KeyMemory
from fedlib.protection.secure.primitives import KEY, commit, signing_key

MIN_CLIENTS = 2  # the sum of one client is its data

PublicKeys = dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]]


@dataclass(frozen=True)
class Identity:
    """The name and the private key of a site, and the public keys of all sites.

    Parameters
    ----------
    name : str
        The site's name in the run.
    private : bytes
        32 bytes.
    public_keys : mapping of str to bytes
        The public key of each site by name, this one included; equal at all sites.
    memory : KeyMemory, optional
        What the site remembers beside the file of its key; none if the key is not in a file.

    Raises
    ------
    ValueError
        When a key does not have 32 bytes, two sites have the same key, there are fewer than two
        sites, or the public key under this name is not that of the private key.

    Examples
    --------
    >>> keys = {name: new_identity_key() for name in ("north", "south")}
    >>> public = {name: signing_key(key) for name, key in keys.items()}
    >>> Identity("north", keys["north"], public).threshold
    2
    """

    name: str
    private: bytes = field(repr=False)
    public_keys: Mapping[str, bytes] = field(repr=False)
    memory: KeyMemory | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        keys = [("private", self.private), *self.public_keys.items()]
        for name, key in keys:
            if not isinstance(key, bytes) or len(key) != KEY:
                what = "private" if name == "private" else f"public_keys[{name!r}]"
                size = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise ValueError(f"{what} must have {KEY} bytes, got {size}")
        owners: dict[bytes, str] = {}
        for name, key in self.public_keys.items():
            if owners.setdefault(key, name) != name:
                raise ValueError(
                    f"public_keys must differ between sites, but those of {owners[key]!r} and"
                    f" {name!r} are equal: each site makes its own with fedlib token"
                )
        if len(self.public_keys) < MIN_CLIENTS:
            raise ValueError(
                f"public_keys must be of at least {MIN_CLIENTS} sites, got {len(self.public_keys)}"
            )
        if self.public_keys.get(self.name) != signing_key(self.private):
            known = "another key" if self.name in self.public_keys else "none"
            raise ValueError(
                f"public_keys must contain the public half of the private key of {self.name!r}, has"
                f" {known}: take the keys of the same fedlib token, in NAME.key and keys.json"
            )

    @property
    def threshold(self) -> int:
        """The number of sites without which no sum is revealed."""
        return threshold(len(self.public_keys))

    @classmethod
    def read(cls, private: str | Path, public: str | Path | None = None) -> Identity:
        """Return the identity in files that ``fedlib token`` has written.

        Parameters
        ----------
        private : path
            The file NAME.key of the site NAME.
        public : path, optional
            The file with all sites' public keys; by default keys.json in the same folder.

        Raises
        ------
        ValueError
            When a file cannot be read or does not contain keys. The text contains no key.
        """
        path = Path(private)
        where = Path(public) if public else path.parent / "keys.json"
        public_keys = read_public_keys(where)
        try:
            key = bytes.fromhex(read_edited(path).decode("ascii"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} must contain a site's private key, {2 * KEY} hexadecimal digits as fedlib"
                " token writes them"
            ) from error
        if len(key) != KEY:
            raise ValueError(f"{path} must contain a key of {KEY} bytes, got {len(key)}")
        try:
            return cls(path.stem, key, public_keys, KeyMemory(path))
        except ValueError as error:
            raise ValueError(f"{path}, {where}: {error}") from error


def read_public_keys(path: Path) -> dict[str, bytes]:
    """Return the public keys in a file by the sites' names.

    Raises
    ------
    ValueError
        When the file cannot be read, or contains anything else.
    """
    try:
        known = msgspec.json.decode(read_edited(path), type=PublicKeys)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must contain the sites' public keys: {error}") from error
    return {name: bytes.fromhex(text) for name, text in known.items()}


def threshold(n_clients: int) -> int:
    """Return the number of clients without which no sum is revealed: more than two thirds of all.

    Two sets of this size have more than a third of all clients in common. If fewer than a third
    collude with the server, an honest client is among them, and it signs one list of survivors
    only.

    Examples
    --------
    >>> [threshold(n) for n in (2, 3, 4, 10)]
    [2, 3, 3, 7]
    """
    return 2 * n_clients // 3 + 1


def honest_survivors(n_clients: int) -> int:
    """Return how many clients of every revealed sum are honest, if fewer than a third collude.

    Examples
    --------
    >>> [honest_survivors(n) for n in (2, 3, 4, 10)]
    [2, 3, 2, 4]
    """
    return threshold(n_clients) - (n_clients - 1) // 3


def new_identity_key() -> bytes:
    """Return a new private key of a site."""
    return secrets.token_bytes(KEY)


def simulated_identities(names: Sequence[str]) -> dict[str, Identity]:
    """Return an identity per client of a simulation in one process.

    The keys follow from the names and protect nothing. In one process there is nobody from whom
    they could be hidden, and a run that continues from its journal has the same keys again.

    Raises
    ------
    ValueError
        When there are fewer than two clients.
    """
    if len(names) < MIN_CLIENTS:
        raise ValueError(f"secure=True needs at least {MIN_CLIENTS} clients, got {len(names)}")
    private = {name: commit("simulation", name) for name in names}
    public = {name: signing_key(key) for name, key in private.items()}
    return {name: Identity(name, private[name], public) for name in names}
