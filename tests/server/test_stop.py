"""A stop, and a start that fails early: nothing is written behind the end or goes unnoticed."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest

from tallymark.engine.message import Payload
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.packing import Packing
from tallymark.journal.journal import Journal
from tallymark.journal.verify import verify
from tallymark.server import opening, run
from tallymark.server.config.settings import Config
from tallymark.server.http.line import HttpListener
from tallymark.server.http.plans import Plans
from tallymark.server.node import Node
from tallymark.server.opening import open_node
from tallymark.stored.annotations import Route
from tests.server.inside import with_broker
from tests.support.patience import PATIENCE_S, until_on_loop

MIB = 1 << 20


def opened(folder: Path, **more: Any) -> Node:
    config = Config(data_dir=folder, amqp_port=0, http_port=0, **more)
    return open_node(config, asyncio.get_running_loop())


def payload(node: Node, key: str, raw: bytes, persistent: bool) -> Payload:
    first_id = node.broker.new_message_ids(1)
    cuts = array("I", (0, len(raw)))
    return Payload(1, raw, cuts, Route("", key), None, first_id, 1, persistent, len(raw))


async def stop_while_memory_is_short(folder: Path) -> int:
    """Transient messages far beyond the budget arrive just before the end: making room for them
    takes many turns, each with records."""
    node = opened(folder, max_memory=16 * MIB)
    broker = node.broker
    connection = broker.clients.open_connection("/", "guest", "test")
    session = broker.clients.open_session(connection)
    broker.registry.declare_queue(connection, "q", False, False, False, {}, False)
    targets = broker.vhost("/").route("", ["q"], None)
    raw = bytes(64 * 1024)
    for _ in range(1000):
        broker.publishing.publish(session, targets, payload(node, "q", raw, False))
    node.schedule()
    return await run._close(node)


def test_nothing_is_written_behind_the_seal_of_a_clean_stop(tmp_path: Path) -> None:
    assert asyncio.run(stop_while_memory_is_short(tmp_path)) == run.STOPPED
    report = verify(tmp_path)
    assert report.is_sound, report.problems
    assert [segment.verdict for segment in report.segments] == ["sealed"]


def test_housekeeping_does_nothing_more_once_it_is_closed(tmp_path: Path) -> None:
    step_s = 0.001

    async def close() -> int:
        node = opened(tmp_path)
        node.housekeeping.step_s = step_s
        node.housekeeping.close()
        node.end()
        await node.housekeeping.last_checkpoint()
        await asyncio.sleep(20 * step_s)  # timers go off in their order
        await asyncio.to_thread(node.journal.close)
        return node.housekeeping.steps

    assert asyncio.run(close()) == 0


def test_a_journal_that_fails_before_there_is_a_node_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_at_once(folder: Path, on_failure: Any, **more: Any) -> Journal:
        on_failure(OSError(5, "broken"))
        return Journal(folder, on_failure, **more)

    monkeypatch.setattr(opening, "Journal", failing_at_once)

    async def start() -> int:
        node = opened(tmp_path)
        await asyncio.wait_for(asyncio.shield(node.failed), PATIENCE_S)
        node.journal.close(clean=False)
        return await run._close(node)

    assert asyncio.run(start()) == run.JOURNAL


async def a_deep_backlog_beside_traffic(folder: Path) -> None:
    """One message in two stays, and it is the small one: the segments become sparse."""
    node = opened(folder, segment_size=MIB)
    broker = node.broker
    broker.backlogs.packing = Packing(after=10, group=16, fresh=2)
    connection = broker.clients.open_connection("/", "guest", "test")
    session = broker.clients.open_session(connection)
    for name in ("keep", "flow"):
        broker.registry.declare_queue(connection, name, True, False, False, {}, False)
    vhost = broker.vhost("/")
    for n in range(400):
        for name, size in (("keep", 200), ("flow", 12_000)):
            raw = n.to_bytes(8, "big") * (size // 8)
            targets = vhost.route("", [name], None)
            broker.publishing.publish(session, targets, payload(node, name, raw, True))
        broker.consuming.get(session, vhost.queues["flow"], False)
        await node.durable()
        broker.spill(1 << 40, node.journal.written)
    broker.settlement.settle_up_to(session, 0, ACCEPTED)
    await node.durable()
    assert any(piece.payload.pack is not None for piece in vhost.queues["keep"].lanes.lowest.fresh)
    before = node.journal.disk_bytes

    def is_half() -> bool:
        node.housekeeping._clean_again()
        is_there = node.journal.disk_bytes < before / 2
        if not is_there:
            node.housekeeping.wants_checkpoint = True
            node.schedule()
        return is_there

    await until_on_loop(is_half)
    await node.durable()
    assert kept(node) == list(range(400))
    node.housekeeping.close()
    node.end()
    await asyncio.to_thread(node.journal.close, False)


def kept(node: Node) -> list[int]:
    """The messages of the backlog, in order."""
    node.broker.check()
    queue = node.broker.vhost("/").queues["keep"]
    queue.unpack()
    found = []
    for piece in queue.slices():
        node.broker.store.load(piece.payload)
        assert piece.payload.raw is not None
        found.append(int.from_bytes(piece.payload.raw[:8], "big"))
    return found


def test_a_deep_backlog_does_not_keep_the_segments_it_arrived_in(tmp_path: Path) -> None:
    asyncio.run(a_deep_backlog_beside_traffic(tmp_path))

    async def again() -> None:
        node = opened(tmp_path, segment_size=MIB)
        assert kept(node) == list(range(400))
        await run._close(node)

    asyncio.run(again())


def test_plans_stay_until_no_request_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that asked in the moment of a stop was told that its plan is unknown (seed
    9402442)."""
    order: list[str] = []
    ends, gives_up = HttpListener.stop, Plans.close

    async def stop(listener: HttpListener) -> None:
        await ends(listener)
        order.append("requests")

    def close(plans: Plans[Any]) -> None:
        gives_up(plans)
        order.append("plans")

    monkeypatch.setattr(HttpListener, "stop", stop)
    monkeypatch.setattr(Plans, "close", close)

    async def play(ports: dict[str, int], node: run.Node) -> None:
        assert not order

    asyncio.run(with_broker(tmp_path, play))
    assert order[-3:] == ["requests", "plans", "plans"]
