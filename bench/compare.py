#!/usr/bin/env python3
"""The scenarios a to f against running brokers, side by side.

    compare.py tallymark=amqp:5672:PID rabbitmq=amqp:25672:PID nsqd=nsq:4150:PID \
               [--scenarios abcdef] [--runs 3] [--scale 1.0] [--out results.jsonl]

Brokers take turns within each run, so that a change in the machine's speed hits all of them. CPU
per message is the broker's own (user and system, children included): the figure to trust on a
shared machine. Exit code 1: a message was lost, or a broker stalled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.loadgen import CHANNELS, build

DURABLE = "--size 1024 --persistent --durable --confirm-window 1000 --prefetch 1000"
SCENARIOS = {
    "a": (1_000_000, "--size 16 --ack-every none"),
    "b": (300_000, f"{DURABLE} --ack-every 100"),
    "c": (300_000, f"{DURABLE} --ack-every 1"),
    "d": (300_000, f"{DURABLE} --ack-every 100 --producers 10 --consumers 10 --queues 10"),
    "e": (1_000_000, f"{DURABLE} --ack-every 100 --mode pubdrain --timeout 60"),
    "f": (40_000, f"{DURABLE} --ack-every 1 --rate 2000"),
}
"""Messages at scale 1, and the load generator's flags."""
PAUSE_S = 0.5
"""Between two runs: what the one left to do is not counted as the other's."""

Rows = dict[tuple[str, str], list[Any]]
"""Results by scenario and broker."""


def run_once(loadgen: Path, where: str, scenario: str, scale: float, queue: str) -> Any:
    """One run's figures. where: PROTO:PORT:PID. Raises CalledProcessError for a loss, a duplicate
    or a stall."""
    proto, port, pid = where.split(":")
    messages, flags = SCENARIOS[scenario]
    command = [str(loadgen), "--proto", proto, "--port", port, "--broker-pid", pid, "--json"]
    command += ["--messages", str(int(messages * scale)), "--queue", queue, *flags.split()]
    command += ["--delete"] if proto == "amqp" else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    return json.loads(done.stdout)


def compare(
    brokers: dict[str, str], scenarios: str, runs: int, scale: float, out: Path | None
) -> tuple[Rows, bool]:
    """Figures by scenario and broker, and whether every run was sound. brokers: PROTO:PORT:PID by
    name. out: a file to which each run's figures are appended, a JSON line each."""
    rows: Rows = {}
    is_sound = True
    with tempfile.TemporaryDirectory(prefix="loadgen") as folder:
        loadgen = build(CHANNELS, Path(folder))
        for run in range(runs):
            for scenario in scenarios:
                for name, where in brokers.items():
                    if where.startswith("nsq:") and scenario == "b":
                        continue  # NSQ finishes each message by itself: the same as c
                    queue = f"bench-{name}-{scenario}-{run}-{int(time.time())}"
                    try:
                        result = run_once(loadgen, where, scenario, scale, queue)
                    except subprocess.CalledProcessError as error:
                        is_sound = False
                        said = error.stderr[-300:]
                        print(f"{name} {scenario}: exit {error.returncode} {said}", file=sys.stderr)
                        continue
                    rows.setdefault((scenario, name), []).append(result)
                    if out is not None:
                        about = {"run": run, "broker": name, "scenario": scenario}
                        with out.open("a") as file:
                            file.write(json.dumps(result | about) + "\n")
                    time.sleep(PAUSE_S)
    return rows, is_sound


def table(rows: Rows, scenarios: str, names: list[str]) -> str:
    """Medians as a Markdown table, each broker's CPU beside that of the first."""
    lines = [
        "| scenario | broker | msg/s | CPU us/msg | vs first | RSS MiB | p50 ms | p99 ms | lost "
        "| dup |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario in scenarios:
        first = 0.0
        for name in names:
            runs = rows.get((scenario, name), [])
            if not runs:
                continue
            cpu = _median(runs, lambda run: run["broker_cpu_us_per_msg"])
            first = first or cpu
            rate = _median(runs, lambda run: run["msg_per_s"])
            rss = _median(runs, lambda run: run["broker_rss_peak_kb"]) / 1024
            p50 = _median(runs, lambda run: run["latency_us"]["p50"]) / 1000
            p99 = _median(runs, lambda run: run["latency_us"]["p99"]) / 1000
            lost, duplicates = (sum(run[key] for run in runs) for key in ("lost", "duplicates"))
            lines.append(
                f"| {scenario} | {name} | {rate:,.0f} | {cpu:.2f} | {cpu / first:.1f}x "
                f"| {rss:.0f} | {p50:.2f} | {p99:.1f} | {lost} | {duplicates} |"
            )
    return "\n".join(lines)


def _median(runs: list[Any], key: Callable[[Any], float]) -> float:
    return statistics.median(key(run) for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("brokers", nargs="+", metavar="NAME=PROTO:PORT:PID")
    parser.add_argument("--scenarios", default="abcdef")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of messages")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    brokers = {}
    for broker in args.brokers:
        name, _, where = broker.partition("=")
        brokers[name] = where
    rows, is_sound = compare(brokers, args.scenarios, args.runs, args.scale, args.out)
    print(table(rows, args.scenarios, list(brokers)))
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
