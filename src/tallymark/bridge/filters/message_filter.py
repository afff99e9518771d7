"""The filter of one link, as the engine uses it."""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.filters.fields import Fields
from tallymark.bridge.filters.nodes import Facts, Node
from tallymark.bridge.filters.reading import Reader
from tallymark.engine.clock import Clock
from tallymark.engine.message import Filter, Payload
from tallymark.stored.annotations import Annotations
from tallymark.wire.amqp10.errors import DecodeError

ANSWERS: Final = 256
"""Number of results cached, by the bytes that determine them."""
LONGEST_KEY: Final = 1024
"""Size of the largest cache key, bytes."""


@final
class MessageFilter(Filter):
    """A filter that matches if all conditions hold. Messages with equal bytes in the relevant
    sections, as one publisher's mostly are, share one cached result."""

    __slots__ = ("_answers", "_clock", "_fresh", "_reader", "_root", "_size")

    def __init__(self, root: Node, fields: Fields, clock: Clock, reads_time: bool) -> None:
        """reads_time: the result depends on the time."""
        self._root = root
        self._clock = clock
        self._reader = Reader(fields)
        self._size = fields.count
        self._fresh = reads_time or self._reader.reads_front
        self._answers: dict[tuple[bool, bytes], bool] = {}

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        try:
            if self._fresh:
                return self._asked(payload, i, known)
            return self._remembered(payload, i, known)
        except DecodeError:
            return False

    @property
    def remembered(self) -> int:
        """Count of cached results."""
        return len(self._answers)

    def _remembered(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        key = (payload.persistent, self._reader.deciding(payload, i))
        found = self._answers.get(key)
        if found is None:
            found = self._asked(payload, i, known)
            if len(key[1]) <= LONGEST_KEY:
                if len(self._answers) >= ANSWERS:
                    self._answers.clear()
                self._answers[key] = found
        return found

    def _asked(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        values: list[object] = [None] * self._size
        self._reader.read(payload, i, known, values)
        return self._root.evaluate(Facts(values, self._clock.now_ms)) is True
