"""A broker whose wall clock a test moves.

`python -m tests.server.clocked AHEAD serve ...` reads the milliseconds by which it is ahead, eight
bytes in the machine's order, from the file AHEAD. Only what asks for wall_ms sees
it: when tokens expire, and what is shown.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path

from tallymark.server import clock
from tests.support.process import BrokerProcess

AHEAD = struct.Struct("=Q")


class Clocked(BrokerProcess):
    """Such a broker, as a process."""

    @property
    def _ahead_file(self) -> Path:
        return self.data_dir.with_suffix(".ahead")

    def command(self) -> list[str]:
        python, _, _, *rest = super().command()
        self._ahead_file.write_bytes(AHEAD.pack(0))
        return [python, "-m", "tests.server.clocked", str(self._ahead_file), *rest]

    def move(self, seconds: int) -> None:
        """Put its wall clock ahead of ours."""
        with self._ahead_file.open("r+b") as file:
            file.write(AHEAD.pack(seconds * 1000))


def clocked(path: str) -> None:
    """Let this process have such a clock. To be called before the server is imported: what reads
    the clock has its name for it."""
    descriptor = os.open(path, os.O_RDONLY)
    shared = mmap.mmap(descriptor, AHEAD.size, prot=mmap.PROT_READ)
    of_the_machine = clock.wall_ms
    clock.wall_ms = lambda: of_the_machine() + int(AHEAD.unpack_from(shared)[0])


if __name__ == "__main__":
    clocked(sys.argv.pop(1))

    from tallymark.cli.main import main

    main()
