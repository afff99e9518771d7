"""Twenty producers against one consumer that has stopped: memory and disk alarms hold them back,
nothing that was confirmed is lost, and all of it is delivered once the consumer goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.lean import ACK, DELIVER, PERSISTENT, TRANSIENT, Link, settle
from tests.faults.disks import Shim, fill_up, free_bytes, make_shim, small_disk
from tests.faults.test_full_disk import check_sound
from tests.server.peers import Bare, Publisher, alarms, all_confirmed, declare, resident_mib
from tests.support.patience import until
from tests.support.process import BrokerProcess

MIB = 1 << 20
PRODUCERS = 20
MEMORY_MIB = 16
LIMIT_MIB = 2 * MEMORY_MIB
"""Bodies in memory at which the alarm is set."""


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Shim]:
    made = make_shim(tmp_path / "shim")
    yield made
    made.go_on()
    Bare.drop_all()


class Stopped:
    """A consumer that takes nothing until it is told to go on."""

    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        self.link = Link(broker.amqp_port)
        self.link.open_channel(1, prefetch=2000)
        self.link.consume(1, queue)
        self.link.set_loose()
        self.got: dict[int, list[int]] = {number: [] for number in range(PRODUCERS)}

    def work(self) -> None:
        self.link.fill()
        tag = 0
        for name, _, number, _, body in self.link.events():
            assert name == DELIVER
            self.got[int(body[8:10])].append(int(body[:8]))
            tag = number
        if tag:
            self.link.outbox += settle(1, ACK, tag, 1)
        self.link.flush()

    @property
    def count(self) -> int:
        return sum(map(len, self.got.values()))


class Gauge(threading.Thread):
    """The most that the broker had in memory: bodies by its own account, and the process."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._broker, self._over = broker, threading.Event()
        self.bodies_mib = self.resident_mib = 0.0

    def run(self) -> None:
        while not self._over.wait(0.05):
            status = self._broker.http("GET", "/api/tallymark/status")[1]
            self.bodies_mib = max(self.bodies_mib, status["memory"]["bodies_bytes"] / MIB)
            self.resident_mib = max(self.resident_mib, resident_mib(self._broker))

    def stop(self) -> None:
        self._over.set()
        self.join()


def producers(broker: BrokerProcess, size: int, properties: bytes) -> list[Publisher]:
    return [
        Publisher(broker, "q", size, properties, b"%02d" % number) for number in range(PRODUCERS)
    ]


def all_work(crowd: list[Publisher], publishing: bool = True) -> Callable[[], None]:
    def work() -> None:
        for one in crowd:
            one.work(publishing, 0)

    return work


def deliver_all(consumer: Stopped, crowd: list[Publisher]) -> None:
    """Everything that was published and everything confirmed arrives, in order, once."""
    until(
        lambda: consumer.count == sum(one.published for one in crowd),
        all_work(crowd, False),
        consumer.work,
    )
    until(lambda: all(one.confirmed == one.published for one in crowd), all_work(crowd, False))
    for number, one in enumerate(crowd):
        assert consumer.got[number] == list(range(1, one.published + 1))
        assert not one.lost


def test_a_flood_is_held_at_the_memory_limit_and_all_of_it_is_delivered_later(
    tmp_path: Path, shim: Shim
) -> None:
    """The disk hangs, so that nothing can be let go of: memory is all there is."""
    with BrokerProcess(
        tmp_path / "data", env=shim.env, max_memory=f"{MEMORY_MIB}MiB", max_pending="4GiB"
    ) as broker:
        declare(broker, "q")
        crowd = producers(broker, 4096, PERSISTENT)
        consumer = Stopped(broker, "q")
        base = resident_mib(broker)
        gauge = Gauge(broker)
        gauge.start()
        shim.hang()
        until(lambda: all(one.told for one in crowd), all_work(crowd))
        assert alarms(broker) == ["memory"]
        for _ in range(20):
            all_work(crowd)()
        assert sum(one.confirmed for one in crowd) == 0
        gauge.stop()
        assert LIMIT_MIB < gauge.bodies_mib <= 1.1 * LIMIT_MIB
        assert gauge.resident_mib - base < 2 * LIMIT_MIB
        shim.go_on()
        deliver_all(consumer, crowd)
        assert alarms(broker) == []


def test_a_flood_on_a_small_disk_is_held_and_goes_on_as_room_returns(tmp_path: Path) -> None:
    """The alarm comes and goes as the consumer drains; at one time not a byte is free."""
    with small_disk(tmp_path / "disk", 48) as disk:
        broker = BrokerProcess(
            disk / "data", segment_size="2MiB", max_memory="16MiB", disk_free_limit="8MiB"
        )
        broker.log_file = tmp_path / "broker.log"
        with broker:
            declare(broker, "q")
            crowd = producers(broker, 2000, PERSISTENT)
            consumer = Stopped(broker, "q")
            gauge = Gauge(broker)
            gauge.start()
            until(lambda: all(one.told for one in crowd), all_work(crowd))
            until(lambda: all_confirmed(broker, crowd), all_work(crowd))
            assert alarms(broker) == ["disk"]
            filler = fill_up(disk, leave=0)
            assert free_bytes(disk) == 0
            before = [one.confirmed for one in crowd]
            for _ in range(50):
                all_work(crowd)()
            assert [one.confirmed for one in crowd] == before
            assert all(one.told[-1] == "low on disk" for one in crowd)
            filler.unlink()
            more = sum(before) + 20_000

            def consume() -> None:
                consumer.work()
                all_work(crowd, sum(one.published for one in crowd) < more)()

            until(lambda: sum(one.confirmed for one in crowd) > sum(before), consume)
            gauge.stop()
            assert gauge.bodies_mib <= 1.1 * LIMIT_MIB
            deliver_all(consumer, crowd)
            for one in crowd:
                one.link.drop()
            check_sound(broker)
            row = broker.queues()["q"]
            assert (row["ready"], row["settled"]) == (0, consumer.count)
        Bare.drop_all()


def test_publishers_share_what_an_alarm_that_comes_and_goes_lets_through(tmp_path: Path) -> None:
    """A slow consumer makes room for a little at a time: none of the producers is left out."""
    with small_disk(tmp_path / "disk", 32) as disk:
        broker = BrokerProcess(
            disk / "data", segment_size="1MiB", max_memory="16MiB", disk_free_limit="8MiB"
        )
        broker.log_file = tmp_path / "broker.log"
        with broker:
            declare(broker, "q", durable=False)
            crowd = producers(broker, 2000, TRANSIENT)
            consumer = Stopped(broker, "q")
            until(lambda: all(one.told for one in crowd), all_work(crowd))
            start = [one.confirmed for one in crowd]

            def shares() -> list[int]:
                return [one.confirmed - then for one, then in zip(crowd, start, strict=True)]

            def consume() -> None:
                consumer.work()
                all_work(crowd)()

            until(lambda: sum(shares()) > 40_000, consume)
            found = sorted(shares())
            assert found[0] > sum(found) / PRODUCERS / 2, found
        Bare.drop_all()
