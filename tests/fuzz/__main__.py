"""Coverage-guided fuzzing of everything that reads what others wrote.

    python -m tests.fuzz --seconds 60            # all, one after the other
    python -m tests.fuzz journal --seconds 600   # one
    python -m tests.fuzz journal --play FILE     # what was found, again

It starts from tests/fuzz/corpus/NAME and keeps what it finds in build/fuzz/NAME. A finding is a
file there, found-..., and exit code 1. Needs atheris, the extra `fuzz`, which has wheels for Linux
only; PYTHONPATH=src, since compiled modules show no coverage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"
BUILD: Final = ROOT / "build" / "fuzz"
NAMES: Final = (
    "amqp091", "amqp10", "values", "nsq", "filters", "block", "journal", "configuration",
)  # fmt: skip
LONGEST_INPUT: Final = 2000
MEMORY_MIB: Final = 2048
LONGEST_S: Final = 20
"""Seconds after which one input counts as a hang."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each")
    parser.add_argument("--play", type=Path, help="one input, once")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.name) - set(NAMES):
        parser.error(f"no such reader: {', '.join(sorted(unknown))}, expected some of {NAMES}")
    if asked.in_process:
        fuzz(asked.name[0], asked.seconds)
    if asked.play is not None:
        from tests.fuzz.targets import TARGETS

        TARGETS[asked.name[0]](asked.play.read_bytes())
        return 0
    failed = []
    for name in asked.name or NAMES:
        command = [sys.executable, "-m", "tests.fuzz", name, "--in-process"]
        print(f"== {name}", flush=True)
        if subprocess.run([*command, "--seconds", str(asked.seconds)], cwd=ROOT).returncode:
            failed.append(name)
    print(f"findings: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one reader in this process, which ends."""
    import atheris

    with atheris.instrument_imports(include=["tallymark"]):
        from tests.fuzz.targets import TARGETS
    found = BUILD / name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}", f"-max_len={LONGEST_INPUT}", f"-timeout={LONGEST_S}",
        f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={found}/found-", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([name, *options, str(found), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
