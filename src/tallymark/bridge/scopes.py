"""Scopes of OAuth 2 tokens as rights on names, in RabbitMQ's notation [rabbitmq oauth2].

    read:VHOST/NAME              consume, get, purge; bind from the exchange
    write:VHOST/NAME             publish to it, bind to it
    configure:VHOST/NAME         make and delete it
    read:VHOST/NAME/KEY          the same, and on a topic exchange only with such routing keys
    tag:administrator            a user tag

VHOST, NAME and KEY are percent-encoded, `+` is a space, and `*` stands for any text. They become
patterns of the rights engine (engine/patterns.py), so that one engine decides for users and tokens
and each decision takes time linear in the name's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, final
from urllib.parse import unquote_to_bytes

from tallymark.engine.patterns import PatternRefused, compile_pattern

OPERATIONS: Final = ("configure", "write", "read")
"""In the order of permissions.CONFIGURE, WRITE and READ."""
TAG: Final = "tag:"
NOTHING: Final = "$x"
"""A pattern that no name matches: something behind the end."""
EVERYTHING: Final = ".*"
REMEMBERED: Final = 256
"""Virtual hosts whose patterns are kept."""
_MALFORMED: Final = re.compile("%(?![0-9A-Fa-f]{2})")


@final
class Scope:
    """One right: an operation, and patterns of RE2 for the virtual host, the name and the key."""

    __slots__ = ("key", "name", "operation", "vhost")

    def __init__(self, operation: int, vhost: str, name: str, key: str) -> None:
        self.operation = operation
        self.vhost = vhost
        self.name = name
        self.key = key


@final
class Scopes:
    """All rights of one token. A value."""

    __slots__ = ("_by_vhost", "_scopes", "tags")

    def __init__(self, texts: Iterable[str]) -> None:
        """texts: scopes without the prefix that marks ours; what is no right is passed over."""
        self._scopes: list[Scope] = []
        self._by_vhost: dict[str, tuple[str, str, str] | None] = {}
        tags: list[str] = []
        for text in texts:
            if text.startswith(TAG):
                tags.append(text[len(TAG) :])
                continue
            scope = parse(text)
            if scope is not None:
                self._scopes.append(scope)
        self.tags = tuple(dict.fromkeys(tags))

    def patterns(self, vhost: str) -> tuple[str, str, str] | None:
        """The patterns (configure, write, read) that hold in a virtual host, or None: no scope is
        about it."""
        if vhost in self._by_vhost:
            return self._by_vhost[vhost]
        found = [one for one in self._scopes if matches(one.vhost, vhost)]
        answer = None
        if found:
            configure, write, read = (
                joined([one.name for one in found if one.operation == operation])
                for operation in range(len(OPERATIONS))
            )
            answer = (configure, write, read)
        if len(self._by_vhost) >= REMEMBERED:
            self._by_vhost.clear()
        self._by_vhost[vhost] = answer
        return answer

    def keys(self, vhost: str, exchange: str, operation: int) -> str:
        """The pattern of the routing keys that go with an operation on a topic exchange."""
        return joined(
            [
                one.key
                for one in self._scopes
                if one.operation == operation
                and matches(one.vhost, vhost)
                and matches(one.name, exchange)
            ]
        )


def parse(text: str) -> Scope | None:
    """Return the right that a scope stands for; None: it stands for none."""
    operation, colon, resource = text.partition(":")
    if not colon or operation not in OPERATIONS:
        return None
    parts = resource.split("/")
    if not 2 <= len(parts) <= 3:
        return None
    patterns = [wildcard(part) for part in parts]
    if None in patterns:
        return None
    vhost, name, *keys = [pattern for pattern in patterns if pattern is not None]
    return Scope(OPERATIONS.index(operation), vhost, name, keys[0] if keys else EVERYTHING)


def wildcard(text: str) -> str | None:
    """Return the pattern, without anchors, of a percent-encoded text with `*`; None: it is
    malformed."""
    literals: list[str] = []
    for part in text.split("*"):
        if _MALFORMED.search(part):
            return None
        try:
            literal = unquote_to_bytes(part.replace("+", " ")).decode()
        except (UnicodeDecodeError, UnicodeEncodeError):
            return None
        literals.append(re.escape(literal))
    found = literals[0]
    for at in range(1, len(literals)):
        if literals[at] or at == len(literals) - 1:
            found += EVERYTHING if not found.endswith(EVERYTHING) else ""
            found += literals[at]
    return found


def joined(patterns: list[str]) -> str:
    """Return a pattern that names match where they match one of these as a whole."""
    if not patterns:
        return NOTHING
    if EVERYTHING in patterns:
        return EVERYTHING
    return "(?s)^(?:" + "|".join(dict.fromkeys(patterns)) + ")$"


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern as a whole; False where the pattern is refused."""
    try:
        return compile_pattern(joined([pattern])).matches(name)
    except PatternRefused:
        return False
