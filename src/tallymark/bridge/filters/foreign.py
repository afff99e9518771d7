"""Messages of AMQP 0-9-1 as filters look at them: what their properties become for readers.

| method frame | header frame: class, weight, body size | property section | ...
  start          +8 +its size                             +19
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10_front import Front
from tallymark.bridge.convert_amqp091_to_amqp10 import sections_of
from tallymark.engine.message import Payload

REMEMBERED: Final = 64
"""Property sections, with what became of them."""
LONGEST: Final = 4096
"""Bytes of a section that is remembered."""


@final
class Foreign:
    """Remembers what it made of properties: a publisher's messages have much the same."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[Front, bytes]] = {}

    def converted(self, section: bytes) -> tuple[Front, bytes]:
        """The front, and properties and application properties as sections."""
        found = self._made.get(section)
        if found is None:
            found = sections_of(section)
            if len(section) <= LONGEST:
                if len(self._made) >= REMEMBERED:
                    self._made.clear()
                self._made[section] = found
        return found


def property_section(payload: Payload, i: int) -> bytes:
    """Of message i, which came by AMQP 0-9-1."""
    raw = payload.raw
    assert raw is not None, payload.position
    start = payload.cuts[i]
    header = start + 8 + int.from_bytes(raw[start + 3 : start + 7], "big")
    size = int.from_bytes(raw[header + 3 : header + 7], "big")
    return raw[header + 19 : header + 7 + size]
