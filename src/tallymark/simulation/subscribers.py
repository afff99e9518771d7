"""Subscribers to topics, some of which are too slow for what comes.

Who is told so ("506 Consuming too slow.") begins anew on the connection that it has: that stays,
and its queue is gone.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tallymark.client import ClientError, Session
from tallymark.client.errors import ConnectionClosed, LinkRefused, RequestRefused
from tallymark.engine.queue import Queue
from tallymark.engine.slow.consumers import OVER
from tallymark.simulation.clients import GONE, TOPICS, Clients, declare_subscription
from tallymark.simulation.history import History, Line, Violated
from tallymark.simulation.models.slow import MS_NS, Slow
from tallymark.simulation.network import End
from tallymark.simulation.plan import DROP_OLDEST, ONE_WAY, SlowPlan
from tallymark.simulation.world import SECOND_NS

TOO_SLOW: Final = 506
SILENT: Final = "nothing received for "
"""Beginning of the text with which a connection is closed whose other end is not heard: the code is
the same."""
LOOK_S: Final = 0.05


def is_for_slowness(error: BaseException, may_be_unheard: bool) -> bool:
    """Return whether an error says that a whole connection was closed because a consumer was too
    slow. may_be_unheard: the other end may have closed it because it heard nothing."""
    if not isinstance(error, ConnectionClosed) or error.code != TOO_SLOW:
        return False
    return not (may_be_unheard and error.text.startswith(SILENT))


class Subscriber:
    """The client of one subscription."""

    def __init__(self, clients: Clients, plan: SlowPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._history: History = clients.history
        self._model: Slow = clients.history.slow[plan.name]
        self._is_new = False
        """True if it was just told that it is too slow, and begins anew."""
        self._long_ns = 0
        """Time since when its queue has more than it may keep, and this message at its head."""
        self._head = -1
        """Sequence of that message; -1: none is ready."""

    async def consume(self) -> None:
        """Consume until told to end."""
        clients, plan, history = self._clients, self._plan, self._history
        while clients.consuming:
            ends: list[End] = []
            self._is_new = False
            try:
                async with clients.dial(plan.protocol, ends) as connection:
                    while clients.consuming and not connection.is_closed:
                        await self._subscribe(connection, ends[-1])
            except GONE as error:
                history.note(f"{plan.consumer.name} gone: {error!r}"[:120])
                self._check(error)
            await clients.pause(0.05)

    def _check(self, error: BaseException) -> None:
        """Check that an error is one that may be. Raises Violated."""
        name = self._plan.name
        if is_for_slowness(error, may_be_unheard=ONE_WAY in self._history.seen):
            raise Violated(f"closed: the connection of {name}: {error}") from error
        if self._is_new and isinstance(error, RequestRefused | LinkRefused):
            raise Violated(f"{name} cannot subscribe anew: {error}") from error

    async def _subscribe(self, connection: Any, end: End) -> None:
        """Consume on a session of its own, until it ends or is too slow."""
        clients, history, plan, model = self._clients, self._history, self._plan, self._model
        line = history.connected(plan.consumer.name, clients.broker.life)
        clients.lines[end] = line
        try:
            session = await connection.session()
            await self._declare(session)
            receiver = session.receiver(
                f"/queues/{plan.name}", credit=plan.credit, exclusive=plan.is_durable
            )
            async with receiver as opened:
                model.consumes(line.life)
                self._long_ns = clients.world.now_ns
                self._is_new = False
                watch = asyncio.ensure_future(self._watch(line))
                take = asyncio.ensure_future(
                    clients.take(plan.consumer, opened, line, hurries=True)
                )
                try:
                    await asyncio.wait([watch, take], return_when=asyncio.FIRST_COMPLETED)
                    for task in (watch, take):
                        if task.done():
                            task.result()
                finally:
                    watch.cancel()
                    take.cancel()
                    await asyncio.gather(watch, take, return_exceptions=True)
        except ClientError as error:
            if getattr(error, "code", 0) != TOO_SLOW or isinstance(error, ConnectionClosed):
                raise
            history.note(f"{plan.consumer.name} is too slow: {error}")
            model.closed()
            history.seen.add("slow consumer closed")
            self._is_new = True
        finally:
            model.ends()
            history.disconnected(line)

    async def _declare(self, session: Session) -> None:
        plan = self._plan
        if plan.is_durable and not self._is_new:
            return
        self._model.declares()
        if plan.is_durable:
            await declare_subscription(session, plan)
        else:
            await session.declare_queue(
                plan.name, durable=False, exclusive=True, arguments=plan.arguments, restore=False
            )
            await session.bind_queue(plan.name, TOPICS, f"slow.{plan.name}", restore=False)
        if self._is_new:
            self._history.seen.add("slow consumer subscribed anew")

    async def _watch(self, line: Line) -> None:
        """Look now and then whether what had to be done was done."""
        while self._history.is_up(line):
            await asyncio.sleep(LOOK_S)
            if self._history.is_up(line):
                self._model.check()
                self._look()

    def _look(self) -> None:
        """Look at the broker's queue: note what is done about it, and check that messages go where
        they have to. Raises Violated."""
        node, plan, seen = self._clients.broker.node, self._plan, self._history.seen
        if node is None:
            return
        for one in node.broker.slow.watched():
            if one.queue.name != plan.name:
                continue
            if one.state == OVER:
                seen.add(f"slow consumer found, policy {plan.policy}")
                if plan.is_durable and plan.policy == "delete" and not plan.deletes_persistent:
                    seen.add("slow consumer left alone")
            if one.queue.holds_publishers:
                seen.add("publishers held for a slow consumer")
            self._look_at_length(one.queue)

    def _look_at_length(self, queue: Queue) -> None:
        plan = self._plan
        is_kept_short = plan.policy == DROP_OLDEST or plan.has_letters
        is_long = plan.count is not None and queue.ready + queue.acquired > plan.count
        now = self._clients.world.now_ns
        head = queue.head()
        first = -1 if head is None else int(head.first)
        if not (is_kept_short and is_long) or first < 0 or first != self._head:
            self._long_ns, self._head = now, first
        elif self._clients.world.troubles.leave_more_than(
            plan.delay_ms * MS_NS + SECOND_NS, self._long_ns, now
        ):
            raise Violated(f"{plan.name} has {queue.ready} ready messages, and may keep none")

    # -- the end

    async def drain(self) -> None:
        """Empty the queues that are left."""
        plan, clients = self._plan, self._clients
        is_declared: list[bool] = []

        async def again(session: Session, line: Line) -> None:
            await declare_subscription(session, plan)
            is_declared.append(True)

        if plan.is_durable:
            await clients.steadily(f"{plan.name} setup", "amqp", lambda: not is_declared, again)
            await clients.drain(plan.name)
        if plan.has_letters:
            await clients.drain(plan.dead)
