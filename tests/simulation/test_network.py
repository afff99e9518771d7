"""The simulated network hands bytes over as a socket does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tallymark.simulation.loop import SimulatedLoop
from tallymark.simulation.network import Link, Network, Weather
from tallymark.simulation.threads import Process
from tallymark.simulation.world import SECOND_NS, World


class Reader(asyncio.Protocol):
    """Takes one read at a time, as a connection does that waits for its turn."""

    def __init__(self, link: Link) -> None:
        self.end = link.server
        self.reads: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.reads.append(data)
        self.end.pause_reading()


@pytest.fixture
def link() -> Iterator[Link]:
    world = World(1)
    client, server = (SimulatedLoop(world, Process(world)) for _ in range(2))
    yield Link(Network(world, Weather()), client, server, 4150, 40_000)
    client.close()
    server.close()


def test_who_hung_reads_at_once_all_that_has_arrived(link: Link) -> None:
    reader = link.server.protocol = Reader(link)
    link.client.write(b"FIN 1\n")
    link.client.write(b"FIN 2\n")
    link.network.world.now_ns += SECOND_NS
    link.client.write(b"FIN 3\n")
    link.server.loop.run_round()
    assert reader.reads == [b"FIN 1\nFIN 2\n"]
    link.server.resume_reading()
    link.network.world.now_ns += SECOND_NS
    link.server.loop.run_round()
    assert reader.reads == [b"FIN 1\nFIN 2\n", b"FIN 3\n"]


def test_who_does_not_hang_reads_each_piece_as_it_arrives(link: Link) -> None:
    reader = link.server.protocol = Reader(link)
    link.client.write(b"FIN 1\n")
    link.client.write(b"FIN 2\n")
    for _ in range(2):
        link.network.world.now_ns = link.server.loop.next_ns()
        link.server.loop.run_round()
        link.server.resume_reading()
        link.server.loop.run_round()
    assert reader.reads == [b"FIN 1\n", b"FIN 2\n"]
