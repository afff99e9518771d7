"""What is said to the program that started the broker: systemd's Type=notify, and its journal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.server import logs
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/systemd/tallymark.service"
EXPOSURE = 1.5
"""What `systemd-analyze security` may find at most, of 10; what it found: docs/installing.md."""


@pytest.fixture
def supervisor() -> Iterator[socket.socket]:
    """The socket of one: in no file system, as systemd's can be."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(f"\0tallymark-test-{os.getpid()}")
        found.settimeout(PATIENCE_S)
        yield found


def said(supervisor: socket.socket) -> dict[str, str]:
    """The next datagram."""
    lines = supervisor.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_supervisor_is_told_of_ready_reload_and_stop(
    supervisor: socket.socket, tmp_path: Path
) -> None:
    settings = tmp_path / "tallymark.toml"
    settings.write_text('log_level = "info"\n')
    env = {"NOTIFY_SOCKET": "@" + supervisor.getsockname()[1:].decode()}
    with BrokerProcess(tmp_path / "data", env=env, config=str(settings)) as broker:
        ready = said(supervisor)
        assert ready["READY"] == "1"
        assert ready["STATUS"].endswith(f"port {broker.amqp_port}")
        settings.write_text('log_level = "warning"\n')
        os.kill(broker.pid, signal.SIGHUP)
        assert int(said(supervisor)["MONOTONIC_USEC"]) > 0
        assert said(supervisor)["STATUS"] == "configuration read again, 1 settings changed"
        settings.write_text('log_level = "loud"\n')
        os.kill(broker.pid, signal.SIGHUP)
        assert said(supervisor)["RELOADING"] == "1"
        refused = said(supervisor)
        assert refused["READY"] == "1"
        assert "loud" in refused["STATUS"]
        broker.stop()
        assert said(supervisor)["STOPPING"] == "1"


def test_a_supervisor_that_is_gone_is_logged_and_nothing_else(tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "gone")}
    with BrokerProcess(tmp_path / "data", env=env) as broker:
        assert broker.stop() == 0
        assert broker.log().count("supervisor.not_told") == 2, "ready, stopping"


def test_lines_for_the_journal_begin_with_their_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log"
    levels = logs.levels()
    with file.open("w") as stream:
        known = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{known.st_dev}:{known.st_ino}")
        logs.configure("info", {}, "console", stream)
        try:
            for level in ("info", "warning", "error"):
                getattr(logs.log_of("server"), level)("one.event")
            monkeypatch.setenv("JOURNAL_STREAM", "1:1")
            logs.configure("info", {}, "console", stream)
            logs.log_of("server").error("another.event")
        finally:
            monkeypatch.delenv("JOURNAL_STREAM")
            logs.configure("info", levels, "console")
    lines = file.read_text().splitlines()
    assert [re.match("<.>|", line)[0] for line in lines] == ["<6>", "<4>", "<3>", ""]  # type: ignore[index]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt-get install systemd")
def test_the_unit_is_as_hardened_as_the_documentation_says() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    found = re.search(r"Overall exposure level for tallymark.service: ([\d.]+)", done.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze cannot look at a file here: {done.stderr[-300:]}")
    assert float(found[1]) <= EXPOSURE, done.stdout


def test_the_unit_starts_a_command_that_is_there() -> None:
    text = UNIT.read_text()
    (command,) = re.findall(r"^ExecStart=\S+/tallymark (\w+) (.*)$", text, re.M)
    assert command[0] == "serve"
    assert command[1].split()[::2] == ["--config", "--data-dir"]
    assert re.search("^Type=notify$", text, re.M)
