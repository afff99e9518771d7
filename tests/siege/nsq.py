"""Hostile behaviours of NSQ's protocol."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Callable

import cramjam

from tallymark.wire.nsq.commands import MAGIC, NOP, auth, fin, identify, pub, rdy, req, sub
from tallymark.wire.nsq.snappy import IDENTIFIER, masked_checksum
from tests.siege.amqp091 import flood
from tests.siege.attack import Line, Worker, behaviour

MIB = 1 << 20


def about(**more: object) -> bytes:
    fields = {"feature_negotiation": True, **more}
    return identify(json.dumps(fields).encode())


async def known(worker: Worker, **more: object) -> Line:
    """Identified, and authenticated."""
    line = await worker.line("nsq")
    await line.send(MAGIC + about(**more))
    await line.until(b"}")
    await line.send(auth(f"{worker.target.user}:{worker.target.password}".encode()))
    await line.until(b"}")
    return line


async def compressing(worker: Worker, kind: str, pack: Callable[[bytes], bytes]) -> Line:
    """The same inside deflate or snappy; answers are read and thrown away."""
    line = await worker.line("nsq")
    await line.send(MAGIC + about(**{kind: True}))
    await line.until(b"}")
    worker.beside(line.drain)
    await line.send(pack(auth(f"{worker.target.user}:{worker.target.password}".encode())))
    return line


def deflating() -> Callable[[bytes], bytes]:
    squeeze = zlib.compressobj(9, wbits=-15)
    return lambda data: squeeze.compress(data) + squeeze.flush(zlib.Z_SYNC_FLUSH)


def snappy_chunk(piece: bytes) -> bytes:
    """Of at most 64 KiB."""
    content = masked_checksum(piece) + bytes(cramjam.snappy.compress_raw(piece))
    return b"\0" + len(content).to_bytes(3, "little") + content


def snapping(data: bytes) -> bytes:
    return IDENTIFIER + snappy_chunk(data)


@behaviour("nsq", "silent connections", workers=400)
async def silent_nsq(worker: Worker) -> None:
    line = await worker.line("nsq")
    worker.step()
    await line.drain()


@behaviour("nsq", "magic that drips", workers=100)
async def magic(worker: Worker) -> None:
    line = await worker.line("nsq")
    worker.step()
    await line.drip(MAGIC[:-1], 0.3)
    await line.drain()


@behaviour("nsq", "IDENTIFY that never ends its line", workers=20)
async def command(worker: Worker) -> None:
    line = await worker.line("nsq")
    worker.beside(line.drain)
    await line.send(MAGIC)
    while True:
        await line.send(b"I" * 10_000)
        worker.step()


@behaviour("nsq", "IDENTIFY whose body drips", workers=100)
async def identity(worker: Worker) -> None:
    line = await worker.line("nsq")
    worker.step()
    await line.send(MAGIC)
    await line.drip(about(), 0.3)


@behaviour("nsq", "IDENTIFY that announces 4 GiB", workers=8)
async def size(worker: Worker) -> None:
    line = await worker.line("nsq")
    await line.send(MAGIC + b"IDENTIFY\n\xff\xff\xff\xff" + b"{" * 1000)
    worker.step()
    await line.drain()


@behaviour("nsq", "IDENTIFY of JSON nested 100,000 deep", workers=4)
async def json_bomb(worker: Worker) -> None:
    line = await worker.line("nsq")
    await line.send(MAGIC + identify(b'{"a":' * 100_000))
    worker.step()
    await line.drain()


@behaviour("nsq", "connections opened and dropped", workers=8)
async def churn_nsq(worker: Worker) -> None:
    await known(worker)
    worker.step()


@behaviour("nsq", "AUTH with wrong passwords", workers=40)
async def secrets(worker: Worker) -> None:
    line = await worker.line("nsq")
    await line.send(MAGIC + about())
    await line.until(b"}")
    await line.send(auth(f"{worker.target.other}:{os.urandom(4).hex()}".encode()))
    worker.step()
    await line.drain()


@behaviour("nsq", "PUB whose body never comes", workers=100)
async def bodies(worker: Worker) -> None:
    line = await known(worker)
    await line.send(b"PUB endless\n" + MIB.to_bytes(4, "big") + b"x" * (MIB - 1))
    worker.step()
    await line.drain()


@behaviour("nsq", "MPUB of 5 MiB whose last byte never comes", workers=50)
async def batches(worker: Worker) -> None:
    line = await known(worker)
    size = 5 * MIB
    await line.send(b"MPUB endless\n" + size.to_bytes(4, "big") + b"\0\0\0\x06" + b"\0" * 4)
    for _ in range(5):
        await line.send(b"x" * (MIB - 10))
        worker.step()
    await line.drain()


@behaviour("nsq", "bodies in segments of one byte", workers=4)
async def dribble_nsq(worker: Worker) -> None:
    line = await known(worker)
    worker.beside(line.drain)
    while True:
        await line.drip(pub("dribble", b"x" * 10), 0)
        worker.step()


@behaviour("nsq", "deflate: 10 kB that stand for 10 MiB of commands", workers=8)
async def deflate(worker: Worker) -> None:
    pack = deflating()
    line = await compressing(worker, "deflate", pack)
    await flood(worker, line, pack(NOP * (10 * MIB // len(NOP))), 1)


@behaviour("nsq", "deflate: publishes of zeros, 1,000 to 1", workers=4)
async def deflate_bodies(worker: Worker) -> None:
    pack = deflating()
    line = await compressing(worker, "deflate", pack)
    while True:
        await line.send(pack(pub("zeros#ephemeral", bytes(MIB - 100))))
        worker.step()


@behaviour("nsq", "snappy: chunks of commands, 20 to 1", workers=8)
async def snappy(worker: Worker) -> None:
    line = await compressing(worker, "snappy", snapping)
    await flood(worker, line, snappy_chunk(NOP * (65536 // len(NOP))) * 20, 20)


@behaviour("nsq", "snappy: a length of 4 GiB in a chunk of 10 bytes", workers=8)
async def snappy_length(worker: Worker) -> None:
    line = await compressing(worker, "snappy", snapping)
    content = b"\0" * 4 + b"\xff\xff\xff\xff\x0f" + b"x" * 5
    await line.send(b"\0" + len(content).to_bytes(3, "little") + content)
    worker.step()
    await line.drain()


@behaviour("nsq", "bytes at random in deflate and snappy", workers=8)
async def noise_nsq(worker: Worker) -> None:
    if worker.number % 2:
        line = await compressing(worker, "deflate", deflating())
    else:
        line = await compressing(worker, "snappy", snapping)
    await line.send(os.urandom(2000))
    worker.step()
    await line.drain()


@behaviour("nsq", "NOP without end", workers=2)
async def nops(worker: Worker) -> None:
    await flood(worker, await known(worker), NOP * 5000, 5000)


@behaviour("nsq", "RDY changed without end", workers=2)
async def ready(worker: Worker) -> None:
    line = await known(worker)
    await line.send(sub("flips", "c#ephemeral"))
    await flood(worker, line, (rdy(0) + rdy(2500)) * 1000, 2000)


@behaviour("nsq", "FIN and REQ of messages that are not there", workers=2)
async def not_in_flight(worker: Worker) -> None:
    line = await known(worker)
    await line.send(sub("none", "c#ephemeral"))
    await flood(worker, line, (fin(1 << 50) + req(1 << 50, 0)) * 500, 1000)


@behaviour("nsq", "messages requeued as they come")
async def requeues(worker: Worker) -> None:
    line = await known(worker)
    await line.send(pub("again", b"x" * 100) * 50 + sub("again", "c") + rdy(100))
    seen = b""
    while True:
        seen += await line.read()
        answers = []
        while len(seen) >= 8 and len(seen) >= 4 + (length := int.from_bytes(seen[:4], "big")):
            if seen[7] == 2:
                answers.append(b"REQ " + seen[18:34] + b" 0\n")
            seen = seen[4 + length :]
        if answers:
            await line.send(b"".join(answers))
            worker.step(len(answers))


@behaviour("nsq", "topics and channels without end")
async def topics_nsq(worker: Worker) -> None:
    line = await known(worker)
    worker.beside(line.drain)
    first = worker.count.steps
    for n in range(2000):
        await line.send(pub(f"topic{(first + n) % 500}#ephemeral", b"x"))
        worker.step()
        if n % 20 == 0:
            await asyncio.sleep(0.001)


@behaviour("nsq", "a subscriber with RDY 2500 that reads nothing", workers=8)
async def unread_nsq(worker: Worker) -> None:
    line = await known(worker)
    await line.send(pub("unread", b"x" * (MIB - 100)) * 4)
    await line.until(b"OK")
    other = await known(worker)
    await other.send(sub("unread", "c") + rdy(2500))
    worker.step()
    await asyncio.sleep(60)


@behaviour("nsq", "errors asked for and not read", workers=4)
async def unread_errors(worker: Worker) -> None:
    line = await known(worker)
    await line.send(sub("errors", "c#ephemeral"))
    while True:
        await line.send(fin(7) * 1000)
        worker.step(1000)
