"""The sessions' state machine, driven by hand with times of our choice."""

import re
from math import inf

import pytest

from fedlib.transports.http import session as module
from fedlib.transports.http.limits import Limits
from fedlib.transports.http.session import (
    MAX_CALLS,
    TRANSITIONS,
    Event,
    IllegalTransition,
    Refusal,
    RefusedCall,
    Reply,
    Session,
    State,
)
from fedlib.transports.http.sessions import Sessions

LIMITS = Limits(join_timeout=100, request_timeout=1000, gone_after=5, rejoin_timeout=20)
CLIENT_EVENTS = (Event.JOIN, Event.CALL, Event.LEAVE, Event.REPLY)
# How to bring a new session into each state; with a request opened before the client has joined,
# and, for AWAY and LOST, after its reply.
PATHS = {
    State.EXPECTED: [(), ("ask",)],
    State.WAITING: [("join",)],
    State.WORKING: [("join", "ask"), ("ask", "join")],
    State.ANSWERED: [("join", "ask", "reply"), ("join", "ask", "reply", "leave", "join")],
    State.AWAY: [("join", "leave"), ("join", "ask", "leave"), ("join", "ask", "reply", "leave")],
    State.LOST: [("join", "lose"), ("join", "ask", "lose"), ("join", "ask", "reply", "lose")],
    State.DONE: [("join", "end"), ("join", "ask", "reply", "end")],
}


def do(session, event, process="process"):
    """Cause an event in a session, at the time 0."""
    match event:
        case Event.JOIN:
            session.join(process, 0)
        case Event.CALL:
            session.call(process)
        case Event.LEAVE:
            session.leave(process, 0)
        case Event.REPLY:
            session.accept(process, Reply(session.number, b"new"))
        case Event.ASK:
            session.ask(b"request")
        case Event.TAKE:
            session.take()
        case Event.LOSE:
            session.lose("Gone", 0)
        case Event.END:
            session.end("finished")


def in_state(path):
    """Return a session after a path of `PATHS`."""
    session = Session(LIMITS)
    for step in path:
        if step == "reply":
            session.accept("process", Reply(session.number, b"old"))
        else:
            do(session, Event(step))
    return session


def allowed_takes(session):
    """Return whether the session has a request that can be closed."""
    return session.request is not None and not session.awaited


def test_the_paths_lead_to_their_states():
    assert set(PATHS) == set(State)
    for state, paths in PATHS.items():
        assert {in_state(path).state for path in paths} == {state}


def table_of_the_docstring():
    """Return the rows of the table in the module's docstring, cut at its rulers."""
    lines = module.__doc__.splitlines()
    ruler, *_ = rulers = [line for line in lines if re.fullmatch("[= ]+", line)]
    columns = [slice(*found.span()) for found in re.finditer("=+", ruler)]
    columns[-1] = slice(columns[-1].start, None)
    first, _, last = (i for i, line in enumerate(lines) if line == ruler)
    assert len(rulers) == 3
    rows = [[line[column].strip() for column in columns] for line in lines[first + 1 : last]]
    return rows[0], rows[2:]


def test_the_table_of_the_docstring_is_the_table_of_the_code():
    header, rows = table_of_the_docstring()
    assert header == ["State", *(event.name for event in Event)]
    assert [row[0] for row in rows] == [state.name for state in State]
    for name, *cells in rows:
        row = TRANSITIONS[State[name]]
        expected = [
            "" if cell is None else cell.name if isinstance(cell, State) else cell.value
            for cell in map(row.get, Event)
        ]
        assert cells == expected


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_cell_of_the_table(state, event):
    cell = TRANSITIONS[state].get(event)
    sessions = [in_state(path) for path in PATHS[state]]
    if event is Event.TAKE and cell is not None:
        sessions = [session for session in sessions if allowed_takes(session)]
        assert sessions
    for session in sessions:
        if isinstance(cell, Refusal):
            with pytest.raises(RefusedCall) as refused:
                do(session, event)
            assert refused.value.refusal is cell
            assert session.state is state
        elif cell is None:
            assert event not in CLIENT_EVENTS  # no call of a client is an error of the server
            with pytest.raises(IllegalTransition):
                do(session, event)
            assert session.state is state
        else:
            request, reply, over = session.request, session.reply, session.reason
            do(session, event)
            if event is Event.JOIN and cell is State.WAITING and request is not None:
                cell_now = State.WORKING if reply is None else State.ANSWERED
            else:
                cell_now = cell
            assert session.state is (State.DONE if over and cell is State.WAITING else cell_now)


def test_take_needs_a_request_with_a_reply_or_a_lost_client():
    for path in [("join",), ("join", "ask"), ("ask",), ("join", "leave"), ("join", "end")]:
        with pytest.raises(IllegalTransition, match="there is no reply to take"):
            in_state(path).take()
    assert in_state(("join", "ask", "reply")).take() == b"old"
    assert in_state(("join", "ask", "reply", "leave")).take() == b"old"
    assert in_state(("join", "ask", "reply", "end")).take() == b"old"
    assert in_state(("join", "ask", "reply", "lose")).take() is None
    assert in_state(("join", "ask", "lose")).take() is None


def test_a_process_that_joins_after_the_end_receives_the_outcome():
    session = Session(LIMITS)
    session.end("stopped")
    assert session.state is State.EXPECTED
    session.join("late", 0)
    assert (session.state, session.informed) == (State.DONE, False)
    with pytest.raises(RefusedCall, match="stopped"):
        session.next_request("late")
    assert session.informed


def test_a_process_that_joins_a_lost_session_receives_the_reason():
    session = in_state(("join", "lose"))
    session.join("next", 1)
    with pytest.raises(RefusedCall, match="Gone") as refused:
        session.call("next")
    assert refused.value.refusal is Refusal.OVER
    assert session.since == 0  # when it was lost, not when the process joined


def test_another_process_can_join_only_when_the_present_one_is_silent():
    session = Session(LIMITS)
    session.join("first", 0)
    with pytest.raises(RefusedCall, match="already present") as refused:
        session.join("second", 4.9)
    assert refused.value.refusal is Refusal.CONFLICT
    session.join("first", 4.9)  # again, and a sign of life
    with pytest.raises(RefusedCall, match="already present"):
        session.join("second", 9.8)
    session.join("second", 9.9)
    with pytest.raises(RefusedCall, match="another process of this client has joined"):
        session.call("first")
    session.call("second")


def test_the_next_process_gets_the_open_request():
    session = in_state(("join", "ask"))
    assert session.next_request("process") == (1, b"request")
    assert session.next_request("process") == (1, b"request")  # it stays open
    session.join("next", 10)
    assert session.next_request("next") == (1, b"request")
    session.accept("next", Reply(1, b"reply"))
    assert session.next_request("next") is None


def test_a_copy_of_an_accepted_reply_is_ignored_and_another_reply_refused():
    session = in_state(("join", "ask"))
    for number in (-1, 0, 2):
        with pytest.raises(RefusedCall, match="no such reply is expected"):
            session.accept("process", Reply(number, b"reply"))
    session.accept("process", Reply(1, b"reply"))
    session.accept("process", Reply(1, b"reply"))
    with pytest.raises(RefusedCall):
        session.accept("process", Reply(1, b"other"))
    assert session.take() == b"reply"
    session.accept("process", Reply(1, b"reply"))
    assert session.reply is None
    session.ask(b"request 2")
    session.accept("process", Reply(1, b"reply"))
    assert session.reply is None
    session.accept("process", Reply(2, b"reply"))  # the same bytes, as the reply to request 2
    assert session.take() == b"reply"


def test_a_request_replaces_the_one_of_an_aborted_exchange():
    session = in_state(("join", "ask", "reply"))
    session.ask(b"new request")
    assert (session.state, session.reply) == (State.WORKING, None)
    assert session.next_request("process") == (2, b"new request")


def test_the_number_of_calls_in_progress_is_limited():
    session = in_state(("join",))
    for _ in range(MAX_CALLS):
        session.enter("process", 1)
    with pytest.raises(RefusedCall, match="more than 4 calls") as refused:
        session.enter("process", 2)
    assert refused.value.refusal is Refusal.TOO_MANY
    assert session.seen == 1
    session.exit()
    session.enter("stranger", 3)
    assert session.seen == 1  # no sign of life of the present process


# All sessions of a run


def joined(names="ab", limits=LIMITS):
    """Return the sessions of a run whose clients have joined at the time 0."""
    sessions = Sessions(names, limits, now=0)
    for name in names:
        sessions[name].join("process", 0)
    assert sessions.ready(0)
    return sessions


def test_the_run_waits_for_clients_until_all_are_present_or_time_is_up():
    sessions = Sessions("ab", LIMITS, now=0)
    sessions.await_clients(10)
    sessions["a"].join("process", 20)
    sessions["b"].join("process", 21)
    sessions["a"].leave("process", 22)
    assert (sessions.n_present, sessions.ready(109)) == (1, False)
    assert sessions.ready(110)
    assert sessions.ready(0)  # it is decided once


def test_a_client_that_has_never_joined_is_lost_immediately():
    sessions = Sessions("ab", LIMITS, now=0)
    sessions["a"].join("process", 0)
    sessions.ready(200)
    sessions["a"].join("process", 200)
    sessions.ask({"a": b"", "b": b""}, now=200)
    assert sessions.expire(200) == ["a"]
    assert (sessions["b"].state, sessions["b"].reason) == (State.LOST, "NeverJoined")


def test_joining_is_over_when_every_client_has_refused():
    sessions = Sessions("ab", LIMITS, now=0)
    sessions["a"].refuse("NoSecureKey")
    assert not sessions.ready(1)
    sessions["b"].refuse("OtherSchema")
    sessions["b"].join("process", 2)  # another process joins after all
    sessions["b"].refuse("OtherSchema")  # has no effect
    assert not sessions.ready(3)
    sessions = Sessions("ab", LIMITS, now=0)
    for name in "ab":
        sessions[name].refuse("NoSecureKey")
    assert sessions.ready(4)
    sessions.ask({"a": b"", "b": b""}, now=4)
    assert sessions.expire(4) == []
    assert {s.reason for s in sessions.by_name.values()} == {"NeverJoined_NoSecureKey"}


@pytest.mark.parametrize(
    ("signs", "leaves", "lost_at", "reason"),
    [
        ([], None, 1025, "Gone"),  # 5 s silent, 20 s to rejoin
        ([1010], None, 1035, "Gone"),
        ([1010], 1012, 1032, "Left"),
        ([], 990, 1020, "Left"),  # time before the exchange does not count
        (range(1000, 2000), None, 2000, "TimedOut"),
    ],
)
def test_deadlines_of_an_exchange(signs, leaves, lost_at, reason):
    sessions = joined("a")
    session = sessions["a"]
    if leaves == 990:
        session.leave("process", 990)
    sessions.ask({"a": b""}, now=1000)
    for sign in signs:
        session.enter("process", sign)
        session.exit()
    if leaves == 1012:
        session.leave("process", 1012)
    assert sessions.expire(lost_at - 0.1) == ["a"]
    assert sessions.expire(lost_at) == []
    assert (session.state, session.reason, session.since) == (State.LOST, reason, lost_at)


def test_the_whole_run_has_a_limit():
    sessions = Sessions("a", Limits(max_seconds=50), now=0)
    assert (sessions.ready(49), sessions.ready(50)) == (False, True)
    sessions["a"].join("process", 0)
    sessions.ask({"a": b""}, now=49)
    sessions["a"].enter("process", 49)
    assert sessions.expire(50) == []
    assert sessions["a"].reason == "TimedOut"
    assert not Sessions("a", Limits(join_timeout=inf), now=0).ready(1e9)


def test_only_clients_that_owe_a_reply_are_lost():
    sessions = joined("abc")
    sessions.ask({"a": b"", "b": b""}, now=0)
    sessions["a"].accept("process", Reply(1, b"reply"))
    sessions["a"].leave("process", 1)
    assert sessions.expire(500) == []
    assert [s.state for s in sessions.by_name.values()] == [State.AWAY, State.LOST, State.WAITING]
    assert sessions.take() == {"a": b"reply", "b": None}
    assert sessions["a"].request is None


def test_the_end_loses_the_clients_that_owe_a_reply():
    sessions = joined("abcd")
    sessions["c"].leave("process", 0)
    sessions.ask(dict.fromkeys("abc", b""), now=1)
    sessions["a"].accept("process", Reply(1, b"reply"))
    sessions.end("stopped", now=2)
    sessions.end("finished", now=3)  # the first outcome counts
    ends = [(s.state.value, s.reason) for s in sessions.by_name.values()]
    expected = [("done", "stopped"), ("lost", "Closed"), ("lost", "Closed"), ("done", "stopped")]
    assert ends == expected
    assert sessions.take() == {"a": b"reply", "b": None, "c": None}
    assert sessions.uninformed(3) == ["a", "b", "d"]
    for name in "abd":
        with pytest.raises(RefusedCall):
            sessions[name].call("process")
    assert sessions.uninformed(3) == []


def test_a_request_after_the_end_is_not_sent():
    sessions = joined("a")
    sessions.end("finished", now=1)
    sessions.ask({"a": b""}, now=2)
    assert sessions.expire(2) == []
    assert (sessions["a"].reason, sessions.take()) == ("Closed", {"a": None})


def test_nobody_waits_for_the_replies_of_an_aborted_exchange():
    sessions = joined("ab")
    sessions.ask({"a": b"", "b": b""}, now=1)
    sessions.abort()
    assert sessions.expire(5000) == []
    sessions.ask({"a": b""}, now=5000)
    sessions["a"].enter("process", 5000)
    assert sessions.expire(5001) == ["a"]
    sessions.abort()
    sessions.end("stopped", now=5002)
    assert {(s.state, s.reason) for s in sessions.by_name.values()} == {(State.DONE, "stopped")}


def test_rejected_clients_are_lost_and_the_first_reason_counts():
    sessions = joined("ab")
    sessions["b"].lose("Gone", 1)
    lost = {"a": "InvalidReply at CountCells, step 1", "b": "Gone at CountCells, step 1", "x": ""}
    sessions.reject(lost)
    sessions.reject(lost)
    assert sessions["a"].reason == lost["a"]
    assert sessions["a"].since is None  # the run does not report when
    assert (sessions["b"].reason, sessions["b"].since) == ("Gone", 1)
