#!/usr/bin/env python3
"""Ask whether weaknesses are known of what constraints.txt pins: `audit.py PIP-AUDIT`.

Each source of data is asked in turn, until one knows the packages. Exit codes:

    0   every package was looked up, and of none a weakness is known
    1   weaknesses are known: they are listed, with the versions that mend them
    3   it cannot be told: the data could not be reached, or lacks packages; says which and why
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from requirements import LOCK, read_lock

SOURCES = ("pypi", "osv")
CLEAN = 0
FOUND = 1
UNKNOWN = 3


def ask(program: str, source: str, wanted: Path) -> tuple[list[dict[str, Any]], str]:
    """Packages as the source knows them; or none, and why."""
    command = [
        program, "--vulnerability-service", source, "--requirement", str(wanted), "--disable-pip",
        "--require-hashes", "--format", "json", "--progress-spinner", "off",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines()
        return [], said[-1] if said else f"exit code {done.returncode}"
    return found, ""


def tell(found: list[dict[str, Any]], asked: int, source: str) -> int:
    """Print what is known; the exit code."""
    weak = [one for one in found if one.get("vulns")]
    for one in weak:
        for each in one["vulns"]:
            mended = ", ".join(each.get("fix_versions", ())) or "no version yet"
            print(f"{one['name']} {one['version']}: {each['id']}, mended in {mended}")
    skipped = {one["name"]: one["skip_reason"] for one in found if one.get("skip_reason")}
    known = asked - len(skipped)
    print(f"{source}: {known} of {asked} packages looked up, weaknesses known of {len(weak)}")
    if weak:
        return FOUND
    if known < asked:
        name, reason = next(iter(skipped.items()), ("", "they are not in the answer"))
        print(f"{source}: not looked up: {len(skipped)}, as {name}: {reason}", file=sys.stderr)
        return UNKNOWN
    return CLEAN


def main(program: str) -> int:
    asked = len(read_lock())
    for source in SOURCES:
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / LOCK.name
            wanted.write_text(LOCK.read_text())
            found, problem = ask(program, source, wanted)
        if problem:
            print(f"{source}: cannot be asked: {problem}", file=sys.stderr)
            continue
        code = tell(found, asked, source)
        if code != UNKNOWN:
            return code
    print(
        f"audit: NOT KNOWN whether the {asked} packages of {LOCK} have weaknesses: no source of "
        "such data could be reached, or none knows them all",
        file=sys.stderr,
    )
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
