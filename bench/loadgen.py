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


def build(source: Path, folder: Path) -> Path:
    """Compile a load generator into a folder. Needs gcc."""
    program = folder / source.stem
    subprocess.run(["gcc", "-O2", "-Wall", "-o", program, source, "-lpthread"], check=True)
    return program
