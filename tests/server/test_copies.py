"""A copy of a journal on PostgreSQL, and what it is once a broker has served it alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tallymark.journal.postgresql.errors import NotAMirror
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.marks import MARKER
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.server.config.settings import Config
from tallymark.server.opening import open_node
from tests.support.memory_home import MemoryHome

LEADERSHIP = Leadership("postgresql://database/tallymark", 1, "a", 1000)
"""One that is never asked: nothing is read before the folder is claimed."""


def serve(folder: Path, home: MemoryHome | None = None) -> None:
    """Have a broker open the folder, and end."""
    loop = asyncio.new_event_loop()
    node = open_node(Config(data_dir=folder), loop, home=home)
    node.journal.close()
    loop.close()


def test_a_copy_that_was_served_without_the_database_is_a_journal_of_its_own(
    tmp_path: Path,
) -> None:
    """What was confirmed meanwhile is in the folder only: as a copy it would lose that."""
    Mirror(tmp_path, LEADERSHIP, 1).open()
    serve(tmp_path)
    with pytest.raises(NotAMirror, match="has a journal of its own, which is not in the database"):
        Mirror(tmp_path, LEADERSHIP, 1).open()


def test_a_copy_that_was_served_with_the_database_stays_one(tmp_path: Path) -> None:
    Mirror(tmp_path, LEADERSHIP, 1).open()
    serve(tmp_path, MemoryHome())
    assert (tmp_path / MARKER).exists()
    Mirror(tmp_path, LEADERSHIP, 1).open()
