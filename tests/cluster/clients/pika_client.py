"""pika: `BlockingConnection` takes a list and tries one after the other. The last one's attempts
and pause are those of the whole list."""

from __future__ import annotations

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.cluster.clients import told

HOSTS = [pika.URLParameters(f"amqp://guest:guest@{host}/%2F") for host in told.hosts()]
HOSTS[-1].connection_attempts = 1000
HOSTS[-1].retry_delay = 0.1


def publish(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    for number in told.numbers():
        body = b"%d" % number
        channel.basic_publish("", told.queue(), body, pika.BasicProperties(delivery_mode=2))
        told.confirmed(number)


def consume(channel: BlockingChannel) -> None:
    for method, _, body in channel.consume(told.queue()):
        told.received(int(body))
        channel.basic_ack(method.delivery_tag)


while not told.is_enough():
    try:
        with pika.BlockingConnection(HOSTS) as connection:
            channel = connection.channel()
            channel.queue_declare(told.queue(), durable=True)
            (publish if told.is_publisher() else consume)(channel)
    except AMQPError:
        continue  # the leader is gone: through the list again
