#!/usr/bin/env python3
"""What an NSQ message costs beside an AMQP 0-9-1 message that asks for the same work.

Scenarios a, c, d, e and f with PUB, with MPUB of 100, and over AMQP with persistent messages,
durable queues, confirms and every message acknowledged by itself: as NSQ has it, whose every OK is
from the disk and whose every message is finished. All against one broker, in turn.

Needs gcc.

    nsq.py [--runs 3] [--scale 1.0] [--scenarios acdef] [--out build/nsq.jsonl]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, scratch, tallymark
from bench.loadgen import CHANNELS, build

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.5
"""CPU of a message over NSQ may be so many times that over AMQP."""
KIB = ("--size", "1024")
SCENARIOS: dict[str, tuple[int, tuple[str, ...]]] = {
    "a": (1_000_000, ("--size", "16")),
    "c": (300_000, KIB),
    "d": (300_000, (*KIB, "--producers", "10", "--consumers", "10", "--queues", "10")),
    "e": (1_000_000, (*KIB, "--mode", "pubdrain", "--timeout", "60")),
    "f": (40_000, (*KIB, "--rate", "2000")),
}
COMMON = ("--confirm-window", "1000", "--prefetch", "1000", "--ack-every", "1", "--json")
WAYS: dict[str, tuple[str, ...]] = {
    "AMQP": ("--proto", "amqp", "--persistent", "--durable", "--delete"),
    "PUB": ("--proto", "nsq"),
    "MPUB": ("--proto", "nsq", "--mpub", "100"),
}


_numbers = itertools.count()


def measure(loadgen: Path, broker: Running, scenario: str, way: str, scale: float) -> Any:
    """One run's figures. Raises SystemExit for a loss, a duplicate or a stall."""
    messages, flags = SCENARIOS[scenario]
    port = broker.port if way == "AMQP" else broker.nsq_port
    command = [str(loadgen), *WAYS[way], *COMMON, *flags, "--port", str(port)]
    command += ["--broker-pid", str(broker.pid), "--messages", str(int(messages * scale))]
    command += ["--queue", f"{way}-{scenario}-{next(_numbers)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{way} {scenario}: exit {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def table(found: dict[tuple[str, str], list[Any]]) -> str:
    lines = [
        "| scenario | way | msg/s | CPU us/msg | vs AMQP | p50 ms | p99 ms | lost | dup |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    base = 0.0
    for (scenario, way), runs in found.items():
        cpu = statistics.median(run["broker_cpu_us_per_msg"] for run in runs)
        base = cpu if way == "AMQP" else base
        rate = statistics.median(run["msg_per_s"] for run in runs)
        p50, p99 = (
            statistics.median(run["latency_us"][key] for run in runs) / 1000
            for key in ("p50", "p99")
        )
        lost, dup = (sum(run[key] for run in runs) for key in ("lost", "duplicates"))
        mark = "" if cpu <= LIMIT * base else " (above the limit)"
        lines.append(
            f"| {scenario} | {way} | {rate:,.0f} | {cpu:.2f} | {cpu / base:.2f}x{mark} | {p50:.2f} "
            f"| {p99:.1f} | {lost} | {dup} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Exit code 1 where the limit is passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the scenarios' messages")
    parser.add_argument("--scenarios", default="acdef")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "nsq.jsonl")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str], list[Any]] = {
        (scenario, way): [] for scenario in args.scenarios for way in WAYS
    }
    with scratch() as folder:
        loadgen = build(CHANNELS, folder)
        with tallymark(folder / "tallymark") as broker, args.out.open("a") as out:
            print(f"tallymark ({broker.note}), {args.runs} runs, scale {args.scale:g}", flush=True)
            for _ in range(args.runs):
                for scenario, way in found:
                    result = measure(loadgen, broker, scenario, way, args.scale)
                    found[scenario, way].append(result)
                    out.write(json.dumps({**result, "scenario": scenario, "way": way}) + "\n")
    text = table(found)
    print(text)
    return int("above the limit" in text)


if __name__ == "__main__":
    sys.exit(main())
