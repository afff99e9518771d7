"""Writers to a sink over HTTP: batches of messages with a number, each published whole and once.

A batch's tasks stage their messages, and one commit publishes them. A writer repeats what nobody
answered, gives a batch up now and then, or ends before the commit and leaves behind what it staged.
"""

from __future__ import annotations

from typing import Any, Final

from tallymark.simulation.clients import Clients
from tallymark.simulation.history import Published, Violated
from tallymark.simulation.http import HttpClient, Refused
from tallymark.simulation.plan import SinkPlan
from tallymark.wire.amqp091.frames import METHOD, content_frames, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.amqp091.properties import Properties, encode_properties

FRAME_MAX: Final = 131_072
FENCED: Final = 409


def frames_of(messages: list[Published], exchange: str, key: str) -> bytes:
    """Return what stages these messages."""
    parts = []
    for one in messages:
        properties = Properties(delivery_mode=2, message_id=one.name)
        parts.append(frame(METHOD, 1, encode_method(BasicPublish(exchange, key, False))))
        parts.append(content_frames(1, encode_properties(properties), one.body, FRAME_MAX))
    return b"".join(parts)


class Writer:
    """The one writer of a sink."""

    def __init__(self, clients: Clients, plan: SinkPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._random = clients.world.random
        self._history = clients.history
        self._path = f"/api/tallymark/sinks/%2F/{plan.name}"
        self._batch = 0

    async def write(self) -> None:
        """Write batches until told to end."""
        clients = self._clients
        http = HttpClient(clients.network, clients.loop)
        while clients.is_publishing():
            await self._write_batch(http)
            await clients.pause(self._plan.pause_s)
        http.close()

    async def _write_batch(self, http: HttpClient) -> None:
        self._batch += 1
        history, work = self._history, f"{self._plan.name}.{self._batch}"
        history.works[work] = "open"
        ids: list[int] = []
        number = 0
        for _ in range(self._random.randint(1, 3)):
            messages = [self._message(work, number + n) for n in range(self._plan.rows)]
            number += len(messages)
            frames = frames_of(messages, "", self._plan.target)
            staged = await self._ask(http, f"stage?count={len(messages)}", frames)
            if staged is None:  # the target takes no more
                history.ended_work(work, "rolled back")
                return
            ids.append(staged["staging"])
        drawn = self._random.random()
        if drawn < self._plan.gives_up:
            await self._ask(http, "abort", {"staging": ids})
            history.ended_work(work, "rolled back")
            history.seen.add("sink batch given up")
        elif drawn < 2 * self._plan.gives_up:
            history.ended_work(work, "rolled back")
            history.seen.add("staging left behind")
        else:
            await self._commit(http, work, ids)

    async def _commit(self, http: HttpClient, work: str, ids: list[int]) -> None:
        history = self._history
        asked = {"identity": "checkpoint", "batch": self._batch, "staging": ids}
        history.works[work] = "committing"
        done = await self._ask(http, "commit", asked)
        if done is None:
            history.ended_work(work, "rolled back")
            return
        history.ended_work(work, "committed")
        history.seen.add("sink batch repeated" if done["repeated"] else "sink batch committed")
        if self._random.random() < 0.2:
            again = await self._ask(http, "commit", asked)
            if again is None or not again["repeated"]:
                raise Violated(f"batch {self._batch} of sink {self._plan.name} counted twice")
        if self._random.random() < 0.1 and self._batch > 1:
            before = {**asked, "batch": self._batch - 1, "staging": []}
            if await self._ask(http, "commit", before, FENCED) is not None:
                raise Violated(f"an older batch of sink {self._plan.name} was let through")

    def _message(self, work: str, number: int) -> Published:
        name = f"{work}.{number}"
        body = name.encode() + b" " + b"x" * self._random.randint(0, self._plan.size)
        now_ns = self._clients.world.now_ns
        one = Published(name, (self._plan.target,), body, now_ns, work, number, work=work)
        self._history.publishes(one)
        return one

    async def _ask(
        self, http: HttpClient, operation: str, value: object, refusal: int = 0
    ) -> dict[str, Any] | None:
        """Ask until there is an answer. None: it was refused, and is allowed to be."""
        path = f"{self._path}/{operation}"
        while True:
            try:
                if isinstance(value, bytes):
                    found: dict[str, Any] = await http.fetch_json("POST", path, value)
                else:
                    found = await http.call("POST", path, value)
                return found
            except Refused as error:
                may_refuse = self._history.rejects_publish(self._plan.target)
                if refusal == error.status or may_refuse:
                    self._history.seen.add("sink refused")
                    return None
                raise Violated(f"sink {self._plan.name}: {operation}: {error}") from error
            except OSError:
                await self._clients.pause(0.1)
