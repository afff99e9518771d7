"""Direct reply-to: answers go straight to the client that asked, through no queue.

A client consumes from the pseudo queue `amq.rabbitmq.reply-to` and publishes requests with that as
reply-to; the broker puts a token behind it, and what is published to the default exchange with the
result as routing key goes to that client, at most once [rabbitmq direct reply-to]. Who asks and who
answers may speak different protocols.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.message import Route
from tallymark.wire.conversion.addresses import DIRECT_REPLY

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = DIRECT_REPLY


class ReplyConsumer:
    """Somebody who waits for answers; each protocol has its own."""

    __slots__ = ("token",)

    def __init__(self, token: str) -> None:
        self.token = token
        """Hard to guess: whoever knows it may answer."""

    def answer(
        self, format: int, message: bytes, route: Route, method_size: int, largest_frame: int
    ) -> None:
        """Take a message, or drop it where the client has no room for it.

        message: in that format (Payload.format). method_size, largest_frame: of AMQP 0-9-1 frames,
        the publish method's and the largest; else 0.
        """
        raise NotImplementedError


@final
class DirectReplies:
    """All reply consumers of one broker, and which connections were written to on the side."""

    __slots__ = ("consumers", "written")

    def __init__(self) -> None:
        self.consumers: dict[str, ReplyConsumer] = {}
        """By token."""
        self.written: list[object] = []
        """Bridges that have output by another's doing since the owner last took this list, although
        nothing was read from them."""

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
