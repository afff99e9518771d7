#!/usr/bin/env python3
"""What it costs to watch subscriptions for slow consumers while nothing happens.

slow_watch.py [--queues 10000] [--seconds 20] [--each 2] [-- FLAGS of tallymark serve]

Every queue is bound to a topic exchange, has an exclusive consumer that holds a message, and more
that wait; limits are on bytes, age and number, and one look a second. The same without limits is
what is to be compared with.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, cpu_s, scratch, tallymark
from bench.lean import ACK, TRANSIENT, Link, method, publish, short

PIPELINED = 250
PER_CONNECTION = 1000
RULES = {
    "delay": 1, "timeunit": "SECONDS", "depth": "1GiB", "message_age": "1d",
    "message_count": 1_000_000, "policy": "delete",
}  # fmt: skip


def subscribe(port: int, first: int, count: int) -> Link:
    """A connection with so many exclusive queues, each bound to a key of its own and consumed."""
    link = Link(port)
    link.open_channel(1, prefetch=1)
    for low in range(first, first + count, PIPELINED):
        names = [f"sub.{number}" for number in range(low, min(low + PIPELINED, first + count))]
        sent = bytearray()
        for name in names:
            sent += method(1, (50, 10), b"\0\0" + short(name) + b"\4" + bytes(4))
            bound = b"\0\0" + short(name) + short("amq.topic") + short(name) + b"\0" + bytes(4)
            sent += method(1, (50, 20), bound)
            sent += method(1, (60, 20), b"\0\0" + short(name) + short(name) + b"\0" + bytes(4))
        link.socket.sendall(sent)
        for _ in names:
            for answer in ((50, 11), (50, 21), (60, 21)):
                link.wait(answer)
    return link


def fill(port: int, queues: int, each: int) -> None:
    """So many messages for every queue."""
    link = Link(port)
    link.open_channel(1, confirms=True)
    for low in range(0, queues, PIPELINED):
        for number in range(low, min(low + PIPELINED, queues)):
            key = f"sub.{number}"
            link.outbox += publish(1, "amq.topic", key, TRANSIENT, b"message!") * each
        link.socket.sendall(link.outbox)
        link.outbox.clear()
        expected, seen = min(low + PIPELINED, queues) * each, 0
        while seen < expected:
            link.fill()
            for event in link.events():
                if event[0] == ACK:
                    seen = max(seen, event[2])
    link.close()


def look(name: str, broker: Running, seconds: float) -> None:
    """CPU of a broker that is left alone for a while."""
    time.sleep(3.0)  # what was just done is looked at once
    before = cpu_s(broker.pid)
    time.sleep(seconds)
    used = cpu_s(broker.pid) - before
    print(json.dumps({"state": name, "cpu_percent": round(100 * used / seconds, 3)}), flush=True)


def main() -> int:
    """Prints JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    for name, rules in (("without limits", {}), ("watched, a look a second", RULES)):
        flags = [*args.flags, "--slow-consumers", json.dumps(rules)] if rules else args.flags
        with scratch() as folder, tallymark(folder / "broker", *flags) as broker:
            links = [
                subscribe(broker.port, first, min(PER_CONNECTION, args.queues - first))
                for first in range(0, args.queues, PER_CONNECTION)
            ]
            look(f"{args.queues} empty subscriptions, {name} ({broker.note})", broker, args.seconds)
            fill(broker.port, args.queues, args.each)
            look(f"{args.each} messages in each, {name}", broker, args.seconds)
            for link in links:
                link.drop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
