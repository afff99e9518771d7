"""Links that publish to a queue by its own address, and end when the queue is deleted."""

from __future__ import annotations

from typing import final

from tallymark.bridge.amqp10.links import Publisher
from tallymark.engine.queue import Queue


@final
class Watch:
    """The watched links of one broker. Its owner registers `observe` in Broker.observers."""

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
