"""What a user may do, as RabbitMQ decides it: three regular expressions per virtual host. Every
face of the broker asks here, whatever its protocol, and before each operation: rights that are
taken away hold for connections that are open [Access.follow].

    configure   make and delete the thing
    write       publish to an exchange, bind something *to* the thing
    read        consume, get, purge; bind something *from* the exchange

A pattern matches anywhere in the name; the empty pattern matches only the empty name, and one that
is refused (engine/patterns.py) matches nothing. The default exchange is known here as `amq.default`
[rabbitmq access control].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.engine.errors import AccessRefused
from tallymark.engine.patterns import EMPTY, Pattern, PatternRefused, compile_pattern

CONFIGURE: Final = 0
WRITE: Final = 1
READ: Final = 2

EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
ANY_VHOST: Final = "*"
ENTER: Final = 3
"""Of a virtual host."""
VHOST: Final = "vhost"
OnDenied = Callable[["Access", str, str, int], None]
REMEMBERED: Final = 4096
"""Answers kept per connection."""


@final
class Permissions:
    """A user and, per virtual host, the patterns (configure, write, read). A value."""

    __slots__ = ("impersonates", "user", "vhosts")

    def __init__(
        self, user: str, vhosts: dict[str, tuple[str, str, str]], impersonates: bool = False
    ) -> None:
        self.user = user
        self.vhosts = vhosts
        """By virtual host; `*` stands for every one that is not named."""
        self.impersonates = impersonates
        """May publish messages whose user-id is somebody else's [rabbitmq impersonator]."""

    @staticmethod
    def all(user: str) -> Permissions:
        """May do everything everywhere."""
        return Permissions(user, {ANY_VHOST: (".*", ".*", ".*")})

    def patterns(self, vhost: str) -> tuple[str, str, str] | None:
        """The patterns that hold in a virtual host, or None: no access to it."""
        found = self.vhosts.get(vhost)
        return self.vhosts.get(ANY_VHOST) if found is None else found


@final
class Access:
    """One user's permissions in one virtual host, with the answers already given."""

    __slots__ = ("_known", "_patterns", "impersonates", "on_denied", "peer", "user", "vhost")

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
        """Is told of each refusal when it is decided: kind, name, operation."""
        self.peer = peer
        """Whose connection it is, for who is told."""
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self._known: dict[tuple[int, str], bool] = {}

    def follow(self, permissions: Permissions) -> None:
        """Take on what the user may do from now on. Without patterns for the virtual host that is
        nothing. Whoever keeps what followed from an answer has to ask again."""
        patterns = permissions.patterns(self.vhost)
        self.impersonates = permissions.impersonates
        self._patterns = [_compiled(pattern) for pattern in patterns or ()]
        self._known.clear()

    def allows(self, kind: str, name: str, operation: int) -> bool:
        """Return whether `check` would pass."""
        try:
            self.check(kind, name, operation)
        except AccessRefused:
            return False
        return True

    def check_entered(self) -> None:
        """Raises AccessRefused: the user has no permissions in the virtual host."""
        if not self._patterns:
            raise AccessRefused(f"access to vhost '{self.vhost}' refused for user '{self.user}'")

    def may_claim(self, user_id: str) -> bool:
        """Return whether messages may name this user as theirs [rabbitmq validated user-id]."""
        return self.impersonates or user_id == self.user

    def check(self, kind: str, name: str, operation: int) -> None:
        """Raises AccessRefused unless the user may do that to the exchange or queue."""
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


def refuse_entry(
    permissions: Permissions, vhost: str, on_denied: OnDenied | None, peer: str
) -> str:
    """Tell that the user must not enter; returns the text for the client."""
    if on_denied is not None:
        on_denied(Access(permissions.user, vhost, ("", "", ""), peer=peer), VHOST, vhost, ENTER)
    return f"access to vhost '{vhost}' refused for user '{permissions.user}'"


def _compiled(pattern: str) -> Pattern | None:
    """None: it is refused, and nothing is allowed by it."""
    try:
        return compile_pattern(pattern or EMPTY)
    except PatternRefused:
        return None
