"""One queue: its account as an equation, what moves, settings with where they come from, consumers,
where its dead letters go, a look at its messages, and what an operator may do to it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

from tallymark.bridge.operations import queue_of
from tallymark.engine.consumers import figures
from tallymark.engine.exchange import Binding
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.redrive import MOVED
from tallymark.engine.session import Consumer
from tallymark.engine.streams import first_offset
from tallymark.engine.vhost import VirtualHost
from tallymark.server.http.redrive import MOST, Redrive, redriven
from tallymark.server.http.requests import Refused
from tallymark.server.page.deadletters import WHY, way_of
from tallymark.server.page.flow import FLOWING, IDLE, STREAM, flow_of
from tallymark.server.page.history import ACK, IN_FLIGHT, PUBLISH, READY, newest_rates
from tallymark.server.page.look import MOST as MOST_SEEN
from tallymark.server.page.look import look
from tallymark.server.page.queues import about
from tallymark.server.page.rendering import number, plural
from tallymark.server.page.settings_of import Setting, settings_of
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Form, Moved, Page, View, at
from tallymark.server.samples import end_ms

TERMS: Final = (
    ("ready", "ready"), ("acquired", "in flight"), ("deferred", "deferred"), ("staged", "staged"),
    ("dead_letter_pending", "letters that wait"), ("quarantined", "unreadable"),
    ("settled", "settled"), ("dead_lettered", "dead-lettered"),
)  # fmt: skip
"""Terms of the account and their words, in the order of the equation."""
POINTS: Final = 61
"""Slots of a queue's chart: as far back as its samples go when it is busy."""
QUESTIONS: Final = ("purge", "delete", "pause", "resume", "move")

SETTINGS: Final[tuple[Column[Setting], ...]] = (
    Column("name", "Setting", lambda one: one.name),
    Column("value", "In effect", lambda one: _text(one.value)),
    Column("source", "From", lambda one: one.source),
    Column("others", "Without effect", lambda one: one.others),
)
BINDINGS: Final[tuple[Column[Binding], ...]] = (
    Column("source", "Exchange", lambda one: one.source.name),
    Column("key", "Routing key", lambda one: one.key),
    Column("arguments", "Arguments", lambda one: _text(one.arguments) if one.arguments else ""),
)


def _text(value: object) -> str:
    return "none" if value is None or value == -1 else str(value)


def consumer_columns(view: View) -> tuple[Column[Consumer], ...]:
    """Return the columns of a queue's consumers."""
    now = view.node.broker.clock.now_ms

    def figure(name: str) -> Any:
        return lambda one: figures(one, now)[name]

    return (
        Column("tag", "Consumer", lambda one: one.tag,
               note=lambda one: one.session.connection.name),
        Column("user", "User", lambda one: one.session.connection.user),
        Column("unsettled", "Unsettled", lambda one: one.unacked, "number"),
        Column("credit", "Credit left", figure("credit"), "number"),
        Column("oldest", "Oldest unsettled", figure("oldest_unsettled_ms"), "lasting"),
        Column("rate", "Settles /s", figure("rate"), "rate"),
        Column("delivered", "Delivered", lambda one: one.delivered, "number"),
    )  # fmt: skip


def found_queue(view: View) -> tuple[VirtualHost, Queue]:
    """Return the queue that the path names. Raises NotFound, AccessRefused."""
    vhost = view.routes.vhost(view.request)
    return vhost, queue_of(vhost, view.names["queue"])


async def show(view: View) -> Context:
    node = view.node
    vhost, queue = found_queue(view)
    samples, clock = node.samples, node.broker.clock
    ring = samples.queues.rings.get(queue.id)
    of_queue = None if ring is None else ring.at
    coming, going = newest_rates(of_queue, samples.slot, (PUBLISH, ACK))
    terms = queue.account.terms()
    head = None if queue.settings.is_stream else queue.head()
    flow = flow_of(node, queue)
    inbound = vhost.topology.inbound.get(queue.id, ())
    return {
        "title": f"Queue {queue.name}",
        "queue": queue,
        "about": about(queue),
        "flow": None if flow.state in (FLOWING, IDLE, STREAM) else flow,
        "terms": [(word, terms[name]) for name, word in TERMS],
        "dropped": terms["dropped"],
        "bytes": queue.account.ready_bytes + queue.account.acquired_bytes,
        "coming": coming,
        "going": going,
        "oldest_ms": None if head is None else max(0, clock.now_ms - head.entered_ms()),
        "offsets": (first_offset(queue), queue.end() - 1) if queue.settings.is_stream else None,
        "consumers": await table_of(
            view, "Consumers", consumers_of(queue), consumer_columns(view), "-unsettled",
            empty="None.", prefix="c-",
        ),
        "subscriptions": [node.broker.leases.stat(one) for one in _subscriptions(view, queue)],
        "settings": await table_of(
            view, "Settings", settings_of(vhost, queue), SETTINGS, "name", prefix="s-",
            empty="Neither the declaration nor a policy sets anything.",
        ),
        "bindings": await table_of(
            view, "Bindings", inbound, BINDINGS, "source", prefix="b-",
            empty="None but the default exchange's, by its name.",
        ),
        "way": way_of(vhost, queue),
        "letters": at("dead-letters", queue.vhost, queue.name),
        "ask": view.asked("ask") if view.asked("ask") in QUESTIONS else "",
        "look": partial(look, view, queue, _skip(view)) if "look" in view.request.query else None,
        "skip": _skip(view),
        "step": MOST_SEEN,
        "most": MOST,
        "time": end_ms(samples.newest(clock.now_ms), clock) / 1000,
    }  # fmt: skip


def _subscriptions(view: View, queue: Queue) -> list[Any]:
    return [one for one in view.node.broker.leases.subscriptions.values() if one.queue is queue]


def _skip(view: View) -> int:
    text = view.asked("look", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


async def chart(view: View) -> Context:
    """Return what the queue's samples say: the last five minutes of a busy one."""
    _, queue = found_queue(view)
    samples, clock = view.node.samples, view.node.broker.clock
    ring = samples.queues.rings.get(queue.id)
    newest = samples.newest(clock.now_ms)
    slots = list(range(newest - POINTS + 1, newest + 1))
    first = newest + 1 if ring is None else ring.first()
    lines = {"ready": READY, "in flight": IN_FLIGHT}
    return {
        "unit": "messages",
        "names": list(lines),
        "times": [end_ms(slot, clock) / 1000 for slot in slots],
        "values": [
            [None if ring is None or slot < first else ring.at(slot)[column] for slot in slots]
            for column in lines.values()
        ],
    }


# -- what an operator may do


async def purge(view: View, form: Form) -> str:
    _, queue = found_queue(view)
    count = view.routes.operations(view.request).purge_queue(queue.name)
    await view.node.durable()
    return f"{plural(count, 'message')} of {queue.name} dropped."


async def delete(view: View, form: Form) -> Moved:
    _, queue = found_queue(view)
    view.routes.operations(view.request).delete_queue(queue.name)
    await view.node.durable()
    return Moved(at("queues"), f"Queue {queue.name} deleted.")


async def pause(view: View, form: Form) -> str:
    return await _pause(view, True)


async def resume(view: View, form: Form) -> str:
    return await _pause(view, False)


async def _pause(view: View, paused: bool) -> str:
    _, queue = found_queue(view)
    view.routes.operations(view.request).pause_queue(queue.name, paused)
    await view.node.durable()
    return f"Queue {queue.name} {'is paused: its consumers get nothing' if paused else 'goes on'}."


async def try_move(view: View, form: Form) -> Context:
    moved, kept = await _move(view, form, dry_run=True)
    return {"moved": moved, "kept": kept, "to": form.get("to", ""), "count": form.get("count", "")}


async def move(view: View, form: Form) -> str:
    moved, kept = await _move(view, form, dry_run=False)
    text = f"{plural(moved, 'message')} moved to {form.get('to', '')}."
    return f"{text} Left: {kept}." if kept else text


async def _move(view: View, form: Form, dry_run: bool) -> tuple[int, str]:
    """Move the first messages into another queue, by way of the default exchange. Return how many
    are moved, and why others stay."""
    queue = view.http.queue(view.request)
    target, count = form.get("to", "").strip(), form.get("count", "")
    if not target or target == queue.name:
        raise Refused(400, "bad_request", f"target is {target!r}, expected another queue's name")
    if not (count.isascii() and count.isdigit() and len(count) < 6 and 1 <= int(count) <= MOST):
        raise Refused(400, "bad_request", f"count is {count!r}, expected 1 to {MOST}")
    queue_of(view.routes.vhost(view.request), target)
    run = f"page {view.user.name} {view.node.broker.clock.wall_ms}"
    wanted = Redrive(run=run, oldest=int(count), exchange="", routing_key=target, dry_run=dry_run)
    found = await redriven(view.http, view.request, queue, wanted)
    kept = Counter(one.status for one in found if one.status != MOVED)
    moved = len(found) - kept.total()
    return moved, "; ".join(f"{number(n)} {WHY[status]}" for status, n in kept.most_common())


PAGE: Final = Page(
    "/ui/queues/{vhost}/{queue}", "Queue", "queue.html", show, data={"chart": chart},
    actions={
        "purge": purge, "delete": delete, "pause": pause, "resume": resume, "try": try_move,
        "move": move,
    },
)  # fmt: skip
