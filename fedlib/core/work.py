"""How much work a request may ask for, judged from the request alone, before it is computed.

A request states the operations per row and feature (`Message.work`), and for how many values a
client needs memory whatever its rows are (`Message.memory`). The noise of a reply is drawn for each
value, whatever the rows are, and counts as operations, too. The count of the rows plays no part: a
refusal that depends on it would disclose it. So the time for a reply grows with the rows of the
site, and the limit is one per row. It also holds for requests that deliver a result.
"""

from __future__ import annotations

from fedlib.core.messages import MAX_BYTES, Message
from fedlib.core.privacy_loss import privacy_of

MAX_VALUES = MAX_BYTES // 8  # of one reply
MAX_WORK = 10**8  # operations per row and feature for one reply: a second per row at most
NOISE = 20  # operations for the noise of one value: `MAX_WORK` draws for two minutes
STEP = 100  # operations of one step of an iteration, however few rows and centres there are


class TooMuchWork(ValueError):
    """A request asks for more operations or memory than the client is willing to spend."""


def problem_of_work(request: Message, most: float) -> str:
    """Return why a client should refuse a request; empty if it may answer.

    Parameters
    ----------
    request : Message
    most : float
        The most operations per row and feature.

    Examples
    --------
    >>> from fedlib.clustering.kmeans.messages import FindCentres
    >>> problem_of_work(FindCentres(3, 0.25, n_init=2**40, max_iter=300, tol=0.0, seed=0), MAX_WORK)
    'FindCentres needs 4.53e+16 operations per row and feature, more than max_work=1e+08'
    """
    name, work, n_values = type(request).__name__, work_of(request), request.memory()
    if work > most:
        return (
            f"{name} needs {work:.3g} operations per row and feature, more than max_work={most:.3g}"
        )
    if n_values > MAX_VALUES:
        return f"{name} asks for {n_values:.3g} values, more than {MAX_VALUES}"
    return ""


def work_of(request: Message) -> float:
    """Return the operations of a request: those per row and feature, and those of its noise."""
    n_noises = 0.0 if privacy_of(request) is None else request.reply_size()
    return request.work() + NOISE * n_noises


def check_work(request: Message, most: float) -> None:
    """Raise TooMuchWork when a client should refuse a request; see `problem_of_work`."""
    if problem := problem_of_work(request, most):
        raise TooMuchWork(problem)
