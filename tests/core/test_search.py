"""The search for the client whose reply ends a run: it leaves, and the others go on."""

import copy
import warnings
from types import SimpleNamespace
from typing import Annotated

import msgspec
import numpy as np
import pytest
from sklearn.utils import check_random_state

from fedlib import FederatedXGBRegressor
from fedlib.boosting.client import RegressionClient
from fedlib.core import search
from fedlib.core.aggregation import Disagreement, exclude
from fedlib.core.client import Client, handles
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Done, Message
from fedlib.core.protocol import InvalidRequest, TooFewClients, run
from fedlib.core.search import NotRepeatable, Once, searching
from fedlib.testing import Recorder

NAMES = "ABCDE"


class Weight(Message):
    discloses = "a weight"
    weight: float


class ReportWeight(Message):
    discloses = "the mean weight"
    reply = Weight
    mean: Annotated[float, msgspec.Meta(ge=-100, le=100)] = 0.0


class KeepMean(Message):
    discloses = "the mean weight"
    asks_for_data = False
    mean: float = 0.0


class Scales(Client):
    """A client whose weight can be another one from the second request on."""

    def __init__(self, first, second=None):
        self.weights = [first, first if second is None else second]
        self.n_asked = 0

    @handles(ReportWeight)
    def report(self, request):
        self.n_asked += 1
        return Weight(self.weights[self.n_asked > 1])

    @handles(KeepMean)
    def keep(self, request):
        return Done()


def transport(*weights):
    pairs = [one if isinstance(one, tuple) else (one,) for one in weights]
    return InProcess({name: Scales(*pair) for name, pair in zip(NAMES, pairs, strict=False)})


def mean_of(replies):
    return sum(reply.weight for reply in replies.values()) / len(replies)


def flow(limit=50.0):
    """Ask for weights twice, the second time with their mean, which must be small."""
    mean = 0.0
    for _ in range(2):
        replies = yield ReportWeight(mean)
        mean = mean_of(replies)
        if mean > limit:
            raise ValueError(f"the mean must be at most {limit}; got {mean}")
    replies = yield KeepMean(mean)
    return mean, replies.lost


def fit(weights, make=flow, min_clients=1):
    sites = transport(*weights)
    return run(searching(make(), make), sites, min_clients=min_clients), dict(sites.ledger.lost)


@pytest.mark.parametrize("step", [1, 2])
def test_a_client_whose_reply_ends_the_run_leaves(step):
    last = (1e6,) if step == 1 else (3.0, 1e6)
    (mean, lost), recorded = fit([1.0, 2.0, last, 3.0])
    assert (mean, lost) == (2.0, ["C"])
    assert recorded == {"C": f"InvalidReply at ReportWeight, step {step}"}


def test_a_request_that_no_client_could_read_is_not_sent():
    """The mean of all weights is none that the next request may have."""

    def unlimited():
        return flow(float("inf"))

    (mean, lost), _ = fit([1.0, 2.0, -1e6, 3.0], unlimited)
    assert (mean, lost) == (2.0, ["C"])
    with pytest.raises(InvalidRequest, match=r"ReportWeight cannot be sent.*<= 100"):
        run(unlimited(), transport(1e6, 2e6), min_clients=1)


def test_two_clients_leave_if_the_flow_works_without_neither():
    """Of both, each alone makes it fail."""
    (mean, lost), _ = fit([1e6, 2.0, 1e6, 3.0, 4.0])
    assert (mean, sorted(lost)) == (3.0, ["A", "C"])


def test_an_error_stays_if_every_choice_would_do():
    """The weights of any four clients are small enough, so no client is to blame."""

    def summing():
        replies = yield ReportWeight()
        if len(replies) > 4:
            raise ValueError("there are five")
        yield KeepMean()

    with pytest.raises(ValueError, match=r"^there are five$"):
        fit([1.0] * 5, summing)


def test_an_error_stays_if_it_does_not_depend_on_replies():
    def failing():
        yield ReportWeight()
        raise KeyError("missing")

    with pytest.raises(KeyError, match="^'missing'$"):
        fit([1.0] * 5, failing)


def test_too_few_clients_would_remain():
    """The error is that of the flow."""
    with pytest.raises(ValueError, match=r"^the mean must be at most 50.0; got 250001.5$"):
        fit([1.0, 2.0, 1e6, 3.0], min_clients=4)


def test_clients_that_an_error_names_leave():
    """Without A, too, the flow would not compare any more; but it knows that B is wrong."""

    def naming():
        replies = yield ReportWeight()
        if len(replies) > 2 and (wrong := [n for n, one in replies.items() if one.weight > 9]):
            raise Disagreement(f"{wrong[0]} is too heavy", wrong[:1])
        replies = yield KeepMean(mean_of(replies))
        return replies.lost

    assert fit([1.0, 10.0, 2.0], naming)[0] == ["B"]
    assert fit([1.0, 10.0, 2.0, 20.0, 3.0], naming)[0] == ["B", "D"]
    with pytest.raises(Disagreement, match=r"^B is too heavy$"):
        fit([1.0, 10.0, 2.0], naming, min_clients=3)


def test_a_disagreement_without_a_minority_is_not_searched():
    def undecided():
        replies = yield ReportWeight()
        if len({one.weight for one in replies.values()}) > 1:
            raise Disagreement("there are two weights")
        yield KeepMean()

    with pytest.raises(Disagreement, match=r"^there are two weights$"):
        fit([1.0, 2.0], undecided)


def test_clients_may_have_been_rejected_before():
    def rejecting():
        replies = yield ReportWeight()
        replies = yield from exclude(replies, {n: "odd" for n in replies if n == "A"})
        if mean_of(replies) > 50:
            raise ValueError("too heavy")
        replies = yield KeepMean(mean_of(replies))
        return sorted(replies.lost)

    assert fit([1.0, 10.0, 1e6, 3.0], rejecting)[0] == ["A", "C"]


def test_a_flow_that_draws_other_numbers_is_not_searched():
    random = np.random.default_rng(0)

    def drawing():
        replies = yield ReportWeight(random.random())
        if mean_of(replies) > 50:
            raise ValueError("too heavy")

    with pytest.raises(ValueError, match="^too heavy$"):
        fit([1.0, 2.0, 1e6], drawing)


def test_a_long_run_is_not_searched(monkeypatch):
    """Its replies are not kept."""
    monkeypatch.setattr(search, "MAX_RECORDED", 50)
    assert fit([1.0, 1e6, 3.0])[0] == (2.0, ["B"])
    with pytest.raises(ValueError, match="the mean must be at most"):
        fit([1.0, (3.0, 1e6), 3.0])


def test_many_clients_are_halved():
    asked = []

    def works(excluded):
        asked.append(excluded)
        return 777 in excluded

    assert search._guilty(range(1000), works) == (777,)
    assert len(asked) < 120


def test_errors_that_the_run_raises_reach_the_flow():
    def ending():
        try:
            yield ReportWeight()
            yield ReportWeight()
        except TooFewClients as error:
            return str(error)

    class Silent(Client):
        pass

    sites = InProcess({"A": Silent()})
    assert "0 of 1 clients remain" in run(searching(ending(), ending), sites)


def test_a_warning_is_no_reason_to_exclude_a_client():
    """Neither if it is an error, nor when the flow is repeated."""

    def warning():
        replies = yield ReportWeight()
        if mean_of(replies) > 1:
            warnings.warn("heavy", stacklevel=1)
        return mean_of(replies)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="heavy"):
            fit([1.0, 2.0, 1.0], warning)


def test_the_warnings_of_the_flow_that_goes_on_are_shown():
    """Those of the others are not."""

    def warning():
        replies = yield ReportWeight()
        warnings.warn(f"without {sorted(set('ABC').difference(replies))}", stacklevel=1)
        if mean_of(replies) > 50:
            raise ValueError("too heavy")
        yield KeepMean()

    with pytest.warns(UserWarning, match="without") as shown:
        fit([1.0, 1e6, 3.0], warning)
    assert [str(one.message) for one in shown] == ["without []", "without ['B']"]


def test_a_function_is_called_once_per_value():
    calls = []

    def call(report):
        calls.append(report.n)
        if report.n == 2:
            raise RuntimeError("no")
        return 10 * report.n

    once = Once(call, "n")
    assert [once(SimpleNamespace(n=n)) for n in (1, 1, 3)] == [10, 10, 30]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            once(SimpleNamespace(n=2))
    assert calls == [1, 3, 2]
    repeated = search._is_repeated.set(True)
    try:
        assert once(SimpleNamespace(n=3)) == 30
        with pytest.raises(NotRepeatable):
            once(SimpleNamespace(n=4))
    finally:
        search._is_repeated.reset(repeated)


PARTS = [(np.arange(8.0).reshape(-1, 1) + i, np.arange(8.0)) for i in range(4)]


def test_a_callback_is_not_called_again():
    """Neither is its error a reason to exclude a client."""
    calls = []

    def callback(report):
        calls.append(report.n_rounds)
        if report.n_rounds == 2:
            raise RuntimeError("enough")

    sites = InProcess({name: RegressionClient(p) for name, p in zip(NAMES, PARTS, strict=False)})
    with pytest.raises(RuntimeError, match="^enough$"):
        FederatedXGBRegressor(3, callback=callback).fit(sites, min_clients=1)
    assert calls == [1, 2]


@pytest.mark.parametrize("random_state", [None, 3, np.random.RandomState(1)])
def test_a_repeated_flow_draws_the_same_numbers(random_state):
    """The generator that the user has given, or the common one, continues as without a search."""
    options = {"subsample": 0.5, "validation_fraction": 0.5}
    given = copy.deepcopy(random_state)
    plain = FederatedXGBRegressor(2, **options, random_state=given)
    common = check_random_state(None)
    before = common.get_state()
    seeds = [next(plain._flow()).seed for _ in range(2)]
    common.set_state(before)
    estimator = FederatedXGBRegressor(2, **options, random_state=random_state)
    again = estimator._repeated_flow()
    assert [next(estimator.protocol()).seed for _ in range(2)] == seeds
    assert [next(again()).seed for _ in range(2)] == [seeds[0]] * 2
    common.set_state(before)


def test_a_search_over_an_estimator_continues_the_same_run():
    """The seed of the repeated flow is that of the run, though nobody has given one."""

    def lie(request, reply):
        fields = msgspec.msgpack.decode(reply)
        return msgspec.msgpack.encode(fields | {"n_margins": 3})

    parts = {name: RegressionClient(part) for name, part in zip(NAMES, PARTS, strict=False)}
    sites = Recorder(parts, {"C": lie})
    model = FederatedXGBRegressor(2, subsample=0.5).fit(sites, min_clients=3)
    assert dict(model.ledger_.lost) == {"C": "InvalidReply at DescribeTargets, step 1"}
    assert "base_margin must have 1 column" in model.ledger_.why_lost("C")
