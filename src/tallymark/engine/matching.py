"""Matching of messages by bindings: topic patterns, header patterns, and a consistent-hash ring.

A *topic pattern* is words between dots, of which `*` stands for exactly one word of the routing key
and `#` for any number of them, none included [amqp-0.9.1 topic exchange]. The empty key has no
words: only patterns made of `#` (and the empty pattern) match it. An empty word between dots is a
word like any other. Patterns form a trie: finding the bindings for a routing key costs the same
among ten bindings or a million. Matching walks all positions the key can have reached at once, word
by word, each node at most once per word. So its cost is bounded by words x nodes reached, also for
patterns such as `#.a.#.b.#`, which a backtracking matcher tries in exponentially many ways.

A *header pattern* is the arguments of a binding, of which `x-match` says how they are compared with
a message's headers [rabbitmq headers exchange]:

    all (also when missing)   every other argument must be met; ones named x-... are not looked at
    any                       at least one must be met; ones named x-... are not looked at
    all-with-x, any-with-x    the same, but x-... arguments (save x-match) count like the others

An argument is met by a header of its name with an equal value (`arguments.equal_values`), one
without value (None) by any header of its name. With nothing to look at, `all` matches every message
and `any` none.

A *hash ring* gives each member a share of all keys in proportion to its weight. Every member has
POINTS points on a circle for each unit of its weight; a key belongs to the member of the first
point at or after the key's own place. Places come from a hash of the member's name and of the key
alone. Hence a key's owner is the same after a restart and whatever the order in which members came;
a member that goes gives up its own keys and moves no others, one that comes takes keys only for
itself. The number of points is bounded (MAX_POINTS): when the weights add up to more than
MAX_POINTS / POINTS = 8192 every member keeps half of its points, or a quarter, and so on. Shares
stay in proportion; only crossing such a threshold moves keys between old members.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_left
from typing import Final, Generic, TypeVar, final

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.table_values import equal_values, table_term, type_name, wire_bytes

POINTS: Final = 128
"""Number of points per unit of weight. Shares of members of weight 1 are off by about
1/sqrt(POINTS), 9 percent; of weight 10 by 3."""
MAX_POINTS: Final = 1 << 20
OWNER_BITS: Final = 20
"""Number of low bits of a point that hold its owner's number; the rest is its place on the
circle."""
OWNER_MASK: Final = (1 << OWNER_BITS) - 1

MATCH_KINDS: Final = ("all", "any", "all-with-x", "any-with-x")

T = TypeVar("T")


def words_of(key: str) -> list[str]:
    """Return the words of a routing key or pattern; the empty string has none."""
    return key.split(".") if key else []


@final
class TopicNode(Generic[T]):
    """A node after some words of a pattern: its children, and the values of the patterns that end
    here."""

    def __init__(self, parent: TopicNode[T] | None, word: str) -> None:
        self.parent = parent
        self.word = word
        """Word of the pattern that leads here from the parent."""
        self.loops = word == "#"
        """True for a node reached by `#`: any further word may stay here."""
        self.words: dict[str, TopicNode[T]] = {}
        self.one_word: TopicNode[T] | None = None
        self.any_words: TopicNode[T] | None = None
        self.values: dict[T, None] = {}
        self.seen = -1
        """Step of the last match that reached this node, so that the node is followed once."""

    def child(self, word: str) -> TopicNode[T] | None:
        if word == "*":
            return self.one_word
        if word == "#":
            return self.any_words
        return self.words.get(word)

    def grow(self, word: str) -> TopicNode[T]:
        """Return the child for a word, made if it is missing."""
        node = self.child(word)
        if node is None:
            node = TopicNode(self, word)
            if word == "*":
                self.one_word = node
            elif word == "#":
                self.any_words = node
            else:
                self.words[word] = node
        return node

    def cut(self, word: str) -> None:
        if word == "*":
            self.one_word = None
        elif word == "#":
            self.any_words = None
        else:
            del self.words[word]

    def is_bare(self) -> bool:
        """Return whether no pattern ends here or passes through."""
        return not (self.values or self.words or self.one_word or self.any_words)


@final
class TopicTrie(Generic[T]):
    """Patterns with values. A value (hashable) may be under many patterns, once under each."""

    def __init__(self) -> None:
        self.root: TopicNode[T] = TopicNode(None, "")
        self.step = 0

    def add(self, pattern: str, value: T) -> None:
        node = self.root
        for word in words_of(pattern):
            node = node.grow(word)
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        """Remove the value from the pattern; does nothing if it is not there. Empty branches are
        removed."""
        node = self.root
        for word in words_of(pattern):
            child = node.child(word)
            if child is None:
                return
            node = child
        node.values.pop(value, None)
        parent = node.parent
        while parent is not None and node.is_bare():
            parent.cut(node.word)
            node = parent
            parent = node.parent

    def match(self, key: str) -> list[T]:
        """Return the values of all patterns that match. A value under several of them is returned
        several times."""
        reached: list[TopicNode[T]] = []
        self._reach(self.root, reached)
        for word in words_of(key):
            self.step += 1
            before = reached
            reached = []
            for node in before:
                following = node.words.get(word)
                if following is not None:
                    self._arrive(following, reached)
                if node.one_word is not None:
                    self._arrive(node.one_word, reached)
                if node.loops:
                    self._arrive(node, reached)
            if not reached:
                break
        self.step += 1
        found: list[T] = []
        for node in reached:
            if node.values:
                found.extend(node.values)
        return found

    def _arrive(self, node: TopicNode[T], reached: list[TopicNode[T]]) -> None:
        if node.seen != self.step:
            self._reach(node, reached)

    def _reach(self, node: TopicNode[T], reached: list[TopicNode[T]]) -> None:
        """Note the node, and the nodes behind it after a `#` that stands for no word."""
        node.seen = self.step
        reached.append(node)
        after = node.any_words
        while after is not None and after.seen != self.step:
            after.seen = self.step
            reached.append(after)
            after = after.any_words


def check_match(arguments: dict[str, object]) -> None:
    """Check that the `x-match` of a binding is one of the four kinds.

    Raises: PreconditionFailed.
    """
    if "x-match" not in arguments:
        return
    value = arguments["x-match"]
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"Invalid x-match field type {type_name(value)} (value {table_term(value)}); "
            "expected longstr"
        )
    if value not in MATCH_KINDS:
        raise PreconditionFailed(
            f"Invalid x-match field value {table_term(value)}; "
            "expected all, any, all-with-x, or any-with-x"
        )


@final
class HeaderPattern:
    """One binding's requirements on a message's headers."""

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


def place_of(key: bytes) -> int:
    """Return the place of a key on the circle: 64 bits of which the lowest OWNER_BITS are 0."""
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return place & ~OWNER_MASK


@final
class Member(Generic[T]):
    """A name on the ring, its weight, and the values added under the name, oldest first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 0
        self.values: list[T] = []
        self.places: list[int] = []
        self.number = -1
        """Owner number of its points; -1: it has none yet."""
        self.laid: list[int] = []
        """Places of its points that are on the ring."""

    def first_places(self, count: int) -> list[int]:
        """Return the first `count` places of this name, sorted; a lower count gives a subset."""
        if len(self.places) != count:
            raw = hashlib.shake_128(wire_bytes(self.name)).digest(8 * count)
            self.places = [place & ~OWNER_MASK for place in struct.unpack(f"<{count}Q", raw)]
            self.places.sort()
        return self.places


@final
class HashRing(Generic[T]):
    """Members by name. The ring is brought up to date at the first look-up after a change: points
    of members that came, went or changed their weight are put in and taken out, and only where
    every member keeps another share of its points, or most have changed, all is laid out anew."""

    def __init__(self) -> None:
        self.members: dict[str, Member[T]] = {}
        self._total = 0
        """Sum of all weights."""
        self._points: array[int] = array("Q")
        self._owners: list[Member[T] | None] = []
        """Members by the owner numbers of their points."""
        self._free: list[int] = []
        """Owner numbers that no member has."""
        self._halvings = 0
        """Number of times that the count of points of each member was halved."""
        self._changed: dict[Member[T], None] = {}
        """Members whose points on the ring are not what they should be."""

    def add(self, name: str, weight: int, value: T) -> None:
        """Put a value (weight > 0) on the ring. Weights under one name add up; the name's keys
        belong to its first value."""
        member = self.members.get(name)
        if member is None:
            member = Member(name)
            self.members[name] = member
        member.weight += weight
        member.values.append(value)
        self._total += weight
        self._changed[member] = None

    def remove(self, name: str, weight: int, value: T) -> None:
        """Undo the `add` with the same arguments."""
        member = self.members[name]
        member.values.remove(value)
        member.weight -= weight
        self._total -= weight
        self._changed[member] = None
        if not member.values:
            del self.members[name]

    def find(self, key: bytes) -> T | None:
        """Return the value that owns the key; None when the ring is empty. O(log points)."""
        if self._changed:
            self._bring_up_to_date()
        points = self._points
        if not points:
            return None
        at = bisect_left(points, place_of(key))
        if at == len(points):
            at = 0
        owner = self._owner(points[at])
        for next in range(at + 1, len(points)):  # of one place it is the first by name
            if points[next] & ~OWNER_MASK != points[at] & ~OWNER_MASK:
                break
            other = self._owner(points[next])
            owner = other if other.name < owner.name else owner
        return owner.values[0]

    def _owner(self, point: int) -> Member[T]:
        owner = self._owners[point & OWNER_MASK]
        assert owner is not None, point
        return owner

    def _bring_up_to_date(self) -> None:
        changed = list(self._changed)
        self._changed.clear()
        halvings = 0
        while (self._total * POINTS) >> halvings > MAX_POINTS:
            halvings += 1
        if halvings != self._halvings or 4 * len(changed) > len(self.members):
            self._halvings = halvings
            self._lay_out()
        else:
            self._amend(changed)

    def _lay_out(self) -> None:
        """Lay the whole ring out anew."""
        self._owners = list(self.members.values())
        self._free.clear()
        points: list[int] = []
        for number, member in enumerate(self.members.values()):
            member.number = number
            points.extend(self._lay(member))
        points.sort()  # runs that are sorted already are only merged
        self._points = array("Q", points)

    def _lay(self, member: Member[T]) -> list[int]:
        """Return the points that the member should have, and note that they are laid."""
        member.laid = member.first_places(max(1, (member.weight * POINTS) >> self._halvings))
        number = member.number
        return [place | number for place in member.laid]

    def _amend(self, changed: list[Member[T]]) -> None:
        """Take the points of changed members from the ring, and put in those that they should have.
        O(points) to copy, O(log points) for each that comes or goes."""
        moves: dict[int, bool] = {}
        for member in changed:
            moves.update(dict.fromkeys([place | member.number for place in member.laid], False))
        for member in changed:
            if self.members.get(member.name) is member:
                self._enter(member)
                moves.update(dict.fromkeys(self._lay(member), True))
            elif member.number >= 0:
                self._owners[member.number] = None
                self._free.append(member.number)
        points, made, at = self._points, array("Q"), 0
        for point in sorted(moves):
            place = bisect_left(points, point, at)
            made.extend(points[at:place])
            at = place
            if at < len(points) and points[at] == point:
                at += 1
            if moves[point]:
                made.append(point)
        made.extend(points[at:])
        self._points = made

    def _enter(self, member: Member[T]) -> None:
        """Give a new member its owner number."""
        if member.number >= 0:
            return
        if self._free:
            member.number = self._free.pop()
            self._owners[member.number] = member
        else:
            member.number = len(self._owners)
            self._owners.append(member)
