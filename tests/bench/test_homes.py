"""CPU of a server whose processes come and go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.homes import server_cpu_s
from tests.support.postgresql import Server

CHILDREN = 40
SPENT_S = 0.03
FORKS = f"""
import os, time
for _ in range({CHILDREN}):
    if not os.fork():
        while time.process_time() < {SPENT_S}:
            pass
        os._exit(0)
    os.wait()
print("done", flush=True)
input()
"""


class Forks(Server):
    """A process in place of a server: each of its children ends soon."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder, "forks", {})
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def is_done(self) -> bool:
        """Return whether all children have ended. Waits for it."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline() == b"done\n"

    def end(self) -> None:
        assert self._process is not None
        self._process.communicate(b"\n")


def test_what_a_process_had_that_has_ended_is_counted(tmp_path: Path) -> None:
    forks = Forks(tmp_path)
    try:
        used = 0.0
        while used < CHILDREN * SPENT_S / 2:
            before, used = used, server_cpu_s(forks)
            assert used > before - 0.001  # a sum of fractions
        assert forks.is_done
        assert server_cpu_s(forks) >= CHILDREN * SPENT_S / 2
    finally:
        forks.end()
