"""The broker's memory after a burst: what was freed goes back to the system."""

from __future__ import annotations

from pathlib import Path

import pika

from tests.server.lines import memory_mib
from tests.support.patience import until
from tests.support.process import BrokerProcess

COUNT, BODY = 10_000, b"x" * 4000
BURST_MIB = COUNT * len(BODY) // (1 << 20)


def test_memory_of_messages_that_are_gone_goes_back_to_the_system(tmp_path: Path) -> None:
    """One message of a hundred stays: behind each of those is free memory."""
    with (
        BrokerProcess(tmp_path / "data") as broker,
        pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection,
    ):
        channel = connection.channel()
        channel.queue_declare("gone")
        channel.queue_declare("stays")
        channel.basic_publish("", "gone", BODY)
        before = memory_mib(broker)
        for n in range(COUNT):
            channel.basic_publish("", "gone" if n % 100 else "stays", BODY)
        assert channel.queue_declare("stays", passive=True).method.message_count == COUNT // 100
        assert memory_mib(broker) > before + BURST_MIB / 2
        channel.queue_delete("gone")
        until(lambda: memory_mib(broker) < before + BURST_MIB / 4)
