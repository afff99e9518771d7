"""The snippets of docs/client.md run, against a broker of their own."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import tallymark.client as client
from tests.support.process import BrokerProcess

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
URL = "amqp://guest:guest@localhost:5672"
ENDLESS = ("receiver.run(", "/queues/events")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs") / "data") as running:
        yield running


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 8


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(broker: BrokerProcess, number: int) -> None:
    broker.http("DELETE", "/api/queues/%2F/orders")
    if "declare_queue" not in SNIPPETS[number]:
        status, _ = broker.http("PUT", "/api/queues/%2F/orders", {"durable": True})
        assert status == 201
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    status, _ = broker.http("PUT", "/api/queues/%2F/events", stream)
    assert status in (201, 204)
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"
    snippet = SNIPPETS[number].replace(URL, url)
    snippet = snippet.replace(URL.replace("amqp:", "amqp091:"), url.replace("amqp:", "amqp091:"))
    if "asyncio.run" in snippet:
        exec(compile(snippet, "snippet", "exec"), {"__name__": "snippet"})
    else:
        asyncio.run(inside_a_session(url, snippet))


async def inside_a_session(url: str, snippet: str) -> None:
    """With what the guide has open, and ten messages in the queue."""
    names = {"asyncio": asyncio, **{name: getattr(client, name) for name in client.__all__}}
    source = f"async def snippet(connection, session):\n{textwrap.indent(snippet, '    ')}"
    exec(compile(source, "snippet", "exec"), names)
    async with client.connect(url) as connection, connection.session() as session:
        if "declare_queue" not in snippet:
            async with session.sender("/queues/orders") as sender:
                await sender.send_batch([b"%d" % i for i in range(11)])
        is_endless = any(part in snippet for part in ENDLESS)
        try:
            async with asyncio.timeout(1 if is_endless else 30):
                await names["snippet"](connection, session)  # type: ignore[operator]
        except TimeoutError:
            assert is_endless
