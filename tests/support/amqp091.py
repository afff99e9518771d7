"""Client-side AMQP 0-9-1 frames for tests, and a server's end that is through its handshake."""

from __future__ import annotations

from collections.abc import Iterable

from tallymark.wire.amqp091.connection import Connection
from tallymark.wire.amqp091.events import (
    AckRange,
    Event,
    MethodReceived,
    Opening,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.frames import (
    METHOD,
    PROTOCOL_HEADER,
    content_frames,
    frame,
    frame_length,
)
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.layouts import decode_method, encode_method
from tallymark.wire.amqp091.lifecycle import Greeting
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    Method,
)
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tallymark.wire.amqp091.states import State
from tests.support.deadlines import Deadline


def method_frame(channel: int, method: Method) -> bytes:
    return frame(METHOD, channel, encode_method(method))


def publish(
    channel: int,
    body: bytes,
    *,
    exchange: str = "",
    routing_key: str = "q",
    mandatory: bool = False,
    properties: Properties | bytes = b"\0\0",
    frame_max: int = 131_072,
) -> bytes:
    """Method, header and body frames of one publish."""
    section = encode_properties(properties) if isinstance(properties, Properties) else properties
    method = BasicPublish(exchange, routing_key, mandatory)
    return method_frame(channel, method) + content_frames(channel, section, body, frame_max)


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    return method_frame(channel, BasicAck(tag, multiple))


HANDSHAKE = PROTOCOL_HEADER + method_frame(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    return method_frame(0, ConnectionTuneOk(channel_max, frame_max, heartbeat))


OPEN = method_frame(0, ConnectionOpen("/"))


def open_channels(channels: Iterable[int]) -> bytes:
    return b"".join(method_frame(number, ChannelOpen()) for number in channels)


def handshake(*channels: int, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    """All a client sends up to and with opening these channels, without waiting for answers."""
    tuned = tune_ok(frame_max=frame_max, heartbeat=heartbeat)
    return HANDSHAKE + tuned + OPEN + open_channels(channels)


class Server:
    """A connection whose server says yes to everything and closes whom the wire finds at fault."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.connection = Connection(limits or Limits())
        self.deadline = Deadline(self.connection)
        self.events: list[Event] = []

    def feed(self, *chunks: bytes, now_ms: int = 0) -> list[Event]:
        """Receive the chunks; returns the events they brought, answered already."""
        before = len(self.events)
        for chunk in chunks:
            self.connection.receive_data(chunk, now_ms)
            self.drain()
            self.deadline.look()
        return self.events[before:]

    def drain(self) -> None:
        while (event := self.connection.next_event()) is not None:
            self.events.append(event)
            self._answer(event)

    def _answer(self, event: Event) -> None:
        connection = self.connection
        if isinstance(event, Opening):
            connection.send_start(Greeting({}), b"PLAIN AMQPLAIN")
        elif isinstance(event, ProtocolFailure):
            connection.send_close(event.channel, event.error)
        elif isinstance(event, MethodReceived):
            method = event.method
            if isinstance(method, ConnectionStartOk):
                connection.send_tune()
            elif isinstance(method, ConnectionOpen):
                connection.send_method(0, ConnectionOpenOk())
            elif isinstance(method, ConnectionClose):
                connection.send_method(0, ConnectionCloseOk())
            elif isinstance(method, ChannelOpen):
                connection.send_method(event.channel, ChannelOpenOk())
            elif isinstance(method, ChannelClose):
                connection.send_method(event.channel, ChannelCloseOk())

    def sent(self) -> list[tuple[int, Method]]:
        """Take the methods written so far, with their channels; other frames are left out."""
        raw = b"".join(self.connection.take_output(0))
        methods: list[tuple[int, Method]] = []
        pos = 8 if raw.startswith(b"AMQP") else 0
        while pos < len(raw):
            after = pos + frame_length(raw, pos)
            if raw[pos] == METHOD:
                channel = int.from_bytes(raw[pos + 1 : pos + 3], "big")
                methods.append((channel, decode_method(raw[pos + 7 : after - 1])))
            pos = after
        return methods


def running(
    *channels: int,
    limits: Limits | None = None,
    frame_max: int = 131_072,
    heartbeat: int = 0,
    now_ms: int = 0,
) -> Server:
    """A server whose client is through the handshake and has opened the channels."""
    server = Server(limits)
    server.feed(handshake(*channels, frame_max=frame_max, heartbeat=heartbeat), now_ms=now_ms)
    assert server.connection.state is State.RUNNING
    server.events.clear()
    server.connection.line.out.clear()
    return server


def flatten(events: Iterable[Event]) -> list[object]:
    """Events one message and one tag at a time: what has to be the same however bytes came."""
    flat: list[object] = []
    for event in events:
        if isinstance(event, PublishReceived):
            flat += messages(event)
        elif isinstance(event, AckRange):
            if event.multiple:
                flat.append(("ack", event.channel, event.last, True))
            else:
                tags = range(event.first, event.last + 1)
                flat += [("ack", event.channel, tag, False) for tag in tags]
        elif isinstance(event, MethodReceived):
            flat.append((event.channel, event.method))
        elif isinstance(event, ProtocolFailure):
            flat.append(("failure", event.channel, str(event.error)))
        elif isinstance(event, PeerClosed):
            flat.append(("closed", event.reason, event.clean))
        else:
            flat.append(type(event))
    return flat


def messages(event: PublishReceived) -> list[tuple[int, bytes, int, bytes]]:
    """(channel, method frame, facts, raw) of each message, with the event's promises checked."""
    assert event.cuts[0] == 0
    assert event.cuts[-1] == len(event.raw)
    assert event.starts[0] == 0
    assert len(event.starts) == len(event.methods)
    flat: list[tuple[int, bytes, int, bytes]] = []
    for i in range(len(event)):
        k = max(k for k, start in enumerate(event.starts) if start <= i)
        raw = event.raw[event.cuts[i] : event.cuts[i + 1]]
        assert raw.startswith(event.methods[k])
        flat.append((event.channel, event.methods[k], event.facts, raw))
    return flat
