"""A scripted AMQP 1.0 peer for the client: our own wire connection in the server's role, joined to
the client in memory. It answers as an obliging broker would, keeps every frame of both sides in the
order in which they were written, and can be told to answer otherwise, later, or not at all.

    peer = Peer()
    connection = await connect("amqp://peer", opener=peer.open)
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tallymark.client.arguments import Endpoint
from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    CloseReceived,
    CreditReceived,
    DispositionReceived,
    Ended,
    Event,
    LinkDetached,
    LinkRequested,
    OpenReceived,
    SaslReceived,
    SessionEnded,
    SessionRequested,
    SessionUnblocked,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import SASL, frame, frame_head
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState, Error
from tallymark.wire.amqp10.performatives import (
    RCV_SECOND,
    Attach,
    Disposition,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sasl import SaslInit
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.states import LinkState, SessionState

E = TypeVar("E", bound=Event)
P = TypeVar("P", bound=Performative)
Cut = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    for i in range(len(data)):
        yield data[i : i + 1]


@dataclass
class Frame:
    """One frame: who wrote it, when (ms), on which channel."""

    client: bool
    at_ms: int
    channel: int
    body: Performative
    payload: bytes

    def __repr__(self) -> str:
        side = "client" if self.client else "peer"
        return f"<{side} at {self.at_ms}: {self.body}>"


class FarEnd(Protocol):
    """Who is at the other end of a pipe."""

    def receive(self, data: bytes) -> None: ...

    def lost(self) -> None: ...


class MemoryTransport(asyncio.Transport):
    """One end of a pipe without a socket. What is written arrives in a later turn, in order."""

    def __init__(self, protocol: asyncio.Protocol, peer: FarEnd) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._peer = peer
        self._closing = False
        self._lost = False
        self._to_peer: deque[bytes] = deque()
        self._to_client: deque[bytes] = deque()
        self.is_full = False

    # the client's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._to_peer.append(bytes(data))
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        if self._to_peer and not self._lost:
            self._peer.receive(self._to_peer.popleft())

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            while self._to_peer:  # close() flushes what was written
                self._peer.receive(self._to_peer.popleft())
            self._lost = True
            self._closing = True
            self._peer.lost()
            self._protocol.connection_lost(error)

    # the peer's side

    def send(self, data: bytes) -> None:
        self._to_client.append(data)
        self._loop.call_soon(self._hand_in)

    def _hand_in(self) -> None:
        if self._to_client and not self._lost:
            data = self._to_client.popleft()
            if not self._closing:
                self._protocol.data_received(data)

    def end(self) -> None:
        """The peer closes its socket, behind what it has said."""
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self._to_client and not self._lost:
            self.end()
        else:
            self._lose(None)

    def cut(self, error: Exception | None = None) -> None:
        """The cable is pulled, or the peer's process dies."""
        self._to_client.clear()
        self._to_peer.clear()
        self._closing = True
        self._loop.call_soon(self._lose, error)

    def fill(self) -> None:
        """The socket's buffer is full."""
        self.is_full = True
        self._protocol.pause_writing()

    def empty(self) -> None:
        self.is_full = False
        self._protocol.resume_writing()


@dataclass
class Node:
    """A queue of the peer's, as simple as can be: messages to give, in order."""

    messages: deque[bytes] = field(default_factory=deque)
    settled: bool = False
    """They are sent settled."""


class Peer:
    """One broker. `opener=peer.open`; each connection of the client's replaces the one before."""

    def __init__(self, limits: Limits | None = None, cut: Cut = whole) -> None:
        self.limits = limits or Limits(idle_time_out_ms=0)
        self.cut = cut
        self.mechanisms = ("ANONYMOUS", "PLAIN", "EXTERNAL")
        self.login: tuple[str, bytes | None] | None = None
        self.sasl_code = 0
        self._timer: asyncio.TimerHandle | None = None
        self.frames: list[Frame] = []
        self.events: list[Event] = []
        self.links: dict[str, Link] = {}
        """By address of the node, the newest."""
        self.nodes: dict[str, Node] = {}
        self.received: list[bytes] = []
        """Messages that were sent to us."""
        self.connections = 0
        self.refusing: Exception | None = None
        """Raised instead of a connection."""
        # manners
        self.answers_second = True
        """Settle what the client settles in two steps."""
        self.credit = 100
        """Given to each of the client's senders, once."""
        self.outcome: DeliveryState | None = Accepted()
        """For each message we get; None: say nothing."""
        self.answers: Callable[[Event], bool] = lambda event: False
        """Takes an event, and returns whether nothing else is to be done about it."""
        self.refusal: Error | None = None
        """For each attach."""
        self.rcv_mode: int | None = None
        self.snd_mode: int | None = None
        self.is_silent = False
        """No heartbeats, no time-outs."""
        self.first_delivery_id = 0
        self.initial_delivery_count = 0
        self.max_message_size: int | None = None

    # Joining

    async def open(
        self, endpoint: Endpoint, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(0)
        if self.refusing is not None:
            raise self.refusing
        self.connections += 1
        self.wire = Connection(self.limits, is_server=True, mechanisms=self.mechanisms)
        self._unread = {True: b"", False: b""}
        protocol = factory()
        self.transport = MemoryTransport(protocol, self)
        protocol.connection_made(self.transport)
        return self.transport, protocol

    @property
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def receive(self, data: bytes) -> None:
        self._note(True, data)
        for piece in self.cut(data):
            self.wire.receive_data(piece, self.now_ms)
            self._work()
        self.flush()

    def lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wire.receive_eof()
        self._work()

    def flush(self) -> None:
        """Send what there is to say; to be called after acting on the wire by hand."""
        data = b"".join(self.wire.take_output(self.now_ms))
        if data:
            self._note(False, data)
            for piece in self.cut(data):
                self.transport.send(piece)
        self._arm()

    def _arm(self) -> None:
        """The wire's time: heartbeats, which are no frames to `frames`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self.wire.next_deadline()
        if due_ms is not None and not self.is_silent:
            delay = max(1, due_ms - self.now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.wire.tick(self.now_ms)
        self._work()
        self.flush()

    def _work(self) -> None:
        while (event := self.wire.next_event()) is not None:
            self.events.append(event)
            if not self.answers(event):
                self.answer(event)

    # The obliging broker

    def answer(self, event: Event) -> None:
        if isinstance(event, SaslReceived):
            assert isinstance(event.frame, SaslInit)
            self.login = (event.frame.mechanism, event.frame.initial_response)
            self.wire.sasl_outcome(self.sasl_code)
        elif isinstance(event, OpenReceived):
            self.wire.open(Open("peer", properties={"product": "peer"}))
        elif isinstance(event, CloseReceived):
            self.wire.close()
        elif isinstance(event, SessionRequested):
            if self.first_delivery_id:
                event.session.next_delivery_id = self.first_delivery_id
            event.session.begin()
        elif isinstance(event, SessionEnded):
            if event.session.state is SessionState.END_RCVD:
                event.session.end()
        elif isinstance(event, LinkRequested):
            self._attach(event)
        elif isinstance(event, LinkDetached):
            if event.link.state is LinkState.DETACH_RCVD:
                event.link.detach()
        elif isinstance(event, CreditReceived):
            self.give(event.link)
        elif isinstance(event, SessionUnblocked):
            for link in event.session.links:
                if isinstance(link, SenderLink):
                    self.give(link)
        elif isinstance(event, DispositionReceived):
            if not event.by_sender and not event.settled and self.answers_second:
                event.session.settle_sent(event.first, event.last, event.state)
        elif isinstance(event, TransfersReceived):
            self._take(event)
        elif isinstance(event, Ended):
            self.flush()
            self.transport.end()

    def _attach(self, event: LinkRequested) -> None:
        link = event.link
        if self.refusal is not None:
            link.refuse(self.refusal)
            return
        asked = event.attach
        source, target = asked.source, asked.target
        if isinstance(link, SenderLink):
            assert source is not None
            if source.dynamic:
                source = Source(address="made-up", dynamic=True)
            self.links[source.address or ""] = link
            answer = Attach(source=source, target=target)
            answer.initial_delivery_count = self.initial_delivery_count
        else:
            assert isinstance(target, Target)
            if target.dynamic:
                target = Target(address="made-up", dynamic=True)
            self.links[target.address or ""] = link
            answer = Attach(source=source, target=target, max_message_size=self.max_message_size)
        link.answer(answer, self.snd_mode, self.rcv_mode)
        if isinstance(link, ReceiverLink) and self.credit:
            link.flow(self.credit)

    def _take(self, event: TransfersReceived) -> None:
        for i in range(len(event)):
            self.received.append(event.data[event.cuts[i] : event.cuts[i + 1]])
        if self.outcome is not None and not event.settled:
            last = (event.first + len(event) - 1) & 0xFFFFFFFF
            event.link.settle(event.first, last, self.outcome)

    def put(self, address: str, *bodies: object, settled: bool = False) -> None:
        """Messages for a node; they leave as there is credit."""
        node = self.nodes.setdefault(address, Node())
        node.settled = settled
        node.messages.extend(
            body
            if isinstance(body, bytes) and body.startswith(b"\0S")
            else encode_message(body=body)
            for body in bodies
        )
        link = self.links.get(address)
        if isinstance(link, SenderLink) and link.state is LinkState.ATTACHED:
            self.give(link)
            self.flush()

    def give(self, link: SenderLink) -> None:
        """Send what the node has, up to the credit; then give up the rest if asked to."""
        source = link.remote_attach.source if link.remote_attach is not None else None
        node = self.nodes.get((source.address if source is not None else "") or "", Node())
        count = min(link.credit, len(node.messages))
        if count and not link.session.is_blocked:
            cuts = array("I", [0])
            messages = [node.messages.popleft() for _ in range(count)]
            for message in messages:
                cuts.append(cuts[-1] + len(message))
            link.send_run(b"".join(messages), cuts, 0, count, settled=node.settled)
        link.drained()

    # By hand

    def sending(self, address: str) -> SenderLink:
        link = self.links[address]
        assert isinstance(link, SenderLink)
        return link

    def receiving(self, address: str) -> ReceiverLink:
        link = self.links[address]
        assert isinstance(link, ReceiverLink)
        return link

    def session(self) -> Session:
        return self.wire.sessions[0]

    def say(self, *bodies: Performative, channel: int = 0, payload: bytes = b"") -> None:
        """Frames as they are, whatever the wire's states think of them."""
        self.flush()
        data = b"".join(frame(channel, body.encode(), payload) for body in bodies)
        self._note(False, data)
        for piece in self.cut(data):
            self.transport.send(piece)

    # What passed

    def _note(self, client: bool, data: bytes) -> None:
        data = self._unread[client] + data
        pos = 0
        while pos + 8 <= len(data):
            if data.startswith(b"AMQP", pos):
                pos += 8
                continue
            size, offset, kind, channel = frame_head(data, pos)
            if pos + size > len(data):
                break
            if kind != SASL and size > offset:
                body, at = decode_performative(data, pos + offset, pos + size)
                self.frames.append(Frame(client, self.now_ms, channel, body, data[at : pos + size]))
            pos += size
        self._unread[client] = data[pos:]

    def forget(self) -> None:
        """Look only at what comes from now on."""
        self.frames.clear()
        self.events.clear()

    def sent(self, kind: type[P]) -> list[P]:
        """What the client has written."""
        return [f.body for f in self.frames if f.client and isinstance(f.body, kind)]

    def said(self, kind: type[P]) -> list[P]:
        """What the peer has written."""
        return [f.body for f in self.frames if not f.client and isinstance(f.body, kind)]

    def flows(self) -> list[tuple[int | None, int | None]]:
        """(delivery-count, link-credit) of the flows of the client's links."""
        return [
            (flow.delivery_count, flow.link_credit)
            for flow in self.sent(Flow)
            if flow.handle is not None
        ]

    def ranges(self) -> list[tuple[int, int, bool, str]]:
        """(first, last, settled, outcome) of the client's dispositions."""
        return [
            (
                d.first,
                d.first if d.last is None else d.last,
                d.settled,
                type(d.state).__name__.lower(),
            )
            for d in self.sent(Disposition)
        ]

    def story(self) -> list[str]:
        """The frames in short, in their order."""
        return [_short(f) for f in self.frames]


def _short(frame: Frame) -> str:
    body: Any = frame.body
    side = "client" if frame.client else "peer"
    name = type(body).__name__.lower()
    if isinstance(body, Disposition):
        last = body.first if body.last is None else body.last
        settled = "settled" if body.settled else "unsettled"
        state = type(body.state).__name__.lower()
        return f"{side} disposition {body.first}..{last} {settled} {state}"
    if isinstance(body, Flow):
        drain = " drain" if body.drain else ""
        if body.handle is None:
            return f"{side} flow of the session"
        return f"{side} flow dc={body.delivery_count} credit={body.link_credit}{drain}"
    if isinstance(body, Transfer):
        return f"{side} transfer {body.delivery_id}"
    return f"{side} {name}"


__all__ = ["RCV_SECOND", "Frame", "Peer", "bytewise", "whole"]
