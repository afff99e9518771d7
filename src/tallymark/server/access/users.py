"""Users: salted scrypt hashes and permissions in the data folder's users.json.

The file is replaced atomically and readable by its owner only. A running broker reads it again when
it changed, so `tallymark user` needs no connection to it. Whoever changes it holds a lock on the
folder from the look at what it replaces on, so that no change undoes another one. While no users
are configured there is guest/guest; a broker with users of its own has no guest unless one is
added. guest/guest gets in from loopback only. A broker that has had users does not fall back to
guest: a start looks at where it listens, and this one may listen for others.

Users that come from RabbitMQ keep RabbitMQ's hashes: SHA-256 or SHA-512 over a salt of 4 bytes and
the password. These are weaker against whoever reads the file; a new password gets a scrypt hash,
and keys for SCRAM beside it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tallymark.journal.files import OUT_OF_FILES, Named
from tallymark.server.access import scram
from tallymark.server.access.audit import BY_FILE, token_refused, users_changed
from tallymark.server.access.logins import Logins
from tallymark.server.access.scram import ScramKeys, make_keys
from tallymark.server.access.user import (
    GUEST,
    GUEST_USER,
    NO_PASSWORD,
    NOBODY,
    Permission,
    TokenRefused,
    TokenUser,
    User,
    UsersError,
    check_permission,
    check_topic_permission,
    guest_keys,
    make_user,
)
from tallymark.server.config.kinds import is_loopback
from tallymark.server.loading import NotLoaded
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from tallymark.server.access.tokens import Tokens

log = log_of("server")

FILE: Final = "users.json"
REMEDY: Final = (
    "Mend the file, or put back that of a backup; without it a start has guest alone, from "
    "loopback. A field that is not known is of a newer version"
)
"""Remedy for a damaged file."""
ATTEMPTS: Final = 20
"""Attempts at a change that another process overtakes."""
Stamp = tuple[int, int, int]
"""Inode, time and size of the file."""


def load(folder: Path) -> dict[str, User]:
    """Return all users of a data folder; empty while none are configured.

    Raises:
        UsersError: the file is there but cannot be read as users.
    """
    file = folder / FILE
    try:
        users = msgspec.json.decode(file.read_bytes(), type=list[User])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise UsersError(f"{file}: {error}. {REMEDY}") from error
    return {user.name: user for user in users}


def save(folder: Path, users: dict[str, User]) -> None:
    """Replace the file."""
    data = msgspec.json.format(msgspec.json.encode(list(users.values())), indent=1)
    replace_file(folder, FILE, data)


def edit(folder: Path, change: Callable[[dict[str, User]], None]) -> None:
    """Have `change` alter the users of a data folder, which nobody else changes meanwhile. Raises
    UsersError, OSError, and what `change` raises: then nothing has changed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(folder):
        users = load(folder)
        change(users)
        save(folder, users)


def save_over(folder: Path, users: dict[str, User], seen: Stamp | None) -> bool:
    """Replace the file that was seen with this stamp. False: it is another one by now."""
    with _alone(folder):
        if _stamp(str(folder / FILE)) != seen:
            return False
        save(folder, users)
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep everybody else who changes the users of a data folder waiting. Where its file system has
    no such locks, as over a network, nobody waits."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """A file of the data folder: written aside with mode 600, synced, renamed, the folder
    synced. Written by root it belongs to the folder's owner, as whom the broker reads it. On
    OSError nothing is left aside."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = folder / f"{name}.{os.getpid()}.new"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with Named(folder / name), os.fdopen(descriptor, "wb") as file:
            if os.geteuid() == 0:
                owner = folder.stat()
                with contextlib.suppress(PermissionError):  # root of a container, or over NFS
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / name)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Users:
    """Users that may log in to a running broker."""

    def __init__(self, folder: Path, tokens: Tokens | None = None) -> None:
        """tokens: checks those of OAuth 2; None: only passwords are taken."""
        self._folder = folder
        self._file = str(folder / FILE)
        self.tokens = tokens
        self._stamp: Stamp | None = None
        self._users: dict[str, User] = {}
        self._all_scram = True
        self._had_any = False
        """True once there was a user."""
        self._has_looked = False
        self._under_way: tuple[dict[str, User], str] | None = None
        """Users that are being written to the file, and the author of the change. Whoever looks at
        the file first finds them there, also before the change has returned."""
        self._key = secrets.token_bytes(32)
        self._logins = Logins()
        self._changing = asyncio.Lock()
        self.observers: list[Callable[[], None]] = []
        """Called when the users are others than before, after that."""

    def current(self) -> dict[str, User]:
        """Return the users as the file has them now; the file is read again only when it changed.

        Raises:
            UsersError: the file cannot be read as users, or is gone; nobody logs in until it can be
                read.
        """
        stamp = _stamp(self._file)
        if stamp != self._stamp:
            if stamp is None:
                raise UsersError(f"{self._file} is gone: nobody logs in until it is back")
            try:
                found = load(self._folder)
            except UsersError as error:
                reason = error.__cause__
                if isinstance(reason, OSError) and reason.errno in OUT_OF_FILES and self._stamp:
                    return self._users  # for now: it is read as soon as a file can be opened
                raise
            before, self._users = self._users, found
            self._stamp = stamp
            self._had_any = self._had_any or bool(found)
            if self._has_looked:
                users_changed(before, found, self._author_of(found))
            self._all_scram = all(
                user.scram is not None or user.algorithm == NO_PASSWORD
                for user in self._users.values()
            )
            _tell_problems(self._users)
            for observer in self.observers:
                observer()
        self._has_looked = True
        return self._users

    def _author_of(self, found: dict[str, User]) -> str:
        if self._under_way is not None and found == self._under_way[0]:
            return self._under_way[1]
        return BY_FILE

    def _has_guest(self) -> bool:
        """Return whether guest/guest is the only user: nobody was configured so far, and there are
        no tokens. Raises UsersError."""
        return not self.current() and not self._had_any and self.tokens is None

    @property
    def asks_everybody(self) -> bool:
        """True if everybody has to log in: not while guest is the only user. Raises UsersError."""
        return not self._has_guest()

    def offers_scram(self) -> bool:
        """Return whether every user with a password can log in by SCRAM: clients that choose the
        strongest mechanism offered would keep the others out. Tokens come as passwords."""
        if self.tokens is not None:
            return False
        try:
            self.current()
        except UsersError:
            return False
        return self._all_scram

    def scram_of(self, name: str, peer: str) -> ScramKeys:
        """Return a user's SCRAM keys; for a user without keys, or an unknown one, keys that no
        password fits, with a salt that is always the same, so that log-ins do not reveal which
        users exist. Raises UsersError."""
        user = self.current().get(name)
        found = None if user is None else user.scram
        if self._has_guest() and name == GUEST and is_loopback(peer):
            found = guest_keys()
        if found is not None:
            return found
        salt = hmac.digest(self._key, name.encode("utf-8", "replace"), "sha256")[: scram.SALT]
        return ScramKeys(salt, scram.ITERATIONS, secrets.token_bytes(32), secrets.token_bytes(32))

    def named(self, name: str) -> User | None:
        """Return a user whose identity is already proven; guest where no users are configured.
        Raises UsersError."""
        if self._has_guest():
            return GUEST_USER if name == GUEST else None
        return self.current().get(name)

    def as_now(self, user: User) -> User | None:
        """Return a user who has logged in, with the rights of now; None: deleted, or the token has
        expired.

        Raises UsersError.
        """
        if not isinstance(user, TokenUser):
            return self.named(user.name)
        return None if self.tokens is None or self.tokens.has_expired(user) else user

    async def check(self, name: str, password: str, peer: str) -> User | None:
        """The user when name and password match, else None. peer: the client's address.

        One that matched is remembered for a while (logins.py): an HTTP client sends its password
        with each request.
        """
        if self.tokens is not None and is_token(password):
            return await self._check_token(self.tokens, password, peer)
        users = self.current()
        if self._has_guest():
            guest = name == GUEST and password == GUEST and is_loopback(peer)
            return GUEST_USER if guest else None
        if name == GUEST and password == GUEST and not is_loopback(peer):
            return None
        if not _is_utf8(name + password):
            return None
        user = users.get(name, NOBODY)

        async def accepts() -> bool:
            return await asyncio.to_thread(user.accepts, password) and user is not NOBODY

        accepted = await self._logins.check(name, user.salt + user.hash, password, peer, accepts)
        # The check may have waited, and the password may be another one now.
        found = self.current().get(name)
        is_as_checked = found is not None and (found.salt, found.hash) == (user.salt, user.hash)
        return found if accepted and is_as_checked else None

    async def _check_token(self, tokens: Tokens, token: str, peer: str) -> User | None:
        """Return a token's user. Its signature is checked at once: nobody guesses one, so that
        nobody needs to wait. Raises UsersError: none can be checked."""
        try:
            return await tokens.check(token)
        except TokenRefused as error:
            token_refused(peer, str(error))
            return None
        except NotLoaded as error:
            raise UsersError(str(error)) from error

    async def renew(self, before: User | None, secret: str, peer: str) -> User | None:
        """Return the user of a token that takes the place of an earlier one; None: it is worth
        nothing, or another user's [rabbitmq]. Raises UsersError."""
        tokens = self.tokens
        if tokens is None or not isinstance(before, TokenUser):
            return None
        user = await self._check_token(tokens, secret, peer)
        if user is not None and user.name != before.name:
            token_refused(peer, f"it is of user '{user.name}', expected '{before.name}'")
            return None
        return user

    async def check_proof(
        self, name: str, peer: str, keys: ScramKeys, verify: Callable[[], bool]
    ) -> User | None:
        """Return the user if its proof is right, else None; after the same delays as a password.
        keys: those that the proof is for; the user may have others by now. Raises UsersError."""

        async def accepts() -> bool:
            if not verify() or self.scram_of(name, peer) != keys:
                return False
            if name != GUEST or is_loopback(peer):
                return True
            return await asyncio.to_thread(make_keys, GUEST, keys.salt, keys.iterations) != keys

        accepted = await self._logins.attempt(name, peer, accepts)
        return self.named(name) if accepted and self.scram_of(name, peer) == keys else None

    async def settled(self) -> None:
        """Return when the changes under way are made or failed: `current` is as nobody is about to
        change it until the caller waits again."""
        async with self._changing:
            pass

    async def change(
        self, change: Callable[[dict[str, User]], None], by: str, keep_guest: bool = True
    ) -> None:
        """Have `change` alter the users, and keep what comes of it; one change at a time. by: who
        wants it.

        keep_guest: the first change makes a user of the guest/guest there was, so that whoever
        asked for it is not locked out by it.

        `change` is called again where another process has changed the users meanwhile.

        Raises:
            UsersError: the file cannot be read, nobody would be left, or whatever `change` raises;
                nothing has changed.
        """
        async with self._changing:
            for _ in range(ATTEMPTS):
                users, seen = dict(self.current()), self._stamp
                if keep_guest and self._has_guest():
                    users[GUEST] = await asyncio.to_thread(
                        make_user, GUEST, GUEST, True, {"*": Permission()}
                    )
                change(users)
                if not users:
                    raise UsersError("no user would be left, expected at least one")
                if await self._saved(users, seen, by):
                    return
            raise UsersError("others change the users all the time: try again")

    async def _saved(self, users: dict[str, User], seen: Stamp | None, by: str) -> bool:
        """Replace the users that were seen with this stamp. False: there are others by now."""
        self._under_way = users, by
        try:
            if not await asyncio.to_thread(save_over, self._folder, users, seen):
                return False
            self.current()
        finally:
            self._under_way = None
        return True


def _tell_problems(users: dict[str, User]) -> None:
    """Log the patterns that nothing matches, since they are refused today."""
    for user in users.values():
        checks: list[Callable[[], None]] = [
            *(partial(check_permission, vhost, one) for vhost, one in user.vhosts.items()),
            *(
                partial(check_topic_permission, vhost, exchange, one)
                for vhost, exchanges in user.topics.items()
                for exchange, one in exchanges.items()
            ),
        ]
        for check in checks:
            try:
                check()
            except UsersError as error:
                log.warning("permission.without_effect", user=user.name, reason=str(error))


def _is_utf8(text: str) -> bool:
    """Return whether a text came as UTF-8, as every user's name and password are. Tables of AMQP
    0-9-1 and headers of HTTP have other bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_token(text: str) -> bool:
    """Return whether a password has a token's form: base64 of a JSON object, and dots [RFC 7515
    §3.1]. One that is encrypted (four dots) has it, too, and is refused."""
    head, _, rest = text.partition(".")
    if rest.count(".") not in (1, 3):
        return False
    try:
        found = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


def _stamp(file: str) -> Stamp | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
