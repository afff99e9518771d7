"""A connection's next deadline, looked at as the owner of its socket does."""

from __future__ import annotations

from typing import Protocol

from tallymark.wire.line import Line, MonotonicMs


class Connection(Protocol):
    @property
    def line(self) -> Line: ...

    def next_deadline(self) -> MonotonicMs | None: ...


class Deadline:
    """The deadline as it was last. Where the line does not say that it may be sooner, it is not: a
    client is not asked for it then, and would be looked at too late."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._due_ms: MonotonicMs | None = None
        self._heard_ms = 0

    def look(self) -> None:
        line = self._connection.line
        due_ms = self._connection.next_deadline()
        if not line.is_sooner and line.heard_ms >= self._heard_ms:
            known = self._due_ms
            assert due_ms is None or (known is not None and due_ms >= known), (known, due_ms)
        line.is_sooner = False
        self._due_ms = due_ms
        self._heard_ms = line.heard_ms
