"""Any bytes give events or one of nsqd's errors: no other exception, no hang, no hidden memory.

Cases are real traffic with random damage, each read whole, byte by byte and in pieces, with equal
results. The default is quick; TALLYMARK_FUZZ_BYTES=10000000 runs as many bytes, and so does
TALLYMARK_FUZZ_CASES=1000000 (make fuzz); TALLYMARK_FUZZ_SEED runs another selection.
"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.nsq.commands import (
    MAGIC,
    sub,
)
from tallymark.wire.nsq.events import PeerClosed, ProtocolFailure
from tallymark.wire.nsq.frames import ERROR, RESPONSE, split_frames
from tallymark.wire.nsq.lifecycle import EARLY_MAX
from tallymark.wire.nsq.limits import LINE_MAX, Limits
from tallymark.wire.nsq.states import State
from tests.support.long import longer
from tests.support.nsq import Server, flatten
from tests.support.nsq_traffic import (
    BYTES,
    CONSUMING,
    LIMITS,
    ODD,
    OPENING,
    PUBLISHING,
    SEED,
    TEXTS,
    damaged,
    pieces,
    traffic,
)

WITH_AUTH = Limits(max_msg_size=300, max_body_size=1000, max_rdy_count=50, auth_required=True)
TLS_ONLY = Limits(max_msg_size=300, max_body_size=1000, tls_available=True, tls_required=True)


def run(limits: Limits, chunks: list[bytes], eager: bool) -> tuple[list[object], bytes]:
    """Flat events and output of a connection fed like that until its end. Eager: events are taken
    behind every read, else behind the last."""
    server = Server(limits)
    connection = server.connection
    received = 0
    for data in chunks:
        connection.receive_data(data, 0)
        received += len(data)
        if eager:
            server.drain()
            assert connection.line.inbox.size() <= max(LINE_MAX, 2000)
    server.drain()
    assert connection.line.inbox.size() <= max(LINE_MAX, 2000)
    server.eof()
    check(server)
    return list(flatten(server.events)), b"".join(connection.line.out)


def check(server: Server) -> None:
    """What was said and sent keeps the promises."""
    events = server.events
    fatal = [i for i, e in enumerate(events) if isinstance(e, ProtocolFailure) and e.error.is_fatal]
    assert fatal in ([], [len(events) - 2])
    assert [i for i, e in enumerate(events) if isinstance(e, PeerClosed)] == [len(events) - 1]
    assert server.connection.state in (State.ENDED, State.CLOSED)
    frames, rest = split_frames(b"".join(server.connection.line.out))
    assert rest == b""
    errors = [content for kind, content in frames if kind == ERROR]
    for text in errors:
        assert TEXTS.fullmatch(text), text
    assert [e.error.payload for e in events if isinstance(e, ProtocolFailure)] == errors
    if fatal:
        assert frames[-1][0] == ERROR
    assert all(kind in (RESPONSE, ERROR) for kind, _ in frames)


def run_case(limits: Limits, raw: bytes, chunks: list[bytes]) -> None:
    whole = run(limits, [raw], eager=True)
    assert run(limits, chunks, eager=True) == whole
    assert run(limits, chunks, eager=False) == whole
    if len(raw) < 2000:
        assert run(limits, [raw[i : i + 1] for i in range(len(raw))], eager=True) == whole


@longer
def test_nq_a4_damaged_traffic() -> None:
    number = 0
    done = 0
    while done < BYTES:
        rng = random.Random(f"{SEED}:{number}")
        raw = traffic(rng)
        if rng.random() < 0.5:
            raw = MAGIC + damaged(rng, raw[4:]) if rng.random() < 0.9 else damaged(rng, raw)
        limits = rng.choice((LIMITS, LIMITS, LIMITS, WITH_AUTH, TLS_ONLY))
        try:
            run_case(limits, raw, pieces(rng, raw))
        except BaseException as error:
            error.add_note(f"case {SEED}:{number}, bytes {raw!r}")
            raise
        number += 1
        done += len(raw)


@given(st.binary(max_size=200), st.sampled_from([b"", MAGIC, MAGIC + b"SUB t c\n"]), st.data())
def test_any_bytes(noise: bytes, first: bytes, data: st.DataObject) -> None:
    raw = first + noise
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    run_case(LIMITS, raw, chunks)


commands = st.sampled_from([*OPENING[:2], *PUBLISHING, sub("t", "c"), *CONSUMING, *ODD])


@given(st.lists(commands, max_size=12), st.data())
def test_any_order_of_commands_and_any_splitting(parts: list[bytes], data: st.DataObject) -> None:
    raw = MAGIC + b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    run_case(LIMITS, raw, chunks)


def test_the_cases_reach_what_they_are_for() -> None:
    """Guards the fuzzer: most kinds of events and of errors turn up."""
    kinds: set[object] = set()
    texts: set[bytes] = set()
    for number in range(2000):
        rng = random.Random(f"tallymark:{number}")
        server = Server(rng.choice((LIMITS, WITH_AUTH, TLS_ONLY)))
        server.feed(damaged(rng, traffic(rng)) if rng.random() < 0.3 else traffic(rng))
        kinds.update(row[0] for row in flatten(server.events))
        texts.update(e.error.payload for e in server.events if isinstance(e, ProtocolFailure))
    assert kinds >= {"PUB", "DPUB", "MPUB", "FIN", "REQ", "TOUCH", "RDY", "SUB", "CLS", "AUTH"}
    assert kinds >= {"IDENTIFY", "UPGRADE", "FAILED", "CLOSED"}
    codes = {text.split(b" ")[0] for text in texts}
    assert codes >= {b"E_INVALID", b"E_BAD_TOPIC", b"E_BAD_MESSAGE", b"E_BAD_BODY", b"E_FIN_FAILED"}
    assert codes >= {b"E_AUTH_FIRST", b"E_AUTH_DISABLED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"}
    assert len(texts) > 60
    assert EARLY_MAX > LINE_MAX
