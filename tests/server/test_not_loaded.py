"""Code that is loaded late and cannot be loaded, as after an upgrade of the package in place: the
broker goes on, and says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bench.lean import Link
from tests.support.process import BrokerProcess

BROKEN = "raise ImportError('of another version')\n"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A package that is found in place of aiohttp."""
    package = tmp_path / "shadow" / "aiohttp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN)
    return package


def broker_with(broken: Path) -> BrokerProcess:
    path = os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")])
    data = broken.parents[1] / "data"
    return BrokerProcess(data, env={"PYTHONPATH": path}, is_forked=False)


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
