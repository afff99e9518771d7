"""Two ends of an AMQP 1.0 connection, joined in memory; what passes between them can be cut and
is kept as frames."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    CloseReceived,
    Event,
    LinkDetached,
    LinkRequested,
    OpenReceived,
    SessionEnded,
    SessionRequested,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import AMQP_HEADER, frame, frame_head
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from tallymark.wire.amqp10.performatives import End as EndFrame
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.states import LinkState, SessionState
from tests.support.deadlines import Deadline

E = TypeVar("E", bound=Event)
P = TypeVar("P", bound=Performative)
Cut = Callable[[bytes], Iterator[bytes]]

BODY = b"\x00\x53\x75\xa0\x05hello"
"""A message: one data section."""


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    for i in range(len(data)):
        yield data[i : i + 1]


def at_random(seed: str) -> Cut:
    chance = random.Random(seed)

    def cut(data: bytes) -> Iterator[bytes]:
        pos = 0
        while pos < len(data):
            size = chance.choice((1, 2, 3, 7, 8, 9, 30, 200, 5000))
            yield data[pos : pos + size]
            pos += size

    return cut


CUTS: dict[str, Cut] = {"whole": whole, "bytewise": bytewise, "random": at_random("tallymark")}


class End:
    """One end and its owner, who keeps all events and gives the plain answers while `answers`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.frames: list[tuple[int, Performative, bytes]] = []
        """What it sent: channel, performative, payload."""
        self.written = bytearray()
        self.answers = True
        self.initial_delivery_count: int | None = None
        """Of the links it is asked for, where it sends."""
        self._unread = b""

    def take(self, now_ms: int) -> bytes:
        """What it has to write, noted down."""
        data = b"".join(self.connection.take_output(now_ms))
        self.written += data
        self._unread += data
        self._note()
        return data

    def _note(self) -> None:
        data = self._unread
        pos = 0
        while pos + 8 <= len(data):
            if data.startswith(b"AMQP", pos):
                pos += 8
                continue
            size, offset, kind, channel = frame_head(data, pos)
            if pos + size > len(data):
                break
            if kind == 0 and size > offset:
                performative, at = decode_performative(data, pos + offset, pos + size)
                self.frames.append((channel, performative, data[at : pos + size]))
            pos += size
        self._unread = data[pos:]

    def give(self, data: bytes, now_ms: int) -> None:
        self.connection.receive_data(data, now_ms)
        self.read()

    def read(self) -> None:
        while (event := self.connection.next_event()) is not None:
            self.events.append(event)
            if self.answers:
                self.answer(event)

    def answer(self, event: Event) -> None:
        """As the most obliging of owners."""
        if isinstance(event, OpenReceived):
            if self.connection.is_server:
                self.connection.open(Open("server"))
        elif isinstance(event, CloseReceived):
            self.connection.close()
        elif isinstance(event, SessionRequested):
            event.session.begin()
        elif isinstance(event, SessionEnded):
            if event.session.state is SessionState.END_RCVD:
                event.session.end()
        elif isinstance(event, LinkRequested):
            attach = Attach(source=event.attach.source, target=event.attach.target)
            if event.link.is_sender:
                attach.initial_delivery_count = self.initial_delivery_count
            event.link.answer(attach)
        elif isinstance(event, LinkDetached) and event.link.state is LinkState.DETACH_RCVD:
            event.link.detach()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def one(self, kind: type[E]) -> E:
        """The only event of that kind."""
        found = self.of(kind)
        assert len(found) == 1, found
        return found[0]

    def last(self, kind: type[E]) -> E:
        return self.of(kind)[-1]

    def sent(self, kind: type[P]) -> list[P]:
        return [frame[1] for frame in self.frames if isinstance(frame[1], kind)]

    def messages(self) -> list[tuple[int, bytes, bytes, bool]]:
        """delivery-id, tag, bytes and whether settled, of all that was received."""
        found = []
        for event in self.of(TransfersReceived):
            for i, tag in enumerate(event.tags):
                data = event.data[event.cuts[i] : event.cuts[i + 1]]
                found.append(((event.first + i) & 0xFFFFFFFF, tag, data, event.settled))
        return found

    def forget(self) -> None:
        """Look only at what comes from now on."""
        self.events.clear()
        self.frames.clear()


class Pair:
    """A client and a server, and what is between them."""

    def __init__(
        self,
        client: Limits | None = None,
        server: Limits | None = None,
        cut: Cut = whole,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.now_ms = 0
        self.cut = cut
        self.client = End(Connection(client or Limits(), is_server=False, trace=trace))
        self.server = End(Connection(server or Limits(), is_server=True))

    def pump(self) -> None:
        """Pass on what there is until nothing is left to say."""
        while self.step(self.client, self.server) or self.step(self.server, self.client):
            pass

    def step(self, source: End, sink: End) -> bool:
        """One way, once; whether there was anything."""
        data = source.take(self.now_ms)
        for piece in self.cut(data):
            sink.give(piece, self.now_ms)
        return bool(data)

    def open(self) -> Pair:
        self.client.connection.start(sasl=False)
        self.client.connection.open(Open("client"))
        self.pump()
        return self

    def session(self, begin: Begin | None = None) -> tuple[Session, Session]:
        """The two ends of a new session."""
        ours = self.client.connection.begin(begin)
        self.pump()
        return ours, self.server.last(SessionRequested).session

    def receiver(
        self, session: Session, name: str = "r", snd: int | None = None, rcv: int | None = None
    ) -> tuple[ReceiverLink, SenderLink]:
        """A link on which the client receives: its end, and the server's."""
        attach = Attach(name=name, source=Source(address="q"), target=Target())
        ours = session.attach_receiver(attach, snd, rcv)
        self.pump()
        theirs = self.server.last(LinkRequested).link
        assert isinstance(theirs, SenderLink)
        return ours, theirs

    def sender(
        self, session: Session, name: str = "s", snd: int | None = None, rcv: int | None = None
    ) -> tuple[SenderLink, ReceiverLink]:
        """A link on which the client sends."""
        attach = Attach(name=name, source=Source(), target=Target(address="q"))
        ours = session.attach_sender(attach, snd, rcv)
        self.pump()
        theirs = self.server.last(LinkRequested).link
        assert isinstance(theirs, ReceiverLink)
        return ours, theirs


def run_of(messages: list[bytes]) -> tuple[bytes, array[int]]:
    """Messages as SenderLink.send_run takes them."""
    cuts = array("I", [0])
    for message in messages:
        cuts.append(cuts[-1] + len(message))
    return b"".join(messages), cuts


class Server(End):
    """A server alone, driven frame by frame, as a peer of any manners may."""

    def __init__(self, limits: Limits | None = None, cut: Cut = whole) -> None:
        super().__init__(Connection(limits or Limits(), is_server=True))
        self.now_ms = 0
        self.cut = cut
        self.deadline = Deadline(self.connection)

    def say(self, *performatives: Performative, channel: int = 0, payload: bytes = b"") -> None:
        for performative in performatives:
            self.hear(frame(channel, performative.encode(), payload))

    def hear(self, data: bytes) -> None:
        for piece in self.cut(data):
            self.give(piece, self.now_ms)
            self.deadline.look()
        self.take(self.now_ms)

    def open(self, open: Open | None = None) -> Server:
        self.hear(AMQP_HEADER)
        self.say(open or Open("peer"))
        return self

    def begin(self, begin: Begin | None = None) -> Session:
        self.open()
        self.say(begin or Begin(None, 0, 1000, 1000))
        return self.last(SessionRequested).session

    def publisher(self, credit: int = 10, handle: int = 0) -> ReceiverLink:
        """A link on which the peer sends, with credit."""
        if not self.connection.sessions:
            self.begin()
        self.say(
            Attach(
                name=f"p{handle}",
                handle=handle,
                role=SENDER,
                source=Source(),
                target=Target(address="q"),
                initial_delivery_count=0,
            )
        )
        link = self.last(LinkRequested).link
        assert isinstance(link, ReceiverLink)
        if credit:
            link.flow(credit)
            self.take(self.now_ms)
        return link

    def subscriber(self, handle: int = 0) -> SenderLink:
        """A link on which the peer receives."""
        if not self.connection.sessions:
            self.begin()
        self.say(
            Attach(
                name=f"c{handle}",
                handle=handle,
                role=RECEIVER,
                source=Source(address="q"),
                target=Target(),
            )
        )
        link = self.last(LinkRequested).link
        assert isinstance(link, SenderLink)
        return link

    def credit(self, credit: int, delivery_count: int | None = 0, **fields: Any) -> None:
        """A flow for the subscriber with handle 0, and a window of 1000 behind what was seen."""
        values: dict[str, Any] = {
            "next_incoming_id": 0,
            "incoming_window": 1000,
            "next_outgoing_id": 0,
            "outgoing_window": 1000,
            "handle": 0,
            "delivery_count": delivery_count,
            "link_credit": credit,
        }
        self.say(Flow(**{**values, **fields}))


def transfer(delivery_id: int | None, **fields: Any) -> Transfer:
    """A single-frame transfer on handle 0, unless told otherwise."""
    values: dict[str, Any] = {
        "handle": 0,
        "delivery_id": delivery_id,
        "delivery_tag": b"%d" % delivery_id if delivery_id is not None else None,
        "message_format": 0 if delivery_id is not None else None,
        "settled": False,
    }
    return Transfer(**{**values, **fields})


def conditions(end: End) -> list[tuple[str, str | None]]:
    """What the end closed for its peer's fault: the performative, and the error's condition."""
    return [
        (type(frame[1]).__name__, frame[1].error.condition)
        for frame in end.frames
        if isinstance(frame[1], (Close, EndFrame, Detach)) and frame[1].error is not None
    ]
