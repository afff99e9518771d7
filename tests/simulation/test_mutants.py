"""The deliberate bugs that the worlds must find are still those that they are named for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_deliberate_bug_is_called_as_what_it_replaces() -> None:
    done = subprocess.run(  # from src: compiled classes cannot be changed
        [sys.executable, "-m", "tests.simulation.mutants", "--check"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
