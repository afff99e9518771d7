"""A stop under full load, what large bodies leave behind, and what idle clients cost."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from bench.lean import ACK, DELIVER, PERSISTENT, TRANSIENT, Link, publish, settle
from tallymark.stored.layout import HEADER
from tests.server.peers import (
    Bare,
    Publisher,
    Reader,
    declare,
    open_connections,
    resident_mib,
)
from tests.support.patience import until
from tests.support.process import BrokerProcess

MIB = 1 << 20


def test_a_stop_under_full_load_keeps_everything_confirmed_and_leaves_nothing_to_replay(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data", segment_size="1MiB") as broker:
        keys = ("a", "b", "c")
        for key in keys:
            declare(broker, key)
        publishers = [Publisher(broker, key, 500, PERSISTENT) for key in keys]
        works = [publisher.work for publisher in publishers]
        until(lambda: min(publisher.confirmed for publisher in publishers) > 2000, *works)
        os.kill(broker.pid, signal.SIGTERM)
        until(lambda: all(publisher.lost for publisher in publishers), *works)
        assert broker.wait() == 0
        for publisher in publishers:
            assert publisher.lost.startswith("320 CONNECTION_FORCED")
        check_nothing_to_replay(broker.data_dir)
        broker.restart()
        rows = broker.queues()
        for key, publisher in zip(keys, publishers, strict=True):
            ready = rows[key]["ready"]
            assert rows[key]["entered"] == ready >= publisher.confirmed
            reader = Reader(broker, key)
            until(lambda reader=reader, ready=ready: len(reader.numbers) == ready, reader.work)
            assert reader.numbers == list(range(1, ready + 1))
            assert reader.redelivered == []
            reader.link.close()
    Bare.drop_all()


def check_nothing_to_replay(folder: Path) -> None:
    """Behind the newest checkpoint's position there is a seal and nothing else."""
    newest = max(folder.glob("*.checkpoint")).stem
    position = int(newest, 16)
    numbered = sorted(path for path in folder.glob("*.segment") if path.stem[0] != "s")
    last = numbered[-1]
    assert int(last.name.split("-")[0]) == position >> 32
    assert last.stat().st_size == (position & 0xFFFFFFFF) + HEADER


def test_a_body_of_128_mib_leaves_no_memory_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        declare(broker, "q")
        link = Link(broker.amqp_port)
        link.open_channel(1, confirms=True)
        link.open_channel(2, prefetch=1)
        link.consume(2, "q")
        for size in (0, 1):  # whatever is made once is made now
            link.socket.sendall(publish(1, "", "q", PERSISTENT, bytes(size)))
            assert link.wait(DELIVER) == bytes(size)
            link.socket.sendall(settle(2, ACK, 1 + size, 0))
        before = resident_mib(broker)
        body = os.urandom(MIB) * 128
        for tag, properties in ((3, PERSISTENT), (4, TRANSIENT)):
            link.socket.sendall(publish(1, "", "q", properties, body, link.frame_max))
            received = link.wait(DELIVER)
            assert received == body
            link.socket.sendall(settle(2, ACK, tag, 0))
        link.socket.sendall(publish(1, "", "q", PERSISTENT, b""))
        link.wait(DELIVER)
        until(lambda: broker.queues()["q"]["acquired"] == 1)
        until(lambda: resident_mib(broker) < before + 48)
        assert broker.http("GET", "/api/tallymark/status")[1]["memory"]["bodies_bytes"] < MIB
        link.drop()


def test_idle_connections_and_queues_take_no_turns(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", heartbeat_s="600") as broker:
        link = Link(broker.amqp_port)
        link.open_channel(1)
        for number in range(500):
            link.declare_queue(f"idle.{number}")
        links = [Link(broker.amqp_port, heartbeat_s=600) for _ in range(200)]
        for number, each in enumerate(links):
            each.open_channel(1, prefetch=10)
            each.consume(1, f"idle.{number}")
        until(lambda: open_connections(broker) == 201)
        sockets = [each.socket for each in links]
        turns, before = -1, 0.0

        def is_quiet() -> bool:
            """Whether for a second nothing was written to anybody and no turn was taken."""
            nonlocal turns, before
            known, turns, before = turns, turns_of(broker), broker.cpu_seconds()
            assert select.select(sockets, [], [], 1.0)[0] == []
            return turns == known

        until(is_quiet, what=lambda: f"{turns_of(broker) - turns} more turns")
        print(f"{broker.cpu_seconds() - before:.2f} s of CPU in 1 s")
        for each in (link, *links):
            each.drop()


def turns_of(broker: BrokerProcess) -> int:
    return int(broker.http("GET", "/api/tallymark/status")[1]["broker"]["turns"])
