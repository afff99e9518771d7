"""Durability: the confirms, high-water marks, stream messages and external waiters that wait for
the disk.

Everything asked for in a turn waits for the end of that turn's block; positions only grow, so one
queue of waits serves all. Confirms leave in publish order, several at once as one [rabbitmq
confirms, multiple].
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.engine.agenda import Returns
from tallymark.engine.effects import Confirm, Durable, Effect
from tallymark.engine.marks import Marks, MarkWait
from tallymark.engine.queue import Queue
from tallymark.engine.session import UNLIMITED, Session
from tallymark.engine.state import State
from tallymark.engine.units import Position

HELD: Final = "held"
"""Placeholder for the waiter of messages that are delivered once they are on disk."""


@final
class Wait:
    """A wait until the journal is on disk up to `position`: a confirm (session, publish number), a
    queue's high-water mark (queue, mark), or a waiter."""

    __slots__ = ("number", "position", "queue", "session", "waiter")

    def __init__(
        self,
        position: Position,
        session: Session | None,
        queue: Queue | None,
        number: int,
        waiter: object,
    ) -> None:
        self.position = position
        self.session = session
        self.queue = queue
        self.number = number
        self.waiter = waiter


@final
class Durability:
    """Collects the waits of the present turn, and holds those of earlier turns."""

    __slots__ = ("_agenda", "_asked", "_confirming", "_marks", "_waits")

    def __init__(self, state: State, marks: Marks) -> None:
        self._agenda = state.agenda
        self._marks = marks
        self._confirming: list[Session] = []
        self._asked: list[object] = []
        self._waits: deque[Wait] = deque()

    def published(self, session: Session, count: int) -> None:
        """Request confirms for `count` publishes of a confirming session."""
        if session.published == session.confirm_asked:
            self._confirming.append(session)
        session.published += count

    def ask(self, waiter: object) -> None:
        """Request a Durable effect for the waiter, once this turn is on disk."""
        self._asked.append(waiter)

    def is_waiting(self) -> bool:
        """Return whether anything waits for the disk."""
        return bool(self._waits or self._confirming or self._asked)

    def is_awaited(self) -> bool:
        """Return whether anything waits for the records that are not committed yet."""
        agenda = self._agenda
        if self._confirming or self._asked or self._marks.waits or agenda.returns:
            return True
        return any(queue.consumers for queue in [*agenda.appended, *agenda.held])

    def committed(self, position: Position) -> None:
        """Note that this turn's block ends at `position`."""
        waits = self._waits
        for session in self._confirming:
            session.confirm_asked = session.published
            waits.append(Wait(position, session, None, session.published, None))
        self._confirming.clear()
        mark_waits = self._marks.waits
        for wait in mark_waits:
            waits.append(Wait(position, None, wait.queue, wait.mark, wait))
        mark_waits.clear()
        appended = self._agenda.appended
        for queue in appended:
            queue.appended = False
            waits.append(Wait(position, None, queue, queue.entered + 1, None))
        appended.clear()
        held = self._agenda.held
        for queue in held:
            queue.disk_hold.is_held = False
            waits.append(Wait(position, None, queue, queue.entered + 1, HELD))
        held.clear()
        for returns in self._agenda.returns:
            waits.append(Wait(position, None, returns.queue, 0, returns))
        self._agenda.returns.clear()
        for waiter in self._asked:
            waits.append(Wait(position, None, None, 0, waiter))
        self._asked.clear()

    def synced(self, position: Position) -> list[Effect]:
        """Note that the journal is on disk up to `position`, and return the effects that this
        releases, in order."""
        waits = self._waits
        out: list[Effect] = []
        confirms: dict[int, Confirm] = {}
        while waits and waits[0].position <= position:
            wait = waits.popleft()
            session = wait.session
            queue = wait.queue
            if session is not None:
                known = confirms.get(session.id)
                if known is not None:
                    known.upto = wait.number
                elif not session.closed:
                    confirms[session.id] = confirm = Confirm(session, wait.number)
                    out.append(confirm)
            elif queue is not None and wait.waiter is HELD:
                queue.disk_hold.turns -= 1
                queue.disk_hold.shown = wait.number if queue.disk_hold.turns else UNLIMITED
                if queue.ready and queue.consumers:
                    self._agenda.mark(queue)
            elif queue is not None:
                if isinstance(wait.waiter, Returns):
                    wait.waiter.end()
                elif isinstance(wait.waiter, MarkWait):
                    self._marks.covered(wait.waiter)
                else:
                    queue.high_water.durable = max(queue.high_water.durable, wait.number)
                if queue.ready and queue.consumers:
                    self._agenda.mark(queue)
            else:
                out.append(Durable(wait.waiter))
        return out
