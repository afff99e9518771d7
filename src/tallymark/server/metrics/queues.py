"""Metrics of queues: one table of what is counted, for each queue and for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.queue_parts import HandedOut
from tallymark.engine.streams import first_offset, offset_of
from tallymark.server.deleted_queues import QueueSums
from tallymark.server.slow.consumers import used
from tallymark.stored.records import DROP_REASONS

if TYPE_CHECKING:
    from tallymark.server.node import Node

LABELS: Final = ("vhost", "queue")


class Count(NamedTuple):
    """A count that a queue has."""

    name: str
    text: str
    of: Callable[[Queue], int]


GAUGES: Final = (
    Count("tallymark_queue_ready", "Messages ready.", lambda queue: queue.ready),
    Count(
        "tallymark_queue_acquired",
        "Messages handed out or leased, not settled.",
        lambda queue: queue.acquired,
    ),
    Count(
        "tallymark_queue_deferred",
        "Messages that are not ready before a time of their own.",
        lambda queue: queue.deferred,
    ),
    Count(
        "tallymark_queue_staged",
        "Messages handed out and settled in transactions that have not ended.",
        lambda queue: queue.account.staged,
    ),
    Count("tallymark_queue_ready_bytes", "Bytes ready.", lambda queue: queue.account.ready_bytes),
    Count("tallymark_queue_consumers", "Consumers.", lambda queue: len(queue.consumers)),
    Count(
        "tallymark_queue_dead_letter_pending",
        "Dead letters that nothing takes for now.",
        lambda queue: queue.pending,
    ),
    Count(
        "tallymark_queue_quarantined",
        "Messages put aside, as their bytes cannot be read.",
        lambda queue: queue.account.quarantined,
    ),
    Count(
        "rabbitmq_queue_messages_ready",
        "Messages ready to be delivered to consumers",
        lambda queue: queue.ready,
    ),
    Count(
        "rabbitmq_queue_messages_unacked",
        "Messages delivered to consumers but not yet acknowledged",
        lambda queue: queue.acquired + queue.account.staged,
    ),
    Count(
        "rabbitmq_queue_messages",
        "Sum of ready and unacknowledged messages - total queue depth",
        lambda queue: queue.ready + queue.acquired + queue.account.staged,
    ),
    Count("rabbitmq_queue_consumers", "Consumers on a queue", lambda queue: len(queue.consumers)),
)
COUNTERS: Final = (
    Count("tallymark_queue_entered", "Messages that entered.", lambda queue: queue.entered),
    Count("tallymark_queue_settled", "Messages settled.", lambda queue: queue.account.settled),
    Count(
        "tallymark_queue_dead_lettered",
        "Messages that left for a queue of their dead-letter exchange.",
        lambda queue: queue.account.dead_lettered,
    ),
)
DELIVERED: Final[tuple[tuple[str, str, Callable[[HandedOut], int]], ...]] = (
    ("delivered", "Total number of messages delivered to consumers", lambda all: all.total()),
    (
        "delivered_consume_manual_ack",
        "Total number of messages delivered to consumers using basic.consume with manual "
        "acknowledgment",
        lambda all: all.to_settle,
    ),
    (
        "delivered_consume_auto_ack",
        "Total number of messages delivered to consumers using basic.consume with automatic "
        "acknowledgment",
        lambda all: all.for_good,
    ),
    (
        "delivered_get_manual_ack",
        "Total number of messages delivered to consumers using basic.get with manual "
        "acknowledgment",
        lambda all: all.got_to_settle,
    ),
    (
        "delivered_get_auto_ack",
        "Total number of messages delivered to consumers using basic.get with automatic "
        "acknowledgment",
        lambda all: all.got_for_good,
    ),
    (
        "get_empty",
        "Total number of times basic.get operations fetched no message",
        lambda all: all.got_nothing,
    ),
    ("redelivered", "Total number of messages redelivered to consumers", lambda all: all.again),
    (
        "acknowledged",
        "Total number of message acknowledgements received",
        lambda all: all.acknowledged,
    ),
)
"""Counts of what was handed out and acknowledged, under the names that RabbitMQ's plugin has."""
DROPPED: Final = ("tallymark_queue_dropped", "Messages dropped.")


class Totals:
    """The counts of all queues, added up part by part: what is there now, and what has happened
    since the start, in queues that are gone, too.

    A queue that is deleted between two parts is added with the counts it had then: no counter
    falls.
    """

    def __init__(self, since: QueueSums) -> None:
        """since: DeletedQueues.since_start of the moment from which on the queues that are there
        are added. It is changed."""
        self._gauges = [0] * len(GAUGES)
        self._since = since

    def add(self, queues: list[Queue]) -> None:
        for queue in queues:
            for at, gauge in enumerate(GAUGES):
                self._gauges[at] += gauge.of(queue)
            self._since.add(queue)

    def families(self) -> Iterator[Metric]:
        since = self._since
        for gauge, value in zip(GAUGES, self._gauges, strict=True):
            yield GaugeMetricFamily(gauge.name, gauge.text, value=value)
        values = (since.entered, since.settled, since.dead_lettered)
        for counter, value in zip(COUNTERS, values, strict=True):
            yield CounterMetricFamily(counter.name, counter.text, value=value)
        for name, text, of in DELIVERED:
            count = of(since.handed_out)
            yield CounterMetricFamily(f"rabbitmq_global_messages_{name}", text, value=count)
        dropped = CounterMetricFamily(*DROPPED, labels=["reason"])
        for reason, name in DROP_REASONS.items():
            dropped.add_metric([name], since.dropped.get(reason, 0))
        yield dropped


def of_queues(queues: list[Queue]) -> Iterator[Metric]:
    """Yield what each of the queues counts."""
    gauges = [GaugeMetricFamily(one.name, one.text, labels=LABELS) for one in GAUGES]
    counters = [CounterMetricFamily(one.name, one.text, labels=LABELS) for one in COUNTERS]
    dropped = CounterMetricFamily(*DROPPED, labels=[*LABELS, "reason"])
    for queue in queues:
        of = [queue.vhost, queue.name]
        for gauge, one in zip(gauges, GAUGES, strict=True):
            gauge.add_metric(of, one.of(queue))
        for counter, one in zip(counters, COUNTERS, strict=True):
            counter.add_metric(of, one.of(queue))
        for reason, count in queue.account.dropped.items():
            dropped.add_metric([*of, DROP_REASONS[reason]], count)
    yield from _streams(queues)
    yield from gauges
    yield from (*counters, dropped)


def _streams(queues: list[Queue]) -> Iterator[Metric]:
    gauges = [
        GaugeMetricFamily(f"tallymark_stream_{name}", text, labels=LABELS)
        for name, text in (
            ("first_offset", "Offset of the oldest stored message."),
            ("next_offset", "Offset that the next message will be read at."),
            ("readers", "Consumers that read."),
            ("reader_lag", "Messages that the reader furthest behind has not been shown."),
        )
    ]
    for queue in queues:
        if not queue.settings.is_stream:
            continue
        first, end = first_offset(queue), queue.end() - 1
        places = [max(first, offset_of(consumer)) for consumer in consumers_of(queue)]
        lag = max(0, end - min(places, default=end))
        for gauge, value in zip(gauges, (first, end, len(places), lag), strict=True):
            gauge.add_metric([queue.vhost, queue.name], value)
    yield from gauges


def of_subscriptions(node: Node, seen: dict[str, bool]) -> Iterator[Metric]:
    """Yield how much of its limits each subscription uses that is near one or above one, in the
    virtual hosts that are `seen` [SC-D5]."""
    ratio = GaugeMetricFamily(
        "tallymark_subscription_limit_used",
        "How much of a limit a subscription uses that is near one or above one; 1 is all of it.",
        labels=[*LABELS, "limit"],
    )
    for one in node.broker.slow.watched():
        if one.reading is not None and seen.get(one.queue.vhost):
            for limit, share in used(one.reading).items():
                ratio.add_metric([one.queue.vhost, one.queue.name, limit], share)
    yield ratio
