"""A proxy between clients and a broker, in the clients' process: it cuts connections and stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tallymark.simulation.process import AMQP, NSQ
from tests.support.process import BrokerProcess

PIECE: Final = 1 << 16


class RealLink:
    """One connection: the client's transport, and the proxy's two ends."""

    def __init__(self, network: RealNetwork, port: int) -> None:
        self._network = network
        self._port = port
        self.client: Any = None
        self.is_closed = False
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until one end is over."""
        self._writers.append(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            self.cut()
            return
        self._writers.append(back)
        if self.is_closed:
            self.cut()
            return
        self._tasks = [
            asyncio.create_task(self._carry(reader, back)),
            asyncio.create_task(self._carry(there, writer)),
        ]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(PIECE):
                await self._network.flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """End both connections once what was written has left."""
        self.is_closed = True
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        """End both connections at once."""
        self.is_closed = True
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()


class RealNetwork:
    """The way of all clients to the broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.is_up = False
        self.links: list[RealLink] = []
        self.flows = asyncio.Event()

    async def connect(
        self, loop: asyncio.AbstractEventLoop, port: int, factory: Callable[[], Any]
    ) -> tuple[Any, Any]:
        """Connect a client by a link of its own. Raises ConnectionRefusedError."""
        if not self.is_up:
            raise ConnectionRefusedError("the broker is not there")
        self.flows.set()
        real = {AMQP: self._broker.amqp_port, NSQ: self._broker.nsq_port}[port]
        link = RealLink(self, real)
        server = await asyncio.start_server(link.run, "127.0.0.1", 0)
        try:
            here = server.sockets[0].getsockname()
            transport, made = await loop.create_connection(factory, *here)
        finally:
            server.close()
        link.client = transport
        transport.link = link  # type: ignore[attr-defined]
        self.links = [one for one in self.links if not one.is_closed] + [link]
        return transport, made

    def cut(self, link: RealLink) -> None:
        """Break a connection."""
        link.cut()

    async def stall(self, seconds: float) -> None:
        """Let nothing through for so long."""
        self.flows.clear()
        await asyncio.sleep(seconds)
        self.flows.set()
