"""What clients sign, and the keys that two clients agree on: equal at clients and server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedlib.protection.secure.primitives import agree_on_key, commit, context


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
