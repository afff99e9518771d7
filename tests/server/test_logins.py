"""Wrong passwords keep nobody out: turns, delays and what is remembered, and with real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tallymark.server.access import logins
from tallymark.server.access.logins import Logins
from tallymark.server.access.user import Permission, User, make_user
from tallymark.server.access.users import Users
from tallymark.wire.amqp091.frames import PROTOCOL_HEADER
from tallymark.wire.amqp091.methods import ConnectionStartOk
from tests.server.lines import DOORS
from tests.server.management import FULL, done
from tests.support.amqp091 import OPEN, method_frame, tune_ok
from tests.support.amqp10_socket import Client as Client10
from tests.support.process import BrokerProcess

SALT = b"salt"


class Desk:
    """Log-ins under a clock that stands, with checks that end when they are told to."""

    def __init__(self) -> None:
        self.now = 1000
        self.logins = Logins(lambda: self.now)
        self.running: dict[str, asyncio.Future[bool]] = {}
        """By what is checked: user, address and number."""
        self.ended: dict[str, bool] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.stored = SALT

    async def ask(self, user: str, peer: str = "a", password: str = "", times: int = 1) -> None:
        """password: of all of them, or each has another."""
        for number in range(times):
            word = f"{user}@{peer}" if times == 1 else f"{user}@{peer}/{number}"
            self.tasks.append(
                asyncio.create_task(self._ask(user, peer, password or f"x{number}", word))
            )
        await self.settle()

    async def _ask(self, user: str, peer: str, password: str, word: str) -> None:
        async def accepts() -> bool:
            self.running[word] = asyncio.get_running_loop().create_future()
            try:
                return await self.running[word]
            finally:
                del self.running[word]

        self.ended[word] = await self.logins.check(user, self.stored, password, peer, accepts)

    async def end(self, word: str, accepted: bool) -> None:
        self.running[word].set_result(accepted)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def later(self, ms: int) -> None:
        self.now += ms
        self.logins._look()
        await self.settle()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert self.logins._running == {}
        assert self.logins._waiting == []


def test_one_check_runs_at_a_time_of_an_address_and_user_and_one_is_left_for_others() -> None:
    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", times=10)
        assert list(desk.running) == ["ann@a/0"]
        for user in ("bob", "cid", "dan"):
            await desk.ask(user)
        assert list(desk.running) == ["ann@a/0", "bob@a", "cid@a"], "three of one address"
        await desk.ask("eve", "b")
        assert "eve@b" in desk.running
        await desk.close()

    asyncio.run(play())


def test_after_a_failure_the_next_check_waits_longer_each_time() -> None:
    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", times=3)
        await desk.end("ann@a/0", False)
        assert desk.ended == {"ann@a/0": False}
        assert desk.running == {}
        await desk.later(logins.FIRST_DELAY_MS - 1)
        assert desk.running == {}
        await desk.later(1)
        await desk.end("ann@a/1", False)
        await desk.later(logins.FIRST_DELAY_MS)
        assert desk.running == {}
        await desk.later(logins.FIRST_DELAY_MS)
        await desk.end("ann@a/2", True)
        assert desk.logins._failures == {}
        await desk.close()

    asyncio.run(play())


def test_who_goes_while_another_check_ends_is_not_served() -> None:
    """Its turn is over before its task hears of it: that broke the connection of whoever had been
    checked, and left the address and user as being checked for good."""

    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", times=3)
        desk.running["ann@a/0"].set_result(True)
        desk.tasks[1].cancel()
        await desk.settle()
        assert desk.ended == {"ann@a/0": True}
        assert list(desk.running) == ["ann@a/2"]
        await desk.end("ann@a/2", True)
        await desk.close()

    asyncio.run(play())


def test_who_waits_with_the_same_password_gets_the_same_answer() -> None:
    """As all clients of a machine do after a restart: beyond 64 they were refused unchecked, and
    the others were checked one by one."""

    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", password="right", times=300)
        await desk.ask("ann", "b", password="right", times=3)
        assert list(desk.running) == ["ann@a/0", "ann@b/0"]
        await desk.end("ann@a/0", True)
        assert desk.running == {"ann@b/0": desk.running["ann@b/0"]}
        assert len(desk.ended) == 302
        assert all(desk.ended.values())
        await desk.end("ann@b/0", True)
        await desk.close()

    asyncio.run(play())


def test_a_wrong_password_is_checked_once_for_all_who_wait_with_it() -> None:
    """Of one address: elsewhere it is checked and counted by itself. Another password is another
    check."""

    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", password="wrong", times=10)
        await desk.ask("ann", "b", password="wrong")
        await desk.ask("ann", password="right")
        await desk.end("ann@a/0", False)
        assert len(desk.ended) == 10
        assert not any(desk.ended.values())
        assert list(desk.running) == ["ann@b"]
        await desk.end("ann@b", False)
        await desk.later(logins.FIRST_DELAY_MS)
        assert list(desk.running) == ["ann@a"]
        await desk.end("ann@a", True)
        assert desk.ended["ann@a"]
        await desk.close()

    asyncio.run(play())


def test_who_goes_while_others_wait_with_the_same_password_leaves_them_waiting() -> None:
    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", password="right", times=4)
        desk.tasks[0].cancel()
        desk.tasks[2].cancel()
        await desk.settle()
        assert list(desk.running) == ["ann@a/1"]
        desk.running["ann@a/1"].set_result(True)
        desk.tasks[3].cancel()
        await desk.settle()
        assert desk.ended == {"ann@a/1": True}
        await desk.close()

    asyncio.run(play())


def test_who_has_logged_in_from_there_goes_first() -> None:
    async def play() -> None:
        desk = Desk()
        await desk.ask("ann")
        await desk.end("ann@a", True)
        desk.now += logins.VERIFIED_MS
        for user in ("bob", "cid", "dan", "eve"):
            await desk.ask(user)
        await desk.ask("ann")
        assert list(desk.running) == ["bob@a", "cid@a", "dan@a", "ann@a"]
        await desk.close()

    asyncio.run(play())


def test_a_right_password_is_let_in_unchecked_until_it_is_changed_or_old() -> None:
    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", password="right")
        await desk.end("ann@a", True)
        await desk.ask("ann", password="wrong", times=5)
        for peer in ("a", "b"):
            await desk.ask("ann", peer, password="right")
            assert desk.ended[f"ann@{peer}"]
        assert b"right" not in repr(vars(desk.logins)).encode()
        desk.stored = b"of another password"
        await desk.ask("ann", "c", password="right")
        assert "ann@c" in desk.running
        await desk.end("ann@c", True)
        desk.now += logins.VERIFIED_MS
        await desk.ask("ann", "d", password="right")
        assert "ann@d" in desk.running
        await desk.close()

    asyncio.run(play())


def test_a_password_is_not_checked_again_because_somebody_s_rights_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each change of a permission costs every client of HTTP another scrypt."""
    checked: list[str] = []
    accepts = User.accepts

    def counted(user: User, password: str) -> bool:
        checked.append(user.name)
        return accepts(user, password)

    monkeypatch.setattr(User, "accepts", counted)

    async def play() -> None:
        users = Users(tmp_path)
        ann = make_user("ann", "right", True, {})
        await users.change(lambda found: found.update(ann=ann), "a test", keep_guest=False)
        assert await users.check("ann", "right", "a") is not None
        assert checked == ["ann"]
        able = msgspec.structs.replace(ann, vhosts={"/": Permission()})
        await users.change(lambda found: found.update(ann=able), "a test")
        found = await users.check("ann", "right", "a")
        assert found is not None
        assert found.vhosts == {"/": Permission()}
        assert checked == ["ann"]
        other = make_user("ann", "new", True, {})
        await users.change(lambda found: found.update(ann=other), "a test")
        assert await users.check("ann", "right", "a") is None
        assert await users.check("ann", "new", "a") is not None
        assert checked == ["ann"] * 3

    asyncio.run(play())


def test_too_many_are_refused_unchecked() -> None:
    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", times=logins.WAITING_OF_ONE + 5)
        assert len(desk.ended) == 4
        assert not any(desk.ended.values())
        for number in range(logins.WAITING + logins.WAITING_OF_ONE):
            await desk.ask(f"user{number}", f"peer{number}")
        await desk.ask("zoe", "z")
        assert not desk.ended["zoe@z"]
        await desk.close()

    asyncio.run(play())


@pytest.mark.parametrize("peer", ["a", "b"])
def test_who_fills_the_line_keeps_nobody_else_out(peer: str) -> None:
    """All of them with one wrong password, or with many names: everybody else was refused. Who has
    logged in from the same address before is somebody else."""

    async def play() -> None:
        desk = Desk()
        await desk.ask("zoe", peer)
        await desk.end(f"zoe@{peer}", True)
        desk.ended.clear()
        desk.now += logins.VERIFIED_MS
        await desk.ask("ann", password="wrong", times=logins.WAITING // 2)
        for number in range(logins.WAITING // 2 + 10):
            await desk.ask(f"user{number}", "a")
        assert len(desk.logins._waiting) == logins.WAITING
        refused = len(desk.ended)
        await desk.ask("zoe", peer)
        assert f"zoe@{peer}" in desk.running
        assert len(desk.ended) == refused + 1, "one of the others had to go"
        assert not any(desk.ended.values())
        await desk.close()

    asyncio.run(play())


def test_a_short_delay_does_not_wait_for_the_end_of_a_longer_one() -> None:
    """Of another client, whose many failures made it."""

    async def play() -> None:
        desk = Desk()
        await desk.ask("ann", times=8)
        for number in range(6):
            await desk.end(f"ann@a/{number}", False)
            await desk.later(logins.FIRST_DELAY_MS << number)
        await desk.end("ann@a/6", False)
        timer = desk.logins._timer
        assert timer is not None
        await desk.ask("bob", "b", times=2)
        await desk.end("bob@b/0", False)
        earlier = desk.logins._timer
        assert earlier is not None
        assert earlier.when() < timer.when() - 1
        await desk.close()

    asyncio.run(play())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Little time for a handshake: the wait for a check is none of it."""
    with BrokerProcess(
        tmp_path_factory.mktemp("logins") / "data", handshake_timeout_ms="1000"
    ) as process:
        for name in ("guest", "ann"):
            tags = "administrator" if name == "guest" else ""
            done(process, "PUT", f"users/{name}", {"password": name, "tags": tags})
            done(process, "PUT", f"permissions/%2F/{name}", FULL)
        yield process


def wrong(broker: BrokerProcess) -> socket.socket:
    raw = DOORS[0].connect(broker)
    start_ok = ConnectionStartOk({"capabilities": {}}, "PLAIN", b"\0guest\0wrong")
    raw.sendall(PROTOCOL_HEADER + method_frame(0, start_ok) + tune_ok() + OPEN)
    return raw


@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "amqp-1.0", "management"])
def test_a_storm_of_wrong_passwords_keeps_a_right_one_out_of_no_protocol(
    broker: BrokerProcess, protocol: str
) -> None:
    """40 wrong ones wait in line; before, that took longer than a handshake may."""
    storm = [wrong(broker) for _ in range(40)]
    if protocol == "amqp-0-9-1":
        raw = DOORS[0].connect(broker)
        start_ok = ConnectionStartOk({"capabilities": {}}, "PLAIN", b"\0ann\0ann")
        raw.sendall(PROTOCOL_HEADER + method_frame(0, start_ok))
        seen = b""
        while b"\0\x0a\0\x1e" not in seen:  # connection.tune
            data = raw.recv(65536)
            assert data, "refused"
            seen += data
        raw.close()
    elif protocol == "amqp-1.0":
        with Client10(DOORS[1].connect(broker)) as client:
            client.login("ann", "ann")
    else:
        assert broker.http("GET", "/api/whoami", user="ann:ann")[0] == 200
    for raw in storm:
        raw.close()
