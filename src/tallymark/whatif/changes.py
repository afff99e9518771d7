"""Changes: what is to be different in a world, from a small TOML file in the words people know.

from = 2026-11-20T12:00:00Z              when it takes effect; else from the beginning

[[queue]]                                arguments of a queue, without x-; "none" takes one away
name = "orders"
max-length = 10000                       a list is a range: one world for each value

[[policy]]                               as tallymark policy set takes it
name = "limits"
pattern = "^orders"
definition = { message-ttl = 30000 }

[[new-queue]], [[remove-queue]], [[bind]], [[unbind]]
[[consumers]]                            queue, and times, speed, prefetch, late, away
[[publishers]]                           exchange, key, rate
[[restart]]                              at, outage
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Final

from tallymark.engine.arguments import QUEUE_CHECKS

NONE: Final = "none"
WHERE: Final = {"queue", "vhost", "exchange", "key", "from"}
"""Keys that say of what, and from when on, and not what differs."""
SECOND: Final = 1000
UNITS: Final = {"ms": 1, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}


class ChangeRefused(ValueError):
    """A change that cannot be understood; the text says where and what was expected."""


@dataclass(frozen=True, slots=True)
class QueueChange:
    """Other arguments of the queues of one name."""

    name: str
    vhost: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A policy that is set, in place of one of its name; without a definition it is taken away."""

    name: str
    vhost: str
    pattern: str
    definition: dict[str, object]
    priority: int
    apply_to: str


@dataclass(frozen=True, slots=True)
class NewQueue:
    name: str
    vhost: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class RemovedQueue:
    name: str
    vhost: str


@dataclass(frozen=True, slots=True)
class BindingChange:
    """A binding of a queue that is added, or taken away."""

    queue: str
    exchange: str
    key: str
    vhost: str
    adds: bool
    arguments: dict[str, object] = field(default_factory=dict)
    """Headers that a binding of a headers exchange asks for, and `x-match`."""


@dataclass(frozen=True, slots=True)
class ConsumersChange:
    """Other consumers of a queue."""

    queue: str
    vhost: str
    times: int = 1
    """Number of consumers in place of each."""
    speed: float = 1.0
    """2: each takes half of the time."""
    prefetch: int = -1
    """Most messages that one holds; 0: no limit; -1: as it was."""
    late_ms: int = 0
    """Time by which they come later."""
    away_at_ms: int = -1
    away_for_ms: int = 0
    """Moment at which they go, and for how long; -1: they do not."""


@dataclass(frozen=True, slots=True)
class PublishersChange:
    """More or fewer messages."""

    exchange: str | None
    key: str | None
    vhost: str
    rate: float


@dataclass(frozen=True, slots=True)
class Restart:
    """A broker that stops, and is back after a while."""

    at_ms: int
    outage_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """Differences of one world from what was. Empty: none."""

    name: str = "as it was"
    since_ms: int = 0
    queues: list[QueueChange] = field(default_factory=list)
    policies: list[PolicyChange] = field(default_factory=list)
    new_queues: list[NewQueue] = field(default_factory=list)
    removed: list[RemovedQueue] = field(default_factory=list)
    bindings: list[BindingChange] = field(default_factory=list)
    consumers: list[ConsumersChange] = field(default_factory=list)
    publishers: list[PublishersChange] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)

    def headers(self) -> set[str]:
        """Return the headers that its bindings ask for."""
        return {name for one in self.bindings for name in one.arguments} - {"x-match", ""}

    def arguments_of(self, vhost: str, queue: str) -> dict[str, object]:
        """Return the arguments that a queue gets in place of its own, with x-."""
        found: dict[str, object] = {}
        for one in self.queues:
            if (one.vhost, one.name) == (vhost, queue):
                found.update(one.arguments)
        return found

    def is_removed(self, vhost: str, queue: str) -> bool:
        return any((one.vhost, one.name) == (vhost, queue) for one in self.removed)

    def consumers_of(self, vhost: str, queue: str) -> ConsumersChange | None:
        for one in self.consumers:
            if (one.vhost, one.queue) == (vhost, queue):
                return one
        return None

    def rate_of(self, vhost: str, exchange: str, key: str) -> float:
        for one in self.publishers:
            if (
                one.vhost == vhost
                and one.exchange in (None, exchange)
                and one.key in (None, key)
            ):  # fmt: skip
                return one.rate
        return 1.0


AS_IT_WAS: Final = Change()


def read_changes(path: Path) -> list[Change]:
    """Return the worlds that a file asks for: one, or one for each value of its ranges. Raises
    ChangeRefused, OSError."""
    try:
        said = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ChangeRefused(f"{path}: {error}") from None
    try:
        return list(changes_of(path.stem, said))
    except ChangeRefused as error:
        raise ChangeRefused(f"{path}: {error}") from None


def changes_of(name: str, said: Mapping[str, object]) -> Iterator[Change]:
    """Yield the worlds that a table asks for. Raises ChangeRefused."""
    ranges = list(_ranges(said, ()))
    for values in product(*(found for _, found in ranges)):
        chosen = {path: value for (path, _), value in zip(ranges, values, strict=True)}
        called = ", ".join(f"{_called(path)} {value}" for path, value in chosen.items())
        told = said.get("name", name)
        made = _change(f"{told}: {called}" if called else str(told), _settled(said, (), chosen))
        yield made


_Path = tuple[str | int, ...]


def _ranges(said: object, path: _Path) -> Iterator[tuple[_Path, list[object]]]:
    """Yield the values that are lists of numbers or texts."""
    if isinstance(said, Mapping):
        for key, value in said.items():
            yield from _ranges(value, (*path, key))
    elif isinstance(said, list):
        if said and all(isinstance(one, Mapping) for one in said):
            for i, one in enumerate(said):
                yield from _ranges(one, (*path, i))
        elif not said:
            raise ChangeRefused(f"{_called(path)} is an empty list, expected one value at least")
        else:
            yield path, said


def _settled(said: object, path: _Path, chosen: dict[_Path, object]) -> dict[str, object]:
    """Return the table with one value of each range."""
    found = _one(said, path, chosen)
    assert isinstance(found, dict)
    return found


def _one(said: object, path: _Path, chosen: dict[_Path, object]) -> object:
    if path in chosen:
        return chosen[path]
    if isinstance(said, Mapping):
        return {key: _one(value, (*path, key), chosen) for key, value in said.items()}
    if isinstance(said, list):
        return [_one(value, (*path, i), chosen) for i, value in enumerate(said)]
    return said


def _called(path: _Path) -> str:
    return str(path[-1]) if path else "the file"


def moment_of(what: str, value: object) -> int:
    """Return a time, ms since 1970, of a text or a time. Raises ChangeRefused."""
    found: object = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if not isinstance(found, datetime):
        raise ChangeRefused(f"{what} is {value!r}, expected a time such as 2026-11-20T12:00:00Z")
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


class _Fields:
    """One table of the file, of which every key has to be known."""

    def __init__(self, where: str, said: object) -> None:
        if not isinstance(said, dict):
            raise ChangeRefused(f"{where} is {said!r}, expected a table")
        self.where = where
        self.left: dict[str, object] = dict(said)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.left.pop(key, default)
        if not isinstance(value, str):
            raise ChangeRefused(f"{self.where}: {key} is {value!r}, expected text")
        return value

    def optional(self, key: str) -> str | None:
        return self.text(key) if key in self.left else None

    def whole(self, key: str, default: int, least: int = 0) -> int:
        value = self.left.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < min(least, default):
            raise ChangeRefused(
                f"{self.where}: {key} is {value!r}, expected a whole number, {least} or more"
            )
        return value

    def factor(self, key: str) -> float:
        value = self.left.pop(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
            raise ChangeRefused(f"{self.where}: {key} is {value!r}, expected a number above 0")
        return float(value)

    def length(self, key: str) -> int:
        """Return a length of time, ms; 0 where there is none."""
        value = self.left.pop(key, "0s")
        found = _length(value)
        if found < 0:
            raise ChangeRefused(f"{self.where}: {key} is {value!r}, expected such as 30s, 5m or 1h")
        return found

    def moment(self, key: str, default: int = -1) -> int:
        """Return a time, ms since 1970."""
        value = self.left.pop(key, None)
        if value is None and default >= 0:
            return default
        return moment_of(f"{self.where}: {key}", value)

    def arguments(self) -> dict[str, object]:
        """Return all that is left as arguments, with x-. Brokers take no notice of one that they do
        not know; an answer would."""
        found: dict[str, object] = {}
        for key, value in self.left.items():
            name = "x-" + key.removeprefix("x-")
            if name not in QUEUE_CHECKS:
                raise ChangeRefused(
                    f"{self.where}: {key} is no argument of a queue, "
                    f"expected {nearest(key, [one.removeprefix('x-') for one in QUEUE_CHECKS])}"
                )
            found[name] = None if value == NONE else value
        self.left.clear()
        return found

    def check_differs(self, *keys: str) -> None:
        """Raise ChangeRefused for a section that says where, and none of these: nothing would
        differ."""
        if self.left.keys() <= WHERE:
            raise ChangeRefused(f"{self.where}: it changes nothing, expected {' or '.join(keys)}")

    def end(self) -> None:
        if self.left:
            raise ChangeRefused(f"{self.where}: {next(iter(self.left))} is not known here")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known names that are most like one, else some of them, as text."""
    names = sorted(known)
    found = get_close_matches(name, names, 3) or names[:8]
    return " or ".join(found) if found else "none: there are none"


def _length(value: object) -> int:
    if isinstance(value, str):
        for unit in ("ms", "s", "m", "h"):
            number = value.removesuffix(unit)
            if number != value and number.replace(".", "", 1).isdecimal():
                return round(float(number) * UNITS[unit])
    return -1


def _change(name: str, said: dict[str, object]) -> Change:
    whole = _Fields("the file", said)
    whole.left.pop("name", None)
    since = whole.moment("from", 0)
    made = Change(name, since)
    made.queues.extend(_queue(one) for one in _sections(whole, "queue"))
    made.policies.extend(_policy(one) for one in _sections(whole, "policy"))
    made.new_queues.extend(_new_queue(one) for one in _sections(whole, "new-queue"))
    made.removed.extend(_removed(one) for one in _sections(whole, "remove-queue"))
    made.bindings.extend(_binding(one, True) for one in _sections(whole, "bind"))
    made.bindings.extend(_binding(one, False) for one in _sections(whole, "unbind"))
    made.consumers.extend(_consumers(one) for one in _sections(whole, "consumers"))
    made.publishers.extend(_publishers(one) for one in _sections(whole, "publishers"))
    made.restarts.extend(_restart(one) for one in _sections(whole, "restart"))
    whole.end()
    return made


def _sections(whole: _Fields, key: str) -> Iterator[_Fields]:
    """Yield the sections of one kind, each of which must have been read to its end."""
    said = whole.left.pop(key, [])
    for one in said if isinstance(said, list) else [said]:
        fields = _Fields(f"[[{key}]]", one)
        yield fields
        fields.end()


def _queue(one: _Fields) -> QueueChange:
    name, vhost, arguments = one.text("name"), one.text("vhost", "/"), one.arguments()
    if not arguments:
        raise ChangeRefused(f"{one.where} {name}: it changes nothing, expected an argument")
    return QueueChange(name, vhost, arguments)


def _new_queue(one: _Fields) -> NewQueue:
    return NewQueue(one.text("name"), one.text("vhost", "/"), one.arguments())


def _removed(one: _Fields) -> RemovedQueue:
    return RemovedQueue(one.text("name"), one.text("vhost", "/"))


def _policy(one: _Fields) -> PolicyChange:
    definition = one.left.pop("definition", {})
    if not isinstance(definition, dict):
        raise ChangeRefused(f"[[policy]]: definition is {definition!r}, expected a table")
    return PolicyChange(
        one.text("name"), one.text("vhost", "/"), one.text("pattern", ".*"), definition,
        one.whole("priority", 0), one.text("apply-to", "all"),
    )  # fmt: skip


def _binding(one: _Fields, adds: bool) -> BindingChange:
    arguments = one.left.pop("arguments", {})
    if not isinstance(arguments, dict):
        raise ChangeRefused(f"{one.where}: arguments is {arguments!r}, expected a table")
    return BindingChange(
        one.text("queue"), one.text("exchange"), one.text("key", ""), one.text("vhost", "/"), adds,
        arguments,
    )  # fmt: skip


def _consumers(one: _Fields) -> ConsumersChange:
    one.check_differs("times", "speed", "prefetch", "late", "away")
    away = one.left.pop("away", None)
    at, length = -1, 0
    if away is not None:
        gone = _Fields("[[consumers]]: away", away)
        gone.check_differs("for")
        at, length = gone.moment("from"), gone.length("for")
        gone.end()
    return ConsumersChange(
        one.text("queue"), one.text("vhost", "/"), one.whole("times", 1), one.factor("speed"),
        one.whole("prefetch", -1), one.length("late"), at, length,
    )  # fmt: skip


def _publishers(one: _Fields) -> PublishersChange:
    one.check_differs("rate")
    return PublishersChange(
        one.optional("exchange"), one.optional("key"), one.text("vhost", "/"), one.factor("rate")
    )


def _restart(one: _Fields) -> Restart:
    return Restart(one.moment("at"), one.length("outage"))
