"""The long-term keys of the sites, which sign the keys of every secure sum.

A site has a private Ed25519 key and the public halves of all sites' keys. `fedlib token` writes
both. Anyone who creates a private key can act in the site's name: for protection against a server
that is not trusted, each site creates its own key and passes on only the public half.

The cryptography of secure sums: signatures, key agreement, masks, sealed boxes and shares.

Everything is computed by `cryptography` (Ed25519, X25519, HKDF, ChaCha20, Poly1305) and
`pycryptodome` (Shamir's sharing). This is the only module that imports them.

Secrets that are shared have 16 bytes, since Shamir's sharing works on 128 bits. A private key for
X25519 is derived from such a seed. X25519 itself has a strength of about 128 bits, so the seed
does not weaken it.

What a site remembers beside its private key, whatever becomes of a run, a process or a folder.

Two files lie next to NAME.key. NAME.masked lists which values each mask has hidden, and for which
survivors its sum was confirmed. A restored or copied folder of a state could otherwise hide two
different values by one mask, or reveal both kinds of shares of a site. NAME.failed exists after a
protected request has failed unexpectedly, until the operator of the site clears it. A third one,
NAME.counts, belongs to the memory of the tables (`fedlib.core.site_memory`).

Nothing helps if the folder of the key is restored or copied, too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedlib.core.array_types import Words
from fedlib.core.site_memory import Lock, TableMemory
from fedlib.core.wording import read_edited

KEY, SEED = 32, 16  # bytes
BLOCK = 2**17  # numbers of a mask that are computed at once, in a buffer that stays in a cache
ZEROS = memoryview(bytes(8 * BLOCK))


def context(*items: object) -> bytes:
    """Return bytes that differ whenever one of the items differs.

    Examples
    --------
    >>> context("mask", 1, "A", "B") == context("mask", 1, "AB", "")
    False
    """
    return msgspec.msgpack.encode(items)


def commit(*items: object) -> bytes:
    """Return the SHA-256 digest of items, in 32 bytes.

    It hides a secret among them that has 128 random bits.
    """
    return hashlib.sha256(context(*items)).digest()


def new_seed() -> bytes:
    """Return 16 random bytes of the operating system."""
    return secrets.token_bytes(SEED)


# Signatures -------------------------------------------------------------------------------------


def signing_key(private: bytes) -> bytes:
    """Return the public half of a private Ed25519 key; both have 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, data: bytes) -> bytes:
    """Return the Ed25519 signature of data, in 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(data)


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether an Ed25519 signature is valid.

    Examples
    --------
    >>> private = bytes(32)
    >>> verify(signing_key(private), sign(private, b"yes"), b"yes")
    True
    >>> verify(signing_key(private), sign(private, b"yes"), b"no")
    False
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# Key agreement ----------------------------------------------------------------------------------


def private_key(seed: bytes) -> bytes:
    """Return the private X25519 key of a seed."""
    return commit("private key", seed)


def public_key(private: bytes) -> bytes:
    """Return the public half of a private X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree_on_key(private: bytes, public: bytes, purpose: bytes) -> bytes | None:
    """Return the key that the owners of two X25519 keys share; None if the public key is invalid.

    Parameters
    ----------
    private, public : bytes
        One party's private key and the other one's public key.
    purpose : bytes
        What the key is for; keys for different purposes are independent.

    Examples
    --------
    >>> a, b = private_key(bytes(16)), private_key(bytes(range(16)))
    >>> agree_on_key(a, public_key(b), b"test") == agree_on_key(b, public_key(a), b"test")
    True
    >>> agree_on_key(a, bytes(32), b"test") is None  # a point of small order
    True
    """
    try:
        own = X25519PrivateKey.from_private_bytes(private)
        secret = own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return None
    return HKDF(SHA256(), KEY, salt=None, info=purpose).derive(secret)


# Sealed boxes -----------------------------------------------------------------------------------


def seal(key: bytes, data: bytes) -> bytes:
    """Return encrypted and authenticated data, 16 bytes longer. Use a key only once."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), data, None)


def open_box(key: bytes, box: bytes) -> bytes | None:
    """Return the data in a sealed box; None if it was not sealed with this key.

    Examples
    --------
    >>> open_box(bytes(32), seal(bytes(32), b"share"))
    b'share'
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, None)
    except InvalidTag:
        return None


# Masks ------------------------------------------------------------------------------------------


def add_mask(words: Words, key: bytes, sign: int = 1) -> None:
    """Add the mask of a key to numbers in place, modulo 2**64, or subtract it.

    Parameters
    ----------
    words : array (n,) of uint64
        In C order.
    key : bytes
        32 bytes, used for one mask only.
    sign : {1, -1}

    Notes
    -----
    The mask is the key stream of ChaCha20, 8 bytes per number. A million numbers take some 3 ms.

    Examples
    --------
    >>> words = np.arange(3, dtype=np.uint64)
    >>> add_mask(words, bytes(32))
    >>> words.tolist() == [0, 1, 2]
    False
    >>> add_mask(words, bytes(32), sign=-1)
    >>> words.tolist()
    [0, 1, 2]
    """
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    buffer = bytearray(8 * min(BLOCK, len(words)))
    combine_words = np.add if sign > 0 else np.subtract
    for first in range(0, len(words), BLOCK):
        part = words[first : first + BLOCK]
        stream.update_into(ZEROS[: 8 * len(part)], buffer)
        mask = np.frombuffer(buffer, "<u8", len(part))
        combine_words(part, mask, out=part)


# Shares -----------------------------------------------------------------------------------------


def split(secret: bytes, threshold: int, n_shares: int) -> list[bytes]:
    """Return shares of a secret of 16 bytes, any ``threshold`` of which determine it.

    Examples
    --------
    >>> shares = split(bytes(range(16)), 2, 3)
    >>> combine({0: shares[0], 2: shares[2]}) == bytes(range(16))
    True
    """
    return [share for _, share in Shamir.split(threshold, n_shares, secret, False)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of shares, by their positions in the list that `split` has returned."""
    return bytes(Shamir.combine([(i + 1, share) for i, share in shares.items()], False))


class ReusedMask(Exception):
    """A mask is used for other values or other survivors than before, as from a restored folder."""


class KeyMemory:
    """The files beside a private key.

    Parameters
    ----------
    key : Path
        The file NAME.key.

    Attributes
    ----------
    lock : Lock
        Exists as a file after a failure.
    """

    def __init__(self, key: Path):
        self.lock = Lock(key.with_suffix(".failed"))
        self._masks = TableMemory(key.with_suffix(".masked"))

    def use(self, mask: bytes, values: bytes) -> None:
        """Note that a mask hides values; both are given by their digests.

        Raises
        ------
        ReusedMask
            When it has hidden other values before.
        ValueError
            When the file cannot be used.
        """
        self._once("mask", mask, values)

    def confirm(self, mask: bytes, survivors: bytes) -> None:
        """Note for which survivors the sum with a mask is confirmed; errors as for `use`."""
        self._once("survivors", mask, survivors)

    def _once(self, kind: str, mask: bytes, value: bytes) -> None:
        if self._masks.first(kind, mask.hex(), value.hex()) != value.hex():
            raise ReusedMask(
                f"the state of this site is older than {self._masks.path}: it was restored or"
                " copied. Start this run again at all sites, with a new state_dir"
            )


def key_statement(
    run: str,
    protocol: str,
    public_keys: Mapping[str, bytes],
    number: int,
    name: str,
    encryption: bytes,
    masking: bytes,
) -> bytes:
    """Return what a site signs about its keys, so that they are valid for one sum of one run.

    Parameters
    ----------
    run, protocol : str
        The identifier of the run, and the name of its protocol.
    public_keys : mapping of str to bytes
        The members of the run and the keys by which they sign.
    number : int
        The number of the sum.
    name : str
        The site.
    encryption, masking : bytes
        The public halves of its keys.
    """
    members = commit("members of a run", sorted(public_keys.items()))
    of = context("keys of a secure sum", run, protocol, members)
    return context(of, number, name, encryption, masking)


def sum_statement(
    number: int, keys: bytes, senders: Sequence[str], agreed: bytes, survivors: Sequence[str]
) -> bytes:
    """Return what a site signs before it reveals shares: everything that all must see alike.

    Parameters
    ----------
    number : int
        The number of the sum.
    keys : bytes
        All clients' keys.
    senders, survivors : sequence of str
        The clients whose masks, and those whose values the sum contains.
    agreed : bytes
        A digest of the protocol's request.
    """
    what = commit(number, keys, list(senders), agreed, list(survivors))
    return context("survivors of a secure sum", what)


def box_key(private: bytes, public: bytes, number: int, sender: str, receiver: str) -> bytes | None:
    """Return the key of the box from one client to another; None if the public key is invalid."""
    return agree_on_key(private, public, context("box", number, sender, receiver))


def mask_key(private: bytes, public: bytes, number: int, first: str, second: str) -> bytes | None:
    """Return the key of the mask of two clients; it does not depend on their order."""
    return agree_on_key(private, public, context("mask", number, *sorted([first, second])))


def mask_sign(name: str, other: str) -> int:
    """Return the sign with which a client adds the mask that it shares with another one."""
    return 1 if name < other else -1


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
        """The count of sites without which no sum is revealed."""
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
    """Return the count of clients without which no sum is revealed: more than two thirds of all.

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
