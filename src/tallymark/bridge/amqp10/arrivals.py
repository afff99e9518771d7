"""Arriving messages of AMQP 1.0: stretches that share a front, and fields of their properties."""

from __future__ import annotations

from array import array
from typing import final

from mypy_extensions import i64

from tallymark.wire.amqp10.codec import decode, skip
from tallymark.wire.amqp10.encoded import (
    NO_SECTION,
    is_sound,
    last_content,
    section_code,
    value_at,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import Front, read_front
from tallymark.wire.amqp10.sections import (
    PROPERTIES,
)
from tallymark.wire.octets import begins, packed, place, u32


@final
class Arrival:
    """Messages lo..hi-1 of the input, which have one front."""

    __slots__ = ("front", "hi", "is_uniform", "lo")

    def __init__(self, lo: int, hi: int, front: Front, is_uniform: bool) -> None:
        self.lo = lo
        self.hi = hi
        self.front = front
        self.is_uniform = is_uniform
        """True if the messages are known to have equal sections except for the content of the last
        one."""


@final
class Arrivals:
    """Reads messages that arrive by a link, and remembers the last one. A message of the same
    length with the same bytes up to the content of its last section costs one comparison."""

    __slots__ = ("_front", "_head", "_size", "pieces", "problem")

    def __init__(self) -> None:
        self._front: Front | None = None
        self._head = b""
        self._size = -1
        self.pieces: list[Arrival] = []
        """Messages that were read last, in order."""
        self.problem = ""
        """Error text about the message behind them, if it is malformed."""

    def read(self, raw: bytes, cuts: array[int], lo: int, hi: int) -> int:
        """Read messages from `lo` on into `pieces`, up to the first that cannot be read. Returns
        the index of that message; hi: all were read."""
        self.pieces = []
        head = self._head
        size = self._size
        first = lo
        is_uniform = True
        places = packed(cuts, lo, hi)
        i: i64 = lo
        end: i64 = place(places, 0)
        while i < hi:
            start: i64 = end
            end = place(places, i + 1 - lo)
            if end - start != size or not begins(raw, start, head):
                front = self._sound_front(raw, start, end)
                if front is None:
                    break
                if front is not self._front:
                    self._add(first, i, is_uniform)
                    self._front = front
                    first = i
                    is_uniform = True
                elif i > first:
                    is_uniform = False
                head = self._head = raw[start : last_content(raw, start, end)]
                size = self._size = end - start
            i += 1
        self._add(first, i, is_uniform)
        return i

    def _sound_front(self, raw: bytes, start: int, end: int) -> Front | None:
        """Return the front of a message, the previous one if it has that; None: it cannot be
        read."""
        front = self._front
        try:
            if front is None or not front.begins(raw, start, end):
                front = read_front(raw, start, end)
        except DecodeError as error:
            self.problem = error.text
            return None
        if is_sound(raw, start, end):
            return front
        self.problem = "expected the sections of a message, in order"
        return None

    def _add(self, lo: int, hi: int, is_uniform: bool) -> None:
        front = self._front
        if hi > lo and front is not None:
            self.pieces.append(Arrival(lo, hi, front, is_uniform))


def user_ids(raw: bytes, cuts: array[int], piece: Arrival) -> list[bytes | None]:
    """Return the user-id of each message of a stretch, None where it has none. Raises
    DecodeError."""
    found: list[bytes | None] = []
    for value in _fields(raw, cuts, piece, 1):
        if value is not None and type(value) is not bytes:
            raise DecodeError(f"user-id {value!r}, expected binary")
        found.append(value)
    return found


def destinations(raw: bytes, cuts: array[int], piece: Arrival) -> list[str | None]:
    """Return the address in the property `to` of each message of a stretch; None where it has none.
    Equal addresses of neighbours are the same object. Raises DecodeError."""
    found: list[str | None] = []
    for value in _fields(raw, cuts, piece, 2):
        found.append(value if isinstance(value, str) else None)
    return found


def _fields(raw: bytes, cuts: array[int], piece: Arrival, n: int) -> list[object]:
    """Return field n of the properties of a stretch's messages. Equal neighbours are decoded
    once."""
    found: list[object] = []
    last: object = None
    head = b""  # leading bytes of the bare message before, which determine the field
    for i in range(piece.lo, piece.hi):
        pos = cuts[i] + piece.front.size
        end = cuts[i + 1]
        if not head or not raw.startswith(head, pos) or end - pos < len(head):
            last, after = _field(raw, pos, end, n)
            head = raw[pos:after]
            if piece.is_uniform:
                return [last] * (piece.hi - piece.lo)
        found.append(last)
    return found


def _field(raw: bytes, pos: int, end: int, n: int) -> tuple[object, int]:
    """Return field n of the properties of the message whose bare part is raw[pos:end], None where
    it has none, and the end of the bytes that determine it. Raises DecodeError."""
    code = section_code(raw, pos, end)
    at = end if code == NO_SECTION else value_at(raw, pos, end)
    if code != PROPERTIES or raw[at] == 0x45:
        return None, min(at + 1, end)
    end = skip(raw, at, end)
    is_small = raw[at] == 0xC0
    at += 2 if is_small else 5
    after = at + (1 if is_small else 4)
    if after > end:
        raise DecodeError("properties are cut off")
    count = raw[at] if is_small else u32(raw, at)
    if count <= n:
        return None, after
    at = after
    for _ in range(n):
        at = skip(raw, at, end)
    return decode(raw, at, end)
