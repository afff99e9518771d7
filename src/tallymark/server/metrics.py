"""Prometheus metrics, read from the node's state when they are asked for: no cost per message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tallymark.engine.deadletters import AT_LEAST_ONCE, AT_MOST_ONCE, CONFIRMED, DISABLED
from tallymark.engine.queue import Queue
from tallymark.engine.session import consumers_of
from tallymark.engine.streams import first_offset, offset_of
from tallymark.server.parts import cut
from tallymark.server.slow.consumers import STATES, used
from tallymark.stored.records import DEATHS, DROP_REASONS

if TYPE_CHECKING:
    from tallymark.server.node import Node

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STRATEGIES: Final = (AT_MOST_ONCE, AT_LEAST_ONCE, DISABLED)
"""Strategies of dead-lettering; disabled: the queue had no dead-letter exchange, or it was
missing."""
_MEANING: Final = {
    "rejected": "Messages that died because a client refused them.",
    "expired": "Messages that died because their time to live was over.",
    "maxlen": "Messages that died because their queue was full.",
    "delivery_limit": "Messages that died because they had been delivered in vain too often.",
    CONFIRMED: "Dead letters that every target has.",
}
"""Help texts by reason of death."""


async def render(
    node: Node, sees: Callable[[str], bool], turn: Callable[[], Awaitable[None]]
) -> bytes:
    """Return all metrics in the text format. Queues are named only in virtual hosts that who asks
    `sees`; what counts the whole broker counts all. Those of queues are made in parts, each in its
    `turn`."""
    seen = {name: sees(name) for name in node.broker.vhosts}
    found = [generate_latest(_Families(_of_node(node, seen)))]
    of_queues: dict[bytes, list[bytes]] = {}
    """Samples by the two lines that begin a metric."""
    queues = [queue for queue in node.broker.queues.values() if seen.get(queue.vhost)]
    for part in cut(queues):
        await turn()
        for family in _of_queues(part):
            text = generate_latest(_Families([family]))
            samples_at = text.index(b"\n", text.index(b"\n") + 1) + 1
            of_queues.setdefault(text[:samples_at], []).append(text[samples_at:])
    for head, samples in of_queues.items():
        found += (head, *samples)
    of_process = CollectorRegistry()
    ProcessCollector(registry=of_process)
    found.append(generate_latest(of_process))
    return b"".join(found)


class _Families(Collector):
    """Metrics in the form that the library takes them in."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_node(node: Node, seen: dict[str, bool]) -> Iterator[Metric]:
    yield from _broker(node)
    yield from _dead_letters(node)
    yield from _slow_consumers(node, seen)
    yield from _housekeeping(node)


def _broker(node: Node) -> Iterator[Metric]:
    broker, journal = node.broker, node.journal
    clients = node.clients
    for name, text, count in (
        ("published", "Messages published.", broker.publishing.published),
        ("transactions_committed", "Transactions that held something, committed.",
         broker.transactions.committed),
        ("transactions_rolled_back", "Transactions that held something, rolled back.",
         broker.transactions.rolled_back),
        ("turns", "Loop turns.", node.turns),
        ("clock_jumps", "Steps of the wall clock of more than 2 s.", broker.clock.jumps),
        ("received_bytes", "Read from open connections of clients.",
         sum(client.received_bytes for client in clients)),
        ("sent_bytes", "Written to open connections of clients.",
         sum(client.sent_bytes for client in clients)),
    ):  # fmt: skip
        yield CounterMetricFamily(f"tallymark_{name}", text, value=count)
    for name, text, value in (
        ("connections", "Open connections of clients, AMQP and NSQ.", len(clients)),
        ("queues", "Queues.", len(broker.queues)),
        ("subscriptions", "Durable subscriptions.", len(broker.leases.subscriptions)),
        ("transactions", "Transactions that have not ended.", len(broker.transactions.open)),
        ("sinks", "Sinks that committed a batch.", len(broker.sinks.sinks)),
        ("sink_staged", "Messages staged for a sink's commit.", broker.sinks.staged),
        (
            "sink_staged_bytes",
            "Bytes of the messages staged for a sink's commit.",
            broker.sinks.staged_bytes,
        ),
        ("bodies_bytes", "Message bytes in memory.", broker.store.resident_bytes),
        ("journal_pending_bytes", "Bytes waiting for the disk.", journal.pending_bytes),
        (
            "clock_ahead_seconds",
            "How far steps of the wall clock have set it ahead since the start.",
            broker.clock.ahead_ms / 1000,
        ),
        ("journal_free_bytes", "Free space on the journal's disk.", journal.free_bytes()),
    ):
        yield GaugeMetricFamily(f"tallymark_{name}", text, value=value)
    sync = GaugeMetricFamily("tallymark_sync_info", "Sync mode.", labels=["sync"])
    sync.add_metric([node.config.sync], 1)
    yield sync
    alarm = GaugeMetricFamily("tallymark_alarm", "1 while the alarm is on.", labels=["alarm"])
    for name in ("memory", "disk"):
        alarm.add_metric([name], int(name in node.alarms.active))
    yield alarm


def _dead_letters(node: Node) -> Iterator[Metric]:
    """Yield the counts of dead letters since the start, over all queues, under the names
    RabbitMQ has for them [DL-8]."""
    counts = node.broker.dead_letters.counts
    for reason in (*DEATHS.values(), CONFIRMED):
        family = CounterMetricFamily(
            f"tallymark_messages_dead_lettered_{reason}", _MEANING[reason], labels=["strategy"]
        )
        for strategy in (AT_LEAST_ONCE,) if reason == CONFIRMED else STRATEGIES:
            family.add_metric([strategy], counts.get((strategy, reason), 0))
        yield family


def _slow_consumers(node: Node, seen: dict[str, bool]) -> Iterator[Metric]:
    """Single subscriptions only where they are near a limit or above one [SC-D5]."""
    watch = node.slow_consumers
    watched = node.broker.slow.watched()
    states = GaugeMetricFamily(
        "tallymark_subscriptions_watched", "Subscriptions with limits, by what they were when "
        "they were looked at last.", labels=["state"],
    )  # fmt: skip
    for state, name in STATES.items():
        states.add_metric([name], sum(1 for one in watched if one.state == state))
    yield states
    ratio = GaugeMetricFamily(
        "tallymark_subscription_limit_used", "How much of a limit a subscription uses that is "
        "near one or above one; 1 is all of it.", labels=["vhost", "queue", "limit"],
    )  # fmt: skip
    for one in watched:
        if one.reading is not None and seen.get(one.queue.vhost):
            for limit, share in used(one.reading).items():
                ratio.add_metric([one.queue.vhost, one.queue.name, limit], share)
    yield ratio
    for name, text, count in (
        ("near", "Times that a subscription came near a limit.", watch.near),
        ("found", "Times that a subscription came above a limit.", watch.found),
        ("failed", "Checks of a subscription, or actions on it, that failed.", watch.errors),
    ):
        yield CounterMetricFamily(f"tallymark_slow_consumers_{name}", text, value=count)
    acted = CounterMetricFamily(
        "tallymark_slow_consumers_acted",
        "Times that something was done about a slow consumer.",
        labels=["policy"],
    )
    for policy, count in sorted(watch.acted.items()):
        acted.add_metric([policy], count)
    yield acted


def _housekeeping(node: Node) -> Iterator[Metric]:
    labels = ["task"]
    runs = CounterMetricFamily("tallymark_housekeeping_runs", "Runs of a task.", labels=labels)
    errors = CounterMetricFamily(
        "tallymark_housekeeping_errors", "Runs of a task that failed.", labels=labels
    )
    passed_over = CounterMetricFamily(
        "tallymark_housekeeping_passed_over",
        "Runs of a task skipped while the one before was at work.",
        labels=labels,
    )  # fmt: skip
    for name, entry in node.tasks.entries.items():
        runs.add_metric([name], entry.runs)
        errors.add_metric([name], entry.errors)
        passed_over.add_metric([name], entry.passed_over)
    yield from (runs, errors, passed_over)


def _of_queues(queues: list[Queue]) -> Iterator[Metric]:
    labels = ["vhost", "queue"]
    gauges = {
        name: GaugeMetricFamily(f"tallymark_queue_{name}", text, labels=labels)
        for name, text in (
            ("ready", "Messages ready."),
            ("acquired", "Messages handed out or leased, not settled."),
            ("deferred", "Messages that are not ready before a time of their own."),
            ("staged", "Messages handed out and settled in transactions that have not ended."),
            ("ready_bytes", "Bytes ready."),
            ("consumers", "Consumers."),
            ("dead_letter_pending", "Dead letters that nothing takes for now."),
            ("quarantined", "Messages put aside, as their bytes cannot be read."),
        )
    }
    entered = CounterMetricFamily(
        "tallymark_queue_entered", "Messages that entered.", labels=labels
    )
    settled = CounterMetricFamily("tallymark_queue_settled", "Messages settled.", labels=labels)
    dead_lettered = CounterMetricFamily(
        "tallymark_queue_dead_lettered",
        "Messages that left for a queue of their dead-letter exchange.",
        labels=labels,
    )
    dropped = CounterMetricFamily(
        "tallymark_queue_dropped", "Messages dropped.", labels=[*labels, "reason"]
    )
    for queue in queues:
        of = [queue.vhost, queue.name]
        gauges["ready"].add_metric(of, queue.ready)
        gauges["acquired"].add_metric(of, queue.acquired)
        gauges["deferred"].add_metric(of, queue.deferred)
        gauges["staged"].add_metric(of, queue.account.staged)
        gauges["ready_bytes"].add_metric(of, queue.account.ready_bytes)
        gauges["consumers"].add_metric(of, len(queue.consumers))
        gauges["dead_letter_pending"].add_metric(of, queue.pending)
        gauges["quarantined"].add_metric(of, queue.account.quarantined)
        entered.add_metric(of, queue.entered)
        settled.add_metric(of, queue.account.settled)
        dead_lettered.add_metric(of, queue.account.dead_lettered)
        for reason, count in queue.account.dropped.items():
            dropped.add_metric([*of, DROP_REASONS[reason]], count)
    yield from _streams(queues)
    yield from gauges.values()
    yield from (entered, settled, dead_lettered, dropped)


def _streams(queues: list[Queue]) -> Iterator[Metric]:
    labels = ["vhost", "queue"]
    gauges = [
        GaugeMetricFamily(f"tallymark_stream_{name}", text, labels=labels)
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
