"""Leases: the four operations of durable subscriptions (lease, read, settle, stat), and attaching.

Everything that changes is a record, and the caller answers only when the disk has it
(`Broker.await_durable`), in every sync mode.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.account import ACQUIRED, LEASED
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.errors import NotFound, PreconditionFailed, ResourceExhausted
from tallymark.engine.ledger import (
    defined_record,
    lease_settled_record,
    leased_record,
    payload_record,
    verdicts_record,
)
from tallymark.engine.message import NOWHERE, ON_ITS_WAY, Slice
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED, RETURNED
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.settlement import Settlement
from tallymark.engine.state import State
from tallymark.engine.subscription import (
    DEFAULT_LIMIT_BYTES,
    DEFAULT_LIMIT_ROWS,
    Subscription,
    subscriptions_of,
)
from tallymark.engine.upkeep import Upkeep
from tallymark.stored import records
from tallymark.units import LeaseSequence, Position

VERDICTS: Final = (ACCEPTED, REJECTED, RETURNED, FAILED)


@final
class Leases:
    """Operations on all durable subscriptions of the broker."""

    def __init__(
        self,
        state: State,
        dispatcher: Dispatcher,
        upkeep: Upkeep,
        settlement: Settlement,
        quarantine: Quarantine,
    ) -> None:
        self._agenda = state.agenda
        self._clock = state.clock
        self.store = state.store
        self.ledger = state.ledger
        self._times = state.settle_times
        self._dispatcher = dispatcher
        self._upkeep = upkeep
        self._settlement = settlement
        self._quarantine = quarantine
        self.attaches = 0
        """Number of the last attach, which is its fence, and the epoch of a subscription that it
        made; never reused."""
        self.subscriptions: dict[int, Subscription] = {}
        """Subscriptions by epoch."""

    def find(self, queue: Queue, name: str) -> Subscription:
        """Return the subscription. Raises NotFound."""
        for subscription in subscriptions_of(queue):
            if subscription.name == name:
                return subscription
        raise NotFound(f"no subscription '{name}' on queue '{queue.name}' in vhost '{queue.vhost}'")

    def attach(
        self, queue: Queue, name: str, limit_rows: int = 0, limit_bytes: int = 0
    ) -> Subscription:
        """Create the subscription, or take it over: earlier holders' fences are refused from now
        on.

        limit_rows, limit_bytes: how much may be leased and unsettled; 0 = the default.

        Raises:
            PreconditionFailed: the queue does not outlive the broker, is a stream, or its
            consumer is exclusive.
        """
        if not queue.stored:
            raise PreconditionFailed(
                f"a durable subscription needs a durable, shared queue: '{queue.name}' in vhost "
                f"'{queue.vhost}' is not"
            )
        if queue.settings.is_stream:
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' is a stream: it is read by offset"
            )
        if queue.consumers and consumers_of(queue)[0].exclusive:
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use"
            )
        self.attaches += 1
        try:
            subscription = self.find(queue, name)
        except NotFound:
            subscription = Subscription(self.attaches, queue, name)
            self._enter(subscription)
        subscription.fence = self.attaches
        subscription.begun = False
        subscription.limit_rows = limit_rows or DEFAULT_LIMIT_ROWS
        subscription.limit_bytes = limit_bytes or DEFAULT_LIMIT_BYTES
        queue.had_consumer = True
        self._define(self.definition(subscription))
        return subscription

    def lease(
        self, subscription: Subscription, start: LeaseSequence, max_rows: int, max_bytes: int
    ) -> LeaseSequence:
        """Lease messages from lease sequence `start` on and return the end of the batch; it equals
        start if no message is there.

        What is leased beyond `start` already is handed out again before anything new.

        Raises:
            PreconditionFailed: start was never leased, or is below the settled floor.
            ResourceExhausted: as much is leased and unsettled as the subscription may have.
        """
        subscription.check_position(start, "start")
        if start < subscription.floor:
            raise PreconditionFailed(
                f"start {start} of subscription '{subscription.name}' is settled already, up to "
                f"{subscription.floor}"
            )
        if max_rows <= 0:
            raise PreconditionFailed(f"max_rows is {max_rows}, expected at least 1")
        self._forget(subscription, start)
        if subscription.next == start:
            self._extend(subscription, max_rows, max_bytes)
        return LeaseSequence(min(subscription.next, start + max_rows))

    def begin(self, subscription: Subscription, start: LeaseSequence, end: LeaseSequence) -> bool:
        """Begin to read the batch start..end-1, which is leased; return whether that changed
        anything: verdicts of an earlier holder are forgotten.

        Raises:
            PreconditionFailed: some of it is settled, or was never leased, or it ends before it
            starts.
        """
        if end < start:
            raise PreconditionFailed(f"end is {end}, expected at least start = {start}")
        subscription.part(start, end, 0)
        return self._forget(subscription, start)

    def _forget(self, subscription: Subscription, start: LeaseSequence) -> bool:
        undone = subscription.begin(start)
        if undone:
            self.ledger.emit(verdicts_record(subscription.queue.id, subscription.epoch, undone))
        return bool(undone)

    def _extend(self, subscription: Subscription, max_rows: int, max_bytes: int) -> None:
        queue = subscription.queue
        self._dispatcher.look(queue)
        if queue.watched:
            self._upkeep.attend(queue)
        rows = min(max_rows, subscription.limit_rows - (subscription.next - subscription.floor))
        room = subscription.limit_bytes - subscription.leased_bytes
        if queue.ready and (rows <= 0 or room <= 0):
            raise ResourceExhausted(
                f"subscription '{subscription.name}' holds {subscription.next - subscription.floor}"
                f" messages, {subscription.leased_bytes} bytes unsettled: its limits are "
                f"{subscription.limit_rows} and {subscription.limit_bytes}"
            )
        room = min(room, max_bytes) if max_bytes > 0 else room
        taken = 0
        if queue.rests:
            return
        while rows > 0 and (room > 0 or not taken):
            head = self._upkeep.next_head(queue) if queue.watched else queue.head()
            if head is None:
                break
            n = min(rows, len(head))
            while n > 1 and head.payload.cuts[head.lo + n] - head.payload.cuts[head.lo] > room:
                n //= 2
            payload = head.payload
            if payload.position == NOWHERE:
                self.store.load(payload)
                payload.position = Position(ON_ITS_WAY)
                self.ledger.emit(payload_record(payload))
            piece = queue.take(n)
            self.ledger.emit(leased_record(queue.id, subscription.epoch, subscription.next, piece))
            subscription.add(piece)
            queue.account.move(piece, ACQUIRED, LEASED)
            queue.handed_out.to_settle += n
            if piece.acquired:
                queue.handed_out.again += n
            rows -= n
            room -= piece.size()
            taken += n
        if queue.watched:
            self._agenda.mark(queue)  # the next head has an expiry of its own

    def read(
        self, subscription: Subscription, low: LeaseSequence, high: LeaseSequence
    ) -> list[tuple[LeaseSequence, Slice]]:
        """Return lease sequences low..high-1 as (first lease sequence, slice), bytes in memory.

        Raises:
            PreconditionFailed: some of it is settled, or was never leased.
            Unreadable.
        """
        found = subscription.part(low, high)
        for _, piece in found:
            self.load(subscription, piece)
        return found

    def load(self, subscription: Subscription, piece: Slice) -> None:
        """Load the bytes of leased messages into memory.

        Raises Unreadable, with the messages whose bytes cannot be read.
        """
        if not self.store.tried(piece.payload):
            raise self._quarantine.refuse_leased(subscription, piece)

    def judge(self, subscription: Subscription, said: list[tuple[LeaseSequence, int, int]]) -> None:
        """Set the outcomes of leased messages for their settlement, as (first lease sequence,
        count, outcome of a session): accepted, rejected for good [DL-1], returned, or returned as a
        failed delivery [DL-5]. The last outcome set for a message counts; the default is accepted.
        Nothing happens before `settle`.

        Raises:
            PreconditionFailed: one of them is not leased, or is settled already; no verdict of this
            call counts then.
        """
        for first, count, outcome in said:
            if outcome not in VERDICTS:
                raise PreconditionFailed(f"verdict {outcome}, expected one of {VERDICTS}")
            if count < 1:
                raise PreconditionFailed(f"a verdict on {count} messages, expected at least 1")
            if first < subscription.floor:
                raise PreconditionFailed(
                    f"lease sequence {first} of subscription '{subscription.name}' is settled, up "
                    f"to {subscription.floor}: a verdict comes too late"
                )
            subscription.check_position(first + count, "the end of a verdict")
        for first, count, outcome in said:
            subscription.judge(first, count, outcome)
        self.ledger.emit(verdicts_record(subscription.queue.id, subscription.epoch, said))

    def settle(self, subscription: Subscription, end: LeaseSequence) -> LeaseSequence:
        """Settle every lease sequence below `end` with the outcomes set; return the floor.
        Cumulative: repeated and late calls change nothing.

        Raises:
            PreconditionFailed: end was never leased.
        """
        subscription.check_position(end, "end")
        if end > subscription.floor:
            queue = subscription.queue
            epoch = subscription.epoch
            back: dict[int, list[Slice]] = {}
            for outcome, piece in subscription.settle(end):
                n = len(piece)
                queue.account.move(piece, LEASED, ACQUIRED)
                if outcome == REJECTED:
                    self._settlement.refuse(queue, piece)
                elif outcome != ACCEPTED:
                    back.setdefault(outcome, []).append(piece)
                else:
                    if queue.settle(piece, piece.lo, piece.hi, epoch, records.SETTLED_BY_BATCH):
                        self._agenda.settling.append(queue)
                    self._times.add(self._clock.now_ms - piece.entered_ms(), n)
                    self.store.finish(piece.payload, n)
            for outcome, pieces in back.items():
                reason = records.RETURNED_BY_CLIENT
                self._settlement.give_back(queue, pieces, epoch, reason, outcome == FAILED)
            self.ledger.emit(lease_settled_record(queue.id, epoch, end))
        return subscription.floor

    def remove(self, subscription: Subscription) -> list[Slice]:
        """Remove a subscription; return the messages it held, which are still counted as
        acquired."""
        queue = subscription.queue
        queue.subscriptions.remove(subscription)
        del self.subscriptions[subscription.epoch]
        pieces = subscription.release()
        for piece in pieces:
            queue.account.move(piece, LEASED, ACQUIRED)
        self._define({"op": "drop_subscription", "epoch": subscription.epoch})
        return pieces

    def stat(self, subscription: Subscription, at: int = 0) -> dict[str, object]:
        """Return the subscription as plain values; messages and bytes.

        at: lease sequence behind the reader's newest batch, from which on it is behind.
        """
        rows_behind, bytes_behind = subscription.behind(at)
        oldest_ms = subscription.oldest_ms()
        return {
            "subscription": subscription.name,
            "vhost": subscription.queue.vhost,
            "queue": subscription.queue.name,
            "epoch": subscription.epoch,
            "fence": subscription.fence,
            "floor": subscription.floor,
            "next": subscription.next,
            "leased": subscription.next - subscription.floor,
            "leased_bytes": subscription.leased_bytes,
            "verdicts": len(subscription.verdicts),
            "ready": subscription.queue.ready,
            "rows_behind": rows_behind,
            "bytes_behind": bytes_behind,
            "oldest_unsettled_ms": (
                None if oldest_ms is None else max(0, self._clock.now_ms - oldest_ms)
            ),
            "limit_rows": subscription.limit_rows,
            "limit_bytes": subscription.limit_bytes,
        }

    # -- definitions

    def definition(self, subscription: Subscription) -> dict[str, object]:
        """Return the definition from which a restart makes the subscription."""
        return {
            "op": "subscription",
            "epoch": subscription.epoch,
            "queue_id": subscription.queue.id,
            "name": subscription.name,
            "fence": subscription.fence,
            "limit_rows": subscription.limit_rows,
            "limit_bytes": subscription.limit_bytes,
        }

    def restore(self, definition: dict[str, object], queue: Queue) -> Subscription:
        """Restore a subscription from its definition in the journal."""
        epoch = _number(definition, "epoch")
        subscription = self.subscriptions.get(epoch)
        if subscription is None:
            subscription = Subscription(epoch, queue, str(definition["name"]))
            self._enter(subscription)
        subscription.fence = _number(definition, "fence")
        subscription.begun = False
        subscription.limit_rows = _number(definition, "limit_rows")
        subscription.limit_bytes = _number(definition, "limit_bytes")
        self.attaches = max(self.attaches, subscription.fence)
        queue.had_consumer = True
        return subscription

    def _enter(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.epoch] = subscription
        subscription.queue.subscriptions.append(subscription)

    def _define(self, definition: dict[str, object]) -> None:
        self.ledger.emit(defined_record(definition))


def _number(definition: dict[str, object], key: str) -> int:
    value = definition[key]
    if not isinstance(value, int):
        raise ValueError(f"subscription definition: {key} is {value!r}, expected a whole number")
    return value
