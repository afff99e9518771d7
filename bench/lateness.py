#!/usr/bin/env python3
"""How late messages expire while 10,000 queues have a time to live, and what those queues cost.

Durable queues with TTLs all different; persistent messages at a steady rate, each to a queue drawn
at random, so that something expires at every moment; a consumer behind the dead-letter exchange.
Lateness is the time of arrival there less the time of publishing less the TTL: two ways over a
socket, the journal and this client's own delays are in it. What those are by themselves is measured
at the same time: probes, 1 message in 20, go straight to the consumer's queue, and `stall` is how
late this client noticed its own timer.

    lateness.py [--queues 10000] [--rate 2000] [--seconds 30] [--ttl-ms 2000:10000]
                [--idle-seconds 10] [--size 256] [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import json
import random
import select
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, cpu_s, memory_mib, queue_rows, scratch, tallymark
from bench.lean import ACK, DELIVER, PERSISTENT, Link, method, publish, settle, short, table

END = "late.end"
PIPELINED = 500
TICK_S = 0.005
PROBE_EVERY = 20
TARGET_MS = 100.0
EARLY_MS = -1.0
"""The broker's clock has whole milliseconds: a message may be gone in the last one of its TTL."""
GRACE_S = 10.0
"""After the last TTL, until what has not come is lost."""
_BODY = struct.Struct(">dI")
"""Time of publishing, TTL in ms."""


def declare(port: int, ttls: list[int]) -> None:
    """One queue for each TTL, and the one all their letters go to."""
    link = Link(port)
    link.open_channel(1)
    link.declare_queue(END)
    more: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": END}
    for first in range(0, len(ttls), PIPELINED):
        numbers = range(first, min(first + PIPELINED, len(ttls)))
        for number in numbers:
            arguments = table({"x-message-ttl": ttls[number], **more})
            declared = b"\0\0" + short(f"late.{number}") + b"\x02" + arguments
            link.outbox += method(1, (50, 10), declared)
        link.socket.sendall(link.outbox)
        link.outbox.clear()
        for _ in numbers:
            link.wait((50, 11))
    link.close()


def idle(broker: Running, state: str, seconds: float) -> None:
    """CPU of a broker that is left alone."""
    time.sleep(1.0)
    before = cpu_s(broker.pid)
    time.sleep(seconds)
    used = cpu_s(broker.pid) - before
    row = {
        "state": state,
        "cpu_percent": round(100 * used / seconds, 2),
        "rss_mib": round(memory_mib(broker.pid, "VmRSS"), 1),
    }
    print(json.dumps(row), flush=True)


class Load:
    """One connection that publishes at a steady rate, one that consumes what has expired."""

    def __init__(self, port: int, ttls: list[int], rate: float, size: int) -> None:
        self.late_ms: list[float] = []
        self.probe_ms: list[float] = []
        self.stall_ms: list[float] = []
        self.sent = 0
        self._ttls = ttls
        self._rate = rate
        self._padding = bytes(max(0, size - _BODY.size))
        self._chance = random.Random(1)
        self._source, self._sink = Link(port), Link(port)
        self._source.open_channel(1, confirms=True)
        self._sink.open_channel(1)
        self._sink.consume(1, END)
        self._source.set_loose()
        self._sink.set_loose()

    @property
    def arrived(self) -> int:
        return len(self.late_ms) + len(self.probe_ms)

    def run(self, seconds: float) -> None:
        """Publish for so long, then wait for the rest."""
        began = tick = time.time()
        while tick < began + seconds:
            self.stall_ms.append((time.time() - tick) * 1000)
            self._publish(round((tick - began) * self._rate) - self.sent)
            tick += TICK_S
            self._wait_until(tick)
        end = time.time() + max(self._ttls) / 1000 + GRACE_S
        while self.arrived < self.sent and time.time() < end:
            self._wait_until(time.time() + TICK_S)

    def _publish(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            number, ttl_ms = self._chance.randrange(len(self._ttls)), 0
            key = END
            if self.sent % PROBE_EVERY:
                key, ttl_ms = f"late.{number}", self._ttls[number]
            body = _BODY.pack(time.time(), ttl_ms) + self._padding
            self._source.outbox += publish(1, "", key, PERSISTENT, body)
        self._source.flush()

    def _wait_until(self, until: float) -> None:
        links = {link.socket: link for link in (self._source, self._sink)}
        while (left := until - time.time()) > 0:
            writers = [link.socket for link in links.values() if link.outbox]
            readable, writable, _ = select.select(list(links), writers, [], left)
            for socket in readable:
                assert links[socket].fill(), "the broker closed a connection"
            self._take(time.time())
            for socket in writable:
                links[socket].flush()

    def _take(self, now: float) -> None:
        for name, _, tag, _, _ in self._source.events():
            assert name == ACK, f"method {name} instead of a confirm for {tag}"
        last = 0
        for name, _, tag, _, body in self._sink.events():
            assert name == DELIVER, f"method {name} instead of a delivery"
            published, ttl_ms = _BODY.unpack_from(body)
            found = self.late_ms if ttl_ms else self.probe_ms
            found.append((now - published) * 1000 - ttl_ms)
            last = tag
        if last:
            self._sink.outbox += settle(1, ACK, last, 1)
            self._sink.flush()

    def close(self) -> None:
        self._source.close()
        self._sink.close()


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Percentiles and the worst."""
    ordered = sorted(values)
    at = {f"p{share}": ordered[len(ordered) * share // 100] for share in (50, 99)}
    return {f"{name}_{key}_ms": round(value, 1) for key, value in at.items()} | {
        f"{name}_max_ms": round(ordered[-1], 1)
    }


def main() -> int:
    """Prints JSON lines; exit code 1 when a message was lost or expired too early."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=2_000.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ttl-ms", default="2000:10000", help="shortest:longest")
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    low, high = (int(text) for text in args.ttl_ms.split(":"))
    chance = random.Random(2)
    ttls = [chance.randint(low, high) for _ in range(args.queues)]
    with scratch() as folder, tallymark(folder / "data", *args.flags) as broker:
        declare(broker.port, ttls)
        idle(broker, f"{args.queues} empty queues with a TTL", args.idle_seconds)
        load = Load(broker.port, ttls, args.rate, args.size)
        cpu = cpu_s(broker.pid)
        load.run(args.seconds)
        cpu = cpu_s(broker.pid) - cpu
        lost = load.sent - load.arrived
        late = load.late_ms
        row: dict[str, object] = {
            "broker": broker.note,
            "queues": args.queues,
            "rate": args.rate,
            "expired": len(late),
            "lost": lost,
            "over_target": sum(value > TARGET_MS for value in late),
            **spread("late", late),
            "late_min_ms": round(min(late), 1),
            **spread("probe", load.probe_ms),
            **spread("stall", load.stall_ms),
            "cpu_us_per_msg": round(cpu / load.sent * 1e6, 1),
        }
        print(json.dumps(row), flush=True)
        load.close()
        rows = queue_rows(broker)
        held = sum(found["ready"] + found["acquired"] for found in rows.values())
        idle(broker, "the same queues, empty again", args.idle_seconds)
    return 1 if lost or held or min(late) < EARLY_MS else 0


if __name__ == "__main__":
    sys.exit(main())
