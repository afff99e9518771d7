"""Who publishes to a queue by its own address, and is told when the queue is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tallymark.engine.queue import Queue

if TYPE_CHECKING:
    from tallymark.bridge.amqp10_publish import IncomingLink


@final
class Watch:
    """Of one broker. Its owner has the broker call `observe` (Broker.observers)."""

    __slots__ = ("_links",)

    def __init__(self) -> None:
        self._links: dict[int, dict[IncomingLink, None]] = {}
        """By the id of the queue."""

    def add(self, queue: Queue, link: IncomingLink) -> None:
        self._links.setdefault(queue.id, {})[link] = None

    def remove(self, queue: Queue, link: IncomingLink) -> None:
        links = self._links.get(queue.id)
        if links is not None:
            links.pop(link, None)
            if not links:
                del self._links[queue.id]

    def observe(self, queue: Queue, made: bool) -> None:
        """A queue is made, or gone."""
        if not made:
            for link in list(self._links.pop(queue.id, {})):
                link.queue_deleted()
