"""What a site remembers about a table: in threads, processes, restarts and restored folders."""

import json
import multiprocessing
import os
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedlib.clustering.density.ppdbdc import AnotherDraw, DrawRepresentatives, PPDBDCClient
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.messages import SumClusters
from fedlib.core.messages import Declined
from fedlib.core.site_memory import Lock, OldMemory, SiteIsLocked, TableMemory, state_folder
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Budget, DisclosureBudgetSpent, Privacy
from fedlib.protection.secure.identities import KeyMemory, ReusedMask
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess

pytest.importorskip("opendp")
X = np.random.default_rng(0).random((30, 2))
AS_IT_IS = Preprocess(
    (),
    np.zeros(2, np.uint8),
    (),
    "fill",
    *np.array([[0.0, 0], [0, 0], [1, 1]]),
    np.zeros(2, np.int64),
    (),
    "ignore",
)


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_STATE", str(tmp_path))
    assert state_folder() == tmp_path
    monkeypatch.delenv("FEDLIB_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "xdg" / "fedlib"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local" / "state" / "fedlib"


def test_a_memory_belongs_to_the_content_of_a_file(tmp_path):
    for name, content in {"a.csv": "x\n1\n", "b.csv": "x\n1\n", "c.csv": "x\n2\n"}.items():
        (tmp_path / name).write_text(content)
    a, b, c = (TableMemory.of_file(tmp_path / name).path for name in ("a.csv", "b.csv", "c.csv"))
    assert a == b != c


def test_equal_rows_have_one_memory():
    assert TableMemory.of_rows(X).path == TableMemory.of_rows(X.copy()).path
    ones = [np.ones((3, 2), kind) for kind in (np.int64, np.float32, np.float64)]
    assert len({TableMemory.of_rows(one).path for one in ones}) == 1
    others = [X[:-1], X[:, :1], X[::-1], np.array([["a"]]), np.array([["b"]])]
    assert len({TableMemory.of_rows(one).path for one in [X, *others]}) == 6


def test_an_incomplete_last_line_is_dropped(tmp_path):
    """The program ended while it wrote it, and so before it answered."""
    path = tmp_path / "table.jsonl"
    TableMemory(path).add("sum", "a", 1)
    path.write_bytes(path.read_bytes() + b'["sum","b"')
    memory = TableMemory(path)
    assert memory.values("sum") == [1]
    memory.add("sum", "c", 3)
    assert memory.values("sum") == [1, 3]
    path.write_bytes(path.read_bytes()[1:])
    with pytest.raises(ValueError, match="must contain one record per line"):
        memory.values("sum")


@pytest.mark.parametrize("rest", [b"table", b"table.jsonl", b"table.jsonl 1"])
def test_an_incomplete_last_count_is_dropped(rest, tmp_path):
    """Otherwise the site could not start again, or the next count would be read as another one."""
    counts = tmp_path / "north.counts"
    memory = TableMemory(tmp_path / "table.jsonl", counts)
    for i in range(3):
        memory.add("sum", "a", i)
    counts.write_bytes(counts.read_bytes() + rest)
    memory.add("sum", "a", 3)
    assert memory.values("sum") == [0, 1, 2, 3]
    assert counts.read_text().split("\n")[-2:] == ["table.jsonl 4", ""]
    for damaged in ("table.jsonl", "table.jsonl " + "9" * 5000):
        counts.write_text(f"table.jsonl 4\n{damaged}\n")
        with pytest.raises(ValueError, match=r"north.counts must contain .* got b'table.*: put"):
            memory.values("sum")


def test_a_restored_folder_is_noticed(tmp_path, state_folder):
    """An older copy, an empty folder, and another folder: the counts beside the key know more."""
    (tmp_path / "rows.csv").write_text("x\n1\n")
    key = tmp_path / "north.key"

    def memory():
        return TableMemory.of_file(tmp_path / "rows.csv", key)

    memory().add("charge", "a", {})
    shutil.copytree(state_folder, tmp_path / "copy")
    memory().add("charge", "b", {})
    assert (tmp_path / "north.counts").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(state_folder)
    with pytest.raises(OldMemory, match=r"has 0 records, but .*north.counts has counted 2"):
        memory().values("charge")
    shutil.copytree(tmp_path / "copy", state_folder, dirs_exist_ok=True)
    with pytest.raises(OldMemory, match="has 1 records"):
        memory().add("charge", "c", {})
    other = TableMemory.of_digest("f" * 64, key)  # another table of the site
    other.add("charge", "a", {})
    assert other.values("charge") == [{}]


def test_a_lock_names_its_command(tmp_path):
    lock = Lock(tmp_path / "table.failed")
    lock.check()
    lock.close("of row 3")
    with pytest.raises(SiteIsLocked, match="clear it with fedlib memory DATA --unlock"):
        lock.check()
    assert lock.path.read_text() == "of row 3\n"


def draw(folder, parameters, random_state=None):
    """Return the representatives that a new process of a site sends."""
    client = PPDBDCClient(X, random_state)
    client.memory = TableMemory(folder / "table.jsonl")
    return client.answer(DrawRepresentatives(*parameters)).representatives


def test_the_noise_of_ppdbdc_is_the_same_in_all_runs(tmp_path):
    parameters = 0.2, None, 1.0, "centred", 5
    first, second = draw(tmp_path, parameters), draw(tmp_path, parameters, random_state=3)
    assert first.tolist() == second.tolist()
    with pytest.raises(AnotherDraw, match="two replies with different noise would disclose points"):
        draw(tmp_path, (0.3, *parameters[1:]))
    (tmp_path / "other").mkdir()
    assert draw(tmp_path / "other", parameters).tolist() != first.tolist()


def test_a_policy_in_a_file_gives_a_client_its_memory(tmp_path, state_folder):
    """Also the client inside: another process draws the same noise."""
    (tmp_path / "policy.toml").write_text("min_clients = 1\n")
    policy, request = (
        Policy.read(tmp_path / "policy.toml"),
        DrawRepresentatives(0.2, None, 1.0, "centred", 5),
    )
    sites = [GuardedClient(PipelineClient(X, PPDBDCClient), policy, "any") for _ in range(2)]
    for site in sites:
        site.answer(AS_IT_IS)
    first, second = (site.answer(request).representatives for site in sites)
    assert first.tolist() == second.tolist()
    assert len(list(state_folder.iterdir())) == 1


def small_groups(policy):
    """Return the answer of a new process to a request for groups of which one is small."""
    site = GuardedClient(FederatedKMeansClient(X), Policy.read(policy), "kmeans")
    return site.answer(SumClusters(X[np.newaxis, :2]))


@pytest.mark.parametrize("rule", ["min_count = 16", "max_bytes = 60"])
def test_declined_requests_are_counted_in_all_runs(rule, tmp_path, state_folder):
    """Each answer "declined" is a bit about the rows, in whichever run."""
    policy, name = tmp_path / "policy.toml", rule.partition(" ")[0]
    policy.write_text(f"{rule}\nmax_declines = 2\n")
    declined = [Declined(name), Declined(name), Declined("max_declines")]
    assert [small_groups(policy) for _ in range(3)] == declined
    (file,) = state_folder.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [["declined", "kmeans", ["SumClusters", name]]] * 2


# Properties --------------------------------------------------------------------------------------


class Site(RuleBasedStateMachine):
    """A site whose processes, policies and folders change at random, and a server that asks.

    Whatever happens, the charges that are granted stay within the budget, no mask hides two
    values, and drawn noise, confirmed sums and the count of declined requests never change.
    """

    @initialize()
    def begin(self):
        self.folder = Path(os.environ["FEDLIB_STATE"]) / f"{id(self)}-{os.urandom(4).hex()}"
        self.folder.mkdir(parents=True)
        self.granted, self.n_declined = 0, 0
        self.hidden, self.confirmed = defaultdict(set), defaultdict(set)
        self.copies = []
        self.restart()

    @rule()
    def restart(self):
        """Another process, session or policy: nothing is left but the files."""
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        self.memory = TableMemory(state / "table.jsonl", self.folder / "north.counts")
        self.key = KeyMemory(self.folder / "north.key")

    def outcome(self, call, *refusals):
        """Return what a call returns; None if it is refused."""
        try:
            return call()
        except (OldMemory, *refusals):
            return None

    @rule(quarters=st.integers(1, 3))
    def charge(self, quarters):
        budget = Budget(2.0, memory=self.memory)
        call = lambda: budget.charge(Privacy(epsilon=quarters / 4), "any", "any") or True  # noqa: E731
        self.granted += quarters * bool(self.outcome(call, DisclosureBudgetSpent))

    @rule(mask=st.binary(min_size=1, max_size=1), values=st.sampled_from([b"1", b"2"]))
    def hide(self, mask, values):
        if self.outcome(lambda: self.key.use(mask, values) or True, ReusedMask):
            self.hidden[mask].add(values)

    @rule(agreed=st.sampled_from("ab"), members=st.sampled_from(["ABC", "ABD"]))
    def confirm(self, agreed, members):
        if self.outcome(lambda: self.memory.first("sum", agreed, members)) == members:
            self.confirmed[agreed].add(members)

    @rule()
    def decline(self):
        if self.outcome(lambda: self.memory.add("declined", "any") or True):
            self.n_declined += 1

    @rule()
    def copy(self):
        self.copies.append(self.folder / f"copy{len(self.copies)}")
        shutil.copytree(self.folder / "state", self.copies[-1])

    @rule(n=st.integers(0, 9))
    def restore(self, n):
        if self.copies:
            shutil.copytree(
                self.copies[n % len(self.copies)], self.folder / "state", dirs_exist_ok=True
            )
            self.restart()

    @invariant()
    def holds(self):
        if not hasattr(self, "granted"):
            return
        assert self.granted <= 8
        assert all(len(values) == 1 for values in self.hidden.values())
        assert all(len(members) == 1 for members in self.confirmed.values())
        declined = self.outcome(lambda: len(self.memory.values("declined")))
        assert declined in (None, self.n_declined)


TestSite = Site.TestCase


def work(folder, seed, outcomes):
    """Charge, hide and confirm at random in a process."""
    rng = np.random.default_rng(seed)
    memory = TableMemory(folder / "table.jsonl", folder / "north.counts")
    budget, key, done = Budget(1.0, memory=memory), KeyMemory(folder / "north.key"), []
    for _ in range(30):
        name, value = "abc"[rng.integers(3)], int(rng.integers(3))
        kind = ("charge", "mask", "sum")[rng.integers(3)]
        try:
            if kind == "charge":
                budget.charge(Privacy(epsilon=0.0625), "any", "any")
                done.append((kind, "", 1))
            elif kind == "mask":
                key.use(name.encode(), bytes([value]))
                done.append((kind, name, value))
            else:
                done.append((kind, name, memory.first("sum", name, value)))
        except (DisclosureBudgetSpent, ReusedMask):
            pass
    outcomes.put(done)


def test_processes_share_a_memory(tmp_path):
    context = multiprocessing.get_context("spawn")
    outcomes = context.Queue()
    processes = [context.Process(target=work, args=(tmp_path, seed, outcomes)) for seed in range(2)]
    for process in processes:
        process.start()
    done = [one for _ in processes for one in outcomes.get(timeout=120)]
    for process in processes:
        process.join()
    assert sum(kind == "charge" for kind, *_ in done) == 16
    values = defaultdict(set)
    for kind, name, value in done:
        values[kind, name].add(value)
    assert all(len(several) == 1 for several in values.values())
    assert len(values) == 7


def test_a_full_disk_is_an_error_with_the_name_of_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    memory = TableMemory(tmp_path / "table.jsonl", tmp_path / "a.counts")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"table\.jsonl: cannot be written: .*No space left"):
        memory.add("sum", "a")
