"""The broker's memory after a burst: what was freed goes back to the system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest

from tallymark.server.heap import BURST_BYTES, HeapTrim
from tests.server.lines import memory_mib
from tests.support.patience import until
from tests.support.process import BrokerProcess

COUNT, BODY = 10_000, b"x" * 4000
BURST_MIB = COUNT * len(BODY) // (1 << 20)


def test_memory_of_messages_that_are_gone_goes_back_to_the_system(tmp_path: Path) -> None:
    """One message of a hundred stays: behind each of those is free memory."""
    with (
        BrokerProcess(tmp_path / "data") as broker,
        pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection,
    ):
        channel = connection.channel()
        channel.queue_declare("gone")
        channel.queue_declare("stays")
        channel.basic_publish("", "gone", BODY)
        before = memory_mib(broker)
        for n in range(COUNT):
            channel.basic_publish("", "gone" if n % 100 else "stays", BODY)
        assert channel.queue_declare("stays", passive=True).method.message_count == COUNT // 100
        assert memory_mib(broker) > before + BURST_MIB / 2
        channel.queue_delete("gone")
        until(lambda: memory_mib(broker) < before + BURST_MIB / 4)


def node_with(store: SimpleNamespace, turn: Callable[[], None] = lambda: None) -> Any:
    return SimpleNamespace(
        broker=SimpleNamespace(store=store),
        buffers=SimpleNamespace(total=0),
        schedule=turn,
    )


def test_a_turn_is_asked_for_while_messages_that_are_gone_have_their_bytes() -> None:
    """A queue is deleted, and then nothing happens any more."""
    asked = list[str]()
    store = SimpleNamespace(resident_bytes=0, awaits_sweep=True)
    task = HeapTrim(node_with(store, lambda: asked.append("turn")))
    asyncio.run(task.run())
    store.awaits_sweep = False
    asyncio.run(task.run())
    assert asked == ["turn"]


def test_the_heap_is_trimmed_after_a_burst_and_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal may hold the bytes of messages that are gone until it has written them."""
    monkeypatch.setattr("tallymark.server.heap.resident_bytes", lambda: 0)
    node = node_with(store := SimpleNamespace(resident_bytes=0, awaits_sweep=False))
    trims = list[int]()
    task = HeapTrim(node)
    cast("Any", task)._trim = trims.append
    for held, trimmed in (
        (0, 0), (2 * BURST_BYTES, 0), (0, 1), (0, 2), (0, 2), (BURST_BYTES - 1, 2), (0, 2)
    ):  # fmt: skip
        store.resident_bytes = held
        asyncio.run(task.run())
        assert len(trims) == trimmed
