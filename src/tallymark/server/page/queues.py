"""The list of queues: sorted, searched and cut into pages by the server."""

from __future__ import annotations

from typing import Final

from tallymark.engine.queue import Queue
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, at


def _address(queue: Queue) -> str:
    return at("queues", queue.vhost, queue.name)


COLUMNS: Final[tuple[Column[Queue], ...]] = (
    Column("name", "Queue", lambda queue: queue.name, link=_address),
    Column("vhost", "Virtual host", lambda queue: queue.vhost),
    Column("ready", "Ready", lambda queue: queue.ready, "number"),
    Column("in_flight", "In flight", lambda queue: queue.acquired, "number"),
    Column("consumers", "Consumers", lambda queue: len(queue.consumers), "number"),
)


async def show_list(view: View) -> Context:
    queues = [
        queue for vhost in view.routes.vhosts(view.request) for queue in vhost.queues.values()
    ]
    table = await table_of(view, "Queues", queues, COLUMNS, "name", lambda queue: queue.name)
    return {"table": table}


LIST: Final = Page("/ui/queues", "Queues", "list.html", show_list, nav="Queues")
