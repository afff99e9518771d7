"""Files of settings in the data folder, which the journal's home has, too.

Users, limits and feature flags are files that several hands write: requests over HTTP, the command
line, an editor. Whoever wrote one, it is in the home within PERIOD_S; a request over HTTP is
answered when it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from tallymark.journal.journal import Journal
from tallymark.server.turns import JournalFailed

NAMES: Final = ("features.json", "limits.json", "users.json")
PERIOD_S: Final = 1.0
"""Seconds between two looks at the files."""

Stamp = tuple[int, int, int]


@final
class SettingsFiles:
    """The files of one data folder. A task of the housekeeping."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._kept: dict[str, Stamp] = {}
        """Inode, time and size of each file as the home has it."""
        self._guard = asyncio.Lock()

    def period_s(self) -> float:
        return PERIOD_S if self._journal.has_home else 0.0

    async def run(self) -> None:
        """Keep what has changed. A journal that has failed ends the broker, which says why."""
        with suppress(JournalFailed):
            await self.keep()

    async def keep(self) -> None:
        """Wait until the home has the files as they were when this was called. Raises
        JournalFailed: it never will have them, as where another broker leads."""
        if not self._journal.has_home:
            return
        async with self._guard:
            found = {name: stamp for name in NAMES if (stamp := self._stamp(name)) is not None}
            names = [name for name, stamp in found.items() if self._kept.get(name) != stamp]
            gone = [name for name in self._kept if name not in found]
            if not names and not gone:
                return
            if not await asyncio.to_thread(self._journal.keep, names, gone):
                raise JournalFailed("users, limits and feature flags could not be written")
            self._kept = found

    def _stamp(self, name: str) -> Stamp | None:
        try:
            facts = (self._folder / name).stat()
        except FileNotFoundError:
            return None
        return facts.st_ino, facts.st_mtime_ns, facts.st_size
