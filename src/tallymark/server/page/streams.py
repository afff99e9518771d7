"""Streams with their readers, and durable subscriptions, as Spark has them: how far each lags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.streams import first_offset, offset_of
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, at


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer of a stream, and the offset that it sees next."""

    queue: Queue
    tag: str
    connection: str
    offset: int

    @property
    def lag(self) -> int:
        return max(0, self.queue.end() - 1 - self.offset)


STREAMS: Final[tuple[Column[Queue], ...]] = (
    Column(
        "name", "Stream", lambda one: one.name, link=lambda one: at("queues", one.vhost, one.name)
    ),
    Column("vhost", "Virtual host", lambda one: one.vhost),
    Column("messages", "Messages", lambda one: one.ready, "number"),
    Column("bytes", "Bytes", lambda one: one.account.ready_bytes, "size"),
    Column("first", "First offset", first_offset, "number"),
    Column("next", "Next offset", lambda one: one.end() - 1, "number"),
    Column("readers", "Readers", lambda one: len(one.consumers), "number"),
    Column("lag", "Largest lag", lambda one: _largest(one), "number"),
)

READERS: Final[tuple[Column[Reader], ...]] = (
    Column("stream", "Stream", lambda one: one.queue.name,
           link=lambda one: at("queues", one.queue.vhost, one.queue.name)),
    Column("tag", "Reader", lambda one: one.tag, note=lambda one: one.connection,
           link=lambda one: at("connections", one.connection)),
    Column("offset", "Next offset", lambda one: one.offset, "number"),
    Column("lag", "Lag", lambda one: one.lag, "number"),
)  # fmt: skip

SUBSCRIPTIONS: Final[tuple[Column[Mapping[str, Any]], ...]] = (
    Column("name", "Subscription", lambda row: row["subscription"]),
    Column("queue", "Queue", lambda row: row["queue"],
           link=lambda row: at("queues", row["vhost"], row["queue"])),
    Column("vhost", "Virtual host", lambda row: row["vhost"]),
    Column("lag", "Lag", lambda row: row["rows_behind"], "number"),
    Column("bytes", "Lag in bytes", lambda row: row["bytes_behind"], "size"),
    Column("leased", "On lease", lambda row: row["leased"], "number"),
    Column("oldest", "Oldest unsettled", lambda row: row["oldest_unsettled_ms"], "lasting"),
    Column("floor", "Settled so far", lambda row: row["floor"], "number"),
)  # fmt: skip


def _readers(queue: Queue) -> list[Reader]:
    return [
        Reader(queue, one.tag, one.session.connection.name, offset_of(one))
        for one in consumers_of(queue)
        if one.cursors
    ]


def _largest(queue: Queue) -> int | None:
    return max((one.lag for one in _readers(queue)), default=None)


async def show(view: View) -> Context:
    names = {vhost.name for vhost in view.routes.vhosts(view.request)}
    streams = [
        queue
        for queue in view.node.broker.queues.values()
        if queue.settings.is_stream and queue.vhost in names
    ]
    leases = view.node.broker.leases
    found = [one for one in leases.subscriptions.values() if one.queue.vhost in names]
    subscriptions = await view.http.rows(view.request, found, leases.stat)
    readers = [reader for queue in streams for reader in _readers(queue)]
    return {
        "streams": await table_of(
            view, "Streams", streams, STREAMS, "-lag", lambda one: one.name,
            "Search by name", "There is no stream.", "s",
        ),
        "readers": await table_of(
            view, "Readers", readers, READERS, "-lag", empty="Nobody reads a stream.", prefix="r"
        ),
        "subscriptions": await table_of(
            view, "Durable subscriptions", subscriptions, SUBSCRIPTIONS, "-lag",
            empty="There is none: Spark makes one for each queue that it reads.", prefix="d",
        ),
    }  # fmt: skip


PAGE: Final = Page("/ui/streams", "Streams and subscriptions", "streams.html", show, nav="Streams")
