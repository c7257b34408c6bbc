"""The messages of a secure sum, in the order in which they are sent."""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
import numpy as np

from fedlib.core.messages import Array, Message, MessageError, Privacy, decode, privacy_of
from fedlib.protection.secure.fixed_point import n_words
from fedlib.protection.secure.identities import KEY, SEED

BOX = 2 * SEED + 16  # bytes of a sealed pair of shares
COMMITMENTS = 2 * 32  # bytes of the commitments to them

Number = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Name = Annotated[str, msgspec.Meta(max_length=1000)]
Key = Annotated[bytes, msgspec.Meta(min_length=KEY, max_length=KEY)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Sealed = Annotated[bytes, msgspec.Meta(min_length=BOX + COMMITMENTS, max_length=BOX + COMMITMENTS)]
Exponent = Annotated[int, msgspec.Meta(ge=-2000, le=2000)]


class SignedKeys(Message):
    """The public keys of a client for one sum, signed with the key of its site."""

    discloses = "nothing: two random public keys"
    encryption: Key
    masking: Key
    signature: Signature


class AdvertiseKeys(Message):
    """Create the keys of the sum with this number, and send the public halves."""

    discloses = "the number of the sum"
    effortless = ("number",)
    reply = SignedKeys
    needs = (
        "the run has secure sums, for which the site needs its keys: join with --secure-key, or"
        " wrap the client in a SecureClient"
    )
    number: Number


class EncryptedShares(Message):
    """For each client, in the order of the request: the sealed shares of this client's secrets.

    ``boxes`` contain a share of the masking key and one of the self mask, ``commitments`` their
    digests. ``refused`` marks the clients whose keys are not signed by their sites.
    """

    discloses = "nothing: shares of random secrets, which only the other clients can open"
    boxes: Annotated[np.ndarray, Array("uint8", ("clients", "box"))]
    commitments: Annotated[np.ndarray, Array("uint8", ("clients", "commitments"))]
    seed_commitment: Digest
    refused: Annotated[np.ndarray, Array("bool", ("clients",))]


class ShareSecrets(Message):
    """Share your secrets with these clients; these are their keys."""

    discloses = "the public keys of the clients"
    effortless = ("number",)
    reply = EncryptedShares
    number: Number
    keys: dict[Name, SignedKeys]

    def reply_lengths(self) -> dict[str, int]:
        return {"clients": len(self.keys), "box": BOX, "commitments": COMMITMENTS}

    def accept(self, reply: Message) -> Message:
        received, n = cast(EncryptedShares, reply), len(self.keys)
        shapes = received.boxes.shape, received.commitments.shape
        if shapes != ((n, BOX), (n, COMMITMENTS)):
            raise MessageError(f"EncryptedShares must be {n} boxes of {BOX} bytes, got {shapes}")
        return reply


class MaskedValues(Message):
    """The values of a client, each plus a mask, modulo 2**64."""

    discloses = "sums only: the values of one client are uniformly random to the server"
    words: Annotated[np.ndarray, Array("uint64", ("words",))]


class MaskValues(Message):
    """Answer a request of the protocol, masked; these are the shares for you.

    ``request`` is the protocol's request, encoded, and ``digits`` the binary digits after the point
    of its reply's fields of floats; see `fedlib.protection.secure.fixed_point`.
    """

    discloses = "the request of the protocol, and shares that only this client can open"
    effortless = ("number",)
    reply = MaskedValues
    number: Number
    sealed: dict[Name, Sealed]
    request: bytes
    digits: dict[Name, tuple[Exponent, ...]]

    @property
    def privacy(self) -> Privacy | None:
        """The privacy part of the protocol's request; None if it has none."""
        return privacy_of(decode(self.request))

    def reply_lengths(self) -> dict[str, int]:
        return {"words": n_words(decode(self.request))}

    def accept(self, reply: Message) -> Message:
        received, n = len(cast(MaskedValues, reply).words), n_words(decode(self.request))
        if received != n:
            raise MessageError(f"MaskedValues.words must have {n} entries, got {received}")
        return reply


class Confirmation(Message):
    """A client's signature of everything that all clients must have seen alike."""

    discloses = "nothing"
    signature: Signature


class ConfirmSurvivors(Message):
    """Sign that the sum is over these clients."""

    discloses = "the clients whose values the sum contains"
    effortless = ("number",)
    reply = Confirmation
    number: Number
    survivors: tuple[Name, ...]


class RevealedShares(Message):
    """Shares, in the order in which the clients' boxes were received.

    For a client that answered, the share belongs to its self mask; for a lost client, to its
    masking key.
    ``known`` is False where a box could not be opened.
    """

    discloses = "sums only: shares with which the server removes the masks from the sum"
    shares: Annotated[np.ndarray, Array("uint8", ("clients", "share"))]
    known: Annotated[np.ndarray, Array("bool", ("clients",))]


class RevealShares(Message):
    """Reveal your shares for the survivors; these are the signatures of their list."""

    discloses = "the signatures of the list of survivors"
    effortless = ("number",)
    reply = RevealedShares
    number: Number
    confirmations: dict[Name, Signature]
