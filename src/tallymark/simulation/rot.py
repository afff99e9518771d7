"""Bits that turn: a disk gives back other bytes than were written, and says nothing of it.

What of it is noticed, and what is lost, depends on where the bits lie. One promise holds wherever
they do: nobody gets a body that was not published. The broker goes on without what it cannot read,
or refuses to start and says what is damaged.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

STORED: Final = (".segment", ".checkpoint", ".ledger")
REFUSED: Final = "JournalCorrupt: "
"""Beginning of what a broker ends with that was given damaged files."""


def turn_bits(folder: Path, random: Random) -> list[str]:
    """Turn one to three bits of what the journal has stored in a folder; returns where."""
    files = sorted(path for path in folder.iterdir() if path.suffix in STORED)
    files = [path for path in files if path.read_bytes().rstrip(b"\0")]
    turned = []
    for _ in range(random.randint(1, 3) if files else 0):
        path = random.choice(files)
        data = bytearray(path.read_bytes())
        at = random.randrange(len(data.rstrip(b"\0")))
        data[at] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        turned.append(f"{path.name} at {at}")
    return turned
