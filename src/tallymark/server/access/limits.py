"""Limits of users and virtual hosts: stored in the data folder's limits.json, applied by
engine/quotas.py, set over HTTP (management/limits.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from tallymark.engine.quotas import Limits, Quotas
from tallymark.server.access.users import replace_file
from tallymark.server.logs import log_of

FILE: Final = "limits.json"
REMEDY: Final = "Mend the file, or put back that of a backup; without it there are no limits"
"""Remedy for a damaged file."""

log = log_of("users")


class LimitsError(Exception):
    """The file is there but cannot be read."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    vhosts: Limits = {}
    users: Limits = {}


def load_limits(folder: Path, quotas: Quotas) -> None:
    """Raises LimitsError."""
    file = folder / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Stored)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise LimitsError(f"{file}: {error}. {REMEDY}") from error
    quotas.limit(found.vhosts, found.users)


class StoredLimits:
    """Changes of the limits: in the file first, then in effect."""

    def __init__(self, folder: Path, quotas: Quotas, on_change: Callable[[], None]) -> None:
        """on_change: called when other limits have come into effect."""
        self._folder = folder
        self._quotas = quotas
        self._on_change = on_change
        self._changing = asyncio.Lock()
        self._late: tuple[Collection[str], Collection[str] | None] | None = None
        """Virtual hosts and users to which `forget` waits to leave limits, since a change is being
        written; None: it does not wait."""

    async def change(self, change: Callable[[Limits, Limits], None]) -> None:
        """Change the limits of virtual hosts and users, which are given in this order. Raises
        OSError: the file cannot be replaced, and nothing has changed."""
        try:
            await self._change(change)
        finally:
            if self._late is not None:
                self.forget(*self._late)

    async def _change(self, change: Callable[[Limits, Limits], None]) -> None:
        async with self._changing:
            vhosts = {name: dict(found) for name, found in self._quotas.vhosts.items()}
            users = {name: dict(found) for name, found in self._quotas.users.items()}
            change(vhosts, users)
            stored = _Stored(_without_empty(vhosts), _without_empty(users))
            await asyncio.to_thread(self._save, stored)
            self._quotas.limit(stored.vhosts, stored.users)
            self._on_change()

    def forget(self, vhosts: Collection[str], users: Collection[str] | None = None) -> None:
        """Drop the limits of virtual hosts and users that are not among these; None: those of all
        users stay. They stay until the next change if the file cannot be replaced."""
        if self._changing.locked():  # the file is being written, with what is to be dropped
            if users is None and self._late is not None:
                users = self._late[1]
            self._late = vhosts, users
            return
        self._late = None
        known = self._quotas
        kept = _Stored(
            {name: found for name, found in known.vhosts.items() if name in vhosts},
            {name: found for name, found in known.users.items() if users is None or name in users},
        )
        if (kept.vhosts, kept.users) == (known.vhosts, known.users):
            return
        try:
            self._save(kept)
        except OSError as error:
            log.error("limits.unwritable", error=str(error))
        else:
            known.limit(kept.vhosts, kept.users)

    def _save(self, stored: _Stored) -> None:
        replace_file(self._folder, FILE, msgspec.json.format(msgspec.json.encode(stored), indent=1))


def _without_empty(limits: Limits) -> Limits:
    return {name: found for name, found in limits.items() if found}
