"""Any bytes give events or one ProtocolFailure: no other exception, no hang, no hidden memory.

Cases are real traffic with random damage, each read whole and in pieces, with equal results. The
default is quick; TALLYMARK_FUZZ_CASES=1000000 runs as many, TALLYMARK_FUZZ_SEED another selection.
"""

from __future__ import annotations

import os
import random

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091.events import (
    AckRange,
    Event,
    MethodReceived,
    Opening,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.frames import HEARTBEAT_FRAME, METHOD, frame, frame_length
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.layouts import METHODS, encode_method
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionStartOk,
    QueueDeclare,
)
from tallymark.wire.amqp091.properties import Properties
from tallymark.wire.amqp091.states import FROM_CLIENT, State
from tests.support.amqp091 import (
    Server,
    ack,
    flatten,
    handshake,
    method_frame,
    open_channels,
    publish,
)
from tests.support.long import longer, sized

CASES = int(os.environ.get("TALLYMARK_FUZZ_CASES", sized("4000", "20000", "1000000")))
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")
LIMITS = Limits(max_message_bytes=3000, max_unfinished_bytes=5000)

CLIENT_METHODS = sorted(FROM_CLIENT - {ChannelOpen, ChannelCloseOk, BasicPublish}, key=str)

ODD = [
    *[frame(METHOD, 1, encode_method(row[2]())) for row in METHODS],
    *[frame(METHOD, 0, encode_method(row[2]())) for row in METHODS if row[0] == 10],
    method_frame(0, ConnectionClose(200, "bye")),
    method_frame(0, ConnectionStartOk({"capabilities": {"basic.nack": True}}, "PLAIN", b"\0a\0b")),
]
"""Mostly out of place, and then the connection is over: taken now and then."""

FRAMES = [
    *[frame(METHOD, 1, encode_method(kind())) for kind in CLIENT_METHODS],
    method_frame(1, QueueDeclare("q", durable=True, arguments={"x-max-length": 5, "t": [1, {}]})),
    method_frame(2, BasicConsume("q", "tag", arguments={"x-priority": 1})),
    method_frame(1, ChannelClose(200, "bye")),
    method_frame(1, ChannelCloseOk()),
    open_channels([3]),
    HEARTBEAT_FRAME,
    ack(1, 1),
    ack(1, 2),
    ack(1, 3),
    ack(2, 7, True),
    publish(1, b"x" * 30),
    publish(1, b"x" * 30),
    publish(1, b""),
    publish(2, b"y" * 10),
    publish(1, b"z" * 900, frame_max=300),
    publish(2, b"z" * 2900, frame_max=1000),
    publish(1, b"x" * 3001),
    publish(3, b"x" * 2999),
    publish(1, b"p", properties=Properties("text/plain", headers={"a": 1}, delivery_mode=2)),
    publish(1, b"p", properties=Properties(headers={"CC": ["a"]}, expiration="5", user_id="u")),
    publish(1, b"p", properties=Properties(message_id="m", timestamp=5, reply_to="r")),
]
START = handshake(1, 2)


def traffic(rng: random.Random) -> bytes:
    """A client's bytes: the handshake, then a few frames, most of them in order."""
    parts = [START] if rng.random() < 0.9 else [START[: rng.randrange(len(START))]]
    for _ in range(rng.randrange(1, 12)):
        chosen = rng.choice(ODD if rng.random() < 0.03 else FRAMES)
        parts.append(rewritten(rng, chosen) if rng.random() < 0.1 else chosen)
        if rng.random() < 0.3:
            parts += parts[-1:] * 3
        if rng.random() < 0.02:
            parts.append(chosen[: rng.randrange(len(chosen))])
    return b"".join(parts)


def rewritten(rng: random.Random, raw: bytes) -> bytes:
    """Frames still, with another payload, type or channel in one of them."""
    frames = []
    pos = 0
    while pos < len(raw):
        after = pos + frame_length(raw, pos)
        frames.append((raw[pos], raw[pos + 2], raw[pos + 7 : after - 1]))
        pos = after
    at = rng.randrange(len(frames))
    kind, channel, payload = frames[at]
    what = rng.randrange(5)
    if what == 0:
        frames[at] = (rng.choice((1, 2, 3, 8)), channel, payload)
    elif what == 1:
        frames[at] = (kind, rng.choice((0, 1, 2, 3)), payload)
    elif what == 2:
        del frames[at]
    else:
        frames[at] = (kind, channel, damaged(rng, payload, 0))
    return b"".join(frame(kind, channel, payload) for kind, channel, payload in frames)


def damaged(rng: random.Random, raw: bytes, first: int) -> bytes:
    """The same with one to four bytes or pieces from `first` on changed, lost, doubled or new."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        if len(data) <= first + 1:
            break
        at = rng.randrange(first, len(data))
        size = rng.choice((1, 1, 2, 4, 8, 30))
        what = rng.randrange(6)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice((0, 1, 2, 3, 8, 60, 0x7F, 0x80, 0xCE, 0xFF))
        elif what == 2:
            del data[at : at + size]
        elif what == 3:
            data[at:at] = rng.randbytes(size)
        elif what == 4:
            data[at:at] = data[at : at + size]
        else:
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\x10\0"))
    return bytes(data)


def damaged_traffic(rng: random.Random) -> bytes:
    """Half of it framed as it should be; the handshake is mostly left alone."""
    raw = traffic(rng)
    if rng.random() < 0.5:
        return raw
    return damaged(rng, raw, len(START) if rng.random() < 0.9 and len(raw) > len(START) else 0)


def pieces(rng: random.Random, raw: bytes) -> list[bytes]:
    if rng.random() < 0.05:
        return [raw[i : i + 1] for i in range(len(raw))]
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(1, 6)))
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


KNOWN = (Opening, MethodReceived, PublishReceived, AckRange, ProtocolFailure, PeerClosed)


def check(server: Server, events: list[Event], received: int) -> None:
    """The promises of the connection about what it said, sent and kept."""
    assert all(isinstance(event, KNOWN) for event in events)
    fatal = [i for i, e in enumerate(events) if isinstance(e, ProtocolFailure) and e.is_fatal]
    assert len(fatal) <= 1
    if fatal:
        for event in events[fatal[0] + 1 :]:
            assert isinstance(event, (MethodReceived, PeerClosed))
            if isinstance(event, MethodReceived):
                assert event.channel == 0
    ends = [i for i, event in enumerate(events) if isinstance(event, PeerClosed)]
    assert ends in ([], [len(events) - 1])
    connection = server.connection
    inbox = connection.line.inbox
    assert inbox.waiting + len(inbox.data) <= received
    assert connection.line.unfinished == sum(c.held() for c in connection._channels.values())
    assert connection.line.unfinished <= LIMITS.max_unfinished_bytes
    if connection.state in (State.CLOSED, State.CLOSING):
        assert not connection._channels
    out = b"".join(connection.line.out)
    pos = 8 if out.startswith(b"AMQP") else 0
    while pos < len(out):
        pos += frame_length(out, pos)
        assert out[pos - 1] == 0xCE
    assert pos == len(out)


def run_case(raw: bytes, chunks: list[bytes]) -> None:
    whole = Server(LIMITS)
    whole.feed(raw)
    check(whole, whole.events, len(raw))
    parts = Server(LIMITS)
    parts.feed(*chunks)
    check(parts, parts.events, len(raw))
    assert flatten(parts.events) == flatten(whole.events)
    assert b"".join(parts.connection.line.out) == b"".join(whole.connection.line.out)


@longer
def test_damaged_traffic() -> None:
    for number in range(CASES):
        rng = random.Random(f"{SEED}:{number}")
        raw = damaged_traffic(rng)
        chunks = pieces(rng, raw)
        try:
            run_case(raw, chunks)
        except BaseException as error:
            error.add_note(f"case {SEED}:{number}, bytes {raw!r}")
            raise


@given(st.binary(max_size=200), st.booleans(), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes(noise: bytes, after_the_handshake: bool, cuts: list[int]) -> None:
    raw = START + noise if after_the_handshake else noise
    ends = sorted(min(cut, len(raw)) for cut in cuts)
    chunks = [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]
    run_case(raw, chunks)
