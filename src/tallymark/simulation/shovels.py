"""Shovels as processes of their own, as `tallymark move` is one: both ends are connections to the
world's broker, from one queue to another."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tallymark.client import Session, TimedOut
from tallymark.shovels.amqp import AmqpSource, AmqpTarget
from tallymark.shovels.parcel import SHOVELLED, Stamp
from tallymark.shovels.runner import UNEXPECTED, Runner
from tallymark.shovels.shovel import Pace, Shovel
from tallymark.simulation.clients import Clients
from tallymark.simulation.history import Line, Violated
from tallymark.simulation.models.moves import Moves
from tallymark.simulation.network import End
from tallymark.simulation.plan import ShovelPlan
from tallymark.simulation.world import SECOND_NS

AHEAD: Final = 3
"""Batches that are taken and not settled."""
LOOK_S: Final = 0.1
SILENT_S: Final = 3


class Mover:
    """One shovel over all its lives."""

    def __init__(self, clients: Clients, plan: ShovelPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._history = clients.history
        self._moves = Moves(clients.history, plan)
        self._ends: list[End] = []
        """Ends of its connections."""
        self._problem = ""
        """Failure that is none of a connection."""

    async def work(self) -> None:
        """Move until told to end. Raises Violated: it failed for something else than its
        connections."""
        clients = self._clients
        while clients.consuming:
            runner = Runner(Pace(batch=self._plan.batch, ahead=AHEAD), self._made, self._failed)
            task = clients.loop.create_task(runner.run())
            while clients.consuming and not task.done() and not self._problem:
                await clients.pause(LOOK_S)
                if clients.world.random.random() < self._plan.ends:
                    if clients.world.random.random() < 0.5:
                        self._end(task)
                    elif self._ends:
                        clients.network.cut(clients.world.random.choice(self._ends).link)
            runner.stop()
            await asyncio.wait([task])
            if self._problem:
                raise Violated(f"shovel: {self._problem}")
            if not task.cancelled():
                task.result()

    def _end(self, task: asyncio.Task[None]) -> None:
        """Have its process end, with whatever it holds."""
        self._history.note(f"shovel {self._plan.name} ends")
        self._history.seen.add("shovel ended")
        for end in self._ends:
            self._clients.network.cut(end.link)
        task.cancel()

    def _made(self) -> tuple[AmqpSource, AmqpTarget]:
        """Return both ends, not yet open."""
        plan = self._plan
        # A source stays open while its target is opened anew.
        self._ends[:] = [end for end in self._ends if not end.is_closing()]

        def connects(url: str) -> Any:
            return self._clients.dial(url, self._ends)

        window = plan.batch * AHEAD
        return (
            AmqpSource("amqp", f"/queues/{plan.queue}", window, connects),
            AmqpTarget(
                "amqp",
                f"/queues/{plan.target}",
                "",
                Stamp("world", plan.name, plan.queue),
                connects,
            ),
        )

    def _failed(self, shovel: Shovel) -> None:
        self._history.note(f"shovel {self._plan.name} failed: {shovel.problem[:80]}")
        self._history.seen.add("shovel failed")
        if shovel.problem.startswith(UNEXPECTED):
            self._problem = shovel.problem

    async def drain(self) -> None:
        """Take everything that its target has, in order, until nothing comes for a while."""
        clients = self._clients
        is_empty: list[bool] = []
        had: set[str] = set()

        async def work(session: Session, line: Line) -> None:
            async with session.receiver(f"/queues/{self._plan.target}", credit=50) as receiver:
                silent_since = clients.world.now_ns
                while clients.world.now_ns - silent_since < SILENT_S * SECOND_NS:
                    try:
                        message = await receiver.receive(timeout=1)
                    except TimedOut:
                        continue
                    silent_since = clients.world.now_ns
                    said = message.annotations[SHOVELLED]
                    assert isinstance(said, list)
                    name = str(message.message_id)
                    if message.first_acquirer or name not in had:  # else it came back to us
                        had.add(name)
                        self._moves.arrived(name, bytes(message.body), said[0]["redelivered"])
                    await message.accept()
            is_empty.append(True)

        await clients.steadily(f"drain {self._plan.target}", "amqp", lambda: not is_empty, work)
