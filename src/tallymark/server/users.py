"""Users: salted scrypt hashes and permissions in the data folder's users.json.

The file is replaced atomically and readable by its owner only. A running broker reads it again when
it changed, so `tallymark user` needs no connection to it. While no users are configured there is
guest/guest, from loopback only; a broker with users of its own has no guest unless one is added.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from tallymark.bridge.permissions import Permissions
from tallymark.server.config import is_loopback

FILE: Final = "users.json"
COST: Final = 2**14
"""scrypt's N: 16 MiB and about 30 ms a login. Stored with each hash, so it may be raised."""
BLOCK: Final = 8
PARALLEL: Final = 1
GUEST: Final = "guest"
MAX_CHECKS: Final = 4
"""Hashes computed at a time: bounds memory and threads under a storm of logins."""


class UsersError(Exception):
    """The users file or a command on it is refused; the text says why."""


class Permission(msgspec.Struct, frozen=True):
    """Regular expressions on names, as RabbitMQ's: what may be configured, written and read."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


class User(msgspec.Struct, frozen=True):
    """One user. hash = scrypt(password, salt, cost, block, parallel), 32 bytes."""

    name: str
    salt: bytes
    hash: bytes
    cost: int = COST
    block: int = BLOCK
    parallel: int = PARALLEL
    administrator: bool = False
    vhosts: dict[str, Permission] = {}

    def accepts(self, password: str) -> bool:
        """Whether this is the password. Takes the time of one scrypt; call it off the loop."""
        return hmac.compare_digest(
            self.hash, _scrypt(password, self.salt, self.cost, self.block, self.parallel)
        )


GUEST_USER: Final = User(GUEST, b"", b"", administrator=True, vhosts={"*": Permission()})

_NOBODY: Final = User("", secrets.token_bytes(16), secrets.token_bytes(32))
"""Stands for a user that does not exist: refusing takes as long as for one that does."""


def check_name(name: str) -> None:
    """Raises UsersError for a name that no user can have."""
    if not name:
        raise UsersError("user '': expected a name that is not empty")
    if ":" in name:
        raise UsersError(
            f"user {name!r}: expected a name without ':', which ends the name in NAME:PASSWORD"
        )


def make_user(name: str, password: str, administrator: bool, vhosts: dict[str, Permission]) -> User:
    """A user with a fresh salt. vhost "*" stands for every vhost.

    Raises:
        UsersError: name or password is refused, or a permission is no regular expression.
    """
    check_name(name)
    if not password:
        raise UsersError(f"user {name!r}: expected a password that is not empty")
    for vhost, permission in vhosts.items():
        for pattern in (permission.configure, permission.write, permission.read):
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsersError(f"permission {pattern!r} in vhost {vhost!r}: {error}") from error
    salt = secrets.token_bytes(16)
    hashed = _scrypt(password, salt, COST, BLOCK, PARALLEL)
    return User(name, salt, hashed, administrator=administrator, vhosts=vhosts)


def load(folder: Path) -> dict[str, User]:
    """All users of a data folder; empty while none are configured.

    Raises:
        UsersError: the file is there but cannot be read as users.
    """
    file = folder / FILE
    try:
        users = msgspec.json.decode(file.read_bytes(), type=list[User])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise UsersError(f"{file}: {error}") from error
    return {user.name: user for user in users}


def save(folder: Path, users: dict[str, User]) -> None:
    """Replace the file: written aside with mode 600, synced, renamed, the folder synced."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{FILE}.{os.getpid()}.new"
    data = msgspec.json.format(msgspec.json.encode(list(users.values())), indent=1)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / FILE)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Users:
    """Who may log in to a running broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        self._known: dict[tuple[str, bytes], bytes] = {}
        self._key = secrets.token_bytes(32)

    def current(self) -> dict[str, User]:
        """The users as the file says now; read again only when the file changed.

        Raises:
            UsersError: the file cannot be read as users; nobody logs in until it can.
        """
        stamp = _stamp(self._folder / FILE)
        if stamp != self._stamp:
            self._users = load(self._folder)
            self._stamp = stamp
            self._known.clear()
        return self._users

    async def check(self, name: str, password: str, peer: str) -> User | None:
        """The user when name and password match, else None. peer: the client's address.

        An HTTP client sends its password with each request: one that matched is remembered as a
        keyed hash until the users file changes, so that scrypt runs once per password.
        """
        users = self.current()
        if not users:
            guest = name == GUEST and password == GUEST and is_loopback(peer)
            return GUEST_USER if guest else None
        user = users.get(name, _NOBODY)
        digest = hmac.digest(self._key, password.encode(), "sha256")
        known = self._known.get((name, user.salt))
        if known is not None and hmac.compare_digest(known, digest):
            return user
        async with self._checks:
            accepted = await asyncio.to_thread(user.accepts, password)
        if not accepted or user is _NOBODY:
            return None
        self._known[name, user.salt] = digest
        return user


def permission_in(user: User, vhost: str) -> Permission | None:
    """What the user may do in a vhost; None: may not enter it."""
    return user.vhosts.get(vhost) or user.vhosts.get("*")


def permissions_of(user: User) -> Permissions:
    """The same for a bridge."""
    return Permissions(
        user.name, {name: (p.configure, p.write, p.read) for name, p in user.vhosts.items()}
    )


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=256 * cost * block,
        dklen=32,
    )  # fmt: skip


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
