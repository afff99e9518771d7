"""A broker in this process, for tests that look at what it holds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from tallymark.server import run
from tallymark.server.config.settings import Config
from tallymark.server.http.server import HttpServer
from tallymark.server.nsq.service import NsqService
from tallymark.server.opening import open_node


def bound() -> list[socket.socket]:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return [made]


async def with_broker(
    folder: Path, play: Callable[[dict[str, int], run.Node], Awaitable[None]]
) -> None:
    """A broker in this process."""
    loop = asyncio.get_running_loop()
    node = open_node(Config(data_dir=folder, sync="interval", auto_create_queues="^churn$"), loop)
    service = NsqService(node, None)
    [amqp], http, nsq, nsq_http = bound(), bound(), bound(), bound()
    listener = await run._listen(node, run.amqp_settings(node), amqp, None)
    server = HttpServer(node)
    ports = {
        "amqp_port": amqp.getsockname()[1],
        "http_port": (await server.start(http))[0][1],
    }
    await service.start(nsq, nsq_http, [])
    await service.start_http(nsq_http, [], None)
    ports["nsq_port"] = service.addresses[0][1]
    ports["nsq_http_port"] = service.http_addresses[0][1]
    try:
        await play(ports, node)
    finally:
        listener.close()
        await service.stop()
        await server.stop()
        await run._close(node)
