"""Errors of a journal on PostgreSQL."""

from __future__ import annotations

import errno
from typing import Final, final

REMEDY: Final = (
    "The files are a copy of the tables, which the next start compares as a whole. If it says this "
    "again, the database itself lacks what is named: have the URL lead to a server that has it (a "
    "replica that was not behind, a restore to a later point), or start with --accept-loss to go "
    "on without it"
)
"""Remedy for a journal whose home is PostgreSQL."""


@final
class LeadLost(OSError):
    """Another broker has the lead: nothing that this one writes can be committed any more."""

    def __init__(self, journal: int, epoch: int, found: int) -> None:
        text = (
            f"another broker leads journal {journal}: it is in epoch {found}, and this broker's "
            f"lead was epoch {epoch}. Nothing was confirmed since; clients find the other one"
        )
        if found < epoch:
            text = (
                f"the database went back: journal {journal} is in epoch {found}, and this broker "
                f"leads it since epoch {epoch}. What it confirmed is not there. Copy the data "
                "folder before the next start: it has what the database lacks. Then have the URL "
                "lead to a server that was not behind"
            )
        super().__init__(errno.EPERM, text)
        self.epoch = epoch
        """Epoch in which this broker led."""
        self.found = found
        """Epoch of the journal now."""


@final
class WentBack(OSError):
    """The database lacks what it has said to be safe: it failed over to a server that was behind,
    or was restored to an earlier point."""

    def __init__(self, lacking: str) -> None:
        super().__init__(
            errno.ESTALE,
            f"the database went back: it lacks {lacking}, whose commit it had confirmed, so it has "
            "failed over to a server that was behind. Nothing is written past the gap. Copy the "
            "data folder before the next start: it has what the database lacks. Then have the URL "
            "lead to a server that was not behind, and start again",
        )


def went_back(error: BaseException) -> bool:
    """Return whether an error says that the database lacks what was safe in it."""
    if isinstance(error, LeadLost):
        return error.found < error.epoch
    return isinstance(error, WentBack)


class NotUsable(Exception):
    """The journal in the database cannot be led or followed from here; the text says why."""


@final
class OtherBytes(OSError):
    """There is a row already where this broker, which leads, was to write the first."""

    def __init__(self, position: int, found: object) -> None:
        super().__init__(
            errno.EEXIST,
            f"the table has a row at position {position:#x} that this broker has not written "
            f"(epoch, crc: {found}): another writer, or tables that are not this journal's",
        )


@final
class SchemaRefused(NotUsable):
    """The database's tables are not what this program works with; the text says why."""


@final
class NotAMirror(NotUsable):
    """The folder has a journal of its own, which a mirror would overwrite; the text says so."""


@final
class Differs(NotUsable):
    """The tables hold what they never should; the text says what."""


@final
class AnotherLeads(Exception):
    """This broker was to lead and another one does. The text names it."""
