#!/usr/bin/env python3
"""What is too long for CI, run whole, and its result in docs/nightly.md. `make nightly`.

    nightly.py [--only NAME ...]

Two runs: the tests on clusters (two workers of Spark's own daemons and spark-submit, the thin wheel
by --py-files, a Connect server), then everything that is long. Of each the page says when and of
which commit it was, how many tests passed, failed and were skipped, why, and how long it took; what
failed is named. Exit code 1 if something failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "nightly.md"
REPORTS = ROOT / "build" / "nightly"
CLUSTERS = ("tests/spark/test_cluster*.py", "tests/installing/test_thin*.py",
            "tests/spark/test_connect*.py")  # fmt: skip
RUNS = {
    "clusters": ("Spark on clusters", CLUSTERS, "1"),
    "long": ("Everything that is long", ("tests",), "2"),
}
"""Title, tests and workers by name."""
LONGEST_S = "36000"
HEAD = """\
# The newest night

`make nightly` (tools/nightly.py) writes this page. It runs what is too long for CI: all of
`make test-long`, and before it the tests on clusters: two workers and `spark-submit`, the thin
wheel by `--py-files`, a Connect server. One of the runs alone, as `make nightly ARGS='--only
clusters'`, leaves what the page says of the other. Here: {machine}.
"""
NEVER = "It has not been run since the page was made."


@dataclass(slots=True)
class Outcome:
    """How a run went, as its report says."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """By reason."""
    seconds: float = 0.0
    is_whole: bool = True
    """False: the run was ended before it wrote its report."""


def run(name: str) -> Outcome:
    """Run the tests of one run. What they print goes to the terminal."""
    _, patterns, workers = RUNS[name]
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    paths = [p for one in patterns for p in sorted(str(x) for x in ROOT.glob(one))]
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", workers, "--timeout", LONGEST_S,
        f"--junitxml={report}", *paths,
    ]  # fmt: skip
    begun = time.monotonic()
    subprocess.run(command, cwd=ROOT, env={**os.environ, "TALLYMARK_LONG": "all"}, check=False)
    outcome = read(report.read_text() if report.exists() else "")
    outcome.seconds = time.monotonic() - begun
    return outcome


def read(report: str) -> Outcome:
    """Read a report in JUnit's XML.

    >>> found = read('<testsuites><testcase classname="a" name="b"><skipped message="no npm"/>'
    ...              '</testcase><testcase classname="a" name="c"/></testsuites>')
    >>> found.passed, dict(found.skipped)
    (1, {'no npm': 1})
    """
    if not report:
        return Outcome(is_whole=False)
    outcome = Outcome()
    for case in ElementTree.fromstring(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif skipped is not None:
            outcome.skipped[skipped.get("message") or "no reason given"] += 1
        else:
            outcome.passed += 1
    return outcome


def section(outcome: Outcome, commit: str, when: datetime, is_compiled: bool) -> str:
    """Return what the page says of one run.

    >>> at = datetime(2026, 11, 23, 4, 5, tzinfo=UTC)
    >>> print(section(Outcome(3, ["t::f"], Counter({"no npm": 2}), 61.0), "abc", at, True))
    2026-11-23 04:05 UTC, commit abc, compiled, in 1 min: 3 passed, 1 failed, 2 skipped.
    <BLANKLINE>
    - Failed: `t::f`
    - Skipped, 2: no npm
    """
    built = "compiled" if is_compiled else "interpreted"
    numbers = f"{outcome.passed:,} passed, {len(outcome.failed):,} failed, "
    numbers += f"{outcome.skipped.total():,} skipped" if outcome.is_whole else "ended early"
    took = f"{when:%Y-%m-%d %H:%M} UTC, commit {commit}, {built}, in {outcome.seconds / 60:.0f} min"
    listed = [f"- Failed: `{test}`" for test in outcome.failed]
    listed += [f"- Skipped, {count:,}: {why}" for why, count in sorted(outcome.skipped.items())]
    return "\n".join([f"{took}: {numbers}.", *([""] if listed else []), *listed])


def page(sections: dict[str, str]) -> str:
    """Return docs/nightly.md. sections: what is said of each run, by its title."""
    said = (f"\n## {title}\n\n{sections.get(title, NEVER)}\n" for title, *_ in RUNS.values())
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    return HEAD.format(machine=machine) + "".join(said)


def sections_of(page: str) -> dict[str, str]:
    """Return what a page says of each run, by its title.

    >>> sections_of(page({"Spark on clusters": "all passed"}))["Spark on clusters"]
    'all passed'
    """
    parts = (part.partition("\n") for part in page.split("\n## ")[1:])
    return {title: text.strip() for title, _, text in parts}


def is_compiled() -> bool:
    """Return whether the broker that the tests start is compiled."""
    found = find_spec("tallymark.wire.amqp091.kernel")
    return found is not None and found.origin is not None and found.origin.endswith(".so")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(RUNS), help="run this one alone")
    names = parser.parse_args().only or list(RUNS)
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    outcomes = {name: run(name) for name in names}
    told = sections_of(PAGE.read_text()) if PAGE.exists() else {}
    for name, outcome in outcomes.items():
        told[RUNS[name][0]] = section(outcome, commit, datetime.now(UTC), is_compiled())
    PAGE.write_text(page(told))
    print(f"the result is in {PAGE.relative_to(ROOT)}")
    return 0 if all(one.is_whole and not one.failed for one in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
