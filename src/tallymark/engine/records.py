"""Records: the transitions the engine asks the journal to keep. They are the ledger.

A record speaks of a *range* of messages of one queue, never of a single one by necessity. All
records of one turn go into one block, and a block is kept whole or not at all: what must be atomic
is emitted in one turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, final

from tallymark.engine.message import Payload

# Kinds of record. The numbers are stored: never reuse one.
PAYLOAD: Final = 1
"""The bytes of a payload. payload; count; first = first message id; time = arrival, ms."""
ENTERED: Final = 2
"""count messages got sequences first.. in queue. payload, lo = first message of the payload;
reason = their priority in the queue; blob = what is known of them (annotations.py).
A letter: owner = the queue it died in, other = its first sequence there."""
ACQUIRED: Final = 3
"""Handed to owner (a consumer's id). other = how often they had been handed out before."""
SETTLED: Final = 4
"""Done with. owner as in ACQUIRED; reason = how (SETTLED_*)."""
RETURNED: Final = 5
"""Given back by owner to their old positions; reason = why (RETURNED_*).
flags & RETURNED_FAILED: counted as a failed delivery. blob = annotations, where the consumer may
have added to them."""
DROPPED: Final = 6
"""Gone without success. reason = why (DROPPED_*); DROPPED_RETENTION, DROPPED_ARCHIVED:
other = their bytes, framing included."""
MARK: Final = 7
"""Every sequence of queue below first may have been delivered: redelivered after a crash. The last
one counts; versions that take the highest flag more."""
DEFINITION: Final = 8
"""A change of topology. blob = JSON object, see definitions.py."""
LEASED: Final = 9
"""Leased to subscription `owner`: queue sequences first.. became lease sequences
other & LEASE_BITS.. reason = priority; blob = annotations; flags = times handed out; other >> 48 =
times failed."""
LEASE_SETTLED: Final = 10
"""Subscription `owner`: every lease sequence below other is settled (the floor)."""
MOVED: Final = 11
"""The cleaner wrote payload again: other = its old position. Written by the journal itself."""
COUNTERS: Final = 12
"""Totals of one queue at this moment, for checkpoints. blob = JSON object, see queue.py."""
LIVE: Final = 13
"""Checkpoint only: like ENTERED, for what is still in the queue. other = times handed out
| times failed << 32. flags & LIVE_ACQUIRED: owned by `owner` when the checkpoint was taken."""
DEAD_LETTERED: Final = 14
"""Left queue for its dead-letter exchange and reached a queue there, whose ENTERED row stands in
the same block. reason = why (DEAD_*). payload and lo as in ENTERED. flags & TRANSIENT: no such
row stands anywhere, since no queue that it reached outlives the broker."""
PENDING: Final = 15
"""Became a dead letter that nothing takes for now: it waits in queue. reason as in DEAD_LETTERED.
payload, lo; blob = JSON, see pending.py. Repeated when some of its targets have it."""
SEEN: Final = 16
"""Publisher-given ids that a deduplicating queue took. blob = JSON list of texts."""
DEFERRED: Final = 17
"""Not ready until other (wall time, ms). owner = who gave them back, 0: they entered so; reason as
in RETURNED. Flags: RETURNED_FAILED as in RETURNED; TO_TAIL: then at the tail, else at their old
place. blob as in RETURNED. In a checkpoint it stands behind the LIVE record of the same messages.
That they became ready is not recorded: it follows from the time."""
STAGED: Final = 18
"""Acquired messages were settled in transaction `owner`, which has not ended [TX-4]. reason = how
(STAGED_*). Left out where the transaction ended in the same turn."""
UNSTAGED: Final = 19
"""Transaction `owner` was rolled back: its STAGED messages are acquired as before [TX-6]."""
COMMITTED: Final = 20
"""Transaction `owner` of session `first` was committed: all rows of it are in this block. count =
messages published, other = deliveries settled."""
PUBLISHERS: Final = 23
"""Of a stream: the highest numbers that publishers gave messages it took. blob = JSON object,
number by name of publisher."""
ARCHIVED: Final = 30
"""Of a stream: count sequences from first on, which are other messages, are safe elsewhere. blob =
JSON object, see archives.py."""

SLOW: Final = 21
"""A subscription to topics came near a limit, above one, had something done about it, or is below
them again [SC-4]: reason = SLOW_*. owner = its consumer's id; blob = JSON object: measures, limits,
who, what was done. first and count are 0: it says nothing of single messages."""
CONSUMER: Final = 22
"""What consumer `owner` of a queue came to by now: reason = CONSUMER_*. other = messages it
settled; blob = JSON object, see statistics.py. first and count are 0."""

SINK_STAGED: Final = 24
"""Messages were handed over under staging `owner`, to be published by a commit of their sink.
payload; first = which part of the staging, from 0; other = when it ends without a commit (wall
time, ms); flags & MANDATORY; blob = JSON object: vhost, sink, known (annotations), see sinks.py."""
SINK_ENDED: Final = 25
"""Staging `owner` is over: reason = SINK_*. Where it was published, the ENTERED rows of its
messages and the definition of the sink, which names the batch, stand in the same block."""
VERDICTS: Final = 26
"""Subscription `owner` was told what is to become of leased messages once they are settled; what is
said last counts. blob = JSON list of [first lease sequence, count, outcome (STAGED_*)]."""

KINDS: Final = {
    PAYLOAD: "payload",
    ENTERED: "entered",
    ACQUIRED: "acquired",
    SETTLED: "settled",
    RETURNED: "returned",
    DROPPED: "dropped",
    MARK: "mark",
    DEFINITION: "definition",
    LEASED: "leased",
    LEASE_SETTLED: "lease_settled",
    MOVED: "moved",
    COUNTERS: "counters",
    LIVE: "live",
    DEAD_LETTERED: "dead_lettered",
    PENDING: "pending",
    SEEN: "seen",
    DEFERRED: "deferred",
    STAGED: "staged",
    UNSTAGED: "unstaged",
    COMMITTED: "committed",
    PUBLISHERS: "publishers",
    SINK_STAGED: "sink_staged",
    SINK_ENDED: "sink_ended",
    VERDICTS: "verdicts",
    SLOW: "slow_consumer",
    CONSUMER: "consumer",
    ARCHIVED: "archived",
}
"""Of all kinds above, as people and readers of the ledger see them."""

LIVE_ACQUIRED: Final = 1
LIVE_PACKED: Final = 2
"""Flag of LIVE, of streams: the payload stays packed in the checkpoint as well."""
RETURNED_FAILED: Final = 1
TO_TAIL: Final = 2
"""Flag of DEFERRED and RETURNED."""
MANDATORY: Final = 1
"""Flag of SINK_STAGED: no commit may leave one of them without a queue."""
LEASE_BITS: Final = (1 << 48) - 1
TRANSIENT: Final = 1
"""Flag of ENTERED: the bytes are not stored; the messages end at a restart."""

# Reasons. Also stored.
SETTLED_BY_CLIENT: Final = 1
SETTLED_ON_SEND: Final = 2
SETTLED_BY_BATCH: Final = 3
SETTLED_BY_TRANSFER: Final = 4
"""Moved to other queues by the broker, whose ENTERED rows name this one [NQ-9]."""
SETTLED_BY_REDRIVE: Final = 5
"""Dead letters moved by an operator's word to where they were published first; the ENTERED rows of
those queues stand in the same block and name this one."""
RETURNED_BY_CLIENT: Final = 1
RETURNED_BY_CLOSE: Final = 2
RETURNED_BY_LOSS: Final = 3
RETURNED_BY_RELEASE: Final = 4
RETURNED_BY_TIMEOUT: Final = 5
SINK_PUBLISHED: Final = 1
SINK_ABORTED: Final = 2
SINK_EXPIRED: Final = 3
SINK_SUPERSEDED: Final = 4
"""Its sink committed a batch that it is no part of."""
SINK_LOST: Final = 5
SINK_ENDS: Final = {
    SINK_PUBLISHED: "published",
    SINK_ABORTED: "aborted",
    SINK_EXPIRED: "expired",
    SINK_SUPERSEDED: "superseded",
    SINK_LOST: "lost",
}
STAGED_ACCEPTED: Final = 1
STAGED_REJECTED: Final = 2
STAGED_RETURNED: Final = 3
STAGED_FAILED: Final = 4
STAGED_DISCARDED: Final = 5
OUTCOMES: Final = {
    STAGED_ACCEPTED: "accepted",
    STAGED_REJECTED: "rejected",
    STAGED_RETURNED: "returned",
    STAGED_FAILED: "failed",
    STAGED_DISCARDED: "discarded",
}
"""As the outcomes of a session, which have the same numbers."""
DEAD_REJECTED: Final = 1
DEAD_EXPIRED: Final = 2
DEAD_MAXLEN: Final = 3
DEAD_DELIVERY_LIMIT: Final = 4
DEATHS: Final = {
    DEAD_REJECTED: "rejected",
    DEAD_EXPIRED: "expired",
    DEAD_MAXLEN: "maxlen",
    DEAD_DELIVERY_LIMIT: "delivery_limit",
}
"""The four reasons, as clients see them [DL-1]."""
DROPPED_REJECTED: Final = 1
DROPPED_PURGED: Final = 2
DROPPED_QUEUE_DELETED: Final = 3
DROPPED_TRANSIENT: Final = 4
DROPPED_LOST: Final = 5
"""Bytes that were found corrupt, accepted as lost by the operator."""
DROPPED_EXPIRED: Final = 6
DROPPED_MAXLEN: Final = 7
DROPPED_DELIVERY_LIMIT: Final = 8
DROPPED_CYCLE: Final = 9
"""Dead letters whose only way led back without a client's decision [DL-15]."""
DROPPED_UNROUTABLE: Final = 10
"""Dead letters whose exchange led nowhere."""
DROPPED_HOP_LIMIT: Final = 11
DROPPED_REFUSED: Final = 12
"""Dead letters that every target was too full for."""
DROPPED_DUPLICATE: Final = 13
DROPPED_RETENTION: Final = 15
"""A stream kept them as long as it was told to."""
DROPPED_SLOW_CONSUMER: Final = 16
"""Their subscription's consumer was too slow, and its policy is to drop the oldest [SC-D7]."""
DROPPED_ARCHIVED: Final = 20
"""A stream let go of them by an archiver's word: an ARCHIVED record says where they are."""
DROPPED_UNREADABLE: Final = 25
"""Their bytes could not be read, and an operator gave them up; see quarantine.py."""
DROP_REASONS: Final = {
    DROPPED_REJECTED: "rejected",
    DROPPED_PURGED: "purged",
    DROPPED_QUEUE_DELETED: "queue_deleted",
    DROPPED_TRANSIENT: "transient_at_restart",
    DROPPED_LOST: "lost",
    DROPPED_EXPIRED: "expired",
    DROPPED_MAXLEN: "maxlen",
    DROPPED_DELIVERY_LIMIT: "delivery_limit",
    DROPPED_CYCLE: "dead_letter_cycle",
    DROPPED_UNROUTABLE: "dead_letter_unroutable",
    DROPPED_HOP_LIMIT: "dead_letter_hop_limit",
    DROPPED_REFUSED: "dead_letter_refused",
    DROPPED_DUPLICATE: "duplicate",
    DROPPED_RETENTION: "retention",
    DROPPED_SLOW_CONSUMER: "slow_consumer",
    DROPPED_ARCHIVED: "archived",
    DROPPED_UNREADABLE: "unreadable",
}
SLOW_NEAR: Final = 1
SLOW_FOUND: Final = 2
SLOW_ACTED: Final = 3
SLOW_RECOVERED: Final = 4
SLOW_EVENTS: Final = {
    SLOW_NEAR: "near",
    SLOW_FOUND: "found",
    SLOW_ACTED: "acted",
    SLOW_RECOVERED: "recovered",
}
CONSUMER_GOES_ON: Final = 1
CONSUMER_ENDED: Final = 2
CONSUMER_EVENTS: Final = {CONSUMER_GOES_ON: "goes_on", CONSUMER_ENDED: "ended"}


@final
class Record:
    """One row of the ledger. Which fields mean what depends on the kind, see above."""

    __slots__ = (
        "kind",
        "flags",
        "reason",
        "queue",
        "first",
        "count",
        "payload",
        "lo",
        "owner",
        "other",
        "time_ms",
        "blob",
    )

    def __init__(
        self,
        kind: int,
        queue: int,
        first: int,
        count: int,
        time_ms: int,
        payload: Payload | None = None,
        lo: int = 0,
        owner: int = 0,
        other: int = 0,
        reason: int = 0,
        flags: int = 0,
        blob: bytes = b"",
    ) -> None:
        self.kind = kind
        self.queue = queue
        """The queue's id: broker-wide, never reused; 0 where no queue is meant."""
        self.first = first
        self.count = count
        self.time_ms = time_ms
        """When it happened, milliseconds since 1970: wall time as it is stored, engine time before
        that (walltime.py)."""
        self.payload = payload
        self.lo = lo
        self.owner = owner
        self.other = other
        self.reason = reason
        self.flags = flags
        self.blob = blob


def expanded(records: Iterable[Record]) -> Iterator[Record]:
    """The records of a checkpoint as they are stored: a LIVE record of a packed payload becomes a
    PAYLOAD and a LIVE record for each of its messages, or, with LIVE_PACKED, for all of them."""
    for record in records:
        payload = record.payload
        if payload is None or payload.pack is None:
            yield record
            continue
        if record.flags & LIVE_PACKED:
            part = payload.window(record.lo, record.lo + record.count)
            yield Record(PAYLOAD, 0, part.first_id, part.count, part.arrived_ms, part)
            yield Record(
                LIVE, record.queue, record.first, record.count, record.time_ms, part, 0,
                record.owner, record.other, record.reason, record.flags, record.blob,
            )  # fmt: skip
            continue
        blobs = payload.pack.blobs(record.lo, record.lo + record.count)
        for i in range(record.count):
            one = payload.single(record.lo + i)
            yield Record(PAYLOAD, 0, one.first_id, 1, one.arrived_ms, one)
            yield Record(
                LIVE,
                record.queue,
                record.first + i,
                1,
                record.time_ms,
                one,
                0,
                record.owner,
                record.other,
                record.reason,
                record.flags,
                blobs[i] if blobs else record.blob,
            )
