#!/usr/bin/env python3
"""What a broker costs that has nothing to do: start-up, idle queues, idle connections.

idle.py [--queues 10000] [--connections 1000] [--seconds 10] [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, cpu_s, memory_mib, scratch, tallymark
from bench.lean import Link, method, short

STARTS = 5
PIPELINED = 500


def declare_queues(port: int, count: int) -> float:
    """Declare durable queues idle.0 ... ; returns how many a second."""
    link = Link(port)
    link.open_channel(1)
    began = time.perf_counter()
    for first in range(0, count, PIPELINED):
        numbers = range(first, min(first + PIPELINED, count))
        arguments = (b"\0\0" + short(f"idle.{number}") + b"\2" + bytes(4) for number in numbers)
        link.socket.sendall(b"".join(method(1, (50, 10), each) for each in arguments))
        for _ in numbers:
            link.wait((50, 11))
    seconds = time.perf_counter() - began
    link.close()
    return count / seconds


def connect_consumers(port: int, count: int, queues: int, heartbeat_s: int) -> list[Link]:
    """Connections that each wait for messages of one queue."""
    links = []
    for number in range(count):
        link = Link(port, heartbeat_s=heartbeat_s)
        link.open_channel(1, prefetch=10)
        link.consume(1, f"idle.{number % queues}")
        links.append(link)
    return links


def observe(name: str, broker: Running, seconds: float) -> dict[str, object]:
    """CPU and memory of a broker that is left alone for a while."""
    time.sleep(1.0)  # let what was just done come to rest
    before = cpu_s(broker.pid)
    time.sleep(seconds)
    used = cpu_s(broker.pid) - before
    row: dict[str, object] = {
        "state": name,
        "cpu_percent": round(100 * used / seconds, 2),
        "rss_mib": round(memory_mib(broker.pid, "VmRSS"), 1),
    }
    print(json.dumps(row), flush=True)
    return row


def starts(folder: Path, flags: list[str]) -> dict[str, float]:
    """Seconds from exec to the ready line, and CPU seconds used until then (they stay the same
    on a busy machine); medians of starts on new folders."""
    seconds, used = [], []
    for number in range(STARTS):
        with tallymark(folder / f"start-{number}", *flags) as broker:
            seconds.append(broker.start_s)
            used.append(cpu_s(broker.pid))
    return {
        "start_s": round(statistics.median(seconds), 3),
        "start_max_s": round(max(seconds), 3),
        "start_cpu_s": round(statistics.median(used), 3),
    }


def main() -> int:
    """Prints JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with scratch() as folder:
        print(json.dumps(starts(folder, args.flags)), flush=True)
        with tallymark(folder / "idle", *args.flags) as broker:
            look: Callable[[str], object] = lambda name: observe(name, broker, args.seconds)
            look(f"nothing ({broker.note})")
            rate = declare_queues(broker.port, args.queues)
            print(json.dumps({"declares_per_s": round(rate)}), flush=True)
            look(f"{args.queues} queues")
            links = connect_consumers(broker.port, args.connections, args.queues, 0)
            look(f"and {args.connections} consumers without heartbeats")
            for link in links:
                link.drop()
            links = connect_consumers(broker.port, args.connections, args.queues, 60)
            look(f"and {args.connections} consumers with heartbeats every 60 s")
            for link in links:
                link.drop()
            look(f"{args.queues} queues, consumers gone")
        with tallymark(folder / "idle", *args.flags) as broker:
            print(json.dumps({f"start_s with {args.queues} queues": round(broker.start_s, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
