"""The sessions' state machine under random sequences of events: what holds after each of them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedlib.transports.http.limits import Limits
from fedlib.transports.http.session import Refusal, RefusedCall, Reply, State
from fedlib.transports.http.sessions import Sessions

LIMITS = Limits(join_timeout=100, request_timeout=1000, gone_after=5, rejoin_timeout=20)
NAMES = st.sampled_from("ab")
PROCESSES = st.sampled_from(["first", "second"])
BODIES = st.sampled_from([b"x", b"y"])


class RandomRun(RuleBasedStateMachine):
    """A run whose clients and server act at random, in any order."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.sessions = Sessions("ab", LIMITS, self.now)
        self.open = []  # the clients of the current exchange
        self.numbers = dict.fromkeys("ab", 0)
        self.accepted = {}  # the first reply accepted, by client and number
        self.reasons = {}  # the first reason of each lost client

    def attempt(self, call, *arguments):
        """Make a client's call; return the refusal if there is one."""
        try:
            call(*arguments)
        except RefusedCall as refused:
            return refused
        return None

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 30.0, 1000.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(name=NAMES, process=PROCESSES)
    def join(self, name, process):
        session = self.sessions[name]
        other = session.process not in ("", process)
        free = not (other and session.alive(self.now)) or session.over
        assert (self.attempt(session.join, process, self.now) is None) == free

    @rule(name=NAMES, process=PROCESSES)
    def heartbeat(self, name, process):
        session = self.sessions[name]
        session.enter(process, self.now)
        refused = self.attempt(session.call, process)
        session.exit()
        if session.process != process:
            present = session.process != ""
            assert refused.refusal is (Refusal.CONFLICT if present else Refusal.UNKNOWN)
        elif session.over:
            assert (refused.refusal, str(refused)) == (Refusal.OVER, session.reason)
            assert session.reason
            assert session.informed
        else:
            assert refused is None

    @rule(name=NAMES, process=PROCESSES)
    def leave(self, name, process):
        self.attempt(self.sessions[name].leave, process, self.now)

    @rule(name=NAMES, process=PROCESSES, back=st.integers(-1, 2), body=BODIES)
    def reply(self, name, process, back, body):
        session = self.sessions[name]
        number = session.number - back
        was, held = session.state, session.reply
        refused = self.attempt(session.accept, process, Reply(number, body))
        if refused is None:
            assert process == session.process
            assert was not in {State.EXPECTED, State.AWAY, State.LOST, State.DONE}
            assert self.accepted.setdefault((name, number), body) == body
            if held is None and session.reply is not None:
                assert was is State.WORKING
        else:
            assert session.state is was

    @rule(names=st.sets(NAMES, min_size=1))
    def ask(self, names):
        self.sessions.await_clients(self.now)
        if self.sessions.ready(self.now):
            self.sessions.ask(dict.fromkeys(sorted(names), b"request"), self.now)
            self.open = sorted(names)

    @precondition(lambda self: self.open)
    @rule()
    def finish_exchange(self):
        assert bool(self.sessions.expire(self.now)) != self.sessions.complete()
        if not self.sessions.complete():
            return
        replies = self.sessions.take()
        assert list(replies) == self.open
        for name, reply in replies.items():
            session = self.sessions[name]
            assert (reply is None) == (session.state is State.LOST)
            if reply is not None:
                assert reply == self.accepted[name, session.number]
        self.open = []

    @precondition(lambda self: self.open)
    @rule()
    def abort_exchange(self):
        self.sessions.abort()
        self.open = []

    @rule(name=NAMES)
    def reject(self, name):
        self.sessions.reject({name: "InvalidReply at CountCells, step 1"})

    @rule(outcome=st.sampled_from(["finished", "stopped"]))
    def end(self, outcome):
        self.sessions.end(outcome, self.now)

    @invariant()
    def numbers_only_grow(self):
        for name, session in self.sessions.by_name.items():
            assert session.number >= self.numbers[name]
            self.numbers[name] = session.number

    @invariant()
    def a_lost_client_stays_lost_for_its_first_reason(self):
        for name, session in self.sessions.by_name.items():
            if session.state is State.LOST:
                assert self.reasons.setdefault(name, session.reason) == session.reason
            else:
                assert name not in self.reasons

    @invariant()
    def the_state_agrees_with_its_details(self):
        for session in self.sessions.by_name.values():
            assert not session.over or session.reason
            match session.state:
                case State.EXPECTED:
                    assert (session.process, session.reply, session.seen) == ("", None, None)
                case State.WAITING:
                    assert (session.request, session.reply) == (None, None)
                case State.WORKING:
                    assert session.request is not None
                    assert session.reply is None
                case State.ANSWERED:
                    assert session.reply is not None
                case State.AWAY:
                    assert session.process == ""
            if session.state in {State.WAITING, State.WORKING, State.ANSWERED}:
                assert session.process
            assert session.reply is None or session.request is not None


TestRandomRun = RandomRun.TestCase
TestRandomRun.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
