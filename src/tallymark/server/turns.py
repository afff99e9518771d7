"""The loop's turn: what moves everything between the clients, the engine and the journal.

Whatever a socket or an HTTP request brings becomes engine commands at once; what follows from them
happens once per *turn*, for everything that was read since the last one:

    turn        serve every changed queue           -> effects
    commit      the turn's records as one block     -> a position; a thread writes and syncs it
    synced      what earlier positions waited for   -> confirms, durable answers
    carry out   each effect goes to the bridge of its client
    flush       each client that has output gets one write

A sync between two turns has the last three steps of its own. A turn comes with the next round of
the loop, and what is read until then shares it; where reads come one at a time, at once
(rhythm.py). Records that nobody waits for (settlements, mostly) linger a moment to share a later
block and its sync, which halves the work of trickle traffic. A read that brought nothing else needs
no turn of its own. Without anything to do there is no turn.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, assert_never

from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.engine.broker import Broker
from tallymark.engine.clock import NEVER
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
from tallymark.engine.histogram import Histogram
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.engine.session import Connection, Session
from tallymark.journal.journal import Journal
from tallymark.server.clock import CLOCKS, MS_NS, both_ms
from tallymark.server.config.settings import Config
from tallymark.server.logs import log_of
from tallymark.server.polls import LongPolls
from tallymark.server.rhythm import Rhythm
from tallymark.server.waking import Waking
from tallymark.units import EngineMs, Position, WallMs
from tallymark.wire.line import MonotonicMs

LINGER_S: Final = 0.005
"""Seconds that records may stay out of the journal while no client waits for them."""
TIMER_NS: Final = 1_000_000
"""Nanoseconds by which a timer of the loop may come early."""
LINGER_NS: Final = int(LINGER_S * 1_000_000_000)
LINGER_BYTES: Final = 64 * 1024
"""Bytes read since the last commit above which the records are committed at once, as a block of
their own."""
LINGER_RECORDS: Final = 256
TURN_BYTES: Final = 1 << 20
"""Bytes read since the last commit above which a turn happens at once."""
SUSPICIOUS_MS: Final = 1000
"""Milliseconds of drift between the two clocks, from one look to the next, above which it counts as
a jump."""
US_NS: Final = 1000
CONFIRM_TIMES: Final = 28
"""Buckets of the times from publish to confirm: the last but one ends at 67 s."""

log = log_of("server")
engine_log = log_of("engine")


class JournalFailed(Exception):
    """The broker is stopping because its journal failed: nothing more can be promised."""


class Served:
    """The connected clients, as a turn uses them. A class and no Protocol, and so is Upkeep: what
    is compiled calls a method of a Protocol by its name."""

    def give_room(self, connections: list[Connection]) -> None:
        """Set how much a client may be sent in this turn."""
        raise NotImplementedError

    def flush_soon(self, bridge: Bridge) -> None:
        """Flush the bridge's client in this turn: it has output."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the output of all clients that have some, or were read."""
        raise NotImplementedError

    def hold_for(self, bridge: Bridge, queue: Queue, held: bool) -> None:
        """Hold a publisher back for the sake of a queue, or no more."""
        raise NotImplementedError

    def broken(self, bridge: Bridge, error: Exception) -> bool:
        """Drop the client of a bridge after an exception; False: it is gone already."""
        raise NotImplementedError

    def drop_all(self) -> None:
        """Close every socket now."""
        raise NotImplementedError


class Upkeep:
    """The housekeeping, as a turn uses it."""

    wants_checkpoint: bool
    wants_anchor: bool

    def committed(self, position: Position, now: EngineMs) -> None:
        """A block was handed to the journal, which now ends at `position`; now: engine time."""
        raise NotImplementedError

    def after_turn(self, now: EngineMs) -> None:
        """The effects of a turn were carried out; now: engine time."""
        raise NotImplementedError


class Tracer(Protocol):
    """The traces of messages, as a turn tells of them."""

    def delivered(self, effect: Deliver) -> None:
        """Messages are handed to a consumer."""

    def committed(self, rows: list[Record], position: Position) -> None:
        """A block was handed to the journal, which now ends at `position`."""

    def synced(self, position: Position) -> None:
        """The journal is on disk up to `position`."""


class Turns:
    """Engine and journal of a node, and the turns between them. Everything here happens on the
    loop's thread."""

    served: Served
    upkeep: Upkeep

    def __init__(
        self, config: Config, broker: Broker, journal: Journal, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.config = config
        self.broker = broker
        self.journal = journal
        self.loop = loop
        broker.dispatcher.carry_out = self._carry_out_now
        self._signal = journal.signal
        loop.add_reader(self._signal, self.synced)
        self.failed: asyncio.Future[OSError | RuntimeError] = loop.create_future()
        """Resolved when the broker cannot go on; says why."""
        self.started_ms = broker.clock.now_ms
        """Wall time as it was then, and engine time."""
        self.turns = 0
        """Number of turns so far, and of times that something was synced between them."""
        self.polls = LongPolls(loop, self.schedule)
        self.unwritten_bytes = 0
        """Bytes read from clients since the last commit."""
        self.most_unwritten = min(TURN_BYTES, config.segment_size // 4)
        """Number of these bytes above which a turn is due at once."""
        self.is_on_time = False
        """True if a read has just told the engine the time and the turn follows at once."""
        self.tracer: Tracer | None = None
        """Follower of traced messages, where there is one."""
        self.confirm_times = Histogram(CONFIRM_TIMES)
        """Microseconds from the turn that took a publish to its confirm."""
        self._confirming: deque[tuple[Position, int, int]] = deque()
        """Blocks with publishes that wait for their confirm: end, time of their turn, number of
        publishes."""
        self._told_ns = 0
        """Monotonic time that the engine was told last, in nanoseconds."""
        self._told_ms = MonotonicMs(-1)
        """Milliseconds of that time, as the engine has them."""
        self._clock = broker.clock
        self._jumps = broker.clock.jumps
        """Number of clock jumps that the log has reported."""
        self._apart = 0
        """Milliseconds by which wall time was ahead of monotonic time at the last look."""
        self.is_due = False
        """True if a turn is scheduled."""
        self._rhythm = Rhythm()
        self._call_soon = loop.call_soon
        self._turn_of_loop = self._turn_of_round
        """The two as the loop takes them: looked up once, and not for each turn."""
        self._has_ended = False
        self._lingers_until_ns = 0
        """Monotonic time until which the records that nobody waits for stay out of the journal, in
        nanoseconds; 0: there are none."""
        self._is_linger_armed = False
        """True while a timer runs for them. It outlives a commit: where messages come one at a
        time, a timer for each would cost more than to find now and then that nothing is due."""
        self._linger_over = False
        self._waking = Waking(loop, self.schedule)
        self._at_commit: list[tuple[Callable[[int], None], asyncio.Future[int]]] = []

    # -- time

    def tell_time(self) -> MonotonicMs:
        """Tell the engine the time, before a command; return monotonic milliseconds. A jump of the
        wall clock is logged."""
        # wall_ms() and now_ms(), but for two calls per read and turn.
        self._told_ns = told_ns = CLOCKS.monotonic_ns()
        monotonic_ms = MonotonicMs((told_ns + CLOCKS.alignment_ns) // MS_NS)
        if monotonic_ms == self._told_ms:
            return monotonic_ms  # in which wall time is the same, but for a jump: seen in the next
        self._told_ms = monotonic_ms
        wall = WallMs(CLOCKS.wall_ns() // MS_NS)
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
            self.upkeep.wants_checkpoint = True
            self.schedule()
        return monotonic_ms

    def uptime_ms(self) -> int:
        """Milliseconds since the start, independent of changes of the wall clock."""
        self.tell_time()
        return self.broker.clock.now_ms - self.started_ms

    # -- the turn

    def schedule(self) -> None:
        """Have a turn with the next round of the loop."""
        if not self.is_due:
            self.is_due = True
            self._call_soon(self._turn_of_loop)

    def was_read(self) -> None:
        """Have a turn for what was just read: with the next round of the loop, or at once where
        reads come one at a time."""
        self.is_on_time = True
        if self._rhythm.may_follow(self.is_due) and not self._waking.is_late(self._clock.now_ms):
            self.turn_now()
        else:
            self.schedule()

    def put_off(self) -> bool:
        """Let what was just read, settlements, wait for the next turn, for LINGER_S at most. False:
        it takes a turn of its own."""
        broker = self.broker
        if self.is_due or self._has_ended or self.polls.streams or self.polls.queues:
            return False
        due_ms = broker.next_due()
        if (
            due_ms < self._waking.armed_ms
            or due_ms <= self._clock.now_ms
            or not broker.record_settled()
        ):
            return False
        return bool(broker.ledger.rows) and self._may_linger()

    def turn_now(self) -> None:
        """Have a turn at once, so that its effects are carried out before anything else happens."""
        self.is_due = True
        self._turn()

    def synced(self) -> None:
        """Have confirms leave at once: the journal's thread synced something. That takes no turn:
        there is no command since the last one, or a turn is due, which does it."""
        self.journal.hear()
        if self.is_due or self._has_ended or self.failed.done():
            return
        try:
            self.tell_time()
            self._follow_up([])
        except Exception as error:
            self._broken(error)

    def _turn_of_round(self) -> None:
        """Have the turn that is due, or let it give way to one more round of the loop."""
        if not self.is_due:
            return
        if not self.is_on_time:
            self.tell_time()
            self.is_on_time = True
        if self._waking.gives_way(self._clock.now_ms):
            self.is_on_time = False
            self._call_soon(self._turn_of_loop)
        else:
            self._turn()

    def _turn(self) -> None:
        if not self.is_due:
            return
        self.is_due = False
        self._rhythm.turn()
        if self._has_ended or self.failed.done():
            return
        try:
            self._run_turn()
        except Exception as error:
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        """Stop: what the engine holds can no longer be trusted."""
        trace = "".join(traceback.format_exception(error))
        self.fail(RuntimeError(f"a turn of the engine failed: {error!r}\n{trace}"))

    def _run_turn(self) -> None:
        broker = self.broker
        if self.is_on_time:
            self.is_on_time = False
        else:
            self.tell_time()
        now = self._clock.now_ms
        if broker.agenda.spent:
            self.served.give_room(broker.agenda.spent)
        effects = broker.turn(now)
        if not broker.ledger.rows or not self._may_linger():
            self._commit(now)
        self._follow_up(effects)

    def _follow_up(self, effects: list[Effect]) -> None:
        """Carry out effects, and those that waited for the disk; write all output."""
        broker = self.broker
        self.turns += 1
        synced = self.journal.synced
        effects += broker.synced(synced)
        if self._confirming:
            self._time_confirms(synced)
        if self.tracer is not None:
            self.tracer.synced(synced)
        if effects:
            self._carry_out_all(effects)
        self.served.flush()
        self.upkeep.after_turn(self._clock.now_ms)
        if self.polls.streams or self.polls.queues:
            self.polls.wake()
        if (
            broker.dispatcher.has_work()
            or broker.store.is_behind
            or (broker.ledger.rows and not self._lingers_until_ns)
        ):
            self.schedule()
        else:
            due_ms = broker.next_due()
            if due_ms != self._waking.armed_ms:
                if due_ms < NEVER:
                    self.tell_time()
                self._waking.set(EngineMs(due_ms), self._clock.now_ms)

    def _time_confirms(self, synced: Position) -> None:
        """Count how long the publishes took that are confirmed now."""
        confirming = self._confirming
        while confirming and confirming[0][0] <= synced:
            _, began_ns, count = confirming.popleft()
            self.confirm_times.add((self._told_ns - began_ns) // US_NS, count)

    def _may_linger(self) -> bool:
        """Return whether the turn's records (there are some) can wait for others to be written with
        them; begins the wait."""
        broker = self.broker
        if (
            broker.is_awaited()
            or self._at_commit
            or self.unwritten_bytes > LINGER_BYTES
            or len(broker.ledger.rows) > LINGER_RECORDS
        ):
            return False
        if not self._lingers_until_ns:
            self._lingers_until_ns = self._told_ns + LINGER_NS
            if not self._is_linger_armed:
                self._arm_linger(LINGER_S)
        return not self._linger_over

    def _arm_linger(self, seconds: float) -> None:
        self._is_linger_armed = True
        self.loop.call_later(seconds, self._lingered)

    def _lingered(self) -> None:
        """Have a turn that commits, if records have lingered for their time."""
        self._is_linger_armed = False
        if not self._lingers_until_ns or self._has_ended or self.failed.done():
            return
        self.tell_time()
        left_ns = self._lingers_until_ns - self._told_ns
        if left_ns > TIMER_NS:
            self._arm_linger(left_ns / 1_000_000_000)
            return
        self._linger_over = True
        if self._waking.is_late(self._clock.now_ms):
            self.schedule()
        else:
            self.turn_now()

    def _commit(self, now: EngineMs) -> None:
        """Hand the records to the journal as one block."""
        self._lingers_until_ns = 0
        self._linger_over = False
        self.unwritten_bytes = 0
        broker, journal = self.broker, self.journal
        if broker.ledger.rows:
            records = broker.take_records()
            position = journal.commit(records, self._clock.to_wall(now))
            if self.tracer is not None:
                self.tracer.committed(records, position)
        else:
            records = []
            position = journal.end
        confirms = broker.committed(position)
        if confirms:
            self._confirming.append((position, self._told_ns, confirms))
        upkeep = self.upkeep
        if records or upkeep.wants_checkpoint or upkeep.wants_anchor:
            upkeep.committed(position, now)
        if self._at_commit:
            looks, self._at_commit = self._at_commit, []
            for look, seen in looks:
                look(position)
                if not seen.done():
                    seen.set_result(position)

    # -- effects

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            bridge = _bridge_of(effect.consumer.session)
            bridge.deliver(effect)
            if self.tracer is not None:
                self.tracer.delivered(effect)
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
            waiter.durable()
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
            self.served.hold_for(handle, effect.queue, effect.held)
            return
        elif isinstance(effect, Signal):
            tell = engine_log.error if effect.is_alarm else engine_log.info
            tell(effect.name, **effect.values)
            return
        else:
            assert_never(effect)
        self.served.flush_soon(bridge)

    def _carry_out_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception as error:
                self._undeliverable(effect, error)

    def _carry_out_now(self, effect: Effect) -> None:
        """Carry out a command's effect before the turn; the client's answer leaves with the
        turn."""
        self._carry_out_all([effect])
        self.schedule()

    def _undeliverable(self, effect: Effect, error: Exception) -> None:
        """Close the connection of a client that an effect could not be sent to. The engine is done
        with the effect, so only this connection is lost, and its messages return to their queues. A
        broker that stopped instead would fail at the same message after each start.

        Raises the error where the effect is for nobody.
        """
        bridge = _recipient(effect)
        if bridge is None:
            raise error
        if not self.served.broken(bridge, error):
            log.error("effect.unsaid", effect=type(effect).__name__, error=repr(error))

    # -- for those who wait

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

    # -- the end

    def fail(self, error: OSError | RuntimeError) -> None:
        """Stop at once: nothing more is confirmed, every connection is dropped."""
        if self.failed.done():
            return
        log.error("broker.failed", error=str(error))
        self.failed.set_result(error)
        self.served.drop_all()

    def end(self) -> None:
        """End all turns: nothing may be written behind the journal's end."""
        self._has_ended = True
        self.loop.remove_reader(self._signal)


class Relay:
    """Passes on to the loop that the journal has failed: heard as soon as there are turns, even if
    it was said before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.turns: Turns | None = None

    def failed(self, error: OSError) -> None:
        """A write has failed. Called from any thread."""
        self._loop.call_soon_threadsafe(self._failed, error)

    def _failed(self, error: OSError) -> None:
        if self.turns is not None:
            self.turns.fail(error)


def _recipient(effect: Effect) -> Bridge | None:
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
