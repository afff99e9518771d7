"""Parsing of single commands, checked in nsqd's order and with its error texts. Pure functions.

All raise WireError and nothing else. `params` is the command line split at each space.
"""

from __future__ import annotations

from array import array
from typing import final

from tallymark.wire.nsq.errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
    NOT_IN_FLIGHT,
    WireError,
    as_text,
    go_quoted,
)
from tallymark.wire.nsq.kernel import cut_messages, is_id
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.names import is_valid_name, parse_number, show_number


@final
class PublishLine:
    """A valid command line of PUB or DPUB."""

    __slots__ = ("delay_ms", "line", "topic", "verb")

    def __init__(self, line: bytes, verb: str, topic: str, delay_ms: int) -> None:
        self.line = line
        self.verb = verb
        self.topic = topic
        self.delay_ms = delay_ms


def publish_line(line: bytes, params: list[bytes], limits: Limits) -> PublishLine:
    """Parse PUB or DPUB; `line` is the line that `params` was split from, newline included."""
    verb = as_text(params[0])
    if len(params) < (2 if verb == "PUB" else 3):
        raise WireError(E_INVALID, f"{verb} insufficient number of parameters")
    topic = topic_name(params)
    if verb == "PUB":
        return PublishLine(line, verb, topic, 0)
    delay_ms = parse_number(params[2])
    if delay_ms < 0:
        raise WireError(E_INVALID, f"DPUB could not parse timeout {as_text(params[2])}")
    most = limits.max_req_timeout_ms
    if delay_ms > most:
        raise WireError(E_INVALID, f"DPUB timeout {show_number(params[2])} out of range 0-{most}")
    return PublishLine(line, verb, topic, delay_ms)


def topic_name(params: list[bytes]) -> str:
    name = params[1]
    if is_valid_name(name):
        return name.decode("ascii")
    verb = as_text(params[0])
    twice = f"{E_BAD_TOPIC} " if verb == "MPUB" else ""  # as nsqd says it
    raise WireError(E_BAD_TOPIC, f"{twice}{verb} topic name {go_quoted(name)} is not valid")


def channel_name(params: list[bytes]) -> str:
    name = params[2]
    if is_valid_name(name):
        return name.decode("ascii")
    raise WireError(E_BAD_CHANNEL, f"SUB channel name {go_quoted(name)} is not valid")


def rdy_count(params: list[bytes], most: int) -> int:
    """Return the count of a RDY, 0..most; 1 if none is given."""
    if len(params) < 2:
        return 1
    count = parse_number(params[1])
    if count < 0:
        raise WireError(E_INVALID, f"RDY could not parse count {as_text(params[1])}")
    if count > most:
        raise WireError(E_INVALID, f"RDY count {show_number(params[1])} out of range 0-{most}")
    return count


def message_id(params: list[bytes], count: int) -> bytes:
    """Return the 16 bytes of the id in a FIN, REQ or TOUCH of at least `count` words."""
    if len(params) < count:
        raise WireError(E_INVALID, f"{as_text(params[0])} insufficient number of params")
    if len(params[1]) != 16:
        raise WireError(E_INVALID, "invalid message ID")
    return params[1]


def check_id(params: list[bytes]) -> None:
    """Raise the error, not a fatal one, for 16 bytes that cannot be the id of our messages."""
    if not is_id(params[1]):
        verb = as_text(params[0])
        text = f"{verb} {as_text(params[1])} failed {NOT_IN_FLIGHT}"
        raise WireError(f"E_{verb}_FAILED", text)


def req_delay(params: list[bytes], most: int) -> int:
    """Return the delay of a REQ, 0..most ms; higher values are clamped [NQ-12]."""
    delay_ms = parse_number(params[2])
    if delay_ms < 0:
        raise WireError(E_INVALID, f"REQ could not parse timeout {as_text(params[2])}")
    return min(delay_ms, most)


def int32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def message_size(data: bytes, at: int, verb: str, most: int) -> int:
    """Return the message size of a PUB or DPUB, 1..most."""
    size = int32(data, at)
    if size <= 0:
        raise WireError(E_BAD_MESSAGE, f"{verb} invalid message body size {size}")
    if size > most:
        raise WireError(E_BAD_MESSAGE, f"{verb} message too big {size} > {most}")
    return size


def body_size(data: bytes, at: int, verb: str, most: int) -> int:
    """Return the body size of IDENTIFY, AUTH or MPUB, 1..most."""
    size = int32(data, at)
    if size <= 0:
        raise WireError(E_BAD_BODY, f"{verb} invalid body size {size}")
    if size > most:
        raise WireError(E_BAD_BODY, f"{verb} body too big {size} > {most}")
    return size


def mpub_cuts(data: bytes, start: int, end: int, limits: Limits) -> array[int]:
    """Return the cuts of the messages in the MPUB body data[start:end], relative to start + 4."""
    if start + 4 > end:
        raise WireError(E_BAD_BODY, "MPUB failed to read message count")
    count = int32(data, start)
    if not 0 < count <= limits.max_messages():
        raise WireError(E_BAD_BODY, f"MPUB invalid message count {count}")
    most = limits.max_msg_size
    cuts = cut_messages(data, start + 4, end, count, most)
    found = len(cuts) - 1
    if found == count:
        return cuts
    at = start + 4 + cuts[found]
    if at + 4 > end:
        raise WireError(E_BAD_MESSAGE, f"MPUB failed to read message({found}) body size")
    size = int32(data, at)
    if size <= 0:
        raise WireError(E_BAD_MESSAGE, f"MPUB invalid message({found}) body size {size}")
    if size > most:
        raise WireError(E_BAD_MESSAGE, f"MPUB message too big {size} > {most}")
    raise WireError(E_BAD_MESSAGE, "MPUB failed to read message body")
