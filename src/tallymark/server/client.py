"""Client connections, whatever protocol they speak: each a socket and a bridge.

Every rule about the socket that does not depend on the protocol is here or below, so that no front
end can lack it: who is read and who is not (`inlet.py`), what is written (`outlet.py`), what
becomes of an exception, how a connection ends. A protocol says what its bridge is (`meet`), what is
done with input and output that do not go to and from it unchanged (`take`, `put`), and with what it
asks for (`attend`).

A connection that is over has its last words written and its side of the socket shut; what the peer
still sends is read and thrown away until it goes, for LAST_WORDS_S. Closing at once, with input
unread, would have the system send a reset, which can take the last words from the peer.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, cast

from mypy_extensions import mypyc_attr

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.engine.queue import Queue
from tallymark.engine.session import Connection
from tallymark.engine.state import TURN_BYTES as DELIVERY_BYTES
from tallymark.server.access.user import User
from tallymark.server.alarms import Alarms
from tallymark.server.buffers import Buffers
from tallymark.server.clock import now_ms, wall_ms
from tallymark.server.cutting import cut
from tallymark.server.deadlines import Deadlines, Entry
from tallymark.server.doors import Doors
from tallymark.server.giving_way import is_ahead
from tallymark.server.inlet import Inlet
from tallymark.server.interfaces import Served
from tallymark.server.logs import log_of
from tallymark.server.outlet import room_of, weigh, write
from tallymark.server.pacer import Pacer
from tallymark.server.postponed import Postponed
from tallymark.server.turns import Turns
from tallymark.wire.line import MonotonicMs

LEAST_DELIVERY_BYTES: Final = 128 * 1024
"""Bytes that a client may be sent in one turn, however many others there are."""
LAST_WORDS_S: Final = 3.0
"""Seconds that a client has to read the remaining output and close, once its connection is over."""
GOODBYE_S: Final = 2.0
"""Seconds that clients have at a stop to answer connection.close."""
INTERNET: Final = (socket.AF_INET, socket.AF_INET6)


@mypyc_attr(allow_interpreted_subclasses=True)
class Client(Inlet):
    """One client connection; to asyncio a Protocol, by its methods.

    A plain Protocol, not a BufferedProtocol: under uvloop both read into one shared 256 KiB buffer
    and hand over a bytes object of the length read; the plain one costs one call less.
    """

    def __init__(self, clients: Clients, category: str) -> None:
        """category: of the log that reports on it."""
        super().__init__(clients.turns, clients.buffers, clients.postponed)
        self._clients = clients
        self.is_plain = False
        """True where input goes to the bridge unchanged, so that `take` need not be called."""
        self._last_words: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        """Finds out who the client is."""
        self.category = category
        self.log = log_of(category)
        self.subject: User | None = None
        """The user that it has proven to be; None: not yet, or nobody asked."""
        self.has_expired = False
        """True once it was told that its token holds no longer."""
        self.id = 0
        self.since_ms = wall_ms()
        """Time of connection; milliseconds since 1970."""
        self.peer = ""
        self.peer_host = ""
        self.touched = False
        """True if it is on the list of clients to flush at the end of this turn."""
        self.armed: Entry | None = None
        """Entry in the heap of deadlines; None: no deadline is set."""
        self.received_bytes = 0
        self.publishing = False
        """True once it has published: it is paused when memory or disk run low."""
        self.read_at = 0
        """Number of the read of any client in which it was read last."""
        self.asked_ns = 0
        """Monotonic time at which it last asked for something, in nanoseconds; 0: never yet."""
        self.held_for: dict[int, str] = {}
        """Names of queues by id whose slow consumers hold back this client's publishing [SC-D7]."""
        self.blocked_reason: str | None = None
        self.has_logged_end = False
        """True once the log has its reason to end."""

    # -- what a protocol says

    def meet(self, transport: asyncio.Transport) -> Bridge:
        """Name the peer; return the bridge."""
        raise NotImplementedError

    def take(self, data: bytes) -> None:
        """Pass input to the bridge, where it is not plain. What it raises costs the connection."""
        raise NotImplementedError

    def attend(self) -> None:
        """Carry out what the bridge asks for (`Bridge.asks`); its output is written."""
        raise NotImplementedError

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
        self.limit_output()
        self.bridge = self.meet(self.transport)
        self.bridge.tick(now_ms())
        self._clients.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.is_over:
            return
        try:
            if self.is_plain:
                self._clients.received(self, data)
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
        self._clients.lost(self, exc)

    def pause_writing(self) -> None:
        self.is_full = True
        self._clients.paused(self, True)
        self.read_or_not()

    def resume_writing(self) -> None:
        self.is_full = False
        self._clients.paused(self, False)
        self.read_or_not()
        self.catch_up()

    # -- reading

    def work_on(self) -> None:
        """Have the bridge work on postponed input for one more share; then it is another's turn."""
        if self.bridge.is_behind and not (self.is_full or self.is_paced or self.is_over):
            try:
                self._clients.received(self, b"")
            except Exception as error:  # as in data_received
                self.broken(error)
            else:
                self.catch_up()

    # -- writing

    def touch(self) -> None:
        """Flush this client with the coming turn: its bridge may have output."""
        self._clients.touch(self)

    # -- deadlines

    def tick(self) -> MonotonicMs | None:
        """Act on a deadline that has come: heartbeats, time-outs. Returns the next one."""
        try:
            self._due()
        except Exception as error:  # as in what it sends: it costs this connection, not the others
            self.broken(error)
            return None
        self.touch()
        return self.bridge.next_deadline()

    def _due(self) -> None:
        if not self.is_reading:
            # What it sent is not read, so its silence means nothing.
            self._clients.received(self, b"")
        self.bridge.tick(now_ms())

    # -- who it is

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Find something out about the client; one thing at a time."""
        self._task = self._turns.loop.create_task(self._find_out(work))

    async def _find_out(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:  # as in data_received
            self.broken(error)
        finally:
            self._task = None
        if not self.transport.is_closing():
            self.touch()

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
        self.log_closed()
        self.shut()
        self._last_words = self._turns.loop.call_later(LAST_WORDS_S, self.transport.abort)
        self._clients.doors.may_go(self)
        self.read_or_not()

    def broken(self, error: Exception) -> None:
        """Drop the connection after an exception that should not have been possible."""
        self.has_logged_end = True
        self.log.error(
            "connection.broken", peer=self.peer, error=repr(error),
            trace="".join(traceback.format_exception(error)),
        )  # fmt: skip
        self.transport.abort()

    def drop(self) -> None:
        """Close the socket now."""
        cut(self.transport)

    def too_much(self, reason: str) -> None:
        """Send the reason and close; see buffers.py. Later input is discarded."""
        self.bridge.shutdown(reason)
        output = self.bridge.take_output()
        if output:
            self.put(output)
        self.finish()

    def log_closed(self) -> None:
        """The connection is being closed in an orderly way, for the bridge's reason."""
        self.has_logged_end = True
        self.log.info("connection.closed", peer=self.peer, id=self.id, reason=self.bridge.reason)


class Clients(Served):
    """The clients of one node. Everything here happens on the loop's thread."""

    def __init__(
        self, turns: Turns, doors: Doors, buffers: Buffers, pacer: Pacer, alarms: Alarms
    ) -> None:
        self.turns = turns
        self.doors = doors
        self.buffers = buffers
        self.replies = DirectReplies()
        self.deadlines = Deadlines(turns.loop)
        self.postponed = Postponed(turns.loop)
        self._pacer = pacer
        self._alarms = alarms
        self._by_bridge: dict[Bridge, Client] = {}
        self._touched: list[Client] = []
        self._count = 0
        """Number of clients that ever connected."""
        self._gone_received = self._gone_sent = 0
        """Bytes read from clients that are gone, and written to them."""
        self._last_gone: asyncio.Future[None] | None = None

    def __iter__(self) -> Iterator[Client]:
        return iter(self._by_bridge.values())

    def __len__(self) -> int:
        return len(self._by_bridge)

    def received_bytes(self) -> int:
        """Return the bytes read from all clients since the start, also from those that are gone."""
        return self._gone_received + sum([client.received_bytes for client in self])

    def sent_bytes(self) -> int:
        """Return the bytes written to them."""
        return self._gone_sent + sum([client.sent_bytes for client in self])

    def of(self, bridge: Bridge) -> Client | None:
        """Return the client of a bridge; None: it is gone."""
        return self._by_bridge.get(bridge)

    # -- from their sockets

    def opened(self, client: Client) -> None:
        """A client connected; one too many is closed at once."""
        if not self.doors.enter(client):
            client.transport.abort()
            return
        self._count += 1
        client.id = self._count
        self._by_bridge[client.bridge] = client
        self.buffers.enter(client)
        self.deadlines.arm(client, client.bridge.next_deadline())
        client.log.debug("connection.accepted", peer=client.peer, id=client.id)

    def received(self, client: Client, data: bytes) -> None:
        """Bytes from a client: commands to the engine at once, their effects with the turn."""
        turns = self.turns
        turns.unwritten_bytes += len(data)
        turns.reads += 1
        client.read_at = turns.reads
        broker, bridge = turns.broker, client.bridge
        published = broker.publishing.published
        asked = bridge.asked
        monotonic_ms = turns.tell_time()
        bridge.room = room_of(client, self.buffers)
        bridge.receive(data, monotonic_ms, broker.clock.now_ms)
        if bridge.asked != asked:
            client.asked_ns = turns.note_request(client.asked_ns)
        if broker.publishing.published != published:
            self._published(client, broker.publishing.published - published, len(data))
        elif not self.replies.written and turns.put_off():
            self._look_after(client)
            return
        if not client.touched:
            client.touched = True
            self._touched.append(client)
        if bridge.is_behind:  # at once: the transport would read on, for as long as there is more
            client.read_or_not()
        if turns.unwritten_bytes > turns.most_unwritten:
            turns.is_on_time = True
            turns.turn_in_time()
            client.let_others()
        else:
            turns.was_read()

    def _published(self, client: Client, count: int, size: int) -> None:
        if not client.publishing:
            client.publishing = True
            self._alarms.enter(client)
        publishing = self.turns.broker.publishing
        into, publishing.into = publishing.into, None
        if into is not None and is_ahead(into, count):
            client.give_way(into, count)
        if self.turns.broker.quotas.has_rates:
            self._pacer.published(client, count)
        if self._alarms.is_holding:
            self._alarms.hold(client, size)

    def speaks_otherwise(self, client: Client, bridge: Bridge) -> None:
        """The client speaks another protocol than it was taken for; it has said nothing yet."""
        del self._by_bridge[client.bridge]
        client.bridge.let_go()
        client.bridge = bridge
        self._by_bridge[bridge] = client
        self.deadlines.arm(client, bridge.next_deadline())

    def lost(self, client: Client, error: Exception | None) -> None:
        """The client's transport is gone."""
        self.doors.leave(client)
        if self._by_bridge.pop(client.bridge, None) is None:
            return
        self._gone_received += client.received_bytes
        self._gone_sent += client.sent_bytes
        self.deadlines.disarm(client)
        self.buffers.forget(client)
        self._pacer.forget(client)
        self._alarms.leave(client)
        reason = client.bridge.reason
        event = "connection.closed" if reason and not client.has_logged_end else "connection.lost"
        reason = reason or "peer vanished" + (f": {error}" if error else "")
        try:
            client.bridge.eof()
        except Exception as broken:  # a bug of ours: reported like any other, as the client is gone
            client.broken(broken)
        is_news = client.has_entered and not client.has_logged_end and not self.turns.failed.done()
        tell = client.log.info if is_news else client.log.debug
        tell(event, peer=client.peer, id=client.id, reason=reason)
        client.bridge.let_go()
        if not self._by_bridge and self._last_gone is not None and not self._last_gone.done():
            self._last_gone.set_result(None)
        self.turns.schedule()

    def paused(self, client: Client, paused: bool) -> None:
        """Note that the client's socket is full (SC-D6), or takes output again."""
        connection = client.bridge.connection
        if connection is None:
            return
        connection.paused = paused
        if not paused:
            self.turns.broker.clients.wake(connection)
            self.turns.schedule()

    def touch(self, client: Client) -> None:
        """Flush the client with the coming turn: its bridge may have output."""
        if not client.touched:
            client.touched = True
            self._touched.append(client)
        if not self.turns.is_due:
            self.turns.schedule()

    # -- in the turn

    def give_room(self, connections: list[Connection]) -> None:
        """Set how much each of these clients, who were sent something in the last turn, may be sent
        in the next one: what its socket's buffer has room for [SC-D6], and no more of all together
        than keeps others waiting for long."""
        share = max(LEAST_DELIVERY_BYTES, DELIVERY_BYTES // max(1, len(connections)))
        for connection in connections:
            handle = connection.handle
            client = self._by_bridge.get(handle) if isinstance(handle, Bridge) else None
            if client is not None:
                connection.allowance = min(share, room_of(client, self.buffers))

    def flush_soon(self, bridge: Bridge) -> None:
        """Flush the bridge's client in this turn: it has output."""
        client = self._by_bridge.get(bridge)
        if client is not None and not client.touched:
            client.touched = True
            self._touched.append(client)

    def flush(self) -> None:
        """Write the output of clients that were read or are written to, and act on the results. Per
        turn and client: nothing is called here that would find nothing to do."""
        if self.replies.written:
            for bridge in self.replies.take_written():
                assert isinstance(bridge, Bridge)
                self.flush_soon(bridge)
        touched = self._touched
        if not touched:
            return
        self._touched = []
        for client in touched:
            client.touched = False
            self._look_after(client)

    def _look_after(self, client: Client) -> None:
        """Write a client's output, and carry out what its bridge asks for. It is read on unless
        something speaks against it."""
        bridge = client.bridge
        try:
            output = bridge.take_output()
            if output:
                if client.writes_plainly:
                    write(client, output)
                else:
                    client.put(output)
            if bridge.asks:
                client.attend()
            if not client.is_reading or client.is_full or not bridge.wants_data:
                client.read_or_not()
            if bridge.is_behind:
                client.catch_up()
        except Exception as error:
            client.broken(error)
        if bridge not in self._by_bridge:
            return
        if bridge.line.is_sooner:
            bridge.line.is_sooner = False
            self.deadlines.arm(client, bridge.next_deadline())
        weigh(client, bridge, self.buffers)

    def hold_for(self, bridge: Bridge, queue: Queue, held: bool) -> None:
        """Hold a publisher back for the sake of a queue whose consumer is slow, or no more."""
        client = self._by_bridge.get(bridge)
        if client is not None:
            self._alarms.hold_for(client, queue, held)

    def broken(self, bridge: Bridge, error: Exception) -> bool:
        """Drop the client of a bridge after an exception; False: it is gone already."""
        client = self._by_bridge.get(bridge)
        if client is not None:
            client.broken(error)
        return client is not None

    # -- the end

    def drop_all(self) -> None:
        """Close every socket now."""
        for client in list(self):
            client.transport.abort()

    async def goodbye(self) -> None:
        """Ask every client to go [amqp-0.9.1 connection.close 320], then drop who stayed."""
        for client in list(self):
            client.bridge.shutdown("shutdown")
            self.touch(client)
        await self._wait_for_all_to_go(GOODBYE_S)
        self.drop_all()
        await self._wait_for_all_to_go(GOODBYE_S)

    async def _wait_for_all_to_go(self, seconds: float) -> None:
        if self._by_bridge:
            self._last_gone = self.turns.loop.create_future()
            both: set[asyncio.Future[Any]] = {self._last_gone, self.turns.failed}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
