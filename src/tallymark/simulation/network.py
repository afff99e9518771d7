"""A network between the processes of a world: bytes take time, arrive in pieces, and may stop.

A `Link` is one connection; each of its two ends is an asyncio transport. Bytes keep their order and
their content; where they are cut or joined, and when they arrive, is drawn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tallymark.simulation.loop import SimulatedLoop
from tallymark.simulation.world import SECOND_NS, World

WINDOW: Final = 64 * 1024
"""Bytes that may be under way to an end that does not read."""
CLIENT_PORT: Final = 40_000


@dataclass
class Weather:
    """Latencies and chances of the network, for links that are opened from now on."""

    latency_s: float = 0.000_2
    """Mean seconds from one end to the other."""
    cuts: float = 0.0
    """Chance that what is written leaves in pieces of any size."""
    stall: float = 0.0
    """Chance, of a write, that it arrives up to a second later."""


class Network:
    """All links of a world."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.links: list[Link] = []
        self.overheard: list[bytes] = []
        """First words of the clients that came first, for those who repeat them."""
        self.overhears = 0
        """Port whose first client is overheard."""
        self._count = 0
        self.hosts: tuple[int, ...] = (0,)
        """Numbers that are added to a port: a client tries one host after the other."""

    async def connect(
        self, loop: SimulatedLoop, port: int, factory: Callable[[], Any]
    ) -> tuple[End, Any]:
        """Connect a client of `loop` to a port of the first host that has a listener there. Raises
        ConnectionRefusedError."""
        hosts = list(self.hosts)
        if len(hosts) > 1:
            self.world.random.shuffle(hosts)
        while True:
            try:
                return await self._connect(loop, port + hosts.pop(), factory)
            except ConnectionRefusedError:
                if not hosts:
                    raise

    async def _connect(
        self, loop: SimulatedLoop, port: int, factory: Callable[[], Any]
    ) -> tuple[End, Any]:
        """Connect to who listens on a port. Raises ConnectionRefusedError."""
        await asyncio.sleep(self._latency_s())
        for loop_of_port in self._loops():
            if port in loop_of_port.waiting:  # its code is loaded when somebody comes
                loop_of_port.call_soon(loop_of_port.waiting[port])
        deadline = self.world.now_ns + 5 * SECOND_NS
        while (server := self._listening(port)) is None and self._is_coming(port):
            if self.world.now_ns > deadline:
                raise TimeoutError(f"port {port}")
            await asyncio.sleep(0.01)
        if server is None:
            raise ConnectionRefusedError(f"nobody listens on port {port}")
        self._count += 1
        link = Link(self, loop, server, port, CLIENT_PORT + self._count % 20_000)
        self.links.append(link)
        if not self.overheard and port == self.overhears:
            self.overheard.append(b"")
            link.is_overheard = True
        protocol = factory()
        link.client.protocol = protocol
        link.server.protocol = server.listeners[port]()
        server.call_soon(link.server.begin)
        link.client.begin()
        return link.client, protocol

    def _loops(self) -> list[SimulatedLoop]:
        return [one for one in self.world.loops if isinstance(one, SimulatedLoop)]

    def _listening(self, port: int) -> SimulatedLoop | None:
        for loop in self._loops():
            if port in loop.listeners and not loop.process.is_doomed:
                return loop
        return None

    def _is_coming(self, port: int) -> bool:
        return any(port in loop.waiting or loop.is_opening(port) for loop in self._loops())

    def _latency_s(self) -> float:
        return self.world.random.expovariate(1 / self.weather.latency_s)

    def process_ended(self, loop: SimulatedLoop, is_heard: bool) -> None:
        """The process of this loop is gone. is_heard: its machine is still there and says so;
        otherwise the other ends hear nothing, until they write and another process answers."""
        for link in list(self.links):
            for end in (link.client, link.server):
                if end.loop is loop:
                    end.is_dead = True
                    if is_heard:
                        end.other.reset_in(self._latency_s())
                    else:
                        end.other.reset_in(self.world.random.uniform(0.1, 3.0))

    def cut(self, link: Link) -> None:
        """Both ends learn that the link is broken."""
        link.client.reset_in(self._latency_s())
        link.server.reset_in(self._latency_s())

    def half_open(self, link: Link) -> None:
        """Lose whatever is sent from now on, in both directions, and tell nobody."""
        link.client.is_deaf = link.server.is_deaf = True

    def one_way(self, link: Link) -> None:
        """Lose whatever is sent from now on in one direction, and tell nobody."""
        self.world.random.choice([link.client, link.server]).is_deaf = True

    def forget(self, link: Link) -> None:
        """Both ends are closed."""
        if link in self.links:
            self.links.remove(link)


class Link:
    """One connection: two ends."""

    def __init__(
        self, network: Network, client: SimulatedLoop, server: SimulatedLoop, port: int, own: int
    ) -> None:
        self.network = network
        here, there = ("127.0.0.1", own), ("127.0.0.1", port)
        self.client = End(self, client, here, there)
        self.server = End(self, server, there, here)
        self.client.other, self.server.other = self.server, self.client
        self.is_overheard = False


class End(asyncio.Transport):
    """One end of a link."""

    other: End
    protocol: Any

    def __init__(
        self, link: Link, loop: SimulatedLoop, here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        super().__init__()
        self.link = link
        self.loop = loop
        self._about = {"sockname": here, "peername": there}
        self._unsent = bytearray()
        self._coming: deque[tuple[int, bytes]] = deque()
        """Bytes under way to this end, each with the time at which they arrive; b"": the end."""
        self._arrived = bytearray()
        self._under_way = 0
        """Bytes that the other end has not read."""
        self._last_ns = 0
        """Time at which the last of its bytes arrive at the other end."""
        self._is_paused = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_full = False
        self._is_closing = False
        self._has_ended = False
        """True once it has sent the end of its stream, or is to when all is sent."""
        self._eof_sent = False
        self._heard_eof = False
        self._is_lost = False
        self.is_dead = False
        """True once its process is gone."""
        self.is_deaf = False
        """True once nothing that is sent to it arrives."""

    # -- the protocol's side

    def begin(self) -> None:
        """Tell the protocol that it has a connection."""
        if not self.is_dead:
            self.protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._about.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def write(self, data: Any) -> None:
        if self._is_closing or self._has_ended or self.is_dead or self.loop.process.is_doomed:
            return
        self._unsent += data
        if self.link.is_overheard and self is self.link.client:
            self.link.network.overheard[0] += bytes(data)
        self._send()
        if len(self._unsent) > self._high and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._has_ended = True
        self._send()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._has_ended = True
            self._send()

    def abort(self) -> None:
        if self._is_lost or self.is_dead:
            return
        self._is_closing = True
        self._unsent.clear()
        self.other.reset_in(self._latency_s())
        self.loop.call_soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.loop.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        return not self._is_paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high = high
            self._low = high // 4
        if low is not None:
            self._low = low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # -- the network's side

    @property
    def _random(self) -> Random:
        return self.link.network.world.random

    def _latency_s(self) -> float:
        return self._random.expovariate(1 / self.link.network.weather.latency_s)

    def _send(self) -> None:
        """Send on its way what the window has room for."""
        weather = self.link.network.weather
        while self._unsent and self._under_way < WINDOW:
            size = min(len(self._unsent), WINDOW - self._under_way)
            if weather.cuts and self._random.random() < weather.cuts:
                size = self._random.randint(1, size)
            data = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._under_way += size
            self._deliver(data)
        if not self._unsent and self._has_ended and not self._eof_sent:
            self._eof_sent = True
            self._deliver(b"")
            if self._is_closing:
                self.loop.call_soon(self._lost, None)
        if self._is_full and len(self._unsent) <= self._low and not self._is_lost:
            self._is_full = False
            self.loop.call_soon(self.protocol.resume_writing)

    def _deliver(self, data: bytes) -> None:
        """Have the other end get it, behind what is under way to it."""
        if self.other.is_dead:
            return
        world = self.link.network.world
        seconds = self._latency_s()
        weather = self.link.network.weather
        if weather.stall and self._random.random() < weather.stall:
            stalled = self._random.random()
            world.troubles.add(world.now_ns, stalled)
            seconds += stalled
        self._last_ns = max(self._last_ns + 1, world.now_ns + int(seconds * SECOND_NS))
        self.other._coming.append((self._last_ns, data))
        self.other.loop.call_at(self._last_ns / SECOND_NS, self.other._arrives, self._last_ns)

    def _arrives(self, due_ns: int) -> None:
        """Hear what was to arrive by then. A process that hung reads at once, as from its socket,
        all that has arrived meanwhile."""
        until_ns = max(due_ns, self.link.network.world.now_ns)
        while self._coming and self._coming[0][0] <= until_ns:
            _, data = self._coming.popleft()
            if not self.is_deaf:
                self._arrived += data
                self._heard_eof = self._heard_eof or not data
        if not (self.is_dead or self._is_lost or self.is_deaf):
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the protocol what has arrived."""
        if self._is_lost or self.is_dead:
            return
        if self._arrived and not self._is_paused:
            data = bytes(self._arrived)
            self._arrived.clear()
            self.other._read(len(data))
            self.protocol.data_received(data)
        if self._heard_eof and not self._arrived and not self._is_lost:
            self._heard_eof = False
            if not self.protocol.eof_received():
                self.close()

    def _read(self, size: int) -> None:
        """The other end has read so much."""
        if self.is_dead:
            return
        self._under_way -= size
        if self._unsent or self._has_ended:
            self._send()

    def reset_in(self, seconds: float) -> None:
        """Learn after so many seconds that the link is broken."""
        if not self.is_dead and not self._is_lost:
            self.loop.call_later(seconds, self._lost, ConnectionResetError("reset by peer"))

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost or self.is_dead:
            return
        self._is_lost = self._is_closing = True
        self.protocol.connection_lost(error)
        if self.other._is_lost or self.other.is_dead:
            self.link.network.forget(self.link)
