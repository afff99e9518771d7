"""Header patterns: matching of messages by their headers, for bindings of a headers exchange.

The binding's argument `x-match` says how [rabbitmq headers exchange]:

    all (also when missing)   every other argument must be met; ones named x-... are not looked at
    any                       at least one must be met; ones named x-... are not looked at
    all-with-x, any-with-x    the same, but x-... arguments (save x-match) count like the others

An argument is met by a header of its name with an equal value (`arguments.equal_values`), one
without value (None) by any header of its name. With nothing to look at, `all` matches every message
and `any` none.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar, final

from tallymark.engine.arguments import equal_values, erlang_term, type_name, wire_bytes
from tallymark.engine.errors import PreconditionFailed

T = TypeVar("T")

MATCH_KINDS: Final = ("all", "any", "all-with-x", "any-with-x")


def check_match(arguments: dict[str, object]) -> None:
    """Check that the `x-match` of a binding is one of the four kinds.

    Raises: PreconditionFailed.
    """
    if "x-match" not in arguments:
        return
    value = arguments["x-match"]
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"Invalid x-match field type {type_name(value)} (value {erlang_term(value)}); "
            "expected longstr"
        )
    if value not in MATCH_KINDS:
        raise PreconditionFailed(
            f"Invalid x-match field value {erlang_term(value)}; "
            "expected all, any, all-with-x, or any-with-x"
        )


@final
class HeaderPattern:
    """One binding's requirements on a message's headers."""

    __slots__ = ("any", "wanted")

    def __init__(self, arguments: dict[str, object]) -> None:
        kind = arguments.get("x-match", "all")
        with_x = kind == "all-with-x" or kind == "any-with-x"
        self.any = kind == "any" or kind == "any-with-x"
        self.wanted: list[tuple[str, object]] = [
            (name, value)
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        ]

    def matches(self, headers: dict[str, object]) -> bool:
        for name, value in self.wanted:
            met = name in headers and (value is None or equal_values(value, headers[name]))
            if met == self.any:
                return self.any
        return not self.any


def _bucket(name: str, value: object) -> tuple[str, object] | None:
    """Return the index key of a wanted header; None if its value has no usable hash.

    Equal values (equal_values) have equal buckets; the converse need not hold (True and 1), so
    whatever is found there is still compared.
    """
    if isinstance(value, str):
        return name, wire_bytes(value)
    if value is None or isinstance(value, (list, tuple, dict, bytearray)):
        return None
    return name, value


@final
class HeaderTable(Generic[T]):
    """Values (hashable) with their header patterns, indexed by a header that each pattern needs.
    The cost grows with the bindings that share a header *and its value* with the message."""

    __slots__ = ("buckets", "others", "patterns")

    def __init__(self) -> None:
        self.patterns: dict[T, HeaderPattern] = {}
        self.buckets: dict[tuple[str, object], dict[T, None]] = {}
        self.others: dict[T, None] = {}
        """Patterns that fit no bucket; they are compared with every message."""

    def add(self, value: T, arguments: dict[str, object]) -> None:
        pattern = HeaderPattern(arguments)
        self.patterns[value] = pattern
        places = self._places(pattern)
        if not places:
            self.others[value] = None
        for place in places:
            self.buckets.setdefault(place, {})[value] = None

    def remove(self, value: T) -> None:
        """Remove a value; does nothing if it is not in the table."""
        pattern = self.patterns.pop(value, None)
        if pattern is None:
            return
        self.others.pop(value, None)
        for place in self._places(pattern):
            bucket = self.buckets[place]
            bucket.pop(value, None)
            if not bucket:
                del self.buckets[place]

    def match(self, headers: dict[str, object]) -> list[T]:
        """Return the values whose patterns the headers match, each once."""
        found: dict[T, None] = {}
        for value in self.others:
            if self.patterns[value].matches(headers):
                found[value] = None
        for name, content in headers.items():
            place = _bucket(name, content)
            bucket = self.buckets.get(place) if place is not None else None
            if bucket is None:
                continue
            for value in bucket:
                if self.patterns[value].matches(headers):
                    found[value] = None
        return list(found)

    def _places(self, pattern: HeaderPattern) -> list[tuple[str, object]]:
        """Return buckets of which every matching message hits at least one: for `any` all of them,
        for `all` a single one is enough. Empty if there is no such set."""
        places: list[tuple[str, object]] = []
        for name, value in pattern.wanted:
            place = _bucket(name, value)
            if place is None:
                if pattern.any:
                    return []
            elif place not in places:
                places.append(place)
                if not pattern.any:
                    return places
        return places
