"""Transactions under way, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg

from tallymark.simulation.database.tables import Change, Tables

Rows: TypeAlias = list[tuple[Any, ...]]
IDLE_S: Final = 10.0
"""Seconds after which a transaction whose client has stopped in its midst is ended: as the broker's
sessions ask for (journal/postgresql/connection.py)."""
ENDLESS_S: Final = 1e9


class Blocked(Exception):
    """Report that somebody else holds a lock."""


@dataclass
class Transaction:
    """A transaction under way."""

    is_explicit: bool
    changes: list[Change] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    snapshot: Tables | None = None
    is_local: bool = False
    """True if its commit waits for no standby."""
    idle_s: float = IDLE_S
    lock_s: float = ENDLESS_S
    has_failed: bool = False


@dataclass
class Answer:
    """Answer to a request: rows, or their number; or an error."""

    rows: Rows = field(default_factory=list)
    count: int = 0
    error: psycopg.Error | None = None
    warnings: list[str] = field(default_factory=list)
