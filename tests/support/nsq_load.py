"""NSQ clients on bare sockets that publish, finish, requeue and hold, as fast as they can or at a
pace, while they keep their histories."""

from __future__ import annotations

import json
import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import MESSAGE, RESPONSE, decode_message, split_frames
from tests.support.crash_history import body_of, number_in, number_of
from tests.support.nsq_history import Batch, ChannelHistory, Message, TopicHistory
from tests.support.pace import Pace
from tests.support.patience import PATIENCE_S

WINDOW = 200
"""Commands without their OK, of a client at most."""
OUTBOX = 1 << 17
READ_SIZE = 1 << 18
REPEATS = (2, 16, 128)
TIMEOUT_MS = 1_000
"""Of those who let everything time out: the shortest there is [NQ-6]."""
LONGEST_DELAY_MS = 1_500
MOST_READY = 2_500
BUFFERS: list[dict[str, int]] = [{}, {"output_buffer_timeout": 25}, {"output_buffer_size": -1}]
"""How long messages may be gathered [NQ-11]."""


KEPT, FINISHED, REQUEUED = range(3)


def wall_ms() -> int:
    return int(time.time() * 1000)


class Client:
    """One connection that publishes, and consumes when it is given a channel. `holds`: it never
    answers, so that all it gets times out. `pace`: of its publishing commands."""

    def __init__(
        self,
        port: int,
        producer: int,
        first_sequence: int,
        topic: TopicHistory,
        channel: ChannelHistory | None,
        chance: random.Random,
        *,
        holds: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self.producer = producer
        self.sequence = first_sequence
        self.publishes = True
        self.is_lost = False
        self.ok_messages = self.finished = self.requeued = self.deferred = 0
        self.held: dict[int, tuple[int, int, Message]] = {}
        """Number -> id, attempts, message."""
        self.outbox = bytearray()
        self._topic, self._channel, self._chance, self._holds = topic, channel, chance, holds
        self._pace = pace
        self._unanswered: deque[Batch] = deque()
        self._sent = self._answered = 0
        self._uncertain: deque[tuple[int, int, Message, int]] = deque()
        """Publishes sent before, what was done, to what, its attempts."""
        self._is_stopped = False
        self._unread = b""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._greet()
        self.socket.setblocking(False)

    def _greet(self) -> None:
        about: dict[str, int] = self._chance.choice(BUFFERS).copy()
        if self._holds:
            about["msg_timeout"] = TIMEOUT_MS
        hello = commands.MAGIC + commands.identify(json.dumps(about).encode())
        count = 1
        if self._channel is not None:
            hello += commands.sub(self._topic.name, self._channel.name)
            count = 2
        self.socket.sendall(hello)
        frames: list[tuple[int, bytes]] = []
        while len(frames) < count:
            data = self.socket.recv(READ_SIZE)
            assert data, f"hung up after {frames}"
            more, self._unread = split_frames(self._unread + data)
            frames += more
        assert frames == [(RESPONSE, b"OK")] * count, frames
        if self._channel is not None:
            rdy = 50 if self._holds else self._chance.choice([1, 50, MOST_READY])
            self.outbox += commands.rdy(rdy)

    def work(self) -> None:
        """One turn: publish what may be, send, handle what came."""
        if self.publishes:
            self._publish()
        self._send()
        self._receive()
        if self.held and not self.is_lost:
            self._settle_some()

    def read_the_rest(self) -> None:
        """After the broker's end: what it had sent before is still there to be read."""
        self.socket.settimeout(PATIENCE_S)
        while not self.is_lost:
            self._receive()
        self.socket.close()

    def only_drain(self) -> None:
        """From now on receive and finish, as many at a time as there may be."""
        self.publishes = False
        self.outbox += commands.rdy(MOST_READY)

    def stop(self) -> None:
        """Get no more messages [NQ-4]; what has come already is answered by `work`."""
        self.outbox += commands.CLS
        self._go_on_until(lambda: self._is_stopped)

    def leave(self, *, certain: bool) -> None:
        """Go, or make certain of all that was done by a last publish, and go."""
        if certain:
            self._add([1], None)
        self._go_on_until(lambda: not self._unanswered and not self.outbox)
        self.socket.close()

    def _go_on_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < deadline, f"no answer in {PATIENCE_S} s"
            wait_for([self])
            self._send()
            self._receive()
            assert not self.is_lost, "the broker hung up"

    # -- sending

    def _publish(self) -> None:
        chance = self._chance
        while len(self.outbox) < OUTBOX and len(self._unanswered) < WINDOW:
            if self._pace is not None and not self._pace.take():
                return
            kind = chance.random()
            if kind < 0.6:
                for _ in range(chance.choice([1, 10])):
                    self._add([chance.choice(REPEATS)], None)
            elif kind < 0.8:
                self._add([chance.choice(REPEATS)] * chance.choice([1, 2, 10, 100]), None)
            else:
                self._add([chance.choice(REPEATS)], chance.randint(0, LONGEST_DELAY_MS))

    def _add(self, repeats: list[int], delay_ms: int | None) -> None:
        """PUB of one message, DPUB of one with a delay, MPUB of several."""
        first = number_of(self.producer, self.sequence + 1, persistent=True)
        numbers = range(first, first + len(repeats))
        self.sequence += len(repeats)
        bodies = [body_of(number, size) for number, size in zip(numbers, repeats, strict=True)]
        name = self._topic.name
        due_ms = 0
        if delay_ms is not None:
            due_ms = wall_ms() + delay_ms
            self.deferred += 1
            self.outbox += commands.dpub(name, delay_ms, bodies[0])
        elif len(bodies) > 1:
            self.outbox += commands.mpub(name, bodies)
        else:
            self.outbox += commands.pub(name, bodies[0])
        self._unanswered.append(self._topic.publish(numbers, due_ms))
        self._sent += 1

    def _send(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: self.socket.send(self.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox.clear()  # the broker is gone; what it sent before can still be read

    # -- receiving

    def _receive(self) -> None:
        try:
            data = self.socket.recv(READ_SIZE)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.is_lost = True
            return
        frames, self._unread = split_frames(self._unread + data)
        for kind, content in frames:
            if kind == MESSAGE:
                self._arrived(content)
            elif content == b"_heartbeat_":
                self.outbox += commands.NOP
            elif content == b"CLOSE_WAIT":
                self._is_stopped = True
            else:
                assert (kind, content) == (RESPONSE, b"OK"), content
                self._ok()

    def _ok(self) -> None:
        batch = self._unanswered.popleft()
        batch.is_ok = True
        self.ok_messages += len(batch.numbers)
        self._answered += 1
        uncertain = self._uncertain
        while uncertain and uncertain[0][0] < self._answered:
            _, what, message, attempts = uncertain.popleft()
            if what == KEPT:
                message.certain = max(message.certain, attempts)
            elif what == FINISHED:
                message.is_finish_certain = True
            elif message.requeued == attempts:
                message.is_requeue_certain = True

    def _arrived(self, content: bytes) -> None:
        assert self._channel is not None, "a message for somebody who has not subscribed"
        _, attempts, id, body = decode_message(content)
        number = number_in(body)
        message = self._channel.arrived(number, attempts, wall_ms(), loose=self._holds)
        self._uncertain.append((self._sent, KEPT, message, attempts))
        if not self._holds:
            self.held[number] = (int(id, 16), attempts, message)

    # -- answering

    def _settle_some(self) -> None:
        """Mostly FIN, in any order; REQ with and without a delay; some wait for a later turn."""
        chance, held = self._chance, self.held
        kind = chance.random() if self.publishes else 0.0
        if kind < 0.4:
            self._finish(list(held))
        elif kind < 0.7:
            self._finish(chance.sample(list(held), min(len(held), chance.choice([1, 20, 500]))))
        elif kind < 0.95:
            some = chance.sample(list(held), min(len(held), chance.choice([1, 20, 200])))
            self._requeue(some, 0 if kind < 0.82 else chance.randint(1, LONGEST_DELAY_MS))
        # else: keep them all for now

    def _finish(self, numbers: list[int]) -> None:
        for number in numbers:
            id, attempts, message = self.held.pop(number)
            message.finished = attempts
            message.was_finished = True
            self.outbox += commands.fin(id)
            self._uncertain.append((self._sent, FINISHED, message, attempts))
        self.finished += len(numbers)

    def _requeue(self, numbers: list[int], delay_ms: int) -> None:
        due_ms = wall_ms() + delay_ms
        for number in numbers:
            id, attempts, message = self.held.pop(number)
            message.requeued, message.due_ms = attempts, due_ms
            message.is_requeue_certain = False
            self.outbox += commands.req(id, delay_ms)
            self._uncertain.append((self._sent, REQUEUED, message, attempts))
        self.requeued += len(numbers)


def wait_for(clients: list[Client]) -> None:
    """Until one of them can go on, for a moment at most."""
    sending = [client.socket for client in clients if client.outbox]
    select.select([client.socket for client in clients], sending, [], 0.01)


def run(clients: list[Client], until: Callable[[], bool]) -> None:
    """Let the clients work until told to stop."""
    while not until():
        for client in clients:
            client.work()
            assert not client.is_lost, f"the broker hung up on client {client.producer}"
        wait_for(clients)
