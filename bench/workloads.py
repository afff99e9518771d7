"""Nine fixed workloads for a broker in steps: the same bytes in the same reads, every time.

A workload is set up once; `inputs` gives what its clients send for some messages, and what every
step of it costs is the broker's alone but for a copy of the bytes.
"""

from __future__ import annotations

import random
import re
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.lean import ACK, PERSISTENT, TRANSIENT, publish, settle, short
from bench.stepped import Peer, SteppedBroker
from tallymark.wire.amqp10.sections import Header, encode_message
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    TransferForm,
    disposition_frame,
    encode_transfers,
)

KIB = bytes(range(256)) * 4
SMALL = b"0123456789abcdef"
CREDIT = 1 << 30
NSQ_HEAD = 8 + 8 + 2
"""Size and type of the frame, time and attempts: what stands before a message's id."""
ID_BYTES = 16

Step = tuple[Peer, bytes]
"""A client, and what it sends in one piece."""


@dataclass(frozen=True, slots=True)
class Workload:
    """name: as the budget has it; per_step: messages in one step; messages: of one measurement;
    queues: those in which nothing may be left."""

    name: str
    about: str
    per_step: int
    messages: int
    set_up: Callable[[SteppedBroker], Callable[[int], Iterator[Step]]]


def _declare(peer: Peer, queue: str, durable: bool = True) -> None:
    peer.call((50, 10), b"\0\0" + short(queue) + bytes([2 if durable else 0]) + bytes(4))


def _consume(peer: Peer, queue: str, no_ack: bool = False) -> None:
    flags = bytes([2 if no_ack else 0])
    peer.call((60, 20), b"\0\0" + short(queue) + short(queue) + flags + bytes(4))


@dataclass(slots=True)
class _Tags:
    """Delivery tags as the broker gives them: from 1."""

    last: int = 0

    def more(self, count: int) -> range:
        first, self.last = self.last + 1, self.last + count
        return range(first, self.last + 1)


def _transient(broker: SteppedBroker) -> Callable[[int], Iterator[Step]]:
    source, sink = broker.amqp().enter(), broker.amqp().enter()
    _declare(source, "a", durable=False)
    _consume(sink, "a", no_ack=True)
    one = publish(1, "", "a", TRANSIENT, SMALL)

    def inputs(count: int) -> Iterator[Step]:
        yield source, one * count

    return inputs


def _durable(
    queue: str, settled: Callable[[range], bytes]
) -> Callable[[SteppedBroker], Callable[[int], Iterator[Step]]]:
    def set_up(broker: SteppedBroker) -> Callable[[int], Iterator[Step]]:
        source, sink = broker.amqp().enter(confirms=True), broker.amqp().enter(prefetch=1000)
        _declare(source, queue)
        _consume(sink, queue)
        one, tags = publish(1, "", queue, PERSISTENT, KIB), _Tags()

        def inputs(count: int) -> Iterator[Step]:
            yield source, one * count
            yield sink, settled(tags.more(count))

        return inputs

    return set_up


def _all_at_once(tags: range) -> bytes:
    return settle(1, ACK, tags[-1], 1)


def _each(tags: range) -> bytes:
    return b"".join(settle(1, ACK, tag, 0) for tag in tags)


def _shuffled(tags: range) -> bytes:
    mixed = random.Random(tags[0]).sample(tags, len(tags))
    return b"".join(settle(1, ACK, tag, 0) for tag in mixed)


def _routed(broker: SteppedBroker) -> Callable[[int], Iterator[Step]]:
    """50 keys over a topic exchange to 10 queues, and properties of which no two are alike."""
    source, sink = broker.amqp().enter(confirms=True), broker.amqp().enter(prefetch=1000)
    source.call((40, 10), b"\0\0" + short("routed") + short("topic") + b"\2" + bytes(4))
    for number in range(10):
        _declare(source, f"routed-{number}")
        _consume(sink, f"routed-{number}")
    for key in range(50):
        bound = short(f"routed-{key % 10}") + short("routed") + short(f"k.{key}.*")
        source.call((50, 20), b"\0\0" + bound + bytes(5))
    tags, chance = _Tags(), random.Random(7)

    def one(number: int) -> bytes:
        flags = struct.pack(">H", 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6)
        trace = f"{chance.getrandbits(128):032x}".encode()
        headers = short("trace-id") + b"S" + struct.pack(">I", len(trace)) + trace
        told = struct.pack(">I", len(headers)) + headers + b"\2" + short(f"message-{number:08}")
        stamp = struct.pack(">Q", 1_700_000_000 + number // 100)
        return publish(1, "routed", f"k.{chance.randrange(50)}.x", flags + told + stamp, KIB)

    def inputs(count: int) -> Iterator[Step]:
        numbers = tags.more(count)
        yield source, b"".join(one(number) for number in numbers)
        yield sink, _all_at_once(numbers)

    return inputs


def _calls(broker: SteppedBroker) -> Callable[[int], Iterator[Step]]:
    """RPC by direct reply-to: the answer is published by who has got the request, and acknowledges
    it in the same read."""
    asking, answering = broker.amqp().enter(), broker.amqp().enter(prefetch=1000)
    _declare(answering, "calls", durable=False)
    _consume(answering, "calls")
    flags = struct.pack(">H", 1 << 9)
    told = flags + short("amq.rabbitmq.reply-to")
    request, tags = publish(1, "", "calls", told, SMALL), _Tags()
    asking.call((60, 20), b"\0\0" + short("amq.rabbitmq.reply-to") + short("r") + b"\2" + bytes(4))

    def inputs(count: int) -> Iterator[Step]:
        yield asking, request * count
        heard = answering.pipe.take()
        found = re.findall(rb"amq\.rabbitmq\.reply-to\.[^\xce]+(?=\xce)", heard)
        assert len(found) == count, f"{len(found)} requests were handed out, expected {count}"
        answers = [publish(1, "", one.decode(), TRANSIENT, SMALL) for one in found]
        yield answering, b"".join(answers) + _all_at_once(tags.more(count))
        answered = asking.pipe.take().count(SMALL)
        assert answered == count, f"{answered} calls were answered, expected {count}"

    return inputs


def _links(broker: SteppedBroker) -> Callable[[int], Iterator[Step]]:
    source, sink = broker.amqp().enter_links(), broker.amqp().enter_links()
    _declare(broker.amqp().enter(), "links")
    source.attach_sender("links", 0)
    sink.attach_receiver("links", 0, CREDIT)
    form, one, ids = TransferForm(0, 0), encode_message(Header(True), body=KIB), _Tags(-1)

    def inputs(count: int) -> Iterator[Step]:
        numbers = ids.more(count)
        cuts = array("I", range(0, (count + 1) * len(one), len(one)))
        sent, _ = encode_transfers(
            form, numbers[0], numbers[0], one * count, cuts, 0, count, b"", 0, 1 << 16
        )
        yield source, sent
        yield sink, disposition_frame(0, True, numbers[0], numbers[-1], True, ACCEPTED)

    return inputs


def _nsq(broker: SteppedBroker) -> Callable[[int], Iterator[Step]]:
    source, sink = broker.nsq(), broker.nsq()
    for peer in (source, sink):
        peer.send(b"  V2")
    sink.ask(b"SUB nsq c\n", b"OK")
    sink.send(b"RDY 2500\n")
    one = b"PUB nsq\n" + struct.pack(">I", len(KIB)) + KIB

    def inputs(count: int) -> Iterator[Step]:
        yield source, one * count
        heard, size = sink.pipe.take(), NSQ_HEAD + ID_BYTES + len(KIB)
        assert len(heard) == count * size, f"{len(heard)} bytes of NSQ, expected {count * size}"
        ids = (heard[at : at + ID_BYTES] for at in range(NSQ_HEAD, len(heard), size))
        yield sink, b"".join(b"FIN " + one + b"\n" for one in ids)

    return inputs


WORKLOADS = (
    Workload("a", "16 B transient, acknowledged automatically", 500, 10_000, _transient),
    Workload("b", "1 KiB durable, confirmed, acknowledged together", 50, 1_000,
             _durable("b", _all_at_once)),
    Workload("c", "as b, each acknowledged", 50, 1_000, _durable("c", _each)),
    Workload("f", "as c, one message at a time", 1, 100, _durable("f", _each)),
    Workload("g", "as b, routes and properties differ", 50, 500, _routed),
    Workload("l", "as c, acknowledged in no order", 50, 1_000, _durable("l", _shuffled)),
    Workload("p", "as b, over AMQP 1.0", 50, 1_000, _links),
    Workload("i", "RPC by direct reply-to, one call at a time", 1, 100, _calls),
    Workload("nsq", "as c, over NSQ", 50, 1_000, _nsq),
)  # fmt: skip
