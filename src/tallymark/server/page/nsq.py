"""NSQ's topics and their channels."""

from __future__ import annotations

from typing import Final

from tallymark.bridge.nsq.topic import Topic
from tallymark.engine.queue import Queue
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, at

Placed = tuple[Topic, str, Queue]
"""Topic, the channel's name, and the queue that it is."""

TOPICS: Final[tuple[Column[Topic], ...]] = (
    Column("name", "Topic", lambda one: one.name),
    Column("messages", "Published", lambda one: one.message_count, "number"),
    Column("bytes", "Bytes", lambda one: one.message_bytes, "size"),
    Column("backlog", "Wait for a channel", lambda one: one.backlog.ready, "number"),
    Column("channels", "Channels", lambda one: len(one.channels), "number"),
    Column("paused", "Paused", lambda one: one.paused, "flag",
           tone=lambda one: "warn" if one.paused else ""),
)  # fmt: skip
CHANNELS: Final[tuple[Column[Placed], ...]] = (
    Column("channel", "Channel", lambda one: one[1],
           link=lambda one: at("queues", one[2].vhost, one[2].name)),
    Column("topic", "Topic", lambda one: one[0].name),
    Column("depth", "Depth", lambda one: one[2].ready, "number"),
    Column("in_flight", "In flight", lambda one: one[2].acquired, "number"),
    Column("deferred", "Deferred", lambda one: one[2].deferred, "number"),
    Column("finished", "Finished", lambda one: one[2].account.settled, "number"),
    Column("clients", "Clients", lambda one: len(one[2].consumers), "number"),
)  # fmt: skip


async def show(view: View) -> Context:
    served = view.http.topics
    topics: list[Topic] = []
    if served is not None:
        seen = view.routes.vhosts(view.request)
        topics = [one for one in served.topics() if one.vhost in seen]
    channels = [(topic, name, queue) for topic in topics for name, queue in topic.channels.items()]
    return {
        "topics": await table_of(
            view, "Topics", topics, TOPICS, "name", lambda one: one.name, empty="There is no topic."
        ),
        "channels": await table_of(
            view, "Channels", channels, CHANNELS, "-depth", lambda one: f"{one[0].name} {one[1]}",
            "Search by topic or channel", "No topic has a channel: what is published waits.", "c",
        ),
        "is_served": served is not None,
    }  # fmt: skip


PAGE: Final = Page("/ui/nsq", "NSQ", "nsq.html", show, nav="NSQ")
