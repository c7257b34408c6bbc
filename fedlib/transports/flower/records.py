"""Our fields in Flower's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedlib.core.messages import Failure, encode

RECORD = "fedlib"  # the name of our record in a message and in a node's state
PARTITION, REQUEST = "query", "train"  # Flower's types for our two kinds of messages
ERRORS = {
    code: name.title().replace("_", "")
    for name, code in vars(ErrorCode).items()
    if isinstance(code, int)
}


def message(node: int, kind: str, content: Mapping[str, Any], ttl: float) -> Message:
    """Return a message to a node that expires after ``ttl`` seconds."""
    return Message(RecordDict({RECORD: ConfigRecord(dict(content))}), node, kind, ttl=ttl)


def reply(request: Message, content: Mapping[str, Any]) -> Message:
    """Return the reply to a message."""
    return Message(RecordDict({RECORD: ConfigRecord(dict(content))}), reply_to=request)


def fields(received: Message) -> Mapping[str, Any]:
    """Return our fields in a message; none if it has no record of ours."""
    record = received.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else {}


def error_name(received: Message) -> str:
    """Return the name of a Flower error. Its text, which may contain data, is not read."""
    return ERRORS.get(received.error.code, "Unknown")


def failure(name: str) -> bytes:
    """Return the bytes of a `Failure`."""
    return encode(Failure(name))
