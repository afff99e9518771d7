"""Traffic of a soak: AMQP 0-9-1, AMQP 1.0 and HTTP at a steady pace, over all lives of the broker.

    work     0-9-1 and HTTP publish, 0-9-1 consumes: ack, nack with requeue, reject
    work10   1.0 publishes and consumes: accepted, released, rejected
    dead     what was rejected in either; 0-9-1 consumes
    table    0-9-1 publishes, Spark lands
    kept     published once, browsed again and again

A message is a number, see crash_history: the producer's and a sequence.
"""

from __future__ import annotations

import base64
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.lean import ACK, DELIVER, NACK, Link, publish, settle, short, table
from tallymark.journal import unpacking
from tallymark.stored.records import PAYLOAD
from tallymark.wire.amqp10.events import DispositionReceived, Event, TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted, Rejected, Released
from tallymark.wire.amqp10.sections import Header, Sections, encode_message
from tests.soak.account import Notes, dies
from tests.soak.stage import Actor, Stage
from tests.support.amqp10_socket import Client as Client10
from tests.support.crash_history import SEQUENCE, Arrival, body_of, number_in, number_of
from tests.support.pace import Pace
from tests.support.process import BrokerProcess

WORK, WORK10, DEAD, TABLE, KEPT = "soak.work", "soak.work10", "soak.dead", "soak.table", "soak.kept"
QUEUES = (WORK, WORK10, DEAD, TABLE, KEPT)
BY_091, BY_HTTP, BY_10, FOR_TABLE = range(1, 5)
"""Producers."""
KEPT_COUNT = 200
REJECT = (60, 90)
WINDOW = 500
"""Unconfirmed publishes at most."""
CREDIT = 50
REPEATS = (2, 16, 128)
TURN_S = 0.02
"""How long a turn waits for the broker at most."""
RETURNED_EVERY = 31
"""Messages that are given back the first time."""


def declare(port: int) -> None:
    """All queues, and the messages that stay in one of them."""
    link = Link(port)
    link.open_channel(1, confirms=True)
    letters: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    for queue in QUEUES:
        arguments = table(letters if queue in (WORK, WORK10) else {})
        link.call(1, (50, 10), b"\0\0" + short(queue) + b"\2" + arguments)
    for n in range(KEPT_COUNT):
        link.socket.sendall(publish(1, "", KEPT, properties(n), body_of(n, 2)))
    confirmed = 0
    while confirmed < KEPT_COUNT:
        assert link.fill(), "hung up"
        for name, _, tag, _, _ in link.events():
            assert name == ACK
            confirmed = tag
    link.close()


def properties(number: int) -> bytes:
    """Section of a persistent message with its number as message-id [amqp-0.9.1 §4.2.6.1]."""
    return struct.pack(">HB", 0x1080, 2) + short(str(number))


def repeats(number: int) -> int:
    return REPEATS[number % len(REPEATS)]


def work_body(number: int) -> bytes:
    return body_of(number, repeats(number))


def table_body(number: int) -> bytes:
    """As tests/spark/rig.py reads it back."""
    return f"line {number}".encode()


class Publisher(Actor):
    """Publishes at a pace and notes what is confirmed. What was not when a connection broke is
    given up: nobody knows of it."""

    def __init__(self, stage: Stage, name: str, producer: int, confirmed: Notes, per_s: float):
        super().__init__(stage, name)
        self.producer = producer
        self.sequence = 0
        self.confirmed = confirmed
        self.per_s = per_s

    @property
    def is_done(self) -> bool:
        return self.stage.ended.is_set()

    def next(self) -> int:
        self.sequence += 1
        return number_of(self.producer, self.sequence, persistent=True)


class Publisher091(Publisher):
    """With confirms."""

    def __init__(
        self, stage: Stage, queue: str, producer: int, confirmed: Notes, per_s: float,
        body: Callable[[int], bytes] = work_body,
    ) -> None:  # fmt: skip
        super().__init__(stage, f"0-9-1 to {queue}", producer, confirmed, per_s)
        self._queue = queue
        self._body = body

    def work(self) -> None:
        link = Link(self.stage.broker.amqp_port)
        try:
            link.open_channel(1, confirms=True)
            link.set_loose()
            self._publish(link)
        finally:
            link.drop()

    def _publish(self, link: Link) -> None:
        pace = Pace(self.per_s)
        waiting: deque[int] = deque()
        tag = 0
        while waiting or not self.is_done:
            while not self.is_done and len(waiting) < WINDOW and pace.take():
                number = self.next()
                link.outbox += publish(1, "", self._queue, properties(number), self._body(number))
                waiting.append(number)
            link.flush()
            select.select([link.socket], [link.socket] if link.outbox else [], [], TURN_S)
            if not link.fill():
                raise ConnectionError("end of the stream")
            for name, _, upto, multiple, _ in link.events():
                assert name == ACK, name
                assert multiple or upto == tag + 1, (upto, tag)
                while tag < upto:
                    tag += 1
                    self.confirmed.add(waiting.popleft())


class PublisherHttp(Publisher):
    """A request for each message; its answer is the confirm."""

    def __init__(self, stage: Stage, confirmed: Notes, per_s: float) -> None:
        super().__init__(stage, f"HTTP to {WORK}", BY_HTTP, confirmed, per_s)

    def work(self) -> None:
        life = self.stage.life
        while self.stage.lives(life) and not self.is_done:
            number = self.next()
            body = {
                "routing_key": WORK,
                "payload": base64.b64encode(work_body(number)).decode(),
                "payload_encoding": "base64",
                "properties": {"delivery_mode": 2, "message_id": str(number)},
            }
            path = "/api/exchanges/%2F/amq.default/publish"
            status, said = self.stage.broker.http("POST", path, body)
            assert (status, said) == (200, {"routed": True}), (status, said)
            self.confirmed.add(number)
            self.stage.ended.wait(1 / self.per_s)


class Publisher10(Publisher):
    """A disposition for each message is the confirm."""

    def __init__(self, stage: Stage, confirmed: Notes, per_s: float) -> None:
        super().__init__(stage, f"1.0 to {WORK10}", BY_10, confirmed, per_s)

    def work(self) -> None:
        with connected10(self.stage.broker) as client:
            session = client.session()
            sender = client.sender(session, f"/queues/{WORK10}")
            pace = Pace(self.per_s)
            waiting: dict[int, int] = {}
            while waiting or not self.is_done:
                while not self.is_done and sender.credit and pace.take():
                    number = self.next()
                    message = encode_message(header=Header(durable=True), body=work_body(number))
                    waiting[sender.send(message)] = number
                for event in pump(client):
                    if isinstance(event, DispositionReceived) and not event.by_sender:
                        assert isinstance(event.state, Accepted), event.state
                        for id in range(event.first, event.last + 1):
                            self.confirmed.add(waiting.pop(id))


def connected10(broker: BrokerProcess) -> Client10:
    raw = socket.create_connection(("127.0.0.1", broker.amqp_port))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = Client10(raw)
    try:
        return client.login()
    except AssertionError as error:  # it was hung up on
        raw.close()
        raise ConnectionError("hung up in the log-in") from error


def pump(client: Client10) -> list[Event]:
    """Write what is to be written, wait for a moment, read. Raises OSError when it broke."""
    output = b"".join(client.wire.take_output(0))
    if output:
        client.socket.sendall(output)
    if select.select([client.socket], [], [], TURN_S)[0]:
        data = client.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("end of the stream")
        client.wire.receive_data(data, 0)
    found: list[Event] = []
    while (event := client.wire.next_event()) is not None:
        found.append(event)
    return found


class Consumer(Actor):
    """Consumes a queue and notes what it got. It rejects what `dies`, where it is to."""

    def __init__(self, stage: Stage, name: str, got: Notes, rejects: bool = False) -> None:
        super().__init__(stage, name)
        self.got = got
        self.rejects = rejects


class Consumer091(Consumer):
    def __init__(self, stage: Stage, queue: str, got: Notes, rejects: bool = False) -> None:
        super().__init__(stage, f"0-9-1 from {queue}", got, rejects)
        self._queue = queue

    def work(self) -> None:
        link = Link(self.stage.broker.amqp_port)
        try:
            link.open_channel(1, prefetch=CREDIT)
            link.consume(1, self._queue)
            link.set_loose()
            while not self.is_done or link.outbox:
                link.flush()
                for name, _, tag, redelivered, body in link.events():
                    assert name == DELIVER, name
                    number = number_in(body)
                    self.got.add(number, redelivered)
                    link.outbox += self._answer(number, tag, redelivered)
                select.select([link.socket], [link.socket] if link.outbox else [], [], TURN_S)
                if not link.fill():
                    raise ConnectionError("end of the stream")
        finally:
            link.drop()

    def _answer(self, number: int, tag: int, redelivered: bool) -> bytes:
        if not self.rejects:
            return settle(1, ACK, tag, 0)
        if dies(number):
            return settle(1, REJECT, tag, 0)
        if not redelivered and (number & SEQUENCE) % RETURNED_EVERY == 0:
            return settle(1, NACK, tag, 2)
        return settle(1, ACK, tag, 0)


class Consumer10(Consumer):
    def __init__(self, stage: Stage, queue: str, got: Notes) -> None:
        super().__init__(stage, f"1.0 from {queue}", got, rejects=True)
        self._queue = queue

    def work(self) -> None:
        with connected10(self.stage.broker) as client:
            session = client.session()
            link = client.receiver(session, f"/queues/{self._queue}")
            while not self.is_done:
                if link.credit < CREDIT // 2:
                    link.flow(CREDIT)
                for event in pump(client):
                    if isinstance(event, TransfersReceived):
                        cuts = event.cuts
                        for n in range(len(event.tags)):
                            arrival = self._note(event.data, cuts[n], cuts[n + 1])
                            id = event.first + n
                            client.dispose(session, id, self._outcome(arrival), True)

    def _note(self, data: bytes, start: int, end: int) -> Arrival:
        sections = Sections(data, start, end)
        header = sections.header
        (body,) = sections.bodies
        assert isinstance(body, bytes)
        # A release is no failed delivery, but the first acquirer it is not any more.
        again = header is not None and (bool(header.delivery_count) or not header.first_acquirer)
        arrival = Arrival(number_in(body), again)
        self.got.add(*arrival)
        return arrival

    def _outcome(self, arrival: Arrival) -> Accepted | Rejected | Released:
        if dies(arrival.number):
            return Rejected()
        if not arrival.redelivered and (arrival.number & SEQUENCE) % RETURNED_EVERY == 0:
            return Released()
        return Accepted()


@dataclass(slots=True)
class Browser:
    """Looks at a queue that nobody consumes: each time all of it is there, in its order."""

    broker: BrokerProcess
    messages: int = 0

    def __call__(self) -> None:
        status, plan = self.broker.http("POST", f"/api/tallymark/browse/%2F/{KEPT}")
        assert status == 200, plan
        assert plan["messages"] == KEPT_COUNT, plan
        path = f"/api/tallymark/browse/plans/{plan['plan']}"
        status, data = self.broker.http_bytes("GET", f"{path}/read?from=0&to={KEPT_COUNT}")
        assert status == 200, data
        rows = [record for record in unpacking.unpack(data) if record.kind != PAYLOAD]
        firsts = [n for row in rows for n in range(row.first, row.first + row.count)]
        assert firsts == list(range(1, KEPT_COUNT + 1)), firsts
        assert self.broker.http("DELETE", path)[0] == 200
        self.messages += KEPT_COUNT
