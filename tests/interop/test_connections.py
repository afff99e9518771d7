"""Heartbeats, negotiation, addresses, and brokers that stop and come back."""

from __future__ import annotations

import time
from pathlib import Path

import pika
import pytest

from bench.lean import Link
from tests.interop.blocking import (
    Inbox,
    bodies,
    connect,
    depth,
    drain,
    fill,
    numbered,
    queue,
    wait_until,
)
from tests.support.process import BrokerDied, BrokerProcess


def test_client_with_short_heartbeat_stays_connected(port: int) -> None:
    with connect(port, heartbeat=1) as connection:
        checker = connection._impl._heartbeat_checker
        wait_until(connection, lambda: checker._heartbeat_frames_received > 3)
        assert checker._heartbeat_frames_sent > 2
        assert connection.channel().is_open


def test_silent_client_is_closed_after_two_heartbeats(port: int) -> None:
    began = time.monotonic()
    link = Link(port, heartbeat_s=1)
    try:
        while link.fill():
            link.events()
    except ConnectionError:
        pass
    assert time.monotonic() - began > 1.0
    assert link.heartbeats >= 1
    link.drop()


def test_negotiated_values_are_the_smaller_ones(port: int) -> None:
    with connect(port, channel_max=10, frame_max=8192, heartbeat=7) as connection:
        params = connection._impl.params
        assert (params.channel_max, params.frame_max, params.heartbeat) == (10, 8192, 7)
        channels = [connection.channel() for _ in range(10)]
        assert all(channel.is_open for channel in channels)
        with pytest.raises(pika.exceptions.AMQPError):
            connection.channel()


def test_server_names_itself_and_its_capabilities(connection: pika.BlockingConnection) -> None:
    properties = connection._impl.server_properties
    assert {"product", "version", "platform", "capabilities"} <= properties.keys()
    wanted = {
        "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
        "connection.blocked", "consumer_priorities", "authentication_failure_close",
        "per_consumer_qos", "direct_reply_to",
    }  # fmt: skip
    assert all(properties["capabilities"].get(capability) is True for capability in wanted)


def test_amqplain_is_accepted(port: int) -> None:
    class Amqplain(pika.PlainCredentials):
        TYPE = "AMQPLAIN"

        def response_for(self, start: object) -> tuple[str, bytes]:
            pairs = [("LOGIN", self.username), ("PASSWORD", self.password)]
            return self.TYPE, b"".join(
                bytes([len(key)]) + key.encode() + b"S" + len(value).to_bytes(4, "big")
                + value.encode()
                for key, value in pairs
            )  # fmt: skip

    pika.credentials.VALID_TYPES.append(Amqplain)
    try:
        with connect(port, credentials=Amqplain("guest", "guest")) as connection:
            assert connection.channel().is_open
    finally:
        pika.credentials.VALID_TYPES.remove(Amqplain)


@pytest.mark.usefixtures("only_ours")
def test_ipv6(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", host="127.0.0.1,::1") as broker:
        addresses = broker.ready["listeners"]["amqp"]
        (v6_port,) = [address[1] for address in addresses if address[0] == "::1"]
        parameters = pika.ConnectionParameters("::1", v6_port)
        with pika.BlockingConnection(parameters) as connection:
            target = queue(connection.channel(), exclusive=True)
            assert target.startswith("amq.gen-")
        with connect(broker.amqp_port) as connection:
            assert connection.is_open


@pytest.mark.usefixtures("only_ours")
def test_second_broker_on_the_folder_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with pytest.raises(BrokerDied, match=str(broker.pid)):
            BrokerProcess(tmp_path / "data").start()
        with connect(broker.amqp_port) as connection:
            assert connection.channel().is_open


@pytest.mark.usefixtures("only_ours")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_durable_things_outlive_the_broker(tmp_path: Path, end: str) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    connection = connect(broker.amqp_port)
    channel = connection.channel()
    channel.confirm_delivery()
    queue(channel, "kept", durable=True)
    queue(channel, "gone", durable=False)
    channel.exchange_declare("kept", "topic", durable=True)
    channel.exchange_declare("gone", "topic", durable=False)
    channel.queue_bind("kept", "kept", "a.#")
    fill(channel, "a.b", *numbered(20), exchange="kept")
    channel.basic_publish("", "kept", b"transient", pika.BasicProperties(delivery_mode=1))
    channel.basic_qos(prefetch_count=6)
    inbox = Inbox(channel, "kept")
    inbox.wait(6)
    channel.basic_ack(2)
    channel.basic_ack(1)
    channel.basic_nack(4, requeue=False)
    inbox.wait(3)
    fill(channel, "a.b", b"20", exchange="kept")  # its confirm covers the settlements too
    if end == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.restart()
    with connect(broker.amqp_port) as again:
        channel = again.channel()
        for missing in (queue, channel.__class__.exchange_declare):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
                missing(again.channel(), "gone", passive=True)
        channel.exchange_declare("kept", "topic", durable=True)
        assert depth(channel, "kept") == 18
        found = drain(channel, "kept")
        expected = [n for n in range(21) if n not in (0, 1, 3)]
        assert bodies(found) == [b"%d" % number for number in expected]
        flags = {int(m.body): m.method.redelivered for m in found}
        assert all(flags[number] for number in (2, 4, 5, 6, 7, 8))
        fill(channel, "a.c", b"routed", exchange="kept")
        assert bodies(drain(channel, "kept")) == [b"routed"]
    assert broker.stop() == 0
