"""From the ledger's blocks to a recording: which rows tell of what came from outside, and which of
what the broker made of it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from tallymark.stored import records
from tallymark.stored.annotations import Annotations
from tallymark.whatif.arriving import Arrivals
from tallymark.whatif.beginning import Beginning, Initial, Renumbered
from tallymark.whatif.fates import Fates, QueueName, fate_of
from tallymark.whatif.past import Past
from tallymark.whatif.recording import (
    ACCEPTS,
    BARRED,
    CANCELLED,
    CLOSED,
    COME,
    COVERED,
    CRASH,
    CREDIT,
    DEFERS,
    DEFINE,
    DELIVERIES,
    FAILS,
    FLOOR,
    FOREVER,
    GO,
    GRANT,
    HELD,
    HOLDS,
    JUDGE,
    LATE,
    LEASE,
    LOOK,
    LOST,
    PURGE,
    REJECTS,
    REQUEUES,
    RETURNS,
    SERVED,
    SUBSCRIBE,
    TAKE,
    TRANSFER,
    UNSUBSCRIBE,
    Recording,
    Taken,
    Terms,
    attempt_of,
)
from tallymark.whatif.rows import (
    COUNT,
    FIRST,
    FLAGS,
    KIND,
    OTHER,
    OWNER,
    QUEUE,
    REASON,
    TIME,
    Here,
    Row,
    Told,
    named_headers,
)  # fmt: skip
from tallymark.whatif.sources import Source, source_of

_WORN: Final = {
    records.DEAD_LETTERED: (records.DEAD_REJECTED, records.DEAD_DELIVERY_LIMIT),
    records.PENDING: (records.DEAD_REJECTED, records.DEAD_DELIVERY_LIMIT),
    records.DROPPED: (records.DROPPED_REJECTED, records.DROPPED_DELIVERY_LIMIT),
}
"""Reasons for which a message ends by a consumer's answer: that it was rejected, or given back too
often."""
_OF_TURNS: Final = (records.ACQUIRED, records.SETTLED, records.MARK)
_REASONS_OF_TURNS: Final = {
    records.DEAD_LETTERED: (records.DEAD_EXPIRED, records.DEAD_MAXLEN),
    records.PENDING: (records.DEAD_EXPIRED, records.DEAD_MAXLEN),
    records.DROPPED: (records.DROPPED_EXPIRED, records.DROPPED_MAXLEN),
}
"""Kinds and reasons of rows that the broker writes in a turn, not while it is told something."""
_UNKNOWN_DEATH: Final = (
    records.DROPPED_CYCLE, records.DROPPED_UNROUTABLE, records.DROPPED_HOP_LIMIT,
    records.DROPPED_REFUSED,
)  # fmt: skip
"""Reasons of drops of letters: of those that a consumer held it was rejected."""


_NOT_TOPOLOGY: Final = ("subscription", "drop_subscription", "sink", "drop_sink")
LATEST_MS: Final = 100
"""Most by which a broker is taken to be late."""


class NotEnough(Exception):
    """The ledger does not reach back far enough to be played."""


def read_recording(
    ledger: Path | Source, until_ms: int = FOREVER, headers: Collection[str] = ()
) -> Recording:
    """Read a ledger up to a time: a data folder, on which a broker may be running, or a table.
    headers: names of headers that are read, beside those that bindings ask for. Raises
    LedgerIncomplete, NoTable, NotEnough."""
    source = source_of(ledger) if isinstance(ledger, Path) else ledger
    reader = Reader(headers)
    beginning = None if source.is_whole else _beginning(source)
    if beginning is not None:
        reader.begin(beginning, beginning.block(source.first << 32))
    for block in source.blocks():
        if block.rows[-1][TIME] > until_ms:
            break
        reader.read(block if beginning is None else Renumbered(block, beginning))
    return reader.finish()


def _beginning(source: Source) -> Beginning:
    """Return what the broker had where a ledger begins. Raises NotEnough: there is no checkpoint at
    its end, from which it follows."""
    found, has_state = Beginning(), False
    for block in source.blocks():
        found.read(block)
    for state in source.state():
        found.read_state(state)
        has_state = True
    if not has_state:
        raise NotEnough(
            f"{source.name}: the ledger begins with segment {source.first}, expected 1, and has no "
            "checkpoint at its end: what the broker held at the beginning does not follow"
        )
    return found


class Reader:
    """Reads blocks one after the other, oldest first."""

    def __init__(self, headers: Collection[str] = ()) -> None:
        """headers: names of headers that are read, beside those that bindings ask for."""
        self.recording = Recording()
        self._here = Here()
        self._arrivals = Arrivals(self.recording.publishes, self._here, headers)
        self._synced = 0
        self._waits: list[int] = []
        """Times for which deliveries waited for the disk, ms."""
        self._names: dict[int, QueueName] = {}
        self._declared: dict[tuple[str, str], int] = {}
        self._pasts: dict[int, Past] = {}
        self._terms: dict[int, Terms] = {}
        self._last_ms: dict[int, int] = {}
        """Time at which each consumer settled last, or was given a settled message."""
        self._last: dict[int, tuple[int, int, int]] = {}
        """Time and order at which each settled last, and order of that block."""
        self._answered: dict[int, list[int]] = {}
        """Answers of each consumer, and how many of them came out of order."""
        self._latest: dict[int, tuple[int, int]] = {}
        self._consuming: dict[int, set[int]] = {}
        """Consumers of each queue."""
        self._asked: dict[int, list[int]] = {}
        """Times that consumers let pass before they granted credit again."""
        self._served: set[int] = set()
        """Queues that messages were delivered from in this block."""
        self._late: set[int] = set()
        """Consumers that held messages for too long, in this block."""
        self._late_gone: list[int] = []
        """Consumers of these that were stopped: their clients hear of it behind the block."""
        self._tended = 0
        """Id of the queue whose head the rows before this one tended to, and which no turn had
        served before; 0: none."""
        self._moved: dict[int, dict[QueueName, None]] = {}
        """Queues that messages of another entered in this block, by that one's id."""
        self._initial: dict[tuple[int, int], Initial] = {}
        """Messages that were there, while the beginning is read."""
        self._lease_shift: dict[int, int] = {}
        self._kinds = {
            records.PAYLOAD: self._arrivals.payload,
            records.ENTERED: self._entered,
            records.ACQUIRED: self._acquired,
            records.LEASED: self._leased,
            records.LEASE_SETTLED: self._lease_settled,
            records.VERDICTS: self._verdicts,
            records.SEEN: self._arrivals.ids_seen,
            records.SINK_STAGED: self._arrivals.stage,
            records.SETTLED: self._ended,
            records.DEAD_LETTERED: self._ended,
            records.DROPPED: self._ended,
            records.PENDING: self._pending,
            records.MARK: self._mark,
            records.RETURNED: self._returned,
            records.DEFERRED: self._returned,
            records.DEFINITION: self._defined,
            records.CONSUMER: self._consumer,
            records.SLOW: self._slow,
        }

    def begin(self, beginning: Beginning, block: Told) -> None:
        """Read what was there in front of the ledger."""
        self._initial = beginning.messages
        self._lease_shift = beginning.lease_shift
        self.read(block)
        self._initial = {}
        for what, count in beginning.lacks.items():
            self._lack(what, count)

    def read(self, block: Told) -> None:
        """Read the rows of one block."""
        rows = block.rows
        self._here.order = self._here.block_order = block.position
        self._here.block = block
        self._arrivals.begin(rows)
        self._served.clear()
        self._late.clear()
        for owner in self._late_gone:
            self._here.time_ms = max(self._here.time_ms, rows[0][TIME] if rows else 0)
            self._input(GO, (owner, CLOSED))
        self._late_gone.clear()
        self._moved.clear()
        self._tended = 0
        for number, row in enumerate(rows):
            self._here.order = self._here.block_order + number
            self._here.next = rows[number + 1] if number + 1 < len(rows) else None
            if row[KIND] != records.PAYLOAD:
                if self._tended and _is_purge(row) and row[QUEUE] == self._tended:
                    self.recording.turn_ends[-1] = 0
                self._turn(row[TIME], _is_told(row))
                self._tend(row)
            if row[KIND] in _OF_TURNS or _is_of_turn(row):
                self.recording.turn_ends[-1] = 1
            kind = self._kinds.get(row[KIND])
            if kind is not None:
                kind(row)
        self._turn(self._here.time_ms, False)

    def _turn(self, time_ms: int, is_told: bool) -> None:
        """Note that something happened at a time, or after what happened before. A block may be of
        several turns: what the broker is told behind a delivery belongs to another one.

        is_told: whether it came from outside.
        """
        made = self.recording
        is_new = not made.turn_order or made.turn_order[-1] != self._here.block_order
        if time_ms > self._here.time_ms or is_new or (is_told and made.turn_ends[-1]):
            self._here.turn_order = self._here.order
            self._here.time_ms = max(self._here.time_ms, time_ms)
            made.turn_ms.append(self._here.time_ms)
            made.turn_order.append(self._here.block_order)
            made.turn_upto.append(self._here.order)
            self._synced = max(self._synced, self._here.block.synced)
            made.turn_synced.append(self._synced)
            if is_new and made.turn_ends:
                made.turn_ends[-1] = 1
            made.turn_ends.append(0)
        made.turn_upto[-1] = self._here.order

    def _tend(self, row: Row) -> None:
        """Note the queue whose expired messages, and those beyond its limit, leave in this row, as
        dead letters or not. A turn does that work; a purge does it first, and then it is part of
        the purge."""
        queue = row[OWNER] if row[KIND] == records.ENTERED else row[QUEUE]
        if not queue or not (row[KIND] == records.ENTERED or _is_of_turn(row)):
            self._tended = 0
        elif queue != self._tended:
            self._tended = 0 if self.recording.turn_ends[-1] else queue

    def finish(self) -> Recording:
        """Return the recording."""
        made = self.recording
        made.end_ms = self._here.time_ms
        waits = sorted(self._waits)
        if made.turn_ends:
            made.turn_ends[-1] = 1
        if waits:
            made.sync_ms, made.late_ms = waits[0], min(3 * waits[-1], LATEST_MS)
        for past in self._pasts.values():
            for given in past.held():
                past.answer(given, FOREVER, 0, HOLDS, 0, 0)
            for attempt, answers in past.answers.items():
                answers.sort()
                made.answers[past.name, attempt] = answers
        for owner, asked in self._asked.items():
            made.asks_ms[owner] = sorted(asked)[len(asked) // 2]
        for owner, (count, late) in self._answered.items():
            if late * 20 <= count:
                made.serial.add(owner)
        self._let_finish()
        if self._arrivals.without_headers:
            self._lack(
                "headers of messages whose bytes are gone, which bindings ask for",
                self._arrivals.without_headers,
            )
        made.header_names = frozenset(self._arrivals.header_names)
        first = min((past.fates.entered_ms[0] for past in self._pasts.values() if past.fates.ids),
                    default=self._here.time_ms)  # fmt: skip
        made.begin_ms = min([first, *(one[0] for one in made.inputs[:1])])
        return made

    def _let_finish(self) -> None:
        """Let those who went go behind their last answers, whose rows the broker may have written
        later; who answers for longer was cancelled, and kept what it held."""
        inputs = self.recording.inputs
        for at, (time_ms, order, kind, said) in enumerate(inputs):
            if kind != GO or not isinstance(said, tuple):
                continue
            last = self._last.get(said[0], (0, 0, 0))
            if last[0] > time_ms + LATEST_MS:
                inputs[at] = (time_ms, order, kind, (said[0], CANCELLED))
            elif last[0] > time_ms or last[2] > order:
                inputs[at] = (last[0], last[1], kind, said)
        inputs.sort(key=itemgetter(0, 1))

    # -- messages that came in

    def _entered(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        blob = self._here.blob(row)
        known = Annotations.from_bytes(blob) if blob else None
        source, stay = self._pasts.get(row[OWNER]), attempt_of(known, past.name[1], 0)
        if source is not None and source.id_of(row[OTHER]) < 0:
            first_id, sizes = source.id_of(row[OTHER]), source.sizes_of(row[OTHER], row[COUNT])
            stay = past.stays_of(first_id) * DELIVERIES
        elif self._initial:
            initial = [self._initial[row[QUEUE], i] for i in range(1, row[COUNT] + 1)]
            first_id, sizes = self._arrivals.enter_initial(past, row, initial)
        elif self._arrivals.has(row) and not row[FLAGS] & records.TRANSIENT:
            first_id, sizes = self._arrivals.enter(past, row)
        elif source is not None:
            first_id, sizes = source.id_of(row[OTHER]), array("I", bytes(4 * row[COUNT]))
            stay = past.stays_of(first_id) * DELIVERIES
        else:
            self._lack("messages that are not stored: their routes and sizes", row[COUNT])
            first_id, sizes = self._arrivals.enter_unstored(past, row)
        count, time_ms = row[COUNT], row[TIME]
        if row[OWNER]:
            past.wait_for_letters(row[FIRST] + count, self._here.block_order)
            self._moved.setdefault(row[OWNER], {})[past.name] = None
        past.enter(row[FIRST], count, time_ms, first_id, sizes, stay)

    # -- what consumers did

    def _mark(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is not None:
            past.mark = row[FIRST]
            past.wait(row[FIRST], self._here.block_order, row[TIME])

    def _acquired(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        owner, count = row[OWNER], row[COUNT]
        past.give(row[FIRST], count, row[TIME], owner, row[OTHER])
        if row[QUEUE] not in self._served:
            self._served.add(row[QUEUE])
            if len(self._consuming.get(row[QUEUE], ())) > 1:
                self._input(SERVED, (past.name, owner))
        synced, waited_ms = past.waited_for(row[FIRST] + count - 1, row[TIME])
        mark = past.newly_covered()
        if mark:
            self._input(COVERED, (past.name, mark))
        if 0 <= waited_ms <= LATEST_MS:
            self._waits.append(waited_ms)
        if synced > self._synced:
            self._synced = self.recording.turn_synced[-1] = synced
        if owner not in self._terms:
            self._input(TAKE, Taken(past.name, owner, count, True))
        elif self._terms[owner].is_link:
            self._grant(past, row)

    def _ended(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        kind, reason = row[KIND], row[REASON]
        first, count = row[FIRST], row[COUNT]
        if kind == records.SETTLED:
            if reason == records.SETTLED_ON_SEND:
                self._settled_on_send(past, row)
            elif reason == records.SETTLED_BY_TRANSFER:
                targets = self._moved.pop(row[QUEUE], None)
                if targets:
                    self._input(TRANSFER, (past.name, list(targets)))
            elif reason == records.SETTLED_BY_REDRIVE:
                self._lack("messages that were moved to other queues by hand", count)
            answer = ACCEPTS
        elif reason in _WORN[kind]:
            answer = REJECTS if reason == _WORN[kind][0] else FAILS
        elif kind == records.DROPPED and reason in _UNKNOWN_DEATH:
            answer = REJECTS
        else:
            answer = HOLDS
            if _is_purge(row):
                self._input(PURGE, (past.name, past.is_held(first)))
            elif kind == records.DROPPED and reason == records.DROPPED_TRANSIENT:
                self._crash(False)
        self._answer(past, row, answer, 0)
        past.fates.end(first, count, row[TIME], fate_of(kind, reason))

    def _settled_on_send(self, past: Past, row: Row) -> None:
        """Note that messages were delivered of which no answer comes."""
        owner = row[OWNER]
        if owner not in self._terms:
            self._input(TAKE, Taken(past.name, owner, row[COUNT], False))
        elif self._terms[owner].is_link:
            self._grant(past, row)
            self._last_ms[owner] = row[TIME]

    def _pending(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is not None and row[REASON] in _WORN[records.PENDING]:
            is_rejected = row[REASON] == records.DEAD_REJECTED
            self._answer(past, row, REJECTS if is_rejected else FAILS, 0)

    def _returned(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        reason, flags = row[REASON], row[FLAGS]
        delay = max(0, row[OTHER] - row[TIME]) if row[KIND] == records.DEFERRED else 0
        answer = FAILS if flags & records.RETURNED_FAILED else RETURNS
        if flags & records.TO_TAIL:
            answer = REQUEUES
        elif delay:
            answer = DEFERS
        if reason not in (records.RETURNED_BY_CLIENT, records.RETURNED_BY_RELEASE):
            answer |= HELD
            if not row[OWNER]:
                self._crash(True)
        if reason == records.RETURNED_BY_TIMEOUT:
            self._late.add(row[OWNER])
        if reason == records.RETURNED_BY_LOSS:
            self._closing(past, row, LOST)
        elif reason == records.RETURNED_BY_CLOSE:
            self._closing(past, row, CLOSED)
        self._answer(past, row, answer, delay)

    def _answer(self, past: Past, row: Row, answer: int, delay_ms: int) -> None:
        order = self._here.turn_order if row[KIND] == records.SETTLED else self._here.order
        for given in past.take_back(row[FIRST], row[COUNT]):
            if answer == HOLDS:
                past.answer(given, FOREVER, order, HOLDS, 0, 0)
                continue
            if answer & HELD:
                if row[REASON] == records.RETURNED_BY_TIMEOUT:
                    answer |= LATE
                past.answer(given, row[TIME], order, answer, delay_ms, 0)
                continue
            last = self._last_ms.get(given.owner, 0)
            self._last_ms[given.owner] = row[TIME]
            if row[KIND] == records.SETTLED:
                self._last[given.owner] = (row[TIME], order, self._here.block_order)
            work = row[TIME] - max(given.given_ms, last)
            past.answer(given, row[TIME], order, answer, delay_ms, work)
            seen = self._answered.setdefault(given.owner, [0, 0])
            place = (given.given_ms, given.first)
            seen[0] += 1
            seen[1] += place < self._latest.get(given.owner, (0, 0))
            self._latest[given.owner] = max(place, self._latest.get(given.owner, (0, 0)))

    # -- what durable subscriptions did

    def _leased(self, row: Row) -> None:
        self._input(LEASE, (row[OWNER], row[COUNT]))

    def _lease_settled(self, row: Row) -> None:
        self._input(FLOOR, (row[OWNER], row[OTHER]))

    def _verdicts(self, row: Row) -> None:
        shift = self._lease_shift.get(row[OWNER], 0)
        said = json.loads(self._here.blob(row))
        self._input(JUDGE, (row[OWNER], [(one[0] - shift, one[1], one[2]) for one in said]))

    def _grant(self, past: Past, row: Row) -> None:
        """Note the credit that a consumer must have had, and how long it had let pass."""
        owner = row[OWNER]
        upto = row[FIRST] + row[COUNT]
        self._input(GRANT, (owner, row[COUNT], upto, self._here.block_order))
        since = max(self._last_ms.get(owner, 0), past.entered_at(row[FIRST]))
        if self._last_ms.get(owner, 0) == since:
            self._asked.setdefault(owner, []).append(row[TIME] - since)

    def _slow(self, row: Row) -> None:
        if row[REASON] == records.SLOW_ACTED and row[QUEUE] in self._pasts:
            self._input(LOOK, None)

    # -- topology and consumers

    def _defined(self, row: Row) -> None:
        blob = self._here.blob(row)
        said = json.loads(blob)
        op = said["op"]
        if op == "subscription":
            past = self._pasts.get(said["queue_id"])
            if past is not None:
                self._input(SUBSCRIBE, (said["epoch"], past.name, said["name"]))
        elif op == "drop_subscription":
            self._input(UNSUBSCRIBE, said["epoch"])
        if "vhost" not in said or op in _NOT_TOPOLOGY:
            return
        self._arrivals.header_names |= named_headers(said)
        if op == "queue" and said["id"] not in self._names:
            place = said["vhost"], said["name"]
            again = self._declared.get(place, -1) + 1
            self._declared[place] = again
            name = self._names[said["id"]] = (*place, again)
            fates = self.recording.fates[name] = Fates(name)
            self._pasts[said["id"]] = Past(name, fates)
            if "x-message-deduplication" in said["arguments"]:
                self._arrivals.deduplicating.add(said["id"])
        self._input(DEFINE, blob)

    def _consumer(self, row: Row) -> None:
        owner, reason = row[OWNER], row[REASON]
        if reason == records.CONSUMER_ENDED:
            self._consuming.get(row[QUEUE], set()).discard(owner)
            if owner in self._late:
                self._late_gone.append(owner)
                self._input(BARRED, (owner,))
            else:
                self._input(GO, (owner, CLOSED))
        if reason not in (records.CONSUMER_STARTED, records.CONSUMER_CREDIT):
            return
        self._consuming.setdefault(row[QUEUE], set()).add(owner)
        terms = self._terms[owner] = terms_of(owner, json.loads(self._here.blob(row)))
        self._input(COME if reason == records.CONSUMER_STARTED else CREDIT, terms)

    def _closing(self, past: Past, row: Row, how: int) -> None:
        """Note how the consumers of this block that went have gone: what they held is in its rows,
        behind them."""
        inputs = self.recording.inputs
        at = len(inputs) - 1
        while at >= 0 and inputs[at][1] >= self._here.block_order:
            time_ms, order, kind, said = inputs[at]
            if kind == GO and isinstance(said, tuple):
                inputs[at] = (time_ms, order, kind, (said[0], how))
            at -= 1

    def _crash(self, was_killed: bool) -> None:
        """Note that a broker begins, which says what is lost and what came back."""
        inputs = self.recording.inputs
        if not inputs or inputs[-1][2] != CRASH or inputs[-1][1] < self._here.block_order:
            self._input(CRASH, None)
        if was_killed:
            marks = {
                past.name: (past.mark, max(0, past.mark - past.reached))
                for past in self._pasts.values()
                if past.mark
            }
            inputs[-1] = (*inputs[-1][:3], marks)

    def _input(self, kind: int, said: object) -> None:
        self.recording.inputs.append((self._here.time_ms, self._here.order, kind, said))

    def _lack(self, what: str, count: int) -> None:
        lacks = self.recording.lacks
        lacks[what] = lacks.get(what, 0) + count


def _is_of_turn(row: Row) -> bool:
    """Return whether a row is of a message that ended because it expired, or for a limit."""
    return row[REASON] in _REASONS_OF_TURNS.get(row[KIND], ())


def _is_purge(row: Row) -> bool:
    """Return whether a row is of a queue's messages that a purge took."""
    return row[KIND] == records.DROPPED and row[REASON] == records.DROPPED_PURGED


def _is_told(row: Row) -> bool:
    """Return whether a row is of what the broker was told, not of what it did in a turn."""
    kind, reason = row[KIND], row[REASON]
    if kind in (records.RETURNED, records.DEFERRED):
        return reason != records.RETURNED_BY_TIMEOUT
    if kind == records.ENTERED:
        return not row[OWNER]
    if kind in _REASONS_OF_TURNS:
        return reason not in _REASONS_OF_TURNS[kind]
    return kind in (records.CONSUMER, records.DEFINITION, records.LEASED)


def terms_of(consumer: int, said: dict[str, Any]) -> Terms:
    """Return the terms that a CONSUMER row gives."""
    window, shared = said["window"], said["shared"]
    return Terms(
        consumer, said["session"], said["vhost"], said["queue"], said["connection"],
        -1 if window is None else window, -1 if shared is None else shared, said["acknowledges"],
        said["exclusive"], said["priority"], said["timeout_ms"], said["on_timeout"],
    )  # fmt: skip
