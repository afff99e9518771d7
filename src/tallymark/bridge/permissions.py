"""Permissions of users, in RabbitMQ's form: three regular expressions per virtual host. All
protocols check them here, before each operation: revoked rights end for open connections, too
[Access.follow].

    configure   make and delete the thing
    write       publish to an exchange, bind something *to* the thing
    read        consume, get, purge; bind something *from* the exchange

A pattern matches anywhere in the name; the empty pattern matches only the empty name, and one that
is refused (engine/patterns.py) matches nothing. The default exchange is known here as `amq.default`
[rabbitmq access control].

A user's routing keys may be limited as well, on one topic exchange by one: by a pattern for those
it publishes with (write), and one for those it binds with (read) [rabbitmq topic authorisation].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, final

from tallymark.bridge.scopes import EVERYTHING, Scopes
from tallymark.engine.errors import AccessRefused, PreconditionFailed
from tallymark.engine.exchange import Exchange
from tallymark.engine.patterns import EMPTY, Pattern, PatternRefused, compile_pattern

CONFIGURE: Final = 0
WRITE: Final = 1
READ: Final = 2

EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
ANY_VHOST: Final = "*"
TOPIC: Final = "topic"
"""Type of the exchanges whose routing keys may be limited."""
ENTER: Final = 3
"""Operation on a virtual host: to enter it."""
VHOST: Final = "vhost"
Topics = dict[str, dict[str, tuple[str, str]]]
"""Patterns (write, read) of the routing keys that a user may use, by virtual host and exchange."""
OnDenied = Callable[["Access", str, str, int], None]
REMEMBERED: Final = 4096
"""Number of decisions cached per connection."""


def check_vhost_name(name: str) -> None:
    """Check the name of a virtual host that is to be made. Raises PreconditionFailed: permissions
    in it would be permissions in all, or it is empty, and no path names it."""
    if not name:
        raise PreconditionFailed("vhost '', expected a name that is not empty")
    if name == ANY_VHOST:
        raise PreconditionFailed(f"vhost '{name}', expected a name: permissions take it for all")


@final
class Permissions:
    """A user and, per virtual host, the patterns (configure, write, read). Immutable."""

    __slots__ = ("impersonates", "scopes", "topics", "user", "vhosts")

    def __init__(
        self,
        user: str,
        vhosts: dict[str, tuple[str, str, str]],
        impersonates: bool = False,
        scopes: Scopes | None = None,
        topics: Topics | None = None,
    ) -> None:
        self.user = user
        self.vhosts = vhosts
        """Patterns by virtual host; `*` stands for all that are not named."""
        self.impersonates = impersonates
        """True if the user may publish messages with another user's user-id
        [rabbitmq impersonator]."""
        self.scopes = scopes
        """The rights of a token, in place of `vhosts` and `topics`; None: the user did not come by
        a token. These can be renewed by another token while the connection is open."""
        self.topics = topics or {}
        """Limits of routing keys; an exchange that is not named has none."""

    @staticmethod
    def all(user: str) -> Permissions:
        """Return permissions for everything."""
        return Permissions(user, {ANY_VHOST: (".*", ".*", ".*")})

    def patterns(self, vhost: str) -> tuple[str, str, str] | None:
        """Return the patterns for a virtual host; None: no access to it."""
        if self.scopes is not None:
            return self.scopes.patterns(vhost)
        found = self.vhosts.get(vhost)
        return self.vhosts.get(ANY_VHOST) if found is None else found

    def limits_keys(self, vhost: str) -> bool:
        """Return whether there are exchanges in the virtual host on which not every routing key may
        be used."""
        return self.scopes is not None or vhost in self.topics

    def keys(self, vhost: str, exchange: str, operation: int) -> str:
        """Return the pattern of the routing keys that go with WRITE or READ on a topic exchange."""
        if self.scopes is not None:
            return self.scopes.keys(vhost, exchange, operation)
        patterns = self.topics.get(vhost, {}).get(exchange)
        if patterns is None:
            return EVERYTHING
        write, read = patterns
        return expanded(write if operation == WRITE else read, self.user, vhost)


@final
class Access:
    """One user's permissions in one virtual host, with cached decisions."""

    __slots__ = (
        "_keys",
        "_known",
        "_patterns",
        "_permissions",
        "impersonates",
        "limits_keys",
        "on_denied",
        "peer",
        "user",
        "vhost",
    )

    def __init__(
        self,
        user: str,
        vhost: str,
        patterns: tuple[str, str, str],
        impersonates: bool = False,
        on_denied: OnDenied | None = None,
        peer: str = "",
    ) -> None:
        self.user = user
        self.vhost = vhost
        self.impersonates = impersonates
        self.on_denied = on_denied
        """Callback for each refusal when it is decided: kind, name, operation."""
        self.peer = peer
        """Peer of the connection, for the callback."""
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self._known: dict[tuple[int, str], bool] = {}
        self._permissions: Permissions | None = None
        """The newest permissions; None: none have been followed."""
        self.limits_keys = False
        """True if not every routing key may be used on every exchange."""
        self._keys: dict[tuple[int, str], Pattern | None] = {}
        """Patterns of routing keys, by operation and exchange."""

    def follow(self, permissions: Permissions) -> None:
        """Apply changed permissions of the user. Without patterns for the virtual host nothing is
        allowed. Results kept from earlier checks must be checked again by their owner."""
        patterns = permissions.patterns(self.vhost)
        self.impersonates = permissions.impersonates
        self._patterns = [_compiled(pattern) for pattern in patterns or ()]
        self._permissions = permissions
        self.limits_keys = permissions.limits_keys(self.vhost)
        self._known.clear()
        self._keys.clear()

    @property
    def is_renewable(self) -> bool:
        """True if the rights come from a token, which another one can take the place of."""
        return self._permissions is not None and self._permissions.scopes is not None

    def allows(self, kind: str, name: str, operation: int) -> bool:
        """Return whether `check` would pass."""
        try:
            self.check(kind, name, operation)
        except AccessRefused:
            return False
        return True

    def check_entered(self) -> None:
        """Check that the user has permissions in the virtual host. Raises AccessRefused."""
        if not self._patterns:
            raise AccessRefused(f"access to vhost '{self.vhost}' refused for user '{self.user}'")

    def may_claim(self, user_id: str) -> bool:
        """Return whether messages may name this user as theirs [rabbitmq validated user-id]."""
        return self.impersonates or user_id == self.user

    def check(self, kind: str, name: str, operation: int) -> None:
        """Check that the user may do this to the exchange or queue. Raises AccessRefused."""
        shown = name if name or kind == QUEUE else "amq.default"
        key = (operation, shown)
        allowed = self._known.get(key)
        if allowed is None:
            pattern = self._patterns[operation] if self._patterns else None
            allowed = pattern is not None and pattern.matches(shown)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = allowed
            if not allowed and self.on_denied is not None:
                self.on_denied(self, kind, shown, operation)
        if not allowed:
            raise AccessRefused(
                f"access to {kind} '{shown}' in vhost '{self.vhost}' refused for user '{self.user}'"
            )

    def check_key(self, exchange: str, key: str, operation: int) -> None:
        """Raises AccessRefused unless the user may do that to a topic exchange with this routing
        key [rabbitmq topic authorisation]."""
        permissions = self._permissions
        if permissions is None or not self.limits_keys:
            return
        place = (operation, exchange)
        if place not in self._keys:
            if len(self._keys) >= REMEMBERED:
                self._keys.clear()
            self._keys[place] = _compiled(permissions.keys(self.vhost, exchange, operation))
        pattern = self._keys[place]
        if pattern is None or not pattern.matches(key):
            self._refuse_keys(exchange, f"routing key {key}", f"topic '{key}'", operation)

    def check_all_keys(self, exchange: str, operation: int) -> None:
        """Raises AccessRefused unless the user may do that to a topic exchange with every routing
        key."""
        permissions = self._permissions
        if permissions is None or not self.limits_keys:
            return
        if permissions.keys(self.vhost, exchange, operation) != EVERYTHING:
            self._refuse_keys(exchange, "all routing keys", "all topics", operation)

    def _refuse_keys(self, exchange: str, keys: str, topics: str, operation: int) -> None:
        """Report the refusal of these routing keys. Raises AccessRefused."""
        if self.on_denied is not None:
            self.on_denied(self, EXCHANGE, f"{exchange} with {keys}", operation)
        raise AccessRefused(
            f"access to {topics} in exchange '{exchange}' in vhost '{self.vhost}' refused "
            f"for user '{self.user}'"
        )


def check_keys(
    access: Access, exchange: Exchange | None, keys: Iterable[str], operation: int
) -> None:
    """Raises AccessRefused unless the user may do that to the exchange with all of these routing
    keys: they count for topic exchanges only."""
    if access.limits_keys and exchange is not None and exchange.routes_as == TOPIC:
        for key in keys:
            access.check_key(exchange.name, key, operation)


def check_forwarding(
    access: Access, name: str, exchange: Exchange | None, key: str | None = None
) -> None:
    """Raises AccessRefused unless the user may have messages routed on to the exchange of that
    name: with this routing key, or with their own, which others may have chosen. An exchange that
    is not there may be made as one of topics."""
    if exchange is not None and exchange.routes_as != TOPIC:
        return
    if key is None:
        access.check_all_keys(name, WRITE)
    else:
        access.check_key(name, key, WRITE)


def refuse_entry(
    permissions: Permissions, vhost: str, on_denied: OnDenied | None, peer: str
) -> str:
    """Report that the user must not enter; return the text for the client."""
    if on_denied is not None:
        on_denied(Access(permissions.user, vhost, ("", "", ""), peer=peer), VHOST, vhost, ENTER)
    return f"access to vhost '{vhost}' refused for user '{permissions.user}'"


def expanded(pattern: str, user: str, vhost: str) -> str:
    """Return a pattern of routing keys with the names that `{username}` and `{vhost}` stand for; a
    name matches itself, whatever its letters are in a pattern [rabbitmq topic authorisation]."""
    return pattern.replace("{username}", re.escape(user)).replace("{vhost}", re.escape(vhost))


def _compiled(pattern: str) -> Pattern | None:
    """Return the compiled pattern; None: it is refused, and allows nothing."""
    try:
        return compile_pattern(pattern or EMPTY)
    except PatternRefused:
        return None
