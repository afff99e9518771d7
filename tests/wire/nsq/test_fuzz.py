"""Any bytes give events or one of nsqd's errors: no other exception, no hang, no hidden memory.

Cases are real traffic with random damage, each read whole, byte by byte and in pieces, with equal
results. The default is quick; TALLYMARK_FUZZ_BYTES=10000000 runs as many bytes, and so does
TALLYMARK_FUZZ_CASES=1000000 (make fuzz); TALLYMARK_FUZZ_SEED runs another selection.
"""

from __future__ import annotations

import os
import random
import re

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.nsq.commands import (
    CLS,
    MAGIC,
    NOP,
    auth,
    dpub,
    fin,
    identify,
    mpub,
    pub,
    rdy,
    req,
    sub,
    touch,
)
from tallymark.wire.nsq.connection import EARLY_MAX
from tallymark.wire.nsq.events import PeerClosed, ProtocolFailure
from tallymark.wire.nsq.frames import ERROR, RESPONSE, split_frames
from tallymark.wire.nsq.limits import LINE_MAX, Limits
from tallymark.wire.nsq.states import State
from tests.support.nsq import Server, flatten

BYTES = int(
    os.environ.get("TALLYMARK_FUZZ_BYTES")
    or 10 * int(os.environ.get("TALLYMARK_FUZZ_CASES", "30000"))
)
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")
LIMITS = Limits(max_msg_size=300, max_body_size=1000, max_rdy_count=50, tls_available=True)
WITH_AUTH = Limits(max_msg_size=300, max_body_size=1000, max_rdy_count=50, auth_required=True)
TLS_ONLY = Limits(max_msg_size=300, max_body_size=1000, tls_available=True, tls_required=True)

OPENING = [
    identify(b"{}"),
    identify(b'{"client_id":"c","feature_negotiation":true,"heartbeat_interval":5000}'),
    identify(b'{"feature_negotiation":true,"tls_v1":true,"snappy":true}'),
    identify(b'{"feature_negotiation":true,"deflate":true,"deflate_level":3}'),
    identify(b'{"heartbeat_interval":-1}'),
    auth(b"secret"),
]
PUBLISHING = [
    pub("t", b"x" * 30),
    pub("t", b"y" * 30),
    pub("t", b"z"),
    pub("u", b"x" * 299),
    pub("t", b"PUB t\n\0\0\0\1x"),
    b"PUB t\r\n\0\0\0\3abc",
    dpub("t", 0, b"now"),
    dpub("t", 5000, b"later"),
    dpub("t", 5000, b"much later"),
    mpub("t", [b"a" * 10] * 5),
    mpub("t", [b"a", b"bb", b"ccc" * 90]),
    mpub("u", [b"a"] * 100),
    NOP,
]
CONSUMING = [
    rdy(1),
    rdy(50),
    fin(1),
    fin(0xFEDCBA9876543210),
    b"FIN 0123456789ABCDEF\n",
    b"FIN 00000000000000ff\r\n",
    req(1, 0),
    req(2, 0),
    req(3, 99_999_999),
    b"REQ ################ 0\n",
    touch(1),
    touch(2),
    b"TOUCH ################\n",
    NOP,
]
ODD = [
    CLS,
    sub("t", "c"),
    pub("t", b""),
    pub("t", b"x" * 301),
    mpub("t", [b"a", b""]),
    b"ASDF\n",
    b"RDY 51\n",
    *OPENING,
]

# Every text that may leave; what varies stands for itself.
TEXTS = re.compile(
    rb"""
    E_BAD_PROTOCOL
    | E_INVALID\ (?:
        invalid\ command\ .*
        | cannot\ .*\ in\ current\ state(?:\ \(TLS\ required\))?
        | cannot\ SUB\ with\ heartbeats\ disabled
        | (?:M|D)?PUB\ insufficient\ number\ of\ parameters
        | SUB\ insufficient\ number\ of\ parameters
        | (?:FIN|REQ|TOUCH)\ insufficient\ number\ of\ params
        | AUTH\ invalid\ number\ of\ parameters
        | AUTH\ already\ set
        | invalid\ message\ ID
        | RDY\ could\ not\ parse\ count\ .*
        | RDY\ count\ \d+\ out\ of\ range\ 0-\d+
        | (?:REQ|DPUB)\ could\ not\ parse\ timeout\ .*
        | DPUB\ timeout\ \d+\ out\ of\ range\ 0-3600000
    )
    | E_BAD_TOPIC\ (?:(?:D?PUB|SUB)|E_BAD_TOPIC\ MPUB)\ topic\ name\ ".*"\ is\ not\ valid
    | E_BAD_CHANNEL\ SUB\ channel\ name\ ".*"\ is\ not\ valid
    | E_BAD_MESSAGE\ (?:
        D?PUB\ failed\ to\ read\ message\ body(?:\ size)?
        | D?PUB\ invalid\ message\ body\ size\ (?:0|-\d+)
        | M?D?PUB\ message\ too\ big\ \d+\ >\ \d+
        | MPUB\ failed\ to\ read\ message\(\d+\)\ body\ size
        | MPUB\ invalid\ message\(\d+\)\ body\ size\ (?:0|-\d+)
        | MPUB\ failed\ to\ read\ message\ body
    )
    | E_BAD_BODY\ (?:
        (?:MPUB|IDENTIFY|AUTH)\ (?:
            failed\ to\ read\ body(?:\ size)?
            | invalid\ body\ size\ (?:0|-\d+)
            | body\ too\ big\ \d+\ >\ 1000
        )
        | MPUB\ failed\ to\ read\ message\ count
        | MPUB\ invalid\ message\ count\ -?\d+
        | MPUB\ body\ size\ \d+,\ but\ its\ messages\ take\ \d+
        | IDENTIFY\ failed\ to\ decode\ JSON\ body
        | IDENTIFY\ (?:heartbeat\ interval|output\ buffer\ size|output\ buffer\ timeout
            |sample\ rate|msg\ timeout)\ \(-?\d+\)\ is\ invalid
    )
    | E_IDENTIFY_FAILED\ cannot\ enable\ both\ deflate\ and\ snappy\ compression
    | E_AUTH_(?:DISABLED\ AUTH\ disabled|FIRST\ AUTH\ required\ before\ (?:[MD]?PUB|SUB))
    | E_(?P<verb>FIN|REQ|TOUCH)_FAILED\ (?P=verb)\ .{16}\ failed\ ID\ not\ in\ flight
    """,
    re.VERBOSE | re.DOTALL,
)


def traffic(rng: random.Random) -> bytes:
    """A client's bytes: a producer's, a consumer's, or both, mostly in order."""
    parts = [MAGIC if rng.random() < 0.98 else rng.randbytes(4)]
    parts += rng.sample(OPENING, rng.choice((0, 0, 1, 1, 2)))
    commands = list(PUBLISHING)
    if rng.random() < 0.6:
        parts.append(sub("t", "c"))
        commands += CONSUMING
    for _ in range(rng.randrange(1, 12)):
        chosen = rng.choice(ODD if rng.random() < 0.04 else commands)
        if rng.random() < 0.05:
            chosen = damaged(rng, chosen)
        parts += [chosen] * rng.choice((1, 1, 1, 2, 5))
        if rng.random() < 0.002:
            parts.append(b"x" * rng.randrange(LINE_MAX - 1, LINE_MAX + 2))
        if rng.random() < 0.02:
            parts.append(chosen[: rng.randrange(len(chosen) + 1)])
    return b"".join(parts)


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """The same with one to three bytes or pieces changed, lost, doubled or new."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        if len(data) < 2:
            break
        at = rng.randrange(len(data))
        size = rng.choice((1, 1, 2, 4, 8, 30))
        what = rng.randrange(6)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice(b"\0\1\n\r \x44\x50\x7f\x80\xff#09aFP")
        elif what == 2:
            del data[at : at + size]
        elif what == 3:
            data[at:at] = rng.randbytes(size)
        elif what == 4:
            data[at:at] = data[at : at + size]
        else:
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\1\x2c"))
    return bytes(data)


def pieces(rng: random.Random, raw: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(1, 6)))
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


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
            assert connection._inbox.size() <= max(LINE_MAX, 2000)
    server.drain()
    assert connection._inbox.size() <= max(LINE_MAX, 2000)
    server.eof()
    check(server)
    return list(flatten(server.events)), b"".join(connection.out)


def check(server: Server) -> None:
    """What was said and sent keeps the promises."""
    events = server.events
    fatal = [i for i, e in enumerate(events) if isinstance(e, ProtocolFailure) and e.error.is_fatal]
    assert fatal in ([], [len(events) - 2])
    assert [i for i, e in enumerate(events) if isinstance(e, PeerClosed)] == [len(events) - 1]
    assert server.connection.state in (State.ENDED, State.CLOSED)
    frames, rest = split_frames(b"".join(server.connection.out))
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
