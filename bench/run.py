#!/usr/bin/env python3
"""`make bench`: the scenarios a to f and the project's own patterns, beside RabbitMQ.

Starts Tallymark as installed and, where Debian's package is there, RabbitMQ, each on free ports
with a data folder of its own. The load generator of the scenarios is C: they need gcc.

    run.py [--runs 3] [--scale 1.0] [--scenarios abcdef] [--patterns all|none|NAME,...]
           [--messages 100000] [--no-rabbitmq] [--table build/bench.md] [--out build/bench.jsonl]
           [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import platform
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import compare, patterns
from bench.brokers import Running, rabbitmq, rabbitmq_installed, scratch, tallymark

ROOT = Path(__file__).resolve().parents[1]


def side_by_side(brokers: list[Running], scenarios: str, runs: int, scale: float, out: Path) -> str:
    """The scenarios' table, or why there is none."""
    if not scenarios:
        return "Scenarios a to f left out: none asked for."
    where = {broker.name: f"amqp:{broker.port}:{broker.pid}" for broker in brokers}
    rows, is_sound = compare.compare(where, scenarios, runs, scale, out)
    found = compare.table(rows, scenarios, list(where))
    return found + ("" if is_sound else "\n\nA scenario failed: see above.")


def own_patterns(
    brokers: list[Running], names: list[str], messages: int, runs: int, out: Path
) -> str:
    """The patterns' table, or why there is none."""
    if not names:
        return "Patterns left out: none asked for."
    where = [(broker.name, broker.port, broker.pid) for broker in brokers]
    chosen = [patterns.PATTERNS[name] for name in names]
    results = patterns.run(where, chosen, messages, runs, [100, 1], out)
    is_sound = all(result.is_sound for result in results)
    return patterns.table(results) + ("" if is_sound else "\n\nA pattern failed: see lost, dup.")


def chosen_patterns(text: str) -> list[str]:
    if text == "none":
        return []
    return list(patterns.PATTERNS) if text == "all" else text.split(",")


def heading(brokers: list[Running]) -> str:
    about = "; ".join(f"{b.name} ({b.note}, up in {b.start_s:.2f} s)" for b in brokers)
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{stamp}, Python {platform.python_version()}, {platform.machine()}: {about}"


def main() -> int:
    """Exit code 1 when a scenario or pattern failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the scenarios' messages")
    parser.add_argument("--scenarios", default="abcdef")
    parser.add_argument("--patterns", default="all")
    parser.add_argument("--messages", type=int, default=100_000, help="per pattern")
    parser.add_argument("--no-rabbitmq", action="store_true")
    parser.add_argument("--table", type=Path, default=ROOT / "build" / "bench.md")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.jsonl")
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    for target in (args.table, args.out):
        target.parent.mkdir(parents=True, exist_ok=True)
    with scratch() as folder, ExitStack() as stack:
        brokers = [stack.enter_context(tallymark(folder / "tallymark", *args.flags))]
        if not args.no_rabbitmq and rabbitmq_installed():
            brokers.append(stack.enter_context(rabbitmq(folder / "rabbitmq")))
        text = heading(brokers)
        print(text, flush=True)
        for part in (
            lambda: side_by_side(brokers, args.scenarios, args.runs, args.scale, args.out),
            lambda: own_patterns(
                brokers, chosen_patterns(args.patterns), args.messages, args.runs, args.out
            ),
        ):
            found = part()
            print(f"\n{found}", flush=True)
            text += f"\n\n{found}"
    args.table.write_text(text + "\n")
    print(f"\nwritten to {args.table} and {args.out}")
    return 1 if "failed" in text else 0


if __name__ == "__main__":
    sys.exit(main())
