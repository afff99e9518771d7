"""Publishing without a connection: frames that came, or were made of what came, over HTTP.

Messages are stored as frames of AMQP 0-9-1. So these are read, checked and routed by the code that
reads a connection's, and permissions, properties and refusals are the same.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp import AmqpBridge
from tallymark.bridge.amqp091 import sink
from tallymark.bridge.amqp091.channel import Channel, Client, Intake
from tallymark.bridge.amqp091.publish import publish
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import Access
from tallymark.engine.broker import Broker
from tallymark.engine.effects import Refused
from tallymark.engine.session import Connection, Session
from tallymark.units import EngineMs
from tallymark.wire.amqp091.connection import Connection as WireConnection
from tallymark.wire.amqp091.errors import COMMAND_INVALID, WireError
from tallymark.wire.amqp091.events import MethodReceived, ProtocolFailure
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.layouts import layout_of
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.line import MonotonicMs

CHANNEL: Final = 1
"""Number of the channel that all frames name."""
FRAME_MAX: Final = 131_072


@final
class LocalPublisher(AmqpBridge):
    """A publisher of frames on one channel, whose returned messages are counted and dropped."""

    __slots__ = ("_channel", "_client", "_wire", "is_refused")

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        access: Access,
        replies: DirectReplies,
        max_message_bytes: int,
    ) -> None:
        """connection: the engine's, which its owner closes."""
        limits = Limits(CHANNEL, FRAME_MAX, max_message_bytes=max_message_bytes)
        self._wire = WireConnection(limits)
        super().__init__(broker, self._wire.line, connection.name, "")
        self._wire.begin_open(CHANNEL)
        self.is_refused = False
        """True once a queue has refused a message."""
        self._client = Client(
            broker, self._wire, replies, _no_name, connection, access, False, False, False, self
        )
        self._channel = Channel(self._client, CHANNEL, broker.clients.open_session(connection))
        self._channel.session.confirming = True
        connection.handle = self

    def logged_in(self) -> Client:
        return self._client

    @property
    def session(self) -> Session:
        """The session of its channel, in which messages may be got, too."""
        return self._channel.session

    @property
    def returned(self) -> int:
        """Number of mandatory messages that no queue has taken."""
        return self._channel.returned

    def send_to(self, intake: Intake) -> None:
        """Send all later publishes to this intake, and to no queue."""
        self._channel.intake = intake

    def receive(self, data: bytes, now_ms: MonotonicMs, engine_ms: EngineMs) -> None:
        """Publish. Messages may be cut off anywhere, and continue with the next call.

        Raises:
            BrokerError, WireError: a message was refused, or it is none; those before it are in
                their queues, it and those after it are not.
        """
        channel = self._channel
        self.engine_ms = engine_ms
        self._wire.receive_data(data, now_ms)
        event = self._wire.next_event()
        while event is not None:
            if isinstance(event, PublishReceived):
                if channel.intake is None:
                    publish(channel, event)
                else:
                    sink.take(channel, channel.intake, event)
            elif isinstance(event, ProtocolFailure):
                raise event.error
            elif isinstance(event, MethodReceived):
                name = layout_of(event.method).name
                raise WireError(COMMAND_INVALID, f"{name}, expected basic.publish")
            event = self._wire.next_event()

    def refused(self, effect: Refused) -> None:
        self.is_refused = True


def _no_name() -> str:
    """Return no name: nothing that a publisher does makes any."""
    return ""
