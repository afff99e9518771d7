"""pynsq: readers ask nsqlookupd, with which a broker is registered while it leads; a writer has the
list, and publishes on those of its connections that are open."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import nsq

from tests.cluster.clients import told

LOOKUPD = os.environ["NSQLOOKUPD"]


async def publish() -> None:
    writer = nsq.Writer(told.hosts(), reconnect_interval=0.1)
    for number in told.numbers():
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def answered(
            connection: Any, data: object, answer: asyncio.Future[object] = answer
        ) -> None:
            if not answer.done():
                answer.set_result(data)

        writer.pub(told.queue(), b"%d" % number, answered)
        if await answer == b"OK":
            told.confirmed(number)
        else:
            await asyncio.sleep(0.1)  # no connection is open, or the answer is lost


def consume() -> None:
    def handle(message: Any) -> bool:
        told.received(int(message.body))
        return True  # finishes it

    nsq.Reader(
        told.queue(), "all", handle, lookupd_http_addresses=[LOOKUPD], lookupd_poll_interval=1,
        max_in_flight=10, max_tries=0,
    )  # fmt: skip


async def main() -> None:
    if told.is_publisher():
        await publish()
    else:
        consume()
        await asyncio.Event().wait()


asyncio.run(main())
