"""Permissions of an NSQ client from an auth server. Pure: the server does the asking.

    {"ttl": 3600, "identity": "...", "identity_url": "...", "authorizations": [
        {"topic": REGEX, "channels": [REGEX, ...], "permissions": ["subscribe", "publish"]}]}

A pattern need not match all of a name, as in nsqd: `^orders$` where it shall. A publish is looked
up with the channel "", so its entry needs a channel pattern that matches the empty text, as `.*`.
"""

from __future__ import annotations

import json
from typing import Final, final

from tallymark.engine.clock import NEVER
from tallymark.engine.patterns import Pattern, PatternRefused, compile_pattern
from tallymark.wire.line import MonotonicMs

SUBSCRIBE: Final = "subscribe"
PUBLISH: Final = "publish"
TTL_MAX_S: Final = 1 << 31


class AuthAnswerError(Exception):
    """The auth server's answer is malformed; the text says why."""


@final
class Authorization:
    """One entry of the answer."""

    __slots__ = ("channels", "permissions", "topic")

    def __init__(self, topic: Pattern, channels: list[Pattern], permissions: list[str]) -> None:
        self.topic = topic
        self.channels = channels
        self.permissions = permissions

    def allows(self, topic: str, channel: str) -> bool:
        if (SUBSCRIBE if channel else PUBLISH) not in self.permissions:
            return False
        if not self.topic.matches(topic):
            return False
        return any(pattern.matches(channel) for pattern in self.channels)


@final
class AuthState:
    """The permissions that a client's secret gives until it expires."""

    __slots__ = ("_known", "authorizations", "expires_ms", "identity", "identity_url")

    def __init__(
        self,
        identity: str,
        identity_url: str,
        authorizations: list[Authorization],
        expires_ms: int,
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.authorizations = authorizations
        """Entries of the answer; empty: the secret is refused with E_UNAUTHORIZED."""
        self.expires_ms = expires_ms
        """Time at which the auth server must be asked again; monotonic milliseconds."""
        self._known: dict[tuple[str, str], bool] = {}

    @property
    def permission_count(self) -> int:
        """Count of permissions in the answer to AUTH."""
        return len(self.authorizations)

    def is_expired(self, now_ms: MonotonicMs) -> bool:
        return now_ms >= self.expires_ms

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether the client may publish to the topic (channel empty), or subscribe to the
        channel."""
        key = (topic, channel)
        allowed = self._known.get(key)
        if allowed is None:
            allowed = any(one.allows(topic, channel) for one in self.authorizations)
            if len(self._known) >= 1024:
                self._known.clear()
            self._known[key] = allowed
        return allowed


def any_topic(identity: str) -> AuthState:
    """Return the state for a secret that is a user's password: the user's permissions decide."""
    everything = compile_pattern(".*")
    both = Authorization(everything, [everything], [SUBSCRIBE, PUBLISH])
    return AuthState(identity, "", [both], NEVER)


def decode_answer(body: bytes, now_ms: MonotonicMs) -> AuthState:
    """Decode an auth server's answer. Raises AuthAnswerError.

    Whatever is left out is empty, as in nsqd, but the ttl must be given.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AuthAnswerError(f"the answer is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise AuthAnswerError(f"the answer is {_shown(value)}, expected an object")
    ttl = value.get("ttl", 0)
    if type(ttl) is not int:
        raise AuthAnswerError(f"ttl is {_shown(ttl)}, expected whole seconds")
    if not 0 < ttl <= TTL_MAX_S:
        raise AuthAnswerError(f"invalid TTL {ttl} (must be >0)")
    entries = value.get("authorizations")
    return AuthState(
        _text(value, "identity"),
        _text(value, "identity_url"),
        [_authorization(entry) for entry in _items(entries, "authorizations")],
        now_ms + ttl * 1000,
    )


def _authorization(entry: object) -> Authorization:
    if not isinstance(entry, dict):
        raise AuthAnswerError(f"an authorization is {_shown(entry)}, expected an object")
    permissions = _texts(entry, "permissions")
    for permission in permissions:
        if permission not in (SUBSCRIBE, PUBLISH):
            raise AuthAnswerError(f"unknown permission {permission}")
    return Authorization(
        _pattern("topic", _text(entry, "topic")),
        [_pattern("channel", pattern) for pattern in _texts(entry, "channels")],
        permissions,
    )


def _pattern(what: str, text: str) -> Pattern:
    try:
        return compile_pattern(text)
    except PatternRefused as error:
        raise AuthAnswerError(f"unable to compile {what} {error}") from None


def _text(table: dict[str, object], key: str) -> str:
    value = table.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AuthAnswerError(f"{key} is {_shown(value)}, expected a text")
    return value


def _texts(table: dict[str, object], key: str) -> list[str]:
    texts: list[str] = []
    for value in _items(table.get(key), key):
        if not isinstance(value, str):
            raise AuthAnswerError(f"{key} has {_shown(value)}, expected texts")
        texts.append(value)
    return texts


def _items(value: object, key: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise AuthAnswerError(f"{key} is {_shown(value)}, expected a list")
    return value


def _shown(value: object) -> str:
    return repr(value)[:80]
