"""Record: one row of the ledger. stored/records.py says what each kind of it means."""

from __future__ import annotations

from typing import final

from tallymark.engine.message import Payload


@final
class Record:
    """One row of the ledger. The meaning of its fields depends on the kind, see above."""

    __slots__ = (
        "kind", "flags", "reason", "queue", "first", "count", "payload", "lo", "owner", "other",
        "time_ms", "blob",
    )  # fmt: skip

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
        """Id of the queue: broker-wide, never reused; 0 if the record concerns no queue."""
        self.first = first
        self.count = count
        self.time_ms = time_ms
        """Time of the transition, milliseconds since 1970: wall time once stored, engine time
        before (clock.py)."""
        self.payload = payload
        self.lo = lo
        self.owner = owner
        self.other = other
        self.reason = reason
        self.flags = flags
        self.blob = blob

    def part(self, start: int, count: int, payload: Payload, blob: bytes) -> Record:
        """Return a row of `count` of the messages, from index `start` on: all those of `payload`.
        The rest is the same but for the blob."""
        return Record(
            self.kind, self.queue, self.first + start, count, self.time_ms, payload, 0, self.owner,
            self.other, self.reason, self.flags, blob,
        )  # fmt: skip
