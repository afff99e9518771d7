"""The time, as the engine was told last. Nothing in the engine asks an operating system for it."""

from __future__ import annotations

from typing import final


@final
class Clock:
    """One per broker, shared by all its parts."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms = 0
        """Wall time of the present turn, milliseconds since 1970. Never goes back."""

    def tell(self, now_ms: int) -> None:
        """It is now_ms. A clock that was set back stands still until it has caught up."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
