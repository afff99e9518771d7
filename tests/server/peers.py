"""Clients on bare sockets that do what stock clients do not, and looks at a broker from outside."""

from __future__ import annotations

import select
from pathlib import Path
from typing import ClassVar

from bench.lean import (
    ACK,
    CHANNEL_CLOSE,
    DELIVER,
    PERSISTENT,
    ClosedByBroker,
    Event,
    Link,
    method,
    publish,
)
from tallymark.wire.amqp091.frames import PROTOCOL_HEADER
from tallymark.wire.amqp091.methods import ConnectionStartOk
from tests.support.amqp091 import OPEN, method_frame, tune_ok
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

BLOCKED, UNBLOCKED = (10, 60), (10, 61)
OUTBOX = 1 << 19


class Bare(Link):
    """A link that has sent nothing yet, and that goes on when a channel is closed."""

    opened: ClassVar[list[Bare]] = []

    def _open(self, heartbeat_s: int) -> None:
        self.opened.append(self)

    def _other(self, name: tuple[int, int], channel: int, arguments: bytes) -> Event:
        if name == CHANNEL_CLOSE:
            self.outbox += method(channel, (20, 41))
            self.socket.sendall(self.outbox)
            self.outbox.clear()
            return (name, channel, 0, False, arguments)
        return super()._other(name, channel, arguments)

    @classmethod
    def drop_all(cls) -> None:
        """Whatever a test left open."""
        while cls.opened:
            cls.opened.pop().drop()

    def greet(self, tuned: bytes, **capabilities: bool) -> None:
        """The whole handshake in one go, with this connection.tune-ok."""
        properties: dict[str, object] = {"capabilities": dict(capabilities)}
        start_ok = ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest")
        self.socket.sendall(PROTOCOL_HEADER + method_frame(0, start_ok) + tuned + OPEN)
        for awaited in ((10, 10), (10, 30), (10, 41)):
            self.wait(awaited)

    def why_channel_closed(self) -> str:
        """Wait for channel.close, which is answered; its code and text."""
        arguments = self.wait(CHANNEL_CLOSE)
        code = int.from_bytes(arguments[:2], "big")
        return f"{code} {arguments[3 : 3 + arguments[2]].decode()}"

    def last_words(self) -> str:
        """Read until connection.close; its code and text."""
        try:
            while self.fill():
                self.events()
        except ClosedByBroker as closed:
            return str(closed)
        raise AssertionError("closed without a word")

    def is_closed(self, seconds: float = PATIENCE_S) -> bool:
        """Read until the broker hangs up; False when it does not."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


class Publisher:
    """Publishes numbered messages with confirms, as fast as the broker takes them. mark: stands
    behind the number in each."""

    def __init__(
        self, broker: BrokerProcess, key: str, size: int, properties: bytes, mark: bytes = b""
    ) -> None:
        self.link = Bare(broker.amqp_port)
        self.link.greet(tune_ok(), **{"connection.blocked": True})
        self.link.open_channel(1, confirms=True)
        self.link.set_loose()
        self.published = 0
        self.confirmed = 0
        self.told: list[str] = []
        """Of connection.blocked and connection.unblocked, in their order."""
        self.lost = ""
        """How the connection ended."""
        self._key, self._properties = key, properties
        self._padding = mark + b"." * (size - 8 - len(mark))

    def work(self, publishing: bool = True, wait_s: float = 0.01) -> None:
        """Publish, send and read what can be without waiting for long."""
        link = self.link
        while publishing and len(link.outbox) < OUTBOX:
            self.published += 1
            body = b"%08d" % self.published + self._padding
            link.outbox += publish(1, "", self._key, self._properties, body)
        try:
            link.flush()
            select.select([link.socket], [link.socket] if link.outbox else [], [], wait_s)
            if not link.fill():
                self.lost = self.lost or "end of stream"
            for event in link.events():
                self._take(event)
        except (ConnectionError, ClosedByBroker) as error:
            self.lost = str(error)

    def _take(self, event: Event) -> None:
        name, _, tag, _, arguments = event
        if name == BLOCKED:
            self.told.append(arguments[1:].decode())
        elif name == UNBLOCKED:
            self.told.append("unblocked")
        else:
            assert name == ACK, event
            self.confirmed = max(self.confirmed, tag)


def all_confirmed(broker: BrokerProcess, publishers: list[Publisher]) -> bool:
    """Whether an alarm holds everybody, and what the broker has taken in is confirmed to the last:
    nothing moves any more."""
    rows = broker.queues().values()
    entered = sum(row["entered"] for row in rows)
    return bool(alarms(broker)) and entered == sum(one.confirmed for one in publishers)


class Reader:
    """Consumes one queue and remembers the numbers; acknowledges nothing by itself."""

    def __init__(self, broker: BrokerProcess, queue: str, *, no_ack: bool = True) -> None:
        self.link = Link(broker.amqp_port)
        self.link.open_channel(1)
        self.link.consume(1, queue, no_ack=no_ack)
        self.link.set_loose()
        self.numbers: list[int] = []
        self.redelivered: list[int] = []
        self.last_tag = 0

    def work(self) -> None:
        select.select([self.link.socket], [], [], 0.01)
        assert self.link.fill(), "the broker closed the consumer's connection"
        for name, _, tag, redelivered, body in self.link.events():
            assert name == DELIVER
            self.numbers.append(int(body[:8]))
            self.last_tag = tag
            if redelivered:
                self.redelivered.append(self.numbers[-1])


def declare(broker: BrokerProcess, queue: str, *, durable: bool = True, messages: int = 0) -> None:
    """A queue with this many messages of 8 bytes."""
    link = Link(broker.amqp_port)
    link.open_channel(1, confirms=True)
    link.declare_queue(queue, durable=durable)
    for number in range(1, messages + 1):
        link.socket.sendall(publish(1, "", queue, PERSISTENT, b"%08d" % number))
    until(lambda: sum(event[0] == ACK for event in link.events()) or not messages, link.fill)
    link.close()


def alarms(broker: BrokerProcess) -> list[str]:
    found: list[str] = broker.http("GET", "/healthz", user=None)[1]["alarms"]
    return found


def open_connections(broker: BrokerProcess) -> int:
    return len(broker.http("GET", "/api/tallymark/connections")[1]["connections"])


def sessions(broker: BrokerProcess) -> int:
    return int(broker.http("GET", "/api/tallymark/overview")[1]["sessions"])


def open_files(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def resident_mib(broker: BrokerProcess) -> float:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
