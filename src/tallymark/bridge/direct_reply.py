"""Direct reply-to: replies go straight to the client that sent the request, without a queue.

A client consumes from the pseudo queue `amq.rabbitmq.reply-to` and publishes requests with that
name as reply-to. The broker appends a token to the name. A message published to the default
exchange with the result as its routing key goes to that client, at most once
[rabbitmq direct reply-to]. Requester and replier may use different protocols.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from tallymark.stored.annotations import Route
from tallymark.wire.conversion.addresses import DIRECT_REPLY

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = DIRECT_REPLY


def reply_keys(exchange: str, keys: Iterable[str]) -> list[str]:
    """Return the keys of waiting clients among the routing keys of messages, their own or those in
    CC and BCC: such messages may be direct replies, on the default exchange."""
    return [] if exchange else [key for key in keys if key.startswith(PREFIX)]


class ReplyConsumer:
    """A client that waits for replies; each protocol has its own subclass."""

    __slots__ = ("token",)

    def __init__(self, token: str) -> None:
        self.token = token
        """Token that is hard to guess: a client that knows it may reply."""

    def answer(
        self, format: int, message: bytes, route: Route, method_size: int, largest_frame: int
    ) -> None:
        """Accept a message, or drop it if the client has no room for it.

        message: in that format (Payload.format). method_size, largest_frame: of AMQP 0-9-1 frames,
        the publish method's and the largest; else 0.
        """
        raise NotImplementedError


@final
class DirectReplies:
    """All reply consumers of one broker, and the connections that got output in this way."""

    __slots__ = ("consumers", "written")

    def __init__(self) -> None:
        self.consumers: dict[str, ReplyConsumer] = {}
        """Consumers by token."""
        self.written: list[object] = []
        """Bridges that got output from other connections since the owner last took this list,
        although nothing was read from them."""

    def add(self, consumer: ReplyConsumer) -> None:
        self.consumers[consumer.token] = consumer

    def remove(self, consumer: ReplyConsumer) -> None:
        self.consumers.pop(consumer.token, None)

    def find(self, routing_key: str) -> ReplyConsumer | None:
        """Return the client that waits for replies under this routing key; None: there is none."""
        return self.consumers.get(routing_key[len(PREFIX) :])

    def take_written(self) -> list[object]:
        """Return the bridges to flush, each once, and clear the list."""
        found = self.written
        self.written = []
        return found
