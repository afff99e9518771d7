"""Streams: an offset means one message for ever; what is kept is what was stored last."""

from __future__ import annotations

from tallymark.simulation.history import History, Violated
from tallymark.simulation.plan import StreamPlan


class Stream:
    """Model of one stream."""

    def __init__(self, history: History, plan: StreamPlan, is_numbered: bool = False) -> None:
        """is_numbered: publishers number their messages, and what they repeat leaves a gap."""
        self._history = history
        self._is_numbered = is_numbered
        self._plan = plan
        self._names: dict[int, str] = {}
        """Names of messages by offset."""
        self._offsets: dict[str, int] = {}
        self.archived = 0
        """Offset up to which it is archived for certain."""
        self._archiving = 0
        """Highest one that anybody has said."""
        self._first: dict[tuple[str, int], int] = {}
        """Oldest offset that was kept when a reader asked last, by reader and life of the
        broker: what retention took just before a crash may be back."""

    def _fail(self, text: str) -> Violated:
        return Violated(f"stream {self._plan.name}: {text}")

    def archives(self, to: int) -> None:
        """Note that somebody says that it is archived up to there."""
        self._archiving = max(self._archiving, to)

    def is_archived_to(self, to: int, known: int) -> None:
        """Check how far it is archived. known: how far it was when that was asked for. Raises
        Violated."""
        if not known <= to <= self._archiving:
            raise self._fail(f"archived up to {to}, it was {known}, said was {self._archiving}")
        self.archived = max(self.archived, to)

    def begins_at(self, first: int, reader: str, life: int) -> None:
        """Check the oldest offset that is kept. Raises Violated."""
        before = self._first.get((reader, life), 0)
        if first < before:
            raise self._fail(f"begins at {first}, and began at {before} before")
        if first and self._plan.max_bytes is None:
            raise self._fail(f"begins at {first}, and nothing says that it may lose anything")
        if first:
            self._history.seen.add("stream retention")
        self._first[reader, life] = first

    def read(self, low: int, high: int, rows: list[tuple[int, str, bytes]]) -> None:
        """Check what was read of a range: offset, name, body. Raises Violated."""
        if not self._is_numbered and len(rows) != high - low:
            raise self._fail(f"{low} to {high} was read as {len(rows)} messages")
        last = low - 1
        for offset, name, body in rows:
            if not last < offset < high:
                raise self._fail(f"offset {offset} behind {last} in a range that ends at {high}")
            last = offset
            message = self._history.published.get(name)
            if message is None or self._plan.name not in message.queues:
                raise self._fail(f"phantom: {name} at {offset} was never published here")
            if body != message.body:
                raise self._fail(f"corrupt: {name} at {offset} is {len(body)} bytes")
            if message.work and self._history.is_unseen(message.work):
                raise self._fail(f"{name} at {offset} was published in {message.work}")
            known = self._names.setdefault(offset, name)
            if known != name:
                raise self._fail(f"offset {offset} was {known}, and is {name}")
            if self._offsets.setdefault(name, offset) != offset:
                raise self._fail(f"{name} is at {self._offsets[name]} and at {offset}")

    def check_end(self, first: int, next: int) -> None:
        """Check the whole stream after everything that it has was read. Raises Violated."""
        last: dict[str, int] = {}
        unread = first - sum(offset < first for offset in self._names)
        for _, name in sorted(self._names.items()):
            message = self._history.published[name]
            if message.number <= last.get(message.line, -1):
                raise self._fail(f"out of order: {name} behind {last[message.line]}")
            last[message.line] = message.number
        for message in self._history.published.values():
            if self._plan.name not in message.queues or message.name in self._offsets:
                continue
            if self._history.is_due(message):
                unread -= 1
                if unread < 0:
                    raise self._fail(f"lost: {message.name}, confirmed; kept are {first} to {next}")
