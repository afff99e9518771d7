"""The periodic task that samples the counts of queues, virtual hosts and connections.

A message costs it nothing: it goes over all queues once in a slot, in parts, and only where there
was a turn since.
"""

from __future__ import annotations

from typing import Final

from tallymark.server.node import Node
from tallymark.server.parts import cut
from tallymark.server.samples import MESSAGES, SLOT_MS, counts_of

AT_ONCE: Final = 500
"""Number of queues in one part: a comparison each."""


class Sampler:
    """The task of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._restored = max(node.broker.queues, default=0)
        """Id up to which queues were there before this process."""
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
        connections.keep({client.id for client in node.clients}, len(node.clients))
        node.samples.slot = slot

    async def _look_at_queues(self, slot: int, is_first: bool) -> None:
        node = self._node
        broker, samples = node.broker, node.samples
        totals: dict[str, list[int]] = {name: [0] * len(MESSAGES) for name in broker.vhosts}
        for part in cut(broker.queues.values(), AT_ONCE):
            await node.parts.turn()
            for queue in part:
                counts = counts_of(queue)
                samples.queues.put(queue.id, slot, counts, queue.id > self._restored)
                sums = totals.get(queue.vhost)
                if sums is not None:  # else its virtual host has just been made
                    for i, count in enumerate(counts):
                        sums[i] += count
        for name, sums in totals.items():
            samples.vhosts.put(name, slot, tuple(sums), began=not is_first)
        samples.queues.keep(broker.queues, len(broker.queues))
        samples.vhosts.keep(broker.vhosts, len(broker.vhosts))
