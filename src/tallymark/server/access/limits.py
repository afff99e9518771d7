"""Limits of users and virtual hosts: stored in the data folder's limits.json, applied by
engine/quotas.py, set over HTTP (management/limits.py)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from tallymark.engine.quotas import Limits, Quotas
from tallymark.server.access.users import replace_file

FILE: Final = "limits.json"


class LimitsError(Exception):
    """The file is there but cannot be read."""


class Stored(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    vhosts: Limits = {}
    users: Limits = {}


def load_limits(folder: Path, quotas: Quotas) -> None:
    """Raises LimitsError."""
    file = folder / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Stored)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise LimitsError(f"{file}: {error}") from error
    quotas.limit(found.vhosts, found.users)


def save_limits(folder: Path, stored: Stored) -> None:
    """Raises OSError."""
    replace_file(folder, FILE, msgspec.json.format(msgspec.json.encode(stored), indent=1))


def forget_limits(
    folder: Path, quotas: Quotas, vhosts: Collection[str], users: Collection[str]
) -> None:
    """Drop the limits of virtual hosts and users that are not among these. Raises OSError."""
    kept = Stored(
        {name: found for name, found in quotas.vhosts.items() if name in vhosts},
        {name: found for name, found in quotas.users.items() if name in users},
    )
    if (kept.vhosts, kept.users) != (quotas.vhosts, quotas.users):
        save_limits(folder, kept)
        quotas.limit(kept.vhosts, kept.users)
