"""Routing: from an exchange over bindings and alternate exchanges to a set of queues.

Every exchange is visited once per message, so circles of bindings end; every queue gets a message
once, however many ways lead to it. An alternate exchange is taken where an exchange has no matching
binding at all, as RabbitMQ does: a match that leads to another exchange counts, even if nothing is
bound there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tallymark.engine.exchange import Exchange, Matches

if TYPE_CHECKING:
    from tallymark.engine.queue import Queue

MAX_TARGETS: Final = 16_384
"""Maximum number of queue sets remembered per generation."""
HEADERS: Final = 1
SINGLY: Final = 2


@final
class Targets:
    """The result of routing: a set of queues, in order of their ids.

    Shared: while the virtual host's generation holds, routing to the same set of queues gives this
    same object (unless more than MAX_TARGETS sets are in use, when it may be another, equal one).
    """

    __slots__ = ("durable", "guarded", "holding", "plain", "queues")

    def __init__(self, queues: list[Queue]) -> None:
        self.queues = queues
        self.durable = False
        """True if any of the queues is durable."""
        self.guarded = False
        """True if one of the queues may refuse or drop a message. Publishes must then go in order,
        so that the right publisher is told."""
        self.holding = False
        """True if publishers to one of the queues are to be held back [SC-D7]."""
        self.plain = True
        """True if messages only have to be appended to each queue."""
        for queue in queues:
            settings = queue.settings
            if queue.durable:
                self.durable = True
            if settings.guarded:
                self.guarded = True
            if queue.holds_publishers:
                self.holding = True
                self.plain = False
            if settings.is_stream:
                self.durable = True
                self.plain = False
            if settings.guarded or settings.max_priority > 0 or settings.max_bytes >= 0:
                self.plain = False


@final
class Router:
    """Routes over the tables of a virtual host, which it only reads.

    `changed` must be called after every change of those tables.
    """

    __slots__ = ("_by_id", "_by_set", "_exchanges", "_needs", "_nowhere", "_queues")

    def __init__(self, exchanges: dict[str, Exchange], queues: dict[str, Queue]) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self._nowhere = Targets([])
        self._by_id: dict[int, Targets] = {}
        self._by_set: dict[frozenset[int], Targets] = {}
        self._needs: dict[str, int] = {}
        """Needs of routing from an exchange, by its name: HEADERS, SINGLY."""

    def changed(self) -> None:
        """Forget all cached routes."""
        self._by_id.clear()
        self._by_set.clear()
        self._needs.clear()

    def route(
        self, source: Exchange, keys: list[str], headers: dict[str, object] | None
    ) -> Targets:
        """Return the queues that a message reaches from an exchange."""
        matches = Matches()
        self._collect(source, keys, headers, matches)
        if matches.exchanges:
            seen = {source.name}
            while matches.exchanges:
                reached = matches.exchanges.pop()
                if reached.name not in seen:
                    seen.add(reached.name)
                    self._collect(reached, keys, headers, matches)
        return self._targets(matches.queues)

    def needs_headers(self, source: Exchange) -> bool:
        """Return whether routing from this exchange may reach one that looks at headers, or that
        routes each message by itself."""
        return self._needed(source) != 0

    def routes_singly(self, source: Exchange) -> bool:
        """Return whether routing from this exchange may reach one that routes each message by
        itself."""
        return self._needed(source) & SINGLY != 0

    def _needed(self, source: Exchange) -> int:
        known = self._needs.get(source.name)
        if known is None:
            known = self._reached(source)
            self._needs[source.name] = known
        return known

    def _collect(
        self, source: Exchange, keys: list[str], headers: dict[str, object] | None, into: Matches
    ) -> None:
        """Collect one exchange's own matches, or those of its alternate exchange if it has none."""
        if source.name == "":
            for key in keys:
                queue = self._queues.get(key)
                if queue is not None:
                    into.queues[queue.id] = queue
            return
        before = into.count
        source.collect(keys, headers, into)
        if into.count == before and source.alternate is not None:
            alternate = self._exchanges.get(source.alternate)
            if alternate is not None:
                into.exchanges.append(alternate)

    def _targets(self, queues: dict[int, Queue]) -> Targets:
        if not queues:
            return self._nowhere
        if len(queues) == 1:
            return self._only(next(iter(queues.values())))
        ids = frozenset(queues)
        targets = self._by_set.get(ids)
        if targets is None:
            if len(self._by_set) >= MAX_TARGETS:
                self._by_set.clear()
            targets = Targets([queues[id] for id in sorted(ids)])
            self._by_set[ids] = targets
        return targets

    def _only(self, queue: Queue) -> Targets:
        """Return the set of a single queue, the common case. There are no more of these than
        queues."""
        targets = self._by_id.get(queue.id)
        if targets is None:
            targets = Targets([queue])
            self._by_id[queue.id] = targets
        return targets

    def _reached(self, source: Exchange) -> int:
        """Return the needs of all exchanges that messages may reach from this one."""
        needed = 0
        seen = {source.name}
        waiting = [source]
        while waiting:
            exchange = waiting.pop()
            if exchange.reads_headers:
                needed |= HEADERS
            if exchange.routes_singly:
                needed |= SINGLY
            following = [binding.exchange for binding in exchange.bindings.values()]
            if exchange.alternate is not None:
                following.append(self._exchanges.get(exchange.alternate))
            for reached in following:
                if reached is not None and reached.name not in seen:
                    seen.add(reached.name)
                    waiting.append(reached)
        return needed
