"""The cryptography of secure sums: signatures, key agreement, masks, sealed boxes and shares.

Everything is computed by `cryptography` (Ed25519, X25519, HKDF, ChaCha20, Poly1305) and
`pycryptodome` (Shamir's sharing). This is the only module that imports them.

Secrets that are shared have 16 bytes, since Shamir's sharing works on 128 bits. A private key for
X25519 is derived from such a seed. X25519 itself has a strength of about 128 bits, so the seed
does not weaken it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

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
