"""The first page: what waits, what moves, what runs low and what is wrong, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallymark.engine.queue import Queue
from tallymark.server.access.user import sees_everything
from tallymark.server.node import Node
from tallymark.server.page.flow import ALONE, STUCK, Flow
from tallymark.server.page.history import (
    ACK,
    CONFIRMED,
    DISK,
    IN_FLIGHT,
    MEMORY,
    PUBLISH,
    READY,
    SPANS,
    SYNC_US,
    SYNCS,
    History,
    newest_rates,
    span_of,
)
from tallymark.server.page.queues import address_of
from tallymark.server.page.rendering import number, size
from tallymark.server.page.tables import AT_ONCE
from tallymark.server.page.view import Context, Page, View, at
from tallymark.server.parts import cut
from tallymark.server.places import place_of
from tallymark.server.samples import BROKER, end_ms, total

MOST_NAMED: Final = 5
"""Queues that the first page names."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: what is the matter, what to do about it, and the page that helps."""

    tone: str
    what: str
    to_do: str
    link: str = ""
    word: str = ""


class Sums:
    """Sums over all queues that a user sees, and the queues that need a look."""

    def __init__(self) -> None:
        self.queues = self.consumers = 0
        self.entered = self.ready = self.in_flight = self.deferred = self.settled = 0
        self.ended = self.pending = self.quarantined = 0
        self.off: list[Queue] = []
        """Queues whose account does not add up."""
        self.stuck: list[tuple[Queue, Flow]] = []
        self.alone = 0
        """Queues with messages and without a consumer."""

    def add(self, queue: Queue, flow: Flow) -> None:
        account = queue.account
        self.queues += 1
        self.consumers += len(queue.consumers)
        self.entered += account.entered
        self.ready += account.ready
        self.in_flight += account.acquired + account.staged
        self.deferred += account.deferred
        self.settled += account.settled
        self.ended += account.ended() - account.settled
        self.pending += account.pending
        self.quarantined += account.quarantined
        if account.moving or account.entered != account.present() + account.ended():
            self.off.append(queue)
        if flow.state == STUCK:
            self.stuck.append((queue, flow))
        elif flow.state == ALONE:
            self.alone += 1


async def _sums(view: View, queues: list[Queue]) -> Sums:
    sums = Sums()
    for some in cut(queues, AT_ONCE):
        await view.part()
        for queue in some:
            sums.add(queue, view.flows.of(queue))
    sums.stuck.sort(key=lambda pair: pair[1].since_ms or 0)
    return sums


def alarms_of(node: Node, sums: Sums) -> list[Alarm]:
    """Return the alarms of a node, those that hold publishers back first."""
    active, config, found = node.alarms.active, node.config, []
    longest = at("queues", sort="-ready")
    if "memory" in active:
        found.append(Alarm(
            "bad",
            f"Memory is low: message bodies take {size(node.broker.store.resident_bytes)} of "
            f"{size(config.max_memory)}. Publishers wait.",
            "Publishing goes on by itself once consumers have taken enough. Look for the longest "
            "queues and for consumers that do not settle, or raise max_memory.",
            longest, "Longest queues",
        ))  # fmt: skip
    if "disk" in active:
        found.append(Alarm(
            "bad",
            f"The disk is low: {size(node.journal.free_bytes())} free where "
            f"{config.data_dir.absolute()} is, and disk_free_limit is "
            f"{size(config.disk_free_limit)}. Publishers wait.",
            "Make room on that disk, or have messages consumed: the journal gives back what "
            "nothing needs any more. Publishing goes on by itself.",
            longest, "Longest queues",
        ))  # fmt: skip
    if "files" in active:
        found.append(Alarm(
            "bad",
            "The system lets the broker open no more files. Publishers wait.",
            "Raise the limit of open files (`ulimit -n`, or LimitNOFILE of the service), or close "
            "connections that nobody needs. `tallymark doctor` says what to change.",
        ))  # fmt: skip
    if "database" in active:
        found.append(Alarm(
            "bad",
            f"The journal's database has not confirmed for {node.journal.waits_s:.0f} s: "
            f"{node.journal.trouble or 'it does not answer'}. Publishers wait.",
            "Look at the database: whether a server takes writes, and whether a synchronous "
            "standby is connected to it. All goes on by itself once it is back.",
        ))  # fmt: skip
    if node.alarms.is_behind and not active:
        found.append(Alarm(
            "warn",
            "The disk does not keep up with what is published. Publishers wait for moments.",
            "Nothing is lost. If it lasts: a faster disk, or fewer messages that are confirmed "
            "one by one.",
        ))  # fmt: skip
    if sums.quarantined:
        found.append(Alarm(
            "bad",
            f"{number(sums.quarantined)} stored messages cannot be read. They are put aside and "
            "delivered to nobody.",
            "Look at the disk's health. `tallymark journal verify` names the damage; a backup has "
            "the messages.",
        ))  # fmt: skip
    return found


async def show(view: View) -> Context:
    node, vhosts = view.node, view.routes.vhosts(view.request)
    names = {vhost.name for vhost in vhosts}
    sums = await _sums(view, [queue for vhost in vhosts for queue in vhost.queues.values()])
    samples, clock = node.samples, node.broker.clock
    of_vhosts = total(samples.vhosts.at(name) for name in names)
    published, settled = newest_rates(of_vhosts, samples.slot, (PUBLISH, ACK))
    places = [place_of(client) for client in node.clients]
    is_watcher = sees_everything(view.user)
    confirmed, syncs, sync_us = newest_rates(
        samples.broker.at(BROKER), samples.slot, (CONFIRMED, SYNCS, SYNC_US)
    )
    return {
        "sums": sums,
        "alarm_list": alarms_of(node, sums),
        "published": published,
        "settled": settled,
        "connections": sum(place is not None and place[0] in names for place in places),
        "stuck": [(queue, flow, address_of(queue)) for queue, flow in sums.stuck[:MOST_NAMED]],
        "off": [(queue, address_of(queue)) for queue in sums.off[:MOST_NAMED]],
        "machine": _machine(node, confirmed, syncs, sync_us) if is_watcher else None,
        "spans": SPANS,
        "span": view.asked("span", "hour"),
        "seconds": span_of(view.asked("span")).seconds,
        "time": end_ms(samples.newest(clock.now_ms), clock) / 1000,
        "confirmed": confirmed,
    }


def _machine(node: Node, confirmed: float, syncs: float, sync_us: float) -> dict[str, object]:
    """Return what only those are shown who watch the broker as a whole."""
    return {
        "memory": node.broker.store.resident_bytes,
        "memory_most": node.config.max_memory,
        "disk_free": node.journal.free_bytes(),
        "disk_least": node.config.disk_free_limit,
        "pending": node.journal.pending_bytes,
        "sync": node.config.sync,
        "syncs": syncs,
        "sync_ms": sync_us / syncs / 1000 if syncs else None,
        "confirmed": confirmed,
        "discarded": node.broker.traffic.discarded,
        "returned": node.broker.traffic.returned,
        "uptime_ms": node.uptime_ms(),
    }


def _history(view: View) -> History:
    names = [vhost.name for vhost in view.routes.vhosts(view.request)]
    node = view.node
    return History(node.samples, node.broker.clock, names, span_of(view.asked("span")))


async def waiting(view: View) -> Context:
    found = _history(view)
    return found.chart(
        "messages",
        ("ready", found.counts(found.messages, READY)),
        ("in flight", found.counts(found.messages, IN_FLIGHT)),
    )


async def moving(view: View) -> Context:
    found = _history(view)
    lines = [
        ("entered queues", found.rates(found.messages, PUBLISH)),
        ("settled", found.rates(found.messages, ACK)),
    ]
    if sees_everything(view.user):
        lines.append(("confirmed", found.rates(found.broker, CONFIRMED)))
    return found.chart("messages", *lines)


async def memory(view: View) -> Context:
    """Bytes of bodies in memory; empty for those who do not watch the broker as a whole."""
    found = _history(view)
    if not sees_everything(view.user):
        return found.chart("bytes")
    return found.chart("bytes", ("bodies in memory", found.counts(found.broker, MEMORY)))


async def disk(view: View) -> Context:
    """Free bytes of the disk; empty for those who do not watch the broker as a whole."""
    found = _history(view)
    if not sees_everything(view.user):
        return found.chart("bytes")
    return found.chart("bytes", ("free on disk", found.counts(found.broker, DISK)))


async def syncs(view: View) -> Context:
    """Milliseconds that a sync takes; empty for those who do not watch the broker as a whole."""
    found = _history(view)
    if not sees_everything(view.user):
        return found.chart("ms")
    means = [
        None if one is None else one / 1000 for one in found.means(found.broker, SYNC_US, SYNCS)
    ]
    return found.chart("ms", ("a sync takes, on average", means))


PAGE: Final = Page(
    "/", "Overview", "overview.html", show, nav="Overview",
    data={"waiting": waiting, "moving": moving, "memory": memory, "disk": disk, "syncs": syncs},
)  # fmt: skip
