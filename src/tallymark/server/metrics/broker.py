"""Metrics of the whole broker: what it counts, and how long what it does takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from tallymark.engine.deadletters import AT_LEAST_ONCE, AT_MOST_ONCE, CONFIRMED, DISABLED
from tallymark.server.slow.consumers import STATES
from tallymark.stored.records import DEATHS

if TYPE_CHECKING:
    from tallymark.server.node import Node
    from tallymark.server.tracing.tracing import Tracing

US: Final = 1e-6
MS: Final = 1e-3
FIRST_US: Final = 6
"""Exponent of two of the first bucket that is shown of microseconds: those before it are in it."""
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


def of_broker(node: Node) -> Iterator[Metric]:
    """Yield all of them."""
    yield from _broker(node)
    yield from _times(node)
    yield from _dead_letters(node)
    yield from _slow_consumers(node)
    yield from _housekeeping(node)
    yield from _shovels(node)
    if node.tracing is not None:
        yield from _traces(node.tracing)


def _traces(tracing: Tracing) -> Iterator[Metric]:
    exporter, tracer = tracing.exporter, tracing.tracer
    spans = CounterMetricFamily(
        "tallymark_trace_spans", "Spans of traced messages.", labels=["result"]
    )
    spans.add_metric(["exported"], exporter.exported)
    spans.add_metric(["dropped"], exporter.dropped)
    yield spans
    yield CounterMetricFamily(
        "tallymark_trace_passed_over",
        "Traced messages and deliveries beyond what is followed at a time.",
        value=tracer.passed_over,
    )
    yield GaugeMetricFamily(
        "tallymark_trace_followed", "Traced messages that are in queues.", value=tracer.count
    )


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
        ("rests", "Rests of the loop, in which reads gather for one turn.", node.rests),
        ("clock_jumps", "Steps of the wall clock of more than 2 s.", broker.clock.jumps),
        ("received_bytes", "Bytes read from clients.", clients.received_bytes()),
        ("sent_bytes", "Bytes written to clients.", clients.sent_bytes()),
    ):  # fmt: skip
        yield CounterMetricFamily(f"tallymark_{name}", text, value=count)
    for name, text, value in (
        (
            "connections",
            "Sockets of clients, AMQP and NSQ, with those that have not logged in yet.",
            len(clients),
        ),
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
        (
            "journal_waits_seconds",
            "How long a change has been waiting for the journal's database; 0 without one.",
            journal.waits_s,
        ),
        ("journal_free_bytes", "Free space on the journal's disk.", journal.free_bytes()),
    ):
        yield GaugeMetricFamily(f"tallymark_{name}", text, value=value)
    sync = GaugeMetricFamily("tallymark_sync_info", "Sync mode.", labels=["sync"])
    sync.add_metric([node.config.sync], 1)
    yield sync
    alarms = node.alarms.shown()
    alarm = GaugeMetricFamily("tallymark_alarm", "1 while the alarm is on.", labels=["alarm"])
    for name in ("memory", "disk", "files", "database", "quarantine"):
        alarm.add_metric([name], int(name in alarms))
    yield alarm


def _times(node: Node) -> Iterator[Metric]:
    """Yield the histograms of times, in seconds. What happens together is counted together, a
    message at a time or a thousand: see engine/histogram.py."""
    confirms = node.confirm_times
    settles = node.broker.state.settle_times
    syncs, syncs_us = node.journal.sync_times()
    yield _histogram(
        "tallymark_publish_to_confirm_seconds",
        "Time from the turn that took a message to its confirm, of those that were confirmed.",
        confirms.counts, confirms.total, US, FIRST_US,
    )  # fmt: skip
    yield _histogram(
        "tallymark_publish_to_settle_seconds",
        "Time from a message's entry into its queue to its settlement, in whole milliseconds.",
        settles.counts, settles.total, MS, 0,
    )  # fmt: skip
    yield _histogram(
        "tallymark_journal_sync_seconds",
        "Time that the journal's calls of fdatasync took.",
        syncs, syncs_us, US, FIRST_US,
    )  # fmt: skip


def _histogram(
    name: str, text: str, counts: list[int], total: int, unit_s: float, first: int
) -> Metric:
    """Return a Histogram of the engine for Prometheus. unit_s: seconds that 1 stands for. first:
    exponent of two of the first bucket to show."""
    family = HistogramMetricFamily(name, text)
    running = [*accumulate(counts)]
    buckets = [(f"{2**at * unit_s:.10g}", running[at]) for at in range(first, len(counts) - 1)]
    family.add_metric([], [*buckets, ("+Inf", running[-1])], total * unit_s)
    return family


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


def _slow_consumers(node: Node) -> Iterator[Metric]:
    watch = node.slow_consumers
    watched = node.broker.slow.watched()
    states = GaugeMetricFamily(
        "tallymark_subscriptions_watched", "Subscriptions with limits, by what they were when "
        "they were looked at last.", labels=["state"],
    )  # fmt: skip
    for state, name in STATES.items():
        states.add_metric([name], sum(1 for one in watched if one.state == state))
    yield states
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


def _shovels(node: Node) -> Iterator[Metric]:
    labels = ["shovel"]
    moved = CounterMetricFamily(
        "tallymark_shovel_moved", "Messages that are settled at the source.", labels=labels
    )
    failures = CounterMetricFamily(
        "tallymark_shovel_failures", "Times that a side of a shovel failed.", labels=labels
    )
    in_hand = GaugeMetricFamily(
        "tallymark_shovel_in_hand", "Messages taken and not yet settled.", labels=labels
    )
    running = GaugeMetricFamily(
        "tallymark_shovel_running", "1 while both sides are connected.", labels=labels
    )
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in node.shovels.rows():  # two of a name while one ends and the next one waits for it
        by_name.setdefault(row["name"], []).append(row)
    for name, rows in by_name.items():
        moved.add_metric([name], sum(row["moved"] for row in rows))
        failures.add_metric([name], sum(row["failures"] for row in rows))
        in_hand.add_metric([name], sum(row["in_hand"] for row in rows))
        running.add_metric([name], int(any(row["state"] == "running" for row in rows)))
    yield from (moved, failures, in_hand, running)
