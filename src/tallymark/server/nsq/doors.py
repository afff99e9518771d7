"""Identity of NSQ clients, on the protocol and over HTTP: NSQ itself knows no users.

    auth_http_address   AUTH, and what the auth server says of the secret
    nsq_user            everybody is this user, whose permissions hold; with an auth server both
    users, neither      AUTH with the secret NAME:PASSWORD or a token of OAuth 2, over HTTP Basic or
                        Bearer authentication; the user's permissions hold
    no users, neither   whoever can connect, as with nsqd

So users, once there are some, have no way round them here. The permissions are those on the
exchanges and queues that topics and channels are (Topics.check_...).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallymark.bridge.nsq.auth import AuthState, any_topic
from tallymark.bridge.permissions import Access, Permissions
from tallymark.server.access.user import User, UsersError, permissions_of
from tallymark.server.logs import log_of
from tallymark.server.nsq.auth import Authorities, AuthUnavailable

if TYPE_CHECKING:
    from tallymark.server.node import Node

NOTHING = AuthState("", "", [], 0)

log = log_of("nsq")


class NsqDoors:
    """Log-ins and access of NSQ clients, for one node."""

    def __init__(self, node: Node, authorities: Authorities | None) -> None:
        config = node.config
        self._users = node.users
        self._vhost = config.nsq_vhost
        self._acting = config.nsq_user
        self._authorities = authorities
        if self._acting and self.user(self._acting) is None:
            log.warning("nsq.user_unknown", user=self._acting, effect="NSQ clients may do nothing")

    def has_users(self) -> bool:
        """Return whether users are configured; True as well where they cannot be read: then every
        log-in fails."""
        try:
            return self._users.asks_everybody
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            return True

    def user(self, name: str) -> User | None:
        try:
            return self._users.named(name)
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            return None

    @property
    def needs_auth(self) -> bool:
        """Clients of the protocol have to send AUTH before they do anything."""
        return self._authorities is not None or self.needs_login

    @property
    def needs_login(self) -> bool:
        """Return whether HTTP requests, and clients without an auth server, have to name a user."""
        return not self._acting and self.has_users()

    def acting(self) -> Permissions | None:
        """Return the permissions of the user as whom every client acts; None: none is
        configured, or it does not exist."""
        if not self._acting:
            return None
        user = self.user(self._acting)
        return Permissions(self._acting, {}) if user is None else permissions_of(user)

    def access_of(self, logged_in: User | None) -> tuple[Access, bool] | None:
        """Return the present access of a user who logged in, or (None) of the configured one, and
        whether it is an administrator. None: there is no access control. Raises KeyError: there is
        no such user, or by now somebody has to log in."""
        name = self._acting if logged_in is None else logged_in.name
        if not name:
            if self.needs_login:
                raise KeyError(name)
            return None
        user = self.user(name) if logged_in is None else self._as_now(logged_in)
        if user is None:
            raise KeyError(name)
        access = Access(name, self._vhost, ("", "", ""))
        access.follow(permissions_of(user))
        return access, user.administrator

    def name_in(self, secret: bytes) -> str:
        """Return the claimed user name, where secrets are NAME:PASSWORD."""
        if self._authorities is not None:
            return ""
        name, colon, _ = secret.decode("utf-8", "replace").partition(":")
        return name if colon else ""

    async def check(
        self,
        secret: bytes,
        peer_host: str,
        tls: bool,
        common_name: str,
        before: User | None = None,
    ) -> tuple[AuthState, User | None]:
        """Return what a secret authorises, and the user if it is one's password or token. before:
        the user of the token whose place it takes.

        Raises AuthUnavailable.
        """
        if self._authorities is not None:
            return await self._authorities.query(peer_host, tls, common_name, secret), None
        text = secret.decode("utf-8", "replace")
        name, colon, password = text.partition(":")
        if not colon:
            name, password = "", text
        try:
            if before is None:
                user = await self._users.check(name, password, peer_host)
            else:
                user = await self._users.renew(before, password, peer_host)
        except UsersError as error:
            raise AuthUnavailable(str(error)) from error
        if user is not None:
            user = self._as_now(user)  # it took a while: who is it now?
        if user is None:
            return NOTHING, None
        return any_topic(user.name), user

    def _as_now(self, user: User) -> User | None:
        try:
            return self._users.as_now(user)
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            return None
