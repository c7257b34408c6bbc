"""The audit: hostile requests, neighbouring tables, and what a server may not see.

AUDIT_EXAMPLES is the count of attempts per case, and AUDIT_SEED makes others.
"""

import os
import zlib

import numpy as np
import pytest
from all_protocols import CASES
from hostile_server import (
    MASKED_CASES,
    NOISY_CASES,
    accepted,
    control,
    conversation,
    grouped_answers,
    hostile,
    masked_answers,
    neighbours,
    noisy_answers,
    parts_of,
    passive_answers,
    protected_values,
    subject,
    unmasked,
)

from fedlib.core.messages import encode, privacy_of
from fedlib.protection import sums as row_sums
from fedlib.protection.secure import fixed_point
from fedlib.protection.secure.fixed_point import to_words

N = int(os.environ.get("AUDIT_EXAMPLES", "15"))
SEED = int(os.environ.get("AUDIT_SEED", "0"))

pytestmark = [
    pytest.mark.filterwarnings("ignore:features .* many values fall into one bin:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*points lie outside:UserWarning"),
]


def attempts(case, n):
    """Yield random requests and two neighbouring tables, which a site accepts."""
    rng = np.random.default_rng([zlib.crc32(case.encode()), SEED])
    n_attempts = n_changed = 0
    usual = {encode(one) for one in conversation(case)}
    for _ in range(n if case in CASES else max(3, n // 10)):  # tables take longer to read
        requests, tables = hostile(rng, conversation(case)), neighbours(rng, subject(case)[1]()[0])
        if all(accepted(case, table) for table in tables):
            n_attempts += 1
            n_changed += any(encode(one) not in usual for one in requests)
            yield requests, tables
    assert n_attempts, "no site has accepted a table"
    assert n_changed, "no request was changed"


def compare(case, answers, n):
    """Compare the answers of neighbouring tables; return one of each pair."""
    compared = []
    for requests, tables in attempts(case, n):
        first, second = (answers(case, table, requests) for table in tables)
        assert first == second, (requests[-1], tables)
        compared.append(first)
    return compared


@pytest.mark.parametrize("case", NOISY_CASES)
def test_replies_with_noise_do_not_depend_on_rows(case):
    """In class, number and length. Nor does a request make a site fail, which would lock it."""
    noisy = {type(one).reply.__name__ for one in conversation(case) if privacy_of(one) is not None}
    assert noisy, "no reply has noise"
    assert noisy <= control(case, noisy_answers)
    for answers in compare(case, noisy_answers, N):
        assert not any(error == "ProtectedFailure" for _, error, _ in answers), answers


@pytest.mark.parametrize("case", MASKED_CASES)
def test_what_is_masked_is_a_sum_over_rows(monkeypatch, case):
    """The words for all rows are the sums of those for two halves, whatever the request is.

    With fewer digits than a server can demand, each rounding shows.
    """
    rng = np.random.default_rng([zlib.crc32(case.encode()), SEED])
    first, second, everything = parts_of(subject(case)[1]()[0])
    usual, honest, n_compared = fixed_point.digits_for, conversation(case), 0
    for _ in range(max(10, N)):
        requests, fewer = hostile(rng, honest), rng.integers(-60, 60)

        def digits_for(*limits, fewer=fewer):
            return usual(*limits) if fewer < 0 else max(usual(*limits) - fewer, 4)

        for module in (fixed_point, row_sums):
            monkeypatch.setattr(module, "digits_for", digits_for)
        found = [unmasked(case, one, requests) for one in (first, second, everything)]
        for one, other, both in zip(*found, strict=True):
            if isinstance(both, str):
                assert one == other == both, requests
                continue
            n_compared += 1
            words = [to_words(*of) for of in (one, other, both)]
            assert (words[0] + words[1] == words[2]).all(), requests  # modulo 2**64
    assert n_compared > 5


@pytest.mark.parametrize("case", [case for case in CASES if "," not in case])
def test_a_passive_site_discloses_nothing(case):
    assert "Declined" in control(case, passive_answers)
    compare(case, passive_answers, N)


@pytest.mark.parametrize("case", MASKED_CASES)
def test_masked_replies_do_not_depend_on_rows(case):
    """Nor does a hostile request make a site fail, which would lock it."""
    assert "MaskedValues" in control(case, masked_answers)
    for answers in compare(case, masked_answers, max(5, N // 4)):
        assert not any(error == "MaskingFailed" for _, error, _ in answers), "MaskingFailed"


@pytest.mark.parametrize(
    "case", [case for case in CASES if "sked" not in case and "noisy" not in case]
)
def test_with_a_minimum_count_no_failure_depends_on_rows(case):
    """Only a declined request does, which the site counts."""
    assert any(one.asks_for_data for one in conversation(case))
    assert "Failure" not in control(case, grouped_answers)
    for requests, tables in attempts(case, N):
        answers = zip(*(grouped_answers(case, table, requests) for table in tables), strict=True)
        first = next((pair for pair in answers if pair[0][:2] != pair[1][:2]), ())
        assert "Failure" not in {kind for kind, *_ in first}, (first, requests, tables)


@pytest.mark.parametrize("case", NOISY_CASES)
def test_one_row_changes_no_more_than_declared(case):
    assert protected_values(case, subject(case)[1]()[0], conversation(case)), "nothing has noise"
    for requests, tables in attempts(case, N):
        first, second = (protected_values(case, table, requests) for table in tables)
        place = requests[-1], tables
        assert len(first) == len(second), place
        for (values, declared), (others, _) in zip(first, second, strict=True):
            change = np.ldexp(np.abs(values - others).ravel(), declared.digits)
            l1, l2 = declared.units  # with the rounding of the row
            assert change.sum() <= l1, place
            assert np.sqrt(np.square(change).sum()) <= l2 * (1 + 1e-12), place
            assert np.count_nonzero(change) <= declared.n_entries, place
