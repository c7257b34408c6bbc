"""The classes on which all clients must agree."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from numpy.typing import NDArray

from fedlib.core.aggregation import Disagreement, agree
from fedlib.core.targets import read_classes, truth_spelling

Class = bool | int | float | str


class OneClassWarning(UserWarning):
    """Some clients have rows of one class only, and so propose no splits or poor ones."""


def problem_of_classes(classes: Sequence[Class]) -> str | None:
    """Return why a client cannot have these classes, or None."""
    if len({isinstance(label, str) for label in classes}) > 1:
        return "some classes are text and some are numbers"
    if not all(isfinite(label) for label in classes if isinstance(label, float)):
        return "a class is not finite"
    if len(set(classes)) < len(classes):
        return "a class occurs twice"
    return None


def agree_on_kind(replies: Mapping[str, Any]) -> None:
    """Raise Disagreement if classes are text at some clients and numbers at others.

    It does so, too, if truth values are written in several ways, which would be different classes.
    """
    kinds = {
        name: "text" if isinstance(reply.classes[0], str) else "numbers"
        for name, reply in replies.items()
        if reply.classes
    }
    if kinds:
        agree("whether classes are numbers or text", kinds)
    written = {
        name: ways
        for name, reply in replies.items()
        if (ways := truth_spelling([label for label in reply.classes if isinstance(label, str)]))
    }
    if written:
        agree("how truth values are written", written)


def agree_on_two_classes(replies: Mapping[str, Any], remedy: str = "") -> None:
    """Raise Disagreement if there are more than two classes at the clients.

    The minority are the clients with a class other than the two that most clients have. The text of
    the error ends with ``remedy``.
    """
    clients: dict[Class, list[str]] = {}
    for name, reply in replies.items():
        for label in reply.classes:
            clients.setdefault(label, []).append(name)
    if len(clients) <= 2:
        return
    common = sorted(clients, key=lambda label: -len(clients[label]))
    unique = len(clients[common[1]]) > len(clients[common[2]])
    others = {name for label in common[2:] for name in clients[label]} if unique else set()
    text = _not_two(sorted(clients), remedy)
    raise Disagreement(text, [name for name in replies if name in others])


def _not_two(classes: Sequence[Class], remedy: str = "") -> str:
    """Return the text of the error for another count of classes than two."""
    shown = ", ".join(map(repr, classes[:10])) + (", …" if len(classes) > 10 else "")
    more = remedy if len(classes) > 2 else ""
    if not classes:
        return "there must be 2 classes; no client has a row with a class"
    return f"there must be 2 classes; the clients have {len(classes)}: {shown}{more}"


def class_weights(
    replies: Mapping[str, Any], *, only_two: bool = True
) -> tuple[list[Class], list[float]]:
    """Return the classes of all clients in ascending order, and the weight of each."""
    total: dict[Class, float] = {}
    for reply in replies.values():
        for label, weight in zip(reply.classes, reply.weights.tolist(), strict=True):
            total[label] = total.get(label, 0.0) + weight
    classes = sorted(total)
    if only_two and len(classes) != 2:
        raise ValueError(_not_two(classes))
    if len(classes) < 2:
        raise ValueError(_not_two(classes).replace("2 classes", "at least 2 classes"))
    weights = [total[label] for label in classes]
    check_weights_of_classes(classes, weights)
    return classes, weights


def check_weights_of_classes(classes: Sequence[Class], weights: Sequence[float]) -> None:
    """Raise ValueError when a class has no rows with a weight."""
    if min(weights) == 0:
        each = "both classes need" if len(classes) == 2 else "every class needs"
        raise ValueError(
            f"{each} rows with a weight above 0; {list(classes)} have the weights {list(weights)}"
        )


def warn_of_one_class(replies: Mapping[str, Any], method: str) -> None:
    """Warn if clients that propose splits by their own rows have rows of one class only."""
    if names := [name for name, reply in replies.items() if (reply.weights > 0).sum() == 1]:
        shown = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
        warnings.warn(
            f"{len(names)} of {len(replies)} clients have rows of one class only, {shown}: with"
            f" method={method!r} they find no split that separates classes, and the model may be"
            " poor; method='histogram' gives the trees of all rows together",
            OneClassWarning,
            stacklevel=2,
        )


def given_classes(classes: Any, *, only_two: bool) -> tuple[Class, ...]:
    """Return the classes on which the clients have agreed before the run, in ascending order.

    Raises
    ------
    ValueError
        When they are not at least two different texts or finite numbers, or not exactly two.

    Examples
    --------
    >>> given_classes(["well", "ill"], only_two=True)
    ('ill', 'well')
    """
    try:
        listed = tuple(read_classes(classes, "classes").tolist())
    except ValueError as error:
        raise ValueError(f"classes must be texts or numbers; got {classes!r}: {error}") from error
    problem = problem_of_classes(listed)
    if problem is None and (len(listed) < 2 or (only_two and len(listed) > 2)):
        problem = f"there are {len(listed)}"
    if problem:
        wanted = "two" if only_two else "two or more"
        raise ValueError(f"classes must be {wanted} texts or numbers; got {classes!r}: {problem}")
    return tuple(sorted(listed))


def check_known(y: NDArray[Any], classes: Sequence[Class]) -> None:
    """Raise ValueError when some rows have a class that is not among the agreed ones.

    Examples
    --------
    >>> check_known(read_classes(["ill", "wel"]), ["ill", "well"])
    Traceback (most recent call last):
    ...
    ValueError: y must contain only the classes ['ill', 'well']; got 'wel'
    """
    if unknown := sorted(set(y.tolist()) - set(classes)):
        raise ValueError(f"y must contain only the classes {list(classes)}; got {unknown[0]!r}")
