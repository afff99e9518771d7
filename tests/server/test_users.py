"""Users: hashes, the file, and who gets in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from tallymark.server.access import users
from tallymark.server.access.audit import BY_FILE
from tallymark.server.access.logins import AT_A_TIME
from tallymark.server.access.scram import make_keys
from tallymark.server.access.token_keys import Keys
from tallymark.server.access.tokens import Tokens, rules_of
from tallymark.server.access.user import (
    Permission,
    TopicPermission,
    User,
    UsersError,
    hashed_user,
    make_user,
)
from tallymark.server.access.users import Users
from tallymark.server.config.settings import Config
from tests.support.patience import PATIENCE_S


def add(folder: Path, name: str, password: str) -> None:
    known = users.load(folder)
    known[name] = make_user(name, password, False, {"*": Permission()})
    users.save(folder, known)


def check(who: Users, name: str, password: str, peer: str = "127.0.0.1") -> bool:
    async def ask() -> bool:
        return await who.check(name, password, peer) is not None

    return asyncio.run(ask())


def test_a_password_is_stored_as_a_salted_hash_in_a_private_file(tmp_path: Path) -> None:
    add(tmp_path, "ann", "secret")
    add(tmp_path, "bob", "secret")
    file = tmp_path / users.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in file.read_text()
    ann, bob = json.loads(file.read_text())
    assert ann["salt"] != bob["salt"]
    assert ann["hash"] != bob["hash"]
    assert [path.name for path in tmp_path.iterdir()] == [users.FILE]


def test_a_name_with_a_colon_is_refused() -> None:
    with pytest.raises(UsersError, match="name without ':'"):
        make_user("a:b", "secret", False, {})


def test_who_gets_in(tmp_path: Path) -> None:
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)
    assert check(who, "ann", "secret")
    assert check(who, "ann", "secret", "192.0.2.7")
    assert not check(who, "ann", "Secret")
    assert not check(who, "bob", "secret")
    assert not check(who, "ann", "")


@pytest.mark.parametrize("with_tokens", [False, True])
def test_bytes_that_are_not_utf_8_are_nobodys_name_and_password(
    tmp_path: Path, with_tokens: bool
) -> None:
    """AMQPLAIN and a Bearer header may have them; they ended the check with an error of ours."""
    add(tmp_path, "ann", "secret")
    tokens = Tokens(rules_of(Config()), Keys()) if with_tokens else None
    who = Users(tmp_path, tokens)
    assert not check(who, "ann", "secret\udcff")
    assert not check(who, "ann\udcff", "secret")
    assert not check(who, "", "\udcff.a.b")
    assert check(who, "ann", "secret")


@pytest.mark.parametrize(("cost", "block", "parallel"), [(2, 1, 1), (2, 32, 16), (1 << 15, 1, 1)])
def test_every_scrypt_hash_that_is_taken_can_be_checked(
    tmp_path: Path, cost: int, block: int, parallel: int
) -> None:
    salt = b"s" * 16
    raw = salt + hashlib.scrypt(
        b"secret", salt=salt, n=cost, r=block, p=parallel, maxmem=1 << 30, dklen=32
    )
    text = base64.b64encode(raw).decode()
    made = hashed_user("ann", text, f"scrypt:{cost}:{block}:{parallel}")
    users.save(tmp_path, {"ann": made})
    assert check(Users(tmp_path), "ann", "secret")
    assert not check(Users(tmp_path), "ann", "other")


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_an_empty_password_never_gets_in_whatever_the_hash(tmp_path: Path, digest: str) -> None:
    """RabbitMQ keeps the hash of an empty password too, and lets nobody in by it."""
    raw = b"salt" + hashlib.new(digest, b"salt").digest()
    text = base64.b64encode(raw).decode()
    blank = hashed_user("ann", text, f"rabbit_password_hashing_{digest}")
    raw = b"s" * 16 + hashlib.scrypt(b"", salt=b"s" * 16, n=2, r=1, p=1, dklen=32)
    own = hashed_user("bob", base64.b64encode(raw).decode(), "scrypt:2:1:1")
    users.save(tmp_path, {"ann": blank, "bob": own})
    who = Users(tmp_path)
    assert not check(who, "ann", "")
    assert not check(who, "bob", "")


def test_guest_gets_in_from_loopback_while_there_are_no_users(tmp_path: Path) -> None:
    who = Users(tmp_path)
    assert check(who, "guest", "guest")
    assert check(who, "guest", "guest", "::1")
    assert not check(who, "guest", "guest", "192.0.2.7")
    assert not check(who, "guest", "other")
    add(tmp_path, "ann", "secret")
    assert not check(who, "guest", "guest")


def test_guest_is_not_back_where_the_last_user_of_a_running_broker_goes(tmp_path: Path) -> None:
    """It is an administrator, and NSQ asked nobody who he is: of a broker that others reach."""
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)
    assert who.asks_everybody
    users.save(tmp_path, {})
    assert not check(who, "guest", "guest")
    assert who.named("guest") is None
    assert who.asks_everybody
    keys = who.scram_of("guest", "127.0.0.1")
    assert keys != make_keys("guest", keys.salt, keys.iterations)
    add(tmp_path, "bob", "secret")
    assert check(who, "bob", "secret")
    users.save(tmp_path, {})
    assert check(Users(tmp_path), "guest", "guest"), "after a start, which none reach from afar"


def test_a_file_of_users_that_is_gone_lets_nobody_in(tmp_path: Path) -> None:
    """Connections and limits of those who were in it stay until it is back, as with a damaged
    one."""
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)
    assert check(who, "ann", "secret")
    aside = (tmp_path / users.FILE).rename(tmp_path / "aside")
    for name, password in (("guest", "guest"), ("ann", "secret")):
        with pytest.raises(UsersError, match=r"users\.json is gone"):
            check(who, name, password)
    aside.rename(tmp_path / users.FILE)
    assert check(who, "ann", "secret")


@pytest.mark.parametrize("password", ["guest", "own"])
def test_guest_gets_in_from_afar_with_a_password_of_its_own(tmp_path: Path, password: str) -> None:
    """By SCRAM as by the password itself: clients take SCRAM where it is offered."""
    add(tmp_path, "guest", password)

    def by_scram(peer: str) -> bool:
        who = Users(tmp_path)
        keys = who.scram_of("guest", peer)
        is_right = keys == make_keys(password, keys.salt)
        return asyncio.run(who.check_proof("guest", peer, keys, lambda: is_right)) is not None

    for peer, gets_in in (("127.0.0.1", True), ("192.0.2.7", password == "own")):
        assert check(Users(tmp_path), "guest", password, peer) == gets_in
        assert by_scram(peer) == gets_in


def test_a_change_of_the_file_is_noticed_at_the_next_login(tmp_path: Path) -> None:
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)
    assert check(who, "ann", "secret")
    known = users.load(tmp_path)
    known["ann"] = make_user("ann", "changed", False, {})
    users.save(tmp_path, known)
    assert not check(who, "ann", "secret")
    assert check(who, "ann", "changed")


def test_what_another_process_changes_meanwhile_stays(tmp_path: Path) -> None:
    """A user who had been deleted by the command line was back with a change over HTTP."""
    for name in ("ann", "eve"):
        add(tmp_path, name, "secret")
    who = Users(tmp_path)
    calls = 0

    def change(known: dict[str, User]) -> None:
        nonlocal calls
        calls += 1
        known["bob"] = make_user("bob", "secret", False, {})
        if calls == 1:
            users.save(tmp_path, {"ann": known["ann"]})

    asyncio.run(who.change(change, "root"))
    assert calls == 2
    assert sorted(users.load(tmp_path)) == sorted(who.current()) == ["ann", "bob"]


def test_a_change_that_others_always_overtake_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)

    def change(known: dict[str, User]) -> None:
        users.save(tmp_path, {**users.load(tmp_path)})

    with pytest.raises(UsersError, match="others change the users all the time"):
        asyncio.run(who.change(change, "root"))


def test_commands_change_the_users_one_after_the_other(tmp_path: Path) -> None:
    ann, eve = (make_user(name, "secret", False, {}) for name in ("ann", "eve"))

    def add_eve() -> None:
        users.edit(tmp_path, lambda known: known.update(eve=eve))

    other = threading.Thread(target=add_eve)

    def add_ann(known: dict[str, User]) -> None:
        other.start()  # it waits for this change, however late it looks
        known["ann"] = ann

    users.edit(tmp_path, add_ann)
    other.join(PATIENCE_S)
    assert sorted(users.load(tmp_path)) == ["ann", "eve"]


def test_a_change_has_its_author_whoever_sees_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients log in all the time, also between the moment a file is replaced and the moment its
    author's request goes on."""
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)
    who.current()
    save = users.save
    authors: list[tuple[str, list[str]]] = []

    def save_and_see(folder: Path, known: dict[str, User]) -> None:
        save(folder, known)
        who.current()  # as a log-in would

    def note(before: dict[str, User], after: dict[str, User], by: str) -> None:
        authors.append((by, sorted(before.keys() ^ after.keys())))

    def add_bob(known: dict[str, User]) -> None:
        known["bob"] = make_user("bob", "secret", False, {"*": Permission()})

    monkeypatch.setattr(users, "save", save_and_see)
    monkeypatch.setattr(users, "users_changed", note)
    asyncio.run(who.change(add_bob, "guest"))
    monkeypatch.undo()
    monkeypatch.setattr(users, "users_changed", note)
    add(tmp_path, "eve", "secret")
    who.current()
    assert authors == [("guest", ["bob"]), (BY_FILE, ["eve"])]


def test_a_password_that_was_changed_while_its_check_waited_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)

    async def play() -> None:
        asked = [
            asyncio.create_task(who.check("ann", f"secret{n or ''}", "127.0.0.1"))
            for n in range(AT_A_TIME + 1)
        ]
        await asyncio.sleep(0)  # each has read the file
        add(tmp_path, "ann", "changed")
        assert await asyncio.gather(*asked) == [None] * len(asked)

    asyncio.run(play())


def test_a_proof_for_keys_of_an_earlier_password_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "ann", "secret")
    who = Users(tmp_path)
    keys = who.scram_of("ann", "127.0.0.1")

    def proven() -> bool:
        found = asyncio.run(who.check_proof("ann", "127.0.0.1", keys, lambda: True))
        return found is not None

    assert proven()
    add(tmp_path, "ann", "changed")
    assert not proven()


@pytest.mark.parametrize("at", ["user", "permission", "topic permission", "keys"])
def test_what_a_newer_version_says_of_a_user_is_refused(tmp_path: Path, at: str) -> None:
    """It may take rights away. It was passed over, and lost with the next change."""
    made = make_user("ann", "x", False, {"/": Permission()})
    topics = {"/": {"amq.topic": TopicPermission("^a", "^b")}}
    users.save(tmp_path, {"ann": msgspec.structs.replace(made, topics=topics)})
    said = json.loads((tmp_path / users.FILE).read_text())
    places: dict[str, dict[str, object]] = {
        "user": said[0],
        "permission": said[0]["vhosts"]["/"],
        "topic permission": said[0]["topics"]["/"]["amq.topic"],
        "keys": said[0]["scram"],
    }
    users.load(tmp_path)
    places[at]["delete"] = "^a"
    (tmp_path / users.FILE).write_text(json.dumps(said))
    with pytest.raises(UsersError, match=r"users\.json: .* unknown field `delete`"):
        users.load(tmp_path)


def test_a_damaged_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / users.FILE).write_text('[{"name": "ann"}]')
    with pytest.raises(UsersError, match=r"users\.json"):
        check(Users(tmp_path), "guest", "guest")


@pytest.mark.parametrize(
    ("name", "password", "pattern"), [("", "x", ".*"), ("x", "", ".*"), ("x", "x", "(")]
)
def test_what_is_no_user_is_refused(name: str, password: str, pattern: str) -> None:
    with pytest.raises(UsersError):
        make_user(name, password, False, {"*": Permission(configure=pattern)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_disk_without_room_is_told_with_the_file_and_nothing_is_left(tmp_path: Path) -> None:
    users.save(tmp_path, {})
    (tmp_path / f"users.json.{os.getpid()}.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as refused:
        add(tmp_path, "ann", "secret")
    assert refused.value.filename == str(tmp_path / "users.json")
    assert [path.name for path in tmp_path.iterdir()] == ["users.json"]
    assert users.load(tmp_path) == {}


def test_a_file_that_root_writes_belongs_to_the_folders_owner(tmp_path: Path) -> None:
    """As root's own, with mode 600, it let nobody in: the broker could not read it."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    os.chown(folder, 4711, 4712)
    add(folder, "ann", "secret")
    found = (folder / users.FILE).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (4711, 4712, 0o600)
