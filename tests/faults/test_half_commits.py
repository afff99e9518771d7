"""A disk that hangs: what a commit publishes reaches nobody before the disk has it [TX-D1]."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from tests.faults.disks import make_shim
from tests.support.patience import until
from tests.support.process import BrokerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES = {"committed": True, "plain": True, "probe": False}
"""By name: whether it is durable."""


@pytest.mark.parametrize("deliver_after", ["written", "synced"])
def test_tx_d1_nobody_is_given_what_a_crash_undoes(tmp_path: Path, deliver_after: str) -> None:
    """A transient message behind the commit shows that the broker has seen it."""
    shim = make_shim(tmp_path / "shim")
    broker = BrokerProcess(tmp_path / "data", env=shim.env, deliver_after=deliver_after)
    found: list[bytes] = []

    def take(_channel: object, _method: object, _properties: object, body: bytes) -> None:
        found.append(body)

    with broker:
        port = pika.ConnectionParameters(port=broker.amqp_port)
        taking, giving = pika.BlockingConnection(port), pika.BlockingConnection(port)
        taker, giver, committer = taking.channel(), giving.channel(), giving.channel()
        for name, durable in QUEUES.items():
            taker.queue_declare(name, durable=durable)
            taker.basic_consume(name, take, auto_ack=True)
            giver.basic_publish("", name, b"first", PERSISTENT)  # from now on it has a mark
        until(lambda: len(found) == len(QUEUES), lambda: taking.process_data_events(0.05))
        committer.tx_select()
        committer.basic_publish("", "committed", b"half", PERSISTENT)
        shim.hang()
        giver.basic_publish("", "plain", b"plain", PERSISTENT)
        committer._impl.tx_commit(lambda _frame: found.append(b"committed"))  # no waiting for it
        giver.basic_publish("", "probe", b"probe")
        giving.process_data_events(0)
        until(lambda: b"probe" in found, lambda: taking.process_data_events(0.05))
        assert (b"plain" in found) == (deliver_after == "written")
        assert b"half" not in found
        broker.kill()
        shim.go_on()
        broker.restart()
        again = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        assert again.channel().basic_get("committed", auto_ack=True)[2] != b"half"
        again.close()
