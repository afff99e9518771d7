#!/usr/bin/env python3
"""Run one step of a set-up: say what it does, show that it goes on, and how long it took.

    step.py NUMBER/OF NAME "What it does" COMMAND [ARGUMENT ...]
    step.py --shown NAME COMMAND [ARGUMENT ...]

What the command prints goes to build/steps/NAME.log, and its end to the terminal when it fails;
with --shown it goes to the terminal as it comes, and only the times are taken down. A line for each
step is added to build/timings.tsv: when, name, wall and CPU seconds, exit code.
`step.py --table` prints the last line of each name.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build"
TIMINGS = BUILD / "timings.tsv"
SHOWN_LINES = 40


def run(number: str, name: str, what: str, command: list[str]) -> int:
    """The command's exit code."""
    log = BUILD / "steps" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    is_terminal = sys.stdout.isatty()
    head = f"[{number}] {what}"
    print(head, end="" if is_terminal else " ...\n", flush=True)
    begun = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while True:
            try:
                code = process.wait(timeout=1 if is_terminal else None)
                break
            except subprocess.TimeoutExpired:
                print(f"\r{head}: {time.monotonic() - begun:.0f} s", end="", flush=True)
    wall_s = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    outcome = "done" if code == 0 else f"FAILED with exit code {code}"
    start = f"\r{head}: " if is_terminal else f"[{number}] "
    print(f"{start}{outcome} in {wall_s:.1f} s ({cpu_s:.1f} s of CPU)", flush=True)
    if code:
        text = log.read_text(errors="replace").splitlines()
        print("\n".join(text[-SHOWN_LINES:]), f"\nall of it: {log}", file=sys.stderr)
    note(name, wall_s, cpu_s, code)
    return code


def run_shown(name: str, command: list[str]) -> int:
    """The command's exit code."""
    TIMINGS.parent.mkdir(exist_ok=True)
    begun = time.monotonic()
    code = subprocess.call(command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    note(name, time.monotonic() - begun, used.ru_utime + used.ru_stime, code)
    return code


def note(name: str, wall_s: float, cpu_s: float, code: int) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    with TIMINGS.open("a") as timings:
        timings.write(f"{stamp}\t{name}\t{wall_s:.1f}\t{cpu_s:.1f}\t{code}\n")


def table() -> str:
    """The last run of each step as a Markdown table."""
    last: dict[str, list[str]] = {}
    for line in TIMINGS.read_text().splitlines() if TIMINGS.exists() else []:
        stamp, name, wall_s, cpu_s, code = line.split("\t")
        last[name] = [name, wall_s, cpu_s, "ok" if code == "0" else f"exit {code}", stamp]
    rows = ["| step | wall s | CPU s | outcome | when |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(f"| {' | '.join(row)} |" for row in last.values())])


def main() -> int:
    if sys.argv[1:] == ["--table"]:
        print(table())
        return 0
    if sys.argv[1:2] == ["--shown"] and len(sys.argv) > 3:
        return run_shown(sys.argv[2], sys.argv[3:])
    if len(sys.argv) < 5:
        print(__doc__, file=sys.stderr)
        return 2
    return run(*sys.argv[1:4], sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
