"""Files of settings are in the journal's home, whoever wrote them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tallymark.server import run
from tallymark.server.config.settings import Config
from tallymark.server.opening import open_node
from tallymark.server.settings_files import PERIOD_S, SettingsFiles
from tallymark.server.turns import JournalFailed
from tests.journal.builders import Disk, Elsewhere
from tests.support.memory_home import MemoryHome


def test_a_changed_file_is_kept_once(tmp_path: Path) -> None:
    home = MemoryHome()
    disk = Elsewhere(tmp_path, home)
    disk.start()
    files = SettingsFiles(tmp_path, disk.journal)
    assert files.period_s() == PERIOD_S
    asyncio.run(files.run())
    assert home.files == {}
    (tmp_path / "users.json").write_bytes(b"[]")
    (tmp_path / "other.json").write_bytes(b"[]")
    asyncio.run(files.run())
    assert home.files == {"users.json": b"[]"}
    home.files.clear()
    asyncio.run(files.run())
    assert home.files == {}, "it has not changed"
    aside = tmp_path / "users.json.new"
    aside.write_bytes(b"{}")
    aside.replace(tmp_path / "users.json")
    asyncio.run(files.run())
    assert home.files == {"users.json": b"{}"}
    os.unlink(tmp_path / "users.json")
    asyncio.run(files.run())
    assert home.files == {}
    disk.journal.close()


def test_what_the_home_did_not_take_is_not_kept(tmp_path: Path) -> None:
    home = MemoryHome()
    disk = Elsewhere(tmp_path, home)
    disk.start()
    files = SettingsFiles(tmp_path, disk.journal)
    (tmp_path / "limits.json").write_bytes(b"{}")
    home.failure = PermissionError("another leads")
    with pytest.raises(JournalFailed):  # a request that changed it is answered by that
        asyncio.run(files.keep())
    assert disk.wait_failure() is home.failure
    asyncio.run(files.run())  # the broker ends for it, and says so once
    assert home.files == {}
    disk.journal.close()


def test_a_journal_without_a_home_keeps_none(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.start()
    (tmp_path / "users.json").write_bytes(b"[]")
    files = SettingsFiles(tmp_path, disk.journal)
    assert files.period_s() == 0
    asyncio.run(files.run())
    disk.journal.close()


def test_what_the_command_line_wrote_just_before_a_stop_is_kept(tmp_path: Path) -> None:
    """The next start has what the home has: a user who was deleted was back."""
    home = MemoryHome()

    async def stopped() -> int:
        config = Config(data_dir=tmp_path)
        node = open_node(config, asyncio.get_running_loop(), home=home)
        (tmp_path / "users.json").write_bytes(b"[]")
        return await run._close(node)

    assert asyncio.run(stopped()) == run.STOPPED
    assert home.files["users.json"] == b"[]"
