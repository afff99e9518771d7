#!/usr/bin/env python3
"""What the clients cost: `tallymark.client` beside python-qpid-proton, in one run.

A queue of Tallymark is filled with small messages; then each client, in a process of its own,
receives them and accepts each, with the same credit. Measured is the client's own CPU time (user
plus system) from its first message to its last settlement, whatever the broker does meanwhile on
another core. python-qpid-proton is used as its manual recommends: a MessagingHandler with prefetch
that accepts by itself, its fastest way.

    clients.py [--messages 200000] [--credit 1000] [--size 16] [--runs 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import scratch, tallymark
from tallymark.client import ACCEPTED, Receiver, connect

QUEUE = "clients"
URL = "amqp://guest:guest@127.0.0.1:{port}"
LIMIT_S = 300


def ours(port: int, messages: int, credit: int, form: str) -> float:
    """CPU seconds of `tallymark.client`."""

    async def receive() -> float:
        async with (
            connect(URL.format(port=port)) as connection,
            connection.session() as session,
            session.receiver(f"/queues/{QUEUE}", credit=credit) as receiver,
        ):
            if form == "batch":
                return await by_batches(receiver)
            began, count = 0.0, 0
            async for message in receiver:
                began = began or time.process_time()
                await message.accept()
                count += 1
                if count == messages:
                    break
            await asyncio.sleep(0)
            return time.process_time() - began

    async def by_batches(receiver: Receiver) -> float:
        began, count = 0.0, 0
        while count < messages:
            wanted = min(max(1, credit // 2), messages - count)
            batch = await receiver.receive_batch(wanted, None)
            began = began or time.process_time()
            await receiver.settle_many(batch, ACCEPTED)
            count += len(batch)
        return time.process_time() - began

    return asyncio.run(receive())


def protons(port: int, messages: int, credit: int, form: str) -> float:
    """CPU seconds of python-qpid-proton."""
    from proton import Event
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    class Reader(MessagingHandler):
        def __init__(self) -> None:
            super().__init__(prefetch=credit)
            self.began = self.spent = 0.0
            self.count = 0

        def on_start(self, event: Event) -> None:
            connection = event.container.connect(URL.format(port=port), sasl_enabled=True)
            event.container.create_receiver(connection, f"/queues/{QUEUE}")

        def on_message(self, event: Event) -> None:
            self.began = self.began or time.process_time()
            self.count += 1
            if self.count == messages:
                self.spent = time.process_time() - self.began
                event.connection.close()

    reader = Reader()
    Container(reader).run()
    return reader.spent


CLIENTS: dict[str, Callable[[int, int, int, str], float]] = {"ours": ours, "proton": protons}
MEASURED = [
    ("tallymark.client, async for + accept", "ours", "each"),
    ("tallymark.client, receive_batch + settle_many", "ours", "batch"),
    ("python-qpid-proton, MessagingHandler", "proton", "each"),
]


def fill(port: int, messages: int, size: int) -> None:
    async def send() -> None:
        async with (
            connect(URL.format(port=port)) as connection,
            connection.session() as session,
            session.sender(f"/queues/{QUEUE}", settle_mode="settled") as sender,
        ):
            for first in range(0, messages, 10_000):
                await sender.send_batch([bytes(size)] * min(10_000, messages - first))

    asyncio.run(send())


def measure(port: int, client: str, form: str, messages: int, credit: int, size: int) -> float:
    """Microseconds of the client's CPU per message."""
    fill(port, messages, size)
    arguments = [client, form, str(port), str(messages), str(credit)]
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    return float(json.loads(done.stdout)) / messages * 1e6


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        client, form, port, messages, credit = sys.argv[2:]
        print(json.dumps(CLIENTS[client](int(port), int(messages), int(credit), form)))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--credit", type=int, default=1000)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    print("| client | us of CPU a message | messages/s of one core |\n|---|---|---|")
    with scratch() as folder, tallymark(folder / "data") as broker:
        declare(broker.http_port)
        for name, client, form in MEASURED:
            costs = [
                measure(broker.port, client, form, asked.messages, asked.credit, asked.size)
                for _ in range(asked.runs)
            ]
            middle = statistics.median(costs)
            print(f"| {name} | {middle:.2f} | {1e6 / middle:,.0f} |", flush=True)
    return 0


def declare(http_port: int | None) -> None:
    url = f"http://127.0.0.1:{http_port}/api/queues/%2F/{QUEUE}"
    request = urllib.request.Request(url, b'{"durable": false}', method="PUT")
    request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    sys.exit(main())
