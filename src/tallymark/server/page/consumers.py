"""Consumers, the slowest first, and how far each is from what is done about slow ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tallymark.engine.consumers import figures
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.session import Consumer
from tallymark.engine.slow.consumers import FINE, NEAR, OVER, Reading, Watched
from tallymark.server.management.rates import MSG_RATES, Rates
from tallymark.server.page.rendering import lasting, number, size
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, at
from tallymark.server.slow.consumers import used
from tallymark.server.slow.policies import NOTIFY

WORDS: Final = {FINE: "fine", NEAR: "near its limit", OVER: "too slow"}
TONE: Final = {FINE: "good", NEAR: "warn", OVER: "bad"}
ACTIONS: Final = {
    NOTIFY: "this is logged, and nothing else",
    "delete": "it is disconnected and its queue deleted",
    "topicDelete": "it is disconnected and its queue deleted",
    "drop-oldest": "its oldest messages are dropped",
    "dead-letter": "its oldest messages are dead-lettered",
    "flow": "publishers wait for it",
}
"""Words for what is done about a subscription that is too slow, by policy."""


@dataclass(slots=True)
class Row:
    """One consumer, with its figures and its subscription to topics, if that has limits."""

    consumer: Consumer
    figures: dict[str, Any]
    watched: Watched | None

    @property
    def vhost(self) -> str:
        return self.consumer.queue.vhost

    @property
    def queue(self) -> str:
        return self.consumer.queue.name

    @property
    def reading(self) -> Reading | None:
        return None if self.watched is None else self.watched.reading

    @property
    def share(self) -> float:
        """Used share of the limit that it is nearest to; -1: it has none."""
        if self.watched is None:
            return -1.0
        return 0.0 if self.reading is None else max(used(self.reading).values(), default=0.0)


async def show(view: View) -> Context:
    broker = view.node.broker
    watched = {one.queue.id: one for one in broker.slow.watched()}
    rows: list[Row] = []
    now_ms = broker.clock.now_ms
    found = [
        one
        for vhost in view.routes.vhosts(view.request)
        for queue in vhost.queues.values()
        if queue.consumers
        for one in consumers_of(queue)
    ]
    rows = await view.http.rows(
        view.request, found, lambda one: Row(one, figures(one, now_ms), watched.get(one.queue.id))
    )
    slow = [row for row in rows if row.watched is not None and row.watched.state != FINE]
    return {
        "table": await table_of(
            view, "Consumers", rows, COLUMNS, "-oldest",
            lambda row: f"{row.queue} {row.consumer.tag} {row.consumer.session.connection.name}",
            "Search by queue, tag or connection", "No consumer is there.",
        ),
        "slow": [
            _alarm(row, _growth(view, row.consumer.queue))
            for row in sorted(slow, key=lambda row: -row.share)[:10]
        ],
        "slow_count": len(slow),
        "over": sum(row.watched is not None and row.watched.state == OVER for row in slow),
    }  # fmt: skip


def _alarm(row: Row, growth: float) -> dict[str, Any]:
    """Return what is to be said of a subscription near its limits or above them. growth: messages
    by which its queue grows in a second."""
    assert row.watched is not None
    reading, policy = row.reading, row.watched.rule.policy or NOTIFY
    return {
        "queue": row.queue, "tag": row.consumer.tag, "vhost": row.vhost,
        "tone": TONE[row.watched.state], "word": WORDS[row.watched.state],
        "limits": [] if reading is None else _limits(reading),
        "action": ACTIONS.get(policy, f"policy {policy} acts"),
        "is_over": row.watched.state == OVER,
        "left_ms": None if reading is None else left_ms(reading, growth),
    }  # fmt: skip


def _growth(view: View, queue: Queue) -> float:
    """Return the messages by which a queue grows in a second, as last sampled."""
    counts = {"publish": queue.entered, "ack": queue.account.settled}
    rates = Rates(view.node, view.request).of_queue(queue).counted(counts, MSG_RATES)
    grows: float = rates["publish_details"]["rate"] - rates["ack_details"]["rate"]
    return grows


def left_ms(reading: Reading, growth: float) -> float | None:
    """Return the time until the first limit is reached, as things go on; None: it is not."""
    rule = reading.rule
    found: list[float] = []
    if rule.age > 0 and reading.count:
        found.append(rule.age - reading.age_ms)
    if rule.count > 0 and growth > 0:
        found.append((rule.count - reading.count) / growth * 1000)
    if rule.depth > 0 and growth > 0 and reading.count:
        each = reading.depth / reading.count
        found.append((rule.depth - reading.depth) / (growth * each) * 1000 if each else 0.0)
    return max(0.0, min(found)) if found else None


def _limits(reading: Reading) -> list[str]:
    """Return in words how much of each limit is used."""
    rule = reading.rule
    found = []
    if rule.count > 0:
        found.append(f"{number(reading.count)} of {number(rule.count)} messages")
    if rule.depth > 0:
        found.append(f"{size(reading.depth)} of {size(rule.depth)}")
    if rule.age > 0:
        found.append(f"the oldest waits {lasting(reading.age_ms)} of {lasting(rule.age)}")
    if rule.rate > 0 and reading.rate >= 0:
        found.append(f"{reading.rate:.1f} of at least {rule.rate:g} messages per second")
    return found


def _state(row: Row) -> str:
    if row.watched is None:
        return "no limits"
    percent = "" if row.share < 0.005 else f", {row.share:.0%} of a limit"
    return WORDS[row.watched.state] + percent


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("queue", "Queue", lambda row: row.queue,
           link=lambda row: at("queues", row.vhost, row.queue), note=lambda row: row.vhost),
    Column("tag", "Consumer", lambda row: row.consumer.tag,
           note=lambda row: row.consumer.session.connection.name,
           link=lambda row: at("connections", row.consumer.session.connection.name)),
    Column("oldest", "Oldest unsettled", lambda row: row.figures["oldest_unsettled_ms"], "lasting"),
    Column("unsettled", "Unsettled", lambda row: row.figures["unsettled"], "number"),
    Column("rate", "Settled per s", lambda row: row.figures["rate"], "rate"),
    Column("settled", "Settled", lambda row: row.figures["settled"], "number"),
    Column("credit", "Credit left",
           lambda row: "no limit" if row.figures["credit"] is None else row.figures["credit"],
           "text"),
    Column("ready", "Waiting", lambda row: row.consumer.queue.ready, "number"),
    Column("state", "Slow?", _state, is_sortable=False,
           tone=lambda row: "" if row.watched is None else TONE[row.watched.state]),
)  # fmt: skip

PAGE: Final = Page("/ui/consumers", "Consumers", "consumers.html", show, nav="Consumers")
