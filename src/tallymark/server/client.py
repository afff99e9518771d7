"""A client connection as the node sees it, whatever protocol it speaks: a socket and a bridge.

Every rule about the socket that does not depend on the protocol is here, so that no front end can
lack it: who is read and who is not, what becomes of an exception, how a connection ends. A protocol
says what its bridge is (`meet`), what is done with input (`take`) and with output (`flush`, `put`).

A client that does not read its output is not read itself. It may lag behind by CLOGGED high water
marks where it has something of ours to answer for (a subscriber goes on saying what it is done
with), else by one; and what it asks for is answered only as far as its socket has room
(`Bridge.room`), however much it asked for in one read.

A connection that is over has its last words written and its side of the socket shut; what the peer
still sends is read and thrown away until it goes, for LAST_WORDS_S. Closing at once, with input
unread, would have the system send a reset, which can take the last words from the peer.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from tallymark.bridge.bridge import Bridge
from tallymark.server.clock import now_ms, wall_ms
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from tallymark.server.access.user import User
    from tallymark.server.deadlines import Entry
    from tallymark.server.node import Node

LAST_WORDS_S: Final = 3.0
"""Seconds that a client has to read the remaining output and close, once its connection is over."""
CLOGGED: Final = 8
"""High water marks of bytes waiting in a client's socket buffer above which it is not read."""
INTERNET: Final = (socket.AF_INET, socket.AF_INET6)


class Client(asyncio.Protocol):
    """One client connection.

    A plain Protocol, not a BufferedProtocol: under uvloop both read into one shared 256 KiB buffer
    and hand over a bytes object of the length read; the plain one costs one call less.
    """

    transport: asyncio.Transport
    bridge: Bridge
    category = "server"
    """Category of the log that reports on it."""
    is_local = False
    """True for a request that was authenticated elsewhere and has no socket of its own."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._buffers = node.buffers
        self.is_plain = False
        """True where input goes to the bridge unchanged, so that `take` need not be called."""
        self._last_words: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        """Finds out who the client is."""
        self.log = log_of(self.category)
        self.resting = False
        """True while the node pauses reading from it."""
        self.is_paced = False
        """True while it is not read because it published more than its rate allows."""
        self.yielding = False
        """True while it is not read because others go first: it sent much in one read."""
        self.is_in_line = False
        """True while it stands in the line of postponed input."""
        self.is_reading = True
        """True while its socket is read."""
        self.holds_input = False
        """True while input that was read waits to be decoded: the socket is not read meanwhile, so
        that no more of it piles up."""
        self.encoded_bytes = 0
        """Bytes of input that are not decoded yet."""
        self.is_full = False
        """True while the socket's send buffer is full."""
        self.is_over = False
        """True once all output was written: further input is read and discarded."""
        self.subject: User | None = None
        """The user that it has proven to be; None: not yet, or nobody asked."""
        self.id = 0
        self.since_ms = wall_ms()
        """Time of connection; milliseconds since 1970."""
        self.peer = ""
        self.peer_host = ""
        self.touched = False
        """True if it is on the node's list of clients to flush at the end of this turn."""
        self.armed: Entry | None = None
        """Entry in the node's heap of deadlines; None: no deadline is set."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.weight = self.input_weight = 0
        """Bytes of memory that are counted for it [buffers]."""
        self.publishing = False
        """True once it has published: it is paused when memory or disk run low."""
        self.read_at = 0
        """Number of the node's read in which it was read last."""
        self.held_for: dict[int, str] = {}
        """Names of queues by id whose slow consumers hold back this client's publishing [SC-D7]."""
        self.blocked_reason: str | None = None
        self.told = False
        """True once the log has its reason to end."""

    # -- what a protocol says

    def meet(self, transport: asyncio.Transport) -> Bridge:
        """Name the peer; return the bridge."""
        raise NotImplementedError

    def take(self, data: bytes) -> None:
        """Pass input to the bridge, where it is not plain. What it raises costs the connection."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the bridge's output, and carry out its requests."""
        raise NotImplementedError

    def put(self, output: list[bytes]) -> None:
        """Write these pieces of output."""
        raise NotImplementedError

    def may_lag(self) -> int:
        """Bytes of output that may wait in a full socket while the client is still read."""
        return CLOGGED * self._node.config.write_high_water

    @property
    def has_entered(self) -> bool:
        """Return whether the log reports that it comes and goes: there is an open connection, not
        only a socket."""
        return self.bridge.connection is not None

    # -- from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None and raw.family in INTERNET:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limit_output(self.transport)
        self.bridge = self.meet(self.transport)
        self.bridge.tick(now_ms())
        self._node.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.is_over:
            return
        try:
            if self.is_plain:
                self._node.received(self, data)
            else:
                self.take(data)
        except Exception as error:  # a bug of ours costs this connection, not the others
            self.broken(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._last_words is not None:
            self._last_words.cancel()
            self._last_words = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._node.lost(self, exc)

    def pause_writing(self) -> None:
        self.is_full = True
        self._node.paused(self, True)
        self.read_or_not()

    def resume_writing(self) -> None:
        self.is_full = False
        self._node.paused(self, False)
        self.read_or_not()
        self.catch_up()

    # -- reading

    def rest(self, resting: bool) -> None:
        """Pause or resume reading from this client."""
        self.resting = resting
        self.read_or_not()

    def let_others(self) -> None:
        """Pause reading until other clients were read."""
        if not self.yielding:
            self.yielding = True
            self.read_or_not()
            self._node.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.yielding = False
        self.read_or_not()
        self.catch_up()

    def takes_input(self) -> bool:
        """Return whether the bridge may be given input now."""
        return not (
            self.resting
            or self.is_paced
            or self.yielding
            or not self.bridge.wants_data
            or self.is_clogged()
        )

    def read_or_not(self) -> None:
        """Have the transport read, or not, as it should be now."""
        wanted = self.is_over or self.takes_input()
        if wanted and self.holds_input and not self.is_over:
            wanted = False
            self.go_on_decoding()
        if wanted == self.is_reading or self.transport.is_closing():
            return
        self.is_reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def go_on_decoding(self) -> None:
        """Decode the input that `holds_input` tells of, soon."""

    def is_clogged(self) -> bool:
        """Return whether its unread output exceeds `may_lag`, so that answers to new requests would
        pile up."""
        return self.is_full and self.unsent() > self.may_lag()

    def catch_up(self) -> None:
        """Have the bridge continue with postponed input, once the socket has room again."""
        if (
            self.bridge.is_behind
            and not self.bridge.lacks_room  # after the next flush
            and not self.is_full
            and not self.yielding
            and not self.is_paced
            and not self.is_over
            and not self.transport.is_closing()
        ):
            self._node.postponed.add(self)

    def work_on(self) -> None:
        """Have the bridge work on postponed input for one more share; then it is another's turn."""
        if self.bridge.is_behind and not (self.is_full or self.is_paced or self.is_over):
            try:
                self._node.received(self, b"")
            except Exception as error:  # as in data_received
                self.broken(error)
            else:
                self.catch_up()

    # -- writing

    def limit_output(self, transport: asyncio.WriteTransport) -> None:
        """Set how many bytes may wait in the socket's buffer [SC-D6]."""
        high = self._buffers.high_water
        transport.set_write_buffer_limits(high, min(self._node.config.low_water, high // 2))

    def room(self) -> int:
        """Bytes that fit in the write buffer; at least 1, since a full socket reports itself by
        pause_writing."""
        room = self._buffers.high_water - self.transport.get_write_buffer_size()
        return room if room > 1 else 1

    def unsent(self) -> int:
        """Bytes that wait in its socket's buffer."""
        return self.transport.get_write_buffer_size()

    def output_bytes(self) -> int:
        """See buffers.py."""
        return self.transport.get_write_buffer_size() + self.bridge.output_bytes

    def input_bytes(self) -> int:
        """See buffers.py."""
        return 0 if self.is_over else self.bridge.input_bytes + self.encoded_bytes

    # -- who it is

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Find something out about the client; one thing at a time."""
        self._task = self._node.loop.create_task(self._find_out(work))

    async def _find_out(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:  # as in data_received
            self.broken(error)
        finally:
            self._task = None
        if not self.transport.is_closing():
            self._node.touch(self)

    @property
    def is_asking(self) -> bool:
        return self._task is not None

    # -- the end

    def finish(self) -> None:
        """Shut our side of the socket after the last output, and discard input until the peer
        closes."""
        if self.is_over or self.transport.is_closing():
            return
        self.is_over = True
        self.tell_closed()
        self.shut()
        self._last_words = self._node.loop.call_later(LAST_WORDS_S, self.transport.abort)
        self._node.doors.may_go(self)
        self.read_or_not()

    def shut(self) -> None:
        """Send the end of the stream."""
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def broken(self, error: Exception) -> None:
        """Drop the connection after an exception that should not have been possible."""
        self.told = True
        self.log.error(
            "connection.broken", peer=self.peer, error=repr(error),
            trace="".join(traceback.format_exception(error)),
        )  # fmt: skip
        self.transport.abort()

    def drop(self) -> None:
        """Close the socket now."""
        self.transport.abort()

    def too_much(self, reason: str) -> None:
        """Send the reason and close; see buffers.py. Later input is discarded."""
        self.bridge.shutdown(reason)
        output = self.bridge.take_output()
        if output:
            self.put(output)
        self.finish()

    def tell_closed(self) -> None:
        """The connection is being closed in an orderly way, for the bridge's reason."""
        self.told = True
        self.log.info("connection.closed", peer=self.peer, id=self.id, reason=self.bridge.reason)


def address_text(address: object) -> str:
    match address:
        case (str() as host, int() as port, *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "?"
