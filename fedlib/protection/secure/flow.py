"""The server's side of a secure sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedlib.core.aggregation import Total, exclude
from fedlib.core.array_types import Words
from fedlib.core.messages import Message, MessageError, encode, privacy_of
from fedlib.core.protocol import Flow, Replies, TooFewClients
from fedlib.protection.secure import identities as primitives
from fedlib.protection.secure.fixed_point import Digits, from_words, n_words
from fedlib.protection.secure.identities import MIN_CLIENTS, mask_key, mask_sign, threshold
from fedlib.protection.secure.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    EncryptedShares,
    MaskValues,
    RevealedShares,
    RevealShares,
    ShareSecrets,
    SignedKeys,
)

MASKING, SELF = 0, 1  # the secrets of a client, in the order of its commitments


class TooFewSurvivors(TooFewClients):
    """Fewer clients than the threshold remain in a secure sum, so it stays secret."""


class SumStaysClosed(ValueError):
    """A client's secrets are missing, and sites confirm an equal sum for no other clients."""


class ImpossibleSum(ValueError):
    """A secure sum is not the sum of any valid replies. It cannot be known which one is wrong."""


def secure_sum(
    request: Message, numbers: Iterator[int], digits: Digits | None = None
) -> Flow[Total]:
    """Return the sum of the clients' replies to a request; no single reply reaches the server.

    A flow calls it as ``total, clients = yield from secure_sum(request, numbers)``. It takes five
    steps. A client that is lost in any of them, or sends shares that cannot be right, leaves the
    run like any other.

    Parameters
    ----------
    request : Message
        A request whose reply has only numbers and arrays of numbers. Its ``reply_lengths``
        determines the lengths of all axes.
    numbers : iterator of int
        The identifiers of the sums of this run, ``itertools.count(1)``. All sums share one
        iterator, because a client answers each identifier once.
    digits : mapping of str to tuple of int, optional
        For each field of floats, the binary digits after the point, as the request states them for
        the count of clients (`Message.sum_digits`). A site refuses other ones.

    Raises
    ------
    TooFewSurvivors
        When fewer clients remain than the threshold,
        `fedlib.protection.secure.identities.threshold` of all clients of the run.
    ImpossibleSum
        When the sum breaks the rules of the reply's class.
    SumStaysClosed
        When a client's secrets cannot be found, and the values have no noise.

    Notes
    -----
    With n clients and m numbers, a client computes n masks of m numbers, and the server one mask
    per survivor and one per pair of a survivor and a lost client. A client sends 8 bytes per number
    and 128 bytes per other client.

    Source: K. Bonawitz et al., Practical secure aggregation for privacy-preserving machine
    learning, CCS 2017, in the version for active adversaries.

    Examples
    --------
    >>> from itertools import count
    >>> from fedlib.clustering.kmeans import FederatedKMeansClient
    >>> from fedlib.protection.secure.points import SumPoints
    >>> from fedlib.core.protocol import run
    >>> from fedlib.protection.secure import SecureClient, simulated_identities
    >>> from fedlib.core.in_process import InProcess
    >>> parts = {"A": [[1.0]], "B": [[2.0]], "C": [[0.5]]}
    >>> identities = simulated_identities(list(parts))
    >>> clients = {
    ...     name: SecureClient(FederatedKMeansClient(X), identities[name])
    ...     for name, X in parts.items()
    ... }
    >>> request = SumPoints(np.zeros(1), np.array([[0.0], [2.0]]), n_points=3)
    >>> total, _ = run(secure_sum(request, count(1), request.sum_digits(3)), InProcess(clients))
    >>> total.sums, total.squares
    (array([3.5]), array([5.25]))
    """
    digits = digits or {}
    while True:
        attempt = yield from _mask(next(numbers), request, digits)
        words = yield from _unmask(attempt, repeats=privacy_of(request) is not None)
        if words is not None:
            break
    try:
        return Total(from_words(request, words, digits), attempt.survivors)
    except MessageError as error:
        raise ImpossibleSum(
            f"the sum of {type(request).__name__} over {len(attempt.survivors)} clients is"
            f" impossible, so at least one client has sent wrong values: {error}"
        ) from error


@dataclass
class _Attempt:
    """One attempt to compute a sum.

    Attributes
    ----------
    number, threshold : int
    keys : dict of str to SignedKeys
        The clients that have shared their secrets, and their keys, in the order of the shares.
    shared : dict of str to EncryptedShares
        What each of them has sent.
    order : list of str
        All clients with keys, which gives the positions of the shares.
    survivors : tuple of str
        The clients whose values the sum contains.
    words : array (n_words,) of uint64
        The sum of the masked values.
    """

    number: int
    threshold: int
    keys: Mapping[str, SignedKeys]
    shared: Mapping[str, EncryptedShares]
    order: Sequence[str]
    survivors: tuple[str, ...] = ()
    words: Words = field(default_factory=lambda: np.empty(0, np.uint64))

    def require(self, n_clients: int) -> None:
        """Raise TooFewSurvivors when fewer clients than the threshold remain."""
        _require(n_clients, self.threshold)

    def commitment(self, owner: str, holder: str, secret: int) -> bytes:
        """Return the commitment of a client to the share of a secret that another one holds."""
        row = self.shared[owner].commitments[self.order.index(holder)]
        return row[32 * secret : 32 * (secret + 1)].tobytes()


def _require(n_clients: int, least: int) -> None:
    if n_clients < least:
        raise TooFewSurvivors(
            f"{n_clients} clients remain in a secure sum, at least {least} are needed to its end:"
            " start the run again when they are back"
        )


def _mask(number: int, request: Message, digits: Digits) -> Flow[_Attempt]:
    """Exchange keys and shares, and add up the masked values."""
    replies = yield AdvertiseKeys(number)
    n_clients = replies.n_all
    if n_clients < MIN_CLIENTS:
        raise TooFewSurvivors(f"a secure sum needs at least {MIN_CLIENTS} clients, got {n_clients}")
    least = threshold(n_clients)
    _require(len(replies), least)
    keys: dict[str, SignedKeys] = dict(replies)
    replies = yield dict.fromkeys(keys, ShareSecrets(number, keys))
    replies = yield from exclude(replies, _forged(list(keys), replies))
    _require(len(replies), least)
    attempt = _Attempt(
        number, least, {name: keys[name] for name in replies}, dict(replies), list(keys)
    )
    encoded, places = encode(request), dict(digits)
    replies = yield {
        receiver: MaskValues(number, _sealed(attempt, receiver), encoded, places)
        for receiver in attempt.shared
    }
    attempt.survivors = tuple(replies)
    attempt.require(len(replies))
    attempt.words = np.zeros(n_words(request), np.uint64)
    for reply in replies.values():
        attempt.words += reply.words
    return attempt


def _forged(order: Sequence[str], replies: Replies) -> dict[str, str]:
    """Return the clients whose keys most others refuse, with the reason."""
    votes = np.sum([reply.refused for reply in replies.values()], axis=0)
    return {
        name: "SignedKeys are not signed by the site"
        for name, n_refused in zip(order, votes, strict=True)
        if 2 * n_refused > len(replies) and name in replies
    }


def _sealed(attempt: _Attempt, receiver: str) -> dict[str, bytes]:
    """Return the boxes for a client and the commitments to their contents, by sender."""
    place = attempt.order.index(receiver)
    return {
        sender: sent.boxes[place].tobytes() + sent.commitments[place].tobytes()
        for sender, sent in attempt.shared.items()
    }


def _unmask(attempt: _Attempt, repeats: bool) -> Flow[Words | None]:
    """Return the sum without masks; None if a client's secrets cannot be found, and it repeats."""
    survivors = attempt.survivors
    replies = yield dict.fromkeys(survivors, ConfirmSurvivors(attempt.number, survivors))
    attempt.require(len(replies))
    confirmations = {name: reply.signature for name, reply in replies.items()}
    replies = yield dict.fromkeys(replies, RevealShares(attempt.number, confirmations))
    replies = yield from exclude(replies, _false_shares(attempt, replies))
    attempt.require(len(replies))
    secrets = {owner: _secret(attempt, owner, replies) for owner in attempt.shared}
    unknown = {
        name: "EncryptedShares do not contain the client's secrets"
        for name, secret in secrets.items()
        if secret is None
    }
    if unknown:
        yield from exclude(replies, {name: why for name, why in unknown.items() if name in replies})
        if not repeats:
            which = ", ".join(map(repr, unknown))
            raise SumStaysClosed(
                f"a sum cannot be opened, because {which} shared other secrets than its own. The"
                " sites have confirmed it, and confirm no equal sum for other clients, because both"
                " would differ by the values of single sites: start the run again without this"
                " client"
            )
        return None
    _remove_masks(attempt, {name: seed for name, seed in secrets.items() if seed is not None})
    return attempt.words


def _false_shares(attempt: _Attempt, replies: Replies) -> dict[str, str]:
    """Return the clients that reveal other shares than those they hold, with the reason."""
    n_senders = len(attempt.shared)
    reasons = {}
    for holder, reply in replies.items():
        if reply.shares.shape != (n_senders, primitives.SEED):
            reasons[holder] = (
                f"RevealedShares.shares must have {n_senders} rows of {primitives.SEED}"
            )
            continue
        for i, owner in enumerate(attempt.shared):
            secret = SELF if owner in attempt.survivors else MASKING
            committed = attempt.commitment(owner, holder, secret)
            if (
                reply.known[i]
                and primitives.commit("share", reply.shares[i].tobytes()) != committed
            ):
                reasons[holder] = f"RevealedShares has another share of {owner!r} than committed"
    return reasons


def _secret(attempt: _Attempt, owner: str, replies: Mapping[str, RevealedShares]) -> bytes | None:
    """Return a client's self mask if it has survived, else its masking key; None if unknown."""
    row = list(attempt.shared).index(owner)
    shares = {
        attempt.order.index(holder): reply.shares[row].tobytes()
        for holder, reply in replies.items()
        if reply.known[row]
    }
    if len(shares) < attempt.threshold:
        return None
    seed = primitives.combine(dict(list(shares.items())[: attempt.threshold]))
    if owner in attempt.survivors:
        known = primitives.commit("self mask", seed) == attempt.shared[owner].seed_commitment
    else:
        public = primitives.public_key(primitives.private_key(seed))
        known = public == attempt.keys[owner].masking
    return seed if known else None


def _remove_masks(attempt: _Attempt, seeds: Mapping[str, bytes]) -> None:
    """Remove the self masks of the survivors, and their masks with the lost clients."""
    for owner, seed in seeds.items():
        if owner in attempt.survivors:
            primitives.add_mask(attempt.words, primitives.commit("self mask key", seed), -1)
            continue
        private = primitives.private_key(seed)
        for name in attempt.survivors:
            public = attempt.keys[name].masking
            key = mask_key(private, public, attempt.number, name, owner)
            if key is not None:
                primitives.add_mask(attempt.words, key, -mask_sign(name, owner))
