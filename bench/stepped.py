"""A whole broker in this process, in steps: no sockets, and no time but what it is given.

Node, clients, bridges, engine and journal are the real ones. Transports are lists of bytes; the
clocks, the loop's and the broker's, move by STEP_S with each step; the journal's thread writes and
syncs as it always does, and its answer is heard once, when all is on disk. So one input has one
course, and what it costs can be counted.
"""

from __future__ import annotations

import asyncio
import os
import select
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.lean import method, short
from tallymark.server.amqp import AmqpClient
from tallymark.server.client import Client
from tallymark.server.clock import CLOCKS
from tallymark.server.config.settings import Config
from tallymark.server.nsq.service import NsqService
from tallymark.server.opening import open_node
from tallymark.server.run import amqp_settings
from tallymark.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from tallymark.wire.amqp10.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    Source,
    Target,
)
from tallymark.wire.amqp10.sasl import SaslInit, plain_response

STEP_S = 0.01
"""Longer than records linger before they are written: each step leaves nothing behind."""
BEGAN_NS = 1_700_000_000 * 10**9
"""Wall time when the loop's clock was at zero, nanoseconds since 1970."""
WINDOW = 1 << 30


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until it is moved."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return round(self.now * 1e9)

    def run_ready(self) -> None:
        """Run all that can run now, and what follows from it."""
        while self._ready or (self._scheduled and self._scheduled[0].when() <= self.now):  # type: ignore[attr-defined]
            self._run_once()  # type: ignore[attr-defined]

    def wait_a_moment(self) -> None:
        """Let other threads work, in real time, until one of them calls, or for a little while."""
        self._selector.select(0.01)  # type: ignore[attr-defined]
        self.call_soon(lambda: None)
        self._run_once()  # type: ignore[attr-defined]


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def take(self) -> bytes:
        """What was written since the last call."""
        found = b"".join(self.written)
        self.written.clear()
        return found

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += pieces

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever kept back."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        raise AssertionError("the broker stopped reading: the workload sends too much at once")

    def resume_reading(self) -> None:
        """It never paused."""

    def abort(self) -> None:
        raise AssertionError(f"the broker closed the connection: {self.take()[-200:]!r}")


class Peer:
    """A client, as far as bytes to and from the broker go."""

    def __init__(self, broker: SteppedBroker, client: Client) -> None:
        self.pipe = Pipe()
        self._broker = broker
        self._client = client
        client.connection_made(self.pipe)  # type: ignore[arg-type]

    def ask(self, data: bytes, awaited: bytes) -> bytes:
        """Send, and let the broker work until this comes; returns all that came."""
        heard = b""
        self._client.data_received(data)
        while True:
            self._broker.settle()
            heard += self.pipe.take()
            if awaited in heard:
                return heard
            self._broker.loop.wait_a_moment()

    def send(self, data: bytes) -> None:
        """Send, and let the broker do all that follows."""
        self._client.data_received(data)
        self._broker.step()

    # -- AMQP 0-9-1

    def enter(self, *, confirms: bool = False, prefetch: int = 0) -> Peer:
        """Open a connection and channel 1."""
        response = b"\0guest\0guest"
        start_ok = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(response))
        self.ask(b"AMQP\0\0\x09\x01", b"\0\x0a\0\x0a")
        self.ask(method(0, (10, 11), start_ok + response + short("en_US")), b"\0\x0a\0\x1e")
        self._client.data_received(method(0, (10, 31), struct.pack(">HIH", 2047, 131072, 0)))
        self.call((10, 40), short("/") + b"\0\0", channel=0)
        self.call((20, 10), b"\0")
        if confirms:
            self.call((85, 10), b"\0")
        if prefetch:
            self.call((60, 10), struct.pack(">IHB", 0, prefetch, 0))
        return self

    def call(self, name: tuple[int, int], arguments: bytes, channel: int = 1) -> None:
        """Call a method and wait for its -ok."""
        self.ask(method(channel, name, arguments), struct.pack(">HH", name[0], name[1] + 1))

    # -- AMQP 1.0

    def enter_links(self) -> Peer:
        """Open a connection, and session 0 with room for everything."""
        init = SaslInit("PLAIN", plain_response("guest", "guest"))
        self.ask(SASL_HEADER, b"PLAIN")
        self.ask(sasl_frame(init.encode()), b"\0\x53\x44")
        self.ask(AMQP_HEADER + _said(Open("stepped", "vhost:/", 65536)), b"\0\x53\x10")
        self.ask(_said(Begin(None, 0, WINDOW, WINDOW, 100)), b"\0\x53\x11")
        return self

    def attach_sender(self, queue: str, handle: int) -> None:
        target = Target(f"/queues/{queue}")
        attach = Attach("s", handle, False, 0, 0, Source(), target, initial_delivery_count=0)
        self.ask(_said(attach), b"\0\x53\x13")

    def attach_receiver(self, queue: str, handle: int, credit: int) -> None:
        source = Source(f"/queues/{queue}")
        self.ask(_said(Attach("r", handle, True, 0, 0, source, Target())), b"\0\x53\x12")
        self.send(_said(Flow(0, WINDOW, 0, WINDOW, handle, 0, credit)))


def _said(performative: Performative) -> bytes:
    return frame(0, performative.encode())


class SteppedBroker:
    """The broker. A context: it is closed at its end, without a checkpoint."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.loop = SteppedLoop()
        asyncio._set_running_loop(self.loop)
        CLOCKS.set(self.loop.time_ns, lambda: BEGAN_NS + self.loop.time_ns())
        self.node = open_node(Config(data_dir=folder, log_level="warning"), self.loop)
        self._signal = self.node.journal.signal
        self._heard = self.node.journal.end
        """Position up to which the node was told that all is on disk."""
        self.loop.remove_reader(self._signal)
        self._settings = amqp_settings(self.node)
        self._nsq = NsqService(self.node, None)
        self.settle()

    def __enter__(self) -> SteppedBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.node.housekeeping.close()
        self.node.end()
        self.node.journal.close(clean=False)
        asyncio._set_running_loop(None)
        CLOCKS.set(time.monotonic_ns, time.time_ns, time.thread_time_ns, time.sleep)

    def amqp(self) -> Peer:
        """A client that has connected, and said nothing."""
        return Peer(self, AmqpClient(self.node, self._settings))

    def nsq(self) -> Peer:
        return Peer(self, self._nsq.client())

    def settle(self) -> None:
        """Do what is due now, wait for the disk, and do what follows from that."""
        journal = self.node.journal
        while True:
            self.loop.run_ready()
            if self._heard == journal.end:
                return
            while journal.synced < journal.end:
                select.select([self._signal], [], [])
                os.eventfd_read(self._signal)
            self._heard = journal.end
            self.node.synced()

    def step(self) -> None:
        """Settle; then some time passes, and what that makes due is done, too."""
        self.settle()
        self.loop.now += STEP_S
        self.settle()
