"""AMQP 0-9-1 messages in filters: their properties, converted to AMQP 1.0."""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.conversion.amqp091_to_amqp10 import sections_of
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
