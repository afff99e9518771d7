"""A whole broker on a disk that is full, and on one whose calls fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.lean import ACK, PERSISTENT, publish, settle
from tests.faults.disks import fill_up, free_bytes, make_shim, small_disk
from tests.server.peers import Bare, Publisher, Reader, alarms, all_confirmed, declare
from tests.support import forked
from tests.support.amqp091 import tune_ok
from tests.support.patience import until
from tests.support.process import BrokerDied, BrokerProcess

DISK_MIB = 16
JOURNAL_FAILED = 4


@contextmanager
def broker_on(tmp_path: Path, disk: Path, **flags: str) -> Iterator[BrokerProcess]:
    """Small segments, so that a small disk has room for some; the log is elsewhere."""
    broker = BrokerProcess(disk / "data", segment_size="1MiB", max_memory="16MiB", **flags)
    broker.log_file = tmp_path / "broker.log"
    try:
        with broker:
            yield broker
    finally:
        Bare.drop_all()


def publish_until_full(broker: BrokerProcess, publishers: list[Publisher]) -> None:
    """Until the alarm is on, everybody is told, and what was accepted is confirmed."""
    works = [publisher.work for publisher in publishers]
    until(lambda: all(publisher.told for publisher in publishers) or not broker.is_running, *works)
    assert broker.is_running, broker.log()[-1000:]
    until(lambda: all_confirmed(broker, publishers), *works)
    assert alarms(broker) == ["disk"]
    assert all("low on disk" in publisher.told for publisher in publishers)


def check_sound(broker: BrokerProcess) -> None:
    """Stops cleanly, and every byte of the folder is what it should be."""
    assert broker.stop() == 0
    verified = forked.run("journal", "verify", str(broker.data_dir))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    broker.restart()


@pytest.mark.parametrize(
    ("limit", "size"), [("0", 60_000), ("4MiB", 200)], ids=["reserve-only", "limit"]
)
def test_a_full_disk_blocks_publishers_and_draining_it_lets_them_go_on(
    tmp_path: Path, limit: str, size: int
) -> None:
    with (
        small_disk(tmp_path / "disk", DISK_MIB) as disk,
        broker_on(tmp_path, disk, disk_free_limit=limit) as broker,
    ):
        declare(broker, "a")
        declare(broker, "b")
        publishers = [Publisher(broker, key, size, PERSISTENT) for key in ("a", "b")]
        publish_until_full(broker, publishers)
        stopped_at = [publisher.confirmed for publisher in publishers]
        assert all(stopped_at)

        readers = [Reader(broker, key, no_ack=False) for key in ("a", "b")]

        def consume() -> None:
            for publisher, reader in zip(publishers, readers, strict=True):
                reader.work()
                if reader.last_tag:
                    reader.link.outbox += settle(1, ACK, reader.last_tag, 1)
                    reader.last_tag = 0
                reader.link.flush()
                publisher.work(False)

        # All of it is taken and settled; the room that makes is what unblocks the publishers.
        until(lambda: all("unblocked" in publisher.told for publisher in publishers), consume)
        until(
            lambda: all(
                publisher.confirmed == publisher.published == len(reader.numbers)
                for publisher, reader in zip(publishers, readers, strict=True)
            ),
            consume,
        )
        for publisher, reader in zip(publishers, readers, strict=True):
            assert reader.numbers == list(range(1, publisher.published + 1))
            assert reader.redelivered == []
            assert not publisher.lost
            publisher.link.drop()
            reader.link.close()
        check_sound(broker)
        rows = broker.queues()
        assert [rows[key]["ready"] for key in ("a", "b")] == [0, 0]
        assert [rows[key]["settled"] for key in ("a", "b")] == [p.published for p in publishers]


def test_a_broker_killed_on_a_full_disk_recovers_and_goes_on_when_room_returns(
    tmp_path: Path,
) -> None:
    with (
        small_disk(tmp_path / "disk", DISK_MIB) as disk,
        broker_on(tmp_path, disk, disk_free_limit="0") as broker,
    ):
        declare(broker, "a")
        filler = fill_up(disk, leave=4 << 20)
        publisher = Publisher(broker, "a", 1000, PERSISTENT)
        publish_until_full(broker, [publisher])
        filler_2 = fill_up(disk, leave=0, name="filler-2")
        assert free_bytes(disk) == 0
        for _ in range(4):
            broker.kill()
            broker.restart()
            assert alarms(broker) == ["disk"]
            assert broker.queues()["a"]["ready"] >= publisher.confirmed
        reader = Reader(broker, "a", no_ack=False)
        until(lambda: len(reader.numbers) >= publisher.confirmed, reader.work)
        assert reader.numbers == list(range(1, len(reader.numbers) + 1))
        reader.link.outbox += settle(1, ACK, 1000, 1)
        reader.link.flush()
        until(lambda: broker.queues()["a"]["settled"] == 1000)
        late = Publisher(broker, "a", 1000, PERSISTENT)  # one read of it is taken, then no more
        until(lambda: late.told, late.work)
        assert late.told == ["low on disk"]
        broker.kill()
        broker.restart()
        filler.unlink()
        filler_2.unlink()
        until(lambda: not alarms(broker))
        link = Bare(broker.amqp_port)
        link.greet(tune_ok())
        link.open_channel(1, confirms=True)
        for number in range(900_001, 900_101):
            link.socket.sendall(publish(1, "", "a", PERSISTENT, b"%08d" % number))
            link.wait(ACK)
        again = Reader(broker, "a")
        until(lambda: 900_100 in again.numbers, again.work)
        found = again.numbers
        kept = list(range(1001, publisher.confirmed + 1))
        assert [number for number in found if number in set(kept)][: len(kept)] == kept
        assert found[-100:] == list(range(900_001, 900_101))
        assert set(kept) <= set(again.redelivered)
        again.link.close()
        check_sound(broker)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_call_that_fails_ends_the_broker_and_nothing_more_is_confirmed(
    tmp_path: Path, call: str
) -> None:
    """The call that fails is the one that hangs before: a sync that hangs while writes are to fail
    succeeds in the end, and what it covers is confirmed. All fits into one segment: while the
    writer hangs, a broker takes no more than the spares have room for."""
    shim = make_shim(tmp_path / "shim")
    broker = BrokerProcess(tmp_path / "data", env=shim.env, segment_size="16MiB")
    with broker:
        declare(broker, "q", messages=10)
        publisher = Publisher(broker, "q", 1000, PERSISTENT)
        until(lambda: publisher.confirmed > 2000, publisher.work)
        idle = Bare(broker.amqp_port)
        idle.greet(tune_ok())
        shim.hang(call)
        # What had been synced before is confirmed: the loop was told of it, and then has sent it.
        until(shim.writer_hangs, publisher.work)
        for _ in range(2):
            broker.http("GET", "/api/tallymark/status")
        before = -1
        while before != (before := publisher.confirmed):
            for _ in range(20):
                publisher.work(False)
        published = publisher.published
        until(lambda: publisher.published > published + 2000, publisher.work)
        shim.fail(call)
        shim.go_on()
        until(lambda: publisher.lost, lambda: publisher.work(False))
        assert idle.is_closed()
        assert broker.wait() == JOURNAL_FAILED
        assert publisher.confirmed == before
        assert "tallymark: the broker failed and stops: [Errno 5]" in broker.log()
        assert "Traceback" not in broker.log()
        with pytest.raises(BrokerDied, match=r"(?s)exit code 1: .*Input/output error"):
            broker.restart()
        shim.recover(call)
        broker.restart()
        assert broker.queues()["q"]["ready"] >= 10 + publisher.confirmed
        reader = Reader(broker, "q")
        until(lambda: len(reader.numbers) >= 10 + publisher.confirmed, reader.work)
        numbers = reader.numbers[10:]
        assert numbers == list(range(1, len(numbers) + 1))
    Bare.drop_all()
