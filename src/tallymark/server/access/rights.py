"""Changed users and permissions, and who is connected meanwhile.

A change reaches every open connection at once, whatever its protocol: what it may do is what the
user may do now, and a user that is gone takes the connections along, with 320 where the protocol
has that word [rabbitmq]. A change that another process made (`tallymark user`) is noticed within
EVERY_S.

HTTP requests ask anew by themselves: `HttpContext.access`, `user_of`.
"""

from __future__ import annotations

from typing import Final

from tallymark.engine.clock import NEVER
from tallymark.server.access.limits import StoredLimits
from tallymark.server.access.user import GUEST, TokenUser, User, UsersError, permissions_of
from tallymark.server.access.users import Users
from tallymark.server.client import Client, Clients
from tallymark.server.clock import wall_ms
from tallymark.server.logs import log_of
from tallymark.server.schedule import SHORTEST_S, Schedule
from tallymark.server.turns import Turns

EVERY_S: Final = 1.0

log = log_of("users")


class Rights:
    """Housekeeping task that applies changed users to open connections."""

    def __init__(
        self, turns: Turns, clients: Clients, users: Users, limits: StoredLimits, tasks: Schedule
    ) -> None:
        self._turns = turns
        self._clients = clients
        self._users = users
        self._limits = limits
        self._tasks = tasks
        self._problem = ""
        """Reason why the users could not be read at the last check; "": they could."""
        self._next_ms: int = NEVER
        """No token of an open connection expires before; milliseconds since 1970."""
        users.observers.append(self.apply)

    def period_s(self) -> float:
        """Return the time until the next token expires, at most EVERY_S."""
        wait_s = (self._next_ms - wall_ms()) / 1000
        return EVERY_S if wait_s > EVERY_S else max(wait_s, SHORTEST_S)

    async def run(self) -> None:
        """Check whether tokens have expired, and whether another process changed the users."""
        if self._next_ms <= wall_ms():
            self._expire()
        try:
            self._users.current()
        except UsersError as error:
            if str(error) != self._problem:
                log.error("users.unreadable", error=str(error))
            self._problem = str(error)
        else:
            self._problem = ""

    def came_in(self, client: Client, user: User) -> None:
        """The client has proven to be this user, or proves it anew."""
        client.subject = user
        client.has_expired = False
        if isinstance(user, TokenUser):
            self._next_ms = min(self._next_ms, user.expires_ms)
            if user.expires_ms - wall_ms() < 1000 * EVERY_S:
                self._tasks.replan()

    def _expire(self) -> None:
        """End the connections of tokens that hold no longer."""
        self._next_ms = NEVER
        self._turns.tell_time()
        for client in list(self._clients):
            user = client.subject
            if not isinstance(user, TokenUser) or client.has_expired:
                continue
            if self._users.as_now(user) is not None:
                self._next_ms = min(self._next_ms, user.expires_ms)
                continue
            client.has_expired = True
            log.info("connection.token_expired", user=user.name, peer=client.peer, id=client.id)
            try:
                client.bridge.credential_expired()
                client.touch()
            except Exception as error:  # a bug of ours costs this connection, not the others
                client.broken(error)

    def apply(self) -> None:
        """Apply the users' present rights to every connection, then delete the limits of deleted
        users. These stay until the next change if their file cannot be replaced."""
        self._turns.tell_time()
        for client in list(self._clients):
            if client.bridge.user:
                try:
                    self._follow(client)
                except Exception as error:  # a bug of ours costs this connection, not the others
                    client.broken(error)
        names = list(self._users.current()) or [GUEST]
        self._limits.forget(self._turns.broker.vhosts, names)

    def _follow(self, client: Client) -> None:
        name, users = client.bridge.user, self._users
        if isinstance(client.subject, TokenUser):
            return  # whatever the users are, its rights are in the token
        user = users.named(name)
        if user is None:
            log.info("connection.user_deleted", user=name, peer=client.peer, id=client.id)
            client.bridge.shutdown(f"user '{name}' is deleted")
        else:
            client.bridge.rights_changed(permissions_of(user))
        client.touch()
