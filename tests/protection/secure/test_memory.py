"""What a site remembers of its sums: masks, failures, and over which clients a sum was."""

import json
from itertools import count

import numpy as np
import pytest

from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.messages import SumClippedClusters
from fedlib.core.client import handles
from fedlib.core.messages import Declined, decode, encode
from fedlib.core.protocol import TooFewClients, run, serve
from fedlib.core.site_memory import SiteIsLocked, TableMemory
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy
from fedlib.protection.secure import Identity, SecureClient, secure_sum, simulated_identities
from fedlib.protection.secure.identities import KeyMemory, ReusedMask
from fedlib.protection.secure.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskValues,
    ShareSecrets,
)
from fedlib.protection.secure.points import SumPoints
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess
from fedlib.tables.summary.private import SumColumnsNoisily
from fedlib.testing import Recorder

from .toy import IDENTITIES, PARTS, AddToy, ToyClient, toy_client

PREPROCESS = Preprocess(
    (),
    np.zeros(1, np.uint8),
    (),
    "fill",
    *np.eye(1)[[0, 0, 0]],
    np.zeros(1, np.int64),
    (),
    "ignore",
)
LOST = {"D": lambda request, reply: None}


def sums(recorder, n_sums=1, first=1, places=40):
    """Return the totals of secure sums of one run, which loses at most one client."""

    def flow():
        numbers, totals = count(first), []
        for _ in range(n_sums):
            request = AddToy(3, places)
            totals.append((yield from secure_sum(request, numbers, {"share": (places,)})))
        return totals

    return run(flow(), recorder, min_clients=3)


def test_an_equal_sum_is_not_confirmed_for_other_clients():
    """The server declares D lost and repeats the sum: the difference would be D's values."""
    clients = {name: toy_client(name) for name in PARTS}
    assert sums(Recorder(clients))[0].clients == tuple("ABCD")
    with pytest.raises(TooFewClients, match="OtherMembers at ConfirmSurvivors"):
        sums(Recorder(clients, LOST), first=2)


def test_other_requests_may_be_over_other_clients_unless_a_rule_forbids_it():
    for policy, permitted in (({}, True), ({"same_members": True}, False)):
        rules = Policy.from_dict(policy)
        clients = {name: GuardedClient(toy_client(name), rules) for name in PARTS}
        sums(Recorder(clients))
        other, lost = 39, Recorder(clients, LOST)  # another request
        if permitted:
            assert sums(lost, first=2, places=other)[0].clients == tuple("ABC")
        else:
            with pytest.raises(TooFewClients, match=r"Declined \(same_members\) at Confirm"):
                sums(lost, first=2, places=other)


def test_an_equal_sum_of_a_later_run_is_not_confirmed_for_other_clients(tmp_path):
    """The memory of the table outlives the clients; its operator can forget the sums."""

    def clients():
        made = {name: toy_client(name) for name in PARTS}
        for name, one in made.items():
            one.memory = TableMemory(tmp_path / name)
        return made

    assert sums(Recorder(clients()))[0].clients == tuple("ABCD")
    assert sums(Recorder(clients()))[0].clients == tuple("ABCD")
    with pytest.raises(TooFewClients, match="OtherMembers at ConfirmSurvivors"):
        sums(Recorder(clients(), LOST))
    for name in PARTS:
        TableMemory(tmp_path / name).forget("sum")
    assert sums(Recorder(clients(), LOST))[0].clients == tuple("ABC")


def test_the_same_clients_may_repeat_a_sum():
    clients = {name: toy_client(name) for name in PARTS}
    first, second = sums(Recorder(clients), n_sums=2)
    assert first.total == second.total


# The files beside the key ------------------------------------------------------------------------


@pytest.fixture
def identities(tmp_path):
    """Return identities whose keys are in files."""
    simulated = simulated_identities(list(PARTS))
    public = {name: key.hex() for name, key in simulated["A"].public_keys.items()}
    (tmp_path / "keys.json").write_text(json.dumps(public))
    for name, one in simulated.items():
        (tmp_path / f"{name}.key").write_text(one.private.hex())
    return {name: Identity.read(tmp_path / f"{name}.key") for name in PARTS}


def test_a_restored_state_does_not_mask_other_values(identities):
    """A folder from before a step, with a server that asks for something else."""
    clients = {name: toy_client(name, identities) for name in PARTS}
    recorder, before = Recorder(clients), {}

    def keep(request, reply):
        if isinstance(decode(request), MaskValues):
            before["request"] = decode(request)
        elif "request" not in before:
            before["state"] = clients["A"].state
        return reply

    recorder.tamper["A"] = keep
    sums(recorder)
    restored = toy_client("A", identities, {"A": np.array([1, 2, 4])})
    restored.enter("A", 4)
    restored.state = before["state"]
    with pytest.raises(ReusedMask, match="was restored or copied"):
        restored.handle(before["request"])
    same = toy_client("A", identities)  # after a crash: the same bytes are sent again
    same.enter("A", 4)
    same.state = before["state"]
    sent = [one.replies["A"] for one in recorder.exchanges if "A" in one.replies]
    assert encode(same.handle(before["request"])) in [encode(reply) for reply in sent]


def test_a_restored_state_confirms_no_other_survivors(identities):
    """Both kinds of shares of D would otherwise open its values, also those with noise."""
    clients, before = {name: toy_client(name, identities) for name in PARTS}, {}

    def keep(request, reply):
        if isinstance(decode(request), MaskValues):
            before["state"] = clients["A"].state
        return reply

    sums(Recorder(clients, {"A": keep}))
    restored = toy_client("A", identities)
    restored.enter("A", 4)
    restored.state = before["state"]
    with pytest.raises(ReusedMask, match="was restored or copied"):
        restored.handle(ConfirmSurvivors(1, tuple("ABC")))
    restored.handle(ConfirmSurvivors(1, tuple("ABCD")))


class Failing(ToyClient):
    @handles(AddToy)
    def add(self, request):
        raise ZeroDivisionError("of row 3")


def test_a_failure_locks_the_site_until_its_operator_clears_it(identities, tmp_path):
    def members(of_a):
        clients = {name: toy_client(name, identities) for name in "BCD"}
        return Recorder({"A": SecureClient(of_a(PARTS["A"]), identities["A"]), **clients})

    total = sums(members(Failing))[0]
    assert total.clients == tuple("BCD")
    file = tmp_path / "A.failed"
    assert file.read_text() == "AddToy: of row 3\n"
    assert file.stat().st_mode & 0o777 == 0o600
    again = members(ToyClient)  # after a restart
    assert sums(again)[0].clients == tuple("BCD")
    assert "SiteIsLocked at AdvertiseKeys" in again.ledger.lost["A"]
    file.unlink()
    assert sums(members(ToyClient))[0].clients == tuple("ABCD")


def test_the_memory_of_a_key(tmp_path):
    memory = KeyMemory(tmp_path / "north.key")
    memory.lock.check()
    memory.use(b"\x01", b"\x02")
    memory.use(b"\x01", b"\x02")
    memory.use(b"\x03", b"\x02")
    with pytest.raises(ReusedMask):
        memory.use(b"\x01", b"\x03")
    memory.confirm(b"\x01", b"\x04")
    with pytest.raises(ReusedMask):
        memory.confirm(b"\x01", b"\x05")
    lines = (tmp_path / "north.masked").read_text().splitlines()
    assert lines == ['["mask","01","02"]', '["mask","03","02"]', '["survivors","01","04"]']
    memory.lock.close("one\nreason")
    with pytest.raises(SiteIsLocked, match="north.failed, repair the cause, and clear it with"):
        memory.lock.check()


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("")
    (tmp_path / "north.masked").symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="symbolic links"):
        KeyMemory(tmp_path / "north.key").use(b"\x01", b"\x02")


def test_a_guarded_site_counts_the_members_in_its_state():
    site = GuardedClient(toy_client("A"), Policy.from_dict({"same_members": True}))
    site._keep(members=("A", "B"))
    again = GuardedClient(toy_client("A"), Policy.from_dict({"same_members": True}))
    again.state = site.state
    reply = decode(serve(again, encode(ConfirmSurvivors(1, ("A", "C")))))
    assert reply == Declined("same_members")
    assert IDENTITIES["A"].memory is None


# The run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [{"run": "second"}, {"protocol": "kmeans"}, {"members": ("E",)}], ids=str
)
def test_keys_are_signed_for_one_run(other):
    """Its identifier, its protocol and its members: keys of another run are those of a stranger."""
    keys = [signed_keys("A"), signed_keys("B"), signed_keys("C"), signed_keys("D", **other)]
    site = signing("A")
    site.state, own = keys[0]
    request = ShareSecrets(1, dict(zip("ABCD", [own, *(one for _, one in keys[1:])], strict=True)))
    assert site.handle(request).refused.tolist() == [False, False, False, True]


def signing(name, run="first", protocol="dbdc", members=()):
    """Return a site of a run."""
    identities = simulated_identities([*PARTS, *members])
    site = SecureClient(ToyClient(PARTS[name]), identities[name], protocol)
    site.enter(name, len(PARTS), run)
    return site


def signed_keys(name, **options):
    """Return a site's state after it has sent its keys, and the keys."""
    site = signing(name, **options)
    keys = site.handle(AdvertiseKeys(1))
    return site.state, keys


def test_wrappers_pass_on_what_a_transport_tells():
    inner = PipelineClient([[1.0], [2.0]], FederatedKMeansClient)
    site = GuardedClient(SecureClient(inner, IDENTITIES["A"]), Policy.from_dict({"max_work": 7}))
    site.enter("A", 4, "first")
    assert (inner.name, inner.n_clients, inner.run) == ("A", 4, "first")
    inner.answer(PREPROCESS)
    assert (inner.inner.name, inner.inner.n_clients, inner.inner.run) == ("A", 4, "first")
    with pytest.raises(ValueError, match="the key is that of 'A', but this is 'B'"):
        site.enter("B", 4)


def test_a_request_of_another_protocol_locks_no_site(identities, tmp_path):
    """Neither behind masks nor with noise: no site of this protocol answers it."""
    clients = {name: FederatedKMeansClient([[1.0]]) for name in PARTS}
    sites = {name: SecureClient(one, identities[name]) for name, one in clients.items()}

    def flow():
        return (yield from secure_sum(AddToy(1), count(1), {"share": (40,)}))

    with pytest.raises(TooFewClients, match="TypeError at MaskValues"):
        run(flow(), Recorder(sites))
    assert not any(identities[name].memory.lock.path.exists() for name in PARTS)
    site = FederatedKMeansClient([[1.0]])
    site.memory = TableMemory(tmp_path / "table")
    noisy = SumColumnsNoisily(Privacy(epsilon=1.0), np.array([[0.0], [1.0]]), n_bins=0)
    with pytest.raises(TypeError, match="no handler for SumColumnsNoisily"):
        site.answer(noisy)
    site.memory.lock.check()


def test_a_request_that_fits_no_table_locks_no_site(identities):
    """The same error for all rows is no failure: a server could lock all sites by one request."""
    sites = {name: SecureClient(FederatedKMeansClient([[1.0]]), identities[name]) for name in PARTS}
    recorder = Recorder(sites)

    def flow(request):
        return (yield from secure_sum(request, numbers, request.sum_digits(4)))

    def asked(n_features):
        bounds = np.repeat([[0.0], [2.0]], n_features, axis=1)
        return SumPoints(np.zeros(n_features), bounds, n_points=4)

    numbers = count(1)
    with pytest.raises(TooFewClients, match="BadRequest at MaskValues"):
        run(flow(asked(2)), recorder)  # the sites have one feature
    no_starts = SumClippedClusters(np.zeros((0, 2, 1)), np.array([[0.0], [2.0]]), n_points=4)
    with pytest.raises(TooFewClients, match="BadRequest at MaskValues"):
        run(flow(no_starts), recorder)
    assert not any(identities[name].memory.lock.path.exists() for name in PARTS)
    assert run(flow(asked(1)), recorder).total.sums == 4.0
