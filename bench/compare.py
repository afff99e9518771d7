"""One row against brokers in turn: the runs, their checks and what they cost.

A run is one call of a load generator. It counts every message: one that was lost, came twice, out
of order or not whole fails the run, as does one that was refused, or a time limit that has passed.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.brokers import Running, cpu_s
from bench.lean import Link, short
from bench.machine import busy_s
from bench.scenarios import AMQP, LINKS, NSQ, Row

PAUSE_S = 0.5
"""Between two runs: what the one left to do is not counted as the other's."""
LINK_PREFIX = {"tallymark": "/queues/", "rabbitmq": "/amq/queue/"}
"""What stands before a queue's name in an address of AMQP 1.0; a broker without has none."""
NATS_ROW = "a"
"""NATS without JetStream confirms and keeps nothing: it can be compared in one row."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Programs:
    """The compiled load generators."""

    channels: Path
    links: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. error: None where every message was accounted for. others_cores: processor time per
    second that neither the broker nor the generator used; steal_cores: that the machine's host
    took. confirm_p50_ms, confirm_p99_ms: from publish to confirm."""

    row: str
    broker: str
    run: int
    error: str | None
    messages: int = 0
    seconds: float = 0.0
    msg_per_s: float = 0.0
    cpu_us: float = 0.0
    cpu_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    confirm_p50_ms: float = 0.0
    confirm_p99_ms: float = 0.0
    peak_mib: float = 0.0
    others_cores: float = 0.0
    steal_cores: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def speaks(broker: Running, row: Row) -> bool:
    """Whether the broker can be measured by this row."""
    if broker.name == "nats":
        return row.name == NATS_ROW
    if row.protocol == LINKS:
        return broker.name in LINK_PREFIX
    if row.protocol == NSQ:
        return broker.nsq_port is not None
    return broker.name != "nsqd"


def measure(
    programs: Programs, broker: Running, row: Row, run: int, messages: int, limit_s: float
) -> Outcome:
    """One run, whatever comes of it. limit_s: seconds after which it counts as failed."""
    queue = f"bench-{row.name}-{next(_numbers)}"
    names = [queue] if row.protocol == LINKS else []
    command = _command(programs, broker, row, messages, queue)
    try:
        _declare(broker, names, durable="--durable" in row.flags)
        before = _Taken.so_far(broker)
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        taken = _Taken.so_far(broker).since(before)
        if done.returncode != 0 or not done.stdout.strip():
            return Outcome(row.name, broker.name, run, _said(done))
        found = json.loads(done.stdout)
        _delete(broker, names)
    except subprocess.TimeoutExpired:
        return Outcome(row.name, broker.name, run, f"not done within {limit_s:.0f} s")
    except (OSError, ValueError) as error:
        return Outcome(row.name, broker.name, run, f"{type(error).__name__}: {error}")
    time.sleep(PAUSE_S)
    return _outcome(row, broker, run, messages * row.deliveries, found, taken)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Processor seconds: what others than broker and generators took, and the machine's host."""

    wall_s: float
    others_s: float
    steal_s: float

    @classmethod
    def so_far(cls, broker: Running) -> _Taken:
        busy, steal = busy_s()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        known = cpu_s(broker.pid) + ended.ru_utime + ended.ru_stime
        return cls(time.perf_counter(), busy - known, steal)

    def since(self, before: _Taken) -> _Taken:
        return _Taken(
            self.wall_s - before.wall_s,
            max(0.0, self.others_s - before.others_s),
            max(0.0, self.steal_s - before.steal_s),
        )


def _outcome(
    row: Row, broker: Running, run: int, counted: int, found: dict[str, Any], taken: _Taken
) -> Outcome:
    cpu_us = float(found["broker_cpu_us_per_msg"])
    confirm = found["confirm_us"]
    return Outcome(
        row.name,
        broker.name,
        run,
        _fault(row, found),
        messages=counted,
        seconds=found["seconds"],
        msg_per_s=found["msg_per_s"],
        cpu_us=cpu_us,
        cpu_s=round(cpu_us * counted / 1e6, 2),
        p50_ms=found["latency_us"]["p50"] / 1e3,
        p99_ms=found["latency_us"]["p99"] / 1e3,
        confirm_p50_ms=confirm["p50"] / 1e3,
        confirm_p99_ms=confirm["p99"] / 1e3,
        peak_mib=round(found["broker_rss_peak_kb"] / 1024, 1),
        others_cores=round(taken.others_s / taken.wall_s, 2),
        steal_cores=round(taken.steal_s / taken.wall_s, 2),
    )


def _fault(row: Row, found: dict[str, Any]) -> str | None:
    """The counts that must be zero and are not, or None."""
    wrong = ["lost", "duplicates", "nacked", "refused"] + ["reordered"] * row.is_ordered
    told = [f"{found[name]} {name}" for name in wrong if found.get(name)]
    return ", ".join(told) or None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    try:
        found = json.loads(done.stdout)
        told = ", ".join(
            f"{found[name]} {name}"
            for name in ("published", "confirmed", "received", "lost", "duplicates")
            if name in found
        )
    except ValueError:
        told = ""
    return f"exit {done.returncode}: {told} {done.stderr.strip()[-300:]}".strip()


def _command(programs: Programs, broker: Running, row: Row, messages: int, queue: str) -> list[str]:
    about = ["--broker-pid", str(broker.pid), "--messages", str(messages), "--queue", queue]
    if row.protocol == LINKS:
        command = [str(programs.links), "--port", str(broker.port), *about, *row.flags.split()]
        return [*command, "--address-prefix", LINK_PREFIX[broker.name]]
    proto = "nats" if broker.name == "nats" else row.protocol
    port = broker.nsq_port if proto == NSQ else broker.port
    command = [str(programs.channels), "--proto", proto, "--port", str(port), "--json", *about]
    return command + row.flags.split() + ["--delete"] * (proto == AMQP)


def _declare(broker: Running, names: list[str], durable: bool) -> None:
    """Declare queues over AMQP 0-9-1: a link of AMQP 1.0 wants one that is there."""
    if names:
        link = Link(broker.port)
        link.open_channel(1)
        for name in names:
            link.declare_queue(name, durable=durable)
        link.close()


def _delete(broker: Running, names: list[str]) -> None:
    if names:
        link = Link(broker.port)
        link.open_channel(1)
        for name in names:
            link.call(1, (50, 40), b"\0\0" + short(name) + b"\0")
        link.close()
