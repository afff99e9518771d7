#!/usr/bin/env python3
"""What commits cost: 10 publishes and 10 acknowledgements each, durable, beside RabbitMQ.

Each client takes messages from a queue of its own and publishes as many to another; all is durable
and persistent, and a commit follows the answer to the one before it.

    tx         a transactional channel: publishes, acknowledgements and tx.commit in one write
    tx-each    the same, with a write for each method, as a client in a loop sends them
    confirms   no transaction: publishes with confirms, acknowledged when all are confirmed: what
               it costs without the guarantee

    large      one transaction of many publishes: what it holds in memory before the commit, and how
               long the commit takes

One client shows what a commit costs by itself, ten that transactions share the sync of a block
(group commit). CPU is the broker's own, descendants included. Syncs (fsync, fdatasync) are counted
by strace in a pass of its own, which is slower and not timed. At the end every message must be in
its second queue, once.

    transactions.py [--scenarios tx,tx-each,confirms,large] [--clients 1,10] [--commits 3000]
                    [--messages 300000] [--runs 3] [--size 1024] [--no-rabbitmq] [--no-strace]
                    [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import json
import re
import select
import shutil
import statistics
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import (
    Running,
    cpu_s,
    family,
    memory_mib,
    rabbitmq,
    rabbitmq_installed,
    scratch,
    tallymark,
)
from bench.lean import ACK, DELIVER, PERSISTENT, Link, method, publish, settle, short

EACH = 10
"""Publishes, and acknowledgements, in a commit."""
SELECT, COMMIT, COMMIT_OK = (90, 10), (90, 20), (90, 21)
STALL_S = 60.0
_SEQUENCE = struct.Struct(">Q")


class Client:
    """One connection that moves messages from one queue to another, EACH at a time."""

    def __init__(self, port: int, number: int, scenario: str, commits: int, size: int) -> None:
        self.scenario = scenario
        self.left = commits
        self.source, self.target = f"from.{number}", f"to.{number}"
        self.size = size
        self.link = Link(port)
        self.link.open_channel(1, confirms=scenario == "confirms", prefetch=2 * EACH)
        for name in (self.source, self.target):
            self.link.declare_queue(name)
        self._fill(port, commits * EACH)
        if scenario != "confirms":
            self.link.call(1, SELECT)
        self.link.set_loose()
        self._taken: list[tuple[int, bytes]] = []
        self._confirmed = self._published = 0
        self._waits = False
        self.writes: list[bytes] = []
        """To be written one by one."""

    def _fill(self, port: int, messages: int) -> None:
        link = Link(port)
        link.open_channel(1)
        link.call(1, SELECT)
        for first in range(0, messages, 1000):
            link.socket.sendall(
                b"".join(
                    publish(1, "", self.source, PERSISTENT, self._body(n))
                    for n in range(first, min(first + 1000, messages))
                )
            )
            link.call(1, COMMIT)
        link.close()

    def _body(self, number: int) -> bytes:
        return _SEQUENCE.pack(number) + bytes(self.size - _SEQUENCE.size)

    def begin(self) -> None:
        arguments = b"\x00\x00" + short(self.source) + short("c") + b"\x00" + bytes(4)
        self.link.outbox += method(1, (60, 20), arguments)

    def take(self) -> None:
        """Read what is there, and go on where that allows it."""
        assert self.link.fill(), "the broker closed the connection"
        for name, _, tag, multiple, body in self.link.events():
            if name == DELIVER:
                self._taken.append((tag, body))
            elif name == COMMIT_OK:
                self._waits = False
                self.left -= 1
            elif name == ACK:
                self._confirmed = tag if multiple else self._confirmed + 1
                if self._confirmed == self._published:
                    self._acknowledge()
        if not self._waits and len(self._taken) >= EACH and self.left:
            self._work()

    def _work(self) -> None:
        batch = self._taken[:EACH]
        self._waits = True
        frames = [publish(1, "", self.target, PERSISTENT, body) for _, body in batch]
        self._published += EACH
        if self.scenario != "confirms":
            frames += [settle(1, ACK, tag, 0) for tag, _ in batch]
            frames.append(method(1, COMMIT))
            del self._taken[:EACH]
        if self.scenario == "tx-each":
            self.writes += frames
        else:
            self.link.outbox += b"".join(frames)

    def _acknowledge(self) -> None:
        batch = self._taken[:EACH]
        del self._taken[:EACH]
        self.link.outbox += b"".join([settle(1, ACK, tag, 0) for tag, _ in batch])
        self._waits = False
        self.left -= 1

    def flush(self) -> None:
        if not self.writes:
            self.link.flush()
        while self.writes:
            self.link.outbox += self.writes.pop(0)
            self.link.flush()


def ready(link: Link, name: str) -> int:
    """Messages in a queue."""
    answer = link.call(1, (50, 10), b"\0\0" + short(name) + b"\x01" + bytes(4))
    (count,) = struct.unpack_from(">I", answer, 1 + answer[0])
    return int(count)


def drive(clients: list[Client]) -> float:
    """Until all have done their commits; returns the seconds. Raises TimeoutError."""
    by_socket = {client.link.socket: client for client in clients}
    began = moved = time.monotonic()
    for client in clients:
        client.begin()
    while any(client.left for client in clients):
        for client in clients:
            client.flush()
        writers = [client.link.socket for client in clients if client.link.outbox]
        readable, writable, _ = select.select(list(by_socket), writers, [], 0.5)
        if readable or writable:
            moved = time.monotonic()
        elif time.monotonic() - moved > STALL_S:
            raise TimeoutError(f"{[client.left for client in clients]} commits left, then nothing")
        for socket in readable:
            by_socket[socket].take()
    return time.monotonic() - began


class Run:
    """One scenario on one broker: clients, their work, and whether all of it arrived."""

    def __init__(
        self, broker: Running, scenario: str, clients: int, commits: int, size: int
    ) -> None:
        self.broker = broker
        self.commits = commits // clients * clients
        self.clients = [
            Client(broker.port, number, scenario, commits // clients, size)
            for number in range(clients)
        ]

    def measure(self) -> dict[str, float]:
        before = cpu_s(self.broker.pid)
        seconds = drive(self.clients)
        cpu = cpu_s(self.broker.pid) - before
        return {
            "commits_per_s": round(self.commits / seconds),
            "cpu_us_per_commit": round(cpu / self.commits * 1e6),
            **self._end(),
        }

    def count_syncs(self, folder: Path) -> dict[str, float]:
        """As measure, under strace."""
        log = folder / "strace"
        command = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", str(log)]
        for pid in family(self.broker.pid):
            command += ["-p", str(pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        for _ in family(self.broker.pid):
            tracer.stderr.readline()  # attached
        drive(self.clients)
        tracer.terminate()
        tracer.wait()
        rows = re.findall(
            r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+).*f(?:data)?sync$", log.read_text(), re.M
        )
        return {"syncs_per_commit": round(sum(map(int, rows)) / self.commits, 2), **self._end()}

    def _end(self) -> dict[str, float]:
        """Every message must have moved, once."""
        for client in self.clients:
            client.link.close()
        link = Link(self.broker.port)
        link.open_channel(1)
        moved = stayed = 0
        for client in self.clients:
            moved += ready(link, client.target)
            stayed += ready(link, client.source)
            for name in (client.source, client.target):
                link.call(1, (50, 40), b"\0\0" + short(name) + b"\0")
        link.close()
        return {"lost": self.commits * EACH - moved, "left": stayed}


def large(broker: Running, messages: int, size: int) -> dict[str, object]:
    """One transaction with so many publishes."""
    link = Link(broker.port)
    link.socket.settimeout(STALL_S)
    link.open_channel(1)
    link.declare_queue("large")
    link.call(1, SELECT)
    before, cpu = memory_mib(broker.pid, "VmRSS"), cpu_s(broker.pid)
    chunk = b"".join([publish(1, "", "large", PERSISTENT, bytes(size))] * 100)
    for _ in range(messages // 100):
        link.socket.sendall(chunk)
    assert ready(link, "large") == 0
    held = memory_mib(broker.pid, "VmRSS")
    began = time.monotonic()
    link.call(1, COMMIT)
    seconds = time.monotonic() - began
    lost = messages // 100 * 100 - ready(link, "large")
    row: dict[str, object] = {
        "scenario": "large", "clients": 1, "broker": f"{broker.name} ({broker.note})",
        "messages": messages, "held_mib": round(held - before), "commit_s": round(seconds, 3),
        "cpu_us_per_message": round((cpu_s(broker.pid) - cpu) / messages * 1e6, 2), "lost": lost,
        "left": 0,
    }  # fmt: skip
    link.call(1, (50, 40), b"\0\0" + short("large") + b"\0")
    link.close()
    print(json.dumps(row), flush=True)
    return row


def pinned(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    """Prints JSON lines, then a table; exit code 1 when a message was lost or doubled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", default="tx,tx-each,confirms,large")
    parser.add_argument("--clients", type=pinned, default=[1, 10])
    parser.add_argument("--commits", type=int, default=3000)
    parser.add_argument("--messages", type=int, default=300_000, help="of the large transaction")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--no-rabbitmq", action="store_true")
    parser.add_argument("--no-strace", action="store_true")
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    with scratch() as folder, ExitStack() as stack:
        brokers = [stack.enter_context(tallymark(folder / "t", *args.flags))]
        if not args.no_rabbitmq and rabbitmq_installed():
            brokers.append(stack.enter_context(rabbitmq(folder / "r")))
        for scenario in args.scenarios.split(","):
            for clients in args.clients if scenario != "large" else [1]:
                for broker in brokers:
                    if scenario == "large":
                        rows.append(large(broker, args.messages, args.size))
                    else:
                        rows.append(_row(broker, scenario, clients, args, folder))
    print(_table(rows))
    return 1 if any(row["lost"] or row["left"] for row in rows) else 0


def _row(
    broker: Running, scenario: str, clients: int, args: argparse.Namespace, folder: Path
) -> dict[str, object]:
    found = [
        Run(broker, scenario, clients, args.commits, args.size).measure() for _ in range(args.runs)
    ]
    row: dict[str, object] = {
        "scenario": scenario, "clients": clients, "broker": f"{broker.name} ({broker.note})"
    }  # fmt: skip
    for name in ("commits_per_s", "cpu_us_per_commit"):
        row[name] = statistics.median([one[name] for one in found])
    if not args.no_strace and shutil.which("strace"):
        run = Run(broker, scenario, clients, max(200, args.commits // 5), args.size)
        found.append(run.count_syncs(folder))
        row["syncs_per_commit"] = found[-1]["syncs_per_commit"]
    row["lost"] = sum(one["lost"] for one in found)
    row["left"] = sum(one["left"] for one in found)
    print(json.dumps(row), flush=True)
    return row


def _table(rows: list[dict[str, object]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
