"""Sessions of browsers: who has logged in, for how long, and the token that its forms carry.

A session is a random number in a cookie; the broker keeps a hash of it, in memory only. It ends
when it was not used for IDLE_S, LONGEST_S after its log-in, at the log-out, when its user is
deleted or gets another password, and when the broker stops. What its user may do is what it may do
now. Live updates of an open page are uses.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from tallymark.server.access.user import TokenUser, User

IDLE_S: Final = 3600.0
LONGEST_S: Final = 12 * 3600.0
MOST: Final = 1000
"""Sessions at a time: the one that was not used for longest makes room for a new one."""


class Session:
    """One browser that has logged in."""

    def __init__(self, user: User, now: float) -> None:
        self.user = user
        """The user as it logged in."""
        self.began = self.used = now
        self.form_token = secrets.token_urlsafe(24)
        """Token of every form of the session that changes something."""


class Sessions:
    """All sessions of a broker."""

    def __init__(self, clock: Callable[[], float], as_now: Callable[[User], User | None]) -> None:
        """clock: seconds, which never go back. as_now: returns a user with the rights of now, or
        None if it is deleted."""
        self._clock = clock
        self._as_now = as_now
        self._key = secrets.token_bytes(32)
        self._sessions: dict[bytes, Session] = {}
        """Sessions by the hash of the number in the cookie; used last comes last."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User) -> str:
        """Begin a session and return the number for its cookie."""
        while len(self._sessions) >= MOST:
            del self._sessions[next(iter(self._sessions))]
        number = secrets.token_urlsafe(32)
        self._sessions[_hashed(number)] = Session(user, self._clock())
        return number

    def find(self, number: str) -> Session | None:
        """Return the session of a cookie's number, and count that as its use; None: it is over, or
        there never was one."""
        key = _hashed(number)
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        now = self._clock()
        is_over = now - session.used >= IDLE_S or now - session.began >= LONGEST_S
        if is_over or not self._is_as_it_was(session.user):
            return None
        session.used = now
        self._sessions[key] = session
        return session

    def end(self, number: str) -> None:
        """End a session; one that is over has no effect."""
        self._sessions.pop(_hashed(number), None)

    def end_all(self) -> None:
        self._sessions.clear()

    def form_token(self, user: User) -> str:
        """Return the token of forms for a user that sends its password with each request."""
        said = f"{user.name}\0".encode() + user.salt + user.hash
        return hmac.digest(self._key, said, "sha256").hex()

    def _is_as_it_was(self, user: User) -> bool:
        """Return whether the user is still there, with the password of its log-in."""
        now = self._as_now(user)
        if now is None or isinstance(user, TokenUser):
            return now is not None
        return (now.salt, now.hash, now.algorithm) == (user.salt, user.hash, user.algorithm)


def _hashed(number: str) -> bytes:
    return hashlib.blake2b(number.encode("utf-8", "replace"), digest_size=32).digest()
