"""AMQP 0-9-1 messages in filters: their properties, converted to AMQP 1.0.

| method frame | header frame: class, weight, body size | property section | ...
  start          +8 +its size                             +19
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.conversion.amqp091_to_amqp10 import sections_of
from tallymark.engine.message import Payload
from tallymark.wire.amqp10.front import Front

REMEMBERED: Final = 64
"""Number of property sections cached with their conversion."""
LONGEST: Final = 4096
"""Size of the largest section that is cached, bytes."""


@final
class Foreign:
    """Converts property sections with a cache: a publisher's messages mostly have the same."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[Front, bytes]] = {}

    def converted(self, section: bytes) -> tuple[Front, bytes]:
        """Return the front, and the encoded properties and application properties."""
        found = self._made.get(section)
        if found is None:
            found = sections_of(section)
            if len(section) <= LONGEST:
                if len(self._made) >= REMEMBERED:
                    self._made.clear()
                self._made[section] = found
        return found


def property_section(payload: Payload, i: int) -> bytes:
    """Return the property section of message i, which was published by AMQP 0-9-1."""
    raw = payload.raw
    assert raw is not None, payload.position
    start = payload.cuts[i]
    header = start + 8 + int.from_bytes(raw[start + 3 : start + 7], "big")
    size = int.from_bytes(raw[header + 3 : header + 7], "big")
    return raw[header + 19 : header + 7 + size]
