"""A fault in what one client is told costs that client's connection, and nothing else.

The fault is put in from outside: a module that Python imports when the broker starts. It stands for
a message that a bridge cannot put into words, which is a bug wherever it happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.support.process import BrokerProcess

FAULT = """
from tallymark.server.alarms import Alarms

enter = Alarms.enter

def faulty(alarms, client):
    for queue in alarms._broker.queues.values():
        if queue.name == "poison":
            for consumer in queue.consumers:
                consumer.handle = "no words for this message"
    enter(alarms, client)

Alarms.enter = faulty  # called when a client first publishes
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with BrokerProcess(tmp_path / "data", env={"PYTHONPATH": path}) as running:
        yield running


def test_a_message_that_cannot_be_put_into_words_costs_one_connection(
    broker: BrokerProcess,
) -> None:
    where = pika.ConnectionParameters(port=broker.amqp_port)
    good, bad = pika.BlockingConnection(where), pika.BlockingConnection(where)
    one, other = good.channel(), bad.channel()
    one.confirm_delivery()
    got: list[bytes] = []
    one.basic_consume(
        one.queue_declare("fine").method.queue, lambda *seen: got.append(seen[3]), auto_ack=True
    )
    one.queue_declare("poison", durable=True)
    other.basic_consume("poison", lambda *seen: pytest.fail(f"got {seen}"))
    one.basic_publish("", "poison", b"x", pika.BasicProperties(delivery_mode=2))
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        other.start_consuming()
    one.basic_publish("", "fine", b"y")
    good.process_data_events(0)
    while not got:
        good.process_data_events(1)
    assert got == [b"y"]
    method, _, body = one.basic_get("poison")
    assert (body, method.redelivered) == (b"x", True)
    one.basic_ack(method.delivery_tag)
    good.close()
    assert broker.stop() == 0
    broken = [line for line in broker.log().splitlines() if "connection.broken" in line]
    assert len(broken) == 1
    assert "AssertionError" in broken[0]
