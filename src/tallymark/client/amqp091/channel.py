"""Channels of AMQP 0-9-1: the interface of objects that own one, and the reply codes that close one
as the conditions of the client's errors [amqp-1.0 §2.8.15]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, TypeVar

from tallymark.client.errors import ClientError
from tallymark.wire.amqp091.methods import ChannelClose, ConnectionClose, Method

CONDITIONS: Final[dict[int, str]] = {
    311: "amqp:link:message-size-exceeded",
    312: "amqp:not-found",
    313: "amqp:not-found",
    320: "amqp:connection:forced",
    402: "amqp:not-found",
    403: "amqp:unauthorized-access",
    404: "amqp:not-found",
    405: "amqp:resource-locked",
    406: "amqp:precondition-failed",
    501: "amqp:connection:framing-error",
    502: "amqp:decode-error",
    503: "amqp:not-allowed",
    504: "amqp:illegal-state",
    505: "amqp:illegal-state",
    506: "amqp:resource-limit-exceeded",
    530: "amqp:not-allowed",
    540: "amqp:not-implemented",
    541: "amqp:internal-error",
}

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
