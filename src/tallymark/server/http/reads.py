"""Reads of a standby: streams, and messages that are looked at, from a view of its folder.

An answer is as the journal was a moment ago. It is never one of refusal for that reason: before it
says no, the standby looks into the database, and answers from what it found there. So a range that
the leader has planned is there, and whoever asks once here and once there sees one stream.

What a view has is committed and safe: the folder gets nothing else (mirror.py). It holds nothing in
the journal against the leader, who lets go of what retention takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, final

from aiohttp import web
from aiohttp.typedefs import Handler

from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.engine.queue import Queue
from tallymark.journal.journal import Journal
from tallymark.server.access.users import Users
from tallymark.server.clock import both_ms
from tallymark.server.http.behind import Behind
from tallymark.server.http.browse import Browsing
from tallymark.server.http.guard import Guard, Turned
from tallymark.server.http.login import log_in
from tallymark.server.http.requests import USERS, ReadContext, Refused, answer
from tallymark.server.http.server import STATUS, refuse_coded
from tallymark.server.http.streams import Streams
from tallymark.server.view import View
from tallymark.units import Position

PATHS: Final = ("/api/tallymark/streams/", "/api/tallymark/browse/", "/api/tallymark/behind")
"""Beginnings of the paths that are answered here."""
PAUSE_S: Final = 1.0
SHARE: Final = 10
"""Views are made no more often than each PAUSE_S, and take at most one part in so many of the
time: a standby has to follow."""
TRIM_S: Final = 0.05
"""Seconds between two looks at the memory that messages take which are read."""
BUDGET: Final = 64 << 20
"""Bytes of such messages that stay in memory."""
EVERYTHING: Final = Position(1 << 62)
LONGEST_S: Final = 10.0
"""Seconds for which a request waits for a view, while the database may be away."""


class Follower(Protocol):
    """Process that brings a folder up to date, and makes views of it."""

    wanted: int
    """Number of the newest view that a reader waits for."""
    problem: str
    """Reason for which nothing new is read; empty: it is."""
    on_view: Callable[[int, View | None], None]
    """Called from any thread with the number and the view; None: the last one is as new."""

    @property
    def position(self) -> int:
        """Position that the folder reaches to."""

    @property
    def cuts(self) -> int:
        """Times that the folder lost blocks: it may be another one at the same position."""


@final
class Reads:
    """A standby's view, as what only reads sees it."""

    def __init__(self, following: Follower) -> None:
        self._following = following
        self.loop = asyncio.get_running_loop()
        self.polls = self
        self._view: View | None = None
        self._number = 0
        self._waiters: set[asyncio.Future[None]] = set()
        """Requests that wait for a view which is as new as they are."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """The ones that have asked, each with the number of the view that will do."""
        self._has_ended = False
        self._readers = 0
        """Requests that are being answered."""
        following.on_view = self._has_come

    @property
    def broker(self) -> Broker:
        return self.view.broker

    @property
    def journal(self) -> Journal:
        return self.view.journal

    @property
    def view(self) -> View:
        """Return the newest view. Raises Refused 503: there is none yet."""
        if self._view is None:
            reason = self._following.problem or "the journal has not been read yet"
            raise Refused(503, "standby", f"this broker stands by: {reason}")
        return self._view

    async def current(self) -> None:
        """Return when there is a view; have a new one made where the journal has grown, or
        lost what it had."""
        if self._view is None:
            await self.fresh()
        elif self._is_outdated(self._view) and self._pause() <= 0:
            self._ask()
        self.broker.clock.read(*both_ms())

    def _is_outdated(self, view: View) -> bool:
        following = self._following
        return (view.position, view.cuts) != (following.position, following.cuts)

    async def fresh(self) -> None:
        """Return when the view has all that was committed when this was called. Raises Refused 503:
        the database does not say."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        pause_s = max(0.0, self._pause())
        self._waiters.add(waiter)
        asking = self.loop.call_later(pause_s, self._ask_for, waiter)
        try:
            await asyncio.wait_for(waiter, pause_s + LONGEST_S)
        except TimeoutError:
            problem = self._following.problem or "the database has not been read meanwhile"
            raise Refused(503, "standby", f"this broker stands by: {problem}") from None
        finally:
            asking.cancel()
            self._waiters.discard(waiter)

    async def beyond(self, queue: Queue, sequence: int) -> None:
        """Return when the stream is to be looked for again."""
        await self.fresh()

    async def ready(self, queue: Queue) -> None:
        """Return when the queue is to be looked for again."""
        await self.fresh()

    async def durable(self) -> None:
        """Return: a view has nothing else."""

    def schedule(self) -> None:
        """Do nothing: what is no longer needed goes with its view."""

    def begin(self) -> None:
        """Note that a request is being answered, until `end`: messages that it has read, and sent,
        leave memory meanwhile."""
        self._readers += 1
        if self._readers == 1:
            self.loop.call_later(TRIM_S, self._trim)

    def end(self) -> None:
        self._readers -= 1

    def _trim(self) -> None:
        if self._view is not None:
            broker = self._view.broker
            broker.store.spill(BUDGET if self._readers else 0, EVERYTHING, broker.ledger)
        if self._readers:
            self.loop.call_later(TRIM_S, self._trim)

    def close(self) -> None:
        """Have everybody who waits ask again, as soon as this broker leads."""
        self._has_ended = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Refused(503, "standby", "this broker takes the lead"))
        if self._view is not None:
            self._view.close()
            self._view = None

    def _pause(self) -> float:
        """Return the seconds until the next view may be made."""
        if self._view is None:
            return 0.0
        pause_s = max(PAUSE_S, SHARE * self._view.took_s)
        return self._view.made_at + pause_s - time.monotonic()

    def _ask_for(self, waiter: asyncio.Future[None]) -> None:
        self._waiting.append((self._ask(), waiter))

    def _ask(self) -> int:
        """Have a view; return its number."""
        self._number += 1
        self._following.wanted = self._number
        return self._number

    def _has_come(self, number: int, view: View | None) -> None:
        """Take a view, from the thread that made it."""
        self.loop.call_soon_threadsafe(self._take, number, view)

    def _take(self, number: int, view: View | None) -> None:
        if view is not None:
            if self._has_ended:
                view.close()
                return
            before, self._view = self._view, view
            if before is not None:
                before.close()
        here = [waiter for of, waiter in self._waiting if of <= number]
        self._waiting = [entry for entry in self._waiting if entry[0] > number]
        for waiter in here:
            if not waiter.done():
                waiter.set_result(None)


class StandbyContext(ReadContext):
    """A standby as handlers of requests see it."""

    def check_leases(self, request: web.Request) -> None:
        raise Refused(503, "standby", "this broker stands by: subscriptions are with the leader")


class ReadRoutes:
    """The routes of what only reads, with their log-in."""

    def __init__(self, reads: Reads, users: Users, guard: Guard, app: web.Application) -> None:
        self._reads = reads
        self._users = users
        self._guard = guard
        context = StandbyContext(reads)
        self._streams = Streams(context)
        self._browsing = Browsing(context)
        app[USERS] = users
        for routes in (self._streams, self._browsing, Behind(context)):
            routes.add_to(app)
        app.middlewares.append(self._answer)

    def close(self) -> None:
        with suppress(Refused):
            self._streams.close()
            self._browsing.close()
        self._reads.close()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(PATHS):
            return await handler(request)
        try:
            self._guard.check(request)
            refuse_coded(request)
            await log_in(request, self._users)
            return await self._read(request, handler)
        except Refused as error:
            return answer({"error": error.error, "reason": str(error)}, error.status)
        except Turned as error:
            return answer({"error": "forbidden", "reason": str(error)}, error.status)
        except BrokerError as error:
            status, word = STATUS.get(type(error), (400, "bad_request"))
            return answer({"error": word, "reason": str(error)}, status)

    async def _read(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await self._reads.current()
        self._reads.begin()
        try:
            return await handler(request)
        except (BrokerError, FileNotFoundError):
            await self._reads.fresh()
            return await handler(request)
        finally:
            self._reads.end()
