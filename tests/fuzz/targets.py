"""The functions under the fuzzer: each takes any bytes, and fails only if fedlib has an error."""

import runpy
from pathlib import Path

from fedlib.core.messages import MessageError, decode, encode
from fedlib.core.registry import protocols

TESTS = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"

call_endpoints = runpy.run_path(str(Path(__file__).with_name("http_target.py")))["call_endpoints"]
protocols()  # registers the messages of all protocols
RandomRun = runpy.run_path(str(TESTS / "transports" / "http" / "test_sessions_random.py"))[
    "RandomRun"
]


def decode_message(data):
    """Decode bytes: `MessageError` refuses them, or they are a message that survives encoding."""
    try:
        message = decode(data)
    except MessageError:
        return
    assert decode(encode(message)) == message


def drive_sessions(data):
    """Drive sessions by random events, and check their invariants after each of them.

    Each byte is an event: the lowest four bits select it, the others are its arguments.
    """
    machine = RandomRun()
    events = [
        lambda client, process, n: machine.join(client, process),
        lambda client, process, n: machine.heartbeat(client, process),
        lambda client, process, n: machine.leave(client, process),
        lambda client, process, n: machine.reply(client, process, 0, b"xy"[n : n + 1] or b"z"),
        lambda client, process, n: machine.reply(client, process, n - 1, b"x"),
        lambda client, process, n: machine.ask({client}),
        lambda client, process, n: machine.ask({"a", "b"}),
        lambda client, process, n: machine.open and machine.finish_exchange(),
        lambda client, process, n: machine.open and machine.abort_exchange(),
        lambda client, process, n: machine.reject(client),
        lambda client, process, n: machine.end(["finished", "stopped"][n % 2]),
        lambda client, process, n: machine.time_passes([0.0, 1.0, 4.0, 30.0][n]),
        lambda client, process, n: machine.time_passes([100.0, 1000.0, 5.0, 20.0][n]),
    ]
    for byte in data:
        event = events[(byte & 15) % len(events)]
        event("ab"[byte >> 4 & 1], ["first", "second"][byte >> 5 & 1], byte >> 6)
        machine.numbers_only_grow()
        machine.a_lost_client_stays_lost_for_its_first_reason()
        machine.the_state_agrees_with_its_details()


TARGETS = {"decode": decode_message, "sessions": drive_sessions, "http": call_endpoints}
