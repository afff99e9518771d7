#!/usr/bin/env python3
"""Rows b, c and f, and large messages, with the journal in its folder and on PostgreSQL.

Two brokers run at once, one for each home, and take turns, so that a change in the machine's speed
hits both. PostgreSQL is a primary and two synchronous standbys, any one of which must have a
commit, all on this machine and synced to its disk. Beside the broker's CPU stands that of the
three servers together, and the bytes of write-ahead log, per message.

    homes.py [--rows bcfw] [--runs 3] [--scale 1.0] [-- FLAGS of both brokers]

Row w is 64 KiB durable, window and prefetch 200: megabytes a second that are confirmed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, scratch, tallymark
from bench.loadgen import CHANNELS, build
from bench.scenarios import EACH, SOME
from tests.support.postgresql import MISSING, Cluster, Server, find_postgresql
from tests.support.process import cpu_seconds, ended_cpu_seconds

HOMES = ("local", "postgresql")
ROWS = {
    "b": (300_000, SOME),
    "c": (300_000, EACH),
    "f": (40_000, f"{EACH} --rate 2000"),
    "w": (30_000, "--size 65536 --persistent --durable --confirm-window 200 --prefetch 200"
          " --ack-every 10"),
}  # fmt: skip
"""Messages, and flags of the load generator."""


class Servers:
    """What the database's servers have used so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cpu_s(self) -> float:
        """User and system time of their processes, also of those that have ended."""
        return sum(map(server_cpu_s, self._cluster.servers))

    def wal_bytes(self) -> int:
        asked = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
        return int(self._cluster.primary.run(asked))


def server_cpu_s(server: Server) -> float:
    """User and system time of a server. What a process had that has ended is with the postmaster,
    from the moment in which it is gone: one that goes while this reads is read again."""
    while True:
        pids = server.pids()
        try:
            used = sum(map(cpu_seconds, pids)) + ended_cpu_seconds(server.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if server.pids() == pids:
            return used


def measured(
    program: str, broker: Running, servers: Servers, row: str, messages: int, queue: str
) -> dict[str, Any]:
    """One run. Raises RuntimeError where messages were lost or the broker refused."""
    command = [program, "--proto", "amqp", "--port", str(broker.port), "--json", "--delete"]
    command += ["--broker-pid", str(broker.pid), "--messages", str(messages), "--queue", queue]
    command += ROWS[row][1].split()
    cpu_s, wal = servers.cpu_s(), servers.wal_bytes()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode} {done.stdout} {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    found["servers_us"] = (servers.cpu_s() - cpu_s) / messages * 1e6
    found["wal_bytes"] = (servers.wal_bytes() - wal) / messages
    return found


def table(rows: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Medians; the ratio is the broker's CPU per message to that with the journal in its folder."""
    lines = [
        "| row | home | msg/s | MB/s | broker CPU us/msg | ratio | servers CPU us/msg "
        "| WAL B/msg | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (row, home), runs in rows.items():

        def median(*keys: str, runs: list[dict[str, Any]] = runs) -> float:
            values: list[Any] = runs
            for key in keys:
                values = [value[key] for value in values]
            return float(statistics.median(values))

        flags = ROWS[row][1].split()
        size = int(flags[flags.index("--size") + 1])
        cpu = median("broker_cpu_us_per_msg")
        beside = [run["broker_cpu_us_per_msg"] for run in rows[row, "local"]]
        lines.append(
            f"| {row} | {home} | {median('msg_per_s'):,.0f} "
            f"| {median('msg_per_s') * size / 1e6:.1f} | {cpu:.2f} "
            f"| {cpu / statistics.median(beside):.2f} | {median('servers_us'):.1f} "
            f"| {median('wal_bytes'):,.0f} | {median('latency_us', 'p50') / 1e3:.2f} "
            f"| {median('latency_us', 'p99') / 1e3:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="bcfw")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    if find_postgresql() is None:
        sys.exit(MISSING)
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ExitStack() as held:
        cluster = held.enter_context(Cluster(standbys=2, settings={}))
        folder = held.enter_context(scratch())
        brokers = {
            "local": held.enter_context(tallymark(folder / "local", *args.flags)),
            "postgresql": held.enter_context(
                tallymark(folder / "copy", "--journal", cluster.url(), *args.flags)
            ),
        }
        program = str(build(CHANNELS, folder))
        print(f"tallymark {brokers['local'].note}", flush=True)
        servers = Servers(cluster)
        for number in range(args.runs):
            for row in args.rows:
                messages = int(ROWS[row][0] * args.scale)
                for home in HOMES:
                    found = measured(
                        program, brokers[home], servers, row, messages, f"bench-{row}-{number}"
                    )
                    rows.setdefault((row, home), []).append(found)
    print(table(rows))


if __name__ == "__main__":
    main()
