"""Hostile behaviours of AMQP 1.0."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from bench.lean import PERSISTENT, publish
from tallymark.client.filters import selector, sql
from tallymark.wire.amqp10.frames import AMQP_HEADER, HEARTBEAT, SASL_HEADER, frame, sasl_frame
from tallymark.wire.amqp10.outcomes import Accepted, Declare, DeliveryState, Released
from tallymark.wire.amqp10.performatives import (
    COPY,
    Attach,
    Begin,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from tallymark.wire.amqp10.sasl import SaslInit, plain_response
from tallymark.wire.amqp10.sections import Properties, encode_message
from tests.siege.amqp091 import declare, flood
from tests.siege.attack import Line, Worker, behaviour

UINT: Final = (1 << 32) - 1
WINDOW: Final = 1 << 30
OUTCOME: Final = b"\0\x53\x44"
"""In a sasl-outcome; the other performatives of which one is waited for likewise."""
OPENED: Final = b"\0\x53\x10"
BEGUN: Final = b"\0\x53\x11"
ATTACHED: Final = b"\0\x53\x12"
FLOWED: Final = b"\0\x53\x13"
MIB: Final = 1 << 20


def said(performative: Performative, channel: int = 0, payload: bytes = b"") -> bytes:
    return frame(channel, performative.encode(), payload)


def sasl(worker: Worker, wrong: str = "") -> bytes:
    target = worker.target
    user, given = (target.other, wrong) if wrong else (target.user, target.password)
    response = plain_response(user, given)
    return sasl_frame(SaslInit("PLAIN", response).encode())


def opening(worker: Worker) -> bytes:
    return said(Open("siege", f"vhost:{worker.target.vhost}", max_frame_size=65536))


def address(worker: Worker, queue: str) -> str:
    return f"/queue/{queue}" if worker.target.is_rabbitmq else f"/queues/{queue}"


BEGIN: Final = said(Begin(None, 0, WINDOW, WINDOW, 100_000))


async def entered(worker: Worker) -> Line:
    """As far as SASL's outcome."""
    line = await worker.line("amqp")
    await line.send(SASL_HEADER)
    await line.until(b"PLAIN")
    await line.send(sasl(worker))
    await line.until(OUTCOME)
    return line


async def begun(worker: Worker, queue: str = "") -> Line:
    """As far as an open session on channel 0. queue: one that is declared before, by 0-9-1."""
    if queue:
        other = await worker.opened()
        await other.send(declare(queue, flags=2))
        await other.until(b"\0\x32\0\x0b")
        other.close()
    line = await entered(worker)
    await line.send(AMQP_HEADER + opening(worker) + BEGIN)
    await line.until(BEGUN)
    return line


def sender(worker: Worker, queue: str, handle: int = 0, name: str = "s") -> bytes:
    return said(
        Attach(name, handle, False, 2, 0, Source(), Target(address(worker, queue)),
               initial_delivery_count=0)
    )  # fmt: skip


def receiver(
    worker: Worker, queue: str, handle: int = 0, name: str = "r", **source: object
) -> bytes:
    wanted = Source(address(worker, queue), **source)  # type: ignore[arg-type]
    return said(Attach(name, handle, True, 0, 0, wanted, Target()))


def credit(handle: int, count: int, first: int = 0, *, echo: bool = False) -> bytes:
    return said(Flow(0, WINDOW, 0, WINDOW, handle, first, count, None, False, echo))


def disposition(first: int, last: int, state: DeliveryState) -> bytes:
    return said(Disposition(True, first, last, True, state))


async def sending(worker: Worker, queue: str) -> Line:
    """With an open link that has credit."""
    line = await begun(worker, queue)
    await line.send(sender(worker, queue))
    await line.until(FLOWED)
    return line


# -- the handshake


@behaviour("amqp", "1.0: SASL header that drips", workers=100)
async def sasl_header(worker: Worker) -> None:
    line = await worker.line("amqp")
    worker.beside(line.drain)
    worker.step()
    await line.drip(SASL_HEADER[:-1], 0.3)


@behaviour("amqp", "1.0: SASL init that drips", workers=100)
async def sasl_init(worker: Worker) -> None:
    line = await worker.line("amqp")
    await line.send(SASL_HEADER)
    await line.until(b"PLAIN")
    worker.step()
    await line.drip(sasl(worker), 0.3)


@behaviour("amqp", "1.0: open that drips", workers=100)
async def open_drips(worker: Worker) -> None:
    line = await entered(worker)
    worker.beside(line.drain)
    worker.step()
    await line.drip(AMQP_HEADER + opening(worker), 0.3)


@behaviour("amqp", "1.0: begin that drips", workers=100)
async def begin_drips(worker: Worker) -> None:
    line = await entered(worker)
    await line.send(AMQP_HEADER + opening(worker))
    await line.until(OPENED)
    worker.step()
    await line.drip(BEGIN, 0.3)


@behaviour("amqp", "1.0: log-ins with wrong passwords", workers=40)
async def passwords_10(worker: Worker) -> None:
    line = await worker.line("amqp")
    await line.send(SASL_HEADER)
    await line.until(b"PLAIN")
    await line.send(sasl(worker, os.urandom(4).hex()))
    worker.step()
    await line.refused()


@behaviour("amqp", "1.0: connections opened and dropped", workers=8)
async def churn_10(worker: Worker) -> None:
    await begun(worker)
    worker.step()


# -- what costs to read


def _bomb(name: str, title: str, properties: bytes) -> None:
    """A begin whose properties are this."""

    async def act(worker: Worker) -> None:
        line = await begun(worker)
        fields = b"\x40\x43\x43\x43" + b"\x40" * 3 + properties
        body = b"\0\x53\x11\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\0\0\0\x08" + fields
        await line.send(frame(1, body))
        worker.step()
        await line.refused()

    act.__name__ = name
    behaviour("amqp", title, workers=2)(act)


def _nested_maps(depth: int) -> bytes:
    raw = b"\x40"
    for _ in range(depth):
        raw = b"\xa3\x01a" + raw
        raw = b"\xd1" + (len(raw) + 4).to_bytes(4, "big") + b"\0\0\0\x02" + raw
    return raw


def _nested_lists(depth: int) -> bytes:
    raw = b"\x40"
    for _ in range(depth):
        raw = b"\xd0" + (len(raw) + 4).to_bytes(4, "big") + b"\0\0\0\x01" + raw
    return b"\xd1" + (len(raw) + 7).to_bytes(4, "big") + b"\0\0\0\x02\xa3\x01a" + raw


def _array(count: int) -> bytes:
    """Of so many nulls, which take no bytes."""
    raw = b"\xf0\0\0\0\x05" + count.to_bytes(4, "big") + b"\x40"
    return b"\xd1" + (len(raw) + 7).to_bytes(4, "big") + b"\0\0\0\x02\xa3\x01a" + raw


_bomb("maps_10", "1.0: maps in maps, 5,000 deep", _nested_maps(5000))
_bomb("lists_10", "1.0: lists in lists, 5,000 deep", _nested_lists(5000))
_bomb("array_10", "1.0: an array of 4,294,967,295 nulls in 20 bytes", _array(UINT))
_bomb("descriptors_10", "1.0: descriptors of descriptors", b"\0" * 50_000 + b"\x40")


@behaviour("amqp", "1.0: messages of 8,000 application properties", workers=2)
async def properties_10(worker: Worker) -> None:
    line = await sending(worker, "properties")
    message = encode_message(application_properties={f"p{n}": n for n in range(4000)})
    transfers = b"".join(said(Transfer(0, n, b"t", 0, True), payload=message) for n in range(3))
    await flood(worker, line, transfers, 3)


@behaviour("amqp", "1.0: frames of unknown types and performatives", workers=8)
async def unknown_10(worker: Worker) -> None:
    line = await begun(worker)
    kinds = [b"\0\0\0\x08\x02\x09\0\0", frame(0, b"\0\x53\x77\x45"), frame(9, b"\0\x53\x14\x45"),
             b"\0\0\0\x04\x02\0\0\0"]  # fmt: skip
    await line.send(kinds[worker.count.steps % len(kinds)])
    worker.step()
    await line.refused()


@behaviour("amqp", "1.0: empty frames without end", workers=2)
async def beats_10(worker: Worker) -> None:
    await flood(worker, await begun(worker), HEARTBEAT * 2000, 2000)


# -- floods


@behaviour("amqp", "1.0: sessions begun and ended", workers=2)
async def sessions(worker: Worker) -> None:
    line = await begun(worker)
    pair = b"".join(
        said(Begin(None, 0, WINDOW, WINDOW, 10), n) + said(End(), n) for n in range(1, 200)
    )
    await flood(worker, line, pair, 200)


@behaviour("amqp", "1.0: links attached and detached", workers=2)
async def links(worker: Worker) -> None:
    line = await begun(worker, "links")
    data = b"".join(
        receiver(worker, "links", n, f"r{n}") + said(Detach(n, True)) for n in range(100)
    )
    await flood(worker, line, data, 100)


@behaviour("amqp", "1.0: 2,000 links on one session, then gone")
async def many_links(worker: Worker) -> None:
    line = await begun(worker, "links")
    worker.beside(line.drain)
    for n in range(2000):
        await line.send(receiver(worker, "links", n, f"r{n}") + credit(n, 10))
        worker.step()
        if n % 50 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0.1)


@behaviour("amqp", "1.0: flows that want an answer, without end", workers=2)
async def flows(worker: Worker) -> None:
    line = await begun(worker, "flows")
    await line.send(receiver(worker, "flows"))
    await line.until(ATTACHED)
    await flood(worker, line, credit(0, 1, echo=True) * 500, 500)


@behaviour("amqp", "1.0: credit of 4,294,967,295 on a queue that others fill, nothing settled")
async def credits(worker: Worker) -> None:
    line = await begun(worker, "credits")
    await line.send(receiver(worker, "credits") + credit(0, UINT))
    other = await worker.opened()
    worker.beside(line.drain)
    await flood(worker, other, publish(1, "", "credits", PERSISTENT, b"x" * 100) * 50, 50)


@behaviour("amqp", "1.0: dispositions of 0 to 4,294,967,295", workers=2)
async def dispositions(worker: Worker) -> None:
    line = await begun(worker, "ranges")
    await line.send(receiver(worker, "ranges") + credit(0, 100))
    await line.until(ATTACHED)
    wide = disposition(0, UINT - 1, Accepted()) + disposition(0, 1 << 30, Released())
    await flood(worker, line, wide * 100, 200)


@behaviour("amqp", "1.0: deliveries released as they come")
async def releases(worker: Worker) -> None:
    line = await begun(worker, "released")
    await line.send(sender(worker, "released", 0))
    await line.until(FLOWED)
    message = encode_message(body=b"x" * 100)
    for n in range(20):
        await line.send(said(Transfer(0, n, b"%d" % n, 0, True), payload=message))
    await line.send(receiver(worker, "released", 1) + credit(1, 1000))
    at = 0
    while True:
        seen = (await line.read()).count(b"\0\x53\x14")  # save those cut in two
        if seen:
            await line.send(disposition(at, at + seen - 1, Released()) + credit(1, 1000, at))
            at += seen
            worker.step(seen)


# -- bodies that never end, transactions


@behaviour("amqp", "1.0: transfers that never end on 50 links", workers=4)
async def transfers(worker: Worker) -> None:
    line = await begun(worker, "endless")
    for n in range(50):
        await line.send(sender(worker, "endless", n, f"s{n}"))
    worker.beside(line.drain)
    await asyncio.sleep(0.05)
    piece = b"\0\x53\x75\xb0" + (1 << 30).to_bytes(4, "big") + b"x" * 60_000
    for n in range(50):
        await line.send(said(Transfer(n, n, b"t", 0, False, True), payload=piece))
    while True:
        for n in range(50):
            more = Transfer(n, more=True)
            await line.send(said(more, payload=b"x" * 60_000))
            worker.step()


@behaviour("amqp", "1.0: transactions declared and never discharged", workers=2, rabbitmq=False)
async def declares(worker: Worker) -> None:
    line = await begun(worker)
    control = Attach("control", 0, False, 0, 0, Source(), Coordinator(), initial_delivery_count=0)
    await line.send(said(control))
    await line.until(FLOWED)
    worker.beside(line.drain)
    message = encode_message(body=Declare())
    for n in range(1_000_000):
        await line.send(said(Transfer(0, n, n.to_bytes(4, "big"), 0, False), payload=message))
        worker.step()
        if n % 20 == 0:
            await asyncio.sleep(0)


# -- readers that never read, filters


async def _deep(worker: Worker, queue: str, count: int, size: int) -> None:
    """Fill a queue over AMQP 0-9-1."""
    line = await worker.opened()
    await line.send(declare(queue, flags=2))
    for _ in range(count):
        await line.send(publish(1, "", queue, PERSISTENT, b"a" * size))
    await line.send(declare(queue, flags=2))
    await line.until(b"\0\x32\0\x0b")
    line.close()


@behaviour("amqp", "1.0: a receiver of 1 MiB messages that reads nothing", workers=8)
async def unread_10(worker: Worker) -> None:
    await _deep(worker, "unread", 3, MIB)
    line = await begun(worker)
    await line.send(receiver(worker, "unread") + credit(0, UINT))
    worker.step()
    await asyncio.sleep(60)


@behaviour("amqp", "1.0: browsers that read nothing", workers=8, rabbitmq=False)
async def browse(worker: Worker) -> None:
    await _deep(worker, "browsed", 3, MIB)
    line = await begun(worker)
    await line.send(receiver(worker, "browsed", distribution_mode=COPY) + credit(0, UINT))
    worker.step()
    await asyncio.sleep(60)


def _filtered(name: str, title: str, made: Callable[[], dict[str, object]]) -> None:
    async def act(worker: Worker) -> None:
        await _filter(worker, made())

    act.__name__ = name
    behaviour("amqp", title, workers=2, rabbitmq=False)(act)


async def _filter(worker: Worker, wanted: dict[str, object]) -> None:
    """Browse messages whose subject is long, by this."""
    line = await sending(worker, "filtered")
    message = encode_message(properties=Properties(subject="a" * 5000), body=b"x")
    for n in range(200):
        await line.send(said(Transfer(0, n, b"%d" % n, 0, True), payload=message))
    worker.beside(line.drain)
    for n in range(1, 1000):
        await line.send(
            receiver(worker, "filtered", n, f"r{n}", distribution_mode=COPY, filter=wanted)
            + credit(n, 100)
        )
        worker.step()
        await asyncio.sleep(0.01)


_filtered(
    "like", "1.0: SQL filters whose LIKE backtracks",
    lambda: sql("p.subject LIKE '" + "%a" * 25 + "%b'"),
)  # fmt: skip
_filtered(
    "many_likes", "1.0: SQL filters of 40 conditions that backtrack",
    lambda: sql(" OR ".join(["p.subject LIKE '%a%a%a%a%a%a%a%b'"] * 40)),
)  # fmt: skip
_filtered(
    "deep_sql", "1.0: SQL filters of 2,000 parentheses", lambda: sql("(" * 2000 + "1" + ")" * 2000)
)
_filtered(
    "long_sql", "1.0: SQL filters of 500 conditions",
    lambda: sql(" OR ".join(f"p.subject = '{n}'" for n in range(500))),
)  # fmt: skip
_filtered(
    "selectors", "1.0: selectors whose LIKE backtracks",
    lambda: selector("JMSType LIKE '" + "%a" * 25 + "%b'"),
)  # fmt: skip
