"""Agreement: which clients leave the run when replies contradict each other."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import CellCounts, HorizontalDBSCANClient
from fedlib.core.aggregation import (
    Disagreement,
    agree,
    agree_on_features,
    exclude,
    minority,
    settle,
)
from fedlib.core.client import Client, handles
from fedlib.core.in_process import InProcess
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Done, Message, decode, encode
from fedlib.core.protocol import Reject, Replies, TooFewClients, run


class Size(Message):
    discloses = "a size"
    size: int


class ReportSize(Message):
    discloses = "nothing"
    reply = Size


class Goodbye(Message):
    discloses = "nothing"
    asks_for_data = False


class SizeClient(Client):
    def __init__(self, size, passive=False):
        self.size, self.passive = size, passive

    @handles(ReportSize)
    def report(self, request):
        return Size(self.size)

    @handles(Goodbye)
    def leave(self, request):
        return Done()


def same_size(replies):
    agree("the size", {name: reply.size for name, reply in replies.items()})


def flow():
    replies = yield ReportSize()
    replies = yield from settle(replies, same_size)
    yield Goodbye()
    return [*replies], next(iter(replies.values())).size, replies.lost


def clients(*sizes, passive=()):
    return InProcess(
        {f"C{i}": SizeClient(size, passive=i in passive) for i, size in enumerate(sizes)}
    )


def test_agree_on_a_value():
    assert agree("the number", {"A": 2, "B": 2}) == 2
    with pytest.raises(ValueError, match=r"disagree on the number: 2 at 'A', 'C'; 3 at 'B'$"):
        agree("the number", {"A": 2, "B": 3, "C": 2})


def described(n_features, *names):
    return SimpleNamespace(n_features=n_features, features=names)


def test_agree_on_features():
    """Clients without names are assumed to have the features of the others."""
    assert agree_on_features({"A": described(2, "x", "y"), "B": described(2)}) == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (described(1, "y"), "features: 'x' at 'A'; 'x' is missing, and 'y' is additional at 'B'"),
        (described(2, "x", "y"), "disagree on the features: 'x' at 'A'; 'y' is additional at 'B'"),
        (described(2), "clients disagree on the number of features: 1 at 'A'; 2 at 'B'"),
    ],
)
def test_clients_that_disagree_on_features(other, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        agree_on_features({"A": described(1, "x"), "B": other})


def test_many_features_in_another_order():
    """The text names the first column that has moved, and not all of them."""
    names = [f"lab_{i:02d}" for i in range(40)]
    other = [*names[:17], *names[18:], names[17]]
    with pytest.raises(ValueError, match="'lab_17' is column 40 instead of 18 at 'B'") as error:
        agree_on_features({"A": described(40, *names), "B": described(40, *other)})
    assert len(str(error.value)) < 250


def test_clients_without_features():
    with pytest.raises(ValueError, match="the clients' points have no features"):
        agree_on_features({"A": described(0)})


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=4))
def test_the_minority(sizes):
    """It is everybody outside the largest side, if no other side is as large."""
    sides = [[f"{i}-{j}" for j in range(len(side))] for i, side in enumerate(sizes)]
    largest = [side for side in sides if len(side) == max(map(len, sides))]
    outside = {name for side in sides for name in side} - set(largest[0] if largest else ())
    assert set(minority(sides)) == (outside if len(largest) == 1 else set())


def test_the_minority_leaves():
    """It receives no more requests. The step in which it leaves is that of its reply."""
    ledger = Ledger()
    result = run(flow(), clients(3, 5, 3, 4), min_clients=2, ledger=ledger)
    assert result == (["C0", "C2"], 3, ["C1", "C3"])
    assert dict(ledger.lost) == dict.fromkeys(["C1", "C3"], "InvalidReply at ReportSize, step 1")
    receivers = [entry.receiver for entry in ledger if entry.message == "Goodbye"]
    assert receivers == ["C0", "C2"]
    assert max(entry.step for entry in ledger) == 2


def test_the_server_logs_the_reason(caplog):
    run(flow(), clients(3, 5, 3), min_clients=2)
    assert caplog.messages == [
        "the reply of client 'C1' to ReportSize was rejected: clients disagree on the size:"
        " 3 at 'C0', 'C2'; 5 at 'C1'"
    ]


@pytest.mark.parametrize(("sizes", "needed"), [((3, 5, 3), None), ((3, 5), 1), ((1, 1, 2, 2), 1)])
def test_a_disagreement_ends_the_run(sizes, needed):
    """Too few remain in the first case; there is no majority in the others."""
    with pytest.raises(Disagreement, match=r"^clients disagree on the size: \d at [^.]*$"):
        run(flow(), clients(*sizes), min_clients=needed)


def test_clients_lost_before_are_named():
    class Broken(SizeClient):
        @handles(ReportSize)
        def report(self, request):
            raise OSError

    transport = InProcess(
        {"A": SizeClient(1), "B": SizeClient(1), "C": SizeClient(2), "D": Broken(1)}
    )
    with pytest.raises(Disagreement, match=r"2 at 'C'. Lost: 'D': OSError at ReportSize, step 1$"):
        run(flow(), transport, min_clients=3)


def test_only_passive_clients_remain():
    def exclude_all():
        replies = yield ReportSize()
        yield from exclude(replies, dict.fromkeys(replies, "no reason"))

    with pytest.raises(ValueError, match="every remaining client is passive"):
        run(exclude_all(), clients(1, 1, passive=(1,)), min_clients=1)


def test_too_few_after_an_exclusion():
    def exclude_one():
        replies = yield ReportSize()
        yield from exclude(replies, {"C0": "no reason"})

    with pytest.raises(TooFewClients, match="'C0': InvalidReply at ReportSize, step 1"):
        run(exclude_one(), clients(1, 1))


def test_nobody_is_excluded():
    """Without a reason the flow does not even stop."""
    replies = Replies({"A": Size(1)})
    with pytest.raises(StopIteration) as stop:
        next(exclude(replies, {}))
    assert stop.value.value is replies


def test_what_the_flow_yields():
    steps = exclude(Replies({"A": Size(1), "B": Size(2)}, ["P"]), {"A": "too small"})
    assert next(steps) == Reject({"A": "too small"})
    with pytest.raises(StopIteration) as stop:
        steps.send(Replies({}, ["P"], ["A"]))
    rest = stop.value.value
    assert ([*rest], rest.declined, rest.lost) == (["B"], ["P"], ["A"])


def test_an_exclusion_that_the_flow_handles():
    def stubborn():
        replies = yield ReportSize()
        try:
            yield from settle(replies, same_size)
        except Disagreement:
            return "finished"

    assert run(stubborn(), clients(1, 2, 1)) == "finished"


def with_names(**features):
    """Return descriptions of two features with these names; an empty text means no names."""
    return {
        client: SimpleNamespace(n_features=2, features=tuple(names))
        for client, names in features.items()
    }


@pytest.mark.parametrize(
    ("features", "minority"),
    [
        ({"A": "xy", "B": "xy", "C": "xz"}, ["C"]),
        ({"A": "xy", "B": "xz"}, []),
        ({"A": "", "B": "xy", "C": "xz"}, []),  # one without names is not more than one with
        ({"A": "", "B": "xy", "C": "", "D": "xz"}, ["B", "D"]),
        ({"A": "", "B": "xy", "C": "", "D": "xz", "E": "xy"}, ["D"]),
        ({"A": "x", "B": "xy", "C": "xyz"}, ["A", "C"]),  # not one name per feature
    ],
)
def test_who_leaves_when_names_differ(features, minority):
    with pytest.raises(Disagreement) as raised:
        agree_on_features(with_names(**features))
    assert raised.value.minority == minority


def test_two_liars_with_different_names_do_not_end_a_run(relay):
    """The honest clients have no names."""
    clients = {name: HorizontalDBSCANClient([[0.1, 0.2], [0.2, 0.1]]) for name in "ABCXY"}

    def naming(*names):
        def tamper(request, reply):
            counted = decode(reply)
            if not isinstance(counted, CellCounts):
                return reply
            return encode(CellCounts(counted.cells, counted.counts, names))

        return tamper

    liars = {"X": naming("a", "b"), "Y": naming("a", "c")}
    model = HorizontalDBSCAN(1.0, 2).fit(relay(clients, liars), min_clients=3)
    assert set(model.ledger_.lost) == {"X", "Y"}
    assert model.cell_counts_.tolist() == [6]
