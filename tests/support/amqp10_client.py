"""The client joined to a scripted peer, and ways to disturb it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tallymark.client import Connection, Receiver, Sender, Session, connect
from tallymark.client.events import Event
from tests.support.amqp10_peer import Peer

T = TypeVar("T")
E = TypeVar("E", bound=Event)


class Events(list[Event]):
    """What `on_event` was told."""

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]

    def one(self, kind: type[E]) -> E:
        found = self.of(kind)
        assert len(found) == 1, found
        return found[0]


@asynccontextmanager
async def connected(peer: Peer, **options: Any) -> AsyncIterator[Connection]:
    async with connect("amqp://peer", opener=peer.open, **options) as connection:
        yield connection


@asynccontextmanager
async def session_of(peer: Peer, **options: Any) -> AsyncIterator[Session]:
    async with connected(peer, **options) as connection, connection.session() as session:
        yield session


@asynccontextmanager
async def receiver_of(peer: Peer, address: str = "q", **options: Any) -> AsyncIterator[Receiver]:
    """A receiver on a session and a connection of its own; `on_event` goes to the connection."""
    told = {key: options.pop(key) for key in ("on_event", "reconnect", "trace") if key in options}
    async with session_of(peer, **told) as session, session.receiver(address, **options) as it:
        yield it


@asynccontextmanager
async def sender_of(peer: Peer, address: str | None = "q", **options: Any) -> AsyncIterator[Sender]:
    told = {key: options.pop(key) for key in ("on_event", "reconnect", "trace") if key in options}
    async with session_of(peer, **told) as session, session.sender(address, **options) as it:
        yield it


class Cancelled(Exception):
    """The call was cancelled where it should be."""


async def cancelled_at(number: int, call: Coroutine[Any, Any, T]) -> T:
    """Run the call as a task of its own, cancel it while it waits for the number-th time (from 1).
    Raises Cancelled if that took effect; its result where it was over first."""
    task: asyncio.Task[T]

    @types.coroutine
    def counted() -> Generator[Any, Any, T]:
        waits = 0
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting = call.send(result) if error is None else call.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            waits += 1
            if waits == number:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                result, error = (yield waiting), None
            except BaseException as raised:
                error = raised

    async def main() -> T:
        return await counted()

    task = asyncio.create_task(main())
    try:
        return await task
    except asyncio.CancelledError:
        raise Cancelled from None


async def outcome_of(call: Awaitable[object]) -> object:
    """What the call returned, or the error that it raised."""
    try:
        return await call
    except Exception as error:
        return error
