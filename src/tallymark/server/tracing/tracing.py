"""Tracing of one node: what follows its messages, and the thread that sends their spans."""

from __future__ import annotations

from tallymark.engine.broker import Broker
from tallymark.server.clock import CLOCKS
from tallymark.server.tracing.exporter import Exporter, endpoint_of
from tallymark.server.tracing.tracer import Tracer


class Tracing:
    """Tracer and exporter. The thread runs from the start on."""

    def __init__(self, url: str, node: str, broker: Broker) -> None:
        """url: `tracing` of the configuration, checked. node: the broker's name."""
        self.exporter = Exporter(endpoint_of(url), node)
        self.tracer = Tracer(
            broker.queues,
            broker.formats,
            broker.ledger,
            self.exporter.put,
            lambda: CLOCKS.wall_ns(),
        )
        self.exporter.start()
