"""A server's end of an NSQ connection that says yes to everything, and events made comparable."""

from __future__ import annotations

from collections.abc import Iterable

from tallymark.wire.nsq.commands import MAGIC
from tallymark.wire.nsq.connection import Connection
from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.events import (
    AuthReceived,
    ClsReceived,
    Event,
    FinReceived,
    IdentifyReceived,
    PeerClosed,
    ProtocolFailure,
    PublishReceived,
    RdyReceived,
    ReqReceived,
    SubReceived,
    TouchReceived,
    UpgradeDue,
)
from tallymark.wire.nsq.frames import split_frames
from tallymark.wire.nsq.kernel import body_of
from tallymark.wire.nsq.limits import Limits
from tests.support.deadlines import Deadline

EFFECTIVE = (
    "client_id",
    "hostname",
    "user_agent",
    "feature_negotiation",
    "heartbeat_interval_ms",
    "output_buffer_size",
    "output_buffer_timeout_ms",
    "tls_v1",
    "snappy",
    "deflate",
    "deflate_level",
    "sample_rate",
    "fin_ack",
    "msg_timeout_ms",
    "topology_region",
    "topology_zone",
)
"""The attributes of an Identify."""


class Server:
    """Answers at once, adds layers by doing nothing, closes whom the wire finds at fault."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.connection = Connection(limits or Limits())
        self.deadline = Deadline(self.connection)
        self.events: list[Event] = []
        self.now_ms = 0

    def feed(self, *chunks: bytes, now_ms: int = 0) -> list[Event]:
        """Receive the chunks; returns the events they brought, answered already."""
        before = len(self.events)
        self.now_ms = now_ms
        for chunk in chunks:
            self.connection.receive_data(chunk, now_ms)
            self.drain()
            self.deadline.look()
        return self.events[before:]

    def eof(self) -> list[Event]:
        before = len(self.events)
        self.connection.receive_eof()
        self.drain()
        return self.events[before:]

    def drain(self) -> None:
        while (event := self.connection.next_event()) is not None:
            self.events.append(event)
            self._answer(event)

    def _answer(self, event: Event) -> None:
        connection = self.connection
        if isinstance(event, IdentifyReceived):
            connection.send_identify()
        elif isinstance(event, UpgradeDue):
            rest = connection.take_unread()
            connection.upgraded()
            connection.receive_data(rest, self.now_ms)
        elif isinstance(event, AuthReceived):
            connection.send_auth("someone", "http://where", 1)
        elif isinstance(event, SubReceived):
            connection.send_ok()
        elif isinstance(event, PublishReceived):
            connection.send_ok(event.answers)
        elif isinstance(event, ClsReceived):
            connection.send_close_wait()
        elif isinstance(event, ProtocolFailure):
            connection.send_error(event.error)

    def sent(self) -> list[tuple[int, bytes]]:
        """Take the frames written so far: (type, data)."""
        frames, rest = split_frames(b"".join(self.connection.take_output(0)))
        assert rest == b""
        return frames


def connected(limits: Limits | None = None) -> Server:
    server = Server(limits)
    server.feed(MAGIC)
    return server


def subscribed(limits: Limits | None = None) -> Server:
    server = connected(limits)
    server.feed(b"SUB topic channel\n")
    server.sent()
    return server


def flatten(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """The same whichever way the bytes were split: runs are taken apart, an MPUB is not."""
    flat: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, PublishReceived):
            bodies = bodies_of(event)
            each = [bodies] if event.verb == "MPUB" else [[body] for body in bodies]
            flat += [(event.verb, event.topic, event.delay_ms, *group) for group in each]
        elif isinstance(event, FinReceived):
            flat += [("FIN", number) for number in event.ids]
        elif isinstance(event, TouchReceived):
            flat += [("TOUCH", number) for number in event.ids]
        elif isinstance(event, ReqReceived):
            flat += [("REQ", number, event.delay_ms) for number in event.ids]
        elif isinstance(event, RdyReceived):
            flat.append(("RDY", event.count))
        elif isinstance(event, SubReceived):
            flat.append(("SUB", event.topic, event.channel))
        elif isinstance(event, AuthReceived):
            flat.append(("AUTH", event.secret))
        elif isinstance(event, IdentifyReceived):
            flat.append(("IDENTIFY", *[getattr(event.identify, name) for name in EFFECTIVE]))
        elif isinstance(event, UpgradeDue):
            flat.append(("UPGRADE", event.layer, event.level))
        elif isinstance(event, ClsReceived):
            flat.append(("CLS",))
        elif isinstance(event, ProtocolFailure):
            flat.append(("FAILED", event.error.payload, event.error.is_fatal))
        elif isinstance(event, PeerClosed):
            flat.append(("CLOSED", event.reason, event.clean))
        else:
            raise AssertionError(event)
    return flat


def bodies_of(event: PublishReceived) -> list[bytes]:
    cuts = event.cuts
    bodies = [body_of(event.raw, cuts[i], cuts[i + 1]) for i in range(len(event))]
    heads = [event.raw[cuts[i] + event.head : cuts[i + 1]] for i in range(len(event))]
    assert bodies == heads
    return bodies


def failures(events: Iterable[Event]) -> list[WireError]:
    return [event.error for event in events if isinstance(event, ProtocolFailure)]
