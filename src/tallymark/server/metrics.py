"""Prometheus metrics, read from the node's state when they are asked for: no cost per message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tallymark.engine.records import DROP_REASONS

if TYPE_CHECKING:
    from tallymark.server.node import Node

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(node: Node) -> bytes:
    """All metrics in the text format."""
    registry = CollectorRegistry()
    registry.register(_NodeCollector(node))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield from self._broker()
        yield from self._queues()

    def _broker(self) -> Iterator[Metric]:
        node = self._node
        broker, journal = node.broker, node.journal
        clients = node.clients.values()
        for name, text, count in (
            ("published", "Messages published.", broker.published),
            ("turns", "Loop turns.", node.turns),
            ("received_bytes", "Read from open AMQP connections.",
             sum(client.received_bytes for client in clients)),
            ("sent_bytes", "Written to open AMQP connections.",
             sum(client.sent_bytes for client in clients)),
        ):  # fmt: skip
            yield CounterMetricFamily(f"tallymark_{name}", text, value=count)
        for name, text, value in (
            ("connections", "Open AMQP connections.", len(clients)),
            ("queues", "Queues.", len(broker.queues)),
            ("subscriptions", "Durable subscriptions.", len(broker.leases.subscriptions)),
            ("bodies_bytes", "Message bytes in memory.", broker.store.resident_bytes),
            ("journal_pending_bytes", "Bytes waiting for the disk.", journal.pending_bytes),
            ("journal_free_bytes", "Free space on the journal's disk.", journal.free_bytes()),
        ):
            yield GaugeMetricFamily(f"tallymark_{name}", text, value=value)
        sync = GaugeMetricFamily("tallymark_sync_info", "Sync mode.", labels=["sync"])
        sync.add_metric([node.config.sync], 1)
        yield sync
        alarm = GaugeMetricFamily("tallymark_alarm", "1 while the alarm is on.", labels=["alarm"])
        for name in ("memory", "disk"):
            alarm.add_metric([name], int(name in node.housekeeping.alarms))
        yield alarm

    def _queues(self) -> Iterator[Metric]:
        labels = ["vhost", "queue"]
        gauges = {
            name: GaugeMetricFamily(f"tallymark_queue_{name}", text, labels=labels)
            for name, text in (
                ("ready", "Messages ready."),
                ("acquired", "Messages handed out or leased, not settled."),
                ("ready_bytes", "Bytes ready."),
                ("consumers", "Consumers."),
            )
        }
        entered = CounterMetricFamily(
            "tallymark_queue_entered", "Messages that entered.", labels=labels
        )
        settled = CounterMetricFamily("tallymark_queue_settled", "Messages settled.", labels=labels)
        dropped = CounterMetricFamily(
            "tallymark_queue_dropped", "Messages dropped.", labels=[*labels, "reason"]
        )
        for queue in self._node.broker.queues.values():
            of = [queue.vhost, queue.name]
            gauges["ready"].add_metric(of, queue.ready)
            gauges["acquired"].add_metric(of, queue.acquired)
            gauges["ready_bytes"].add_metric(of, queue.ready_bytes)
            gauges["consumers"].add_metric(of, len(queue.consumers))
            entered.add_metric(of, queue.entered)
            settled.add_metric(of, queue.settled)
            for reason, count in queue.dropped.items():
                dropped.add_metric([*of, DROP_REASONS[reason]], count)
        yield from gauges.values()
        yield from (entered, settled, dropped)
