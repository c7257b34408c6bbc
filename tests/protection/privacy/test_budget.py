"""The budget of a site: in memory, in a file, and in the policy."""

import json
from fractions import Fraction

import numpy as np
import pytest

from fedlib.clustering.density.bounded_cells import CountWithNoise
from fedlib.core.client import BadRequest, LostState, ProtectedFailure, handles
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Declined, Failure, decode, encode
from fedlib.core.protocol import serve
from fedlib.core.site_memory import SiteIsLocked, TableMemory
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import (
    Budget,
    Charge,
    DisclosureBudgetSpent,
    Privacy,
    epsilon_of,
    privacy_per_request,
)
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.summary.client import SummaryClient
from fedlib.tables.summary.messages import DescribeColumns

from .toy import CountNoisily, CountRows, NoisyCount, ToyClient


def test_concentrated_losses_are_added_up_as_rho():
    budget = Budget(epsilon=1.0, delta=1e-6)
    for _ in range(2):
        budget.charge(Privacy(rho=0.005), "toy", "CountNoisily")
    budget.charge(Privacy(epsilon=0.25), "toy", "CountNoisily")
    assert budget.spent == pytest.approx(epsilon_of(0.01, 1e-6) + 0.25)
    assert budget.spent < 2 * epsilon_of(0.005, 1e-6) + 0.25
    assert budget.charges[0] == Charge("toy", "CountNoisily", rho=0.005)


@pytest.mark.parametrize(("total", "n"), [(0.3, 3), (0.7, 7), (1.0, 10), (1.1, 11)])
def test_tenths_add_up_to_the_budget_that_a_person_types(total, n, tmp_path):
    """Sums of floats do not: three tenths are more than 0.3, and ten are less than 1."""
    memory = TableMemory(tmp_path / "spent.jsonl")
    for _ in range(n):
        Budget(total, memory=memory).charge(Privacy(epsilon=0.1), "toy", "Count")
    message = f"with epsilon=1e-15 would raise the spent epsilon from {total:g} to "
    with pytest.raises(DisclosureBudgetSpent, match=message):
        Budget(total, memory=memory).charge(Privacy(epsilon=1e-15), "toy", "Count")
    assert Budget(total, memory=memory).spent == Fraction(n, 10)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 2.3])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_run_spends_all_of_a_budget_and_nothing_is_left(epsilon, delta):
    for n_requests in (1, 3, 7, 30):
        budget = Budget(epsilon, delta)
        for _ in range(n_requests):
            privacy = privacy_per_request(epsilon, delta, n_requests)
            budget.charge(privacy, "toy", "Count")
        with pytest.raises(DisclosureBudgetSpent):
            budget.charge(Privacy(epsilon=1e-4 * epsilon), "toy", "Count")


def test_nothing_is_charged_for_what_is_declined():
    budget = Budget(epsilon=1.0)
    with pytest.raises(DisclosureBudgetSpent, match="from 0 to inf, the budget is 1.0"):
        budget.charge(Privacy(rho=1e-9), "toy", "CountNoisily")  # delta = 0 has no use for rho
    with pytest.raises(DisclosureBudgetSpent, match="from 0 to 1.5"):
        budget.charge(Privacy(epsilon=1.5), "toy", "CountNoisily")
    budget.charge(Privacy(epsilon=1.0), "toy", "CountNoisily")
    assert budget.spent == 1.0


def test_a_budget_holds_across_runs(tmp_path):
    path = TableMemory(tmp_path / "spent.jsonl")
    Budget(1.0, 0.0, path).charge(Privacy(epsilon=0.625), "toy", "Count")
    path = TableMemory(tmp_path / "spent.jsonl")
    budget = Budget(1.0, 0.0, path)
    assert budget.spent == 0.625
    with pytest.raises(DisclosureBudgetSpent):
        budget.charge(Privacy(epsilon=0.5), "toy", "Count")
    Budget(1.0, 0.0, path).charge(Privacy(epsilon=0.375), "toy", "Count")
    assert Budget(1.0, 0.0, path).spent == 1.0


def test_a_damaged_file_is_no_fresh_budget(tmp_path):
    path = tmp_path / "spent.jsonl"
    for damaged, message in {
        '{"protocol": "toy"}\n': "must contain one record per line",
        '["charge", "toy", {"epsilon": -1}]\n': "spent.jsonl: a charge must have a",
    }.items():
        path.write_text(damaged)
        with pytest.raises(ValueError, match=message):
            Budget(1.0, 0.0, TableMemory(path)).charge(Privacy(epsilon=0.1), "toy", "Count")
    with pytest.raises(ValueError, match="cannot be used"):
        Budget(1.0, 0.0, TableMemory(tmp_path / "none" / "file")).charge(
            Privacy(epsilon=0.1), "toy", "Count"
        )


# In the policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget = 1", "budget must be { epsilon = NUMBER, .*; got 1"),
        ("budget = { delta = 0.1 }", "budget must be { epsilon = NUMBER"),
        ("budget = { epsilon = 1, rho = 1 }", "of which only epsilon is required; got"),
        ('budget = { epsilon = 1, file = "x" }', "budget must be"),
        ("budget = { epsilon = 0 }", "budget.epsilon must be a positive number up to 1e"),
        ("budget = { epsilon = 1, delta = 1.0 }", "budget.delta must be at least 0 and below 1"),
    ],
)
def test_an_invalid_budget_is_refused(text, message, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Policy.read(path)


def read_policy(folder, text):
    (folder / "policy.toml").write_text(text)
    return Policy.read(folder / "policy.toml")


def guarded(policy):
    return GuardedClient(ToyClient([[1.0], [2.0]]), policy, "toy")


def test_a_site_declines_what_exceeds_its_budget(tmp_path):
    request = CountNoisily(Privacy(epsilon=0.5))
    for declined in (False, False, True):  # three runs
        policy = read_policy(tmp_path, "budget = { epsilon = 1 }")
        site = guarded(policy)
        reply = site.answer(request)
        assert isinstance(reply, Declined if declined else NoisyCount)
    assert reply == Declined("budget")
    assert site.budget.spent == 1.0


def test_two_policies_over_one_table_share_a_budget(tmp_path):
    """Another table has its own, and the order of the files does not matter."""
    request, sites = CountNoisily(Privacy(epsilon=1.0)), []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        sites.append(guarded(read_policy(tmp_path / name, "budget = { epsilon = 1 }")))
    other = GuardedClient(ToyClient([[1.0], [3.0]]), Policy.read(tmp_path / "first/policy.toml"))
    replies = [site.answer(request) for site in (*sites, other)]
    assert [isinstance(reply, NoisyCount) for reply in replies] == [True, False, True]


def test_a_run_without_a_budget_counts_for_a_later_one(tmp_path):
    request, answers = CountNoisily(Privacy(epsilon=1.0)), []
    for policy in ("min_clients = 1", "budget = { epsilon = 1.5 }"):
        answers.append(guarded(read_policy(tmp_path, policy)).answer(request))
    assert isinstance(answers[0], NoisyCount)
    assert answers[1] == Declined("budget")


def test_what_is_charged_is_in_the_state_folder(tmp_path, state_folder):
    guarded(read_policy(tmp_path, "budget = { epsilon = 1 }")).answer(
        CountNoisily(Privacy(epsilon=0.5))
    )
    (file,) = state_folder.iterdir()
    assert json.loads(file.read_text()) == [
        "charge",
        "toy",
        {"protocol": "toy", "request": "CountNoisily", "epsilon": 0.5, "rho": 0.0},
    ]
    assert state_folder.stat().st_mode & 0o777 == 0o700


class FailingClient(ToyClient):
    @handles(CountNoisily)
    def count_noisily(self, request):
        raise ZeroDivisionError("of row 3")


def test_a_failure_with_noise_is_one_answer_and_locks_the_site(tmp_path):
    client, request = FailingClient([[1.0]]), CountNoisily(Privacy(epsilon=1.0))
    client.memory = TableMemory(tmp_path / "table.jsonl")
    assert decode(serve(client, encode(request), lambda error: None)) == Failure("ProtectedFailure")
    assert (tmp_path / "table.failed").read_text() == "CountNoisily: of row 3\n"
    again = ToyClient([[1.0]])
    again.memory = TableMemory(tmp_path / "table.jsonl")
    with pytest.raises(SiteIsLocked):
        again.answer(request)
    assert again.answer(CountRows()).n_rows == 1
    again.memory.lock.path.unlink()
    assert isinstance(again.answer(request), NoisyCount)


class RefusingClient(ToyClient):
    @handles(CountNoisily)
    def count_noisily(self, request):
        raise self.error


@pytest.mark.parametrize(
    "error", [BadRequest("other columns"), LostState("nothing"), TypeError("unknown"), None]
)
def test_what_is_refused_before_a_row_is_read_costs_nothing(error, tmp_path):
    """A server could otherwise spend the budget of a table by requests that nobody can answer."""
    policy = read_policy(tmp_path, "budget = { epsilon = 1 }")
    request, client = CountNoisily(Privacy(epsilon=1.0)), RefusingClient([[1.0]])
    client.error = error
    client.memory = TableMemory(tmp_path / "table.jsonl")
    if error is None:  # a locked site
        client.memory.lock.close("before")
        error = SiteIsLocked("before")
    asked = request
    if isinstance(error, TypeError):
        asked = CountWithNoise(1.0, np.array([0]), np.array([2]), Privacy(epsilon=1.0))
    with pytest.raises(type(error)):
        GuardedClient(client, policy, "toy").answer(asked)
    site = GuardedClient(ToyClient([[1.0]]), policy, "toy")
    assert site.budget.spent == 0.0
    assert isinstance(site.answer(request), NoisyCount)
    assert site.budget.spent == 1.0


def test_a_reply_that_exceeds_the_budget_is_not_computed():
    site = GuardedClient(FailingClient([[1.0]]), Policy(budget=Budget(1.0)), "toy")
    assert site.answer(CountNoisily(Privacy(epsilon=1.5))) == Declined("budget")


def test_what_is_computed_is_charged_whatever_becomes_of_it(tmp_path):
    policy = read_policy(tmp_path, "budget = { epsilon = 1 }")
    site = GuardedClient(FailingClient([[1.0]]), policy, "toy")
    with pytest.raises(ProtectedFailure):
        site.answer(CountNoisily(Privacy(epsilon=1.0)))
    assert GuardedClient(ToyClient([[1.0]]), policy, "toy").budget.spent == 1.0


def test_a_site_with_a_budget_sends_nothing_without_noise():
    client = guarded(Policy(budget=Budget(1.0)))
    assert client.answer(CountRows()) == Declined("budget")
    assert client.budget.spent == 0.0
    asked = DescribeColumns((), False, np.empty(0, np.int64), np.empty(0))
    for inner in (SummaryClient([[1.0]]), PipelineClient([[1.0]], ToyClient)):
        site = GuardedClient(inner, Policy(budget=Budget(1.0)))
        assert site.answer(asked) == Declined("budget")


def test_a_rebuilt_client_has_the_same_budget():
    policy = Policy(budget=Budget(1.0))
    client = guarded(policy)
    client.answer(CountNoisily(Privacy(epsilon=1.0)))
    rebuilt = guarded(policy)
    rebuilt.state = decode(encode(client.state))
    assert rebuilt.answer(CountNoisily(Privacy(epsilon=1.0))) == Declined("budget")


def test_the_ledger_shows_the_loss():
    ledger = Ledger()
    ledger.record(1, "server", "A", CountNoisily(Privacy(epsilon=0.5)), 10)
    assert ledger.entries[0].discloses == "nothing; the reply has epsilon=0.5"


def test_noise_of_a_few_rows_passes_the_minimum_count():
    policy = Policy.from_dict({"min_count": 2, "max_epsilon": 5.0, "budget": {"epsilon": 5}})
    reply = guarded(policy).answer(CountNoisily(Privacy(epsilon=5.0)))
    assert np.abs(reply.count).max() < 10


def test_the_file_is_private_and_no_link(tmp_path):
    budget = Budget(1.0, memory=TableMemory(tmp_path / "spent.jsonl"))
    budget.charge(Privacy(epsilon=0.1), "kmeans", "SumClusters")
    assert (tmp_path / "spent.jsonl").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").write_text("")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="link.jsonl: cannot be used"):
        Budget(1.0, memory=TableMemory(tmp_path / "link.jsonl")).charge(
            Privacy(epsilon=0.1), "kmeans", "x"
        )
    assert (tmp_path / "other").read_text() == ""
