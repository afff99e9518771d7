"""Settings of a queue: the values in effect, derived from its arguments and from policies.

A policy's definition has the keys of queue arguments without `x-`. Where both give a value [DL-2]:
the argument wins for the dead-letter keys and for properties of the queue's type; the smaller value
wins for times, lengths and limits (a negative limit means none, and then the larger wins); for the
overflow behaviour the argument wins on classic queues and the policy on those declared as quorum;
for the kind of delayed retry the policy wins.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.arguments import (
    AT_LEAST_ONCE,
    DROP_HEAD,
    FAILURES,
    REJECT_PUBLISH_DLX,
    RETRY_ALL,
    RETRY_DISABLED,
    RETRY_FAILED,
    STREAM,
    SYNCED,
    age_ms,
)
from tallymark.engine.names import is_routing_key
from tallymark.engine.slow.rules import rule_of_definition
from tallymark.units import Ms

DEFAULT_HOPS: Final = 32
"""Hop limit if it is switched on without a number."""

OFF: Final = -1
"""Value of a time, length or limit that is not set."""

UNSAID: Final = -1
LEDGER: Final = "ledger"
"""Policy key for the amount of ledger records about a queue."""
EVERYTHING: Final = "all"
ACCOUNT: Final = "account"
"""Ledger level: records that the account and a restart need; no deliveries."""


@final
class Settings:
    """The values in effect for one queue. Immutable; a change makes a new object."""

    def __init__(self, arguments: dict[str, object], policy: dict[str, object]) -> None:
        """arguments: those of the declaration, checked. policy: the merged definition, checked."""
        self.is_quorum = arguments.get("x-queue-type") == "quorum"
        self.ttl_ms = Ms(_smaller(arguments, policy, "message-ttl"))
        """Milliseconds a message may be ready; OFF: no limit."""
        self.expires_ms = Ms(_smaller(arguments, policy, "expires"))
        """Milliseconds the queue may be unused before it is deleted."""
        self.max_length = _smaller(arguments, policy, "max-length")
        self.max_bytes = _smaller(arguments, policy, "max-length-bytes")
        """Maximum bytes of message bodies."""
        overflow = _text(policy if self.is_quorum else arguments, arguments, policy, "overflow")
        if overflow == REJECT_PUBLISH_DLX and self.is_quorum:
            overflow = DROP_HEAD
        self.overflow = overflow or DROP_HEAD
        exchange = _text(arguments, arguments, policy, "dead-letter-exchange")
        self.dead_letter_exchange = exchange
        """Dead-letter exchange; None: dead letters are dropped."""
        key = _text(arguments, arguments, policy, "dead-letter-routing-key")
        self.dead_letter_key = key if key is None or is_routing_key(key) else None
        """Dead-letter routing key; None: letters keep their own keys. It is None, too, if an old
        declaration has a key that no message can carry: such keys are refused today."""
        strategy = _text(arguments, arguments, policy, "dead-letter-strategy")
        self.at_least_once = strategy == AT_LEAST_ONCE and exchange is not None
        """True if a letter that no target takes is kept pending [DL-22]."""
        self.hop_limit = _hops(arguments, policy)
        """Count of hops that a message has left when it first dies here; OFF: DL-15 alone stops
        cycles."""
        self.delivery_limit = _smaller(arguments, policy, "delivery-limit")
        """Failed deliveries a message survives [DL-5]."""
        counts = _text(arguments, arguments, policy, "delivery-limit-counts")
        self.counts_nacks = counts != FAILURES
        """True if basic.nack with requeue counts as a failed delivery [DL-5]."""
        self.acquired_limit = _smaller(arguments, policy, "acquired-limit")
        """Number of deliveries of any kind after which a message is not requeued [DL-D6]."""
        self.max_priority = max(0, _integer(arguments.get("x-max-priority")))
        self.single_active = arguments.get("x-single-active-consumer") is True
        self.delayed_retry_min_ms = Ms(max(0, _smaller(arguments, policy, "delayed-retry-min")))
        """Milliseconds of delay for each failure, at least once."""
        most = _smaller(arguments, policy, "delayed-retry-max")
        self.delayed_retry_max_ms = Ms(most) if most > 0 else self.delayed_retry_min_ms
        """Maximum delay in milliseconds; the minimum if none is given."""
        retry = _text(policy, arguments, policy, "delayed-retry-type") or RETRY_DISABLED
        self.delayed_retry = retry if self.delayed_retry_min_ms else RETRY_DISABLED
        """Requeued messages that wait before they are ready again. DISABLED as long as no delay is
        given."""
        self.consumer_timeout_ms = shorter_timeout(
            _integer(arguments.get("x-consumer-timeout")), _integer(policy.get("consumer-timeout"))
        )
        """Milliseconds a delivery may stay unsettled; 0: no limit; OFF: the default [LC-4]."""
        self.records_deliveries = policy.get(LEDGER) != ACCOUNT or self.acquired_limit >= 0
        """True if the ledger records deliveries and their receivers. The account does not need
        them; a limit on deliveries does, because it counts them across a crash."""
        self.dedup_ms = Ms(_smaller(arguments, policy, "message-deduplication"))
        """Window in which a publisher-given id is accepted once; OFF: no deduplication."""
        after = _text(arguments, arguments, policy, "deliver-after")
        self.after_sync = UNSAID if after is None else int(after == SYNCED)
        """1 if persistent messages are delivered only once they are on disk, 0 if earlier; UNSAID:
        the broker's own setting applies."""
        self.slow_rule = rule_of_definition(policy)
        """Slow-consumer rule of the queue as a subscription to topics; None: not set by its
        policy."""
        self.is_stream = arguments.get("x-queue-type") == STREAM
        """True for a stream, which retains its messages for any number of readers. The settings
        above, except this one, have no effect on streams."""
        self.type = STREAM if self.is_stream else "quorum" if self.is_quorum else "classic"
        """Name of the queue type in declarations."""
        self.retain_bytes = OFF
        """Bytes that a stream retains, framing included."""
        self.max_age_ms = Ms(OFF)
        """Milliseconds that a stream retains a message."""
        self.segment_bytes = 0
        """Smallest number of bytes that a stream deletes at a time when it exceeds its size."""
        if self.is_stream:
            self._become_stream(arguments, policy)
        self.bounded = self.ttl_ms >= 0 or self.max_length >= 0 or self.max_bytes >= 0
        """True if ready messages need attention: they may expire or exceed a limit."""
        limited = self.max_length >= 0 or self.max_bytes >= 0
        self.guarded = (limited and self.overflow != DROP_HEAD) or self.dedup_ms > 0
        """True if a publish may be refused or dropped."""
        self.is_of_policy = bool(policy)
        """True if a policy says something here, with effect or without."""

    def needs_upkeep(self) -> bool:
        """Return whether the queue must be attended to when it changes or time passes."""
        is_kept = self.retain_bytes >= 0 or self.max_age_ms >= 0
        return self.bounded or is_kept or self.expires_ms >= 0

    def _become_stream(self, arguments: dict[str, object], policy: dict[str, object]) -> None:
        self.retain_bytes = self.max_bytes
        ages = [age_ms(arguments.get("x-max-age")), age_ms(policy.get("max-age"))]
        self.max_age_ms = min([age for age in ages if age >= 0], default=Ms(OFF))
        segment = _smaller(arguments, policy, "stream-max-segment-size-bytes")
        self.segment_bytes = max(0, segment)
        self.ttl_ms = self.expires_ms = self.dedup_ms = Ms(OFF)
        self.max_length = self.max_bytes = OFF
        self.delivery_limit = self.acquired_limit = self.hop_limit = OFF
        self.overflow = DROP_HEAD
        self.dead_letter_exchange = self.dead_letter_key = None
        self.at_least_once = self.single_active = False
        self.max_priority = 0
        self.delayed_retry = RETRY_DISABLED
        self.counts_nacks = True

    def retry_delay_ms(self, failures: int, failed: bool) -> Ms:
        """Return the delay of a requeued message, ms; 0: none [rabbitmq 4.3 delayed retry].

        failures: how often it has failed in this queue by now. failed: whether it did just now.
        """
        kind = self.delayed_retry
        if kind == RETRY_DISABLED or ((kind == RETRY_FAILED) != failed and kind != RETRY_ALL):
            return Ms(0)
        return Ms(min(self.delayed_retry_min_ms * max(1, failures), self.delayed_retry_max_ms))

    def same(self, other: Settings) -> bool:
        return self._values() == other._values()

    def _values(self) -> tuple[object, ...]:
        return (
            self.ttl_ms, self.expires_ms, self.max_length, self.max_bytes, self.overflow,
            self.dead_letter_exchange, self.dead_letter_key, self.at_least_once, self.hop_limit,
            self.delivery_limit, self.acquired_limit, self.max_priority, self.single_active,
            self.consumer_timeout_ms, self.dedup_ms, self.is_quorum, self.delayed_retry,
            self.delayed_retry_min_ms, self.delayed_retry_max_ms, self.is_stream,
            self.retain_bytes, self.max_age_ms, self.segment_bytes, self.records_deliveries,
            self.after_sync,
            None if self.slow_rule is None else self.slow_rule.values(), self.counts_nacks,
        )  # fmt: skip


def own_settings(arguments: dict[str, object]) -> Settings:
    """Return the settings of a queue to which no policy applies. Queues without arguments, but for
    their type, share one object each."""
    if not arguments:
        return _WITHOUT_ARGUMENTS
    kind = arguments.get("x-queue-type")
    if len(arguments) == 1 and isinstance(kind, str) and kind in _OF_TYPES:
        return _OF_TYPES[kind]
    return Settings(arguments, {})


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return OFF


def shorter_timeout(a: int, b: int) -> Ms:
    """Return the shorter of two time-outs; 0 means no limit and OFF means not set."""
    if a > 0 and b > 0:
        return Ms(min(a, b))
    return Ms(max(a, b, OFF))


def _smaller(arguments: dict[str, object], policy: dict[str, object], key: str) -> int:
    """Return the smaller of the two values; where one is negative, the larger."""
    own = _integer(arguments.get("x-" + key))
    given = _integer(policy.get(key))
    if own < 0 or given < 0:
        return max(own, given, OFF)
    return min(own, given)


def _text(
    first: dict[str, object], arguments: dict[str, object], policy: dict[str, object], key: str
) -> str | None:
    """Return a text; the value in `first` wins."""
    own, given = arguments.get("x-" + key), policy.get(key)
    value = given if first is policy and given is not None else own
    if value is None:
        value = given
    return value if isinstance(value, str) else None


def _hops(arguments: dict[str, object], policy: dict[str, object]) -> int:
    """Return the hop limit: a number, or true for the default. The argument wins, and false
    switches it off."""
    value = arguments.get("x-dead-letter-hop-limit")
    if value is None:
        value = policy.get("dead-letter-hop-limit")
    if isinstance(value, bool):
        return DEFAULT_HOPS if value else OFF
    return _integer(value)


_WITHOUT_ARGUMENTS: Final[Settings] = Settings({}, {})
_OF_TYPES: Final[dict[str, Settings]] = {
    kind: Settings({"x-queue-type": kind}, {}) for kind in ("classic", "quorum")
}
