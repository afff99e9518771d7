"""Users: salted scrypt hashes and permissions in the data folder's users.json.

The file is replaced atomically and readable by its owner only. A running broker reads it again when
it changed, so `tallymark user` needs no connection to it. While no users are configured there is
guest/guest; a broker with users of its own has no guest unless one is added. guest/guest gets in
from loopback only.

Users that come from RabbitMQ keep RabbitMQ's hashes: SHA-256 or SHA-512 over a salt of 4 bytes and
the password. These are weaker against whoever reads the file; a new password gets a scrypt hash,
and keys for SCRAM beside it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tallymark.bridge.permissions import Permissions
from tallymark.bridge.scopes import Scopes
from tallymark.engine.patterns import problem_of
from tallymark.journal.files import OUT_OF_FILES
from tallymark.server.access import scram
from tallymark.server.access.audit import BY_FILE, token_refused, users_changed
from tallymark.server.access.logins import Logins
from tallymark.server.access.scram import ScramKeys, make_keys
from tallymark.server.config.settings import is_loopback
from tallymark.server.logs import log_of

if TYPE_CHECKING:
    from tallymark.server.access.tokens import Tokens

log = log_of("server")

FILE: Final = "users.json"
COST: Final = 2**14
"""scrypt's N: 16 MiB and about 30 ms a login. Stored with each hash, so it may be raised."""
BLOCK: Final = 8
PARALLEL: Final = 1
GUEST: Final = "guest"
ADMINISTRATOR: Final = "administrator"
"""The tag that makes one. Of the others, see `User.tags`."""
IMPERSONATOR: Final = "impersonator"
MONITORING: Final = "monitoring"
SCRYPT: Final = "scrypt"
NO_PASSWORD: Final = "none"
"""A user that cannot log in by password."""
RABBITMQ_DIGESTS: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}
RABBITMQ_SALT: Final = 4
SCRYPT_SALT: Final = 16


class UsersError(Exception):
    """The users file or a command on it is refused; the text says why."""


class Permission(msgspec.Struct, frozen=True):
    """Regular expressions on the names that a user may configure, write and read, as RabbitMQ's."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


class User(msgspec.Struct, frozen=True):
    """One user. By `algorithm`, hash is scrypt(password, salt, cost, block, parallel), 32 bytes, or
    RabbitMQ's digest(salt + password)."""

    name: str
    salt: bytes
    hash: bytes
    cost: int = COST
    block: int = BLOCK
    parallel: int = PARALLEL
    administrator: bool = False
    vhosts: dict[str, Permission] = {}
    algorithm: str = SCRYPT
    tags: tuple[str, ...] = ()
    """RabbitMQ's words besides administrator. `monitoring` lets see every virtual host over HTTP,
    `policymaker` set policies, `impersonator` publish messages with another user's user-id; others
    are kept and mean nothing."""

    scram: ScramKeys | None = None
    """Keys for SCRAM-SHA-256, made when the password was set here; None: the user cannot log in by
    SCRAM."""

    def accepts(self, password: str) -> bool:
        """Return whether this is the password; an empty one never is, whatever the hash says. Takes
        the time of one scrypt; call it off the loop."""
        hashed = _scrypt(password, self.salt, self.cost, self.block, self.parallel)
        digest = RABBITMQ_DIGESTS.get(self.algorithm)
        if digest is not None:
            hashed = hashlib.new(digest, self.salt + password.encode()).digest()
        usable = self.algorithm != NO_PASSWORD and password != ""
        return hmac.compare_digest(self.hash, hashed) and usable

    @property
    def all_tags(self) -> list[str]:
        return [ADMINISTRATOR, *self.tags] if self.administrator else list(self.tags)

    def exported(self) -> tuple[str, str]:
        """Hash and algorithm as texts: RabbitMQ's where it is one of RabbitMQ's."""
        if self.algorithm == NO_PASSWORD:
            return "", "rabbit_password_hashing_sha256"
        text = base64.b64encode(self.salt + self.hash).decode()
        if self.algorithm == SCRYPT:
            return text, f"{SCRYPT}:{self.cost}:{self.block}:{self.parallel}"
        return text, self.algorithm


class TokenUser(User, frozen=True):
    """A token's user: known for as long as the token holds, and in no file."""

    scopes: Scopes | None = None
    expires_ms: int = 0
    """Milliseconds since 1970."""


GUEST_USER: Final = User(GUEST, b"", b"", administrator=True, vhosts={"*": Permission()})


@functools.cache
def guest_keys() -> ScramKeys:
    return make_keys(GUEST, secrets.token_bytes(scram.SALT), 4096)


_NOBODY: Final = User("", secrets.token_bytes(16), secrets.token_bytes(32))
"""Stand-in for a user that does not exist, so that refusing takes as long as for one that does."""


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
        check_permission(vhost, permission)
    salt = secrets.token_bytes(SCRYPT_SALT)
    hashed = _scrypt(password, salt, COST, BLOCK, PARALLEL)
    keys = make_keys(password, secrets.token_bytes(scram.SALT))
    return User(name, salt, hashed, administrator=administrator, vhosts=vhosts, scram=keys)


def check_permission(vhost: str, permission: Permission) -> None:
    """Raises UsersError for a pattern that is no regular expression."""
    for pattern in (permission.configure, permission.write, permission.read):
        problem = problem_of(pattern)
        if problem:
            raise UsersError(f"permission {problem}, in vhost {vhost!r}")


def hashed_user(name: str, password_hash: str, algorithm: str) -> User:
    """A user without rights, with a hash as `exported` shows it; an empty hash: no password.

    Raises:
        UsersError: the name is refused, the algorithm unknown, or the hash none of it.
    """
    check_name(name)
    if not password_hash:
        return User(name, b"", b"", algorithm=NO_PASSWORD)
    kind, *numbers = algorithm.split(":")
    digest = RABBITMQ_DIGESTS.get(algorithm)
    if digest is None and (kind != SCRYPT or len(numbers) != 3):
        known = ", ".join([*RABBITMQ_DIGESTS, f"{SCRYPT}:COST:BLOCK:PARALLEL"])
        raise UsersError(f"user {name!r}: password hash of kind {algorithm!r}, expected {known}")
    salt_size = SCRYPT_SALT if digest is None else RABBITMQ_SALT
    size = salt_size + (32 if digest is None else hashlib.new(digest).digest_size)
    try:
        raw = base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsersError(f"user {name!r}: password hash is no base64: {error}") from error
    if len(raw) != size:
        raise UsersError(f"user {name!r}: password hash of {len(raw)} bytes, expected {size}")
    salt, hashed = raw[:salt_size], raw[salt_size:]
    if digest is not None:
        return User(name, salt, hashed, algorithm=algorithm)
    if not all(number.isascii() and number.isdigit() and len(number) < 9 for number in numbers):
        raise UsersError(f"user {name!r}: {algorithm!r}, expected numbers after {SCRYPT}")
    cost, block, parallel = map(int, numbers)
    powers = [1 << n for n in range(1, 21)]
    too_high = block == 1 and cost >= 1 << 16  # RFC 7914: below 2^(16 * block)
    if cost not in powers or not 1 <= block <= 32 or not 1 <= parallel <= 16 or too_high:
        raise UsersError(
            f"user {name!r}: {algorithm!r}, expected a cost of 2 to 2^20 that is a power of 2 "
            "(below 2^16 with block 1), block 1 to 32, parallel 1 to 16"
        )
    return User(name, salt, hashed, cost, block, parallel)


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
        raise UsersError(f"{file}: {error}") from error
    return {user.name: user for user in users}


def save(folder: Path, users: dict[str, User]) -> None:
    """Replace the file."""
    data = msgspec.json.format(msgspec.json.encode(list(users.values())), indent=1)
    replace_file(folder, FILE, data)


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """A file of the data folder: written aside with mode 600, synced, renamed, the folder
    synced."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = folder / f"{name}.{os.getpid()}.new"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / name)
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
        self.tokens = tokens
        self._stamp: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}
        self._all_scram = True
        self._has_looked = False
        self._by = BY_FILE
        """Author of the change of users under way."""
        self._key = secrets.token_bytes(32)
        self._logins = Logins()
        self._changing = asyncio.Lock()
        self.observers: list[Callable[[], None]] = []
        """Called when the users are others than before, after that."""

    def current(self) -> dict[str, User]:
        """Return the users as the file has them now; the file is read again only when it changed.

        Raises:
            UsersError: the file cannot be read as users; nobody logs in until it can.
        """
        stamp = _stamp(self._folder / FILE)
        if stamp != self._stamp:
            try:
                found = load(self._folder)
            except UsersError as error:
                reason = error.__cause__
                if isinstance(reason, OSError) and reason.errno in OUT_OF_FILES and self._stamp:
                    return self._users  # for now: it is read as soon as a file can be opened
                raise
            before, self._users = self._users, found
            self._stamp = stamp
            if self._has_looked:
                users_changed(before, self._users, self._by)
            self._all_scram = all(
                user.scram is not None or user.algorithm == NO_PASSWORD
                for user in self._users.values()
            )
            self._logins.forget()
            _tell_problems(self._users)
            for observer in self.observers:
                observer()
        self._has_looked = True
        return self._users

    @property
    def asks_everybody(self) -> bool:
        """True if everybody has to log in: not while guest is the only user and there are no
        tokens. Raises UsersError."""
        return self.tokens is not None or bool(self.current())

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
        users = self.current()
        if not is_loopback(peer) and (not users or name == GUEST):
            found = None
        elif not users:
            found = guest_keys() if name == GUEST and self.tokens is None else None
        else:
            user = users.get(name)
            found = None if user is None else user.scram
        if found is not None:
            return found
        salt = hmac.digest(self._key, name.encode("utf-8", "replace"), "sha256")[: scram.SALT]
        return ScramKeys(salt, scram.ITERATIONS, secrets.token_bytes(32), secrets.token_bytes(32))

    def named(self, name: str) -> User | None:
        """Return a user whose identity is already proven; guest where no users are configured.
        Raises UsersError.

        Raises UsersError.
        """
        users = self.current()
        if not users and self.tokens is None:
            return GUEST_USER if name == GUEST else None
        return users.get(name)

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
        if not users and self.tokens is None:
            guest = name == GUEST and password == GUEST and is_loopback(peer)
            return GUEST_USER if guest else None
        if name == GUEST and password == GUEST and not is_loopback(peer):
            return None
        user = users.get(name, _NOBODY)

        async def accepts() -> bool:
            return await asyncio.to_thread(user.accepts, password) and user is not _NOBODY

        accepted = await self._logins.check(name, user.salt, password, peer, accepts)
        return user if accepted else None

    async def _check_token(self, tokens: Tokens, token: str, peer: str) -> User | None:
        """Return a token's user. Its signature is checked at once: nobody guesses one, so that
        nobody needs to wait."""
        from tallymark.server.access.tokens import TokenRefused

        try:
            return await tokens.check(token)
        except TokenRefused as error:
            token_refused(peer, str(error))
            return None

    async def renew(self, before: User | None, secret: str, peer: str) -> User | None:
        """Return the user of a token that takes the place of an earlier one; None: it is worth
        nothing, or another user's [rabbitmq]."""
        tokens = self.tokens
        if tokens is None or not isinstance(before, TokenUser):
            return None
        user = await self._check_token(tokens, secret, peer)
        if user is not None and user.name != before.name:
            token_refused(peer, f"it is of user '{user.name}', expected '{before.name}'")
            return None
        return user

    async def check_proof(self, name: str, peer: str, verify: Callable[[], bool]) -> User | None:
        """Return the user if its proof is right, else None; after the same delays as a password.
        Raises UsersError."""

        async def accepts() -> bool:
            return verify() and self.named(name) is not None

        return self.named(name) if await self._logins.attempt(name, peer, accepts) else None

    async def change(
        self, change: Callable[[dict[str, User]], None], by: str, keep_guest: bool = True
    ) -> None:
        """Have `change` alter the users, and keep what comes of it; one change at a time. by: who
        wants it.

        keep_guest: the first change makes a user of the guest/guest there was, so that whoever
        asked for it is not locked out by it.

        Raises:
            UsersError: the file cannot be read, nobody would be left, or whatever `change` raises;
                nothing has changed.
        """
        async with self._changing:
            users = dict(self.current())
            if not users and keep_guest and self.tokens is None:
                users[GUEST] = await asyncio.to_thread(
                    make_user, GUEST, GUEST, True, {"*": Permission()}
                )
            change(users)
            if not users:
                raise UsersError("no user would be left, expected at least one")
            await asyncio.to_thread(save, self._folder, users)
            self._by = by
            try:
                self.current()
            finally:
                self._by = BY_FILE


def _tell_problems(users: dict[str, User]) -> None:
    """Log the patterns that nothing matches, since they are refused today."""
    for user in users.values():
        for vhost, permission in user.vhosts.items():
            try:
                check_permission(vhost, permission)
            except UsersError as error:
                log.warning("permission.without_effect", user=user.name, reason=str(error))


def permission_in(user: User, vhost: str) -> Permission | None:
    """Return the user's permissions in a virtual host; None: may not enter it."""
    if isinstance(user, TokenUser):
        patterns = permissions_of(user).patterns(vhost)
        return None if patterns is None else Permission(*patterns)
    return user.vhosts.get(vhost) or user.vhosts.get("*")


def sees_everything(user: User) -> bool:
    return user.administrator or MONITORING in user.tags


def sees(user: User, vhost: str) -> bool:
    """Return whether lists and metrics show the user the contents of a virtual host."""
    return sees_everything(user) or permission_in(user, vhost) is not None


def permissions_of(user: User) -> Permissions:
    """Return the user's permissions in the form that bridges need."""
    return Permissions(
        user.name,
        {name: (p.configure, p.write, p.read) for name, p in user.vhosts.items()},
        IMPERSONATOR in user.tags,
        user.scopes if isinstance(user, TokenUser) else None,
    )


def is_token(text: str) -> bool:
    """Return whether a password has a token's form: base64 of a JSON object, and dots [RFC 7515
    §3.1]. One that is encrypted (four dots) has it, too, and is refused."""
    return text.startswith("ey") and text.count(".") in (2, 4)


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel,
        maxmem=128 * block * (cost + parallel + 2), dklen=32,
    )  # fmt: skip


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
