"""Secure sums over a toy protocol: the sum, lost and lying clients, and a server that cheats."""

from itertools import combinations, count, product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import chi2

from fedlib.clustering.kmeans.messages import MeasureInertia
from fedlib.core.client import handles
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Failure, Message, decode, encode
from fedlib.core.protocol import TooFewClients, run, serve
from fedlib.protection.secure import (
    MIN_DIGITS,
    BelowThreshold,
    ForgedKeys,
    Identity,
    NotMasked,
    RepeatedStep,
    SecureClient,
    TooFewSurvivors,
    digits_for,
    new_identity_key,
    secure_sum,
    threshold,
)
from fedlib.protection.secure import (
    identities as primitives,
)
from fedlib.protection.secure.fixed_point import to_words
from fedlib.protection.secure.flow import SumStaysClosed
from fedlib.protection.secure.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskValues,
    RevealShares,
    ShareSecrets,
    SignedKeys,
)
from fedlib.protection.secure.points import DescribeFeatures

from .toy import (
    DIGITS,
    IDENTITIES,
    PARTS,
    REQUEST,
    AddToy,
    ToyClient,
    ToyTerms,
    add,
    at,
    changed,
    expected,
)
from .toy import toy_client as make_client

STEPS = [AdvertiseKeys, ShareSecrets, MaskValues, ConfirmSurvivors, RevealShares]
NAMES = list(PARTS)


def test_the_sum_of_a_toy():
    """1 + 10 + 100 - 1000 is -889, and so on; the shares are tenths of the rows' sums."""
    result, transport = add(min_clients=4)
    assert result.total.counts.tolist() == [-889, 2222, -2667]
    assert result.total.share == pytest.approx(0.6 + 6 + 60 - 200, abs=4 * 2**-41)
    assert result.clients == ("A", "B", "C", "D")
    assert transport.ledger.conversation() == [
        "AdvertiseKeys",
        "SignedKeys",
        "ShareSecrets",
        "EncryptedShares",
        "MaskValues",
        "MaskedValues",
        "ConfirmSurvivors",
        "Confirmation",
        "RevealShares",
        "RevealedShares",
    ]
    assert any("sums only" in entry.discloses for entry in transport.ledger)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", NAMES)
def test_each_client_can_be_lost_at_each_step(name, step):
    """A client whose masked values have arrived is in the sum, even if it is lost afterwards."""
    result, transport = add({name: at(step, None)})
    others = [other for other in NAMES if other != name]
    members = NAMES if step in (ConfirmSurvivors, RevealShares) else others
    assert result.total.counts.tolist() == expected(members)
    assert result.clients == tuple(members)
    assert transport.ledger.lost == {name: f"Lost at {step.__name__}, step {STEPS.index(step) + 1}"}


def test_clients_are_lost_at_different_steps():
    """Of seven clients, five are needed, so any two can be lost."""
    parts = {str(i): np.array([10**i, -i, 1]) for i in range(7)}
    pairs = list(combinations(range(7), 2))
    for (first, second), (early, late) in zip(pairs, product(STEPS, STEPS), strict=False):
        tamper = {str(first): at(early, None), str(second): at(late, None)}
        result, _ = add(tamper, parts=parts)
        gone = {str(first)} if early in STEPS[:3] else set()
        gone |= {str(second)} if late in STEPS[:3] else set()
        members = [name for name in parts if name not in gone]
        assert result.total.counts.tolist() == expected(members, parts)


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_the_sum_stays_secret(step):
    """Of four clients, three are needed."""
    with pytest.raises(TooFewSurvivors, match="2 clients remain in a secure sum, at least 3"):
        add({"A": at(step, None), "C": at(step, None)})


def test_the_run_can_need_more_clients_than_the_sum():
    with pytest.raises(TooFewClients, match="3 of 4 clients remain, 4 are needed"):
        add({"A": at(MaskValues, None)}, min_clients=4)


def test_thresholds_leave_no_room_for_two_lists():
    """Two sets of the size of the threshold share more than a third of the clients."""
    for n in range(2, 100):
        assert 2 * threshold(n) - n > n / 3
        assert threshold(n) <= n


def test_clients_can_be_rebuilt_before_each_message():
    result, transport = add(rebuild=True, n_sums=2)
    assert result.total.counts.tolist() == expected(NAMES)
    assert transport.ledger.lost == {}


def test_keys_are_new_for_every_sum():
    _, transport = add(n_sums=2)
    sent = [e.replies["A"] for e in transport.exchanges if isinstance(e.replies["A"], SignedKeys)]
    assert len(sent) == 2
    assert {sent[0].masking, sent[0].encryption}.isdisjoint({sent[1].masking, sent[1].encryption})


def test_a_passive_client_is_in_no_sum():
    def passive(name, identities, parts):
        client = make_client(name, identities, parts)
        client.passive = True
        return client

    result, transport = add(B=passive)
    assert result.clients == ("A", "C", "D")
    assert transport.ledger.lost == {}


# A liar leaves, and only it ---------------------------------------------------------------------


def flip(array):
    array = np.array(array)
    array.reshape(-1)[0] ^= 1
    return array


def wrong_bytes(data):
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("liar", NAMES)
@pytest.mark.parametrize(
    ("step", "change"),
    [
        (ShareSecrets, dict.fromkeys(["boxes", "commitments", "refused"], lambda rows: rows[:-1])),
        (MaskValues, {"words": lambda words: words[:-1]}),
        (RevealShares, {"shares": flip}),
        (RevealShares, dict.fromkeys(["shares", "known"], lambda rows: rows[:-1])),
    ],
)
def test_a_liar_is_excluded_and_the_others_get_their_sum(liar, step, change):
    result, transport = add({liar: at(step, changed(**change))})
    others = [name for name in NAMES if name != liar]
    members = NAMES if step is RevealShares else others
    assert result.total.counts.tolist() == expected(members)
    assert list(transport.ledger.lost) == [liar]
    assert transport.ledger.lost[liar].startswith("InvalidReply")


@pytest.mark.parametrize("liar", NAMES)
@pytest.mark.parametrize(
    "change",
    [
        {"boxes": lambda boxes: boxes[::-1].copy()},
        {"commitments": lambda rows: rows[:, ::-1].copy()},
        {"seed_commitment": wrong_bytes},
    ],
)
def test_a_sum_without_the_secrets_of_a_liar_stays_closed(liar, change):
    """It was confirmed, so an equal sum over the others would show the liar's values."""
    with pytest.raises(SumStaysClosed, match=f"because '{liar}' shared other secrets"):
        add({liar: at(ShareSecrets, changed(**change))})


class BadKeys(SecureClient):
    """A client that sends keys that its site has not signed, or that nobody can use."""

    field = "signature"

    @handles(AdvertiseKeys)
    def advertise_keys(self, request):
        keys = super().advertise_keys(request)
        if self.field == "signature":
            return msgspec.structs.replace(keys, signature=wrong_bytes(keys.signature))
        keys = {"encryption": keys.encryption, "masking": keys.masking, self.field: bytes(32)}
        statement = self._key_statement(request.number, self.identity.name, **keys)
        return SignedKeys(**keys, signature=primitives.sign(self.identity.private, statement))


@pytest.mark.parametrize("field", ["signature", "encryption", "masking"])
def test_a_client_with_bad_keys_is_excluded_by_the_votes_of_the_others(field):
    """An encryption key of small order, which is signed, would make the others fail."""

    def liar(name, identities, parts):
        client = BadKeys(ToyClient(parts[name]), identities[name])
        client.field = field
        return client

    result, transport = add(C=liar)
    assert result.total.counts.tolist() == expected("ABD")
    assert transport.ledger.lost == {"C": "InvalidReply at ShareSecrets, step 2"}


@pytest.mark.parametrize(
    ("step", "change"),
    [
        (ShareSecrets, {"refused": lambda refused: ~refused}),
        (ConfirmSurvivors, {"signature": wrong_bytes}),
        (RevealShares, {"known": lambda known: ~known}),
    ],
)
def test_false_votes_change_nothing(step, change):
    result, transport = add({"B": at(step, changed(**change))})
    assert result.total.counts.tolist() == expected(NAMES)
    assert transport.ledger.lost == {}


def test_false_values_cannot_be_noticed():
    """The cost of masks: a client can add anything."""
    result, transport = add(
        {"B": at(MaskValues, changed(words=lambda words: words + np.uint64(1)))}
    )
    assert result.total.counts.tolist() == [-888, 2223, -2666]
    assert transport.ledger.lost == {}


# A server that cheats ---------------------------------------------------------------------------


class Server:
    """A server that drives the clients step by step and can send anything.

    Attributes
    ----------
    keys : dict of str to SignedKeys
    shared : dict of str to EncryptedShares
    """

    def __init__(self, names=NAMES):
        self.clients = {name: make_client(name) for name in names}
        self.survivors = tuple(names)

    def ask(self, name, request):
        return self.clients[name].answer(decode(encode(request)))

    def share(self, number=1, **changed_keys):
        """Exchange keys and shares; some clients receive other keys."""
        self.keys = {name: self.ask(name, AdvertiseKeys(number)) for name in self.clients}
        self.shared = {
            name: self.ask(name, ShareSecrets(number, changed_keys.get(name, self.keys)))
            for name in self.clients
        }

    def mask_request(self, receiver, request=REQUEST, number=1, senders=None):
        place = list(self.keys).index(receiver)
        return MaskValues(
            number,
            {
                name: self.shared[name].boxes[place].tobytes()
                + self.shared[name].commitments[place].tobytes()
                for name in senders or self.shared
            },
            encode(request),
            DIGITS,
        )

    def mask(self, **requests):
        for name in self.clients:
            self.ask(name, self.mask_request(name, requests.get(name, REQUEST)))

    def confirm(self, **survivors):
        """Return the signatures of the lists of survivors; some clients receive another list."""
        return {
            name: self.ask(name, ConfirmSurvivors(1, survivors.get(name, self.survivors))).signature
            for name in self.clients
        }


@pytest.fixture
def server():
    return Server()


def test_both_kinds_of_shares_are_refused(server):
    """First with the survivors A, B, C, D; then D is said to be lost."""
    server.share()
    server.mask()
    confirmations = server.confirm()
    shares = server.ask("A", RevealShares(1, confirmations))
    with pytest.raises(RepeatedStep):
        server.ask("A", ConfirmSurvivors(1, ("A", "B", "C")))
    with pytest.raises(RepeatedStep):
        server.ask("A", RevealShares(1, {n: s for n, s in confirmations.items() if n != "D"}))
    assert server.ask("A", RevealShares(1, confirmations)) == shares


def test_two_lists_of_survivors_reveal_nothing(server):
    """Nobody finds three signatures of its own list."""
    server.share()
    server.mask()
    confirmations = server.confirm(A=("A", "B", "C"), B=("A", "B", "C"))
    for name in NAMES:
        with pytest.raises(BelowThreshold):
            server.ask(name, RevealShares(1, confirmations))


def test_different_requests_to_different_clients_reveal_nothing(server):
    """Otherwise the server could ask all clients but one for values that it knows."""
    server.share()
    server.mask(A=AddToy(3), B=AddToy(2))
    confirmations = server.confirm()
    server.ask("A", RevealShares(1, confirmations))  # three have signed the same
    with pytest.raises(BelowThreshold):
        server.ask("B", RevealShares(1, confirmations))


def test_too_few_survivors_or_senders_are_refused(server):
    server.share()
    with pytest.raises(BelowThreshold):
        server.ask("A", server.mask_request("A", senders=["A", "B"]))
    server.mask()
    with pytest.raises(BelowThreshold):
        server.ask("A", ConfirmSurvivors(1, ("A", "B")))
    with pytest.raises(ForgedKeys):
        server.ask("A", ConfirmSurvivors(1, ("B", "C", "D")))


def test_keys_of_the_server_are_refused(server):
    """The server replaces the keys of B by its own, which it cannot sign in the name of B."""
    private = new_identity_key()
    forged = SignedKeys(*[primitives.public_key(private)] * 2, primitives.sign(private, b"B"))
    server.keys = {name: server.ask(name, AdvertiseKeys(1)) for name in NAMES}
    reply = server.ask("A", ShareSecrets(1, server.keys | {"B": forged}))
    assert reply.refused.tolist() == [False, True, False, False]
    assert not reply.boxes[1].any()
    server.shared = dict.fromkeys(NAMES, reply)
    with pytest.raises(ForgedKeys):
        server.ask("A", server.mask_request("A"))
    with pytest.raises(ForgedKeys):
        server.ask("B", ShareSecrets(1, server.keys | {"B": forged}))
    with pytest.raises(BelowThreshold):
        server.ask("C", ShareSecrets(1, server.keys | {"B": forged, "D": forged}))


def test_keys_of_an_earlier_sum_are_refused(server):
    server.share(number=1)
    old = server.keys["B"]
    server.keys = {name: server.ask(name, AdvertiseKeys(2)) for name in NAMES}
    reply = server.ask("A", ShareSecrets(2, server.keys | {"B": old}))
    assert reply.refused.tolist() == [False, True, False, False]


def test_earlier_sums_and_steps_are_refused(server):
    server.share(number=5)
    for request in (
        AdvertiseKeys(5),
        AdvertiseKeys(4),
        ShareSecrets(4, server.keys),
        ConfirmSurvivors(5, server.survivors),
    ):
        with pytest.raises(RepeatedStep):
            server.ask("A", request)


def test_the_same_request_gets_the_same_bytes(server):
    server.share()
    request = server.mask_request("A")
    assert encode(server.ask("A", request)) == encode(server.ask("A", request))
    with pytest.raises(RepeatedStep):
        server.ask("A", server.mask_request("A", AddToy(2)))


def test_data_are_never_sent_without_masks(server):
    with pytest.raises(NotMasked):
        server.ask("A", REQUEST)
    assert decode(serve(server.clients["A"], encode(REQUEST), print)) == Failure("NotMasked")


def test_one_masked_reply_is_uniform(monkeypatch):
    """Each bit is set half of the time, and each byte has each value equally often."""
    seeds = np.random.default_rng(0)
    monkeypatch.setattr(primitives, "new_seed", lambda: seeds.bytes(16))
    n = 50_000
    parts = {name: np.full(n, i) for i, name in enumerate("AB")}
    identities = {name: IDENTITIES[name] for name in NAMES}
    server = Server()
    server.clients = {
        name: SecureClient(ToyClient(parts.get(name, np.zeros(n, int))), identities[name])
        for name in NAMES
    }
    server.share()
    for name in "AC":
        words = server.ask(name, server.mask_request(name, AddToy(n))).words
        counts = np.bincount(words.view(np.uint8), minlength=256)
        statistic = np.square(counts - counts.mean()).sum() / counts.mean()
        assert chi2.ppf(1e-4, 255) < statistic < chi2.ppf(1 - 1e-4, 255)
        bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 4.5 * 0.5 / np.sqrt(len(words))


@settings(max_examples=20)
@given(
    st.integers(2, 6),
    st.lists(st.integers(-(2**59), 2**59), min_size=3, max_size=3),
    st.data(),
)
def test_integers_are_exact(n, values, data):
    """For any numbers of clients and of lost clients that leave enough of them."""
    parts = {str(i): np.array(values) + i for i in range(n)}
    n_lost = data.draw(st.integers(0, n - threshold(n)))
    steps = data.draw(st.lists(st.sampled_from(STEPS[:3]), min_size=n_lost, max_size=n_lost))
    tamper = {str(i): at(step, None) for i, step in enumerate(steps)}
    result, _ = add(tamper, parts=parts, places=8)
    assert result.total.counts.tolist() == expected([str(i) for i in range(n_lost, n)], parts)


def test_one_client_is_too_few():
    with pytest.raises(TooFewSurvivors, match="at least 2 clients, got 1"):
        run(
            secure_sum(REQUEST, count(1), DIGITS),
            InProcess({"A": make_client("A")}),
        )


# What depends on rows, and must not be seen ---------------------------------------------------


class FailingClient(ToyClient):
    """A client that cannot answer if it has a row above 5, and counts how often it is asked."""

    def __init__(self, X):
        super().__init__(X)
        self.n_asked = 0

    @handles(AddToy)
    def add(self, request):
        self.n_asked += 1
        if self.X.max() > 5:
            raise OverflowError("a row above 5")
        return super().add(request)


@pytest.fixture
def failing():
    """Return a server whose client B cannot answer."""
    server = Server()
    server.clients["B"] = SecureClient(FailingClient(PARTS["B"]), IDENTITIES["B"])
    return server


def failures(server, name, request):
    """Return the type of the failure that a server sees, and the errors at the site."""
    errors = []
    reply = decode(serve(server.clients[name], encode(request), errors.append))
    return reply.error, errors


def test_failed_values_are_not_computed_again_and_the_reason_stays_at_the_site(failing):
    server = failing
    server.share()
    request = server.mask_request("B")
    kind, (error,) = failures(server, "B", request)
    assert kind == "MaskingFailed"
    assert "a row above 5" in str(error)
    client = server.clients["B"]
    client.state = decode(encode(client.state))  # as after a restart of the site
    assert failures(server, "B", request)[0] == "MaskingFailed"
    assert client.inner.n_asked == 1


def test_after_a_failure_a_site_answers_no_further_step_of_the_run(failing):
    server = failing
    server.share()
    failures(server, "B", server.mask_request("B"))
    state = server.clients["B"].state
    server.clients["B"].state = decode(encode(state))
    for request in (AdvertiseKeys(2), AdvertiseKeys(3), server.mask_request("B")):
        assert failures(server, "B", request)[0] == "MaskingFailed"
    assert server.ask("A", server.mask_request("A")).words.size


@given(
    npst.arrays(np.float64, 4, elements=st.floats(-1e300, 1e300)),
    st.integers(-900, 900),
)
def test_any_value_is_reduced_modulo_2_64_and_nothing_fails(values, digits):
    """Python's integers are the reference. A value that overflows float64 counts as 0."""
    message = ToyTerms(np.array([-(2**63), 2**63 - 1]), 0.0)
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(values, digits)).tolist()
    expected = [int(x) % 2**64 if np.isfinite(x) else 0 for x in scaled]
    for x, word in zip(values.tolist(), expected, strict=True):
        words = to_words(msgspec.structs.replace(message, share=x), {"share": (digits,)})
        assert words.tolist() == [2**63, 2**63 - 1, word]


@pytest.mark.parametrize(
    "digits", [{"share": (-5,)}, {"share": (41,)}, {}, {**DIGITS, "counts": (40,)}]
)
def test_a_site_refuses_digits_that_do_not_follow_from_the_request(server, digits):
    """With few of them, sites with a large value could be counted."""
    server.share()
    request = server.mask_request("A")
    other = MaskValues(request.number, request.sealed, request.request, digits)
    assert failures(server, "A", other)[0] == "WrongDigits"
    assert server.ask("A", request).words.size  # a refusal is no answer to the step


class DescribingClient(ToyClient):
    """A client that also answers requests whose replies cannot be masked, but is never asked."""

    @handles(MeasureInertia)
    def measure(self, request):
        raise AssertionError("rows are read")

    @handles(DescribeFeatures)
    def describe(self, request):
        raise AssertionError("rows are read")


@pytest.mark.parametrize("asked", [MeasureInertia(np.zeros((1, 2))), DescribeFeatures()])
def test_a_site_masks_no_reply_whose_digits_or_sums_are_not_stated(server, asked):
    """Before anything is computed from rows, so the site does not count it as a failure."""
    server.clients["A"] = SecureClient(DescribingClient(PARTS["A"]), IDENTITIES["A"])
    server.share()
    request = server.mask_request("A")
    other = MaskValues(request.number, request.sealed, encode(asked), {})
    assert failures(server, "A", other)[0] == "WrongDigits"
    assert server.ask("A", request).words.size


def test_a_bound_for_which_no_site_accepts_the_digits_is_refused_at_the_server():
    assert digits_for(2.0**53, 4) == MIN_DIGITS
    with pytest.raises(ValueError, match=r"must be below 2\*\*55, but .* can be 1.8e\+16; scale"):
        digits_for(2.0**54, 4)


# Identities -------------------------------------------------------------------------------------


def test_identities_are_checked():
    keys = {name: new_identity_key() for name in "AB"}
    public = {name: primitives.signing_key(key) for name, key in keys.items()}
    assert "private" not in repr(Identity("A", keys["A"], public))
    for name, private, others, text in (
        ("A", keys["A"], {"A": public["A"]}, "at least 2 sites, got 1"),
        ("A", keys["B"], public, "public half of the private key of 'A', has another key: take"),
        ("C", keys["A"], public, "public half of the private key of 'C', has none: take"),
        ("A", b"short", public, "private must have 32 bytes, got 5 bytes"),
        ("A", keys["A"], public | {"B": "text"}, r"public_keys\['B'\] must .* got str"),
        ("A", keys["A"], {"A": public["A"], "B": public["A"]}, "those of 'A' and 'B' are equal"),
    ):
        with pytest.raises(ValueError, match=text):
            Identity(name, private, others)


def test_files_of_identities_are_checked(tmp_path):
    (tmp_path / "north.key").write_text("no key")
    with pytest.raises(ValueError, match=r"keys\.json must contain the sites' public keys"):
        Identity.read(tmp_path / "north.key")
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(ValueError, match=r"north\.key must contain a site's private key"):
        Identity.read(tmp_path / "north.key")


def test_nothing_but_the_state_is_remembered(server):
    """The state is a message, and a client without it cannot go on."""
    server.share()
    state = server.clients["A"].state
    assert isinstance(decode(encode(state)), Message)
    request = server.mask_request("A")
    reply = server.ask("A", request)
    server.clients["A"] = make_client("A")
    with pytest.raises(RepeatedStep):
        server.ask("A", request)
    server.clients["A"].state = decode(encode(msgspec.structs.replace(state)))
    assert server.ask("A", request) == reply
