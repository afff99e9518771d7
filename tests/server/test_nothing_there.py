"""Who is told that there is no such thing may rely on it: its removal is on disk by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pika
import pytest

from tests.faults.disks import Shim, make_shim
from tests.server.faces import nsq_http
from tests.support.patience import until
from tests.support.process import BrokerProcess

QUEUE = "/api/queues/%2F/q"
LONG_ENOUGH_S = 0.5
"""An answer that waits for nothing comes sooner; where it does not, the test finds less."""


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Shim]:
    made = make_shim(tmp_path / "shim")
    yield made
    made.go_on()


def deleted_over_http(broker: BrokerProcess) -> int:
    return broker.http("DELETE", QUEUE)[0]


def deleted_over_amqp(broker: BrokerProcess) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        connection.channel().queue_delete("q")
    return 404


@pytest.mark.parametrize("delete", [deleted_over_http, deleted_over_amqp])
def test_the_second_to_delete_is_not_told_before_the_first(
    tmp_path: Path, shim: Shim, delete: Callable[[BrokerProcess], int]
) -> None:
    """World 8807397: the power went, and the queue was back."""
    with BrokerProcess(tmp_path / "data", env=shim.env) as broker, ThreadPoolExecutor(2) as pool:
        assert broker.http("PUT", QUEUE, {"durable": True})[0] == 201
        shim.hang()
        try:
            first: Future[int] = pool.submit(broker.http, "DELETE", QUEUE)  # type: ignore[arg-type]
            until(lambda: broker.http("GET", QUEUE)[0] == 404)
            second = pool.submit(delete, broker)
            assert not wait([first, second], LONG_ENOUGH_S).done
        finally:
            shim.go_on()
        assert second.result() == 404


def test_nor_over_nsq(tmp_path: Path, shim: Shim) -> None:
    """The answer that there is no such topic came at once."""
    with BrokerProcess(tmp_path / "data", env=shim.env) as broker, ThreadPoolExecutor(2) as pool:

        def post(path: str) -> int:
            return nsq_http(broker, "POST", path, b"", "")[0]

        assert post("/topic/create?topic=t") == 200
        shim.hang()
        try:
            first = pool.submit(post, "/topic/delete?topic=t")
            until(lambda: "t:" not in broker.queues())
            second = pool.submit(post, "/topic/delete?topic=t")
            assert not wait([first, second], LONG_ENOUGH_S).done
        finally:
            shim.go_on()
        assert second.result() == 404
