"""Credit of a receiver, which follows settlement [FC-17]. Pure.

A window of W slots. Each slot is at any time one of: free, announced to the sender as credit, taken
by a message that waits in the buffer, or by one that the application holds. A settlement, whatever
its outcome, frees one slot; so does `ignore()`. The promise is

    credit + buffered + held <= W

at every moment, so a sender can never push (and lock) a message that nobody has room for.
"""

from __future__ import annotations

from typing import Final, final

NOTHING: Final = -1
"""`Window.grant`: leave the credit as it is."""
CREDIT_MAX: Final = 0x7FFF_FFFF
"""Largest link-credit announced: half the number circle, so that serial arithmetic has room."""


@final
class Window:
    """The slots of one receiver; what the sender may still send is the link's and is passed in."""

    __slots__ = ("size", "buffered", "held", "on_handover", "ignored")

    def __init__(self, size: int, on_handover: bool = False) -> None:
        if not 0 <= size <= CREDIT_MAX:
            raise ValueError(f"a window of {size}, expected 0 to {CREDIT_MAX}")
        self.size = size
        self.buffered = 0
        """Messages that arrived and wait to be read."""
        self.held = 0
        """Messages the application was given and has not settled: `unsettled` to users."""
        self.on_handover = on_handover
        """The old contract: a slot is free once its message was handed over. Do not."""
        self.ignored = 0
        """Messages ever ignored [FC-25]."""

    @property
    def free(self) -> int:
        """Slots taken by no message; those announced as credit are among them. Below 0 after the
        window was made smaller."""
        if self.on_handover:
            return self.size - self.buffered
        return self.size - self.buffered - self.held

    def grant(self, credit: int) -> int:
        """The link-credit to announce now that `credit` is outstanding, or NOTHING.

        Announced is all that is free, once that is at least twice what is outstanding: few flows
        while messages are settled one by one, and never a stall while a slot is free [FC-17].
        """
        free = self.free
        if free > credit and 2 * credit <= free:
            return free
        return NOTHING
