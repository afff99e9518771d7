"""The periodic task that samples the counts of queues, virtual hosts and connections.

A message costs it nothing: it goes over all queues once in a slot, in parts, and only where there
was a turn since.
"""

from __future__ import annotations

from typing import Final

from tallymark.server.node import Node
from tallymark.server.parts import cut
from tallymark.server.samples import (
    BROKER,
    LONG,
    MESSAGES,
    MOVED,
    SLOT_MS,
    Counts,
    churn,
    counts_of,
    moved,
    unroutable,
)

AT_ONCE: Final = 500
"""Number of queues in one part: a comparison each."""
NOTHING: Final[Counts] = (0,) * len(MESSAGES)


class Sampler:
    """The task of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._restored = max(node.broker.queues, default=0)
        """Id up to which queues were there before this process."""
        self._vhosts: dict[int, str] = {}
        """Virtual hosts of the queues with samples, by id."""
        self._totals: dict[str, list[int]] = {}
        """Sums of the newest samples of the queues in each virtual host."""
        self._turns = -1
        """Count of the turns when the queues were looked at last."""

    def period_s(self) -> float:
        return SLOT_MS / 1000

    async def run(self) -> None:
        self._node.tell_time()
        await self.sample(self._node.broker.clock.now_ms // SLOT_MS)

    async def sample(self, slot: int) -> None:
        """Take the samples of a slot."""
        node = self._node
        is_first = not node.samples.slot
        turns = node.turns
        if turns != self._turns:
            await self._look_at_queues(slot, is_first)
            self._turns = turns
        connections = node.samples.connections
        for client in node.clients:
            counts = (client.received_bytes, client.sent_bytes)
            connections.put(client.id, slot, counts, began=True)
        connections.keep({client.id for client in node.clients})
        of_broker = _counts_of_broker(node)
        node.samples.broker.put(BROKER, slot, of_broker, began=True)
        node.samples.broker_by_day.put(BROKER, slot // LONG, of_broker, began=True)
        node.samples.slot = slot
        node.samples.first = node.samples.first or slot

    async def _look_at_queues(self, slot: int, is_first: bool) -> None:
        node = self._node
        broker, samples = node.broker, node.samples
        rings = samples.queues.rings
        for part in cut(broker.queues.values(), AT_ONCE):
            await node.parts.turn()
            for queue in part:
                if queue.consumers:
                    samples.capacity.look(queue, slot)
                else:
                    samples.capacity.forget(queue.id)
                counts = counts_of(queue)
                ring = rings.get(queue.id)
                if ring is not None and ring.last == counts:
                    continue
                self._vhosts[queue.id] = queue.vhost
                self._add(queue.vhost, NOTHING if ring is None else ring.last, counts)
                samples.queues.put(queue.id, slot, counts, queue.id > self._restored)
        for id, ring in samples.queues.keep(broker.queues):
            samples.capacity.forget(id)
            self._add(self._vhosts.pop(id), ring.last, NOTHING)
        for name in broker.vhosts:
            counts = self._counts_of_vhost(name)
            samples.vhosts.put(name, slot, counts, began=not is_first)
            samples.vhosts_by_day.put(name, slot // LONG, counts, began=not is_first)
        samples.vhosts.keep(broker.vhosts)
        samples.vhosts_by_day.keep(broker.vhosts)
        for name in [name for name in self._totals if name not in broker.vhosts]:
            del self._totals[name]

    def _counts_of_vhost(self, name: str) -> Counts:
        """Return the counts of a virtual host that are called MESSAGES."""
        counts = self._totals.get(name, NOTHING)
        gone = self._node.deleted_queues.of_vhost(name)
        of_gone = moved(gone.entered, gone.settled, gone.handed_out)
        return (*map(int.__add__, counts, of_gone), *counts[len(MOVED) :])

    def _add(self, vhost: str, before: Counts, now: Counts) -> None:
        """Add what has changed of a queue to its virtual host's totals."""
        totals = self._totals.setdefault(vhost, list(NOTHING))
        for i, (old, new) in enumerate(zip(before, now, strict=True)):
            totals[i] += new - old


def _counts_of_broker(node: Node) -> Counts:
    """Return the counts of the broker that are called OF_BROKER."""
    journal = node.journal
    counts, total_us = journal.sync_times()
    return (
        sum(node.confirm_times.counts), node.broker.store.resident_bytes, journal.free_bytes(),
        sum(counts), total_us, *unroutable(node.broker.traffic), *churn(node.broker.traffic),
    )  # fmt: skip
