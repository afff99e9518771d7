"""Code that is loaded late and cannot be loaded, as after an upgrade of the package in place: the
broker goes on, and says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bench.lean import Link
from tallymark.wire.nsq.commands import MAGIC, auth
from tests.server.lines import DOORS, until_closed
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

BROKEN = "raise ImportError('of another version')\n"


def shadow(folder: Path, name: str) -> Path:
    """A package that is found in place of one of this name."""
    package = folder / "shadow" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN)
    return package


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return shadow(tmp_path, "aiohttp")


def broker_with(broken: Path, **flags: str) -> BrokerProcess:
    path = os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")])
    data = broken.parents[1] / "data"
    return BrokerProcess(data, env={"PYTHONPATH": path}, is_forked=False, **flags)


def is_served(broker: BrokerProcess) -> bool:
    link = Link(broker.amqp_port)
    link.open_channel(1)
    link.close()
    return True


def test_http_that_cannot_be_loaded_is_refused_and_the_broker_goes_on(broken: Path) -> None:
    with broker_with(broken) as broker:
        for _ in range(2):
            status, answer = broker.http("GET", "/healthz", user=None)
            assert (status, answer["error"]) == (503, "not_loaded")
            assert is_served(broker)
        assert broker.log().count("http.not_loaded") == 2
        assert "of another version" in broker.log()
        shutil.rmtree(broken)
        assert broker.http("GET", "/healthz", user=None)[0] == 200
        assert broker.stop() == 0


def test_a_broker_that_cannot_load_http_stops_cleanly(broken: Path) -> None:
    with broker_with(broken) as broker:
        assert broker.http("GET", "/healthz", user=None)[0] == 503
        assert broker.stop() == 0
        assert "server.unexpected" not in broker.log()


def seen(broker: BrokerProcess, path: str) -> tuple[int, str]:
    """Status and text that a browser gets."""
    request = urllib.request.Request(f"{broker.url}{path}", headers={"Accept": "text/html"})
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("package", "path", "what"),
    [("jinja2", "/", "the page"), ("prometheus_client", "/metrics", "the metrics")],
)
def test_a_part_of_http_that_cannot_be_loaded_is_refused_and_the_others_go_on(
    tmp_path: Path, package: str, path: str, what: str
) -> None:
    gone = shadow(tmp_path, package)
    with broker_with(gone) as broker:
        for _ in range(2):
            status, text = seen(broker, path)
            assert status == 503
            assert json.loads(text)["error"] == "not_loaded"
            assert f"the code of {what} cannot be loaded" in text
            assert broker.http("GET", "/api/tallymark/status")[0] == 200
        assert "of another version" in broker.log()
        shutil.rmtree(gone)
        until(lambda: seen(broker, path)[0] == 200)
        assert broker.stop() == 0


def test_a_reload_that_needs_code_that_cannot_be_loaded_changes_nothing(
    broken: Path, tmp_path: Path
) -> None:
    """It was made by half: nothing after the shovels was in effect, and nobody was told."""
    file = tmp_path / "tallymark.toml"
    file.write_text("")
    with broker_with(broken, config=str(file)) as broker:
        address = json.dumps(broker.amqp_url())
        file.write_text(
            "log_level = 'warning'\n[[shovels]]\nname = 's'\nqueue = 'a'\nto-queue = 'b'\n"
            f"from = {address}\nto = {address}\n"
        )
        os.kill(broker.pid, signal.SIGHUP)
        until(lambda: "config.refused" in broker.log())
        assert "the code of shovels cannot be loaded" in broker.log()
        assert "server.unexpected" not in broker.log()
        assert is_served(broker)
        shutil.rmtree(broken)

        def is_started() -> bool:
            os.kill(broker.pid, signal.SIGHUP)
            return "shovel.started" in broker.log()

        until(is_started)
        assert broker.stop() == 0


def test_auth_of_nsq_that_cannot_be_asked_for_is_refused(broken: Path) -> None:
    """The client was cut off, and the log had a traceback of its connection."""
    [door] = [door for door in DOORS if door.name == "nsq"]
    with broker_with(broken, auth_http_address="127.0.0.1:1") as broker:
        raw = door.connect(broker)
        raw.sendall(MAGIC + auth(b"secret"))
        with raw:
            assert b"E_AUTH_FAILED" in until_closed(raw)
        assert "nsq.not_loaded" in broker.log()
        assert "connection.broken" not in broker.log()
        assert is_served(broker)
