"""Changed users and permissions, and who is connected meanwhile.

A change reaches every open connection at once, whatever its protocol: what it may do is what the
user may do now, and a user that is gone takes the connections along, with 320 where the protocol
has that word [rabbitmq]. A change that another process made (`tallymark user`) is noticed within
EVERY_S.

HTTP requests ask anew by themselves: `HttpServer.access`, `http.user_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallymark.server.limits import forget_limits
from tallymark.server.logs import log_of
from tallymark.server.users import GUEST, UsersError, permissions_of

if TYPE_CHECKING:
    from tallymark.server.client import Client
    from tallymark.server.node import Node

EVERY_S: Final = 1.0

log = log_of("users")


class Rights:
    """Housekeeping task that applies changed users to open connections."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._problem = ""
        """Reason why the users could not be read at the last check; "": they could."""
        node.users.observers.append(self.apply)

    def period_s(self) -> float:
        return EVERY_S

    async def run(self) -> None:
        """Check whether another process changed the users."""
        try:
            self._node.users.current()
        except UsersError as error:
            if str(error) != self._problem:
                log.error("users.unreadable", error=str(error))
            self._problem = str(error)
        else:
            self._problem = ""

    def apply(self) -> None:
        """Apply the users' present rights to every connection; the limits of deleted users are
        deleted."""
        broker, folder = self._node.broker, self._node.config.data_dir
        names = list(self._node.users.current()) or [GUEST]
        forget_limits(folder, broker.quotas, broker.vhosts, names)
        self._node.tell_time()
        for client in list(self._node.clients.values()):
            if client.bridge.user:
                try:
                    self._follow(client)
                except Exception as error:  # a bug of ours costs this connection, not the others
                    client.broken(error)

    def _follow(self, client: Client) -> None:
        name = client.bridge.user
        user = self._node.users.named(name)
        if user is None:
            log.info("connection.user_deleted", user=name, peer=client.peer, id=client.id)
            client.bridge.shutdown(f"user '{name}' is deleted")
        else:
            client.bridge.rights_changed(permissions_of(user))
        self._node.touch(client)
