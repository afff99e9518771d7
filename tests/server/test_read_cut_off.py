"""A READ whose range goes away while it is being answered ends; it neither lies nor goes on."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.server.test_subscriptions_http import BASE, attach, lease, settle
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

COUNT = 12
BODY = bytes(2_000_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=running.amqp_port))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        for _ in range(COUNT):
            channel.basic_publish("", "orders", BODY, pika.BasicProperties(delivery_mode=2))
        connection.close()
        yield running


@pytest.mark.parametrize("end", ["settled", "dropped", "dropped beside another"])
def test_a_range_that_ends_while_it_is_read_cuts_the_answer_off(
    broker: BrokerProcess, end: str
) -> None:
    held = attach(broker)
    if end == "dropped beside another":
        status, _ = broker.http("POST", f"{BASE.replace('table', 'other')}/attach", {})
        assert status == 200
    assert lease(broker, held, 0) == (200, {"end": COUNT})
    reader = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=PATIENCE_S)
    path = f"{BASE}/read?fence={held['fence']}&epoch={held['epoch']}&from=0&to={COUNT}"
    reader.request("GET", path, headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    answer = reader.getresponse()  # more than the sockets hold: the broker waits for us
    assert answer.status == 200
    if end == "settled":
        assert settle(broker, held, COUNT) == (200, {"floor": COUNT})
    else:
        assert broker.http("DELETE", BASE) == (200, {"released": COUNT})
    with pytest.raises((http.client.IncompleteRead, ConnectionError)) as cut_off:
        answer.read(2 * COUNT * len(BODY))
    if isinstance(cut_off.value, http.client.IncompleteRead):
        assert len(cut_off.value.partial) < COUNT * len(BODY)
        assert b"HTTP/1.1" not in cut_off.value.partial[-1000:]
    status, _ = broker.http("GET", "/healthz")
    assert status == 200
