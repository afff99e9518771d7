"""The demo's second client, in a process of its own: aio-pika, consuming, settling and rejecting.

    python -m tallymark_demo.worker AMQP_URL QUEUE [CRASH_AFTER]

It works until the queue is empty. With CRASH_AFTER it stops in the middle of its work after so many
messages, says how many it holds unsettled, and waits for the kill that the demo has ready for it.
One JSON object on stdout is its report.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final

import aio_pika

from tallymark_demo.input import refuses

PREFETCH: Final = 200
QUIET_S: Final = 0.5
"""Seconds without a delivery after which the work is done, if no message is ready in the queue."""


async def work(url: str, queue_name: str, crash_after: int | None) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(queue_name)
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        await queue.consume(inbox.put)
        report = {"settled": 0, "rejected": 0, "redelivered": 0}
        while True:
            try:
                message = await asyncio.wait_for(inbox.get(), QUIET_S)
            except TimeoutError:
                if await _ready(channel, queue_name) == 0:
                    break
                continue
            report["redelivered"] += bool(message.redelivered)
            if refuses(str(message.content_type), message.body):
                await message.reject(requeue=False)
                report["rejected"] += 1
            else:
                await message.ack()
                report["settled"] += 1
            if crash_after and report["settled"] + report["rejected"] >= crash_after:
                await _wait_for_the_kill(inbox, report)
        say(report)


async def _ready(channel: Any, queue_name: str) -> int:
    queue = await channel.declare_queue(queue_name, passive=True)
    return int(queue.declaration_result.message_count or 0)


async def _wait_for_the_kill(inbox: asyncio.Queue[Any], report: dict[str, int]) -> None:
    # The window fills up again: these messages are what the crash leaves unsettled.
    held = 0
    try:
        while held < PREFETCH // 2:
            await asyncio.wait_for(inbox.get(), QUIET_S)
            held += 1
    except TimeoutError:
        pass  # the queue had no more than that
    say({**report, "holding": held + inbox.qsize()})
    await asyncio.Event().wait()


def say(report: dict[str, int]) -> None:
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None))
