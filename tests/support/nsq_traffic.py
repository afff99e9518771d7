"""Traffic of NSQ clients for fuzzing, with random damage, and every error that may be answered."""

from __future__ import annotations

import os
import random
import re

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
from tallymark.wire.nsq.limits import LINE_MAX, Limits
from tests.support.long import sized

BYTES = int(
    os.environ.get("TALLYMARK_FUZZ_BYTES")
    or 10 * int(os.environ.get("TALLYMARK_FUZZ_CASES", sized("30000", "100000", "1000000")))
)
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")
LIMITS = Limits(max_msg_size=300, max_body_size=1000, max_rdy_count=50, tls_available=True)

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
