"""NSQ's listeners as sockets in the file system: -tcp-address and -http-address of nsqd."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tallymark.cli.nsqd import configured
from tallymark.server.nsq.service import go_version
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.commands import MAGIC
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerDied, BrokerProcess


class Paths:
    """A broker's sockets, in a folder whose name is short: a path has some hundred bytes."""

    def __init__(self, folder: Path) -> None:
        self.tcp = str(folder / "tcp")
        self.http = str(folder / "http")

    def broker(self, folder: Path) -> BrokerProcess:
        return BrokerProcess(folder, nsq="true", nsq_host=self.tcp, nsq_http_host=self.http)

    def connect(self, path: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(PATIENCE_S)
        made.connect(path)
        return made

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self.connect(self.http)
        connection.request(method, path, body)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found


@pytest.fixture
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return Paths(Path(tmp_path_factory.mktemp("s")))


def test_both_listeners_serve(paths: Paths, tmp_path: Path) -> None:
    with paths.broker(tmp_path / "data") as broker:
        listeners = broker.ready["listeners"]
        assert (listeners["nsq"], listeners["nsq_http"]) == ([[paths.tcp, 0]], [[paths.http, 0]])
        with paths.connect(paths.tcp) as client:
            client.sendall(MAGIC + commands.pub("t", b"body"))
            assert client.recv(100)[8:] == b"OK"
            assert paths.ask("POST", "/pub?topic=t", b"other") == (200, b"OK")
            for option, expected in (("tcp_address", paths.tcp), ("http_address", paths.http)):
                assert paths.ask("GET", f"/config/{option}") == (200, expected.encode())
            found: dict[str, Any] = json.loads(paths.ask("GET", "/stats?format=json")[1])
            assert found["topics"][0]["message_count"] == 2
            (producer,) = found["producers"]
            assert producer["remote_address"].startswith("unix:")
        assert json.loads(paths.ask("GET", "/info")[1])["tcp_port"] == 0
    assert not Path(paths.tcp).exists()
    assert not Path(paths.http).exists()


def test_what_a_killed_broker_left_makes_room_and_who_listens_does_not(
    paths: Paths, tmp_path: Path
) -> None:
    broker = paths.broker(tmp_path / "data").start()
    with pytest.raises(BrokerDied, match=f"socket {paths.tcp}: Address already in use"):
        paths.broker(tmp_path / "other").start()
    assert paths.ask("GET", "/ping") == (200, b"OK")
    broker.kill()
    assert Path(paths.tcp).exists()
    with broker:
        assert paths.ask("GET", "/ping") == (200, b"OK")


def test_a_file_that_is_no_socket_stays(paths: Paths, tmp_path: Path) -> None:
    Path(paths.tcp).write_text("precious")
    with pytest.raises(BrokerDied, match="Address already in use"):
        paths.broker(tmp_path / "data").start()
    assert Path(paths.tcp).read_text() == "precious"


def test_nsqds_flags_take_paths() -> None:
    config, _ = configured(["-tcp-address=/run/nsqd.sock", "--http-address", "./http.sock"])
    assert (config.nsq_host, config.nsq_port) == (("/run/nsqd.sock",), 0)
    assert (config.nsq_http_host, config.nsq_http_port) == (("./http.sock",), 0)


@pytest.mark.parametrize(
    ("ours", "nsqds"), [("TLSv1.3", "TLS1.3"), ("TLSv1.2", "TLS1.2"), ("TLSv1", "TLS1.0")]
)
def test_versions_of_tls_are_shown_as_nsqd_shows_them(ours: str, nsqds: str) -> None:
    assert go_version(ours) == nsqds
