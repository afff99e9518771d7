"""Outages of a disk that pass: files that cannot be opened, bodies that cannot be read.

no files    the process has all files open that it may: it goes on with those that the journal
            has set aside
reads fail  what cannot be read is delivered to nobody, and is in its queue's account until
            somebody has it read again; everything else goes on
syncs lie   the disk says that all is well: a power cut may take what was confirmed. What is
            left is sound, or the broker says what is damaged; nobody gets other bytes
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from tallymark.simulation.clients import Clients
from tallymark.simulation.disk import Disk
from tallymark.simulation.http import HttpClient
from tallymark.simulation.plan import LIES, NO_FILES, UNREADABLE
from tallymark.simulation.world import SECOND_NS

OUTAGES: Final = (NO_FILES, UNREADABLE, LIES)
LASTS_S: Final = 1.0
"""Simulated seconds for which files and reads fail."""
QUARANTINE: Final = "/api/tallymark/quarantine"


def begin(kind: str, disk: Disk, now_ns: int) -> None:
    """Begin one of the outages."""
    if kind == NO_FILES:
        disk.take_files(now_ns + int(LASTS_S * SECOND_NS))
    elif kind == UNREADABLE:
        disk.unreadable_until_ns = now_ns + int(LASTS_S * SECOND_NS)
    else:
        disk.is_lying = True


def end(disk: Disk) -> None:
    """End all that end by themselves: what was not synced by a disk that lies is still not."""
    disk.no_files_until_ns = disk.unreadable_until_ns = 0


async def read_again(clients: Clients) -> None:
    """Have the broker read again what it could not read, until it has all of it."""
    http = HttpClient(clients.network, clients.loop)
    while True:
        try:
            rows = (await http.call("GET", QUARANTINE))["quarantine"]
            for name in sorted({row["queue"] for row in rows}):
                clients.history.seen.add("message read again")
                clients.history.note(f"messages of {name} are read again")
                await http.call("POST", f"{QUARANTINE}/%2F/{quote(name, safe='')}/retry", {})
        except OSError:
            await clients.pause(0.1)
        else:
            if not rows:
                break
    http.close()
