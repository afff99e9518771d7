#!/usr/bin/env python3
"""Traffic that the scenarios a to f leave out: interleaved routes, properties that vary.

1 KiB persistent messages with confirms (window 1000) and acknowledgements (prefetch 1000) over one
connection each for publishing and consuming. All publishes are built before the clock starts; each
body holds a sequence number, so loss, duplicates and order are checked for every message. CPU is
the broker's own, descendants included.

    patterns.py NAME=PORT:PID ... [--patterns keys-1q,props] [--messages 100000] [--runs 1]
                [--ack-every 100] [--out results.jsonl]
"""

from __future__ import annotations

import argparse
import json
import random
import select
import statistics
import struct
import sys
import time
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import cpu_s, memory_mib
from bench.lean import ACK, DELIVER, PERSISTENT, Link, publish, settle, short

SIZE = 1024
WINDOW = 1000
PREFETCH = 1000
BATCH = 64 * 1024
STALL_S = 30.0
SETTLE_S = 0.3
_HEAD = struct.Struct(">QI")


@dataclass(frozen=True, slots=True)
class Pattern:
    """keys: how many routing keys, drawn at random for each message; key i goes to queue
    i % queues of a topic exchange."""

    name: str
    keys: int
    queues: int
    properties_vary: bool
    about: str


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern("plain", 1, 1, False, "one route, equal properties (as scenario b)"),
        Pattern("keys-1q", 100, 1, False, "100 random keys, one queue"),
        Pattern("keys-10q", 10, 10, False, "10 random keys, 10 queues"),
        Pattern("keys-100q", 100, 100, False, "100 random keys, 100 queues"),
        Pattern("props", 1, 1, True, "one route, properties vary"),
        Pattern("keys-1q+props", 100, 1, True, "100 keys, one queue, properties vary"),
        Pattern("keys-10q+props", 10, 10, True, "10 keys, 10 queues, properties vary"),
        Pattern("keys-100q+props", 100, 100, True, "100 keys, 100 queues, properties vary"),
    )
}


@dataclass(slots=True)
class Result:
    """One run of one pattern."""

    broker: str
    pattern: str
    ack_every: int
    messages: int
    seconds: float = 0.0
    msg_per_s: float = 0.0
    broker_cpu_us_per_msg: float = 0.0
    broker_peak_mib: float = 0.0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0

    @property
    def is_sound(self) -> bool:
        return not self.lost and not self.duplicates and not self.reordered


def varying_properties(sequence: int, chance: random.Random) -> bytes:
    """message-id, timestamp, type, delivery-mode and headers with a trace id: no two alike."""
    trace = f"{chance.getrandbits(128):032x}"
    headers = short("trace-id") + b"S" + struct.pack(">I", len(trace)) + trace.encode()
    headers += short("attempt") + b"I" + struct.pack(">i", sequence % 3)
    flags = 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6 | 1 << 5
    return b"".join(
        (
            struct.pack(">HI", flags, len(headers)),
            headers,
            b"\x02",
            short(f"{chance.getrandbits(64):016x}-{sequence}"),
            struct.pack(">Q", 1_700_000_000 + sequence // 1000),
            short(f"order.{('created', 'paid', 'sent')[sequence % 3]}"),
        )
    )


def build(pattern: Pattern, exchange: str, messages: int, seed: int) -> tuple[bytes, array[int]]:
    """All publishes end to end, and where each begins (one more for the end)."""
    chance = random.Random(seed)
    keys = [f"k.{number}" for number in range(pattern.keys)]
    padding = bytes(random.Random(1).randbytes(SIZE - _HEAD.size))
    parts: list[bytes] = []
    cuts = array("Q", [0])
    for sequence in range(messages):
        key = chance.randrange(pattern.keys)
        body = _HEAD.pack(sequence, key) + padding
        properties = PERSISTENT
        if pattern.properties_vary:
            properties = varying_properties(sequence, chance)
        parts.append(publish(1, exchange, keys[key], properties, body))
        cuts.append(cuts[-1] + len(parts[-1]))
    return b"".join(parts), cuts


class Check:
    """Which messages arrived, and whether each queue kept its order."""

    def __init__(self, pattern: Pattern, messages: int) -> None:
        self.seen = bytearray(messages)
        self.count = 0
        self.duplicates = 0
        self.reordered = 0
        self._queues = pattern.queues
        self._last = [-1] * pattern.queues

    def arrived(self, body: bytes) -> None:
        sequence, key = _HEAD.unpack_from(body)
        if len(body) != SIZE or self.seen[sequence]:
            self.duplicates += 1
            return
        self.seen[sequence] = 1
        self.count += 1
        queue = key % self._queues
        if sequence < self._last[queue]:
            self.reordered += 1
        self._last[queue] = sequence


class Stage:
    """Exchange and queues of one run; taken down at the end."""

    def __init__(self, port: int, pattern: Pattern) -> None:
        self.exchange = f"bench.{pattern.name}.{time.time_ns()}"
        self.queues = [f"{self.exchange}.{number}" for number in range(pattern.queues)]
        self._link = Link(port)
        self._link.open_channel(1)
        durable = b"\x02" + bytes(4)
        self._link.call(1, (40, 10), b"\0\0" + short(self.exchange) + short("topic") + durable)
        for queue in self.queues:
            self._link.declare_queue(queue)
        for key in range(pattern.keys):
            bound = short(self.queues[key % pattern.queues]) + short(self.exchange)
            self._link.call(1, (50, 20), b"\0\0" + bound + short(f"k.{key}") + bytes(5))

    def take_down(self) -> None:
        for queue in self.queues:
            self._link.call(1, (50, 40), b"\0\0" + short(queue) + b"\0")
        self._link.call(1, (40, 20), b"\0\0" + short(self.exchange) + b"\0")
        self._link.close()


def measure(
    name: str, port: int, pid: int, pattern: Pattern, messages: int, ack_every: int, seed: int = 1
) -> Result:
    """Run one pattern against a running broker.

    Raises:
        TimeoutError: nothing moved for STALL_S.
    """
    stage = Stage(port, pattern)
    data, cuts = build(pattern, stage.exchange, messages, seed)
    source, sink = Link(port), Link(port)
    source.open_channel(1, confirms=True)
    sink.open_channel(1, prefetch=PREFETCH)
    for queue in stage.queues:
        sink.consume(1, queue)
    check = Check(pattern, messages)
    source.set_loose()
    sink.set_loose()
    cpu, began = cpu_s(pid), time.perf_counter()
    pump(source, sink, data, cuts, check, ack_every)
    seconds = time.perf_counter() - began
    time.sleep(SETTLE_S)  # what the broker still does for this run belongs to it
    cpu = cpu_s(pid) - cpu
    source.close()
    sink.close()
    stage.take_down()
    return Result(
        broker=name,
        pattern=pattern.name,
        ack_every=ack_every,
        messages=messages,
        seconds=round(seconds, 3),
        msg_per_s=round(messages / seconds),
        broker_cpu_us_per_msg=round(cpu / messages * 1e6, 3),
        broker_peak_mib=round(memory_mib(pid), 1),
        lost=messages - check.count,
        duplicates=check.duplicates,
        reordered=check.reordered,
    )


def pump(
    source: Link, sink: Link, data: bytes, cuts: array[int], check: Check, ack_every: int
) -> None:
    """Publish all, within the window, and consume all."""
    messages = len(cuts) - 1
    sent = confirmed = unacked = last_tag = 0
    view = memoryview(data)
    moved = time.monotonic()
    while confirmed < messages or check.count < messages:
        limit = min(cuts[min(confirmed + WINDOW, messages)], sent + BATCH)
        writers = [source.socket] if sent < limit else []
        if sink.outbox:
            writers.append(sink.socket)
        readable, writable, _ = select.select([source.socket, sink.socket], writers, [], 1.0)
        if not readable and not writable and time.monotonic() - moved > STALL_S:
            raise TimeoutError(f"{confirmed} confirmed, {check.count} received of {messages}")
        moved = time.monotonic() if readable or writable else moved
        if source.socket in readable:
            assert source.fill(), "the broker closed the publisher's connection"
            for name, _, tag, _, _ in source.events():
                assert name == ACK, f"method {name} instead of a confirm"
                confirmed = max(confirmed, tag)
        if sink.socket in readable:
            assert sink.fill(), "the broker closed the consumer's connection"
            for name, _, tag, _, body in sink.events():
                assert name == DELIVER, f"method {name} instead of a delivery"
                check.arrived(body)
                last_tag = tag
                unacked += 1
                if unacked >= ack_every:
                    sink.outbox += settle(1, ACK, tag, ack_every > 1)
                    unacked = 0
        if unacked and check.count == messages:
            sink.outbox += settle(1, ACK, last_tag, 1)
            unacked = 0
        if source.socket in writable:
            sent += source.socket.send(view[sent:limit])
        sink.flush()


def table(results: Iterable[Result]) -> str:
    """Medians by pattern and broker, as Markdown."""
    rows: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        rows.setdefault((result.pattern, result.ack_every, result.broker), []).append(result)
    lines = [
        "| pattern | ack every | broker | msg/s | CPU us/msg | peak MiB | lost | dup | reordered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (pattern, ack_every, broker), runs in rows.items():
        speed = statistics.median(run.msg_per_s for run in runs)
        cpu = statistics.median(run.broker_cpu_us_per_msg for run in runs)
        peak = max(run.broker_peak_mib for run in runs)
        lines.append(
            f"| {pattern} | {ack_every} | {broker} | {speed:,.0f} | {cpu:.2f} | {peak:.0f} "
            f"| {sum(run.lost for run in runs)} | {sum(run.duplicates for run in runs)} "
            f"| {sum(run.reordered for run in runs)} |"
        )
    return "\n".join(lines)


def run(
    brokers: list[tuple[str, int, int]],
    patterns: list[Pattern],
    messages: int,
    runs: int,
    ack_every: list[int],
    out: Path | None,
) -> list[Result]:
    """All patterns on all brokers in turn, so that a change in the machine's speed hits all."""
    results = []
    for seed in range(runs):
        for pattern in patterns:
            for every in ack_every:
                for name, port, pid in brokers:
                    result = measure(name, port, pid, pattern, messages, every, seed)
                    results.append(result)
                    if out is not None:
                        with out.open("a") as lines:
                            lines.write(json.dumps(asdict(result) | {"run": seed}) + "\n")
    return results


def broker_of(text: str) -> tuple[str, int, int]:
    """NAME=PORT:PID."""
    name, _, where = text.partition("=")
    port, _, pid = where.partition(":")
    return name, int(port), int(pid)


def main() -> int:
    """Exit code 1 when a message was lost, doubled or out of order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("brokers", nargs="+", type=broker_of, metavar="NAME=PORT:PID")
    parser.add_argument("--patterns", default=",".join(PATTERNS))
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--ack-every", default="100", help="one or several, by commas")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    chosen = [PATTERNS[name] for name in args.patterns.split(",")]
    every = [int(count) for count in args.ack_every.split(",")]
    results = run(args.brokers, chosen, args.messages, args.runs, every, args.out)
    print(table(results))
    return 0 if all(result.is_sound for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
