"""Settings that all AMQP 1.0 connections of a broker share, and the links that they watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.bridge.amqp import default_mechanisms
from tallymark.bridge.amqp10.links import Publisher
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import OnDenied
from tallymark.engine.patterns import compile_pattern
from tallymark.engine.queue import Queue
from tallymark.wire.amqp10.limits import Limits

LINK_CREDIT: Final = 170
"""Link credit that RabbitMQ grants to a publisher [FC-8]."""


@final
class Settings:
    """Settings that all connections of a broker share."""

    __slots__ = (
        "anonymous_user",
        "auto_create",
        "limits",
        "link_credit",
        "mechanisms",
        "node_name",
        "on_denied",
        "platform",
        "random_name",
        "replies",
        "transaction_timeout_ms",
        "watch",
    )

    def __init__(
        self,
        limits: Limits,
        random_name: Callable[[], str],
        replies: DirectReplies,
        watch: Watch,
        *,
        node_name: str = "tallymark@localhost",
        platform: str = "Python",
        link_credit: int = LINK_CREDIT,
        anonymous_user: str = "",
        auto_create: str = "",
        transaction_timeout_ms: int = 0,
        mechanisms: Callable[[], tuple[str, ...]] = default_mechanisms,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.limits = limits
        self.random_name = random_name
        """Function that returns 22 random characters of [A-Za-z0-9_-] that cannot be guessed."""
        self.replies = replies
        self.watch = watch
        self.mechanisms = mechanisms
        """Function that returns the mechanisms by which clients may log in now, in the order they
        are offered."""
        self.on_denied = on_denied
        self.node_name = node_name
        self.platform = platform
        """Name of the platform shown to clients, such as "Python 3.11.2"."""
        self.link_credit = link_credit
        """Messages a publisher may send on a link before more credit is granted."""
        self.anonymous_user = anonymous_user
        """User for clients that give no name; empty: such clients may not log in."""
        self.auto_create = compile_pattern(auto_create) if auto_create else None
        """Pattern of the names of queues that an attach declares; None: no queue is."""
        self.transaction_timeout_ms = transaction_timeout_ms
        """Maximum age of an open transaction, ms; 0: no limit [TX-16]."""


@final
class Watch:
    """Links of one broker that publish to a queue by its own address, and end when the queue is
    deleted. Its owner registers `observe` in Registry.observers."""

    __slots__ = ("_links",)

    def __init__(self) -> None:
        self._links: dict[int, dict[Publisher, None]] = {}
        """Links by the id of their queue."""

    def add(self, queue: Queue, link: Publisher) -> None:
        self._links.setdefault(queue.id, {})[link] = None

    def remove(self, queue: Queue, link: Publisher) -> None:
        links = self._links.get(queue.id)
        if links is not None:
            links.pop(link, None)
            if not links:
                del self._links[queue.id]

    def observe(self, queue: Queue, made: bool) -> None:
        """Handle the declaration or deletion of a queue."""
        if not made:
            for link in list(self._links.pop(queue.id, {})):
                link.queue_deleted()
