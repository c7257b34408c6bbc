"""A request for too much work is refused before anything is computed from rows."""

import msgspec
import numpy as np
import pytest
from all_protocols import CASES
from hostile_server import MASKED_CASES, TABLES, changed, conversation, make_client, subject

from fedlib.clustering.density.bounded_cells import CountGrid, CountWithNoise
from fedlib.clustering.density.horizontal import AssignCells, HorizontalDBSCANClient
from fedlib.clustering.kmeans.messages import FindCentres
from fedlib.clustering.mixtures.messages import ImproveMixture
from fedlib.core.client import Client, handles
from fedlib.core.messages import (
    MAX_WORK,
    Declined,
    Done,
    Message,
    Privacy,
    TooMuchWork,
    check_work,
    cost_error,
    privacy_of,
    work_of,
)
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import noise

OPEN_CASES = [case for case in CASES if "masked" not in case]


@pytest.mark.parametrize("case", OPEN_CASES)
def test_too_much_work_is_refused_before_it_is_computed(case, monkeypatch):
    estimator, parts = subject(case)
    client = make_client(estimator, parts()[0])
    monkeypatch.setattr(client, "handle", lambda request: pytest.fail("it was computed"))
    costly = [one for one in conversation(case) if work_of(one) > 1]
    for request in costly:
        client.max_work = work_of(request) - 1
        with pytest.raises(TooMuchWork):
            client.answer(request)
        if request.asks_for_data:
            site = GuardedClient(client, Policy.from_dict({"max_work": 1}), estimator.name)
            site.enter("A", 5)
            assert site.answer(request) == Declined("max_work")


def test_every_conversation_has_costly_requests_and_deliveries():
    """So no case of the test above passes because it has nothing to refuse."""
    kinds = {type(one) for case in OPEN_CASES for one in conversation(case) if work_of(one) > 1}
    assert len(kinds) > 40
    assert {"AssignCells", "KeepTrees", "TakeModel"} <= {kind.__name__ for kind in kinds}


@pytest.mark.parametrize(
    "case", [*OPEN_CASES, *MASKED_CASES, *(f"{name}, noisy" for name in TABLES)]
)
def test_ordinary_requests_are_far_below_the_limit(case):
    for request in conversation(case):
        check_work(request, MAX_WORK / 100)


@pytest.mark.parametrize("case", OPEN_CASES)
def test_every_integer_of_a_request_is_work_or_declared_effortless(case):
    for request in conversation(case):
        for field in request.__struct_fields__:
            if type(value := getattr(request, field)) is not int:
                continue
            more = unchecked(request, field, 1000 * (value + 2))
            if field in request.effortless:
                assert more.work() == request.work(), (type(request).__name__, field)
            else:
                cost = work_of(more) + more.memory()
                assert cost > 2 * (work_of(request) + request.memory()), type(request).__name__


def unchecked(request, field, value):
    """Return a request with another value of a field, without checks."""
    other = msgspec.structs.replace(request)
    msgspec.structs.force_setattr(other, field, value)
    return other


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith(", noisy")])
def test_noise_is_counted_before_it_is_drawn(case, monkeypatch):
    """Whatever a request with noise counts otherwise."""
    estimator, parts = subject(case)
    monkeypatch.setattr(noise, "draw", lambda *arguments, **options: pytest.fail("noise was drawn"))
    client, n_refused = make_client(estimator, parts()[0]), 0
    for request in conversation(case):
        if privacy_of(request) is not None:
            assert work_of(request) >= request.work() + request.reply_size()
            client.max_work = work_of(request) - 1
            with pytest.raises(TooMuchWork):
                client.answer(request)
            n_refused += 1
    assert n_refused


class Forgotten(Message):
    """A request whose author has not thought of its work."""

    discloses = "nothing"
    n_steps: int
    weights: tuple[float, ...]


class Counted(Forgotten):
    asks_for_data = False
    effortless = ("n_steps",)


class ForgottenClient(Client):
    @handles(Forgotten)
    def compute(self, request):
        pytest.fail("it was computed")

    @handles(Counted)
    def keep(self, request):
        return Done()


def test_a_request_without_a_formula_falls_on_the_safe_side():
    client, request = ForgottenClient(), Forgotten(10**6, (0.0,) * 10)
    client.max_work = 10**7 - 1
    with pytest.raises(
        TooMuchWork, match=r"Forgotten needs 1e\+07 .* per row and feature, more than max_work="
    ):
        client.answer(request)
    assert client.answer(Counted(10**6, (0.0,) * 10)) == Done()
    client.max_work = 9
    with pytest.raises(TooMuchWork):
        client.answer(Counted(10**6, (0.0,) * 10))


def test_small_requests_for_much_work_are_refused():
    origin, one = np.zeros(2, np.int64), np.ones(1)
    grid = CountWithNoise(0.1, origin, np.full(2, 2**11), Privacy(rho=0.1))
    assert cost_error(grid, MAX_WORK) == ""
    assert "CountWithNoise needs 8.39e+07 operations" in cost_error(grid, 10**6)
    steps = ImproveMixture(one, one[:, None], one[:, None, None], "full", 0.0, 10**7, 0.0)
    assert "ImproveMixture needs 1.01e+09 operations" in cost_error(steps, MAX_WORK)
    starts = FindCentres(1, 0.25, n_init=10**4, max_iter=10**4, tol=0.0, seed=0)
    assert "FindCentres needs 1.02e+10 operations" in cost_error(starts, MAX_WORK)
    short = FindCentres(1, 0.25, n_init=10**5, max_iter=1, tol=0.0, seed=0)
    assert "FindCentres needs 1.02e+09 operations" in cost_error(short, MAX_WORK)


def test_a_delivery_of_too_much_work_is_refused():
    cells = np.arange(600)[:, None]
    request = AssignCells(1.0, cells, np.zeros(600, np.int64), "point", "faces")
    client = HorizontalDBSCANClient([[0.5]])
    site = GuardedClient(client, Policy.from_dict({"max_work": 1000}), "horizontal-dbscan")
    site.enter("A", 5)
    with pytest.raises(TooMuchWork):
        site.answer(request)
    assert client.state is None
    client.max_work = MAX_WORK
    assert site.answer(request) == Done()


def test_a_reply_of_more_than_a_gigabyte_is_refused_whatever_the_limit():
    """Each cell of this grid has a count of eight bytes."""
    client = HorizontalDBSCANClient([[0.5, 0.5]])
    client.max_work, shape = 10**18, np.array([2**14, 2**14])
    with pytest.raises(TooMuchWork, match="asks for .* values, more than 134217728"):
        client.answer(CountGrid(2**-14, np.zeros(2, np.int64), shape))


@pytest.mark.parametrize("case", OPEN_CASES)
def test_the_work_of_any_request_can_be_judged(case):
    rng = np.random.default_rng(0)
    for request in conversation(case):
        for _ in range(20):
            assert work_of(changed(rng, request)) >= 0


def test_the_size_of_a_reply_is_finite_whatever_a_request_says():
    """The product of the counts of cells has no float, and must not be an error of its own."""
    request = CountWithNoise(1.0, np.zeros(80, int), np.full(80, 2**24), Privacy(1.0))
    assert cost_error(request, MAX_WORK).startswith("CountWithNoise needs ")
