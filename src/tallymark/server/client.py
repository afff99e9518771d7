"""What the node knows of a client, whatever protocol it speaks: a socket and a bridge."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Final

from tallymark.bridge.bridge import Bridge
from tallymark.server.clock import wall_ms
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from tallymark.server.node import Node

LAST_WORDS_S: Final = 3.0
"""How long a client may take to read what is left for it when its connection is over."""


class Client(asyncio.Protocol):
    """One client connection.

    A plain Protocol, not a BufferedProtocol: under uvloop both read into one shared 256 KiB buffer
    and hand over a bytes object of the length read; the plain one costs one call less.
    """

    transport: asyncio.Transport
    bridge: Bridge
    category = "server"
    """Of the log that tells of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last_words: asyncio.TimerHandle | None = None
        self.log = log_of(self.category)
        self.resting = False
        """Whether nothing is read from it for now, by the node's wish."""
        self.yielding = False
        """Whether nothing is read from it until others were, since it brought much in one go."""
        self.id = 0
        self.since_ms = wall_ms()
        """When it connected; milliseconds since 1970."""
        self.peer = ""
        self.peer_host = ""
        self.touched = False
        """Whether it is on the node's list of clients to flush at the end of this turn."""
        self.armed_ms: int | None = None
        """When the node will look at its deadline next; monotonic milliseconds."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.publishing = False
        """Whether it has ever published: it is held back when memory or disk run low."""
        self.read_at = 0
        """When it was read last: the node's count of reads."""
        self.held_for: dict[int, str] = {}
        """Queues whose consumers are too slow for what it publishes there [SC-D7]: names by id."""
        self.blocked_reason: str | None = None
        self.told = False
        """Whether the log says already why it ends."""

    @property
    def has_entered(self) -> bool:
        """Whether its coming and going is news: it is more than a socket."""
        return self.bridge.connection is not None

    def flush(self) -> None:
        """Write what the bridge has to say, and close where it asks for that."""
        raise NotImplementedError

    def rest(self, resting: bool) -> None:
        """Read no more from this client, or go on reading."""
        self.resting = resting
        self._read_or_not()

    def let_others(self) -> None:
        """Read no more from it before others had their turn."""
        if not self.yielding:
            self.yielding = True
            self._read_or_not()
            self._node.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.yielding = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        """Have the transport read, or not, as it should be now."""
        raise NotImplementedError

    def limit_output(self, transport: asyncio.WriteTransport) -> None:
        """How much may wait in the socket's buffer [SC-D6]."""
        config = self._node.config
        transport.set_write_buffer_limits(config.write_high_water, config.low_water)

    def room(self) -> int:
        """Bytes that may be written before its buffer holds all it should; 1 at the least, since
        what a socket takes no more is told by pause_writing."""
        return max(1, self._node.config.write_high_water - self.unsent())

    def unsent(self) -> int:
        """Bytes that wait in its socket's buffer."""
        return self.transport.get_write_buffer_size()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._last_words is not None:
            self._last_words.cancel()
        self._node.lost(self, exc)

    def pause_writing(self) -> None:
        self._node.paused(self, True)

    def resume_writing(self) -> None:
        self._node.paused(self, False)

    def broken(self, error: Exception) -> None:
        """Drop the connection after an exception that should not have been possible."""
        self.told = True
        self.log.error(
            "connection.broken", peer=self.peer, error=repr(error),
            trace="".join(traceback.format_exception(error)),
        )  # fmt: skip
        self.transport.abort()

    def tell_closed(self) -> None:
        """The connection is being closed in an orderly way, for the bridge's reason."""
        self.told = True
        self.log.info("connection.closed", peer=self.peer, id=self.id, reason=self.bridge.reason)

    def abort_soon(self) -> None:
        """Whoever has not read the last words by then is dropped."""
        self._last_words = self._node.loop.call_later(LAST_WORDS_S, self.transport.abort)


def address_text(address: object) -> str:
    match address:
        case (str() as host, int() as port, *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "?"
