#!/usr/bin/env python3
"""Scenarios a to f over AMQP 1.0 beside the same work over AMQP 0-9-1, on one Tallymark.

The AMQP 1.0 load comes from `amqp10.c`, the AMQP 0-9-1 load from `loadgen.c`; both are built here
with the machine's C compiler. The two take turns, so that a change in the machine's speed hits both
of them.

    links.py [--scenarios abcdef] [--runs 3] [--scale 1.0] [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, scratch, tallymark
from bench.loadgen import CHANNELS, LINKS, build

DURABLE = "--size 1024 --durable --credit 1000"
SCENARIOS = {
    "a": (1_000_000, "--size 16 --ack-every none"),
    "b": (300_000, f"{DURABLE} --ack-every 100"),
    "c": (300_000, f"{DURABLE} --ack-every 1"),
    "d": (300_000, f"{DURABLE} --ack-every 100 --producers 10 --consumers 10 --queues 10"),
    "e": (1_000_000, f"{DURABLE} --ack-every 100 --mode pubdrain --timeout 60"),
    "f": (40_000, f"{DURABLE} --ack-every 1 --rate 2000"),
}
"""Messages, and flags of amqp10.c."""


def queue(broker: Running, method: str, name: str, durable: bool) -> None:
    """Declare (PUT) or delete (DELETE) a queue of the default virtual host."""
    url = f"http://127.0.0.1:{broker.http_port}/api/queues/%2F/{name}"
    body = json.dumps({"durable": durable}).encode() if method == "PUT" else None
    request = urllib.request.Request(url, body, method=method)
    request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60):
        pass


def over_links(
    program: str, broker: Running, scenario: str, messages: int, name: str
) -> dict[str, Any]:
    """One run over AMQP 1.0."""
    flags = SCENARIOS[scenario][1].split()
    count = int(flags[flags.index("--queues") + 1]) if "--queues" in flags else 1
    names = [name] if count == 1 else [f"{name}-{i}" for i in range(count)]
    for one in names:
        queue(broker, "PUT", one, "--durable" in flags)
    command = [program, "--port", str(broker.port), "--broker-pid", str(broker.pid)]
    command += ["--messages", str(messages), "--queue", name, *flags]
    result = run(command)
    for one in names:
        queue(broker, "DELETE", one, False)
    return result


def over_channels(
    program: str, broker: Running, scenario: str, messages: int, name: str
) -> dict[str, Any]:
    """One run over AMQP 0-9-1."""
    command = [program, "--proto", "amqp", "--port", str(broker.port), "--json", "--delete"]
    command += ["--broker-pid", str(broker.pid), "--messages", str(messages), "--queue", name]
    for flag in SCENARIOS[scenario][1].split():
        if flag == "--durable":
            command += ["--durable", "--persistent", "--confirm-window", "1000"]
        else:
            command.append("--prefetch" if flag == "--credit" else flag)
    return run(command)


def run(command: list[str]) -> dict[str, Any]:
    """Raises RuntimeError where messages were lost or the broker refused."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode} {done.stdout} {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def table(rows: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Medians; the ratio is AMQP 1.0's CPU per message to that of AMQP 0-9-1."""
    lines = [
        "| scenario | protocol | msg/s | CPU us/msg | ratio | RSS MiB | p50 ms | p99 ms | dup |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (scenario, protocol), runs in rows.items():

        def median(*keys: str, runs: list[dict[str, Any]] = runs) -> float:
            values: list[Any] = runs
            for key in keys:
                values = [value[key] for value in values]
            return float(statistics.median(values))

        cpu = median("broker_cpu_us_per_msg")
        other = rows.get((scenario, "0-9-1"), [])
        base = statistics.median([r["broker_cpu_us_per_msg"] for r in other]) if other else None
        ratio = "" if base is None else f"{cpu / base:.2f}"
        lines.append(
            f"| {scenario} | {protocol} | {median('msg_per_s'):,.0f} | {cpu:.2f} | {ratio} "
            f"| {median('broker_rss_peak_kb') / 1024:.0f} "
            f"| {median('latency_us', 'p50') / 1e3:.2f} "
            f"| {median('latency_us', 'p99') / 1e3:.1f} | {sum(r['duplicates'] for r in runs)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", default="abcdef")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with scratch() as folder, tallymark(folder / "data", *args.flags) as broker:
        links = str(build(LINKS, folder))
        channels = str(build(CHANNELS, folder))
        print(f"tallymark {broker.note}", flush=True)
        for number in range(args.runs):
            for scenario in args.scenarios:
                messages = int(SCENARIOS[scenario][0] * args.scale)
                name = f"bench-{scenario}-{number}"
                found = over_channels(channels, broker, scenario, messages, name)
                rows.setdefault((scenario, "0-9-1"), []).append(found)
                found = over_links(links, broker, scenario, messages, name)
                rows.setdefault((scenario, "1.0"), []).append(found)
    print(table(dict(sorted(rows.items()))))


if __name__ == "__main__":
    main()
