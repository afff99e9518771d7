"""Real brokers whose wall clock is set while they run, by libfaketime [NQ-D8]; and that the engine
is told the time in one place.

A clock that is set back by an hour, and one that is set a day ahead for a second and right again.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tallymark
from tallymark.engine.clock import Clock
from tallymark.server.clock import CLOCKS, MS_NS, READINGS, alignment_ns
from tallymark.server.node import Node
from tests.server.inside import with_broker
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

LIBRARY = next(iter(glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")
HOUR_S = 3600
DAY_S = 24 * HOUR_S

needs_faketime = pytest.mark.skipif(
    not LIBRARY, reason="libfaketime is not there: apt-get install --no-install-recommends faketime"
)


class SetClock:
    """The wall clock of a broker; its monotonic clock is the machine's."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """So far ahead of the right time."""
        made = self._file.with_suffix(".new")
        made.write_text(f"{ahead_s:+}\n")
        made.replace(self._file)

    def env(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    return SetClock(tmp_path / "clock")


@pytest.fixture
def broker(tmp_path: Path, clock: SetClock) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", env=clock.env(), is_forked=False) as found:
        yield found


def jumps(broker: BrokerProcess) -> tuple[float, float]:
    """How often it saw the clock jump, and how far ahead it is by that."""
    _, said = broker.http("GET", "/metrics")
    found = dict(re.findall(r"^tallymark_clock_(\w+) (\S+)$", said, re.MULTILINE))
    return float(found["jumps_total"]), float(found["ahead_seconds"])


def ready(broker: BrokerProcess, name: str) -> int:
    return int(broker.queues()[name]["ready"])


@contextmanager
def channel_of(
    broker: BrokerProcess,
) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url())) as connection:
        yield connection.channel()


def nsq(broker: BrokerProcess, path: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(broker.nsq_http_url + path, body, timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def channel_stats(broker: BrokerProcess, topic: str) -> dict[str, int]:
    stats = json.loads(nsq(broker, f"/stats?format=json&topic={topic}"))
    return dict(stats["topics"][0]["channels"][0])


def subscribe(broker: BrokerProcess, topic: str, timeout_ms: int) -> socket.socket:
    """A client that is sent one message, and says nothing to it."""
    found = socket.create_connection(("127.0.0.1", broker.nsq_port))
    said = json.dumps({"msg_timeout": timeout_ms}).encode()
    found.sendall(b"  V2IDENTIFY\n" + len(said).to_bytes(4, "big") + said)
    found.sendall(f"SUB {topic} c\nRDY 1\n".encode())
    return found


@needs_faketime
@pytest.mark.parametrize("ahead_s", [-HOUR_S, DAY_S], ids=["hour back", "day ahead"])
def test_nq_d8_deadlines_of_all_kinds_under_a_clock_that_is_set(
    broker: BrokerProcess, clock: SetClock, ahead_s: int
) -> None:
    """Each of a second; what is to live for an hour lives on. After that the clock is set right."""
    with channel_of(broker) as channel:
        channel.queue_declare("dead")
        lasting = {"x-message-ttl": HOUR_S * 1000, "x-dead-letter-exchange": "",
                   "x-dead-letter-routing-key": "dead"}  # fmt: skip
        channel.queue_declare("lasting", arguments=lasting)
        channel.queue_declare("brief", arguments={**lasting, "x-message-ttl": 1000})
        channel.basic_publish("", "lasting", b"lasting")
        channel.queue_declare("delayed")
        for topic in ("held", "deferred"):
            nsq(broker, f"/topic/create?topic={topic}", b"")
            nsq(broker, f"/channel/create?topic={topic}&channel=c", b"")
        for number, off_s in ((1, ahead_s), (2, 0)):
            clock.set(off_s)
            wall = time.time() + off_s
            meet_deadlines(broker, channel, number)
            assert jumps(broker) == (number, pytest.approx(off_s, abs=1))
            assert abs(time_of_death(channel) - wall) < HOUR_S / 2
        assert ready(broker, "lasting") == 1
    assert broker.log().count("clock.jumped") == 2


def meet_deadlines(
    broker: BrokerProcess, channel: pika.adapters.blocking_connection.BlockingChannel, number: int
) -> None:
    """A message more of each kind, until the time of each has come; `number` so far."""
    channel.queue_declare("unused", arguments={"x-expires": 1000})
    channel.basic_publish("", "brief", b"brief")
    delay = pika.BasicProperties(headers={"x-delay": 1000})
    channel.basic_publish("", "delayed", b"delayed", delay)
    nsq(broker, "/pub?topic=deferred&defer=1000", b"later")
    nsq(broker, "/pub?topic=held", b"held")
    with subscribe(broker, "held", 1000):
        until(lambda: ready(broker, "dead") == number)
        until(lambda: "unused" not in broker.queues())
        until(lambda: channel_stats(broker, "deferred")["depth"] == number)
        until(lambda: channel_stats(broker, "held")["timeout_count"] >= number)
        until(lambda: ready(broker, "delayed") == number)


def time_of_death(channel: pika.adapters.blocking_connection.BlockingChannel) -> float:
    """When the last dead letter died, as its reader is told: wall time of the broker."""
    found = 0.0
    tag = 0
    while True:
        method, properties, _ = channel.basic_get("dead")
        if method is None:
            break
        tag = method.delivery_tag
        found = properties.headers["x-death"][0]["time"].timestamp()
    channel.basic_nack(tag, multiple=True, requeue=True)
    return found


@needs_faketime
@pytest.mark.parametrize("ahead_s", [-HOUR_S, DAY_S], ids=["hour back", "day ahead"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_what_is_stored_is_told_from_wall_time_at_a_restart(
    broker: BrokerProcess, clock: SetClock, ahead_s: int, is_killed: bool
) -> None:
    """What was deferred after the clock was set is deferred for as long as it was told to."""
    with channel_of(broker) as channel:
        channel.queue_declare("seen", durable=True)
    clock.set(ahead_s)
    nsq(broker, "/topic/create?topic=t", b"")
    nsq(broker, "/channel/create?topic=t&channel=c", b"")
    nsq(broker, "/pub?topic=t&defer=2000", b"soon")
    nsq(broker, f"/pub?topic=t&defer={HOUR_S * 1000}", b"later")
    until(lambda: channel_stats(broker, "t")["deferred_count"] == 2)
    if is_killed:
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.restart()
    until(lambda: channel_stats(broker, "t")["depth"] == 1)
    assert channel_stats(broker, "t")["deferred_count"] == 1
    assert jumps(broker) == (0, 0)  # engine time begins with wall time


@needs_faketime
def test_messages_that_are_delayed_are_listed_by_the_clock_after_a_jump(
    broker: BrokerProcess, clock: SetClock
) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare("q")
        delayed = pika.BasicProperties(headers={"x-delay": HOUR_S * 1000})
        channel.basic_publish("", "q", b"", delayed)
        until(lambda: broker.queues()["q"]["deferred"] == 1)
        clock.set(DAY_S)
        until(lambda: jumps(broker)[0] == 1)
        due = time.time() + DAY_S + HOUR_S
        _, row = broker.http("GET", "/api/queues/%2F/q")
        for name in ("next_delayed_at", "last_delayed_at"):
            assert abs(row[name] / 1000 - due) < HOUR_S / 2, name


@needs_faketime
@pytest.mark.parametrize("ahead_s", [-HOUR_S, DAY_S], ids=["hour back", "day ahead"])
def test_what_was_stored_before_a_jump_is_told_by_the_clock_after_it_behind_a_crash(
    broker: BrokerProcess, clock: SetClock, ahead_s: int
) -> None:
    """A jump is followed by a checkpoint at once, however little the journal has grown."""
    nsq(broker, "/topic/create?topic=t", b"")
    nsq(broker, "/channel/create?topic=t&channel=c", b"")
    nsq(broker, "/pub?topic=t&defer=2000", b"soon")
    nsq(broker, f"/pub?topic=t&defer={HOUR_S * 1000}", b"later")
    for number, off_s in ((1, ahead_s), (2, 0), (3, ahead_s)):
        nsq(broker, "/pub?topic=other", b"a row for the journal")
        clock.set(off_s)
        until(lambda number=number: jumps(broker)[0] == number)
        until(lambda number=number: broker.log().count("checkpoint.done") >= number)
    broker.kill()
    broker.restart()
    until(lambda: channel_stats(broker, "t")["depth"] == 1)
    assert channel_stats(broker, "t")["deferred_count"] == 1
    assert jumps(broker) == (0, 0)


async def _asked(ports: dict[str, int], path: str) -> Any:
    """Return the JSON answer of the NSQ HTTP interface."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ports["nsq_http_port"])
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def test_nsqs_start_time_is_told_by_the_clock_after_a_jump(tmp_path: Path) -> None:
    async def play(ports: dict[str, int], node: Node) -> None:
        before = (await _asked(ports, "/info"))["start_time"]
        monotonic_ns, wall_ns, worked_ns = CLOCKS.monotonic_ns, CLOCKS.wall_ns, CLOCKS.worked_ns
        try:
            # A jump within the millisecond of the last reading is seen in the next one.
            CLOCKS.set(
                lambda: monotonic_ns() + 10 * MS_NS,
                lambda: wall_ns() + (DAY_S * 1000 + 10) * MS_NS,
                worked_ns,
            )
            told = (await _asked(ports, "/info"))["start_time"]
            shown = (await _asked(ports, "/stats?format=json"))["start_time"]
        finally:
            CLOCKS.set(monotonic_ns, wall_ns, worked_ns, time.sleep)
        assert abs(told - before - DAY_S) <= 1
        assert told == shown

    asyncio.run(with_broker(tmp_path, play))


@given(
    wall=st.integers(0, 10**9),
    monotonic=st.integers(0, 10**9),
    passed=st.lists(st.integers(0, 10**8)),
)
def test_nq_16_engine_time_is_wall_time_to_the_millisecond(
    wall: int, monotonic: int, passed: list[int]
) -> None:
    """Whatever part of a millisecond each clock was in: no message is a millisecond early."""
    aligned = alignment_ns([(monotonic, wall, monotonic)])
    engine = Clock()
    for step in [0, *passed]:
        wall += step
        monotonic += step
        told = engine.read(wall // MS_NS, (monotonic + aligned) // MS_NS)
        assert told == wall // MS_NS


@given(early=st.integers(0, 10**6), late=st.integers(0, 10**6), stall=st.integers(3, 10**9))
def test_of_several_readings_of_both_clocks_the_closest_counts(
    early: int, late: int, stall: int
) -> None:
    close = (10 * MS_NS, 20 * MS_NS + early, 10 * MS_NS + 2)
    stopped = (30 * MS_NS, 40 * MS_NS + late, 30 * MS_NS + stall)
    for readings in ([close, stopped], [stopped, close]):
        assert alignment_ns(readings) == (early - 2) % MS_NS


def test_nq_16_the_clocks_of_this_process_are_aligned() -> None:
    now_ns = alignment_ns([CLOCKS.read() for _ in range(READINGS)])
    apart_ns = (now_ns - CLOCKS.alignment_ns) % MS_NS
    assert min(apart_ns, MS_NS - apart_ns) < MS_NS // 4


def test_the_engine_is_told_the_time_in_one_place() -> None:
    """What told it wall time would bring the jumps back."""
    folder = Path(tallymark.__file__).parent
    told = [
        f"{file.relative_to(folder)}: {line.strip()}"
        for file in sorted((folder / "server").rglob("*.py"))
        for line in file.read_text().splitlines()
        if re.search(r"clock\.(tell|read)\(", line)
    ]
    assert told == [
        "server/http/reads.py: self.broker.clock.read(*both_ms())",  # a standby's view has no turns
        "server/rehearsal.py: broker.clock.read(*both_ms())",  # begins it, as a replay does
        "server/replay.py: self.broker.clock.read(*both_ms())",
        "server/replay.py: self.broker.clock.read(*both_ms())",  # a standby replays for long
        "server/turns.py: clock.read(wall, monotonic_ms)",
    ]
