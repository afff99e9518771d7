"""The load generators in C: they check loss, duplicates and order, and cost 0.07 to 5 us a message.

Exit code 1 says that messages were lost or nothing came any more, 2 that the protocol was broken.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHANNELS = HERE / "loadgen.c"
"""AMQP 0-9-1 and NSQ."""
LINKS = HERE / "amqp10.c"
"""AMQP 1.0."""
FLOOR = HERE / "floor.c"
"""No broker: the least that any has to do."""


def build(source: Path, folder: Path) -> Path:
    """Compile a load generator into a folder. Needs gcc."""
    program = folder / source.stem
    subprocess.run(["gcc", "-O2", "-Wall", "-o", program, source, "-lpthread"], check=True)
    return program


def floor_us(
    program: Path, kind: str, messages: int, rate: str, folder: Path, limit_s: float
) -> float:
    """Microseconds of CPU that a message, or call, takes at the least, by the built FLOOR: its kind
    and rate are those of its usage. Its file is in `folder` meanwhile.

    Raises:
        OSError, SubprocessError: it could not be run, failed, or took longer than `limit_s`.
        ValueError: what it printed does not begin with a number.
    """
    command = [program, kind, str(messages), rate, folder / "floor.dat"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit_s)
    return float(done.stdout.partition(" ")[0])
