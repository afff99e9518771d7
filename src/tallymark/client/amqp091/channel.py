"""Channels of one AMQP 0-9-1 connection: who has which, what their users share, and the errors of
channels that the broker closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, final

from tallymark.client.adapter import Number, SessionOwner
from tallymark.client.errors import CONDITIONS, ClientError, NotPossible
from tallymark.client.outcomes import Outcome
from tallymark.wire.amqp091.client import ClientChannel, ClientConnection
from tallymark.wire.amqp091.methods import (
    BasicPublish,
    ChannelClose,
    ConnectionClose,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)

E = TypeVar("E", bound=ClientError)


def error_of(kind: type[E], close: ChannelClose | ConnectionClose) -> E:
    """Return an error for a close by the broker; `info` has the reply code."""
    return kind(
        close.reply_text or "closed by the broker",
        condition=CONDITIONS.get(close.reply_code, "amqp:internal-error"),
        info={"reply-code": close.reply_code},
        is_remote=True,
    )


class ChannelUser(ABC):
    """Owner of a channel, which gets the channel's methods in order."""

    @abstractmethod
    def method(self, method: Method) -> None: ...

    @abstractmethod
    def content(self, method: Method, section: bytes, body: bytes) -> None:
        """A method with a message."""

    @abstractmethod
    def closed(self, close: ChannelClose | None) -> None:
        """The channel is gone, and this is the last call; None: as asked."""


@final
class Channels:
    """The channels of one connection by number, and calls that wait until the present one has
    returned, or until the turn ends."""

    def __init__(self, wire: ClientConnection, wall_ms: Callable[[], int]) -> None:
        self.wire = wire
        self.wall_ms = wall_ms
        self.is_blocked = False
        """The broker reads no publishes for now [rabbitmq connection.blocked]."""
        self.has_flow = False
        """The broker honours channel.flow(active=false) [TX-10]."""
        self.is_closing = False
        """The application closes the connection."""
        self.users: dict[int, ChannelUser] = {}
        self._later: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._arrivals: list[SessionChannel] = []

    def open(self, user: ChannelUser) -> ClientChannel:
        """Open a channel. Raises NotPossible where there are no more."""
        try:
            channel = self.wire.open_channel()
        except ValueError as error:
            raise NotPossible(f"no further channel: {error}") from error
        self.users[channel.number] = user
        return channel

    def sessions(self) -> list[SessionChannel]:
        """Return the users that are sessions."""
        return [user for user in self.users.values() if isinstance(user, SessionChannel)]

    def close_when_sent(self) -> None:
        """Close the connection, if that was asked for, as soon as no session has anything
        unsent."""
        if self.is_closing and not any(session.has_unsent for session in self.sessions()):
            self.wire.close()

    def later(self, call: Callable[[], None]) -> None:
        """Make a call to the client after the client's own call has returned."""
        self._later.append(call)

    def at_end(self, call: Callable[[], None]) -> None:
        """Make a call when this turn's output is taken."""
        self._at_end.append(call)

    def arrived(self, session: SessionChannel) -> None:
        """Note that a session has deliveries to pass on once all input was processed."""
        self._arrivals.append(session)

    def call_later(self) -> bool:
        """Make the calls that were put off. Return whether there were any."""
        later = self._later
        self._later = []
        for call in later:
            call()
        return bool(later)

    def call_at_end(self) -> None:
        calls = self._at_end
        self._at_end = []
        for call in calls:
            call()

    def deliver_arrived(self) -> None:
        arrivals = self._arrivals
        self._arrivals = []
        for session in arrivals:
            session.deliver_arrived()


@final
class Probe(ChannelUser):
    """Question whether a queue is there, on a channel of its own: one that is not costs that
    channel."""

    def __init__(
        self,
        channels: Channels,
        declare: QueueDeclare,
        found: Callable[[str], None],
        refused: Callable[[ChannelClose], None],
    ) -> None:
        """Ask with `declare`; `found` is called with the queue's name, or `refused`."""
        self._found = found
        self._refused = refused
        self._wire = channels.wire
        self._channel = channels.open(self)
        self._wire.send_method(self._channel, declare)

    def method(self, method: Method) -> None:
        if isinstance(method, QueueDeclareOk):
            self._wire.send_method(self._channel, ChannelClose(200, "the queue is there"))
            self._found(method.queue)

    def content(self, method: Method, section: bytes, body: bytes) -> None:
        """Ignore content: none comes on this channel."""

    def closed(self, close: ChannelClose | None) -> None:
        if close is not None:
            self._refused(close)


class SessionChannel(ChannelUser):
    """A session's channel, as its senders need it."""

    channels: Channels
    owner: SessionOwner
    may_flow: bool
    """The broker takes messages on this channel, as those in transactions."""

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """Return whether methods have to be sent before the connection may be closed."""

    @abstractmethod
    def may_send(self) -> None:
        """The broker reads publishes again [rabbitmq connection.unblocked]."""

    @abstractmethod
    def deliver_arrived(self) -> None:
        """Pass on deliveries that arrived: all input was processed."""

    @abstractmethod
    def publish(self, method: BasicPublish, section: bytes, body: bytes) -> None:
        """Publish a message in a transaction."""

    @abstractmethod
    def next_number(self) -> Number:
        """Return a number for a message, which no other message of the session has."""

    @abstractmethod
    def report_outcome(self, number: Number, outcome: Outcome | None) -> None:
        """Report an outcome that is known before anything was sent, after the client's own call has
        returned."""
