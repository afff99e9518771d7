"""One broker for all interop tests of a worker, or another one to compare with.

INTEROP_PORT=25672 runs the same tests against a broker that listens there (RabbitMQ, say): what it
passes, ours must pass. Tests that start, stop or ask our own broker are skipped then.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.slow_cases import RULES
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq

OTHER_PORT = os.environ.get("INTEROP_PORT", "")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Our own broker, with its process at hand."""
    if OTHER_PORT:
        pytest.skip("needs a broker of our own")
    with BrokerProcess(tmp_path_factory.mktemp("interop") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def port(request: pytest.FixtureRequest) -> int:
    """Where the broker under test listens."""
    if OTHER_PORT:
        return int(OTHER_PORT)
    process: BrokerProcess = request.getfixturevalue("broker")
    return process.amqp_port


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitProcess]:
    """A private RabbitMQ for a module, to compare with."""
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed")
    if OTHER_PORT:
        pytest.skip("starts both brokers itself")
    with RabbitProcess(script, tmp_path_factory.mktemp("rabbitmq")) as process:
        if not process.version.startswith("3.10."):
            pytest.skip(f"compared is RabbitMQ 3.10, installed is {process.version}")
        yield process


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker beside it that has only the queues of one module: their names are plain."""
    with BrokerProcess(tmp_path_factory.mktemp("side-by-side") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def slow_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that looks every 100 ms whether consumers are slow, see slow_cases.py."""
    if OTHER_PORT:
        pytest.skip("starts brokers of our own")
    folder = tmp_path_factory.mktemp("slow") / "data"
    with BrokerProcess(
        folder, slow_consumers=json.dumps(RULES), write_high_water="64KiB", log_format="json"
    ) as process:
        yield process


@pytest.fixture
def only_ours() -> None:
    """For tests that run brokers of their own."""
    if OTHER_PORT:
        pytest.skip("starts brokers of our own")


@pytest.fixture
def name() -> str:
    """A name for queues and exchanges that no other test has."""
    return f"interop-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def connection(port: int) -> Iterator[pika.BlockingConnection]:
    """A connection with pika's defaults, closed at the end."""
    opened = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel on `connection`."""
    return connection.channel()
