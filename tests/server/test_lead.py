"""A broker that has just taken the lead of its journal, and does not serve yet."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from tallymark.journal.postgresql.connection import Access, Connection
from tallymark.journal.postgresql.errors import SchemaRefused
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.lease import Lease
from tallymark.journal.recovery import JournalCorrupt
from tallymark.server import cluster
from tallymark.server.cluster import Lead
from tallymark.server.config.settings import Config
from tallymark.server.listening import Bound
from tallymark.server.replay import Replay
from tallymark.server.standby import Following, Keeper
from tallymark.simulation.database.client import Wire
from tallymark.simulation.database.server import Server
from tallymark.simulation.world import World
from tests.support.issuer import RESOURCE, Issuer
from tests.support.patience import PATIENCE_S, until_on_loop

URL = "postgresql://database/tallymark"


@pytest.fixture
def access() -> Access:
    """Ways to a database that is away."""
    server = Server(World(1))
    server.down()
    return Wire(server, None, 0.0).access


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Epochs whose lease is given back."""
    found: list[int] = []
    monkeypatch.setattr(Keeper, "start", lambda self: None)
    monkeypatch.setattr(Keeper, "stop", lambda self: found.append(self.epoch))
    return found


def led(folder: Path, access: Access, meanwhile: Callable[[asyncio.Future[int]], None]) -> object:
    """Lead in epoch 7; meanwhile: is given what a signal resolves."""

    async def play() -> Lead | None:
        stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(meanwhile, stop)
        leadership = Leadership(URL, 1, "a", 1000, access)
        following = Following(leadership, folder, 1, False)
        return await cluster._lead(Config(journal=URL), following, leadership, 7, stop)

    return asyncio.run(play())


def test_it_can_be_stopped_while_the_database_is_away(
    tmp_path: Path, access: Access, ended: list[int]
) -> None:
    """It read on for as long as that took, and no signal ended it."""
    assert led(tmp_path, access, lambda stop: stop.set_result(15)) is None
    assert ended == [7]


def test_it_gives_the_lease_back_where_the_journal_is_not_sound(
    tmp_path: Path, access: Access, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby waited for the lease to run out."""

    def finds_damage(self: Following) -> None:
        raise JournalCorrupt(tmp_path, ["segment 2 is gone"], "")

    monkeypatch.setattr(Following, "read_rest", finds_damage)
    with pytest.raises(JournalCorrupt, match="segment 2"):
        led(tmp_path, access, lambda stop: None)
    assert ended == [7]


def test_a_leader_whose_tables_are_of_another_version_says_so(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread ended with a traceback, and the broker stayed without a lease, and unheard."""
    text = "the tables in the schema tallymark are of version 3"

    def refuse(self: Leadership, epoch: int) -> Lease:
        raise SchemaRefused(text)

    monkeypatch.setattr(Leadership, "renew", refuse)
    monkeypatch.setattr(Leadership, "release", refuse)
    lost: Queue[OSError] = Queue()
    leadership = Leadership(URL, 1, "a", 1000, Access(access.connect))
    keeper = Keeper(leadership, 7, lost.put, lambda: None)
    keeper.start()
    assert str(lost.get(timeout=PATIENCE_S)) == f"[Errno {errno.EPROTO}] {text}"
    keeper.stop()


def test_a_standby_that_ends_for_tables_of_another_version_says_that_alone(tmp_path: Path) -> None:
    """A traceback of the thread that removes it from those that follow came beside it."""
    server = Server(World(1))
    access = Wire(server, None, 0.0).access
    Leadership(URL, 1, "a", 1000, access).look()
    server.tables.version = 9
    cluster._leave(Leadership(URL, 1, "b", 1000, access))


class Frozen:
    """Connections to a database that takes questions and answers none."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.on_asked: Callable[[], None] = self.asked.set
        self._is_over = False
        self._made: list[FrozenConnection] = []

    @property
    def access(self) -> Access:
        return Access(self._connect, lambda made: cast(FrozenConnection, made).cut())

    def _connect(self, url: str) -> Connection:
        made = FrozenConnection(self)
        self._made.append(made)
        if self._is_over:
            made.cut()
        return cast(Connection, made)

    def end(self) -> None:
        self._is_over = True
        for one in self._made:
            one.cut()


class FrozenConnection:
    def __init__(self, database: Frozen) -> None:
        self._database = database
        self._is_cut = threading.Event()

    @property
    def closed(self) -> bool:
        return self._is_cut.is_set()

    def execute(self, *asked: object) -> None:
        self._database.on_asked()
        self._is_cut.wait()
        raise psycopg.OperationalError("the connection was shut down")

    def add_notice_handler(self, handler: object) -> None:
        """Give no notices."""

    def cut(self) -> None:
        self._is_cut.set()

    close = cut


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frozen]:
    monkeypatch.setattr(cluster, "END_S", 0.05)
    made = Frozen()
    yield made
    made.end()


def test_a_broker_that_follows_ends_though_the_database_does_not_answer(
    tmp_path: Path, frozen: Frozen
) -> None:
    """SIGTERM was noted, and nothing came of it for as long as a server hung, or the standby was
    away for which it waits."""

    async def play() -> Lead | None:
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[int] = loop.create_future()
        frozen.on_asked = lambda: loop.call_soon_threadsafe(cluster._resolve, stop, 15)
        config = Config(journal=URL, data_dir=tmp_path)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await cluster.take_lead(config, cast(Bound, None), stop, frozen.access)
        finally:
            frozen.end()

    assert asyncio.run(play()) is None


def test_a_standby_fetches_its_issuers_keys_though_no_token_comes(
    tmp_path: Path, frozen: Frozen
) -> None:
    """It did when a token named a key that was not known: a withdrawn one was good for ever."""

    async def play(issuer: Issuer, bound: socket.socket) -> Lead | None:
        stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        config = Config(
            journal=URL, data_dir=tmp_path, standby=True,
            auth_oauth2_resource_server_id=RESOURCE, auth_oauth2_issuer=issuer.url,
        )  # fmt: skip
        listening = cast(Bound, SimpleNamespace(http=[bound]))
        standing = cluster.take_lead(config, listening, stop, frozen.access)
        work = asyncio.create_task(standing)
        await until_on_loop(lambda: "/keys" in issuer.asked)
        stop.set_result(15)
        frozen.end()
        return await work

    with Issuer() as issuer, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert asyncio.run(play(issuer, bound)) is None


def test_a_leader_ends_though_the_database_does_not_answer(frozen: Frozen) -> None:
    """The lease's thread waited for the answer to a renewal, and the process for that."""
    leadership = Leadership(URL, 1, "a", 1000, frozen.access)
    keeper = Keeper(leadership, 7, lambda error: None, lambda: None)
    keeper.start()
    assert frozen.asked.wait(PATIENCE_S)

    async def play() -> None:
        lost: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        lead = Lead(Config(journal=URL), cast(Replay, None), keeper, lost)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await lead.let_go()
        finally:
            frozen.end()

    asyncio.run(play())
