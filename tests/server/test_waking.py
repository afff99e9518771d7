"""A turn that is late gives way to what waits in the sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.stepped import Pipe, SteppedBroker
from tallymark.engine.clock import NEVER
from tallymark.server.clock import CLOCKS
from tallymark.server.node import Node
from tallymark.server.rhythm import ALONE
from tallymark.server.waking import Waking
from tallymark.units import EngineMs
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import MESSAGE
from tests.server.faces import nsq_http
from tests.server.inside import with_broker
from tests.server.peers import Bare
from tests.server.test_nsq_listener import OK, Nsq, pub
from tests.support.amqp091 import tune_ok
from tests.support.patience import until
from tests.support.process import BrokerProcess

TIMEOUT_MS = 1000
STOP_NS = 5_000_000_000
HEARTBEAT = bytes([8, 0, 0, 0, 0, 0, 0, 0xCE])
CLIENTS = 8
LARGE = 4096
"""Bytes of which a turn is made at once."""


def with_waking(look: Callable[[Waking], None]) -> None:
    async def play() -> None:
        look(Waking(asyncio.get_running_loop(), lambda: None))

    asyncio.run(play())


def timed_out(broker: BrokerProcess) -> int:
    """Messages of the channel that timed out."""
    _, answer = nsq_http(broker, "GET", "/stats?format=json", None, "")
    (channel,) = json.loads(answer)["topics"][0]["channels"]
    found: int = channel["timeout_count"]
    return found


def test_a_turn_that_finds_a_deadline_over_gives_way_once_for_each() -> None:
    def look(waking: Waking) -> None:
        over = EngineMs(1001)
        waking.set(EngineMs(1000), EngineMs(0))
        assert not waking.gives_way(EngineMs(999))
        assert waking.is_over(over)
        assert waking.gives_way(over)
        waking._ring()  # the timer comes in the same round, or in the next
        assert not waking.gives_way(over)
        assert not waking.is_over(over)
        assert not waking.gives_way(EngineMs(over + 1000)), "no deadline has come since"
        waking.set(EngineMs(5000), over)
        assert not waking.gives_way(EngineMs(4999))
        assert waking.gives_way(EngineMs(6000))
        waking.set(NEVER, EngineMs(6000))

    with_waking(look)


def test_a_turn_at_once_after_one_that_gave_way_costs_the_next_deadline_nothing() -> None:
    """It asks nobody, and the turn that had given way was none any more: the one that was late for
    the next deadline took itself for it."""

    def look(waking: Waking) -> None:
        waking.set(EngineMs(1000), EngineMs(0))
        assert waking.gives_way(EngineMs(2000))
        waking.set(EngineMs(5000), EngineMs(2000))
        assert waking.gives_way(EngineMs(6000))
        waking.set(NEVER, EngineMs(6000))

    with_waking(look)


def test_what_was_settled_in_time_is_not_given_again_because_the_process_was_stopped(
    tmp_path: Path,
) -> None:
    """Clients finish their messages while the broker is stopped, beyond the messages' time-out."""
    with BrokerProcess(tmp_path / "data") as broker:
        clients = [Nsq(broker.nsq_port) for _ in range(CLIENTS)]
        for one in clients:
            one.identify(msg_timeout=TIMEOUT_MS)
            assert one.ask(b"SUB t c\n") == OK
            one.send(b"RDY 1\n")
        for _ in range(ALONE):  # reads come one at a time: turns follow at once
            publisher = Nsq(broker.nsq_port)
            publisher.identify()
        ids = []
        for n in range(CLIENTS):
            assert publisher.ask(pub(b"%d" % n)) == OK
        for one in clients:
            kind, content = one.frame()
            assert kind == MESSAGE
            ids.append(content[10:26])
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            over_s = time.monotonic() + 2 * TIMEOUT_MS / 1000
            for one, id in zip(clients, ids, strict=True):
                one.send(b"FIN " + id + b"\n")
            until(lambda: time.monotonic() > over_s)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        until(lambda: broker.queues()["t:c"]["settled"] == CLIENTS or timed_out(broker))
        assert timed_out(broker) == 0


@pytest.mark.parametrize("late_ms", [50, 1000])
def test_nor_because_much_was_read_before_it(
    late_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn comes at once where much was read: time-outs were over before the other sockets were
    read. The stop may be much longer than the time for which they are over."""
    monkeypatch.setattr(Pipe, "pause_reading", lambda self: None)
    with SteppedBroker(tmp_path / "data") as broker:
        sink, source = broker.nsq(), broker.nsq()
        sink.send(commands.MAGIC + commands.identify(b'{"msg_timeout": %d}' % TIMEOUT_MS))
        sink.send(commands.sub("t", "c") + commands.rdy(1))
        source.send(commands.MAGIC + pub(b"x"))
        id = sink.pipe.take()[-17:-1]
        (queue,) = [one for one in broker.node.broker.queues.values() if one.acquired]
        broker.loop.now += (TIMEOUT_MS + late_ms) / 1000
        broker.node.most_unwritten = LARGE
        source._client.data_received(pub(b"y" * LARGE))
        sink._client.data_received(commands.fin(int(id, 16)))
        broker.step()
        assert (queue.account.settled, b"E_FIN_FAILED" in sink.pipe.take()) == (1, False)


def greeted(port: int) -> Bare:
    """A connection with a heartbeat each second."""
    link = Bare(port)
    link.greet(tune_ok(heartbeat=1))
    return link


def test_a_heartbeat_that_came_while_the_process_was_stopped_counts(tmp_path: Path) -> None:
    """uvloop looks at its timers before it reads, and the connection was taken for dead."""

    async def play(ports: dict[str, int], node: Node) -> None:
        link = await asyncio.to_thread(greeted, ports["amqp_port"])
        link.socket.sendall(HEARTBEAT)
        monotonic_ns, wall_ns, worked_ns = CLOCKS.monotonic_ns, CLOCKS.wall_ns, CLOCKS.worked_ns
        try:
            CLOCKS.set(lambda: monotonic_ns() + STOP_NS, lambda: wall_ns() + STOP_NS, worked_ns)
            node.clients.deadlines._fire()
            await asyncio.to_thread(link.open_channel, 1)
        finally:
            CLOCKS.set(monotonic_ns, wall_ns, worked_ns, time.sleep)
            link.socket.close()

    asyncio.run(with_broker(tmp_path, play))
