"""aio-pika: `connect_robust` goes on with the host that it has. A list is a loop over `connect`."""

from __future__ import annotations

import asyncio
from itertools import cycle

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPException

from tests.cluster.clients import told

PAUSE_S = 0.1


async def publish(channel: AbstractChannel) -> None:
    for number in told.numbers():
        message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, told.queue())
        told.confirmed(number)


async def consume(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(told.queue(), durable=True)
    async with queue.iterator() as messages:
        async for message in messages:
            told.received(int(message.body))
            await message.ack()


async def main() -> None:
    for host in cycle(told.hosts()):
        try:
            connection = await aio_pika.connect(f"amqp://guest:guest@{host}/")
            async with connection:
                channel = await connection.channel()  # with confirms
                await channel.declare_queue(told.queue(), durable=True)
                await (publish if told.is_publisher() else consume)(channel)
        except (OSError, AMQPException, asyncio.CancelledError):
            await asyncio.sleep(PAUSE_S)  # the next of the list
        if told.is_enough():
            return


asyncio.run(main())
