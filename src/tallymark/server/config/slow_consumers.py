"""Slow consumers in the configuration [SC-2, SC-5, SC-6]: checked whole before anything starts.

    [slow_consumers]
    delay = 10                        # between two looks, in timeunit
    timeunit = "seconds"
    depth = "4MiB"                    # bytes of bodies; 0 or left out: no limit
    message_age = "10m"               # since the oldest message arrived
    message_count = 50
    rate = 2                          # messages settled per second, at least
    policy = "delete"
    options = { delete-persistent = true }

    [[slow_consumers.topics]]         # over the general section, value by value
    key = "stocks.us.*"
    message_count = 39

    [[slow_consumers.queues]]
    name = "audit"
    message_age = "1h"

    [[slow_consumers.subscriptions]]
    name = "client:orders"
    topic = "stocks.#"                # left out: whatever it is bound with
    message_count = 9

As a flag's or variable's text it is the same as a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tallymark.engine.arguments import LARGEST, LONGEST_MS
from tallymark.engine.slow.rules import FASTEST, UNSAID, Rule, Rules, SubscriptionRule
from tallymark.server.config.kinds import Kind, Wrong, duration, integer, size
from tallymark.server.slow.policies import slow_policies

NO_LIMIT: Final = (
    "At least one configuration property('messageAge','depth' or 'messageCount') must be specified."
)
"""Qpid's words [SC-2]; a rate does as well."""
UNITS: Final = {
    "nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0,
    "minutes": 60.0, "hours": 3600.0, "days": 86400.0,
}  # fmt: skip
DELAY: Final = 10
TIMEUNIT: Final = "seconds"
SHORTEST_S: Final = 0.01
LONGEST_S: Final = LONGEST_MS / 1000

WHEN: Final = ("delay", "timeunit")
RULE: Final = ("depth", "message_age", "message_count", "rate", "policy", "options")
SECTIONS: Final = ("topics", "queues", "subscriptions")

_DEPTH: Final = size(0)
_AGE: Final = duration(0, LONGEST_MS)
_COUNT: Final = integer(0, LARGEST)
_DELAY: Final = integer(1, LARGEST)


@dataclass(frozen=True, slots=True)
class SlowSettings:
    """Contents of the section."""

    value: dict[str, Any] = field(default_factory=dict)
    """The section as it was written."""
    rules: Rules = field(default_factory=Rules, compare=False)
    period_s: float = DELAY * UNITS[TIMEUNIT]
    """Seconds between two checks."""


def parse(value: object) -> SlowSettings:
    """Raises Wrong, ValueError."""
    if isinstance(value, str):
        if not value:
            return SlowSettings()
        value = json.loads(value)
    if isinstance(value, SlowSettings):
        return value
    if not isinstance(value, dict):
        raise ValueError
    if not value:
        raise Wrong(f"is empty: {NO_LIMIT}")
    try:
        json.dumps(value)
    except TypeError as error:
        raise Wrong(f"has {error}, expected values that JSON has") from error
    _check_names(value, (*WHEN, *RULE, *SECTIONS), "")
    general = _rule(value, "", None) if any(name in value for name in RULE) else None
    topics = _keyed(value, "topics", "key", general)
    queues = _keyed(value, "queues", "name", general)
    rules = Rules(general, topics, queues, _subscriptions(value, general))
    return SlowSettings(value, rules, _period(value))


def _period(value: Mapping[str, Any]) -> float:
    delay = _parsed(_DELAY, value.get("delay", DELAY), "delay")
    unit = value.get("timeunit", TIMEUNIT)
    if not isinstance(unit, str) or unit.casefold() not in UNITS:
        raise Wrong(f"timeunit is {unit!r}, expected one of {', '.join(UNITS)}, in any case")
    seconds: float = delay * UNITS[unit.casefold()]
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise Wrong(
            f"delay is {delay} {unit}, expected {SHORTEST_S * 1000:.0f} ms to "
            f"{LONGEST_S / UNITS['days']:.0f} days, ten years"
        )
    return seconds


def _tables(value: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    tables = value.get(section, [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise Wrong(f"{section} is {tables!r}, expected tables ([[slow_consumers.{section}]])")
    return tables


def _keyed(
    value: Mapping[str, Any], section: str, name: str, general: Rule | None
) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for number, table in enumerate(_tables(value, section), 1):
        what = f"{section} number {number}: "
        key = _text(table, name, what)
        what = f"{section} '{key}': "
        _check_names(table, (name, *RULE), what)
        if key in found:
            raise Wrong(f"{what}is there twice, expected once")
        found[key] = _rule(table, what, general)
    return found


def _subscriptions(value: Mapping[str, Any], general: Rule | None) -> list[SubscriptionRule]:
    found: list[SubscriptionRule] = []
    taken: set[tuple[str, str]] = set()
    for number, table in enumerate(_tables(value, "subscriptions"), 1):
        what = f"subscriptions number {number}: "
        name = _text(table, "name", what)
        topic = _text(table, "topic", what) if "topic" in table else ""
        what = f"subscription '{name}'{f' with topic {topic!r}' if topic else ''}: "
        _check_names(table, ("name", "topic", *RULE), what)
        if (name, topic) in taken:
            raise Wrong(f"{what}is there twice, expected once")
        taken.add((name, topic))
        found.append(SubscriptionRule(name, topic, _rule(table, what, general)))
    return found


def _rule(table: Mapping[str, Any], what: str, general: Rule | None) -> Rule:
    depth, age, count = (
        _parsed(kind, table[name], what + name) if name in table else UNSAID
        for kind, name in ((_DEPTH, "depth"), (_AGE, "message_age"), (_COUNT, "message_count"))
    )
    rate = _rate(table["rate"], what) if "rate" in table else UNSAID
    name, options = table.get("policy", ""), table.get("options", {})
    if "policy" in table and (not isinstance(name, str) or not name):
        raise Wrong(f"{what}policy is {name!r}, expected {', '.join(slow_policies().names)}")
    if not isinstance(options, dict):
        raise Wrong(f"{what}options is {options!r}, expected a table")
    if options and not name:
        raise Wrong(f"{what}options without a policy, expected the one they are of")
    if name:
        try:
            slow_policies().action(name, options)
        except ValueError as error:
            raise Wrong(f"{what}{error}") from error
    elif general is None or not general.policy:
        raise Wrong(
            f"{what}no policy here nor in the general section, expected one of: "
            f"{', '.join(slow_policies().names)}"
        )
    rule = Rule(depth, age, count, rate, name, options)
    if not rule.has_limit:
        raise Wrong(f"{what}{NO_LIMIT}")
    return rule


def _rate(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= FASTEST:
        raise Wrong(f"{what}rate is {value!r}, expected 0 to {FASTEST} messages per second")
    return float(value)


def _parsed(kind: Kind[int], value: object, name: str) -> int:
    try:
        return kind.parse(value)
    except ValueError:
        raise Wrong(f"{name} is {value!r}, expected {kind.expects}") from None


def _text(table: Mapping[str, Any], name: str, what: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise Wrong(f"{what}{name} is {value!r}, expected text")
    return value


def _check_names(table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in table:
        if name not in known:
            raise Wrong(f"{what}unknown key '{name}', expected {', '.join(known)}")


SLOW_CONSUMERS: Final = Kind(
    "a table, see slow-consumers.md; as text the same as a JSON object",
    parse,
    lambda given: json.dumps(given.value) if given.value else "",
)
