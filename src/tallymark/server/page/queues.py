"""The list of queues: sorted, searched and cut into pages by the server."""

from __future__ import annotations

from typing import Final

from tallymark.engine.queue import Queue
from tallymark.server.page.flow import ORDER
from tallymark.server.page.history import newest_rates
from tallymark.server.page.tables import AT_ONCE, Column, table_of
from tallymark.server.page.view import Context, Page, View, at
from tallymark.server.parts import cut
from tallymark.server.samples import MESSAGES

PUBLISH: Final = MESSAGES.index("publish")
ACK: Final = MESSAGES.index("ack")


def address_of(queue: Queue) -> str:
    return at("queues", queue.vhost, queue.name)


def about(queue: Queue) -> str:
    """Return the kind of a queue in a few words."""
    words = [queue.settings.type]
    words += ["durable"] if queue.durable else ["transient"]
    words += ["exclusive"] if queue.exclusive_owner else []
    words += ["auto-delete"] if queue.auto_delete else []
    words += ["paused"] if queue.paused else []
    return ", ".join(words)


def columns_of(view: View) -> tuple[Column[Queue], ...]:
    """Return the columns of the list. The rates are those of the newest slot of samples."""
    samples, flows = view.node.samples, view.flows

    def rate(queue: Queue, column: int) -> float:
        ring = samples.queues.rings.get(queue.id)
        if ring is None or ring.changed() < samples.slot:
            return 0.0
        return newest_rates(ring.at, samples.slot, (column,))[0]

    return (
        Column("name", "Queue", lambda queue: queue.name, link=address_of, note=about),
        Column(
            "state", "State", lambda queue: flows.of(queue).rank, "state",
            note=lambda queue: flows.of(queue).reason, tone=lambda queue: flows.of(queue).tone,
            text=lambda queue: flows.of(queue).state,
        ),
        Column("ready", "Ready", lambda queue: queue.ready, "number"),
        Column(
            "in_flight", "In flight", lambda queue: queue.acquired + queue.account.staged, "number"
        ),
        Column("in", "In /s", lambda queue: rate(queue, PUBLISH), "rate"),
        Column("out", "Settled /s", lambda queue: rate(queue, ACK), "rate"),
        Column("consumers", "Consumers", lambda queue: len(queue.consumers), "number"),
        Column("since", "None left since", lambda queue: flows.of(queue).since_ms, "time"),
        Column("vhost", "Virtual host", lambda queue: queue.vhost),
    )  # fmt: skip


async def counted_by_state(view: View, queues: list[Queue]) -> dict[str, int]:
    """Return how many queues are in each state that some are in, the one to look at first first."""
    counts = dict.fromkeys(ORDER, 0)
    for some in cut(queues, AT_ONCE):
        await view.part()
        for queue in some:
            counts[view.flows.of(queue).state] += 1
    return {state: count for state, count in counts.items() if count}


async def show_list(view: View) -> Context:
    queues = [
        queue for vhost in view.routes.vhosts(view.request) for queue in vhost.queues.values()
    ]
    states = await counted_by_state(view, queues)
    state = view.asked("state")
    if state in ORDER:
        queues = [queue for queue in queues if view.flows.of(queue).state == state]
    table = await table_of(
        view, "Queues", queues, columns_of(view), "-state", lambda queue: queue.name,
        hint="Search by a part of the name", empty="No queue.",
    )  # fmt: skip
    return {"table": table, "states": states, "state": state}


LIST: Final = Page("/ui/queues", "Queues", "queues.html", show_list, nav="Queues")
