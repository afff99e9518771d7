"""Interface of objects that own a channel of AMQP 0-9-1."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tallymark.wire.amqp091.methods import ChannelClose, Method


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
