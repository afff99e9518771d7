"""Permissions: what a right that was taken away forbids, for whom, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, World

WRITE: Final = "write"
READ: Final = "read"
UNDER_WAY_NS: Final = 5 * SECOND_NS
"""Time that a delivery may take from the broker to its consumer."""


@dataclass
class _Right:
    """One right: taken for certain from `taken_ns` on; None: it may be there."""

    taken_ns: int | None = None
    is_being_taken: bool = False
    """True from when somebody asks the broker to take it until the broker says that it is gone."""


class Permissions:
    """Model of one user's rights."""

    def __init__(self, world: World, user: str) -> None:
        self._world = world
        self.user = user
        self._rights = {WRITE: _Right(), READ: _Right()}

    def gives(self, right: str) -> None:
        """Note that the right is about to be given: from now on it may be there."""
        self._rights[right] = _Right()

    def takes(self, right: str) -> None:
        """Note that the right is about to be taken: from now on it may be gone."""
        self._rights[right].is_being_taken = True

    def is_being_taken(self, right: str) -> bool:
        """Return whether the right may be gone, though the broker has not said so."""
        return self._rights[right].is_being_taken

    def taken(self, right: str) -> None:
        """Note that the broker says that the right is gone."""
        self._rights[right].is_being_taken = False
        if self._rights[right].taken_ns is None:
            self._rights[right].taken_ns = self._world.now_ns

    def confirmed(self, user: str, sent_ns: int, what: str) -> None:
        """Check that something which was published then could be confirmed. Raises Violated."""
        taken_ns = self._rights[WRITE].taken_ns
        if user == self.user and taken_ns is not None and taken_ns < sent_ns:
            raise Violated(f"no right to write: {what} was confirmed to {user}")

    def delivered(self, user: str, what: str) -> None:
        """Check that something could be delivered. Raises Violated."""
        taken_ns = self._rights[READ].taken_ns
        is_taken = taken_ns is not None and taken_ns + UNDER_WAY_NS < self._world.now_ns
        if user == self.user and is_taken:
            raise Violated(f"no right to read: {what} was delivered to {user}")
