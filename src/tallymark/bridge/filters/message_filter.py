"""The filters of one link, as the engine asks them."""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.filters.fields import Fields
from tallymark.bridge.filters.nodes import Facts, Node
from tallymark.bridge.filters.reading import Reader
from tallymark.engine.annotations import Annotations
from tallymark.engine.clock import Clock
from tallymark.engine.filters import Filter
from tallymark.engine.message import Payload
from tallymark.wire.amqp10.errors import DecodeError

ANSWERS: Final = 256
"""Answers remembered, by the bytes that decide them."""
LONGEST_KEY: Final = 1024
"""Bytes of what an answer is remembered by."""


@final
class MessageFilter(Filter):
    """All conditions hold. Messages whose sections that matter are equal byte by byte, as most are
    that one publisher sends, get the answer of the first of them."""

    __slots__ = ("_answers", "_clock", "_fresh", "_reader", "_root", "_size")

    def __init__(self, root: Node, fields: Fields, clock: Clock, reads_time: bool) -> None:
        """reads_time: the answer depends on when it is asked."""
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
        """How many answers."""
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
