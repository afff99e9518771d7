"""Alarms and publishers: who published is held back while memory, disk or files run low, while the
disk is far behind, and while the journal's database is away.

Alarms follow [rabbitmq alarms]: connections that publish are told (connection.blocked) and no
longer read; consumers go on, so that a full disk can be drained.
"""

from __future__ import annotations

from typing import Final, Protocol

from tallymark.bridge.bridge import Bridge
from tallymark.engine.queue import Queue
from tallymark.server.logs import log_of
from tallymark.server.turns import Turns

EXCESS: Final = 16 << 20
"""Bytes accepted from all publishers together after they were told to stop: they were on their
way."""
LONGEST_REASON: Final = 60
"""Characters of a reason for a client, so that it fits in a short string (255 bytes)."""

log = log_of("journal")


class Publisher(Protocol):
    """A client that has published."""

    bridge: Bridge
    read_at: int
    held_for: dict[int, str]
    blocked_reason: str | None

    def rest(self, resting: bool) -> None:
        """Pause or resume reading."""

    def touch(self) -> None:
        """Flush the client with the coming turn."""


class Alarms:
    """The alarms of one node, and the clients that they hold back."""

    def __init__(self, turns: Turns) -> None:
        self._broker = turns.broker
        self.active: set[str] = set()
        """Alarms that pause publishers: "memory", "disk", "files" and "database"."""
        self.is_behind = False
        """True while the disk is so far behind that publishers are paused without notice."""
        self.is_holding = False
        """True while publishers are paused."""
        self._publishers: dict[Publisher, None] = {}
        self._excess_bytes = 0
        """Bytes read from publishers that were told to stop, and whose connections are still
        read."""
        self._most_excess = min(EXCESS, turns.config.segment_size // 4)

    def set(self, alarm: str, on: bool) -> None:
        """Set an alarm, or clear it."""
        if on == (alarm in self.active):
            return
        if on:
            self.active.add(alarm)
            log.warning("alarm.set", alarm=alarm)
        else:
            self.active.discard(alarm)
            log.warning("alarm.cleared", alarm=alarm)
        self._apply()

    def fall_behind(self, is_behind: bool) -> None:
        """Pause publishers without notice while the disk is far behind, or no more."""
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            self._apply()

    def shown(self) -> list[str]:
        """Return the alarms for the administrator: those that pause publishers, and "quarantine",
        which does not."""
        found = sorted(self.active)
        if any(queue.account.quarantined for queue in self._broker.queues.values()):
            found.append("quarantine")
        return found

    # -- publishers

    def enter(self, client: Publisher) -> None:
        """A client has published: it is paused when memory or disk run low."""
        self._publishers[client] = None

    def leave(self, client: Publisher) -> None:
        """A client is gone."""
        self._publishers.pop(client, None)

    def hold(self, client: Publisher, size: int) -> None:
        """Hold a client back that has just published; size: bytes that were read."""
        was_patient = self._is_patient
        if client.bridge.holds_itself:
            self._excess_bytes += size
        if was_patient and not self._is_patient:
            self._apply()
        else:
            self._apply_to(client)

    def hold_for(self, client: Publisher, queue: Queue, held: bool) -> None:
        """Hold a client back for the sake of a queue whose consumer is slow [SC-D7], or no more."""
        if held:
            client.held_for[queue.id] = queue.name
        else:
            client.held_for.pop(queue.id, None)
        self._apply_to(client)

    @property
    def _is_patient(self) -> bool:
        """Return whether clients that stop by themselves are still read [FC-7]."""
        return not self.is_behind and self._excess_bytes <= self._most_excess

    def _apply(self) -> None:
        """Pause or resume all publishers, those first that were not read for longest: the budget
        until the next alarm may be enough for the first of them only."""
        self.is_holding = self.is_behind or bool(self.active)
        if not self.is_holding:
            self._excess_bytes = 0
        for client in sorted(self._publishers, key=_read_at):
            self._apply_to(client)

    def _reason(self, client: Publisher) -> str | None:
        """Return the reason for a client's pause, where the client is to be notified."""
        if self.active:
            low = sorted(self.active - {"database"})
            reasons = [f"low on {' and '.join(low)}"] if low else []
            if "database" in self.active:
                reasons.append("waiting for the database")
            return ", ".join(reasons)
        if client.held_for:
            names = ", ".join(sorted(client.held_for.values()))
            return f"slow consumer of {names}"[:LONGEST_REASON]
        return None

    def _apply_to(self, client: Publisher) -> None:
        reason = self._reason(client)
        if reason != client.blocked_reason:
            client.blocked_reason = reason
            if reason is not None:
                client.bridge.block(reason)
            else:
                client.bridge.unblock()
            client.touch()
        holding = self.is_holding or bool(client.held_for)
        client.rest(holding and not (client.bridge.holds_itself and self._is_patient))


def _read_at(client: Publisher) -> int:
    return client.read_at
