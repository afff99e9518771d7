"""Answers to one NSQ client, in the order of its commands [wire.nsq.events].

An OK for a publish leaves when the disk has its messages; whatever is answered after it waits
behind it. Publishes of one turn share one wait. Messages and heartbeats are no answers: they wait
for nothing here.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.bridge.nsq.auth import AuthState
from tallymark.engine.broker import Broker
from tallymark.engine.session import Connection as EngineConnection
from tallymark.wire.nsq.connection import Connection
from tallymark.wire.nsq.errors import WireError, no_authorizations

OK: Final = 0
SUBSCRIBED: Final = 1
CLOSE_WAIT: Final = 2
IDENTIFIED: Final = 3
AUTHORIZED: Final = 4
FAILED: Final = 5
ANSWER_BYTES: Final = 512
"""Memory of an answer that waits, about: it, its error and the error's text."""


@final
class Answer:
    """One answer, or `count` OKs."""

    __slots__ = ("auth", "connection", "count", "error", "kind")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.count = 1
        self.error: WireError | None = None
        """Error of an answer of kind FAILED."""
        self.auth: AuthState | None = None
        """Permissions of an answer of kind AUTHORIZED."""
        self.connection: EngineConnection | None = None
        """Connection of an answer of kind SUBSCRIBED: deliveries to it begin with the answer."""


@final
class Batch(Waiter):
    """Answers of which at least the first waits for the disk."""

    __slots__ = ("_queue", "answers", "is_durable")

    def __init__(self, owner: Bridge, queue: Answers) -> None:
        super().__init__(owner)
        self._queue = queue
        self.answers: list[Answer] = []
        self.is_durable = False

    def durable(self) -> None:
        """Write the answers whose turn it is; input may have waited for them."""
        self._queue.release(self)
        self.owner.handle_events()


@final
class Answers:
    """Writes answers into a connection's output, each in its order."""

    __slots__ = ("_batches", "_broker", "_count", "_is_fresh", "_owner", "_wire")

    def __init__(self, broker: Broker, wire: Connection, owner: Bridge) -> None:
        self._broker = broker
        self._wire = wire
        self._owner: Bridge | None = owner
        self._batches: deque[Batch] = deque()
        self._count = 0
        """Number of answers that wait."""
        self._is_fresh = False
        """True if the last batch was begun since the owner last took output. Its records and those
        emitted now are then in the same commit."""

    @property
    def waiting(self) -> bool:
        """True while some answer waits for the disk."""
        return bool(self._batches)

    def waiting_bytes(self) -> int:
        """Return about how much memory the answers take that wait for the disk."""
        return self._count * ANSWER_BYTES

    def let_go(self) -> None:
        """Drop all answers because the connection is gone."""
        self._owner = None

    def add(self, answer: Answer) -> None:
        """Add an answer that only waits for those before it."""
        if self._batches:
            self._batches[-1].answers.append(answer)
            self._count += 1
        else:
            self._give(answer)

    def fail(self, error: WireError) -> None:
        answer = Answer(FAILED)
        answer.error = error
        self.add(answer)

    def add_durable(self, answer: Answer) -> None:
        """Add an answer that leaves when all records emitted so far are on disk."""
        self._begin().answers.append(answer)
        self._count += 1

    def ok_durable(self, count: int) -> None:
        """Add `count` OKs that leave when all records emitted so far are on disk."""
        answers = self._begin().answers
        if answers and answers[-1].kind == OK:
            answers[-1].count += count
        else:
            answer = Answer(OK)
            answer.count = count
            answers.append(answer)
            self._count += 1

    def _begin(self) -> Batch:
        if self._is_fresh:
            return self._batches[-1]
        assert self._owner is not None
        batch = Batch(self._owner, self)
        self._batches.append(batch)
        self._is_fresh = True
        self._broker.await_durable(batch)
        return batch

    def taken(self) -> None:
        """Note that the owner has taken the output: the turn is committed."""
        self._is_fresh = False

    def release(self, batch: Batch) -> None:
        """Release a batch: what it waited for is on disk."""
        batch.is_durable = True
        batches = self._batches
        while batches and batches[0].is_durable:
            first = batches.popleft()
            if not batches:
                self._is_fresh = False
            self._count -= len(first.answers)
            for answer in first.answers:
                self._give(answer)

    def _give(self, answer: Answer) -> None:
        wire = self._wire
        kind = answer.kind
        if kind == OK:
            wire.send_ok(answer.count)
        elif kind == SUBSCRIBED:
            wire.send_ok(1)
            connection = answer.connection
            assert connection is not None
            connection.gated = False
            self._broker.clients.wake(connection)
        elif kind == CLOSE_WAIT:
            wire.send_close_wait()
        elif kind == IDENTIFIED:
            wire.send_identify()
        elif kind == AUTHORIZED:
            auth = answer.auth
            assert auth is not None
            if auth.permission_count:
                wire.send_auth(auth.identity, auth.identity_url, auth.permission_count)
            else:
                wire.send_error(no_authorizations())
        else:
            assert answer.error is not None
            wire.send_error(answer.error)
