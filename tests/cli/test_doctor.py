"""`tallymark doctor`: each finding on facts that are given, and the whole on this machine."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tallymark.cli import doctor
from tallymark.cli.doctor import LOOK, OK, UNSYNCHRONISED, WRONG
from tallymark.server.config.settings import Config
from tests.cli.test_commands import run
from tests.support.ports import reserved

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw,nosuid 0 0
server:/export /srv/with\\040space nfs4 rw 0 0
tmpfs /srv/dätä tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "state"),
    [
        ("/var/lib/tallymark", "ext4", OK),
        ("/dev/shm/data", "tmpfs", WRONG),
        ("/dev/shmoo", "ext4", OK),
        ("/srv/with space/data", "nfs4", LOOK),
        ("/srv/dätä/data", "tmpfs", WRONG),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(folder: str, kind: str, state: str) -> None:
    assert doctor.type_of(Path(folder), MOUNTS) == kind
    finding = doctor.file_system(Path(folder), kind)
    assert finding.state == state
    assert bool(finding.advice) is (state != OK)


def test_limits_are_compared_with_what_is_wanted() -> None:
    assert doctor.space(99, 100).state == WRONG
    assert doctor.space(100, 100).state == OK
    assert doctor.descriptors(1024, 1000).advice.startswith("max_connections would be lowered")
    assert doctor.descriptors(100_000, 1000).state == OK
    assert doctor.descriptors(resource.RLIM_INFINITY, 1000).found == "no limit"
    assert doctor.memory(200 << 20, 128 << 20).state == LOOK
    assert doctor.memory(256 << 20, 128 << 20).state == OK
    assert doctor.clock(UNSYNCHRONISED | 1).found == "not synchronised"
    assert doctor.clock(1).state == OK
    assert doctor.clock(-1).found == "not told here"


def ticking(step_s: float) -> Iterator[float]:
    return (number * step_s for number in count())


@pytest.mark.parametrize(
    ("step_s", "sync", "state"),
    [(0.002, "commit", OK), (0.05, "commit", LOOK), (0.05, "never", OK), (1e-7, "commit", LOOK)],
)
def test_syncs_that_are_slow_or_reach_no_device_are_named(
    tmp_path: Path, step_s: float, sync: str, state: str
) -> None:
    now = ticking(step_s)
    assert doctor.syncing(tmp_path, sync, lambda: next(now)).state == state


def test_a_folder_that_cannot_be_written_to_is_wrong(tmp_path: Path) -> None:
    now = ticking(1)
    finding = doctor.syncing(tmp_path / "not there", "commit", lambda: next(now))
    assert finding.state == WRONG


def test_users_that_cannot_be_read_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("[{")
    finding = doctor.users_of(tmp_path)
    assert finding.state == WRONG
    assert "users.json" in finding.found


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert doctor.port("amqp_port", number, "127.0.0.1").state == LOOK
    assert doctor.port("amqp_port", 0, "127.0.0.1").state == OK


def found(config: Config, topic: str) -> list[doctor.Finding]:
    return [one for one in doctor.examine(config) if one.topic == topic]


def test_each_port_is_looked_at_where_a_broker_would_listen(tmp_path: Path) -> None:
    number = reserved()
    with socket.create_server(("127.0.0.2", number)):
        at = ("127.0.0.1", "127.0.0.2")
        free = Config(data_dir=tmp_path, amqp_port=0, http_port=0)
        nsq = replace(free, nsq=True, nsq_port=number, nsq_host=at, nsq_http_port=0)
        assert [one.state for one in found(nsq, "nsq_port")] == [OK, LOOK]
        assert [one.state for one in found(nsq, "nsq_http_port")] == [OK]
        paths = replace(nsq, nsq_host=(f"{tmp_path}/nsq.sock",))
        assert found(paths, "nsq_port") == []
        http = replace(free, host=at, http_port=number)
        assert [one.state for one in found(http, "http_port")] == [OK, LOOK]


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_an_address_that_no_broker_could_listen_on_is_wrong(host: str) -> None:
    finding = doctor.port("amqp_port", 0, host)
    assert (finding.state, host in finding.found) == (WRONG, True)


def test_what_a_start_is_refused_for_is_wrong(tmp_path: Path) -> None:
    fine = Config(data_dir=tmp_path / "data", amqp_port=0, http_port=0)
    (one,) = found(fine, "settings")
    assert one.state == OK
    (tmp_path / "file").write_text("")
    for config, why in (
        (replace(fine, host=("0.0.0.0",)), "expected a loopback address"),
        (replace(fine, amqps_cert=tmp_path / "none.pem"), "none.pem"),
        (replace(fine, tracing="nowhere"), "expected otlp://"),
        (replace(fine, data_dir=tmp_path / "file"), "is not a folder"),
    ):
        (one,) = found(config, "settings")
        assert (one.state, why in one.found) == (WRONG, True), one


@pytest.mark.parametrize("name", ["users.json", "limits.json", "features.json"])
def test_a_damaged_file_of_the_folder_is_wrong_and_what_to_do_is_said(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("[{")
    (one,) = found(Config(data_dir=tmp_path, amqp_port=0, http_port=0), "settings")
    assert one.state == WRONG
    assert one.found.startswith(f"{tmp_path / name}: ")
    assert "Mend the file, or put back that of a backup; without it " in one.found


def test_it_looks_at_this_machine_and_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ports = ("--amqp-port", "0", "--http-port", "0")
    kind = doctor.type_of(tmp_path, Path("/proc/self/mounts").read_text())
    shown = run(
        "doctor", "--data-dir", str(data), "--disk-free-limit", "0", *ports,
        code=int(kind in doctor.IN_MEMORY),
    ).stdout  # fmt: skip
    for topic in ("build", "users", "file system", "disk sync", "open files", "clock"):
        assert topic in shown
    assert "look: users: for others: tallymark user add" in shown
    assert os.listdir(tmp_path) == []
    huge = ("--disk-free-limit", "1000000GiB")
    assert (
        "wrong: disk space" in run("doctor", "--data-dir", str(data), *huge, *ports, code=1).stdout
    )
    assert "expected" in run("doctor", "--sync", "often", code=2).stderr
