"""One broker for all interop tests of a worker, or another one to compare with.

INTEROP_PORT=25672 runs the same tests against a broker that listens there (RabbitMQ, say): what it
passes, ours must pass. Tests that start, stop or ask our own broker are skipped then.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.process import BrokerProcess

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
