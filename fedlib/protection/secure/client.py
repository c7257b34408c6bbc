"""The client of secure sums, around the client of a protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from fedlib.core.client import (
    BadRequest,
    Client,
    LostState,
    ProtectedFailure,
    WrappedState,
    Wrapper,
    handles,
)
from fedlib.core.messages import Declined, Message, check_work, decode, encode
from fedlib.protection.secure import identities as primitives
from fedlib.protection.secure.fixed_point import check_digits, to_words
from fedlib.protection.secure.identities import (
    Identity,
    box_key,
    honest_survivors,
    key_statement,
    mask_key,
    mask_sign,
    sum_statement,
)
from fedlib.protection.secure.messages import (
    COMMITMENTS,
    AdvertiseKeys,
    Confirmation,
    ConfirmSurvivors,
    EncryptedShares,
    MaskedValues,
    MaskValues,
    RevealedShares,
    RevealShares,
    ShareSecrets,
    SignedKeys,
)

OTHER = (
    "an equal sum was confirmed for other clients, and the difference of both would be the values"
    " of single sites: run with the same clients or with epsilon. If single sites may be disclosed,"
    " each operator can forget the sums with fedlib memory --forget-sums"
)
STEPS: tuple[type[Message], ...] = (
    AdvertiseKeys,
    ShareSecrets,
    MaskValues,
    ConfirmSurvivors,
    RevealShares,
)
SEED, BOX = primitives.SEED, primitives.SEED * 2 + 16


class NotMasked(Exception):
    """A request asks for data without masks, at a site that sends only masked data."""


class RepeatedStep(Exception):
    """A step of a sum is repeated with different content, or requested out of order."""


class MaskingFailed(ProtectedFailure):
    """The values for a sum could not be computed. The reason stays in the log of the site."""


class OtherMembers(Exception):
    """A sum without noise is requested again, over other clients than before."""


class ForgedKeys(Exception):
    """Keys are not signed by their site, or not those of this sum."""


class BelowThreshold(Exception):
    """The server asks a site to reveal a sum of too few clients, or one that too few confirm."""


class SecureState(WrappedState):
    """What a client must remember during and between sums.

    Attributes
    ----------
    number, step : int
        The number of the last sum, and how many of its steps this client has answered.
    last_request, last_reply : bytes
        The digest of the last request, and the reply to it: it is sent again, never computed again.
    failed : bool
        Whether the values for a sum could not be computed. The client then answers no further step
        of the run, because each failure is a bit about its rows that no mask hides.
    encryption_key, mask_seed, self_seed : bytes
        The secrets of this sum.
    keys : bytes
        The clients and their keys: the request `ShareSecrets`, encoded.
    valid : tuple of bool
        Which of these keys are signed by their sites.
    shares : tuple of (str, bytes)
        The shares that this client holds of each client's secrets: of the masking key and of the
        self mask.
    senders, survivors : tuple of str
        The clients that have sent shares, and those whose values the sum contains.
    agreed : bytes
        A digest of the protocol's request and of the digits after the point.
    noisy : bool
        Whether the values of this sum have noise.
    confirmed : tuple of (bytes, bytes)
        For each sum without noise that this client has confirmed: ``agreed``, and a digest of the
        survivors.
    """

    discloses = WrappedState.discloses
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    step: Annotated[int, msgspec.Meta(ge=0, le=len(STEPS))] = 0
    last_request: bytes = b""
    last_reply: bytes = b""
    failed: bool = False
    encryption_key: bytes = b""
    mask_seed: bytes = b""
    self_seed: bytes = b""
    keys: bytes = b""
    valid: tuple[bool, ...] = ()
    shares: tuple[tuple[str, bytes], ...] = ()
    senders: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    agreed: bytes = b""
    noisy: bool = False
    confirmed: tuple[tuple[bytes, bytes], ...] = ()


class SecureClient(Wrapper[SecureState]):
    """A client that sends data only as terms of secure sums.

    It answers the five steps of a sum itself. A request that does not ask for data goes to the
    protocol's client, and so does one that the protocol's client lists in ``open_requests``,
    because its reply describes no rows, such as the names of the features. It refuses any other
    one.

    Parameters
    ----------
    client : Client
        The protocol's client.
    identity : Identity
        The keys of this site and of the others.
    protocol : str, default=""
        The name of the protocol, as at all sites: the keys of a sum are signed for it.

    Notes
    -----
    A step is answered once, and `MaskValues` counts as answered before its values are computed. If
    the same request arrives again, the same bytes are sent again; any other request for this step
    is refused. If the values cannot be computed, the answer is `MaskingFailed`, whatever the reason
    is. So a server receives either the share of a client's self mask or that of its masking key,
    and never two maskings of different values. If the key of the site is in a file, this also holds
    for a folder of the state that was restored or copied (`fedlib.protection.secure.identities`).

    A sum without noise is confirmed for one set of survivors only: two equal sums over other
    survivors differ by the values of the sites that are not in both. Sums for other requests can
    still be over other survivors; the rule ``same_members`` of a site forbids it
    (`fedlib.protection.policy`). Values with noise may be requested again: each is charged.

    A request that does not fit the columns or the earlier requests (`BadRequest`) is refused for
    all rows alike, so it is no failure. An unexpected failure is one constant answer. The site then
    answers no protected request until its operator has deleted the file beside the key that names
    the reason. That a site has failed is one bit about its rows, which the server learns.
    """

    state_class = SecureState

    def __init__(self, client: Client, identity: Identity, protocol: str = ""):
        super().__init__(client)
        self.identity, self.protocol = identity, protocol
        client.n_shares, client.masked = honest_survivors(len(identity.public_keys)), True

    @property
    def open_requests(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """The requests whose replies describe no rows: all steps but one, and the client's."""
        without_data = (step for step in STEPS if step is not MaskValues)
        return (*self.inner.open_requests, *without_data)

    def renew(self, state: Message | None) -> None:
        """Keep the number of the last sum, so that no number is used twice, and any failure."""
        super().renew(state)
        before = self._state
        self._state = SecureState(
            number=before.number,
            step=len(STEPS),
            failed=before.failed,
            confirmed=before.confirmed,
        )

    def enter(self, name: str, n_clients: int | None, run: str = "") -> None:
        """Note the client's name, the count of clients and the identifier of the run.

        Raises
        ------
        ValueError
            When the key is that of another site.
        """
        if name != self.identity.name:
            raise ValueError(
                f"the key is that of {self.identity.name!r}, but this is {name!r}: use its own key"
            )
        super().enter(name, n_clients, run)

    def handle(self, request: Message) -> Message:
        """Return the reply to a step of a sum, or that of the protocol's client.

        Raises
        ------
        NotMasked
            When a request asks for data without masks.
        RepeatedStep
            When a step is repeated with different content, or requested out of order.
        MaskingFailed
            When the values for a sum cannot be computed, or could not be before.
        """
        if type(request) in STEPS:
            if self.identity.memory is not None:
                self.identity.memory.lock.check()
            return self._once(request)
        if request.asks_for_data and type(request) not in self.open_requests:
            raise NotMasked(
                f"{type(request).__name__} asks for data without masks, and this site has a key:"
                " serve with --secure (secure=True), or join without --secure-key"
            )
        return self.inner.handle(request)

    def _noisy(self, request: Message) -> Message:
        """Leave it to the client inside which failures depend on rows: none before it is asked."""
        return self.handle(request)

    def _once(self, request: Any) -> Message:
        """Return the reply to a step; the same bytes if the same request has been answered."""
        state, step = self._state, STEPS.index(type(request))
        if state.failed:
            raise MaskingFailed("this client has failed before in this run")
        digest = primitives.commit(encode(request))
        if digest == state.last_request:
            return decode(state.last_reply)
        begins = step == 0 and request.number > state.number
        if not begins and (request.number, step) != (state.number, state.step):
            raise RepeatedStep(
                f"{type(request).__name__} of sum {request.number}, but step {state.step} of sum"
                f" {state.number} is next"
            )
        reply = super().handle(request)
        if not isinstance(reply, Declined):
            self._keep(step=step + 1, last_request=digest, last_reply=encode(reply))
        return reply

    # The five steps

    @handles(AdvertiseKeys)
    def advertise_keys(self, request: AdvertiseKeys) -> SignedKeys:
        encryption_key = primitives.private_key(primitives.new_seed())
        mask_seed, self_seed = primitives.new_seed(), primitives.new_seed()
        self._state = SecureState(
            number=request.number,
            encryption_key=encryption_key,
            mask_seed=mask_seed,
            self_seed=self_seed,
            confirmed=self._state.confirmed,
        )
        encryption = primitives.public_key(encryption_key)
        masking = primitives.public_key(primitives.private_key(mask_seed))
        statement = self._key_statement(request.number, self.identity.name, encryption, masking)
        return SignedKeys(encryption, masking, primitives.sign(self.identity.private, statement))

    @handles(ShareSecrets)
    def share_secrets(self, request: ShareSecrets) -> EncryptedShares:
        own = request.keys.get(self.identity.name)
        if own is None or own != decode(self._state.last_reply):
            raise ForgedKeys("the keys of this client are not those that it has sent")
        valid = [self._signed(request.number, *item) for item in request.keys.items()]
        self._require("ShareSecrets", sum(valid))
        state, least, n = self._state, self.identity.threshold, len(request.keys)
        pairs = list(
            zip(
                primitives.split(state.mask_seed, least, n),
                primitives.split(state.self_seed, least, n),
                strict=True,
            )
        )
        boxes, commitments = [], []
        for (name, keys), accepted, pair in zip(request.keys.items(), valid, pairs, strict=True):
            key = self._box_key(keys, self.identity.name, name) if accepted else None
            boxes.append(primitives.seal(key, b"".join(pair)) if key else bytes(BOX))
            commitments.append(b"".join(primitives.commit("share", share) for share in pair))
        self._keep(keys=encode(request), valid=tuple(valid))
        return EncryptedShares(
            _bytes_array(boxes, BOX),
            _bytes_array(commitments, COMMITMENTS),
            primitives.commit("self mask", state.self_seed),
            ~np.array(valid, bool),
        )

    @handles(MaskValues)
    def mask_values(self, request: MaskValues) -> MaskedValues | Declined:
        keys, valid = self._keys(), self._state.valid
        accepted = {name for name, is_valid in zip(keys, valid, strict=True) if is_valid}
        if not accepted >= set(request.sealed) or self.identity.name not in request.sealed:
            raise ForgedKeys("shares of clients whose keys are not signed by their sites")
        self._require("MaskValues", len(request.sealed))
        asked = decode(request.request)
        self.inner.check_known(asked)
        check_digits(asked, request.digits, self.inner.sum_digits(asked))
        check_work(asked, self.inner.max_work)
        # From here on, an error can depend on the rows.
        self._keep(failed=True)
        try:
            reply = self.inner.answer(asked)  # with new noise in each sum, see `Budget`
            words = None if isinstance(reply, Declined) else to_words(reply, request.digits)
        except (BadRequest, LostState):  # for every table of these columns, so nothing has failed
            self._keep(failed=False)
            raise
        except Exception as error:
            failed = MaskingFailed(f"{type(asked).__name__}: {error}")
            if self.identity.memory is not None:
                self.identity.memory.lock.close(str(failed))
            raise failed from error
        self._keep(failed=False)
        if words is None:
            return Declined()  # of a passive client
        name, state, memory = self.identity.name, self._state, self.identity.memory
        agreed = primitives.commit(request.request, sorted(request.digits.items()))
        if memory is not None:
            hidden = primitives.commit("values", agreed, words.tobytes())
            memory.use(primitives.commit("mask", state.mask_seed), hidden)
        primitives.add_mask(words, primitives.commit("self mask key", state.self_seed))
        private = primitives.private_key(state.mask_seed)
        for other in request.sealed:
            if other != name:
                key = mask_key(private, keys[other].masking, state.number, name, other)
                assert key is not None  # or it would not have been accepted
                primitives.add_mask(words, key, mask_sign(name, other))
        opened = [
            (sender, self._open(sender, sealed, keys)) for sender, sealed in request.sealed.items()
        ]
        self._keep(
            shares=tuple((sender, pair) for sender, pair in opened if pair is not None),
            senders=tuple(request.sealed),
            agreed=agreed,
            noisy=request.privacy is not None,
        )
        return MaskedValues(words)

    @handles(ConfirmSurvivors)
    def confirm_survivors(self, request: ConfirmSurvivors) -> Confirmation:
        survivors = set(request.survivors)
        if not survivors <= set(self._state.senders) or self.identity.name not in survivors:
            raise ForgedKeys("the survivors are not among the clients that have sent shares")
        self._require("ConfirmSurvivors", len(survivors))
        state, members = self._state, primitives.commit("members", sorted(survivors))
        if self.identity.memory is not None:
            self.identity.memory.confirm(primitives.commit("mask", state.mask_seed), members)
        if not state.noisy:
            confirmed = dict(state.confirmed)
            if confirmed.setdefault(state.agreed, members) != members:
                raise OtherMembers(OTHER)
            if self.memory is not None:
                sums = "sum", state.agreed.hex(), members.hex()
                if self.memory.first(*sums) != members.hex():
                    raise OtherMembers(OTHER)
            self._keep(confirmed=tuple(confirmed.items()))
        self._keep(survivors=request.survivors)
        return Confirmation(primitives.sign(self.identity.private, self._statement()))

    @handles(RevealShares)
    def reveal_shares(self, request: RevealShares) -> RevealedShares:
        state, statement = self._state, self._statement()
        public = self.identity.public_keys
        valid = [
            name
            for name, signature in request.confirmations.items()
            if name in state.survivors and primitives.verify(public[name], signature, statement)
        ]
        self._require("RevealShares", len(valid))
        held, shares = dict(state.shares), []
        for sender in state.senders:
            pair = held.get(sender, bytes(2 * SEED))
            shares.append(pair[SEED:] if sender in state.survivors else pair[:SEED])
        known = np.array([sender in held for sender in state.senders])
        return RevealedShares(_bytes_array(shares, SEED), known)

    # What the steps share

    def _keys(self) -> Mapping[str, SignedKeys]:
        request = decode(self._state.keys, ShareSecrets)
        assert isinstance(request, ShareSecrets)
        return request.keys

    def _key_statement(self, number: int, name: str, encryption: bytes, masking: bytes) -> bytes:
        run = self.run, self.protocol, self.identity.public_keys
        return key_statement(*run, number, name, encryption, masking)

    def _signed(self, number: int, name: str, keys: SignedKeys) -> bool:
        """Return whether keys are signed by their site for this sum, and can be used."""
        public = self.identity.public_keys.get(name)
        statement = self._key_statement(number, name, keys.encryption, keys.masking)
        if public is None or not primitives.verify(public, keys.signature, statement):
            return False
        usable = [
            primitives.agree_on_key(self._state.encryption_key, key, b"")
            for key in (keys.encryption, keys.masking)
        ]
        return None not in usable

    def _box_key(self, keys: SignedKeys, sender: str, receiver: str) -> bytes | None:
        state = self._state
        return box_key(state.encryption_key, keys.encryption, state.number, sender, receiver)

    def _open(self, sender: str, sealed: bytes, keys: Mapping[str, SignedKeys]) -> bytes | None:
        """Return the shares in a box if they are those to which the sender is committed."""
        key = self._box_key(keys[sender], sender, self.identity.name)
        pair = primitives.open_box(key, sealed[:BOX]) if key else None
        if pair is None or len(pair) != 2 * SEED:
            return None
        halves = pair[:SEED], pair[SEED:]
        committed = b"".join(primitives.commit("share", half) for half in halves)
        return pair if committed == sealed[BOX:] else None

    def _statement(self) -> bytes:
        state = self._state
        return sum_statement(state.number, state.keys, state.senders, state.agreed, state.survivors)

    def _require(self, request: str, n_clients: int) -> None:
        """Raise BelowThreshold when fewer clients than the threshold take part."""
        least = self.identity.threshold
        if n_clients < least:
            raise BelowThreshold(
                f"{request} names {n_clients} clients, at least {least} are needed"
            )


def _bytes_array(rows: list[bytes], width: int) -> np.ndarray:
    """Return rows of bytes of the same length as an array."""
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width).copy()
