"""The client that obeys the rules of its site and records its messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import compress
from typing import Annotated, Any

import msgspec
import numpy as np

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import (
    BadRequest,
    Client,
    LostState,
    ProtectedFailure,
    WrappedState,
    Wrapper,
)
from fedlib.core.ledger import SERVER, Entry, Ledger
from fedlib.core.messages import (
    Array,
    Declined,
    Done,
    Failure,
    Message,
    TooMuchWork,
    arrays,
    cost_error,
    decode,
    encode,
    registry,
)
from fedlib.core.registry import LEAVE_ONE_OUT
from fedlib.core.site_memory import SiteIsLocked
from fedlib.protection.policy.rules import Policy, Rules
from fedlib.protection.privacy import Charge, DisclosureBudgetSpent, Privacy, privacy_of
from fedlib.protection.secure.client import SecureClient
from fedlib.protection.secure.identities import commit
from fedlib.protection.secure.messages import ConfirmSurvivors, MaskValues

logger = logging.getLogger(__name__)

DECLINED = "declined"  # of a record
# The errors that do not depend on the rows.
PUBLIC = (LostState, SiteIsLocked, TooMuchWork, BadRequest)
Review = Callable[[Message, Message], bool]
Row = tuple[int, str, str, str, int, str]


class PolicyViolation(Exception):
    """A rule forbids a reply.

    Attributes
    ----------
    rule : str
        The name of the rule, which the server learns. The text stays at the site.
    of_rows : bool
        Whether it is forbidden because of the rows: then the answer is a bit about them.
    """

    def __init__(self, rule: str, text: str, of_rows: bool = False):
        super().__init__(text)
        self.rule, self.of_rows = rule, of_rows


@contextmanager
def within_budget() -> Iterator[None]:
    """Make the error of a spent budget one of the rule ``budget``."""
    try:
        yield
    except DisclosureBudgetSpent as error:
        raise PolicyViolation("budget", str(error)) from error


class GuardedState(WrappedState):
    """The state of a guarded client.

    Attributes
    ----------
    n_rounds, n_bytes : int
        The count of requests for data that were answered, and the size of all replies.
    declined : str
        The rule by which a request was declined; empty if none was.
    entries : tuple
        The rows of the site's ledger.
    members : tuple of str
        The clients of the secure sums so far, if the rule ``same_members`` holds.
    classes : array (n_rows,) of int64
        The class of each row: those that the replies of the run do not separate. Empty before the
        first reply to which a minimum count applies.
    delivered : tuple of (str, bytes)
        The last result of each kind that the server has delivered, as a digest.
    terms : tuple of (str, bytes)
        The requests that were answered with a minimum count, and a digest of what determines the
        terms of a row.
    """

    discloses = WrappedState.discloses
    n_rounds: Annotated[int, msgspec.Meta(ge=0)] = 0
    n_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    declined: str = ""
    entries: tuple[Row, ...] = ()
    members: tuple[str, ...] = ()
    classes: Annotated[np.ndarray, Array("int64", ("rows",), ge=0)] = msgspec.field(
        default_factory=lambda: np.empty(0, np.int64)
    )
    delivered: tuple[tuple[str, bytes], ...] = ()
    terms: tuple[tuple[str, bytes], ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The messages of this site, with the numbers of the requests to it as steps."""
        return Ledger([Entry(*row) for row in self.entries])


class GuardedClient(Wrapper[GuardedState]):
    """A client whose replies obey the rules of its site, and that records its messages.

    With secure sums, it guards the client that masks the values. Its rules about parameters apply
    to the masked request, and with a minimum count it declines, because it cannot know the sums.

    Without noise, and with a minimum count m, every class of the common refinement of all
    partitions of the rows that the client has answered in the run has no rows or at least m: rows
    that replies leave out are a class, too. Rows with weights count as `sizes_of` says. Rows
    that delivered rules or a delivered model tell apart are in different classes.

    What a row adds, besides its class, is fixed for each kind of request: by what was delivered,
    and by the fields that the client states as terms, by default all (`fedlib.core.client
    .partitions`). A request with other ones than the first that was answered is declined. So every
    difference of sums that the server can compute belongs to at least m rows, or to none. Whether a
    request is declined because of its classes depends on the rows, as the ledger says.

    With a minimum count, a request that fails because of the rows is declined by this rule, too: a
    server could otherwise find single values by requests that fail from some value on.

    A minimum count does not apply to a reply that describes no rows, nor to one with noise:
    whether it is sent would depend on the count of rows, without noise. So with a minimum count, a
    reply with noise needs a budget, because noise averages out, and a loss of at most
    ``max_epsilon``, because a smaller noise hides no row.

    The losses of noisy replies, with or without a budget, and the requests that are declined
    because of the rows are counted in all runs about the table (`Policy.memory_of`), whatever
    becomes of the policy or a session.

    After it has declined one request for data, it declines all others of the run. So it either
    takes no part in the result, or leaves the run if it has shared data before.

    Parameters
    ----------
    client : Client
        The protocol's client.
    policy : Policy, optional
        The rules; by default everything is allowed.
    protocol : str, default=""
        The name of the protocol.
    review : callable, optional
        A function that takes a request and the reply that would be sent, and returns whether it may
        be sent.

    Attributes
    ----------
    ledger : Ledger
        The messages between this client and the server: the part of the server's ledger that
        concerns this client, if every step of the run addresses it.

    Examples
    --------
    Of four points, two are in one cell. The other cells do not leave the site.

    >>> from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
    >>> policy = Policy.from_dict({"min_count": 2})
    >>> client = HorizontalDBSCANClient([[0.1], [0.2], [5.0], [7.0]])
    >>> guarded = GuardedClient(client, policy, "horizontal-dbscan")
    >>> guarded.answer(CountCells(cell_size=1.0)).counts
    array([2])
    """

    state_class = GuardedState

    def __init__(
        self,
        client: Client,
        policy: Policy | None = None,
        protocol: str = "",
        review: Review | None = None,
    ):
        super().__init__(client)
        self.protocol, self.review = protocol, review
        policy = policy or Policy()
        self.rules, self.records = policy.rules(protocol), policy.memory_of(client)
        self.budget = None if policy.budget is None else policy.budget.of(self.records)
        if self.rules is not None:
            client.max_work = self.rules.max_work

    @property
    def ledger(self) -> Ledger:
        return self._state.ledger

    def answer(self, request: Message) -> Message:
        """Return the reply of the wrapped client, or `Declined` with the rule that forbids it."""
        self._record(request, sent=False)
        try:
            reply = self._permitted(request)
        except PolicyViolation as forbidden:
            logger.warning(
                "declined %s: %s (%s)", type(request).__name__, forbidden, forbidden.rule
            )
            reply = Declined(forbidden.rule)
            if forbidden.of_rows:
                self.records.add(DECLINED, self.protocol, [type(request).__name__, forbidden.rule])
            self._keep(declined=forbidden.rule)
        self._record(reply, sent=True)
        return reply

    def fail(self, error: Exception) -> Failure:
        """Return what is sent after an error, and record it."""
        failure = super().fail(error)
        self._record(failure, sent=True)
        return failure

    def _record(self, message: Message, *, sent: bool) -> None:
        """Add a message to the ledger; it belongs to the step of the last request."""
        entries, size, one = self._state.entries, len(encode(message)), Ledger()
        step = (entries[-1][0] if entries else 0) + (not sent)
        sender, receiver = (self.name, SERVER) if sent else (SERVER, self.name)
        one.record(step, sender, receiver, message, size)
        self._keep(
            n_bytes=self._state.n_bytes + size * sent,
            entries=(*entries, one.entries[0]),
        )

    def _permitted(self, request: Message) -> Message:
        """Return the reply to a request.

        Raises
        ------
        PolicyViolation
            When a rule forbids the request or the reply.
        """
        if request.reply is Done:
            self._note_delivery(request)
        if not request.asks_for_data:
            return self.inner.answer(request)
        if self.passive:
            return Declined()
        if self._state.declined:  # a part of the replies would make a wrong result
            raise PolicyViolation(self._state.declined, "another request of this run was declined")
        if self.rules is None:
            text = f"the protocol {self.protocol!r} is not allowed, as it is not in the policy"
            raise PolicyViolation("protocol", text)
        self._check_request(self.rules, request)
        self._check_budget(request)
        try:
            reply = self._answer(self.rules, request)
        except ProtectedFailure:  # every other error comes before rows are read
            self._charge(request)
            raise
        self._charge(request)
        if isinstance(reply, Declined | Done):
            return reply
        reply = self._check_reply(self.rules, request, reply)
        if self.review is not None and not self.review(request, reply):
            raise PolicyViolation("review", "the reply was not confirmed")
        self._keep(n_rounds=self._state.n_rounds + 1)
        return reply

    def _note_delivery(self, request: Message) -> None:
        """Remember what was delivered: later sums can depend on it."""
        new, before = {type(request).__name__: commit(encode(request))}, self._state.delivered
        if request.begins and self._is_known(request):
            new, before = {}, tuple(one for one in before if registry[one[0]].remains)
        self._keep(delivered=tuple(sorted({**dict(before), **new}.items())))

    def _is_known(self, request: Message) -> bool:
        """Return whether the wrapped client handles a request."""
        try:
            self.inner.check_known(request)
        except TypeError:
            return False
        return True

    def _terms(self, request: Message) -> bytes:
        """Return a digest of what determines the terms of a row; empty for other replies."""
        if (stated := self.inner.stated(request)) is None:
            return b""
        values = [encode(request)]
        if stated.terms is not None:
            values = [repr(getattr(request, name)).encode() for name in stated.terms]
        # What counts singly has functions that the server chooses, anyway.
        delivered = () if stated.singly else self._state.delivered
        return commit(*values, *(digest for _, digest in delivered))

    def _answer(self, rules: Rules, request: Message) -> Message:
        """Return the reply of the wrapped client.

        Raises
        ------
        PolicyViolation
            With a minimum count, when it fails for these rows.
        """
        try:
            return self.inner.answer(request)
        except Exception as error:
            # The errors of requests with noise or masks are the same for all rows.
            protected = privacy_of(request) is not None or isinstance(self.inner, SecureClient)
            if rules.min_count == 1 or protected or not self._describes_rows(request):
                raise
            if isinstance(error, PUBLIC):
                raise
            self.inner.check_known(request)  # whose error does not depend on rows either
            raise PolicyViolation("min_count", f"{type(error).__name__}: {error}", True) from error

    def _check_request(self, rules: Rules, request: Message) -> None:
        """Check what does not depend on the rows."""
        n_absent = self.protocol.startswith(LEAVE_ONE_OUT)  # of each fold
        if rules.min_clients > 1 and (self.n_clients or 0) - n_absent < rules.min_clients:
            raise PolicyViolation(
                "min_clients",
                f"the run must have at least {rules.min_clients + n_absent} clients, has"
                f" {self.n_clients or 'an unknown number'}",
            )
        if rules.max_rounds is not None and self._state.n_rounds >= rules.max_rounds:
            text = f"max_rounds={rules.max_rounds} requests of this run were answered"
            raise PolicyViolation("max_rounds", text)
        if rules.same_members and isinstance(request, ConfirmSurvivors):
            members = self._state.members or tuple(sorted(request.survivors))
            if members != tuple(sorted(request.survivors)):
                survivors, before = ", ".join(request.survivors), ", ".join(members)
                text = f"the sums of this run were over {before}, and this one is over {survivors}"
                raise PolicyViolation("same_members", text)
            self._keep(members=members)
        asked = decode(request.request) if isinstance(request, MaskValues) else request
        for name, allowed in rules.parameters.items():
            effective = asked.effective(getattr(self.inner, "n_features", 1))
            value = effective.get(name, getattr(asked, name, allowed))
            if value is not allowed and not allowed.permits(value):
                raise PolicyViolation("parameters", f"{name} must be {allowed}, got {value!r}")
        privacy = privacy_of(request)
        if privacy is not None:
            self._check_loss(rules, privacy)
        elif rules.min_count > 1 and self._describes_rows(request):
            terms = self._terms(request)
            if dict(self._state.terms).get(type(request).__name__, terms) != terms:
                text = (
                    "was answered for other terms of a row: another parameter or delivered result"
                )
                raise PolicyViolation("min_count", f"{type(request).__name__} {text}")
        most = rules.max_declines if privacy is None else None
        if most is not None and len(self.records.values(DECLINED)) >= most:
            text = f"{most} requests about this table were declined because of the rows"
            raise PolicyViolation("max_declines", f"{text}, in all runs")
        if problem := cost_error(asked, rules.max_work):
            raise PolicyViolation("max_work", problem)

    def _check_loss(self, rules: Rules, privacy: Privacy) -> None:
        """Check that a reply with noise hides a row, if a minimum count does not."""
        if rules.min_count > 1 and self.budget is None:
            text = "with min_count, replies with noise need a budget, because noise averages out"
            raise PolicyViolation(
                "budget", f"{text}: add budget = {{ epsilon = 1.0, delta = 1e-6 }}"
            )
        epsilon = privacy.epsilon or math.sqrt(2 * privacy.rho)
        if epsilon > rules.most_epsilon:
            text = f"{privacy} is a loss of {epsilon:.6g}, more than {rules.most_epsilon:g}"
            raise PolicyViolation(
                "max_epsilon", f"{text}: use a smaller epsilon, or set max_epsilon"
            )

    def _check_budget(self, request: Message) -> None:
        """Raise PolicyViolation if the reply has no noise, or loses more than the budget has."""
        name, privacy = type(request).__name__, privacy_of(request)
        if self.budget is None or not self._describes_rows(request):
            return
        if privacy is None:
            text = f"the reply to {name} has no noise, but the site a budget: use --epsilon"
            raise PolicyViolation("budget", text)
        with within_budget():
            self.budget.check(privacy, self.protocol, name)

    def _charge(self, request: Message) -> None:
        """Charge the table with the loss of a reply that was computed, before it leaves.

        A refusal before any row was read costs nothing. Without a budget, the loss counts for one
        that a later policy has.
        """
        name, privacy = type(request).__name__, privacy_of(request)
        if privacy is None or not self._describes_rows(request):
            return
        if self.budget is None:
            with self.records.records() as kept:
                kept.append(Charge(self.protocol, name, privacy.epsilon, privacy.rho).record())
            return
        with within_budget():  # another run may have spent it meanwhile
            self.budget.charge(privacy, self.protocol, name)

    def _describes_rows(self, request: Message) -> bool:
        """Return whether the reply to a request depends on the rows of the site."""
        return type(request) not in self.inner.open_requests

    def _check_reply(self, rules: Rules, request: Message, reply: Message) -> Message:
        """Return the reply, without small groups if they can be left out."""
        if reply.extremes and not rules.extremes:
            text = f"{type(reply).__name__} contains the smallest and largest values of columns"
            raise PolicyViolation("extremes", text)
        if rules.min_count > 1 and self._describes_rows(request) and privacy_of(request) is None:
            reply = self._with_large_groups(rules, request, reply)
        size = self._state.n_bytes + len(encode(reply))
        if rules.max_bytes is not None and size > rules.max_bytes:
            text = f"the replies of this run have {size} bytes with this one, more than"
            raise PolicyViolation("max_bytes", f"{text} {rules.max_bytes}", True)
        return reply

    def _with_large_groups(self, rules: Rules, request: Message, reply: Message) -> Message:
        """Return the reply without small groups, if they can be left out.

        Raises
        ------
        PolicyViolation
            When they cannot, or the reply contains more than sums over groups.
        """
        name, least, singly = type(reply).__name__, rules.min_count, rules.groups == "singly"
        partitions = self.inner.partition(request, singly)
        if partitions is None:
            raise PolicyViolation(
                "min_count", f"{name} contains more than sums over groups of rows"
            )
        prepared = self.inner.prepared(request)
        if prepared is None:
            raise PolicyViolation("min_count", f"nothing is known about the rows behind {name}")
        classes, made = self._state.classes, np.empty(0, np.int64)
        for groups in prepared:
            made = _refined(made, groups)
        if len(made) and not singly:
            classes = _refined(classes, made)
        for groups in partitions:
            if type(reply).grouped_by:
                groups, reply = self._left_out(rules, classes, groups, reply)
            if singly:
                parts = groups + 1 if not len(made) else _refined(made, groups) + 1
                parts = np.where(groups < 0, 0, parts)
                sizes = sizes_of(parts, self.inner.weights_of_rows())[1:]
            else:
                classes = _refined(classes, groups)
                sizes = sizes_of(classes, self.inner.weights_of_rows())
            if n_small := int(((sizes > 0) & (sizes < least)).sum()):
                text = f"{n_small} groups have fewer than {least} rows, alone or as a difference"
                raise PolicyViolation("min_count", text, True)
        terms = dict(self._state.terms) | {type(request).__name__: self._terms(request)}
        self._keep(classes=classes, terms=tuple(sorted(terms.items())))
        return reply

    def _left_out(
        self, rules: Rules, classes: Ints, groups: Ints, reply: Message
    ) -> tuple[Ints, Message]:
        """Return the groups without the small ones, -1 for their rows, and the reply likewise."""
        least, singly = rules.min_count, rules.groups == "singly"
        weights = self.inner.weights_of_rows()
        left = without_small(groups, least, None if singly else classes, weights)
        n_groups = len(getattr(reply, type(reply).grouped_by))
        kept = np.bincount(left[left >= 0], minlength=n_groups) > 0
        if not kept.all():
            text = "left %d of %d groups out of %s: fewer than %d rows (min_count)"
            logger.warning(text, np.count_nonzero(~kept), n_groups, type(reply).__name__, least)
            reply = _with_groups(reply, kept)
        return left, reply


def sizes_of(groups: Ints, weights: Floats | None = None) -> Floats | Ints:
    """Return the size of each group, as a count of rows of which none has more than its share.

    With weights, it is their sum divided by the largest of them, so that a row has at most the
    fraction 1 / size of the weight of its group. The size of a union of groups is at least that of
    the one with the largest weight.

    Parameters
    ----------
    groups : array (n_rows,) of int64
        The group of each row, at least 0.
    weights : array (n_rows,), optional
        The weights of the rows, at least 0. A group without any weight has the count of its rows.

    Examples
    --------
    >>> sizes_of(np.array([0, 0, 0, 1, 1, 1]), np.array([2.0, 2.0, 2.0, 100.0, 1.0, 1.0]))
    array([3.  , 1.02])
    """
    counts: Ints = np.bincount(groups, minlength=1)
    if weights is None:
        return counts
    largest = np.zeros(len(counts))
    np.maximum.at(largest, groups, weights)
    weighted = largest[groups] > 0
    relative = weights[weighted] / largest[groups[weighted]]  # equal weights add up exactly
    sums = np.bincount(groups[weighted], relative, len(counts))
    return np.where(largest > 0, sums, counts)


def without_small(
    groups: Ints, least: int, classes: Ints | None = None, weights: Floats | None = None
) -> Ints:
    """Return the groups of rows (n_rows,) without the small ones, whose rows get -1.

    Parameters
    ----------
    groups : array (n_rows,) of int64
        The group of each row, or -1.
    least : int
        The least count of rows.
    classes : array (n_rows,) of int64, optional
        The classes that earlier replies separate; empty if there is one class. With them, the
        rows of a class that are left out are also none or at least that many: otherwise a server
        would find a small rest by subtraction. So further groups are left out, the smallest first.
    weights : array (n_rows,), optional
        The weights of the rows, which `sizes_of` takes into account.

    Examples
    --------
    The group of two rows is too small. By itself it would be found as a rest, so the group of three
    is left out as well.

    >>> groups = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    >>> without_small(groups, 3)
    array([ 0,  0,  0,  0, -1, -1,  2,  2,  2])
    >>> without_small(groups, 3, np.empty(0, np.int64))
    array([ 0,  0,  0,  0, -1, -1, -1, -1, -1])
    """
    sizes = sizes_of(groups + 1, weights)
    groups = np.where(sizes[groups + 1] < least, -1, groups)
    if classes is not None and (groups >= 0).any():
        classes = classes if len(classes) else np.zeros(len(groups), np.int64)
        _leave_out_rests(groups, least, classes, weights, sizes[1:])
    return groups


def _leave_out_rests(
    groups: Ints, least: int, classes: Ints, weights: Floats | None, sizes: Floats | Ints
) -> None:
    """Write -1 for the rows of groups that have few rows of a class, or must hide a small rest.

    First, the class whose rest contains the first row loses its smallest group, also in other
    classes, until no rest is small. Then the groups with few rows of a class are left out, and the
    rests that become small grow likewise. A class with a small rest and no group ends it. Each
    group is left out once, so the time hardly grows faster than the count of rows.
    """
    kept = np.flatnonzero(groups >= 0)
    cells = _refined(classes[kept], groups[kept])
    first = np.unique(cells, return_index=True)[1]
    of_cells, in_classes = groups[kept][first], classes[kept][first]
    order = np.lexsort((first, sizes[of_cells], in_classes))
    candidates = {one: iter(of.tolist()) for one, of in _parts(of_cells[order], in_classes)}
    by_group = kept[np.argsort(groups[kept], kind="stable")]
    members = dict(_parts(by_group, groups[by_group]))
    outside = np.flatnonzero(groups < 0)
    by_class = outside[np.argsort(classes[outside], kind="stable")]
    rests = dict(_parts(by_class, classes[by_class]))
    waiting: list[tuple[int, int]] = []  # a heap: the first row of a rest, and its class

    def is_small(one: int) -> bool:
        none = np.zeros(len(rests[one]), np.int64)
        of_rows = None if weights is None else weights[rests[one]]
        return bool(sizes_of(none, of_rows)[0] < least)

    def note(one: int) -> None:
        if is_small(one):
            heappush(waiting, (int(rests[one][0]), one))

    def leave_out(group: int) -> None:
        rows = members.pop(group)
        groups[rows] = -1
        for one in np.unique(classes[rows]).tolist():
            before = rests.get(one, rows[:0])
            rests[one] = np.sort(np.append(before, rows[classes[rows] == one]))
            note(one)

    def hide() -> bool:
        """Return whether no rest is small at the end."""
        while waiting:
            _, one = heappop(waiting)
            if not is_small(one):
                continue
            group = next((one for one in candidates.get(one, iter(())) if one in members), None)
            if group is None:
                return False
            leave_out(group)
        return True

    for one in rests:
        note(one)
    if not hide():
        return
    of_rows = None if weights is None else weights[kept]
    few = sizes_of(cells, of_rows) < least
    for group in np.unique(of_cells[few]).tolist():
        if group in members:
            leave_out(group)
    hide()


def _parts(values: Ints, keys: Ints) -> Iterable[tuple[int, Ints]]:
    """Yield each of the sorted keys (n,) with its values."""
    if len(keys):
        found, starts = np.unique(keys, return_index=True)
        yield from zip(found.tolist(), np.split(values, starts[1:]), strict=True)


def _with_groups(reply: Message, kept: Bools) -> Message:
    """Return a reply with some of its groups: their axis and tuples become shorter."""
    marks = arrays(type(reply))
    axis = marks[type(reply).grouped_by].axes[0]
    shorter: dict[str, Any] = {
        name: np.compress(kept, getattr(reply, name), axis=mark.axes.index(axis))
        for name, mark in marks.items()
        if axis in mark.axes
    }
    for name in reply.per_group:
        shorter[name] = tuple(compress(getattr(reply, name), kept))
    return msgspec.structs.replace(reply, **shorter)


def _refined(classes: Ints, groups: Ints) -> Ints:
    """Return the classes (n_rows,) of rows that are together in ``classes`` and in ``groups``."""
    pairs = groups if not len(classes) else classes * (groups.max(initial=-1) + 2) + groups + 1
    refined: Ints = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return refined
