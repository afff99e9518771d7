"""A cut connection ends at once, whatever waits to be sent."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from tallymark.server.cutting import cut
from tests.support.patience import until_on_loop


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[socket.socket, asyncio.Transport]]:
    """A client, and the server's end of its connection."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(transport)  # type: ignore[arg-type]

    server = await loop.create_server(Peer, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        yield client, await made
    server.close()


def is_told(client: socket.socket, events: int = 0) -> bool:
    """Return whether the kernel has told a client of these events, or of an end."""
    poll = select.poll()
    poll.register(client, events)
    return bool(poll.poll(0))


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_the_peer_of_a_cut_connection_is_told_while_it_reads_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def play() -> None:
        async with connected() as (client, transport):
            while not transport.get_write_buffer_size():
                transport.write(bytes(1 << 20))
            assert not is_told(client)
            cut(transport)
            await until_on_loop(lambda: is_told(client), "a reset")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(play())


def test_the_peer_that_has_taken_everything_sees_an_end() -> None:
    async def play() -> None:
        async with connected() as (client, transport):
            transport.write(b"last words")
            cut(transport)
            await until_on_loop(lambda: is_told(client, select.POLLRDHUP), "the end")
            assert (client.recv(100), client.recv(100)) == (b"last words", b"")

    asyncio.run(play())
