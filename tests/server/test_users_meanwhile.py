"""Changes of users take time: passwords are hashed, files are written. What others change meanwhile
is neither undone nor left behind."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tallymark.server.access import user as access_user
from tallymark.server.access import users as access_users
from tallymark.server.node import Node
from tests.server.inside import with_broker
from tests.server.management import FULL
from tests.support.patience import until_on_loop

ROUNDS = 300
"""Rounds of the loop in which a request is read, and worked on as far as it goes."""


class Threads(ThreadPoolExecutor):
    """The loop's threads, which hold one function until they may go on."""

    def __init__(self, held: Callable[..., object]) -> None:
        super().__init__(max_workers=8)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self._held = held

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if isinstance(fn, partial) and self._held in fn.args:
            return super().submit(self._later, fn)
        return super().submit(fn, *args, **kwargs)

    def _later(self, fn: Any) -> Any:
        self.begun.set()
        self.go_on.wait()
        return fn()


@contextmanager
def holding(node: Node, function: Callable[..., object]) -> Iterator[Threads]:
    threads = Threads(function)
    node.loop.set_default_executor(threads)
    try:
        yield threads
    finally:
        threads.go_on.set()


async def ask(port: int, method: str, path: str, body: object = None) -> int:
    """The status of a request by guest."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    writer.write(
        f"{method} /api/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Authorization: Basic {base64.b64encode(b'guest:guest').decode()}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    raw = await reader.read()
    writer.close()
    return int(raw.split()[1])


def test_a_permission_that_is_deleted_while_a_password_is_hashed_stays_deleted(
    tmp_path: Path,
) -> None:
    async def play(ports: dict[str, int], node: Node) -> None:
        at = partial(ask, ports["http_port"])
        assert await at("PUT", "users/ann", {"password": "one", "tags": ""}) == 201
        assert await at("PUT", "permissions/%2F/ann", FULL) == 201
        with holding(node, access_user.make_user) as threads:
            changing = asyncio.create_task(at("PUT", "users/ann", {"password": "two", "tags": ""}))
            await until_on_loop(threads.begun.is_set)
            assert await at("DELETE", "permissions/%2F/ann") == 204
        assert await changing == 204
        assert await at("GET", "permissions/%2F/ann") == 404

    asyncio.run(with_broker(tmp_path, play))


def test_a_permission_that_is_written_while_its_virtual_host_is_deleted_goes_with_it(
    tmp_path: Path,
) -> None:
    async def play(ports: dict[str, int], node: Node) -> None:
        at = partial(ask, ports["http_port"])
        assert await at("PUT", "users/ann", {"password": "one", "tags": ""}) == 201
        assert await at("PUT", "vhosts/short") == 201
        with holding(node, access_users.save_over) as threads:
            giving = asyncio.create_task(at("PUT", "permissions/short/ann", FULL))
            await until_on_loop(threads.begun.is_set)
            ending = asyncio.create_task(at("DELETE", "vhosts/short"))
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
        assert (await giving, await ending) == (201, 204)
        assert await at("PUT", "vhosts/short") == 201
        assert await at("GET", "permissions/short/ann") == 404

    asyncio.run(with_broker(tmp_path, play))


def test_definitions_of_a_virtual_host_that_is_deleted_while_a_password_is_hashed_are_refused(
    tmp_path: Path,
) -> None:
    """A later virtual host of that name began with the permissions, and half of the rest was
    made."""
    wanted = {
        "users": [{"name": "ann", "password": "one", "tags": ""}],
        "permissions": [{"user": "ann", "vhost": "short", **FULL}],
        "queues": [
            {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
            for name, vhost in (("q", "/"), ("q", "short"))
        ],
    }

    async def play(ports: dict[str, int], node: Node) -> None:
        at = partial(ask, ports["http_port"])
        assert await at("PUT", "users/bob", {"password": "one", "tags": ""}) == 201
        assert await at("PUT", "vhosts/short") == 201
        with holding(node, access_user.make_user) as threads:
            importing = asyncio.create_task(at("POST", "definitions", wanted))
            await until_on_loop(threads.begun.is_set)
            assert await at("DELETE", "vhosts/short") == 204
        assert await importing == 400
        assert await at("GET", "users/ann") == 404
        assert await at("GET", "queues/%2F/q") == 404
        assert await at("POST", "definitions", {**wanted, "vhosts": [{"name": "short"}]}) == 204
        assert await at("GET", "permissions/short/ann") == 200

    asyncio.run(with_broker(tmp_path, play))
