"""Policies: settings for all queues and exchanges whose names match a pattern.

A policy has a name, a pattern, a definition, a priority and a kind of object it applies to. One of
a virtual host's policies is in effect for a queue: of those that fit the one of highest priority,
and among equals the first by name. In addition, one operator policy is in effect, selected in the
same way. Operator policies contain limits only (and delayed retry, as in RabbitMQ), and the tighter
limit of the two applies. settings.py combines the result with the queue's own arguments [DL-2].

A pattern is a regular expression that must be found anywhere in the name, as in RabbitMQ
(patterns.py); letters and digits in it are those of ASCII.

The keys of a definition are the names of queue arguments without `x-`, `alternate-exchange` for
exchanges, `default-queue-type` (the type of queues whose declaration names none), and those of
slow/rules.py, which are no arguments because clients may not choose them. Keys that only RabbitMQ
gives a meaning are accepted, stored, and listed by `without_effect` so that the setter of the
policy can be told. Any other key is refused. A routing key without an exchange is allowed here,
unlike in a declaration: the exchange may come from an argument. Error texts begin with RabbitMQ's
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

from tallymark.engine.arguments import (
    DELIVER_AFTER,
    DROP_TAIL,
    LARGEST,
    LARGEST_SEGMENT,
    LIMIT_COUNTS,
    MAX_HOPS,
    OVERFLOWS,
    POSITIVE_TIME,
    QUEUE_TYPES,
    RETRY_TYPES,
    STRATEGIES,
    TIME,
    age_ms,
    delays_out_of_order,
    milliseconds,
    positive_milliseconds,
)
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.names import is_routing_key
from tallymark.engine.patterns import PatternRefused, PatternsUnavailable, compile_pattern
from tallymark.engine.settings import ACCOUNT, EVERYTHING, LEDGER, shorter_timeout
from tallymark.engine.slow.rules import AGE, COUNT, DEPTH, FASTEST, POLICY_PREFIX, RATE
from tallymark.engine.table_values import erlang_term

ALL: Final = "all"
QUEUES: Final = "queues"
CLASSIC_QUEUES: Final = "classic_queues"
QUORUM_QUEUES: Final = "quorum_queues"
STREAMS: Final = "streams"
EXCHANGES: Final = "exchanges"
APPLY_TO: Final = (QUEUES, CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS, EXCHANGES, ALL)

DEEPEST: Final = 64
"""Maximum nesting of a value that is stored without a check of its own: that of a table."""
ALTERNATE_EXCHANGE: Final = "alternate-exchange"
DEFAULT_TYPE: Final = "default-queue-type"
AUTO_CREATE: Final = "auto-create"
RETRY_TYPE: Final = "delayed-retry-type"
RETRY_MIN: Final = "delayed-retry-min"
RETRY_MAX: Final = "delayed-retry-max"
SLOW_POLICY: Final = POLICY_PREFIX + "policy"
SLOW_OPTIONS: Final = POLICY_PREFIX + "options"


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


# A check returns whether the value is accepted; those of arguments.py return what is wrong with it.
# _integer is asked first: in compiled code a value known to be an int is a plain number, true too.


def _not_negative(value: object) -> bool:
    return _integer(value) and isinstance(value, int) and value >= 0


def _hops(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= MAX_HOPS)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _boolean(value: object) -> bool:
    return isinstance(value, bool)


def _overflow(value: object) -> bool:
    return value in OVERFLOWS and value != DROP_TAIL


def _deliver_after(value: object) -> bool:
    return value in DELIVER_AFTER


def _ledger(value: object) -> bool:
    return value in (EVERYTHING, ACCOUNT)


def _limit_counts(value: object) -> bool:
    return value in LIMIT_COUNTS


def _retry_type(value: object) -> bool:
    return value in RETRY_TYPES


def _time(value: object) -> bool:
    return _integer(value) and milliseconds(value) == ""


def _positive_time(value: object) -> bool:
    return _integer(value) and positive_milliseconds(value) == ""


def _age(value: object) -> bool:
    return age_ms(value) >= 0


def _segment(value: object) -> bool:
    return _not_negative(value) and isinstance(value, int) and value <= LARGEST_SEGMENT


def _type(value: object) -> bool:
    return value in QUEUE_TYPES


def _slowness(value: object) -> bool:
    if isinstance(value, float):
        return 0.0 <= value <= FASTEST
    return _not_negative(value) and isinstance(value, int) and value <= FASTEST


def _name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _options(value: object) -> bool:
    return isinstance(value, dict)


def _strategy(value: object) -> bool:
    return value in STRATEGIES


@final
class Key:
    """A key that definitions may have, with the check of its values."""

    __slots__ = ("accepts", "expected", "limit", "noun")

    def __init__(
        self, accepts: Callable[[object], bool], noun: str, expected: str, limit: bool = False
    ) -> None:
        self.accepts = accepts
        self.noun = noun
        """Name of the value in texts of refusals."""
        self.expected = expected
        self.limit = limit
        """True if an operator policy may have the key; see `tighter`."""


KEYS: Final[dict[str, Key]] = {
    "message-ttl": Key(_time, "message TTL", TIME, True),
    "expires": Key(_positive_time, "queue expiry", POSITIVE_TIME, True),
    "max-length": Key(_not_negative, "maximum length", f"0 to {LARGEST} messages", True),
    "max-length-bytes": Key(
        _not_negative, "maximum length in bytes", f"0 to {LARGEST} bytes", True
    ),
    "overflow": Key(
        _overflow, "overflow value", "drop-head, reject-publish or reject-publish-dlx"
    ),
    "dead-letter-exchange": Key(_text, "dead letter exchange name", "text"),
    "dead-letter-routing-key": Key(
        is_routing_key, "dead letter routing key", "UTF-8 text of at most 255 bytes"
    ),
    "dead-letter-strategy": Key(
        _strategy, "dead letter strategy", " or ".join(STRATEGIES)
    ),
    "dead-letter-hop-limit": Key(
        _hops, "dead letter hop limit", "0 to 255 hops, true (32) or false"
    ),
    "delivery-limit": Key(
        _integer, "delivery limit", f"0 to {LARGEST} failures, or a negative number for none", True
    ),
    "delivery-limit-counts": Key(
        _limit_counts, "reading of the delivery limit", " or ".join(LIMIT_COUNTS)
    ),
    "acquired-limit": Key(_not_negative, "acquired limit", f"0 to {LARGEST} deliveries", True),
    "consumer-timeout": Key(_time, "consumer timeout", TIME, True),
    RETRY_TYPE: Key(
        _retry_type, "delayed retry type", "one of: " + ", ".join(RETRY_TYPES), True
    ),
    RETRY_MIN: Key(_positive_time, "delayed retry minimum delay", POSITIVE_TIME, True),
    RETRY_MAX: Key(_positive_time, "delayed retry maximum delay", POSITIVE_TIME, True),
    "max-age": Key(_age, "max age", "a number above 0 and one of Y, M, D, h, m, s"),
    "stream-max-segment-size-bytes": Key(
        _segment, "segment size", f"0 to {LARGEST_SEGMENT} bytes"
    ),
    DEFAULT_TYPE: Key(_type, "queue type", "one of: " + ", ".join(QUEUE_TYPES)),
    "message-deduplication": Key(_positive_time, "deduplication window", POSITIVE_TIME),
    "deliver-after": Key(_deliver_after, "deliver-after", "one of: " + ", ".join(DELIVER_AFTER)),
    LEDGER: Key(_ledger, "extent of the ledger", f"{EVERYTHING} or {ACCOUNT}"),
    AUTO_CREATE: Key(_boolean, "auto-create", "true or false"),
    POLICY_PREFIX + DEPTH: Key(_not_negative, "slow consumer depth", f"0 to {LARGEST} bytes"),
    POLICY_PREFIX + AGE: Key(_time, "slow consumer age", TIME),
    POLICY_PREFIX + COUNT: Key(_not_negative, "slow consumer count", f"0 to {LARGEST} messages"),
    POLICY_PREFIX + RATE: Key(
        _slowness, "slow consumer rate", f"0 to {FASTEST} messages per second"
    ),
    SLOW_POLICY: Key(_name, "slow consumer policy", "the name of one"),
    SLOW_OPTIONS: Key(_options, "set of slow consumer options", "an object"),
    ALTERNATE_EXCHANGE: Key(_text, "alternate exchange name", "text"),
}  # fmt: skip
"""Keys that have an effect."""

OPERATOR_WITHOUT_EFFECT: Final = (
    "max-in-memory-bytes",
    "max-in-memory-length",
    "target-group-size",
    # mirrors, and where replicas live: this is one node
    "ha-mode", "ha-params", "ha-sync-mode", "queue-master-locator",
)  # fmt: skip
"""Keys that operator policies of RabbitMQ may have as well, of one version or another."""
WITHOUT_EFFECT: Final = (
    *OPERATOR_WITHOUT_EFFECT,
    "ha-promote-on-failure", "ha-promote-on-shutdown", "ha-sync-batch-size", "initial-cluster-size",
    "queue-leader-locator",
    # how a kind of queue keeps its messages: there is one way
    "queue-mode", "queue-version",
    # streams
    "filter-field-names", "stream-filter-size-bytes",
    # plugins
    "federation-upstream", "federation-upstream-pattern", "federation-upstream-set", "routing-key",
    "shards-per-node",
)  # fmt: skip
"""Keys of RabbitMQ that have no effect here."""

ONLY_STREAMS: Final = ("max-age", "stream-max-segment-size-bytes")
"""Keys that affect streams only."""
OF_STREAMS: Final = (*ONLY_STREAMS, "max-length-bytes")
"""Keys that affect streams."""


@final
class Policy:
    """One policy, checked and immutable. A change replaces it under its name."""

    __slots__ = (
        "_expression",
        "apply_to",
        "definition",
        "name",
        "pattern",
        "priority",
        "problem",
    )

    def __init__(
        self,
        name: str,
        pattern: str,
        definition: dict[str, object],
        priority: int = 0,
        apply_to: str = ALL,
        was_stored: bool = False,
    ) -> None:
        """was_stored: the policy comes from the journal. A pattern that is refused today makes such
        a policy fit nothing instead of being an error.

        Raises PreconditionFailed: a text says which of the parts is wrong. PatternsUnavailable: a
        stored policy cannot be read.
        """
        if not name:
            raise PreconditionFailed("policy name is empty, expected one of 1 or more letters")
        if apply_to not in APPLY_TO:
            valid = ", ".join([f"'{word}'" for word in APPLY_TO[:-1]])
            raise PreconditionFailed(
                f"apply-to '{apply_to}' unrecognised; should be one of: {valid}, or '{ALL}'"
            )
        if not definition:
            raise PreconditionFailed("no policy provided: the definition is empty")
        self.name = name
        self.pattern = pattern
        self.definition = definition
        """Definition as given; values of keys without effect are not checked."""
        self.priority = priority
        """Priority; policies of higher priority are preferred."""
        self.apply_to = apply_to
        self.problem = ""
        """Error text if a stored policy fits nothing because its pattern is invalid; empty
        otherwise."""
        try:
            self._expression = compile_pattern(pattern)
        except PatternRefused as error:
            if was_stored and isinstance(error, PatternsUnavailable):
                raise  # a broker must not start without all of its policies
            self.problem = f"pattern should be regular expression but is invalid: {error}"
            if not was_stored:
                raise PreconditionFailed(self.problem) from None

    def fits(self, kind: str, name: str) -> bool:
        """Return whether the policy applies to something of this name. kind: CLASSIC_QUEUES,
        QUORUM_QUEUES, STREAMS or EXCHANGES; QUEUES: a queue that does not exist yet."""
        wanted = self.apply_to
        if wanted != kind and wanted != ALL and (wanted != QUEUES or kind == EXCHANGES):
            return False
        return not self.problem and self._expression.matches(name)

    def goes_before(self, other: Policy) -> bool:
        """Return whether this policy is preferred to the other where both fit."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.name < other.name

    def value(self) -> dict[str, object]:
        """Return the policy without its name, in the form that policy_from takes."""
        return {
            "pattern": self.pattern,
            "definition": self.definition,
            "priority": self.priority,
            "apply-to": self.apply_to,
        }


def policy_from(name: str, value: dict[str, object], operator: bool = False) -> Policy:
    """Make a policy from a JSON object: pattern, definition, and optionally priority and apply-to.

    Raises: PreconditionFailed, also for fields and keys that are not known.
    """
    unknown = [field for field in value if field not in FIELDS]
    if unknown:
        raise PreconditionFailed(
            f"Unrecognised terms [{', '.join(unknown)}] in policy, expected " + ", ".join(FIELDS)
        )
    pattern = value.get("pattern")
    if not isinstance(pattern, str):
        raise PreconditionFailed(
            f"pattern should be a binary, actually was {erlang_term(pattern)}: expected text"
        )
    definition = value.get("definition")
    if not isinstance(definition, dict):
        raise PreconditionFailed(
            f"definition must be a dictionary: {erlang_term(definition)}, expected an object"
        )
    priority = value.get("priority", 0)
    if not _integer(priority) or not isinstance(priority, int):
        raise PreconditionFailed(
            f"priority should be a number, actually was {erlang_term(priority)}, "
            "expected a whole one"
        )
    apply_to = value.get("apply-to", ALL)
    if not isinstance(apply_to, str):
        raise PreconditionFailed(f"apply-to is {erlang_term(apply_to)}, expected text")
    policy = Policy(name, pattern, definition, priority, apply_to)
    check_definition(policy.definition, operator)
    return policy


FIELDS: Final = ("pattern", "definition", "priority", "apply-to")
PLACE: Final = ("vhost", "name")
"""Fields that locate an object among the policies of all virtual hosts."""


def policy_fields(given: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of an object from RabbitMQ's interface or files, for policy_from: without
    its location and without known fields that are null. Unknown fields remain, to be refused."""
    return {
        field: value
        for field, value in given.items()
        if field not in PLACE and (value is not None or field not in FIELDS)
    }


def check_definition(definition: dict[str, object], operator: bool) -> None:
    """Check that every key is known and every value that has an effect is in its range.

    operator: for an operator policy, which holds limits only.
    Raises: PreconditionFailed.
    """
    known = known_keys(operator)
    unknown = [key for key in definition if key not in known]
    if unknown:
        terms = ", ".join([f"{{{erlang_term(k)},{erlang_term(definition[k])}}}" for k in unknown])
        kind = "operator policy" if operator else "policy"
        raise PreconditionFailed(
            f"[{terms}] are not recognised {kind} settings, expected " + ", ".join(known)
        )
    for name, value in definition.items():
        key = KEYS.get(name)
        if key is not None and not key.accepts(value):
            raise PreconditionFailed(
                f"{erlang_term(value)} is not a valid {key.noun}: {name} must be {key.expected}"
            )
        wrong = _not_storable(value, 0) if key is None or name == SLOW_OPTIONS else ""
        if wrong:
            raise PreconditionFailed(f"{name} {wrong}")
    retry, least = definition.get(RETRY_TYPE), definition.get(RETRY_MIN)
    if retry not in (None, "disabled") and least is None:
        raise PreconditionFailed(f"{RETRY_MIN} is required when {RETRY_TYPE} is {retry}")
    if definition.get(SLOW_OPTIONS) and SLOW_POLICY not in definition:
        raise PreconditionFailed(f"{SLOW_POLICY} is required where there are {SLOW_OPTIONS}")
    wrong = delays_out_of_order(least, definition.get(RETRY_MAX))
    if wrong:
        raise PreconditionFailed(wrong)


def _not_storable(value: object, depth: int) -> str:
    """Return why a value that has no check of its own cannot be stored; "" if it can. depth: number
    of values around this one."""
    parts: list[object] = []
    if isinstance(value, dict):
        parts += value.values()
    elif isinstance(value, (list, tuple)):
        parts += value
    elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return f"has the number {value!s:.40}, expected numbers of at most {LARGEST}"
    if parts and depth >= DEEPEST:
        return f"is nested deeper than {DEEPEST} levels, expected at most so many"
    for part in parts:
        wrong = _not_storable(part, depth + 1)
        if wrong:
            return wrong
    return ""


def known_keys(operator: bool) -> list[str]:
    """Return the keys a definition may have, those with an effect first."""
    if operator:
        return [*[name for name, key in KEYS.items() if key.limit], *OPERATOR_WITHOUT_EFFECT]
    return [*KEYS, *WITHOUT_EFFECT]


def without_effect(policy: Policy) -> list[str]:
    """Return the keys of a policy's definition that have no effect, generally or on what the policy
    applies to."""
    return idle_keys(policy.definition, policy.apply_to)


def idle_keys(definition: dict[str, object], apply_to: str) -> list[str]:
    """Return the keys without effect, as without_effect does, of a definition that is not a
    Policy."""
    idle = []
    for key in definition:
        for_exchanges = key == ALTERNATE_EXCHANGE
        elsewhere = apply_to != ALL and for_exchanges != (apply_to == EXCHANGES)
        if apply_to == STREAMS:
            elsewhere = key not in OF_STREAMS
        elif apply_to in (CLASSIC_QUEUES, QUORUM_QUEUES):
            elsewhere = elsewhere or key in ONLY_STREAMS or key == DEFAULT_TYPE
        if elsewhere or key not in KEYS:
            idle.append(key)
    return idle


def in_effect(policies: dict[str, Policy], kind: str, name: str) -> Policy | None:
    """Return the policy in effect for something of this name; see Policy.fits."""
    found: Policy | None = None
    for policy in policies.values():
        if (found is None or policy.goes_before(found)) and policy.fits(kind, name):
            found = policy
    return found


def merged(policy: Policy | None, operator: Policy | None) -> dict[str, object]:
    """Return the combined definition of both policies: the tighter limit where both have one."""
    if policy is None:
        return {} if operator is None else operator.definition
    if operator is None:
        return policy.definition
    outcome = dict(policy.definition)
    for name, limit in operator.definition.items():
        own = outcome.get(name)
        outcome[name] = limit if own is None else tighter(name, own, limit)
    return outcome


def tighter(name: str, own: object, limit: object) -> object:
    """Return the tighter of a policy's value and the operator's: the smaller number, unless it
    means no limit (negative, or a time-out of 0); of minimum delays the larger; otherwise the
    operator's value."""
    if not isinstance(own, int) or not isinstance(limit, int):
        return limit
    if name == "consumer-timeout":
        return shorter_timeout(own, limit)
    larger = own < 0 or limit < 0 or name == RETRY_MIN
    return max(own, limit) if larger else min(own, limit)
