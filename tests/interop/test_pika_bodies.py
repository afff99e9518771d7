"""Bodies of every size over frames of several sizes, and many channels on one connection."""

from __future__ import annotations

import hashlib
import random
from itertools import zip_longest

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from bench.lean import ACK, DELIVER, PERSISTENT, Link, publish, settle
from tests.interop.blocking import Inbox, bodies, connect, drain, fill, numbered, queue

MIB = 1 << 20


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize(
    "size", [0, 1, 131_064, 131_065, 100 * 1024, 10 * MIB], ids=lambda size: f"{size}B"
)
def test_body_arrives_as_it_was_sent(channel: BlockingChannel, size: int) -> None:
    target = queue(channel, exclusive=True, durable=True)
    body = content(size)
    fill(channel, target, body, b"after")
    inbox = Inbox(channel, target)
    assert bodies(inbox.wait(2)) == [body, b"after"]


@pytest.mark.parametrize(("sender", "receiver"), [(131_072, 4_096), (4_096, 131_072)])
def test_body_is_cut_to_the_frame_size_of_the_receiver(
    port: int, sender: int, receiver: int, name: str
) -> None:
    with connect(port, frame_max=sender) as source, connect(port, frame_max=receiver) as sink:
        channel = source.channel()
        queue(channel, name)
        sent = [content(size) for size in (0, 10, 4_088, 4_089, 300_000)]
        fill(channel, name, *sent)
        inbox = Inbox(sink.channel(), name)
        assert bodies(inbox.wait(len(sent))) == sent
        channel.queue_delete(name)


def test_largest_body_of_128_mib(port: int, name: str) -> None:
    link = Link(port)
    link.open_channel(1, confirms=True)
    link.open_channel(2, prefetch=1)
    link.declare_queue(name)
    body = content(MIB) * 128
    link.socket.sendall(publish(1, "", name, PERSISTENT, body, link.frame_max))
    link.wait(ACK)
    link.consume(2, name)
    received = b""
    while not received:
        received = b"".join(event[4] for event in link.events() if event[0] == DELIVER)
        assert received or link.fill()
    assert len(received) == len(body)
    assert hashlib.sha1(received).digest() == hashlib.sha1(body).digest()
    link.socket.sendall(settle(2, ACK, 1, 0))
    link.call(1, (50, 40), b"\x00\x00" + bytes([len(name)]) + name.encode() + b"\x00")
    link.close()


def test_larger_body_than_allowed_closes_the_channel_only(
    connection: pika.BlockingConnection,
) -> None:
    channel = connection.channel()
    target = queue(channel, exclusive=True)

    def publish_and_ask() -> None:
        channel.basic_publish("", target, bytes(128 * MIB + 1))
        channel.queue_declare(target, passive=True)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        publish_and_ask()
    assert caught.value.reply_code == 406
    assert "larger than configured max size 134217728" in caught.value.reply_text
    assert drain(connection.channel(), target) == []


def test_bodies_interleaved_over_channels_stay_apart(port: int, name: str) -> None:
    """Frames of several contents in turn on one connection [amqp-0.9.1 §4.2.6]."""
    link = Link(port)
    sent = {channel: content(300_000 + channel) for channel in range(1, 6)}
    queues = {channel: f"{name}-{channel}" for channel in sent}
    for channel, target in queues.items():
        link.open_channel(channel, confirms=True)
        arguments = b"\x00\x00" + bytes([len(target)]) + target.encode() + b"\x04" + bytes(4)
        link.call(channel, (50, 10), arguments)  # exclusive
    frames = [
        cut_to_frames(publish(channel, "", queues[channel], PERSISTENT, body))
        for channel, body in sent.items()
    ]
    for turn in zip_longest(*frames, fillvalue=b""):
        link.socket.sendall(b"".join(turn))
    for _ in sent:
        link.wait(ACK)
    for channel, target in queues.items():
        link.open_channel(channel + 100)
        link.consume(channel + 100, target)
    received: dict[int, bytes] = {}
    while len(received) < len(sent):
        received |= {event[1] - 100: event[4] for event in link.events() if event[0] == DELIVER}
        assert len(received) == len(sent) or link.fill()
    assert received == sent
    link.close()


def cut_to_frames(data: bytes) -> list[bytes]:
    frames = []
    while data:
        end = 8 + int.from_bytes(data[3:7], "big")
        frames.append(data[:end])
        data = data[end:]
    return frames


def test_many_channels_on_one_connection(connection: pika.BlockingConnection) -> None:
    channels = [connection.channel() for _ in range(200)]
    target = queue(channels[0], exclusive=True)
    for channel, body in zip(channels, numbered(200), strict=True):
        channel.basic_publish("", target, body)
        channel.basic_qos(prefetch_count=1)
    for channel in channels[:100]:
        channel.queue_declare(target, passive=True)  # its publish has been handled
    for channel in channels[100:]:
        channel.close()
    inboxes = [Inbox(channel, target) for channel in channels[:100]]
    for inbox in inboxes:
        inbox.wait(1)
    for channel in channels[:100]:
        channel.close()
    reader = connection.channel()
    assert sorted(bodies(drain(reader, target)), key=int) == numbered(200)
