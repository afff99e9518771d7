"""Hostile behaviours of AMQP 0-9-1."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct

from bench.lean import HEADER, METHOD, PERSISTENT, frame, method, publish, settle, short, table
from tests.siege.attack import HEADER_091, Line, Worker, behaviour, tune_ok

MIB = 1 << 20
CHUNK = 200
"""Frames written at a time."""
CHANNEL_CLOSE = b"\0\x14\0\x28"
PREFETCH_1 = b"\0\0\0\0\0\x01\0"


def declare(queue: str, arguments: bytes = bytes(4), flags: int = 0) -> bytes:
    return method(1, (50, 10), b"\0\0" + short(queue) + bytes([flags]) + arguments)


def delete(queue: str) -> bytes:
    return method(1, (50, 40), b"\0\0" + short(queue) + b"\0")


def exchange(name: str, kind: str, arguments: bytes = bytes(4)) -> bytes:
    return method(1, (40, 10), b"\0\0" + short(name) + short(kind) + b"\0" + arguments)


def bind(queue: str, source: str, key: str, arguments: bytes = bytes(4)) -> bytes:
    return method(
        1, (50, 20), b"\0\0" + short(queue) + short(source) + short(key) + b"\0" + arguments
    )


def get(queue: str, no_ack: bool = False) -> bytes:
    return method(1, (60, 70), b"\0\0" + short(queue) + bytes([no_ack]))


def consume(queue: str, *, no_ack: bool = False, arguments: bytes = bytes(4)) -> bytes:
    return method(1, (60, 20), b"\0\0" + short(queue) + short("") + bytes([2 * no_ack]) + arguments)


def headers(raw: bytes) -> bytes:
    """A property section with a table of headers."""
    return b"\x20\0" + len(raw).to_bytes(4, "big") + raw


def nested(depth: int) -> bytes:
    """A table in a table in a table."""
    raw = b""
    for _ in range(depth):
        raw = b"\x01aF" + len(raw).to_bytes(4, "big") + raw
    return raw


async def flood(worker: Worker, line: Line, data: bytes, steps: int) -> None:
    """Again and again, with the answers read and thrown away."""
    worker.beside(line.drain)
    while True:
        await line.send(data)
        worker.step(steps)
        await asyncio.sleep(0)


async def filled(worker: Worker, queue: str, body: bytes, count: int, arguments: bytes) -> Line:
    """A queue with that many messages."""
    line = await worker.opened()
    await line.send(declare(queue, arguments, 2))
    await line.until(b"\0\x32\0\x0b")
    for _ in range(count):
        await line.send(publish(1, "", queue, PERSISTENT, body))
    return line


# -- connections


@behaviour("amqp", "silent connections", workers=400)
async def silent(worker: Worker) -> None:
    line = await worker.line("amqp")
    worker.step()
    await line.drain()


@behaviour("amqps", "silent connections where TLS is spoken", workers=400)
async def silent_tls(worker: Worker) -> None:
    line = await worker.line("amqps")
    worker.step()
    await line.drain()


@behaviour("amqps", "TLS hello that drips", workers=100)
async def tls_hello(worker: Worker) -> None:
    line = await worker.line("amqps")
    worker.beside(line.drain)
    await line.send(b"\x16\x03\x01\x40\0\x01\0\x3f\xfc\x03\x03")
    worker.step()
    await line.drip(os.urandom(64))


@behaviour("amqps", "TLS handshakes begun and left", workers=8)
async def tls_churn(worker: Worker) -> None:
    line = await worker.line("amqps")
    await line.send(_client_hello())
    await line.read()
    worker.step()


def _client_hello() -> bytes:
    import ssl

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    made = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        made.do_handshake()
    return outgoing.read()


@behaviour("amqp", "protocol header that drips", workers=100)
async def header(worker: Worker) -> None:
    line = await worker.line("amqp")
    worker.beside(line.drain)
    worker.step()
    await line.drip(HEADER_091[:-1], 0.3)


@behaviour("amqp", "start-ok that drips", workers=100)
async def start_ok(worker: Worker) -> None:
    line = await worker.line("amqp")
    await line.send(HEADER_091)
    await line.until(b"\xce")
    worker.step()
    await line.drip(worker.start_ok())


@behaviour("amqp", "tune-ok that drips", workers=100)
async def tune(worker: Worker) -> None:
    line = await worker.line("amqp")
    await line.send(HEADER_091)
    await line.until(b"\xce")
    await line.send(worker.start_ok())
    await line.until(b"\xce")
    worker.step()
    await line.drip(tune_ok())


@behaviour("amqp", "open that drips", workers=100)
async def opening(worker: Worker) -> None:
    line = await worker.line("amqp")
    await line.send(HEADER_091)
    await line.until(b"\xce")
    await line.send(worker.start_ok())
    await line.until(b"\xce")
    await line.send(tune_ok())
    worker.step()
    await line.drip(worker.open())


@behaviour("amqp", "connections opened and dropped", workers=8)
async def churn(worker: Worker) -> None:
    await worker.opened()
    worker.step()


@behaviour("amqp", "heartbeat of 1 s agreed on, none sent", workers=100)
async def heartbeats(worker: Worker) -> None:
    line = await worker.opened(heartbeat_s=1)
    worker.step()
    await line.drain()


@behaviour("amqp", "publishes in segments of one byte", workers=4)
async def dribble(worker: Worker) -> None:
    line = await worker.opened()
    worker.beside(line.drain)
    await line.send(declare("dribble", flags=2))
    one = publish(1, "", "dribble", PERSISTENT, b"x" * 20)
    while True:
        await line.drip(one, 0)
        worker.step()


@behaviour("amqp", "log-ins with wrong passwords", workers=40)
async def passwords(worker: Worker) -> None:
    line = await worker.line("amqp")
    await line.send(HEADER_091)
    await line.until(b"\xce")
    await line.send(worker.start_ok(os.urandom(4).hex()))
    worker.step()
    await line.refused()


# -- what costs to read


@behaviour("amqp", "tables in tables, 16,000 deep")
async def tables(worker: Worker) -> None:
    line = await worker.opened()
    raw = nested(16_000)
    await line.send(declare("nested", len(raw).to_bytes(4, "big") + raw))
    worker.step()
    await line.refused()


@behaviour("amqp", "messages with headers of 120 KB in 20,000 fields", workers=2)
async def fields(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(declare("fields", table({"x-max-length": 10})))
    section = headers(b"".join(b"\x03%03xt\x01" % (n & 0xFFF) for n in range(20_000)))
    await flood(worker, line, publish(1, "", "fields", section, b""), 1)


@behaviour("amqp", "names of 255 bytes and headers that match everything")
async def matching(worker: Worker) -> None:
    line = await worker.opened()
    worker.beside(line.drain)
    await line.send(exchange("match", "headers") + declare("matched", table({"x-max-length": 10})))
    names = [f"{n:0255d}" for n in range(200)]
    for n in range(200):
        wanted = dict.fromkeys(names[:100], "v") | {"x-match": "all", "n": n}
        await line.send(bind("matched", "match", "", table(wanted)))
    raw = table(dict.fromkeys(names, "v"))[4:]
    await flood(worker, line, publish(1, "match", "k", headers(raw), b""), 1)


@behaviour("amqp", "topic bindings of many # and keys of 250 words")
async def topics(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(exchange("words", "topic") + declare("words", table({"x-max-length": 10})))
    for n in range(20):
        await line.send(bind("words", "words", "#.a." * 10 + "#.b" * n))
    await flood(worker, line, publish(1, "words", ".".join("a" * 100), PERSISTENT, b""), 1)


@behaviour("amqp", "frames of unknown types and methods", workers=8)
async def unknown(worker: Worker) -> None:
    line = await worker.opened()
    kinds = [frame(9, 1, b"?"), method(1, (99, 99)), method(1, (60, 999)), frame(HEADER, 1, b"")]
    await line.send(kinds[worker.count.steps % len(kinds)])
    worker.step()
    await line.refused()


@behaviour("amqp", "bytes at random after open", workers=8)
async def noise(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(os.urandom(4096))
    worker.step()
    await line.refused()


@behaviour("amqp", "heartbeat frames without end", workers=2)
async def beats(worker: Worker) -> None:
    line = await worker.opened()
    await flood(worker, line, frame(8, 0, b"") * 2000, 2000)


# -- floods


@behaviour("amqp", "channels opened and closed", workers=2)
async def channels(worker: Worker) -> None:
    line = await worker.opened(0)
    data = b"".join(
        method(n, (20, 10), b"\0") + method(n, (20, 40), bytes(7)) for n in range(1, CHUNK)
    )
    await flood(worker, line, data, CHUNK)


@behaviour("amqp", "2,000 channels with a consumer each, again and again")
async def consumers(worker: Worker) -> None:
    line = await worker.opened(0)
    worker.beside(line.drain)
    await line.send(method(1, (20, 10), b"\0") + declare("consumed"))
    wanted = b"\0\0" + short("consumed") + short("") + b"\0" + bytes(4)
    for n in range(2, 2000):
        await line.send(method(n, (20, 10), b"\0") + method(n, (60, 20), wanted))
        worker.step()
        if n % CHUNK == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0.1)


@behaviour("amqp", "consumers added and cancelled on one channel")
async def cancels(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(declare("cancelled"))
    tags = [short(f"tag{n}") for n in range(CHUNK)]
    queue = b"\0\0" + short("cancelled")
    data = b"".join(
        method(1, (60, 20), queue + tag + b"\0" + bytes(4)) + method(1, (60, 30), tag + b"\0")
        for tag in tags
    )
    await flood(worker, line, data, CHUNK)


@behaviour("amqp", "queues declared and deleted", workers=2)
async def queues(worker: Worker) -> None:
    line = await worker.opened()
    names = [f"churn-{worker.number}-{n}" for n in range(20)]
    data = b"".join(declare(name, flags=2) + delete(name) for name in names)
    await flood(worker, line, data, len(names))


@behaviour("amqp", "2,000 queues on one connection, exclusive, then gone")
async def exclusive(worker: Worker) -> None:
    line = await worker.opened()
    worker.beside(line.drain)
    for n in range(2000):
        await line.send(declare(f"mine-{n}", flags=4))
        worker.step()
        if n % 50 == 0:
            await asyncio.sleep(0)
    await line.send(method(1, (20, 40), bytes(7)))
    await asyncio.sleep(0.1)


@behaviour("amqp", "exchanges and bindings made and deleted")
async def bindings(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(declare("bound"))
    data = b"".join(
        exchange(f"x{n}", "topic")
        + b"".join(bind("bound", f"x{n}", f"{m}.*.#") for m in range(20))
        + method(1, (40, 20), b"\0\0" + short(f"x{n}") + b"\0")
        for n in range(5)
    )
    await flood(worker, line, data, 100)


@behaviour("amqp", "prefetch changed without end, with a consumer")
async def prefetch(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(declare("flips") + consume("flips"))
    await line.send(publish(1, "", "flips", PERSISTENT, b"x") * 100)
    flips = method(1, (60, 10), PREFETCH_1) + method(1, (60, 10), b"\0\0\0\0\xff\xff\x01")
    await flood(worker, line, flips * CHUNK, 2 * CHUNK)


@behaviour("amqp", "channel.flow off and on without end, with a consumer")
async def flow(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(declare("flows") + consume("flows", no_ack=True))
    data = method(1, (20, 20), b"\0") + method(1, (20, 20), b"\x01")
    await flood(worker, line, data * CHUNK, 2 * CHUNK)


@behaviour("amqp", "acknowledgements of tags that are not there", workers=8)
async def acks(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(settle(1, (60, 80), 1 << 40, 1) * 10)
    worker.step()
    await line.until(CHANNEL_CLOSE)


@behaviour("amqp", "channels broken and opened again by 500 wrong acknowledgements at a time")
async def ack_flood(worker: Worker) -> None:
    line = await worker.opened(0)
    again = method(1, (20, 41)) + method(1, (20, 10), b"\0")
    first = method(1, (20, 10), b"\0")
    while True:
        await line.send(first + settle(1, (60, 120), 5, 3) * 500)
        first = again
        await line.until(CHANNEL_CLOSE)
        worker.step()


@behaviour("amqp", "deliveries rejected to the queue as they come")
async def rejects(worker: Worker) -> None:
    line = await filled(worker, "rejected", b"x" * 100, 100, bytes(4))
    await line.send(consume("rejected"))
    tag = 0
    while True:
        seen = (await line.read()).count(b"\0\x3c\0\x3c")  # deliveries, save those cut in two
        if seen:
            tag += seen
            await line.send(settle(1, (60, 120), tag, 3))
            worker.step(seen)


@behaviour("amqp", "messages with TTL 0")
async def ttl(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(declare("dead-at-once", table({"x-message-ttl": 0})))
    await flood(worker, line, publish(1, "", "dead-at-once", PERSISTENT, b"x") * CHUNK, CHUNK)


@behaviour("amqp", "dead letters in a circle")
async def circle(worker: Worker) -> None:
    line = await worker.opened()
    ring = {"x-dead-letter-exchange": "", "x-message-ttl": 1}
    for n in range(5):
        arguments = table({**ring, "x-dead-letter-routing-key": f"ring-{(n + 1) % 5}"})
        await line.send(declare(f"ring-{n}", arguments, 2))
    await flood(worker, line, publish(1, "", "ring-0", PERSISTENT, b"x") * 50, 50)


@behaviour("amqp", "rejected dead letters sent round by hand")
async def letters(worker: Worker) -> None:
    line = await worker.opened()
    for n in range(2):
        around = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"hand-{1 - n}"}
        await line.send(declare(f"hand-{n}", table(around), 2))
    await line.send(publish(1, "", "hand-0", PERSISTENT, b"x" * 1000) * 50)
    await line.send(consume("hand-0") + consume("hand-1"))
    tag = 0
    while True:
        seen = (await line.read()).count(b"\0\x3c\0\x3c")
        if seen:
            tag += seen
            await line.send(settle(1, (60, 120), tag, 1))
            worker.step(seen)


@behaviour("amqp", "a fanout to 500 queues")
async def fanout(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(exchange("wide", "fanout"))
    for n in range(500):
        await line.send(
            declare(f"wide-{n}", table({"x-max-length": 5})) + bind(f"wide-{n}", "wide", "")
        )
    await flood(worker, line, publish(1, "wide", "", PERSISTENT, b"x" * 100), 500)


# -- transactions


@behaviour("amqp", "transactions that never end", workers=2)
async def transactions(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(method(1, (90, 10)) + declare("tx"))
    await flood(worker, line, publish(1, "", "tx", PERSISTENT, b"x" * 100_000) * 4, 4)


@behaviour("amqp", "empty commits and rollbacks", workers=2)
async def commits(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(method(1, (90, 10)) + declare("commits", table({"x-max-length": 10})))
    one = publish(1, "", "commits", PERSISTENT, b"x")
    data = method(1, (90, 20)) + one + method(1, (90, 30)) + one + method(1, (90, 20))
    await flood(worker, line, data * 20, 20)


# -- bodies that never end


@behaviour("amqp", "contents that never end on 500 channels", workers=2)
async def contents(worker: Worker) -> None:
    line = await worker.opened(500)
    worker.beside(line.drain)
    for n in range(1, 501):
        begun = publish(n, "", "none", PERSISTENT, b"x" * MIB)
        await line.send(begun[: 131072 * 4])
        worker.step()
    await line.drain()


@behaviour("amqp", "content headers of 2^63 bytes", workers=4)
async def huge(worker: Worker) -> None:
    line = await worker.opened()
    begun = method(1, (60, 40), b"\0\0" + short("") + short("q") + b"\0")
    await line.send(
        begun + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, (1 << 63) - 1) + PERSISTENT)
    )
    worker.step()
    await line.refused()


@behaviour("amqp", "a frame's head that announces 4 GiB", workers=8)
async def frames(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(struct.pack(">BHI", METHOD, 1, 0xFFFF_FFFF) + b"x" * 1000)
    worker.step()
    await line.refused()


@behaviour("amqp", "body frames of no bytes inside a content", workers=2)
async def empty_bodies(worker: Worker) -> None:
    line = await worker.opened()
    await line.send(publish(1, "", "q", PERSISTENT, b"x" * 1000)[:-400])
    await flood(worker, line, frame(3, 1, b"") * 2000, 2000)


# -- readers that never read


@behaviour("amqp", "get and reject of 1 MiB, a thousand times, nothing read", workers=4)
async def unread_gets(worker: Worker) -> None:
    queue = f"big-{worker.number}"
    line = await filled(worker, queue, b"x" * MIB, 2, bytes(4))
    for tag in range(1, 1001):
        await line.send(get(queue) + settle(1, (60, 90), tag, 1))
        worker.step()
    await asyncio.sleep(60)


@behaviour("amqp", "mandatory returns of 1 MiB, nothing read", workers=4)
async def unread_returns(worker: Worker) -> None:
    line = await worker.opened()
    one = bytearray(publish(1, "", "nowhere", PERSISTENT, b"x" * MIB))
    one[one.index(b"nowhere") + len(b"nowhere")] = 1  # mandatory
    while True:
        await line.send(bytes(one))
        worker.step()


@behaviour("amqp", "consumers without acknowledgements that read nothing", workers=8)
async def unread_deliveries(worker: Worker) -> None:
    line = await filled(worker, "deep", b"x" * MIB, 10, bytes(4))
    await line.send(consume("deep", no_ack=True))
    worker.step()
    await asyncio.sleep(60)


@behaviour("amqp", "readers of a stream from its first message that read nothing", workers=8)
async def unread_stream(worker: Worker) -> None:
    line = await filled(worker, "log", b"x" * 100_000, 30, table({"x-queue-type": "stream"}))
    await line.send(
        method(1, (60, 10), b"\0\0\0\0\x03\xe8\0")
        + consume("log", arguments=table({"x-stream-offset": "first"}))
    )
    worker.step()
    await asyncio.sleep(60)


@behaviour("amqp", "declares whose answers nobody reads", workers=4)
async def unread_answers(worker: Worker) -> None:
    line = await worker.opened()
    data = declare("answers" + "x" * 240) * 1000
    while True:
        await line.send(data)
        worker.step()


# -- readers that stay behind


@behaviour("amqp", "deliveries taken and never acknowledged, then given back", workers=4)
async def hoarders(worker: Worker) -> None:
    line = await filled(worker, "hoard", b"x" * 100, 500, bytes(4))
    await line.send(consume("hoard"))
    seen = 0
    while seen < 500:
        seen += (await line.read()).count(b"\0\x3c\0\x3c")
        worker.step()


@behaviour("amqp", "basic.recover without end", workers=2)
async def recover(worker: Worker) -> None:
    line = await filled(worker, "recovered", b"x" * 100, 200, bytes(4))
    await line.send(consume("recovered"))
    worker.beside(line.drain)
    while True:
        await line.send(method(1, (60, 110), b"\x01") * 20)
        worker.step()
        await asyncio.sleep(0.001)


@behaviour("amqp", "confirms asked for on every channel, publishes on all in turn")
async def confirms(worker: Worker) -> None:
    line = await worker.opened(200)
    worker.beside(line.drain)
    await line.send(declare("confirms", table({"x-max-length": 10})))
    await line.send(b"".join(method(n, (85, 10), b"\0") for n in range(1, 201)))
    data = b"".join(publish(n, "", "confirms", PERSISTENT, b"x") for n in range(1, 201))
    while True:
        await line.send(data)
        worker.step()
        await asyncio.sleep(0)
