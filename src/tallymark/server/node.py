"""The node: one engine, one journal, and the loop turn that moves everything between them.

Whatever a socket or an HTTP request brings becomes engine commands at once; what follows from them
happens once per *turn*, for everything that was read since the last one:

    turn        pump every changed queue            -> effects
    commit      the turn's records as one block     -> a position; a thread writes and syncs it
    synced      what earlier positions waited for   -> confirms, durable answers
    carry out   each effect goes to the bridge of its client
    flush       each client that has output gets one write

A turn follows its read at once. Records that nobody waits for (settlements, mostly) linger a moment
to share a later block and its sync, which halves the work of trickle traffic. Without anything to
do there is no turn.
"""

from __future__ import annotations

import asyncio
import platform
import traceback
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final

from tallymark.bridge.amqp10.watch import Watch
from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.engine.broker import Broker
from tallymark.engine.deadlines import NEVER
from tallymark.engine.delivery import TURN_BYTES as DELIVERY_BYTES
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Durable,
    Effect,
    PublisherHeld,
    Refused,
    Signal,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.queue import Queue
from tallymark.engine.session import Connection, Session
from tallymark.journal.journal import Journal
from tallymark.server.access.rights import Rights
from tallymark.server.access.scram import SCRAM
from tallymark.server.access.users import Users
from tallymark.server.amqp import AmqpClient
from tallymark.server.appends import Appends
from tallymark.server.buffers import Buffers
from tallymark.server.client import Client
from tallymark.server.clock import ALIGNMENT_NS, MS_NS, both_ms, now_ms
from tallymark.server.config.reload import Reloading
from tallymark.server.config.settings import Config
from tallymark.server.deadlines import Deadlines
from tallymark.server.doors import Doors
from tallymark.server.features import Features
from tallymark.server.housekeeping import Housekeeping
from tallymark.server.logs import log_of
from tallymark.server.pacer import Pacer
from tallymark.server.postponed import Postponed
from tallymark.server.schedule import Schedule
from tallymark.server.slow.consumers import SlowConsumerWatch

LINGER_S: Final = 0.002
"""Seconds that records may stay out of the journal while no client waits for them."""
LINGER_BYTES: Final = 64 * 1024
"""Bytes read since the last commit above which the records are committed at once, as a block of
their own."""
LINGER_RECORDS: Final = 256
TURN_BYTES: Final = 1 << 20
"""Bytes read since the last commit above which a turn happens at once."""
SUSPICIOUS_MS: Final = 1000
"""Milliseconds of drift between the two clocks, from one look to the next, above which it counts as
a jump."""
LONGEST_SLEEP_MS: Final = 60_000
GOODBYE_S: Final = 2.0
"""Seconds that clients have at a stop to answer connection.close."""

if TYPE_CHECKING:
    from tallymark.server.access.tokens import Tokens

log = log_of("server")
engine_log = log_of("engine")


def node_name() -> str:
    """Return the broker's name as clients and lists show it."""
    return f"tallymark@{platform.node() or 'localhost'}"


class JournalFailed(Exception):
    """The broker is stopping because its journal failed: nothing more can be promised."""


class Node:
    """A running broker without its listeners. Everything here happens on the loop's thread."""

    def __init__(
        self,
        config: Config,
        features: Features,
        broker: Broker,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.features = features
        self.broker = broker
        self.journal = journal
        self.loop = loop
        self.users = Users(config.data_dir, tokens_of(config))
        self.rights = Rights(self)
        self.clients: dict[Bridge, Client] = {}
        self.replies = DirectReplies()
        self.watch = Watch()
        broker.observers.append(self.watch.observe)
        broker.dispatcher.carry_out = self._carry_out_now
        self.failed: asyncio.Future[OSError | RuntimeError] = loop.create_future()
        """Resolved when the broker cannot go on; says why."""
        self.started_ms = broker.clock.now_ms
        """Wall time as it was then, and engine time."""
        self.turns = 0
        self.housekeeping = Housekeeping(self)
        self.slow_consumers = SlowConsumerWatch(self)
        self.tasks = Schedule(loop)
        self.reloading = Reloading(self)
        self.deadlines = Deadlines(loop, self._tick)
        self.doors = Doors(config.max_connections)
        self.buffers = Buffers(self)
        self._clock = broker.clock
        self._jumps = broker.clock.jumps
        """Number of clock jumps that the log has reported."""
        self._is_told = False
        """True if a read has just told the engine the time and the turn follows at once."""
        self._apart = 0
        """Milliseconds by which wall time was ahead of monotonic time at the last look."""
        self._numbers = 0
        self._last_gone: asyncio.Future[None] | None = None
        self._touched: list[Client] = []
        self._turn_due = False
        self._ended = False
        self._lingering: asyncio.TimerHandle | None = None
        self._linger_over = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = NEVER
        """Engine time for which `_alarm` is set."""
        self._read_bytes = 0
        """Bytes read since the last commit."""
        self._reads = 0
        self._most_bytes = min(TURN_BYTES, config.segment_size // 4)
        self._at_commit: list[tuple[Callable[[int], None], asyncio.Future[int]]] = []
        self._ready_waiters: list[tuple[Queue, asyncio.Future[None]]] = []
        self.appends = Appends(loop)
        self.pacer = Pacer(self)
        self.postponed = Postponed(loop)
        self.limits_changing = asyncio.Lock()
        """Held while limits.json is written."""

    # -- time

    def tell_time(self) -> int:
        """Tell the engine the time, before a command; return monotonic milliseconds. A jump of the
        wall clock is logged."""
        # wall_ms() and now_ms(), but for two calls per read and turn.
        wall, monotonic_ms = time_ns() // MS_NS, (monotonic_ns() + ALIGNMENT_NS) // MS_NS
        apart = wall - monotonic_ms
        if apart != self._apart:
            if not -SUSPICIOUS_MS <= apart - self._apart <= SUSPICIOUS_MS:
                wall, monotonic_ms = both_ms()
            self._apart = wall - monotonic_ms
        clock = self._clock
        clock.read(wall, monotonic_ms)
        if clock.jumps != self._jumps:
            self._jumps = clock.jumps
            log.warning(
                "clock.jumped", seconds=clock.jumped_ms / 1000, ahead_seconds=clock.ahead_ms / 1000
            )
            # The times in the journal are from the clock before its jump. A checkpoint has them
            # from the present one, so that a crash from now on is like a clean stop.
            self.housekeeping.wants_checkpoint = True
            self.schedule()
        return monotonic_ms

    def uptime_ms(self) -> int:
        """Milliseconds since the start, independent of changes of the wall clock."""
        self.tell_time()
        return self.broker.clock.now_ms - self.started_ms

    def mechanisms(self) -> tuple[str, ...]:
        """SASL mechanisms that AMQP clients may use now."""
        allowed = self.config.sasl_mechanisms
        if SCRAM in allowed and not self.users.offers_scram():
            return tuple(name for name in allowed if name != SCRAM)
        return allowed

    # -- clients

    def amqp_clients(self) -> list[AmqpClient]:
        return [one for one in self.clients.values() if isinstance(one, AmqpClient)]

    def opened(self, client: Client) -> None:
        """A client connected; one too many is closed at once."""
        if not client.is_local and not self.doors.enter(client):
            client.transport.abort()
            return
        self._numbers += 1
        client.id = self._numbers
        self.clients[client.bridge] = client
        self.deadlines.arm(client, client.bridge.next_deadline())
        client.log.debug("connection.accepted", peer=client.peer, id=client.id)

    def received(self, client: Client, data: bytes) -> None:
        """Bytes from a client: commands to the engine at once, their effects with the turn."""
        self._read_bytes += len(data)
        self._reads += 1
        client.read_at = self._reads
        broker, bridge = self.broker, client.bridge
        published = broker.published
        monotonic_ms = self.tell_time()
        bridge.room = client.room()
        bridge.receive(data, monotonic_ms, self._clock.now_ms)
        if broker.published != published:
            client.publishing = True
            if broker.quotas.has_rates:
                self.pacer.published(client, broker.published - published)
            if self.housekeeping.is_holding:
                self.housekeeping.hold(client, len(data))
        self._is_told = True
        self.touch(client)
        if bridge.is_behind:  # at once: the transport would read on, for as long as there is more
            client.read_or_not()
        if self._read_bytes > self._most_bytes:
            self._turn()
            client.let_others()

    def speaks_otherwise(self, client: Client, bridge: Bridge) -> None:
        """The client speaks another protocol than it was taken for; it has said nothing yet."""
        del self.clients[client.bridge]
        client.bridge.let_go()
        client.bridge = bridge
        self.clients[bridge] = client
        self.deadlines.arm(client, bridge.next_deadline())

    def lost(self, client: Client, error: Exception | None) -> None:
        """The client's transport is gone."""
        self.doors.leave(client)
        if self.clients.pop(client.bridge, None) is None:
            return
        self.deadlines.disarm(client)
        self.rights.left(client)
        self.buffers.forget(client)
        self.pacer.forget(client)
        reason = client.bridge.reason
        event = "connection.closed" if reason and not client.told else "connection.lost"
        reason = reason or "peer vanished" + (f": {error}" if error else "")
        try:
            client.bridge.eof()
        except Exception as broken:  # a bug of ours: reported like any other, as the client is gone
            client.broken(broken)
        news = client.has_entered and not client.told and not self.failed.done()
        tell = client.log.info if news else client.log.debug
        tell(event, peer=client.peer, id=client.id, reason=reason)
        client.bridge.let_go()
        if not self.clients and self._last_gone is not None and not self._last_gone.done():
            self._last_gone.set_result(None)
        self.schedule()

    def paused(self, client: Client, paused: bool) -> None:
        """Note that the client's socket is full (SC-D6), or takes output again."""
        connection = client.bridge.connection
        if connection is None:
            return
        connection.paused = paused
        if not paused:
            self.broker.wake(connection)
            self.schedule()

    def touch(self, client: Client) -> None:
        """The client's bridge may have output: flush it with the coming turn."""
        if not client.touched:
            client.touched = True
            self._touched.append(client)
        if not self._turn_due:
            self.schedule()

    def _tick(self, client: Client) -> int | None:
        """A client's deadline has come: heartbeats, time-outs. Returns the next one."""
        try:
            self._due(client)
        except Exception as error:  # as in what it sends: it costs this connection, not the others
            client.broken(error)
            return None
        self.touch(client)
        return client.bridge.next_deadline()

    def _due(self, client: Client) -> None:
        if not client.is_reading:
            # What it sent is not read, so its silence means nothing.
            self.received(client, b"")
        client.bridge.tick(now_ms())

    # -- the turn

    def schedule(self) -> None:
        """Have a turn with the next round of the loop."""
        if not self._turn_due:
            self._turn_due = True
            self.loop.call_soon(self._turn)

    def turn_now(self) -> None:
        """Have a turn at once, so that its effects are carried out before anything else happens."""
        self._turn_due = True
        self._turn()

    def synced(self) -> None:
        """The journal's thread wrote and synced something; called on the loop."""
        if not self._turn_due:
            self._turn_due = True
            self._turn()

    def _turn(self) -> None:
        if not self._turn_due:
            return
        self._turn_due = False
        if self._ended or self.failed.done():
            return
        try:
            self._run_turn()
        except Exception as error:  # what the engine holds can no longer be trusted: stop
            trace = "".join(traceback.format_exception(error))
            self.fail(RuntimeError(f"a turn of the engine failed: {error!r}\n{trace}"))

    def _run_turn(self) -> None:
        broker = self.broker
        self.turns += 1
        if self._is_told:
            self._is_told = False
        else:
            self.tell_time()
        now = self._clock.now_ms
        for connection in broker.dispatcher.spent:
            self._give_room(connection)
        effects = broker.turn(now)
        if not broker.ledger.rows or not self._may_linger():
            self._commit(now)
        effects += broker.synced(self.journal.synced)
        if effects:
            self._carry_out_all(effects)
        for bridge in self.replies.take_written():
            assert isinstance(bridge, Bridge)
            self._flush_soon(bridge)
        if self._touched:
            self._flush_touched()
        self.housekeeping.after_turn(now)
        if self._ready_waiters:
            self._wake_readers()
        if self.appends.waiting:
            self.appends.wake()
        if (
            broker.dispatcher.has_work()
            or broker.store.is_behind
            or (broker.ledger.rows and self._lingering is None)
        ):
            self.schedule()
        else:
            due_ms = broker.next_due()
            if due_ms != self._alarm_ms:
                self._set_alarm(due_ms)

    def _flush_touched(self) -> None:
        """Write the output of clients that were read or are written to, and act on the results. Per
        turn and client: nothing is called here that would find nothing to do."""
        touched, self._touched = self._touched, []
        for client in touched:
            client.touched = False
            bridge = client.bridge
            try:
                client.flush()
                if bridge.is_behind:
                    client.catch_up()
            except Exception as error:
                client.broken(error)
            if bridge not in self.clients:
                continue
            due_ms = bridge.next_deadline()
            armed = client.armed
            if due_ms is not None and (armed is None or due_ms < armed.due_ms):
                self.deadlines.arm(client, due_ms)
            # Client.input_bytes and output_bytes
            input_bytes = 0 if client.is_over else bridge.input_bytes + client.encoded_bytes
            output_bytes = client.transport.get_write_buffer_size() + bridge.output_bytes
            if input_bytes != client.input_weight or input_bytes + output_bytes != client.weight:
                self.buffers.count(client, input_bytes, output_bytes)

    def _give_room(self, connection: Connection) -> None:
        """A client may be sent as much as its socket's buffer has room for [SC-D6], and no more in
        one turn than keeps others waiting for long."""
        handle = connection.handle
        client = self.clients.get(handle) if isinstance(handle, Bridge) else None
        if client is not None:
            connection.allowance = min(DELIVERY_BYTES, client.room())

    def _set_alarm(self, due_ms: int) -> None:
        """Have a turn when the engine's next deadline comes; engine time."""
        self._alarm_ms = due_ms
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due_ms < NEVER:
            # For a limited time: engine time is slewed, and jumps of the wall clock are logged.
            self.tell_time()
            wait_ms = min(max(0, due_ms - self.broker.clock.now_ms), LONGEST_SLEEP_MS)
            self._alarm = self.loop.call_later(wait_ms / 1000, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self._alarm_ms = NEVER
        self.schedule()

    def _may_linger(self) -> bool:
        """Return whether the turn's records (there are some) can wait for others to be written with
        them; starts the timer that ends the wait."""
        broker = self.broker
        if (
            broker.is_awaited()
            or self._at_commit
            or self._read_bytes > LINGER_BYTES
            or len(broker.ledger.rows) > LINGER_RECORDS
        ):
            return False
        if self._lingering is None:
            self._lingering = self.loop.call_later(LINGER_S, self._lingered)
        return not self._linger_over

    def _lingered(self) -> None:
        self._linger_over = True
        self._turn_due = True
        self._turn()

    def _commit(self, now: int) -> None:
        """Hand the records to the journal as one block."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._linger_over = False
        self._read_bytes = 0
        broker, journal = self.broker, self.journal
        if broker.ledger.rows:
            records = broker.take_records()
            position = journal.commit(records, self._clock.to_wall(now))
        else:
            records = []
            position = journal.end
        broker.committed(position)
        housekeeping = self.housekeeping
        if records or housekeeping.wants_checkpoint or housekeeping.wants_anchor:
            housekeeping.committed(position, now)
        if self._at_commit:
            looks, self._at_commit = self._at_commit, []
            for look, seen in looks:
                look(position)
                if not seen.done():
                    seen.set_result(position)

    def _wake_readers(self) -> None:
        waiting = []
        for queue, waiter in self._ready_waiters:
            if waiter.done():
                continue
            if queue.ready or queue.deleted:
                waiter.set_result(None)
            else:
                waiting.append((queue, waiter))
        self._ready_waiters = waiting

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            bridge = _bridge_of(effect.consumer.session)
            bridge.deliver(effect)
        elif isinstance(effect, Confirm):
            bridge = _bridge_of(effect.session)
            bridge.confirm(effect)
        elif isinstance(effect, Drained):
            bridge = _bridge_of(effect.consumer.session)
            bridge.drained(effect)
        elif isinstance(effect, Activated):
            bridge = _bridge_of(effect.consumer.session)
            bridge.activated(effect)
        elif isinstance(effect, TimedOut):
            bridge = _bridge_of(effect.session)
            bridge.timed_out(effect)
        elif isinstance(effect, Refused):
            bridge = _bridge_of(effect.session)
            bridge.refused(effect)
        elif isinstance(effect, Durable):
            waiter = effect.waiter
            if isinstance(waiter, asyncio.Future):
                if not waiter.done():
                    waiter.set_result(None)
                return
            assert isinstance(waiter, Waiter), waiter
            bridge = waiter.owner
            bridge.durable(effect)
        elif isinstance(effect, Cancelled):
            bridge = _bridge_of(effect.consumer.session)
            bridge.cancelled(effect)
        elif isinstance(effect, TransactionExpired):
            bridge = _bridge_of(effect.transaction.session)
            bridge.transaction_expired(effect)
        elif isinstance(effect, CloseSession):
            bridge = _bridge_of(effect.session)
            bridge.close_session(effect)
        elif isinstance(effect, CloseConsumer):
            bridge = _bridge_of(effect.consumer.session)
            bridge.close_consumer(effect)
        elif isinstance(effect, PublisherHeld):
            handle = effect.connection.handle
            assert isinstance(handle, Bridge), handle
            client = self.clients.get(handle)
            if client is not None:
                self.housekeeping.hold_for(client, effect.queue, effect.held)
            return
        else:
            assert isinstance(effect, Signal), effect
            tell = engine_log.error if effect.is_alarm else engine_log.info
            tell(effect.name, **effect.values)
            return
        self._flush_soon(bridge)

    def _carry_out_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception as error:
                self._unsaid(effect, error)

    def _carry_out_now(self, effect: Effect) -> None:
        """Carry out a command's effect before the turn; the client's answer leaves with the
        turn."""
        self._carry_out_all([effect])
        self.schedule()

    def _unsaid(self, effect: Effect, error: Exception) -> None:
        """Close the connection of a client that an effect could not be sent to. The engine is done
        with the effect, so only this connection is lost, and its messages return to their queues. A
        broker that stopped instead would fail at the same message after each start.

        Raises the error where the effect is for nobody.
        """
        bridge = _told_by(effect)
        if bridge is None:
            raise error
        client = self.clients.get(bridge)
        if client is not None:
            client.broken(error)
        else:
            log.error("effect.unsaid", effect=type(effect).__name__, error=repr(error))

    def _flush_soon(self, bridge: Bridge) -> None:
        """The bridge has output: flush its client in this turn."""
        client = self.clients.get(bridge)
        if client is not None and not client.touched:
            client.touched = True
            self._touched.append(client)

    async def recorded(self) -> None:
        """Return when confirms of what the engine has done so far would leave: it is on disk, or
        written, as the sync mode has it.

        Raises:
            JournalFailed: it never will be.
        """
        waiter: asyncio.Future[None] = self.loop.create_future()
        self.broker.await_durable(waiter)
        self.schedule()
        both: set[asyncio.Future[Any]] = {waiter, self.failed}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done():
            raise JournalFailed(str(self.failed.result()))

    async def durable(self) -> None:
        """Return when everything the engine has done so far is on disk, in every sync mode. Raises
        JournalFailed: it never will be."""
        await self.recorded()
        if self.config.sync != "commit" and not await asyncio.to_thread(self.journal.flush):
            raise JournalFailed("the journal could not be written")

    async def at_commit(self, look: Callable[[int], None]) -> int:
        """Call `look` with a journal position at a moment when the engine's state is exactly the
        journal's up to there; returns that position."""
        seen: asyncio.Future[int] = self.loop.create_future()
        self._at_commit.append((look, seen))
        self.schedule()
        return await seen

    async def when_ready(self, queue: Queue) -> None:
        """Return when the queue has ready messages at the end of a turn, or is deleted."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._ready_waiters.append((queue, waiter))
        self.schedule()
        await waiter

    # -- the end

    def fail(self, error: OSError | RuntimeError) -> None:
        """Stop at once: nothing more is confirmed, every connection is dropped."""
        if self.failed.done():
            return
        log.error("broker.failed", error=str(error))
        self.failed.set_result(error)
        for client in list(self.clients.values()):
            client.transport.abort()

    async def goodbye(self) -> None:
        """Ask every client to go [amqp-0.9.1 connection.close 320], then drop who stayed."""
        for client in list(self.clients.values()):
            client.bridge.shutdown("shutdown")
            self.touch(client)
        await self._wait_for_all_to_go(GOODBYE_S)
        for client in list(self.clients.values()):
            client.transport.abort()
        await self._wait_for_all_to_go(GOODBYE_S)
        if not self.failed.done():
            await self.durable()

    def end(self) -> None:
        """End all turns: nothing may be written behind the journal's end."""
        self._ended = True

    async def _wait_for_all_to_go(self, seconds: float) -> None:
        if self.clients:
            self._last_gone = self.loop.create_future()
            both: set[asyncio.Future[Any]] = {self._last_gone, self.failed}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def tokens_of(config: Config) -> Tokens | None:
    """Return the checker of tokens; None: the configuration says nothing of tokens.

    Raises:
        KeysUnavailable: it does, and there can be no keys, or the library is not installed.
    """
    if not config.auth_oauth2_resource_server_id:
        return None
    from tallymark.server.access.tokens import make_tokens

    return make_tokens(config)


def _told_by(effect: Effect) -> Bridge | None:
    """Return the bridge of the client that an effect concerns; None: it concerns no client."""
    match effect:
        case Deliver() | Drained() | Activated() | Cancelled() | CloseConsumer():
            return _bridge_of(effect.consumer.session)
        case Confirm() | TimedOut() | Refused() | CloseSession():
            return _bridge_of(effect.session)
        case TransactionExpired():
            return _bridge_of(effect.transaction.session)
        case Durable(waiter=Waiter() as waiter):
            return waiter.owner
        case _:
            return None


def _bridge_of(session: Session) -> Bridge:
    bridge = session.connection.handle
    assert isinstance(bridge, Bridge), bridge
    return bridge
