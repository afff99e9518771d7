"""The housekeeping task that puts into the ledger what consumers came to by now.

When a consumer ends the engine does so itself. A consumer that was sent and settled nothing since
it was told of last is passed over.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tallymark.engine import records
from tallymark.engine.statistics import consumer_record

if TYPE_CHECKING:
    from tallymark.server.node import Node

AT_ONCE: Final = 500
"""Rows written before others get their turn."""


class ConsumerLedger:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def period_s(self) -> float:
        return self._node.config.consumer_statistics_every / 1000

    async def run(self) -> None:
        broker = self._node.broker
        written = 0
        for queue in list(broker.queues.values()):
            for consumer in list(queue.consumers):
                if consumer.told == consumer.progress:
                    continue
                self._node.tell_time()
                broker.records.append(
                    consumer_record(consumer, records.CONSUMER_GOES_ON, broker.clock.now_ms)
                )
                written += 1
                if written % AT_ONCE == 0:
                    self._node.schedule()
                    await asyncio.sleep(0)
        if written:
            self._node.schedule()
