#!/usr/bin/env python3
"""`make bench`: the rows a to r, Tallymark beside the brokers that are there.

    run.py [--rows all|a-f,l5,o] [--runs 3] [--quick] [--scale 1.0] [--interpreted]
           [--no-rabbitmq] [--nsqd PATH] [--lavinmq PATH] [--nats PATH]
           [--limit SECONDS] [--minutes N] [--out build/bench.json] [--page build/bench.md]
           [-- FLAGS of tallymark serve]

RabbitMQ is measured where Debian's package is installed. For each letter all brokers are started
anew, on free ports, with data folders of their own that are removed; then they take turns, run by
run, and every second run in the other order. What fails is noted and does not end the others; the
results are written after every row. Rows of messages that come alone have the floor beside them in
every run: what `floor.c` takes for the same, which is no broker. The load generators are C: they
need gcc.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import (
    BrokerFailed,
    Running,
    lavinmq,
    nats,
    nsqd,
    rabbitmq,
    rabbitmq_installed,
    scratch,
    tallymark,
)
from bench.compare import Outcome, Programs, measure, speaks
from bench.loadgen import CHANNELS, FLOOR, LINKS, build, floor_us
from bench.machine import calibrate, description
from bench.page import write_page
from bench.scenarios import LINKS as LINKS_PROTOCOL
from bench.scenarios import Row, chosen

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S, QUICK_LIMIT_S = 600.0, 90.0


@dataclass(slots=True)
class Session:
    """What is asked for, and what was found so far."""

    asked: argparse.Namespace
    folder: Path
    programs: Programs
    floor_program: Path
    results: dict[str, Any]
    until: float
    """On the clock of `time.monotonic`: no row begins after it."""
    failed: list[str] = field(default_factory=list)

    def start_all(self, stack: ExitStack, rows: list[Row]) -> list[Running]:
        """The brokers of these rows. Tallymark must start; of the others it is noted."""
        place = self.folder / rows[0].letter
        place.mkdir()
        stack.callback(_remove, place)
        flags, interpreted = self.asked.flags, self.asked.interpreted
        found = [
            stack.enter_context(tallymark(place / "tallymark", *flags, interpreted=interpreted))
        ]
        others = []
        if not self.asked.no_rabbitmq and rabbitmq_installed():
            has_links = any(row.protocol == LINKS_PROTOCOL for row in rows)
            plugins = ["rabbitmq_amqp1_0"] if has_links else []
            others.append(("rabbitmq", rabbitmq(place / "rabbitmq", *plugins)))
        for name, start in (("lavinmq", lavinmq), ("nsqd", nsqd), ("nats", nats)):
            if (program := getattr(self.asked, name)) is not None:
                others.append((name, start(place / name, program)))
        for name, starting in others:
            try:
                found.append(stack.enter_context(starting))
            except (BrokerFailed, OSError) as error:
                self.note(f"{rows[0].letter} {name}: {error}")
        self.results["brokers"] |= {broker.name: broker.note for broker in found}
        return found

    def letter(self, rows: list[Row]) -> None:
        """The rows of one letter, with brokers of their own."""
        try:
            with ExitStack() as stack:
                brokers = self.start_all(stack, rows)
                for row in rows:
                    self.row(row, brokers)
        except (BrokerFailed, OSError) as error:
            self.note(f"{rows[0].letter}: {error}")

    def row(self, row: Row, brokers: list[Running]) -> None:
        """All runs of a row."""
        if time.monotonic() > self.until:
            self.note(f"{row.name}: not begun, {self.asked.minutes:g} minutes are over")
            return
        found = asdict(calibrate(self.folder))
        self.results["calibrations"].append({"row": row.name} | found)
        messages = max(
            1, round((row.quick if self.asked.quick else row.messages) * self.asked.scale)
        )
        able = [broker for broker in brokers if speaks(broker, row)]
        for run in range(self.asked.runs):
            for broker in able if run % 2 == 0 else reversed(able):
                self.keep(measure(self.programs, broker, row, run, messages, self.asked.limit))
            if row.floor:
                self.floor(row, run, messages)
        self.save()

    def floor(self, row: Row, run: int, messages: int) -> None:
        """What the row costs without a broker."""
        kind, _, rate = row.floor.partition(" ")
        try:
            cpu_us = floor_us(
                self.floor_program, kind, messages, rate or "0", self.folder, self.asked.limit
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self.note(f"{row.name} floor: {error}")
            return
        self.results["floors"].append({"row": row.name, "run": run, "cpu_us": cpu_us})
        print(f"{row.name:8} {'floor':10} {cpu_us:10.2f} us/msg", flush=True)

    def keep(self, outcome: Outcome) -> None:
        self.results["outcomes"].append(outcome.as_json())
        if outcome.error is not None:
            self.note(f"{outcome.row} {outcome.broker}: {outcome.error}")
            return
        print(
            f"{outcome.row:8} {outcome.broker:10} {outcome.cpu_us:10.2f} us/msg "
            f"{outcome.msg_per_s:10,.0f}/s  p50 {outcome.p50_ms:.2f} p99 {outcome.p99_ms:.2f} ms "
            f" {outcome.peak_mib:.0f} MiB  others {outcome.others_cores:.2f} cores",
            flush=True,
        )

    def note(self, problem: str) -> None:
        self.failed.append(problem)
        print(f"FAILED {problem}", file=sys.stderr, flush=True)

    def save(self) -> None:
        """Write the results and their page, whole or not at all."""
        self.results["failed"] = self.failed
        out: Path = self.asked.out
        draft = out.with_suffix(".draft")
        draft.write_text(json.dumps(self.results, indent=1) + "\n")
        draft.replace(out)
        write_page(self.results, self.asked.page)


def _remove(folder: Path) -> None:
    """Delete what the brokers of a letter left."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="all")
    parser.add_argument("--runs", type=int, help="of each row; 3, one with --quick")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows' messages")
    parser.add_argument("--interpreted", action="store_true", help="Tallymark from src")
    parser.add_argument("--no-rabbitmq", action="store_true")
    for name in ("nsqd", "lavinmq", "nats"):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH")
    parser.add_argument("--limit", type=float, help="seconds of one run")
    parser.add_argument("--minutes", type=float, default=600, help="no row begins later")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--page", type=Path, default=ROOT / "build" / "bench.md")
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    asked = parser.parse_args(words)
    asked.runs = asked.runs or (1 if asked.quick else 3)
    asked.limit = asked.limit or (QUICK_LIMIT_S if asked.quick else LIMIT_S)
    try:
        asked.chosen = chosen(asked.rows)
    except ValueError as error:
        parser.error(str(error))
    return asked


def main(words: list[str]) -> int:
    """Exit code 1 when a run failed or a row was not begun."""
    asked = arguments(words)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"signal {number}"))
    for target in (asked.out, asked.page):
        target.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "began": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["bench/run.py", *words]),
        "machine": description(),
        "runs": asked.runs,
        "quick": asked.quick,
        "scale": asked.scale,
        "brokers": {},
        "calibrations": [],
        "outcomes": [],
        "floors": [],
    }
    with scratch() as folder:
        programs = Programs(build(CHANNELS, folder), build(LINKS, folder))
        until = time.monotonic() + asked.minutes * 60
        session = Session(asked, folder, programs, build(FLOOR, folder), results, until)
        for _, rows in itertools.groupby(asked.chosen, key=lambda row: row.letter):
            session.letter(list(rows))
        session.save()
    print(f"\n{asked.page}\n{asked.out}")
    return 1 if session.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
