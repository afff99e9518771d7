"""Records: the state transitions that the engine writes to the journal. They are the ledger.

A record speaks of a *range* of messages of one queue, never of a single one by necessity. All
records of one turn go into one block, and a block is kept whole or not at all: what must be atomic
is emitted in one turn.
"""

from __future__ import annotations

import json
from typing import Final

# Kinds of record. The numbers are stored: never reuse one.
PAYLOAD: Final = 1
"""The bytes of a payload. payload; count; first = first message id; time = arrival, ms."""
ENTERED: Final = 2
"""count messages entered queue as sequences first... payload, lo = first message of the payload;
reason = priority in the queue; blob = annotations (annotations.py). For a dead letter: owner = the
queue it died in, other = its first sequence there."""
ACQUIRED: Final = 3
"""Messages delivered to owner (a consumer's id). other = number of earlier deliveries."""
SETTLED: Final = 4
"""Messages settled. owner as in ACQUIRED; reason = SETTLED_*."""
RETURNED: Final = 5
"""Messages returned to their old positions by owner; reason = RETURNED_*. flags & RETURNED_FAILED:
counted as a failed delivery. blob = annotations, to which the consumer may have added."""
DROPPED: Final = 6
"""Messages that ended without success. reason = DROPPED_*; for DROPPED_RETENTION and
DROPPED_ARCHIVED other = their bytes, framing included."""
MARK: Final = 7
"""High-water mark: every sequence of queue below first may have been delivered, and is redelivered
after a crash. The last record counts; versions that use the highest one flag more messages."""
DEFINITION: Final = 8
"""A change of topology. blob = JSON object, see definitions.py."""
LEASED: Final = 9
"""Messages leased to subscription `owner`: queue sequences first.. became lease sequences other &
LEASE_BITS... reason = priority; blob = annotations; flags = number of deliveries; other >> 48 =
number of failures."""
LEASE_SETTLED: Final = 10
"""Subscription `owner`: every lease sequence below other is settled (the floor)."""
MOVED: Final = 11
"""The cleaner moved payload: other = its old position. Written by the journal itself."""
COUNTERS: Final = 12
"""Totals of one queue at this moment, for checkpoints. blob = JSON object, see
Queue.counters."""
LIVE: Final = 13
"""Checkpoint only: like ENTERED, for messages still in the queue. other = number of deliveries |
number of failures << 32. flags & LIVE_ACQUIRED: held by `owner` at the checkpoint."""
DEAD_LETTERED: Final = 14
"""Messages dead-lettered from queue to at least one other, whose ENTERED row is in the same block.
reason = DEAD_*. payload and lo as in ENTERED. flags & TRANSIENT: there is no such row, because no
target queue survives a restart."""
PENDING: Final = 15
"""Dead letters that no target takes for now: they wait in queue. reason as in DEAD_LETTERED.
payload, lo; blob = JSON, see pending.py. Repeated when some of the targets have them."""
SEEN: Final = 16
"""Publisher-given ids that a deduplicating queue accepted. blob = JSON list of texts."""
DEFERRED: Final = 17
"""Messages not ready until other (wall time, ms). owner = consumer that returned them, 0: they
entered deferred; reason as in RETURNED. Flags: RETURNED_FAILED as in RETURNED; TO_TAIL: they become
ready at the tail, else at their old place. blob as in RETURNED. In a checkpoint the record follows
the LIVE record of the same messages. No record says that they became ready: that follows from the
time."""
STAGED: Final = 18
"""Acquired messages settled in transaction `owner`, which has not ended [TX-4]. reason = STAGED_*.
Left out where the transaction ended in the same turn."""
UNSTAGED: Final = 19
"""Transaction `owner` was rolled back: its STAGED messages are acquired as before [TX-6]."""
COMMITTED: Final = 20
"""Transaction `owner` of session `first` was committed: all its rows are in this block. count =
messages published, other = deliveries settled."""
PUBLISHERS: Final = 23
"""Highest publishing numbers that a stream accepted. blob = JSON object, number by name of
publisher."""
ARCHIVED: Final = 30
"""Archived range of a stream: other messages within count sequences from first on are archived.
blob = JSON object, see streams.py."""

SLOW: Final = 21
"""State of a subscription to topics: it came near a limit, exceeded one, was acted on, or is below
its limits again [SC-4]: reason = SLOW_*. owner = its consumer's id; blob = JSON object: measures,
limits, names, action. first and count are 0: the record concerns no single messages."""
CONSUMER: Final = 22
"""Consumer `owner` of a queue: it came, its credit changed, its progress, it went: reason =
CONSUMER_*. other = messages it settled so far; blob = JSON object, see consumers.py. first and
count are 0."""

SINK_STAGED: Final = 24
"""Messages staged under `owner`, to be published by a commit of their sink. payload; first = index
of the part in the staging, from 0; other = expiry without a commit (wall time, ms); flags &
MANDATORY; blob = JSON object: vhost, sink, known (annotations), see sinks.py."""
SINK_ENDED: Final = 25
"""Staging `owner` ended: reason = SINK_*. If it was published, the ENTERED rows of its messages and
the definition of the sink, which names the batch, are in the same block."""
VERDICTS: Final = 26
"""Outcomes that subscription `owner` was given for leased messages once they are settled; the last
one counts. blob = JSON list of [first lease sequence, count, outcome (STAGED_*)]."""

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
"""Names of all kinds above, for people and readers of the ledger."""

LIVE_ACQUIRED: Final = 1
LIVE_PACKED: Final = 2
"""Flag of LIVE for streams: the payload stays packed in the checkpoint as well."""
RETURNED_FAILED: Final = 1
TO_TAIL: Final = 2
"""Flag of DEFERRED and RETURNED: the messages go to the tail."""
MANDATORY: Final = 1
"""Flag of SINK_STAGED: a commit is refused if one of the messages reaches no queue."""
LEASE_BITS: Final = (1 << 48) - 1
TRANSIENT: Final = 1
"""Flag of ENTERED: the bytes are not stored; the messages end at a restart."""

# Reasons. Also stored.
SETTLED_BY_CLIENT: Final = 1
SETTLED_ON_SEND: Final = 2
SETTLED_BY_BATCH: Final = 3
SETTLED_BY_TRANSFER: Final = 4
"""Moved to other queues by the broker. The ENTERED rows of those queues name this one [NQ-9]."""
SETTLED_BY_REDRIVE: Final = 5
"""Dead letters moved by an operator to their first exchange. The ENTERED rows of the target queues
are in the same block and name this queue."""
SETTLEMENTS: Final = {
    SETTLED_BY_CLIENT: "client",
    SETTLED_ON_SEND: "on_send",
    SETTLED_BY_BATCH: "batch",
    SETTLED_BY_TRANSFER: "transfer",
    SETTLED_BY_REDRIVE: "redrive",
}
RETURNED_BY_CLIENT: Final = 1
RETURNED_BY_CLOSE: Final = 2
RETURNED_BY_LOSS: Final = 3
RETURNED_BY_RELEASE: Final = 4
RETURNED_BY_TIMEOUT: Final = 5
RETURNED_UNSURE: Final = 6
"""Ready all the while as far as the rows say, and below the mark of a broker that stopped: may have
been delivered."""
UNSURE: Final = "unsure"
RETURNS: Final = {
    RETURNED_BY_CLIENT: "client",
    RETURNED_BY_CLOSE: "close",
    RETURNED_BY_LOSS: "loss",
    RETURNED_BY_RELEASE: "release",
    RETURNED_BY_TIMEOUT: "timeout",
    RETURNED_UNSURE: UNSURE,
}
SINK_PUBLISHED: Final = 1
SINK_ABORTED: Final = 2
SINK_EXPIRED: Final = 3
SINK_SUPERSEDED: Final = 4
"""Ended because the sink committed another batch."""
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
"""Names of the outcomes of a session, which have the same numbers."""
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
"""Names of the four reasons, as clients see them [DL-1]."""
DROPPED_REJECTED: Final = 1
DROPPED_PURGED: Final = 2
DROPPED_QUEUE_DELETED: Final = 3
DROPPED_TRANSIENT: Final = 4
DROPPED_LOST: Final = 5
"""Messages whose bytes were corrupt; the operator accepted the loss."""
DROPPED_EXPIRED: Final = 6
DROPPED_MAXLEN: Final = 7
DROPPED_DELIVERY_LIMIT: Final = 8
DROPPED_CYCLE: Final = 9
"""Dead letters whose only route was a cycle without a client's decision [DL-15]."""
DROPPED_UNROUTABLE: Final = 10
"""Dead letters that their exchange routed to no queue."""
DROPPED_HOP_LIMIT: Final = 11
DROPPED_REFUSED: Final = 12
"""Dead letters refused by all their targets because these were full."""
DROPPED_DUPLICATE: Final = 13
DROPPED_RETENTION: Final = 15
"""Messages deleted by a stream's retention."""
DROPPED_SLOW_CONSUMER: Final = 16
"""Messages dropped because their subscription's consumer was too slow and its policy is to drop the
oldest [SC-D7]."""
DROPPED_ARCHIVED: Final = 20
"""Messages deleted from a stream for an archiver. An ARCHIVED record names their new place."""
DROPPED_UNREADABLE: Final = 25
"""Messages whose bytes could not be read, dropped by an operator (quarantine.py)."""
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
CONSUMER_STARTED: Final = 3
CONSUMER_CREDIT: Final = 4
"""The messages that the consumer may hold at once became another number: of a window that a client
grants bit by bit, at least twice or at most half of the last one told."""
CONSUMER_EVENTS: Final = {
    CONSUMER_GOES_ON: "goes_on",
    CONSUMER_ENDED: "ended",
    CONSUMER_STARTED: "started",
    CONSUMER_CREDIT: "credit",
}

REASONS: Final = {
    SETTLED: SETTLEMENTS,
    RETURNED: RETURNS,
    DEFERRED: RETURNS,
    DROPPED: DROP_REASONS,
    DEAD_LETTERED: DEATHS,
    PENDING: DEATHS,
    STAGED: OUTCOMES,
    SINK_ENDED: SINK_ENDS,
    SLOW: SLOW_EVENTS,
    CONSUMER: CONSUMER_EVENTS,
}
"""Names of the reasons of each kind that has reasons."""


def decoded(blob: bytes) -> dict[str, object]:
    """Decode a blob that is a JSON object. Raises ValueError."""
    found: object = json.loads(blob)
    if not isinstance(found, dict):
        raise ValueError(f"{blob[:80]!r} in a record, expected a JSON object")
    return found


def number_in(said: dict[str, object], name: str, default: int | None = None) -> int:
    """Return a number of a decoded blob; `default`, if there is one, where it is missing. Raises
    ValueError."""
    found = said.get(name, default)
    if not isinstance(found, int):
        raise ValueError(f"{name} {found!r} in a record, expected a whole number")
    return found


def object_in(said: dict[str, object], name: str) -> dict[str, object]:
    """Return an object within a decoded blob. Raises ValueError."""
    found = said.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"{name} {found!r} in a record, expected a JSON object")
    return found
