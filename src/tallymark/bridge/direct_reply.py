"""Direct reply-to: answers go straight to the channel that asked, through no queue.

A client consumes from the pseudo queue `amq.rabbitmq.reply-to` and publishes requests with that as
reply-to; the broker puts a token behind it, and what is published to the default exchange with the
result as routing key goes to that channel, at most once [rabbitmq direct reply-to].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from tallymark.bridge.amqp091_channel import Channel

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = PSEUDO_QUEUE + "."


@final
class ReplyConsumer:
    """A channel that waits for answers."""

    __slots__ = ("channel", "tag", "token")

    def __init__(self, channel: Channel, tag: str, token: str) -> None:
        self.channel = channel
        self.tag = tag
        self.token = token
        """Hard to guess: whoever knows it may answer."""


@final
class DirectReplies:
    """All reply consumers of one broker, and which connections were written to on the side."""

    __slots__ = ("consumers", "written")

    def __init__(self) -> None:
        self.consumers: dict[str, ReplyConsumer] = {}
        """By token."""
        self.written: list[object] = []
        """Bridges that got an answer from another connection since the owner last took this list:
        they have output although nothing was read from them."""

    def add(self, consumer: ReplyConsumer) -> None:
        self.consumers[consumer.token] = consumer

    def remove(self, consumer: ReplyConsumer) -> None:
        self.consumers.pop(consumer.token, None)

    def find(self, routing_key: str) -> ReplyConsumer | None:
        """Who waits for answers under this routing key."""
        return self.consumers.get(routing_key[len(PREFIX) :])

    def take_written(self) -> list[object]:
        """The bridges to flush, each once; the list starts anew."""
        found = self.written
        self.written = []
        return found
