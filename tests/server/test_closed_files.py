"""The data folder and everything in it is for the broker's user only."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.management import done
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess


@pytest.fixture(autouse=True)
def _generous_umask() -> object:
    """As careless as a system can be."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Paths that somebody else could do anything with."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        with suppress(FileNotFoundError):  # a file that was written aside is in its place now
            mode = path.stat().st_mode
            if mode & 0o077:
                found.append(f"{mode:o} {path}")
    return found


def work(broker: BrokerProcess) -> None:
    """Have every kind of file written."""
    done(broker, "PUT", "users/ann", {"password": "x", "tags": ""})
    done(broker, "PUT", "queues/%2F/q", {"durable": True})
    for _ in range(3):
        body = {"routing_key": "q", "properties": {"delivery_mode": 2}, "payload": "x" * 900_000,
                "payload_encoding": "string"}  # fmt: skip
        assert broker.http("POST", "/api/exchanges/%2F/amq.default/publish", body)[0] == 200
    done(broker, "DELETE", "queues/%2F/q/contents")
    assert broker.http("POST", "/api/tallymark/ledger/checkpoint")[0] == 200


def test_nothing_is_open_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    small = {"segment_size": "1MiB", "checkpoint_every": "1MiB"}
    with BrokerProcess(folder, **small) as broker:
        work(broker)
        assert open_to_others(folder) == []
        broker.kill()
        broker.restart()
        work(broker)
        assert open_to_others(folder) == []
    assert open_to_others(folder) == []
    kinds = {path.suffix or path.name for path in folder.iterdir()}
    assert {".segment", ".ledger", ".checkpoint", ".json", "lock"} <= kinds


def test_the_command_line_makes_a_folder_for_its_user_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tallymark", "user", "add", "ann", "--password", "x"]
    folder = tmp_path / "deep" / "data"
    subprocess.run([*command, "--data-dir", str(folder)], check=True, timeout=PATIENCE_S)
    assert open_to_others(folder) == []


def test_a_folder_of_before_is_closed_and_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with BrokerProcess(folder) as broker:
        done(broker, "PUT", "users/ann", {"password": "x", "tags": ""})
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    other = folder / "notes.txt"
    other.write_text("somebody's")
    other.chmod(0o644)
    with BrokerProcess(folder) as broker:
        assert open_to_others(folder) == [f"{stat.S_IFREG | 0o644:o} {other}"]
        assert "folder.closed_to_others" in broker.log()
