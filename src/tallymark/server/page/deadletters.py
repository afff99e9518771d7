"""Dead letters: the queues they go through as a graph, what waits where, and the way back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tallymark.engine.exchange import Exchange
from tallymark.engine.queue import Queue
from tallymark.engine.redrive import (
    FORBIDDEN,
    FULL,
    GONE,
    MOVED,
    NO_LETTER,
    NOT_READY,
    REPEATED,
    UNREADABLE,
    UNROUTABLE,
    Found,
)
from tallymark.engine.vhost import VirtualHost
from tallymark.server.http.redrive import MOST, Redrive, redriven
from tallymark.server.page.graph import Flow, drawn
from tallymark.server.page.letters import Chosen, chosen_in, day_of, letters_in, looked_at_in
from tallymark.server.page.rendering import number, plural
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Form, Moved, Page, View, at
from tallymark.server.parts import cut

DRAWN: Final = 60
"""Queues in the drawing, those with the most deaths first."""
LOOKED_AT: Final = 40_000
"""Slices, or packed messages, of all queues that are looked at for one view."""
AT_ONCE: Final = 100
"""Queues in one part of looking for ways."""
NOWHERE: Final = "nowhere"
WHY: Final = {
    MOVED: "go back",
    GONE: "are gone from the queue",
    NOT_READY: "are held by a consumer, or wait",
    UNROUTABLE: "would reach no queue",
    UNREADABLE: "cannot be read",
    FULL: "find a full queue",
    NO_LETTER: "name no place to go back to",
    FORBIDDEN: "you may not publish there",
    REPEATED: "were moved by this run before",
}
REASONS: Final = {
    "rejected": "rejected",
    "expired": "expired",
    "maxlen": "queue full",
    "delivery_limit": "too many deliveries",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Letters in one queue that died in the same place for the same reason on the same day."""

    vhost: str
    queue: str
    source: str
    reason: str
    day: str
    count: int

    @property
    def link(self) -> str:
        return at(
            "dead-letters", self.vhost, self.queue,
            source=self.source, reason=self.reason, day=self.day,
        )  # fmt: skip


@dataclass(slots=True)
class Way:
    """The way of letters out of one queue. total: how many went it since the queue was made."""

    source: Queue
    exchange: str
    targets: list[Queue]
    total: int
    depends: bool
    """True if the targets are those of all bindings: which of them, each message's key says."""


COLUMNS: Final[tuple[Column[Group], ...]] = (
    Column("queue", "Waiting in", lambda one: one.queue, link=lambda one: one.link),
    Column("count", "Letters", lambda one: one.count, "number"),
    Column("source", "Died in", lambda one: one.source),
    Column("reason", "Because", lambda one: REASONS[one.reason]),
    Column("day", "Last died on", lambda one: one.day),
    Column("vhost", "Virtual host", lambda one: one.vhost),
    Column("link", "", lambda _: "Redrive…", link=lambda one: one.link, is_sortable=False),
)
WAYS: Final[tuple[Column[Way], ...]] = (
    Column("source", "Queue", lambda one: one.source.name,
           link=lambda one: at("queues", one.source.vhost, one.source.name)),
    Column("total", "Died", lambda one: one.total, "number"),
    Column("exchange", "Exchange", lambda one: one.exchange or "(default)"),
    Column("targets", "Leads to", lambda one: ", ".join(_names(one)),
           note=lambda one: "by each message's key" if one.depends else "",
           tone=lambda one: "" if one.targets or one.depends else "bad"),
    Column("vhost", "Virtual host", lambda one: one.source.vhost),
)  # fmt: skip


def _names(way: Way) -> list[str]:
    found = [queue.name for queue in way.targets]
    return found or ["" if way.depends else NOWHERE]


def way_of(vhost: VirtualHost, queue: Queue) -> Way | None:
    """Return the way of a queue's letters; None: it has none, they are dropped."""
    name = queue.settings.dead_letter_exchange
    if name is None:
        return None
    exchange = vhost.exchanges.get(name)
    key = queue.settings.dead_letter_key
    total = queue.account.dead_lettered
    if exchange is None:
        return Way(queue, name, [], total, False)
    if key is not None and not exchange.reads_headers:
        return Way(queue, name, list(vhost.route_from(exchange, [key], None).queues), total, False)
    return Way(queue, name, _bound(vhost, exchange), total, True)


def _bound(vhost: VirtualHost, exchange: Exchange) -> list[Queue]:
    """Return the queues that are bound to an exchange."""
    found = [one.queue for one in vhost.topology.bindings() if one.source is exchange]
    return list(dict.fromkeys(queue for queue in found if queue is not None))


async def show(view: View) -> Context:
    vhosts = view.routes.vhosts(view.request)
    ways: list[Way] = []
    for vhost in vhosts:
        for some in cut(list(vhost.queues.values()), AT_ONCE):
            await view.part()
            found = [way_of(vhost, queue) for queue in some]
            ways += [way for way in found if way is not None]
    groups, is_all = await _groups(view, [queue for way in ways for queue in way.targets])
    shown = sorted(ways, key=lambda way: -way.total)[:DRAWN]
    flows = _flows(shown, groups)
    return {
        "groups": await table_of(
            view, "Dead letters that wait", groups, COLUMNS, "-count",
            lambda one: f"{one.queue} {one.source} {one.reason} {one.day}",
            "Search by queue, reason or day", "No dead letter waits in any queue.",
        ),
        "ways": await table_of(
            view, "Ways of dead letters", ways, WAYS, "-total", prefix="w",
            empty="No queue has a dead-letter exchange: its dead messages are dropped.",
        ),
        "drawing": drawn([], flows), "is_all": is_all,
        "hidden": len(ways) - len(shown), "waiting": sum(one.count for one in groups),
    }  # fmt: skip


def _flows(ways: list[Way], groups: list[Group]) -> list[Flow]:
    """Return the flows of the drawing, each labelled with the letters that went, and wait. Queues
    of several virtual hosts are told apart by these."""
    is_one = len({way.source.vhost for way in ways}) <= 1

    def name(vhost: str, queue: str) -> str:
        return queue if is_one else f"{vhost}: {queue}"

    waits: Counter[tuple[str, str, str]] = Counter()
    for group in groups:
        waits[group.vhost, group.source, group.queue] += group.count
    flows = []
    for way in ways:
        source, vhost = way.source.name, way.source.vhost
        if not way.targets and not way.depends:
            flows.append(Flow(name(vhost, source), NOWHERE, _label(way.total, 0)))
        for target in way.targets:
            label = _label(way.total, waits[vhost, source, target.name])
            flows.append(Flow(name(vhost, source), name(vhost, target.name), label))
    return flows


def _label(died: int, waits: int) -> str:
    words = [f"{number(died)} died"] if died else []
    return " · ".join([*words, f"{number(waits)} wait"] if waits else words)


async def _groups(view: View, queues: list[Queue]) -> tuple[list[Group], bool]:
    """Return what waits in these queues by where, why and when it died, and whether all of it was
    looked at."""
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    left, is_all = LOOKED_AT, True
    for queue in dict.fromkeys(queues):
        if not queue.ready:
            continue
        if left <= 0:
            is_all = False
            break
        await view.part()
        most = min(left, LOOKED_AT // 4)
        for letters in letters_in(queue, most):
            death = letters.death
            mark = (queue.vhost, queue.name, death.queue, death.reason, day_of(death.last_ms))
            counts[mark] += len(letters.ids)
        looked_at, is_whole = looked_at_in(queue, most)
        left -= looked_at
        is_all = is_all and is_whole
    return [Group(*mark, count) for mark, count in counts.items()], is_all


PAGE: Final = Page("/ui/dead-letters", "Dead letters", "deadletters.html", show, nav="Dead letters")


# -- redrive of chosen letters


async def _tried(
    view: View, queue: Queue, chosen: Chosen, dry_run: bool
) -> tuple[list[tuple[int, int]], list[Found]]:
    messages = chosen_in(queue, chosen, MOST)
    run = f"page {view.user.name} {view.node.broker.clock.wall_ms}"
    wanted = Redrive(messages=messages, run=run, dry_run=dry_run)
    return messages, await redriven(view.http, view.request, queue, wanted)


async def show_letters(view: View) -> Context:
    queue = view.http.queue(view.request)
    chosen = Chosen(view.asked("source"), view.asked("reason"), view.asked("day"))
    messages, found = await _tried(view, queue, chosen, True)
    kinds: dict[str, Counter[str]] = {"source": Counter(), "reason": Counter(), "day": Counter()}
    for letters in letters_in(queue):
        death, n = letters.death, len(letters.ids)
        kinds["source"][death.queue] += n
        kinds["reason"][death.reason] += n
        kinds["day"][day_of(death.last_ms)] += n
    return {
        "queue": queue, "chosen": chosen, "kinds": kinds, "reasons": REASONS,
        "count": len(messages), "most": MOST, "upto": max((one for one, _ in messages), default=0),
        "moves": sum(one.status == MOVED for one in found),
        "ways": _ways(found), "kept": _kept(found),
    }  # fmt: skip


def _ways(found: list[Found]) -> list[tuple[str, str, list[str], int]]:
    """Return exchange, keys, queues and count of each way that letters would go."""
    counts: Counter[tuple[str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for one in found:
        if one.status == MOVED and one.way is not None:
            queues = tuple(queue.name for queue in one.queues)
            counts[one.way.exchange, one.way.keys, queues] += 1
    return [
        (exchange, ", ".join(keys), list(queues), count)
        for (exchange, keys, queues), count in counts.most_common()
    ]


def _kept(found: list[Found]) -> list[tuple[str, int]]:
    """Return why letters would stay, with their count."""
    counts = Counter(one.status for one in found if one.status != MOVED)
    return [(WHY[status], count) for status, count in counts.most_common()]


async def redrive(view: View, form: Form) -> Moved:
    """Move the letters that the form chooses."""
    queue = view.http.queue(view.request)
    upto = form.get("upto", "")
    chosen = Chosen(
        form.get("source", ""), form.get("reason", ""), form.get("day", ""),
        int(upto) if upto.isascii() and upto.isdigit() and len(upto) < 19 else 0,
    )  # fmt: skip
    _, found = await _tried(view, queue, chosen, False)
    moved = sum(one.status == MOVED for one in found)
    text = f"{plural(moved, 'message')} of {queue.name} moved back."
    kept = "; ".join(f"{number(count)} {why}" for why, count in _kept(found))
    return Moved(PAGE.path, f"{text} Left: {kept}." if kept else text)


LETTERS: Final = Page(
    "/ui/dead-letters/{vhost}/{queue}", "Redrive", "letters.html", show_letters,
    actions={"redrive": redrive}, is_live=False,
)  # fmt: skip
