"""A broker among several of one journal: from the configuration to the lead, and out of it.

    follow      like a standby, though perhaps only for a moment
    claim       the lease is free: the epoch is raised, the lease renewed from now on
    lead        the rest is read; `open_node` goes on with the replay
    let go      after the last commit: a standby may claim at once

Only a standby listens meanwhile, and only for HTTP (http/standby.py).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, Final, final

import psycopg

from tallymark import __version__
from tallymark.journal.files import Files
from tallymark.journal.home import Home
from tallymark.journal.postgresql.connection import DIRECT, Access
from tallymark.journal.postgresql.errors import SchemaRefused
from tallymark.journal.postgresql.home import PostgresqlHome
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.server import supervisor
from tallymark.server.access.users import Users
from tallymark.server.config.settings import Config
from tallymark.server.http.guard import guard_of
from tallymark.server.http.standby import StandbyHttp
from tallymark.server.listening import Bound
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.opening import tokens_of
from tallymark.server.replay import Replay
from tallymark.server.schedule import Schedule
from tallymark.server.standby import Following, Keeper, process_name
from tallymark.server.tasks import add_key_refresh

log = log_of("server")

END_S: Final = 5.0
"""Seconds for which a question to the database may take, once the broker ends."""


@final
class Lead:
    """The lead of a journal, in one epoch."""

    def __init__(
        self,
        config: Config,
        replay: Replay,
        keeper: Keeper,
        lost: asyncio.Future[OSError],
        access: Access = DIRECT,
    ) -> None:
        self._config = config
        self._access = access
        self.replay = replay
        self.keeper = keeper
        self.lost = lost
        """Future that gets the error when another broker has the lead, the database lacks what this
        one wrote, or its tables are of another version now."""

    @property
    def epoch(self) -> int:
        return self.keeper.epoch

    def home(self, files: Files | None = None) -> Home:
        """Return the journal's home, for this epoch. files: as PostgresqlHome."""
        config = self._config
        made = PostgresqlHome(config.journal, config.journal_id, self.epoch, self._access, files)
        self.keeper.check = made.check
        return made

    def lead(self, node: Node) -> None:
        """Tell a node when it no longer leads."""
        self.lost.add_done_callback(lambda lost: node.fail(lost.result()))
        node.is_leading = lambda: self.keeper.is_valid

    async def let_go(self) -> None:
        """Renew no more, and have a standby take over at once."""
        await _ended(self.keeper.stop, self.keeper.cut)


async def take_lead(
    config: Config, bound: Bound, stop: asyncio.Future[int], access: Access = DIRECT
) -> Lead | None:
    """Follow the journal until this broker leads it; None: it was stopped before. access: to the
    database.

    Raises:
        AnotherLeads: it is no standby, and another one leads.
        FolderInUse, NotAMirror, JournalCorrupt, NotUnderstood, Differs, OSError.
    """
    name = process_name()
    leadership = Leadership(config.journal, config.journal_id, name, config.lease, access)
    following = Following(leadership, config.data_dir, config.journal_id, config.accept_loss)
    users = Users(config.data_dir, tokens_of(config))
    http = StandbyHttp(following, name, users, guard_of(config))
    tasks = Schedule(asyncio.get_running_loop())
    if config.standby:
        await http.start(bound.http)
        add_key_refresh(tasks, users, config)
        tasks.start()
        _announce(http)
    epoch = 0
    work = asyncio.create_task(asyncio.to_thread(following.until_leading, config.standby))
    try:
        await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            following.stop()
            await _within(work, following.cut)
        epoch = await work
        if not epoch:
            following.close()
            log.info("standby.stopped")
            return None
        return await _lead(config, following, leadership, epoch, stop)
    finally:
        following.stop()
        await tasks.stop()
        await http.stop()
        leaving = access.threads.thread(lambda: _leave(leadership), "leaving")
        leaving.start()
        if not epoch:  # who leads does not wait for it: it is a commit
            await _ended(leaving.join, leadership.cut)


async def _lead(
    config: Config,
    following: Following,
    leadership: Leadership,
    epoch: int,
    stop: asyncio.Future[int],
) -> Lead | None:
    """Read the rest, as a leader; None: it was stopped before. Raises as take_lead; whoever does
    not lead in the end has given the lease back."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[OSError] = loop.create_future()

    def on_lost(error: OSError) -> None:
        loop.call_soon_threadsafe(_resolve, lost, error)

    def on_handover() -> None:
        loop.call_soon_threadsafe(_resolve, stop, 0)

    access = leadership.access
    own = Leadership(config.journal, config.journal_id, leadership.name, config.lease, access)
    keeper = Keeper(own, epoch, on_lost, on_handover)
    keeper.start()
    log.info("lead.taken", epoch=epoch, position=f"{following.position:#x}")
    reading = asyncio.create_task(asyncio.to_thread(following.read_rest))
    both: set[asyncio.Future[Any]] = {reading, stop}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if reading.done() and reading.exception() is None:
        return Lead(config, following.replay, keeper, lost, access)
    following.stop()
    await _ended(keeper.stop, keeper.cut)
    await _within(reading, following.cut)
    await reading
    following.close()
    log.info("standby.stopped")
    return None


async def _ended(wait: Callable[[], None], cut: Callable[[], None]) -> None:
    """Wait in a thread for what ends, and asks the database; cut: as _within."""
    work = asyncio.create_task(asyncio.to_thread(wait))
    await _within(work, cut)
    await work


async def _within(work: asyncio.Future[Any], cut: Callable[[], None]) -> None:
    """Wait for what was told to end. Whatever it asks a database that does not answer, or that
    waits for its standby, fails after a while by `cut`: there is no end to that otherwise."""
    while not work.done():
        await asyncio.wait([work], timeout=END_S)
        if not work.done():
            cut()


def _leave(leadership: Leadership) -> None:
    """Follow no more: no operator counts on this broker as a standby."""
    try:
        leadership.unfollow()
    except (psycopg.Error, SchemaRefused) as error:
        log.info("standby.not_removed", problem=" ".join(str(error).split()))
    leadership.close()


def _announce(http: StandbyHttp) -> None:
    """The line on stdout: HTTP is open, and the journal is followed."""
    said = {
        "ready": False,
        "standby": True,
        "pid": os.getpid(),
        "http": http.addresses[0],
        "version": __version__,
    }
    print(json.dumps(said), flush=True)  # noqa: T201
    supervisor.tell_ready(f"Tallymark {__version__} stands by")


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
