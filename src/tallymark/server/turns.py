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
no turn of its own. Without anything to do there is no turn. Behind a turn the loop may rest
(resting.py).
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tallymark.engine.broker import Broker
from tallymark.engine.clock import NEVER
from tallymark.engine.effects import (
    Effect,
)
from tallymark.engine.histogram import Histogram
from tallymark.journal.journal import Journal
from tallymark.server.clock import CLOCKS, MS_NS, both_ms
from tallymark.server.config.settings import Config
from tallymark.server.effects import carry_out_all
from tallymark.server.interfaces import Served, Tracer, Upkeep
from tallymark.server.logs import log_of
from tallymark.server.polls import LongPolls
from tallymark.server.resting import REST_S, Resting
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


class JournalFailed(Exception):
    """The broker is stopping because its journal failed: nothing more can be promised."""


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
        self.reads = 0
        """Number of reads of any client so far."""
        self.rests = 0
        """Number of rests of the loop so far."""
        self.polls = LongPolls(loop, self.schedule)
        self.unwritten_bytes = 0
        """Bytes read from clients since the last commit."""
        self.most_unwritten = min(TURN_BYTES, config.segment_size // 4)
        """Number of these bytes above which a turn is due at once."""
        self.is_on_time = False
        """True if the engine was just told the time, for a read mostly, and the turn follows."""
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
        self._deadlines = broker.state.deadlines
        self._jumps = broker.clock.jumps
        """Number of clock jumps that the log has reported."""
        self._apart = 0
        """Milliseconds by which wall time was ahead of monotonic time at the last look."""
        self.is_due = False
        """True if a turn is scheduled."""
        self._rhythm = Rhythm()
        self._resting = Resting()
        self._call_soon = loop.call_soon
        self._turn_of_loop = self._turn
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
        if self._rhythm.may_follow(self.is_due):
            self.turn_in_time()
        else:
            self.schedule()

    def note_request(self, before_ns: int) -> int:
        """Note that a client has just asked for something; before_ns: when it did before, 0: never.
        Returns when it did now. Both are nanoseconds of the monotonic clock."""
        self._resting.asked(self._told_ns, before_ns)
        return self._told_ns

    def put_off(self) -> bool:
        """Let what was just read, settlements, wait for the next turn, for LINGER_S at most. False:
        it takes a turn of its own."""
        broker = self.broker
        if self.is_due or self._has_ended or self.polls.streams or self.polls.queues:
            return False
        due_ms = self._deadlines.next_due()
        if (
            due_ms < self._waking.armed_ms
            or due_ms <= self._clock.now_ms
            or not broker.record_settled()
        ):
            return False
        return bool(broker.ledger.rows) and self._linger()

    def turn_now(self) -> None:
        """Have a turn at once, so that its effects are carried out before anything else happens."""
        self.is_due = True
        self._turn(True)

    def turn_in_time(self) -> None:
        """Have a turn at once; once the sockets were read where a deadline is over."""
        if self._waking.is_over(self._clock.now_ms):
            self.schedule()
        else:
            self.turn_now()

    def synced(self) -> None:
        """Have confirms leave at once: the journal's thread synced something. That takes no turn:
        there is no command since the last one, or a turn is due, which does it."""
        self.journal.hear()
        if self.is_due or self._has_ended or self.failed.done():
            return
        try:
            position = self.journal.synced
            effects = self.broker.synced(position)
            if effects or self._confirming or self.tracer is not None:
                self.tell_time()
            self._follow_up(effects, position)
        except Exception as error:
            self._broken(error)

    def _turn(self, is_at_once: bool = False) -> None:
        if not self.is_due:
            return
        self.is_due = False
        self._rhythm.turn()
        if self._has_ended or self.failed.done():
            return
        broker = self.broker
        try:
            if self.is_on_time:
                self.is_on_time = False
            else:
                self.tell_time()
            now = self._clock.now_ms
            if not is_at_once and self._waking.gives_way(now):
                self.schedule()
                return
            if broker.agenda.spent:
                self.served.give_room(broker.agenda.spent)
            effects = broker.turn(now)
            if not broker.ledger.rows or broker.is_awaited() or not self._linger():
                self._commit(now)
            position = self.journal.synced
            effects += broker.synced(position)
            self._follow_up(effects, position)
        except Exception as error:
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        """Stop: what the engine holds can no longer be trusted."""
        trace = "".join(traceback.format_exception(error))
        self.fail(RuntimeError(f"a turn of the engine failed: {error!r}\n{trace}"))

    def _follow_up(self, effects: list[Effect], synced: Position) -> None:
        """Carry out effects, also those that waited for the disk; write all output. synced:
        position up to which it has the journal."""
        broker = self.broker
        self.turns += 1
        if self._confirming and self._confirming[0][0] <= synced:
            self._time_confirms(synced)
        if self.tracer is not None:
            self.tracer.synced(synced)
        if effects:
            carry_out_all(effects, self.served, self.tracer)
        self.served.flush()
        self.upkeep.after_turn()
        polls = self.polls
        if polls.streams or polls.queues:
            polls.wake()
        if (
            broker.dispatcher.has_work()
            or broker.store.is_behind
            or (broker.ledger.rows and not self._lingers_until_ns)
        ):
            self.schedule()
        else:
            due_ms = self._deadlines.next_due()
            if due_ms != self._waking.armed_ms:
                if due_ms < NEVER:
                    self.tell_time()
                self._waking.set(EngineMs(due_ms), self._clock.now_ms)
            if self._resting.may_rest(self._told_ns, self.reads):
                self._rest()

    def _rest(self) -> None:
        """Let more come before the sockets are read again, if nothing is due."""
        if self.is_due:
            return
        if self.broker.dispatcher.keeps_waiting():
            self._resting.hurry(self._told_ns)
        else:
            self.rests += 1
            CLOCKS.sleep(REST_S)

    def _time_confirms(self, synced: Position) -> None:
        """Count how long the publishes took that are confirmed now."""
        confirming = self._confirming
        while confirming and confirming[0][0] <= synced:
            _, began_ns, count = confirming.popleft()
            self.confirm_times.add((self._told_ns - began_ns) // US_NS, count)

    def _linger(self) -> bool:
        """Return whether the turn's records (there are some, and nobody waits for them) can wait
        for others to be written with them; begins the wait."""
        if (
            self._at_commit
            or self.unwritten_bytes > LINGER_BYTES
            or len(self.broker.ledger.rows) > LINGER_RECORDS
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
        self.is_on_time = True
        self.turn_in_time()

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

    def _carry_out_now(self, effect: Effect) -> None:
        """Carry out a command's effect before the turn; the client's answer leaves with the
        turn."""
        carry_out_all([effect], self.served, self.tracer)
        self.schedule()

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
        """End all turns: nothing may be written behind the journal's end. What the last ones did is
        committed, as the checkpoint that comes now is of the journal's end."""
        if self.broker.ledger.rows and not self.failed.done():
            self._commit(self._clock.now_ms)
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
