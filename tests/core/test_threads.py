"""BLAS and OpenMP have one thread during the work, for any number of cores."""

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedlib.core.threads import one_thread


def n_threads(kind):
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == kind}


@pytest.fixture(autouse=True)
def _three_threads():
    """Set three threads, so that the tests can fail on a machine with one core."""
    with threadpool_limits(3):
        yield


def test_the_fixture_sets_three_threads():
    assert n_threads("blas") == {3}


def test_one_thread_inside_and_the_previous_number_afterwards():
    with one_thread():
        assert n_threads("blas") == {1}
        assert n_threads("openmp") <= {1}
    assert n_threads("blas") == {3}
    assert n_threads("openmp") <= {3}


def test_the_number_is_restored_after_an_error():
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert n_threads("blas") == {3}


def test_blocks_may_be_nested():
    with one_thread():
        with one_thread():
            pass
        assert n_threads("blas") == {1}
    assert n_threads("blas") == {3}


def test_the_last_of_several_threads_restores_the_number():
    """BLAS's limit belongs to the process, so it must stay until the last block ends."""
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with one_thread():
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(10)
    with one_thread():
        pass
    assert n_threads("blas") == {1}
    leave.set()
    other.join()
    assert n_threads("blas") == {3}
