"""Annotated messages: fronts as AMQP 1.0 readers see them, with the broker's header and message
annotations.

The broker adds its facts in the part of a message that it may change; the bare message stays as its
sender encoded it [amqp-1.0 §3.2].

    header               durable, priority, ttl (until it dies [DL-11]), first-acquirer (false once
                         it was handed out or has died), delivery-count: failed deliveries [LC-1]
    message annotations  the publisher's, but for those that are ours; what consumers noted by
                         `modified` [FC-20]; x-exchange, x-routing-key; x-opt-deaths and
                         x-first-death-*, x-last-death-* of dead letters [DL-14, DL-16];
                         x-acquired-count [DL-5] and, the same number, x-delivery-count, which is
                         what RabbitMQ 4.0 to 4.2 call it; and last, since they change,
                         x-opt-locked-until from turn to turn or, of what is read from a stream,
                         x-stream-offset from message to message
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.names import ACQUIRED_COUNT, DEATH_HEADERS, DELIVERY_COUNT, STREAM_OFFSET
from tallymark.stored.annotations import Annotations, Death, Route, death_headers
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.front import LONGEST_TTL_MS, Front, entry_key
from tallymark.wire.conversion.names import (
    BASIC_EXPIRATION,
    DEATHS,
    EXCHANGE,
    LOCKED_UNTIL,
    OURS,
    ROUTING_KEY,
)

_LOCKED_UNTIL: Final = encode(types.Symbol(LOCKED_UNTIL)) + b"\x83"
_OFFSET: Final = encode(types.Symbol(STREAM_OFFSET)) + b"\x80"


@final
class Shown:
    """The header and annotations of messages of one slice and one route."""

    __slots__ = ("_acquired", "_entries", "_failed", "_fresh", "_known", "_last", "_names",
                 "_persistent", "_said", "_start", "_taken")  # fmt: skip

    def __init__(
        self,
        route: Route,
        persistent: bool,
        known: Annotations | None,
        failed: int,
        acquired: int,
        fresh: bool,
    ) -> None:
        """acquired: delivery count to be shown; 0: none. fresh: the messages were never delivered
        before."""
        self._persistent = persistent
        self._known = known
        self._failed = failed
        self._acquired = acquired
        self._fresh = fresh
        self._entries: list[bytes] = []
        self._names: set[str] = set()
        """Names of the broker's annotations here, which replace those of the publisher and of
        consumers."""
        self._names.update(OURS)
        self._add(EXCHANGE, shown(route.exchange))
        self._add(ROUTING_KEY, shown(route.key))
        if known is not None and known.deaths:
            self._names.update(DEATH_HEADERS)
            self._names.add(BASIC_EXPIRATION)
            self._add(DEATHS, deaths_array(known.deaths))
            for name, text in death_headers(known).items():
                self._add(name, shown(text))
        if acquired:
            self._add(ACQUIRED_COUNT, acquired)
            self._add(DELIVERY_COUNT, acquired)
        self._said: Front | None = None
        self._last = b""
        self._start = b""
        """Cached front for `_said`, up to its last entry `_last`: the start of that entry, or
        nothing."""

    def of(
        self,
        persistent: bool,
        known: Annotations | None,
        failed: int,
        acquired: int,
        fresh: bool,
    ) -> bool:
        """Return whether it was made from these values."""
        return (
            self._known is known
            and self._persistent == persistent
            and self._failed == failed
            and self._acquired == acquired
            and self._fresh == fresh
        )

    def front(self, said: Front, locked_until_ms: int) -> bytes:
        """Return header and message annotations. said: the publisher's front; locked_until_ms: end
        of the lock, wall time; 0: no lock."""
        if locked_until_ms > 0:
            return self._up_to(said, _LOCKED_UNTIL) + locked_until_ms.to_bytes(8, "big")
        return self._up_to(said, b"")

    def before_offset(self, said: Front) -> bytes:
        """Return header and message annotations of messages of a stream, without the last eight
        bytes: the message's offset."""
        return self._up_to(said, _OFFSET)

    def _up_to(self, said: Front, last: bytes) -> bytes:
        if self._said is not said or self._last is not last:
            self._start = self._header(said) + self._annotations(said, last)
            self._said = said
            self._last = last
        return self._start

    def _header(self, said: Front) -> bytes:
        known = self._known
        ttl_ms = -1 if known is not None and known.deaths else said.ttl_ms
        fields: list[object] = [
            self._persistent,
            types.UByte(said.priority) if said.priority >= 0 else None,
            types.UInt(ttl_ms) if 0 <= ttl_ms <= LONGEST_TTL_MS else None,
            self._fresh,
        ]
        if self._failed:
            fields.append(types.UInt(self._failed))
        return b"\x00\x53\x70" + encode(fields)

    def _annotations(self, said: Front, last: bytes) -> bytes:
        names = self._names
        if last is _OFFSET:
            names = names | {STREAM_OFFSET}
        known = self._known
        notes = () if known is None else known.notes
        noted = {key for key, _ in notes}
        entries = [raw for name, raw, _ in said.entries if name not in names and name not in noted]
        entries += [entry_key(key) + value for key, value in notes if key not in names]
        entries += self._entries
        count = 2 * len(entries)
        room = 0
        if last:
            entries.append(last)
            count += 2
            room = 8
        return _map_start(b"".join(entries), room, count)

    def _add(self, name: str, value: object) -> None:
        self._names.add(name)
        self._entries.append(entry_key(name) + encode(value))


def _map_start(content: bytes, room: int, count: int) -> bytes:
    """Return the beginning of a message annotations section of `count` keys and values, without its
    last `room` bytes."""
    size = len(content) + room
    if size < 255 and count < 256:
        return b"\x00\x53\x72\xc1" + bytes((size + 1, count)) + content
    return b"\x00\x53\x72\xd1" + (size + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content


def deaths_array(deaths: tuple[Death, ...]) -> types.Array:
    """Return x-opt-deaths: newest first, the keys in this order, with these types [DL-16]."""
    return types.Array([_death(death) for death in deaths], 0xC1)


def _death(death: Death) -> dict[object, object]:
    found: dict[object, object] = {}
    if death.ttl_ms >= 0:
        found[types.Symbol("ttl")] = types.UInt(min(death.ttl_ms, LONGEST_TTL_MS))
    found[types.Symbol("queue")] = shown(death.queue)
    found[types.Symbol("reason")] = types.Symbol(death.reason)
    found[types.Symbol("count")] = types.ULong(death.count)
    found[types.Symbol("first-time")] = types.Timestamp(death.first_ms)
    found[types.Symbol("last-time")] = types.Timestamp(death.last_ms)
    found[types.Symbol("exchange")] = shown(death.exchange)
    found[types.Symbol("routing-keys")] = types.Array([shown(key) for key in death.keys], 0xA1)
    return found


def shown(text: str) -> str:
    """Return a name as valid Unicode: U+FFFD replaces bytes that are not UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
