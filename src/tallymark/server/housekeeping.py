"""Housekeeping keeps a node within its budgets: memory, disk, checkpoints, cleaning.

Everything is driven by turns, except while an alarm is on and for the ledger's retention: an idle
broker wakes up once in CLEAN_S. What alarms mean for publishers is in alarms.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallymark.engine.record import Record
from tallymark.engine.restore import live_payloads, packed_in, snapshot, tail_of
from tallymark.server.alarms import Alarms
from tallymark.server.buffers import Buffers
from tallymark.server.clock import wall_ms
from tallymark.server.interfaces import Upkeep
from tallymark.server.logs import log_of
from tallymark.server.turns import Turns
from tallymark.stored.records import LIVE_PACKED
from tallymark.units import EngineMs, Position

MIB: Final = 1 << 20
DISK_CHECK_BYTES: Final = 1 * MIB
"""Free space is looked at whenever the journal has grown by so much."""
CLEAN_BYTES: Final = 16 * MIB
"""Growth of the journal after which it is cleaned."""
ANCHOR_S: Final = 1.0
"""Seconds without growth after which the journal's end is recorded outside of it."""
ANCHOR_WAITS: Final = 10
"""Number of times that the record of the journal's end is postponed while the journal grows."""
ALARM_CHECK_S: Final = 0.5
SHORT_CHECK_S: Final = 0.02
"""Seconds between checks while the next segment is being made: the loop must not be blocked
meanwhile."""
LATE_S: Final = 2.0
"""Seconds for which a change may wait for the database before publishers are told to wait."""
CLEAN_S: Final = 600.0
"""Seconds between two applications of the ledger's retention while nothing else is to be
cleaned."""
STEP_S: Final = 0.5
STRIPPING_STEP_S: Final = 0.05
IDLE_STEPS: Final = 4
"""Steps without effect after which cleaning rests: one that was begun ends within."""
CHECKPOINT_STEPS: Final = 120
"""Steps without effect after which cleaning rests, while a checkpoint is being written or is to be
tried again."""
RELOCATE_BYTES: Final = 32 * MIB
"""Live bytes moved out of sparse segments at a time."""
ROW_BYTES: Final = 72
"""Bytes of a checkpoint's row, its part of the bounds included."""
COLUMNS_BYTES: Final = 28
"""Bytes of a packed message of a stream in a checkpoint."""
CACHED_SHARE: Final = 4
"""Part of the limit of memory from which on new bodies may be read back: at the limit the newest
lose their bytes first, until half of it is left."""
SIZE_SHARE: Final = 4
"""Growth of the journal before the next checkpoint, as a multiple of the last checkpoint's size."""

log = log_of("journal")


class Housekeeping(Upkeep):
    """One node's budgets and alarms."""

    def __init__(self, turns: Turns, buffers: Buffers, alarms: Alarms) -> None:
        self._turns = turns
        self._buffers = buffers
        self._alarms = alarms
        self.checkpoints = 0
        self._checkpoint_begun = self._checkpoint_done = turns.journal.checkpoint_position
        self.wants_checkpoint = False
        """True if the next commit is to make a checkpoint, however little the journal has grown."""
        self.wants_anchor = False
        """True if the next commit is to record the journal's end, even if it commits nothing."""
        self._anchor_timer: asyncio.TimerHandle | None = None
        self._anchor_seen = 0
        """End of the journal when it was last looked at."""
        self._anchor_waits = 0
        """Number of looks since that found the journal grown."""
        self._has_committed = False
        """True from a commit on until `_look_at_pending` finds nothing to wait for."""
        self._keeps_cached = False
        """True while the journal's files may be read back, since memory may soon be full."""
        self._grown_checkpoint = 0
        self._checkpoint_distance = turns.config.checkpoint_every
        self._grown_disk = 0
        self._grown_clean = 0
        self._last_problem = ""
        self._last_position = turns.journal.end
        self._timer: asyncio.TimerHandle | None = None
        self._idle_steps = IDLE_STEPS
        self._clean_timer = turns.loop.call_later(CLEAN_S, self._clean_again)
        self._closed = False
        self._has_home = turns.journal.has_home
        self._max_memory = turns.config.max_memory
        self._active = alarms.active
        """The set of alarms that are on, and the limit of memory: looked up once, not each turn."""
        self.step_s = STEP_S
        """Seconds between two steps of cleaning."""
        self.steps = 0
        """Number of steps of cleaning so far that the timer began."""

    def begin(self) -> None:
        """Check the disk, and log what was lost or worked around at the start, once before the
        first client."""
        self._check_disk()
        self._log_problems()

    # -- in the turn

    def committed(self, position: Position, now: EngineMs) -> None:
        """A block was handed to the journal, which now ends at `position`. The engine's state is
        exactly that of the journal: the moment for a checkpoint. now: engine time."""
        grown = self._growth(position)
        self._has_committed = True
        keeps = self._turns.broker.store.resident_bytes * CACHED_SHARE > self._max_memory
        if keeps != self._keeps_cached:
            self._keeps_cached = keeps
            self._turns.journal.keep_cached(keeps)
        self._grown_checkpoint += grown
        self._grown_disk += grown
        self._grown_clean += grown
        if self.wants_checkpoint or self._grown_checkpoint >= self._checkpoint_distance:
            self.checkpoint(now)
        if self.wants_anchor:
            self._anchor()
        elif self._anchor_timer is None and not self._closed:
            self._anchor_timer = self._turns.loop.call_later(ANCHOR_S, self._look_at_tail)
        if self._grown_disk >= DISK_CHECK_BYTES:
            self._grown_disk = 0
            self._check_disk()
        if self._grown_clean >= CLEAN_BYTES:
            self._grown_clean = 0
            self._clean_soon()

    def _look_at_tail(self) -> None:
        """Record the journal's end outside of it, once it no longer grows or after ANCHOR_WAITS
        postponements."""
        self._anchor_timer = None
        end = self._turns.journal.end
        if end != self._anchor_seen and self._anchor_waits < ANCHOR_WAITS:
            self._anchor_seen = end
            self._anchor_waits += 1
            self._anchor_timer = self._turns.loop.call_later(ANCHOR_S, self._look_at_tail)
        elif not self._turns.journal.is_anchored:
            if end == self._anchor_seen:
                self._turns.broker.tighten_marks()
            self.wants_anchor = True
            self._turns.schedule()

    def _anchor(self) -> None:
        """Record the journal's end. The engine's state is exactly that of the journal."""
        self.wants_anchor = False
        self._anchor_waits = 0
        queues, subscriptions = tail_of(self._turns.broker)
        self._turns.journal.write_anchor(queues, subscriptions, wall_ms())

    def after_turn(self) -> None:
        """Release memory that is no longer needed, after the turn's effects were carried out."""
        buffers = self._buffers
        journal = self._turns.journal
        store = self._turns.broker.store
        buffered = buffers.total
        if buffered > buffers.most or buffers.is_scarce:
            buffered = buffers.look()
        if store.resident_bytes + buffered > self._max_memory or self._active:
            self._look_at_memory(buffered)
        if store.released:
            for position, size in store.released:
                journal.release(position, size)
            store.released.clear()
        if journal.has_run_out:
            if not journal.accepts_payloads:
                self._set("disk", True)
            if journal.lacks_files:
                self._set("files", True)
        if self._has_committed:
            self._look_at_pending()

    def _look_at_memory(self, buffered: int) -> None:
        """Bring memory down to its limit, or say that it is short."""
        buffers, broker = self._buffers, self._turns.broker
        store = broker.store
        most = self._max_memory
        budget = most - buffered if buffered <= buffers.most else buffers.most
        if store.resident_bytes > budget:
            broker.spill(budget, self._turns.journal.written)
        # Twice the budget: what is not yet written cannot be let go of, and what is pinned neither.
        # Without incomplete input: who is paused in the midst of a message never completes it.
        is_short = store.resident_bytes + buffered - buffers.input > 2 * most
        if is_short != ("memory" in self._active):
            self._set("memory", is_short)

    def _look_at_pending(self) -> None:
        """Compare what is committed and not yet written, or not yet safe in the journal's home,
        with its limits. Where nothing is beyond them, nothing is before the next commit."""
        turns, alarms = self._turns, self._alarms
        journal = turns.journal
        awaits_home = self._has_home and journal.durable < journal.end
        if awaits_home:
            self._arm(ALARM_CHECK_S)
        limit = turns.config.max_pending
        behind = journal.pending_bytes > (limit // 2 if alarms.is_behind else limit)
        if journal.is_short:
            journal.top_up()
            behind = True
            self._arm(SHORT_CHECK_S)
        if behind != alarms.is_behind:
            alarms.fall_behind(behind)
        self._has_committed = awaits_home or behind

    def checkpoint(self, now: EngineMs, clean: bool = False) -> bool:
        """Write the engine's state as of the journal's end; False: one is still being written.
        clean: nobody is connected any more [engine snapshot]."""
        turns = self._turns
        self._clean(now)
        taken = snapshot(turns.broker, clean)
        written = turns.journal.checkpoint(taken, turns.broker.clock.to_wall(now))
        if written:
            self._checkpoint_distance = max(
                turns.config.checkpoint_every, SIZE_SHARE * _stored_rows(taken) * ROW_BYTES
            )
            self.wants_checkpoint = False
            self._grown_checkpoint = 0
            self.checkpoints += 1
            self._checkpoint_begun = turns.journal.end
            self._anchor()
            log.info("checkpoint.begun", position=f"{turns.journal.end:#x}")
            self._clean_soon()
        return written

    async def last_checkpoint(self) -> None:
        """Write a checkpoint at a clean stop, so that the next start replays nothing."""
        journal = self._turns.journal
        while not self.checkpoint(self._now(), clean=True) and not journal.failed:
            await asyncio.sleep(0.02)
            self._clean(self._now())

    def journal_closed(self) -> None:
        """Log the result of the last checkpoint."""
        self._clean(self._now())

    def _now(self) -> EngineMs:
        """Engine time."""
        self._turns.tell_time()
        return self._turns.broker.clock.now_ms

    def close(self) -> None:
        """Stop all periodic work for good."""
        self._closed = True
        self._clean_timer.cancel()
        if self._anchor_timer is not None:
            self._anchor_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _growth(self, position: Position) -> int:
        last, self._last_position = self._last_position, position
        segments = (position >> 32) - (last >> 32)
        within = (position & 0xFFFFFFFF) - (last & 0xFFFFFFFF)
        return segments * self._turns.config.segment_size + within

    def _relocate(self, now: EngineMs) -> None:
        """Copy live messages out of segments that are mostly garbage, so that these can be
        deleted."""
        turns = self._turns
        sparse = set(turns.journal.sparse())
        if not sparse or turns.journal.is_short:
            return
        most = min(RELOCATE_BYTES, turns.journal.free_bytes() // 4)
        chosen, size = [], 0
        for payload in live_payloads(turns.broker):
            if (
                payload.position >= 0
                and payload.position >> 32 in sparse
                and size + payload.size <= most
            ):
                size += payload.size
                chosen.append(payload)
        packed = []
        for pack, i, payload in packed_in(turns.broker, sparse):
            if size + payload.size > most:
                break
            size += payload.size
            packed.append((pack, i, payload))
        if chosen or packed:
            moving = [*chosen, *(payload for _, _, payload in packed)]
            turns.journal.relocate(moving, now, turns.broker.clock.ahead_ms)
            self._has_committed = True
            for pack, i, payload in packed:
                pack.positions[i] = payload.position

    def _clean(self, now: EngineMs) -> None:
        """Clean the journal. now: engine time, so that a wall clock set forward deletes no ledger
        before its retention is over."""
        journal = self._turns.journal
        journal.clean(now, self._turns.config.ledger_retention)
        if journal.checkpoint_position != self._checkpoint_done:
            self._checkpoint_done = journal.checkpoint_position
            log.info("checkpoint.done", position=f"{self._checkpoint_done:#x}")
            if self.wants_checkpoint:  # another was asked for while this one was being written
                self._turns.schedule()
        self._log_problems()

    def _log_problems(self) -> None:
        journal = self._turns.journal
        for problem in journal.problems:
            if (
                problem != self._last_problem or not self._alarms.active
            ):  # a full disk repeats it each time
                log.warning("journal.problem", problem=problem)
            self._last_problem = problem
        journal.problems.clear()

    def _clean_soon(self) -> None:
        """Clean step by step until nothing changes any more."""
        if self._idle_steps >= IDLE_STEPS:  # else a step is due soon
            self._clean_timer.cancel()
            self._clean_timer = self._turns.loop.call_later(self.step_s, self._clean_again)
        self._idle_steps = 0

    def _clean_again(self) -> None:
        if self._closed:
            return
        self.steps += 1
        journal = self._turns.journal
        before = journal.disk_bytes
        now = self._now()
        self._clean(now)
        if journal.is_stripping:
            pause = STRIPPING_STEP_S
        else:
            self._relocate(now)
            self._idle_steps = 0 if journal.disk_bytes != before else self._idle_steps + 1
            writing = self._checkpoint_begun != self._checkpoint_done
            most = CHECKPOINT_STEPS if writing else IDLE_STEPS
            pause = self.step_s if self._idle_steps < most else CLEAN_S
        self._clean_timer = self._turns.loop.call_later(pause, self._clean_again)

    def limits_changed(self) -> None:
        """Apply a configuration that was read again."""
        self._max_memory = self._turns.config.max_memory
        self._has_committed = True
        self._check_disk()

    # -- memory, disk and files run low

    def _check_disk(self) -> None:
        turns = self._turns
        free = turns.journal.free_bytes()
        is_low = free < turns.config.disk_free_limit or not turns.journal.accepts_payloads
        self._set("disk", is_low)

    def _set(self, alarm: str, on: bool) -> None:
        self._alarms.set(alarm, on)
        if self._alarms.active:
            self._arm(ALARM_CHECK_S)

    def _arm(self, seconds: float) -> None:
        """Look again after so many seconds, or when that was due before."""
        if self._timer is None:
            self._timer = self._turns.loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._closed:
            return
        alarms = self._alarms.active
        if "disk" in alarms:
            self._recover_room()
        if "files" in alarms:
            self._turns.journal.restore_files()
            self._set("files", self._turns.journal.lacks_files)
        if self._has_home:
            self._set("database", self._turns.journal.waits_s > LATE_S)
        self._check_disk()
        self._turns.schedule()
        if alarms:
            self._arm(ALARM_CHECK_S)

    def _recover_room(self) -> None:
        """Request a checkpoint and a cleaning, so that segments of settled messages are deleted
        even while the journal does not grow."""
        journal = self._turns.journal
        if journal.checkpoint_position >> 32 < journal.end >> 32:
            self.wants_checkpoint = True
        self._clean_soon()


def _stored_rows(taken: list[Record]) -> int:
    """Rows a checkpoint of these records has, or as many as are as large as it: two for each packed
    message that is written out."""
    rows = 0
    for record in taken:
        payload = record.payload
        if payload is None or payload.pack is None:
            rows += 1
        elif record.flags & LIVE_PACKED:
            rows += 2 + record.count * COLUMNS_BYTES // ROW_BYTES
        else:
            rows += 2 * record.count
    return rows
