#!/usr/bin/env python3
"""How long a broker takes to come back after kill -9 with a given amount of journal.

Messages of 1 KiB are published with confirms, a share of them is consumed and settled, the broker
is killed, and the time from exec to the ready line is measured. With and without checkpoints.

    recovery.py [--mib 1024] [--runs 3] [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import memory_mib, scratch, tallymark
from bench.lean import ACK, DELIVER, PERSISTENT, Link, publish, settle

SIZE = 1024
WINDOW = 4000
CHUNK = 1000
QUEUES = 10
NO_CHECKPOINT = ("--checkpoint-every", "64GiB")


def fill(port: int, messages: int) -> None:
    """Publish with confirms, in turn to QUEUES durable queues."""
    link = Link(port)
    link.open_channel(1, confirms=True)
    body = bytes(range(256)) * (SIZE // 256)
    for number in range(QUEUES):
        link.declare_queue(f"recovery.{number}")
    chunks = [
        publish(1, "", f"recovery.{number}", PERSISTENT, body) * CHUNK for number in range(QUEUES)
    ]
    sent = confirmed = 0
    while confirmed < messages:
        while sent < messages and sent - confirmed < WINDOW:
            link.socket.sendall(chunks[sent // CHUNK % QUEUES])
            sent += CHUNK
        assert link.fill(), "the broker closed the connection"
        confirmed = max([confirmed, *(event[2] for event in link.events() if event[0] == ACK)])
    link.close()


def consume(port: int, messages: int) -> None:
    """Take and settle that many, evenly from all queues."""
    for number in range(QUEUES):
        link = Link(port)
        link.open_channel(1, prefetch=1000)
        link.consume(1, f"recovery.{number}")
        left = messages // QUEUES
        while left > 0:
            tags = [event[2] for event in link.events() if event[0] == DELIVER][:left]
            left -= len(tags)
            if tags:
                link.socket.sendall(settle(1, ACK, tags[-1], 1))
            assert left <= 0 or link.fill(), "the broker closed the connection"
        link.close()


def measure(folder: Path, mib: int, settled_share: float, runs: int, *flags: str) -> dict:
    """Fill, crash, and start `runs` times from the crash's folder."""
    messages = mib * 1024 // CHUNK * CHUNK
    with tallymark(folder, *flags, crash=True) as broker:
        fill(broker.port, messages)
        consume(broker.port, int(messages * settled_share))
        note = broker.note
    journal = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
    seconds, peak = [], 0.0
    for _ in range(runs):
        with tallymark(folder, *flags, crash=True) as broker:
            seconds.append(round(broker.start_s, 3))
            peak = max(peak, memory_mib(broker.pid))
    return {
        "messages": messages,
        "settled_share": settled_share,
        "broker": note,
        "flags": " ".join(flags),
        "disk_mib": journal >> 20,
        "start_s": round(statistics.median(seconds), 3),
        "each_s": seconds,
        "peak_mib": round(peak),
    }


def main() -> int:
    """Prints JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="of message bodies")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    for checkpoints in ((), NO_CHECKPOINT):
        for share in (0.0, 0.9):
            with scratch() as folder:
                flags = (*checkpoints, *args.flags)
                row = measure(folder / "data", args.mib, share, args.runs, *flags)
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
