"""Tallymark's client: `connect` takes the list; the scheme says which protocol."""

from __future__ import annotations

import asyncio
import os

from tallymark.client import Backoff, ClientError, connect
from tests.cluster.clients import told

SCHEME = os.environ.get("CLIENT_SCHEME", "amqp")
URLS = [f"{SCHEME}://guest:guest@{host}" for host in told.hosts()]


async def main() -> None:
    async with (
        connect(URLS, reconnect=Backoff(max_ms=200)) as connection,
        connection.session() as session,
    ):
        await session.declare_queue(told.queue())
        if told.is_publisher():
            async with session.sender(f"/queues/{told.queue()}") as sender:
                for number in told.numbers():
                    try:
                        await sender.send(b"%d" % number)
                    except ClientError:
                        continue  # not confirmed; the same again, to whoever leads
                    told.confirmed(number)
        else:
            async with session.receiver(f"/queues/{told.queue()}", credit=10) as receiver:
                while True:
                    message = await receiver.receive()
                    told.received(int(bytes(message.body)))
                    try:
                        await message.accept()
                    except ClientError:
                        continue  # it comes again


asyncio.run(main())
