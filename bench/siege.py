#!/usr/bin/env python3
"""One hostile client's effect on another: each behaviour of tests/siege beside a paced publisher.

The publisher sends 200 persistent messages a second with confirms, each on its schedule whether or
not the ones before it were confirmed, and consumes them; its p99 is taken from the moment a message
was due. For each behaviour it is measured in quiet, then under attack. A row fails

    where p99 is above 3 times that of the quiet time and above 50 ms,
    where the broker takes more memory than its limit,
    where it is not there afterwards: it ended, does not publish and deliver, an account does not
    add up, its log tells of a fault of its own, or connections of the attackers stay.

The attackers are a process of their own with a lower priority. The broker is a new one every SHARED
behaviours, and after one that failed. The table goes into docs/siege.md.

    siege.py [--seconds 1.8] [--only REGEX] [--rabbitmq | --both] [--out docs/siege.md]

Rows of RabbitMQ, where it is installed, are of its AMQP 0-9-1, AMQP 1.0 and management plugins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import scratch
from bench.lean import ACK, DELIVER, PERSISTENT, ClosedByBroker, Link, publish
from tests.siege.attack import Behaviour, Count, Target, attack
from tests.siege.behaviours import ALL
from tests.siege.brokers import (
    MAX_MEMORY,
    MIB,
    call,
    faults,
    provided,
    renew,
    set_up,
    target_of,
    unbalanced,
)
from tests.support.ports import reserved
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq

ROOT = Path(__file__).resolve().parents[1]
RATE = 200
"""Messages a second."""
QUEUE = "siege.victim"
QUIET_S = 0.8
DRAIN_S = 5.0
"""Longest wait for what is unconfirmed when an attack ends."""
CALM_S = 10.0
"""Longest wait for the attackers' connections and what they made to go."""
ANSWER_S = 5.0
"""Longest wait for an answer over HTTP."""
RATIO, LEAST_MS = 3.0, 50.0
SPOILT_MS = 1000.0
"""Worst time after which a broker is replaced: what it still has to do would count for the next
row."""
GROWTH_MIB = 2 * MAX_MEMORY // MIB
SHARED = 12
NICE = 10
FILES = 8192
MARKS = ("<!-- {} begins: written by bench/siege.py -->", "<!-- {} ends -->")


@dataclass
class Row:
    """One behaviour's result; times in ms, memory in MiB above the broker's start."""

    name: str
    quiet_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0
    newcomer: str = ""
    """How long another client's log-in took, or why it failed."""
    growth: float = 0.0
    steps: int = 0
    cuts: int = 0
    alarms: str = ""
    after: str = ""
    """What is wrong afterwards."""

    @property
    def verdict(self) -> str:
        wrong = []
        if self.p99_ms > max(RATIO * self.quiet_ms, LEAST_MS):
            wrong.append("p99")
        if self.growth > GROWTH_MIB:
            wrong.append("memory")
        if self.after:
            wrong.append(self.after)
        return "FAILS: " + ", ".join(wrong) if wrong else "holds"


class Victim:
    """The other client: publishes on schedule, consumes, and notes when each was confirmed."""

    def __init__(self, port: int) -> None:
        self.link = Link(port)
        self.link.open_channel(1, confirms=True)
        self.link.declare_queue(QUEUE)
        self.link.consume(1, QUEUE, no_ack=True)
        self.link.set_loose()
        self._due: dict[int, float] = {}
        """When what is not confirmed was due, by tag."""
        self._tag = 0
        self._sent = self._delivered = 0
        self._message = publish(1, "", QUEUE, PERSISTENT, b"x" * 200)

    def measure(self, seconds: float) -> list[float]:
        """Seconds from due to confirmed, of those that became due in this time."""
        took: list[float] = []
        began = time.perf_counter()
        number, end = 0, began + seconds
        while True:
            now = time.perf_counter()
            if now >= end and (not self._due or now >= end + DRAIN_S):
                break
            while now < end and began + number / RATE <= now:
                self._tag += 1
                self._due[self._tag] = began + number / RATE
                self.link.outbox += self._message
                number += 1
            self.link.flush()
            self._read(took, now)
            time.sleep(0.0005)
        took += [now - due for due in self._due.values()]
        self._due.clear()
        return took

    def _read(self, took: list[float], now: float) -> None:
        if not self.link.fill():
            raise ConnectionError("the broker hung up on the other client")
        for name, _, tag, multiple, _ in self.link.events():
            if name == DELIVER:
                self._delivered += 1
            elif name == ACK:
                tags = [one for one in self._due if one <= tag] if multiple else [tag]
                took += [now - self._due.pop(one) for one in tags if one in self._due]

    def close(self) -> None:
        self.link.drop()


class Fort:
    """A broker that is attacked."""

    name: str
    target: Target
    pid: int

    def alarms(self) -> str:
        raise NotImplementedError

    def wrong(self) -> str:
        """What is wrong with it now, by its own word; "" if nothing."""
        raise NotImplementedError

    def is_calm(self) -> bool:
        """Whether nobody but the other client is connected."""
        raise NotImplementedError


class Ours(Fort):
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.target = target_of(broker)
        self.pid = broker.pid
        self.name = f"Tallymark, {'compiled' if broker.ready['compiled'] else 'interpreted'}"
        self._old_faults = 0

    def alarms(self) -> str:
        found = json.loads(call(self.target.ports["http"], "GET", "/healthz", None, ANSWER_S))
        return ", ".join(found["alarms"])

    def wrong(self) -> str:
        if not self.broker.is_running:
            return "ended"
        found = faults(self.broker)
        new, self._old_faults = found[self._old_faults :], len(found)
        if new:
            print(new[-1][:3000], file=sys.stderr)
            return f"{len(new)} faults in its log"
        return "account" if unbalanced(self.broker) else ""

    def is_calm(self) -> bool:
        _, found = self.broker.http("GET", "/api/tallymark/connections")
        return len(found["connections"]) <= 1


class Theirs(Fort):
    def __init__(self, rabbit: RabbitProcess, http_port: int) -> None:
        self.rabbit = rabbit
        self.name = f"RabbitMQ {rabbit.version}"
        self.pid = rabbit.pid
        self.target = Target({"amqp": rabbit.port, "http": http_port}, is_rabbitmq=True)

    def alarms(self) -> str:
        (node,) = json.loads(call(self.target.ports["http"], "GET", "/api/nodes", None, ANSWER_S))
        return ", ".join(name for name in ("mem", "disk_free") if node.get(f"{name}_alarm"))

    def wrong(self) -> str:
        return "" if self.rabbit.is_running else "ended"

    def is_calm(self) -> bool:
        port = self.target.ports["http"]
        return len(json.loads(call(port, "GET", "/api/connections", None, ANSWER_S))) <= 1


@contextmanager
def ours(folder: Path) -> Iterator[Fort]:
    folder.mkdir()
    broker = provided(folder, is_forked=False)
    with broker:
        set_up(target_of(broker))
        yield Ours(broker)


@contextmanager
def theirs(folder: Path) -> Iterator[Fort]:
    script = find_rabbitmq()
    assert script is not None, "RabbitMQ is not installed"
    http_port = reserved()
    settings = (
        "vm_memory_high_watermark.absolute = 256MiB",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {http_port}",
        "handshake_timeout = 2000",
        "max_message_size = 16777216",
        "connection_max = 500",
    )
    plugins = ("rabbitmq_management", "rabbitmq_amqp1_0")
    with RabbitProcess(script, folder, plugins, settings, is_measured=True) as rabbit:
        fort = Theirs(rabbit, http_port)
        set_up(fort.target)
        yield fort


Counters = Any
"""Of multiprocessing: steps and cuts."""


def besiege(chosen: Behaviour, target: Target, counters: Counters) -> None:
    """The process of the attackers; ended by SIGTERM."""
    os.nice(NICE)

    class Shared(Count):
        def __setattr__(self, name: str, value: int) -> None:
            counters[0 if name == "steps" else 1] = value
            super().__setattr__(name, value)

    asyncio.run(attack(chosen, target, Shared()))


def newcomer(port: int, told: list[str]) -> None:
    began = time.perf_counter()
    try:
        Link(port).close()
        told.append(f"{(time.perf_counter() - began) * 1000:.0f}")
    except (OSError, ClosedByBroker) as error:
        told.append("refused" if isinstance(error, ConnectionError) else str(error)[:20])


def p99(values: list[float]) -> float:
    """ms"""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000 if ordered else 0.0


def memory(pid: int, line: str) -> float:
    """MiB; nothing where it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(rf"{line}:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def measure(fort: Fort, chosen: Behaviour, seconds: float, base_mib: float) -> Row:
    row = Row(chosen.name)
    port = fort.target.ports["amqp"]
    victim = Victim(port)
    try:
        row.quiet_ms = p99(victim.measure(QUIET_S))
        forget_peak(fort.pid)
        fork = multiprocessing.get_context("fork")
        counters = fork.RawArray("q", 2)  # without a lock: its holder may be ended
        attackers = fork.Process(target=besiege, args=(chosen, fort.target, counters))
        attackers.start()
        told: list[str] = []
        guest = threading.Timer(seconds / 2, newcomer, (port, told))
        guest.start()
        try:
            took = victim.measure(seconds)
            row.growth = memory(fort.pid, "VmHWM") - base_mib
            row.alarms = attempt(fort.alarms)
        finally:
            died = not attackers.is_alive()
            attackers.terminate()
            attackers.join()
        guest.join()
        row.newcomer = told[0]
        row.p99_ms, row.worst_ms = p99(took), max(took) * 1000
        row.steps, row.cuts = counters[0], counters[1]
        if died or not row.steps:
            row.after = "the attack itself failed"
        row.after = row.after or aftermath(fort, victim)
    except (OSError, ClosedByBroker) as error:
        row.after = f"other client: {error}"
    finally:
        victim.close()
    return row


def attempt(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except OSError as error:
        return f"no answer: {error}"


def aftermath(fort: Fort, victim: Victim) -> str:
    """What is wrong when the attackers have gone; "" if nothing."""
    deadline = time.monotonic() + CALM_S
    while not (calm := fort.is_calm()) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not calm:
        return f"connections stay for {CALM_S:g} s"
    victim.measure(0.02)
    fresh = Victim(fort.target.ports["amqp"])
    fresh.measure(0.02)
    fresh.close()
    renew(fort.target, CALM_S)
    return fort.wrong()


def siege(
    start: Callable[[Path], Any], chosen: list[Behaviour], seconds: float
) -> tuple[str, list[Row]]:
    """The broker's name, and a row for each behaviour."""
    rows: list[Row] = []
    name = ""
    with scratch() as folder:
        while len(rows) < len(chosen):
            with start(folder / str(len(rows))) as fort:
                name = fort.name
                base_mib = memory(fort.pid, "VmRSS")
                for one in chosen[len(rows) : len(rows) + SHARED]:
                    row = measure(fort, one, seconds, base_mib)
                    rows.append(row)
                    print(f"{name}: {line(one, row)}", flush=True)
                    if row.after or row.growth > GROWTH_MIB or row.worst_ms > SPOILT_MS:
                        break
    return name, rows


def line(one: Behaviour, row: Row) -> str:
    return (
        f"| {one.port} | {one.title} | {row.quiet_ms:.1f} | {row.p99_ms:.1f} | {row.worst_ms:.0f} "
        f"| {row.newcomer} | {row.growth:.0f} | {row.steps:,} | {row.cuts:,} | {row.alarms} "
        f"| {row.verdict} |"
    )


HEAD = (
    "| port | behaviour | p99 quiet, ms | p99, ms | worst, ms | log-in, ms | memory, MiB | done "
    "| cut | alarms | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def table(name: str, chosen: list[Behaviour], rows: list[Row], seconds: float) -> str:
    failing = sum(row.verdict != "holds" for row in rows)
    version = platform.python_version()
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    loads = " ".join(f"{value:.1f}" for value in os.getloadavg())
    begin = (
        f"{name}, {when}, {os.cpu_count()} cores, {platform.machine()}, Python {version}, load "
        f"{loads}; {seconds:g} s of each. {len(rows) - failing} of {len(rows)} hold."
    )
    return "\n".join([begin, "", HEAD, *map(line, chosen, rows)])


def write(page: Path, mark: str, text: str) -> None:
    """Put the table in place of the one that is there."""
    first, last = (one.format(mark) for one in MARKS)
    whole = page.read_text()
    before, found, rest = whole.partition(first)
    _, ended, after = rest.partition(last)
    if not found or not ended:
        raise SystemExit(f"{page}: expected the lines {first!r} and {last!r}")
    page.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")


def main() -> int:
    """Exit code 1 where one of ours fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.8, help="of each attack")
    parser.add_argument("--only", default="", help="names or titles that match this")
    parser.add_argument("--rabbitmq", action="store_true", help="RabbitMQ in place of ours")
    parser.add_argument("--both", action="store_true", help="RabbitMQ after ours")
    parser.add_argument("--out", type=Path, help="the page that has the tables")
    asked = parser.parse_args()
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (min(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2,
    )
    wanted = [
        one for one in ALL if re.search(asked.only, one.name) or re.search(asked.only, one.title)
    ]
    failed = False
    if not asked.rabbitmq:
        name, rows = siege(ours, wanted, asked.seconds)
        failed = any(row.verdict != "holds" for row in rows)
        report(asked.out, "ours", table(name, wanted, rows, asked.seconds))
    if asked.rabbitmq or asked.both:
        theirs_too = [one for one in wanted if one.is_for_rabbitmq]
        name, rows = siege(theirs, theirs_too, asked.seconds)
        report(asked.out, "rabbitmq", table(name, theirs_too, rows, asked.seconds))
    return int(failed)


def report(page: Path | None, mark: str, text: str) -> None:
    print(text)
    if page is not None:
        write(page, mark, text)


if __name__ == "__main__":
    sys.exit(main())
