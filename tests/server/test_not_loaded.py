"""Code that is loaded late and cannot be loaded, as after an upgrade of the package in place: the
broker goes on, and says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bench.lean import Link
from tests.support.process import BrokerProcess

BROKEN = "raise ImportError('of another version')\n"


def is_served(broker: BrokerProcess) -> bool:
    link = Link(broker.amqp_port)
    link.open_channel(1)
    link.close()
    return True


def test_http_that_cannot_be_loaded_is_refused_and_the_broker_goes_on(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    (shadow / "aiohttp").mkdir(parents=True)
    (shadow / "aiohttp" / "__init__.py").write_text(BROKEN)
    path = os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")])
    with BrokerProcess(tmp_path / "data", env={"PYTHONPATH": path}, is_forked=False) as broker:
        for _ in range(2):
            status, answer = broker.http("GET", "/healthz", user=None)
            assert (status, answer["error"]) == (503, "not_loaded")
            assert is_served(broker)
        assert broker.log().count("http.not_loaded") == 2
        assert "of another version" in broker.log()
        shutil.rmtree(shadow / "aiohttp")
        assert broker.http("GET", "/healthz", user=None)[0] == 200
        assert broker.stop() == 0


def test_a_broker_that_cannot_load_http_stops_cleanly(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    (shadow / "aiohttp").mkdir(parents=True)
    (shadow / "aiohttp" / "__init__.py").write_text(BROKEN)
    path = os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")])
    with BrokerProcess(tmp_path / "data", env={"PYTHONPATH": path}, is_forked=False) as broker:
        assert broker.http("GET", "/healthz", user=None)[0] == 503
        assert broker.stop() == 0
        assert "server.unexpected" not in broker.log()
