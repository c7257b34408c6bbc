"""Sums with noise: added by each client, or in shares within a secure sum."""

import msgspec
import numpy as np
import pytest

from fedlib.core.messages import decode, encode
from fedlib.core.protocol import TooFewClients, run
from fedlib.core.site_memory import TableMemory
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import NOISY, Budget, Privacy, epsilon_of, noise_scale
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.messages import EncryptedShares, MaskValues
from fedlib.protection.sums import MaskedNoisySums, NoisySums
from fedlib.testing import Recorder, seeded_noise

from .toy import COUNT, CountNoisily, NoisyCount, ToyClient

PARTS = {name: np.zeros((10 * (i + 1), 1)) for i, name in enumerate("ABCD")}
REQUEST = CountNoisily(Privacy(rho=0.02))  # the standard deviation is 5


def clients(secure):
    members = {name: ToyClient(X) for name, X in PARTS.items()}
    if not secure:
        return members
    identities = simulated_identities(list(members))
    return {name: SecureClient(one, identities[name]) for name, one in members.items()}


def noisy_count(secure, seed, transport=None):
    sums = (MaskedNoisySums if secure else NoisySums)(REQUEST.privacy)
    with seeded_noise(seed):
        return run(sums.sum(REQUEST), transport or Recorder(clients(secure))).total.count


def test_the_conversation():
    plain, secure = Recorder(clients(False)), Recorder(clients(True))
    noisy_count(False, 0, plain)
    noisy_count(True, 0, secure)
    assert plain.ledger.conversation() == ["CountNoisily", "NoisyCount"]
    assert secure.ledger.conversation()[4:6] == ["MaskValues", "MaskedValues"]
    losses = [e.discloses for e in secure.ledger if e.message == "MaskValues"]
    assert all(text.endswith("; the reply has rho=0.02 (zCDP)") for text in losses)


@pytest.mark.parametrize(("secure", "deviation"), [(False, 10.0), (True, 5 * np.sqrt(2))])
def test_the_variance_of_the_noise(secure, deviation):
    """Four clients each add all the noise; in a secure sum, two honest survivors are enough."""
    count = noisy_count(secure, 0)
    assert abs(count[0] - 100) < 4 * deviation
    assert count[1:].std() == pytest.approx(deviation, rel=0.06)  # 4 / sqrt(2 * 2000)
    assert abs(count[1:].mean()) < 4 * deviation / np.sqrt(count.size)


def test_each_share_has_the_scale_for_the_fewest_honest_survivors():
    client = clients(True)["A"].inner
    assert client.n_shares == 2
    assert noise_scale(COUNT, REQUEST.privacy, 2) == pytest.approx(5 / np.sqrt(2), rel=1e-4)
    assert ToyClient([[1.0]]).n_shares == 1  # outside of a secure sum, a client relies on nobody


def test_a_server_cannot_round_the_noise_of_others_away(tmp_path):
    """With fewer digits, the sum would be of rounded shares, whose loss is unknown.

    The refusal does not depend on rows, so it locks no site.
    """
    few = {"count": (COUNT.digits - 1,)}

    class Rounding(Recorder):
        def exchange(self, requests):
            return super().exchange({n: without_digits(one) for n, one in requests.items()})

    def without_digits(data):
        message = decode(data)
        if isinstance(message, MaskValues):
            message = MaskValues(message.number, message.sealed, message.request, few)
        return encode(message)

    sites = clients(True)
    for name, site in sites.items():
        site.memory = TableMemory(tmp_path / name)
    with pytest.raises(TooFewClients, match="WrongDigits at MaskValues"):
        noisy_count(True, 0, Rounding(sites))
    for site in sites.values():
        site.memory.lock.check()


def test_lost_clients_leave_the_others_sum():
    transport = Recorder(clients(False), tamper={"D": lambda request, reply: None})
    with seeded_noise(0):
        total = run(NoisySums(REQUEST.privacy).sum(REQUEST), transport, min_clients=2).total
    assert abs(total.count[0] - 60) < 50
    assert isinstance(total, NoisyCount)


class RememberingClient(ToyClient):
    """A client that keeps its replies, which nobody else sees without masks."""

    def __init__(self, X):
        super().__init__(X)
        self.replies = []

    def answer(self, request):
        self.replies.append(super().answer(request))
        return self.replies[-1]


def test_a_repeated_secure_sum_has_new_noise_and_is_charged_again():
    """The secrets of D cannot be found, so the first sum stays closed; the second is without D."""
    identities = simulated_identities(list(PARTS))
    inner = {name: RememberingClient(X) for name, X in PARTS.items()}
    budgets = {name: Budget(9.0, 1e-6) for name in PARTS}
    guarded = {
        name: GuardedClient(SecureClient(one, identities[name]), Policy(budget=budgets[name]))
        for name, one in inner.items()
    }

    def without_secrets(request, reply):
        shares = decode(reply)
        if not isinstance(shares, EncryptedShares):
            return reply
        return encode(msgspec.structs.replace(shares, seed_commitment=bytes(32)))

    transport = Recorder(guarded, tamper={"D": without_secrets})
    with seeded_noise(0):
        sums = MaskedNoisySums(REQUEST.privacy)
        total = run(sums.sum(REQUEST), transport, min_clients=3).total
    assert transport.ledger.lost == {"D": "InvalidReply at RevealShares, step 5"}
    assert {name: len(budget.charges) for name, budget in budgets.items()} == {
        "A": 2, "B": 2, "C": 2, "D": 1,
    }  # fmt: skip
    assert budgets["A"].spent == epsilon_of(2 * REQUEST.privacy.rho, 1e-6)
    first, second = inner["A"].replies
    assert (first.count != second.count).mean() > 0.5
    assert np.array_equal(total.count, sum(inner[name].replies[1].count for name in "ABC"))


@pytest.mark.parametrize("value", [NOISY, -NOISY])
def test_two_false_replies_do_not_end_the_run(value):
    """Each is valid, and their sum is more than a reply may contain."""

    def lie(request, reply):
        return encode(NoisyCount(np.full_like(decode(reply).count, value)))

    transport = Recorder(clients(False), tamper={"A": lie, "C": lie})
    assert (noisy_count(False, 0, transport) == value).all()
    assert transport.ledger.lost == {}
