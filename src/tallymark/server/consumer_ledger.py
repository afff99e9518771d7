"""The housekeeping task that writes each consumer's progress into the ledger.

The engine writes the last row when a consumer ends. A consumer without deliveries and settlements
since its last row gets none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tallymark.engine.consumers import progress_record
from tallymark.engine.queue_consumers import consumers_of
from tallymark.stored import records

if TYPE_CHECKING:
    from tallymark.server.node import Node

AT_ONCE: Final = 500
"""Rows written before others get their turn."""


class ConsumerLedger:
    """The task of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def period_s(self) -> float:
        return self._node.config.consumer_statistics_every / 1000

    async def run(self) -> None:
        broker = self._node.broker
        written = 0
        for queue in list(broker.queues.values()):
            for consumer in list(consumers_of(queue)):
                if consumer.told == consumer.progress:
                    continue
                self._node.tell_time()
                broker.ledger.emit(
                    progress_record(consumer, records.CONSUMER_GOES_ON, broker.clock.now_ms)
                )
                written += 1
                if written % AT_ONCE == 0:
                    self._node.schedule()
                    await asyncio.sleep(0)
        if written:
            self._node.schedule()
