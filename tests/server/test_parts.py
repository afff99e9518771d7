"""Long answers of HTTP: what one of them keeps the loop for, however many are asked for."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from tallymark.server.node import Node
from tallymark.server.parts import PART
from tests.server.inside import with_broker
from tests.server.lines import GUEST

QUEUES = 5 * PART
ASKERS = 4


@pytest.mark.parametrize(
    "path", ["/metrics", "/api/queues", "/api/bindings", "/api/tallymark/queues"]
)
def test_a_long_answer_is_made_in_parts_one_in_a_round(tmp_path: Path, path: str) -> None:
    """Four clients ask at once: between two parts, of whichever answer, the loop comes round."""

    async def play(ports: dict[str, int], node: Node) -> None:
        async def ask(method: str = "GET", path: str = path, body: str = "") -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports["http_port"])
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                f"Authorization: Basic {GUEST.decode()}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            answer = await reader.read()
            writer.close()
            return answer.decode()

        queues = [
            {"name": f"q{n:03}", "vhost": "/", "durable": True, "auto_delete": False}
            for n in range(QUEUES)
        ]
        await ask("POST", "/api/definitions", json.dumps({"queues": queues}))
        tasks = [asyncio.create_task(ask()) for _ in range(ASKERS)]
        made: list[int] = []
        while not all(task.done() for task in tasks):
            made.append(node.parts.made)
            await asyncio.sleep(0)
        made.append(node.parts.made)
        steps = [after - before for before, after in itertools.pairwise(made)]
        assert made[-1] == ASKERS * QUEUES // PART
        assert max(steps) == 1
        for task in tasks:
            assert all(f'"q{number:03}"' in task.result() for number in range(QUEUES))

    asyncio.run(with_broker(tmp_path, play))
