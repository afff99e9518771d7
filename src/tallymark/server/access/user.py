"""A user: a name, a hash of a password, tags, and permissions in virtual hosts.

Users of the file are in users.py, those of tokens in tokens.py."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from tallymark.bridge.permissions import Permissions, expanded
from tallymark.bridge.scopes import Scopes
from tallymark.engine.patterns import problem_of
from tallymark.server.access import scram
from tallymark.server.access.scram import ScramKeys, make_keys

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


class Permission(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Regular expressions on the names that a user may configure, write and read, as RabbitMQ's."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


class TopicPermission(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Regular expressions on the routing keys with which a user may publish to a topic exchange and
    bind from it, as RabbitMQ's; `{username}` and `{vhost}` stand for these names."""

    write: str = ".*"
    read: str = ".*"


class User(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
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

    topics: dict[str, dict[str, TopicPermission]] = {}
    """Limits of routing keys, by virtual host and exchange; never an empty one. An exchange without
    has no limits."""

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
NOBODY: Final = User("", secrets.token_bytes(16), secrets.token_bytes(32))
"""Stand-in for a user that does not exist, so that refusing takes as long as for one that does."""


@functools.cache
def guest_keys() -> ScramKeys:
    return make_keys(GUEST, secrets.token_bytes(scram.SALT), 4096)


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


def tags_from(value: object) -> list[str]:
    """Return the tags in a list of texts, or in one text with commas. Raises UsersError."""
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
        raise UsersError(f"tags is {value!r}, expected a list of texts, or one text with commas")
    return [tag.strip() for tag in found if tag.strip()]


def tagged(user: User, tags: list[str]) -> User:
    """Return the user with these tags and no others."""
    rest = tuple(tag for tag in tags if tag != ADMINISTRATOR)
    return msgspec.structs.replace(user, administrator=ADMINISTRATOR in tags, tags=rest)


def in_place_of(user: User, there: User | None) -> User:
    """Return a user who takes the place of another one of the name: with the permissions of that
    one, and where the password is the same with its keys for SCRAM, which no hash has."""
    if there is None:
        return user
    is_same = user.scram is None and user.exported() == there.exported()
    return msgspec.structs.replace(
        user, vhosts=there.vhosts, topics=there.topics, scram=there.scram if is_same else user.scram
    )


def limited(user: User, vhost: str, topics: dict[str, TopicPermission]) -> User:
    """Return the user with these limits of routing keys in a virtual host, by exchange, in place of
    others there."""
    rest = {name: found for name, found in user.topics.items() if name != vhost}
    return msgspec.structs.replace(user, topics={**rest, vhost: topics} if topics else rest)


def without_vhost(user: User, vhost: str) -> User:
    """Return the user without anything that is said of a virtual host by its name."""
    rest = {name: found for name, found in user.vhosts.items() if name != vhost}
    return msgspec.structs.replace(limited(user, vhost, {}), vhosts=rest)


def check_permission(vhost: str, permission: Permission) -> None:
    """Raises UsersError for a pattern that is no regular expression."""
    for pattern in (permission.configure, permission.write, permission.read):
        problem = problem_of(pattern)
        if problem:
            raise UsersError(f"permission {problem}, in vhost {vhost!r}")


def check_topic_permission(vhost: str, exchange: str, permission: TopicPermission) -> None:
    """Raises UsersError for a pattern that is no regular expression, whatever names it is about."""
    for pattern in (permission.write, permission.read):
        problem = problem_of(expanded(pattern, "user", vhost))
        if problem:
            raise UsersError(f"topic permission {problem}, on exchange {exchange!r} in {vhost!r}")


def rabbitmq_hash(password: str) -> str:
    """Return a hash of a password as RabbitMQ makes it, with a fresh salt; `hashed_user` takes
    it."""
    salt = secrets.token_bytes(RABBITMQ_SALT)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


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
        {
            vhost: {exchange: (one.write, one.read) for exchange, one in exchanges.items()}
            for vhost, exchanges in user.topics.items()
        },
    )


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel,
        maxmem=128 * block * (cost + parallel + 2), dklen=32,
    )  # fmt: skip


class TokenRefused(Exception):
    """A token is worth nothing; the text says why and shows none of it."""
