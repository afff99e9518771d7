"""Arguments of queues and consumers: their types and ranges, and the types of queue that they suit.

A check returns what is wrong with a value, or "". The words are RabbitMQ's, because tests of its
clients compare them. It words what is wrong with a policy differently, so policies.py has checks of
its own.

QUEUE_CHECKS and CONSUMER_CHECKS have the known arguments; what those of a queue do is in
settings.py. On one node, some have no effect (QUEUE_WITHOUT_EFFECT): they are checked and compared.
Unknown arguments are kept and not compared. The types classic and quorum are one kind of queue with
different defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.names import is_routing_key
from tallymark.engine.table_values import type_name
from tallymark.units import Ms

MAX_PRIORITY: Final = 255
LONGEST_MS: Final = 315_360_000_000
"""Longest time that a queue or message may be given: ten years [rabbitmq MAX_EXPIRY_TIMER]."""
TIME: Final[str] = f"0 to {LONGEST_MS} milliseconds, ten years"
"""Range of a time, for texts of refusals."""
POSITIVE_TIME: Final[str] = f"1 to {LONGEST_MS} milliseconds, ten years"
"""Range of a time that must not be 0."""
LARGEST: Final = (1 << 63) - 1
"""Largest number that is no time: that of a table's longest integer."""
MAX_HOPS: Final = 255
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
STREAM: Final = "stream"
"""Queue type that retains its messages for any number of readers."""
AGE_UNITS: Final = {
    "Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000,
    "s": 1000,
}  # fmt: skip
"""Milliseconds in the unit that an age such as 7D ends with [rabbitmq x-max-age]."""
MOST_DIGITS: Final = 18
"""Maximum number of digits in an age."""
LARGEST_SEGMENT: Final = 3_000_000_000
"""Largest number of bytes that a stream may be told to delete at a time [rabbitmq]."""
DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
DROP_TAIL: Final = "drop-tail"
"""Overflow behaviour: a publish to a full queue is dropped and counted without notice to its
publisher, as in NSQ's ephemeral channels [NQ-10]."""
OVERFLOWS: Final = (DROP_HEAD, DROP_TAIL, REJECT_PUBLISH, REJECT_PUBLISH_DLX)
"""Overflow behaviours, of which a policy may have all but DROP_TAIL."""
AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
STRATEGIES: Final = (AT_MOST_ONCE, AT_LEAST_ONCE)
"""Strategies of dead-lettering: a letter that no target takes is dropped, or kept [DL-22]."""
RETURNS: Final = "returns"
FAILURES: Final = "failures"
LIMIT_COUNTS: Final = (RETURNS, FAILURES)
"""Counts for the delivery limit: every delivery that a client of AMQP 0-9-1 requeues (RabbitMQ 3.8
to 4.2), or only rejected ones and not those of basic.nack (4.3)."""
SYNCED: Final = "synced"
DELIVER_AFTER: Final = ("written", SYNCED)
"""Values of x-deliver-after. Persistent messages may be delivered once they are written to the
journal but perhaps not synced, or once they are synced to disk."""
RETRY_ALL: Final = "all"
RETRY_FAILED: Final = "failed"
RETRY_RETURNED: Final = "returned"
RETRY_DISABLED: Final = "disabled"
RETRY_TYPES: Final = (RETRY_ALL, RETRY_FAILED, RETRY_RETURNED, RETRY_DISABLED)
"""Types of delayed retry: the requeued messages that wait are all, those whose delivery failed, the
others, or none."""


def check_exchange_name(argument: str, what: str, arguments: dict[str, object]) -> None:
    """Check that the named argument, where given, is text and so can be an exchange's name.

    Raises: PreconditionFailed.
    """
    if argument in arguments and not isinstance(arguments[argument], str):
        raise PreconditionFailed(
            f"invalid type '{type_name(arguments[argument])}' for arg '{argument}' in {what}"
        )


def too_large(value: int, expected: str) -> str:
    """Return what is wrong with a number above its range: RabbitMQ's words, and the range."""
    return f"{{value_too_large,{value}}}, expected {expected}"


def _no_integer(value: object) -> str:
    """Return what is wrong with a value that is no integer. A time is none, though a number.

    Ask before the value is known to be an int: compiled code makes it a plain one there.
    """
    kind = type_name(value)
    if kind == "timestamp" or isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {kind}"'
    return ""


def _integer(value: object) -> str:
    wrong = _no_integer(value)
    if not wrong and isinstance(value, int) and value > LARGEST:
        return too_large(value, f"at most {LARGEST}")
    return wrong


def _not_negative(value: object) -> str:
    if isinstance(value, int) and value < 0:
        return f"{{value_negative,{value}}}"
    return _integer(value)


def _positive(value: object) -> str:
    if not _no_integer(value) and value == 0:
        return "{value_zero,0}"
    return _not_negative(value)


def milliseconds(value: object) -> str:
    """Return what is wrong with a time, perhaps 0, of an argument or a policy; "" if nothing."""
    if not _no_integer(value) and isinstance(value, int) and value > LONGEST_MS:
        return too_large(value, TIME)
    return _not_negative(value)


def positive_milliseconds(value: object) -> str:
    """Return what is wrong with a time that must not be 0; "" if nothing."""
    if not _no_integer(value) and isinstance(value, int) and value > LONGEST_MS:
        return too_large(value, POSITIVE_TIME)
    return _positive(value)


def _priorities(value: object) -> str:
    if not _no_integer(value) and isinstance(value, int) and value > MAX_PRIORITY:
        return f"{{max_value_exceeded,{value}}}"
    return _not_negative(value)


def _hops(value: object) -> str:
    if isinstance(value, bool):
        return ""
    if not _no_integer(value) and isinstance(value, int) and value > MAX_HOPS:
        return f"{{max_value_exceeded,{value}}}"
    return _not_negative(value)


def _boolean(value: object) -> str:
    return "" if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def _text(value: object) -> str:
    return "" if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


def _routing_key(value: object) -> str:
    wrong = _text(value)
    if wrong or is_routing_key(value):
        return wrong
    return '"expected a routing key: UTF-8, at most 255 bytes"'


def _one_of(words: tuple[str, ...], value: object, otherwise: str) -> str:
    """Return `otherwise` if a text is none of the words; "" if it is one."""
    return "" if value in words else _text(value) or otherwise


def _overflow(value: object) -> str:
    return _one_of(OVERFLOWS, value, "invalid_overflow")


def age_ms(value: object) -> Ms:
    """Return the milliseconds in an age such as 7D or 12h; -1 if the text is no age, or the age is
    0."""
    if not isinstance(value, str) or len(value) < 2:
        return Ms(-1)
    unit = AGE_UNITS.get(value[-1])
    digits = value[:-1]
    if unit is None or not (digits.isascii() and digits.isdigit()) or len(digits) > MOST_DIGITS:
        return Ms(-1)
    return Ms(min(int(digits) * unit, LONGEST_MS) or -1)


def _age(value: object) -> str:
    return _text(value) or ("" if age_ms(value) >= 0 else "invalid_max_age")


def _queue_mode(value: object) -> str:
    return _one_of(("default", "lazy"), value, f"\"unsupported queue mode '{value}'\"")


def _queue_version(value: object) -> str:
    wrong = _not_negative(value)
    return wrong if wrong or value in (1, 2) else f"\"unsupported queue version '{value}'\""


def _queue_type(value: object) -> str:
    return _one_of(QUEUE_TYPES, value, f"\"unsupported queue type '{value}'\"")


def _dead_letter_strategy(value: object) -> str:
    return _one_of(STRATEGIES, value, "invalid_dlx_strategy")


def _limit_counts(value: object) -> str:
    return _one_of(LIMIT_COUNTS, value, "invalid_delivery_limit_counts")


def _retry_type(value: object) -> str:
    return _one_of(RETRY_TYPES, value, "invalid_delayed_retry_type")


def _deliver_after(value: object) -> str:
    return _one_of(DELIVER_AFTER, value, "invalid_deliver_after")


QUEUE_CHECKS: Final[dict[str, Callable[[object], str]]] = {
    "x-queue-type": _queue_type,
    "x-expires": positive_milliseconds,
    "x-message-ttl": milliseconds,
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _routing_key,
    "x-dead-letter-strategy": _dead_letter_strategy,
    "x-dead-letter-hop-limit": _hops,
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _priorities,
    "x-overflow": _overflow,
    "x-queue-mode": _queue_mode,
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _boolean,
    "x-delivery-limit": _integer,
    "x-delivery-limit-counts": _limit_counts,
    "x-acquired-limit": _not_negative,
    "x-consumer-timeout": milliseconds,
    "x-delayed-retry-type": _retry_type,
    "x-delayed-retry-min": positive_milliseconds,
    "x-delayed-retry-max": positive_milliseconds,
    "x-message-deduplication": positive_milliseconds,
    "x-deliver-after": _deliver_after,
    "x-max-age": _age,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-stream-filter-size-bytes": _not_negative,
    "x-initial-cluster-size": _positive,
    "x-quorum-initial-group-size": _positive,
    "x-queue-leader-locator": _text,
    "x-queue-master-locator": _text,
}
QUEUE_ARGUMENTS: Final = list(QUEUE_CHECKS)
"""Names of the arguments that are compared when a queue is declared again."""
QUEUE_WITHOUT_EFFECT: Final = (
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-queue-mode",
    "x-queue-version",
    "x-quorum-initial-group-size",
    "x-queue-leader-locator",
    "x-queue-master-locator",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
)
"""Names of the arguments that are accepted and have no effect."""
STREAM_ARGUMENTS: Final = (
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
)
OF_STREAMS: Final = frozenset(
    ("x-queue-type", "x-max-length-bytes", "x-queue-leader-locator", *STREAM_ARGUMENTS)
)
"""Names of the known arguments that a stream may have."""
READ_ARGUMENTS: Final = ("x-stream-offset",)
"""Consumer arguments for streams only."""
NOT_FOR_READERS: Final = ("x-priority", "x-cancel-on-ha-failover")
"""Consumer arguments for other queues than streams only."""
CONSUMER_CHECKS: Final[dict[str, Callable[[object], str]]] = {
    "x-priority": _integer,
    "x-consumer-timeout": milliseconds,
    "x-cancel-on-ha-failover": _boolean,
}


def _check(
    checks: dict[str, Callable[[object], str]], what: str, arguments: dict[str, object]
) -> None:
    for name, check in checks.items():
        if name in arguments:
            wrong = check(arguments[name])
            if wrong:
                raise PreconditionFailed(f"invalid arg '{name}' for {what}: {wrong}")


def check_queue_arguments(what: str, arguments: dict[str, object]) -> None:
    """Check type and range of every known argument of a new queue.

    Raises: PreconditionFailed.
    """
    check_exchange_name("x-dead-letter-exchange", what, arguments)
    _check(QUEUE_CHECKS, what, arguments)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise PreconditionFailed(
            f"invalid arg 'x-dead-letter-routing-key' for {what}: routing_key_but_no_dlx_defined"
        )
    wrong = delays_out_of_order(
        arguments.get("x-delayed-retry-min"), arguments.get("x-delayed-retry-max")
    )
    if wrong:
        raise PreconditionFailed(f"invalid arg 'x-delayed-retry-max' for {what}: {wrong}")
    if arguments.get("x-queue-type") == STREAM:
        wrong_for = [n for n in QUEUE_ARGUMENTS if n in arguments and n not in OF_STREAMS]
    else:
        wrong_for = [name for name in STREAM_ARGUMENTS if name in arguments]
    if wrong_for:
        raise _wrong_type(wrong_for[0], what, _kind(arguments))
    segment = arguments.get("x-stream-max-segment-size-bytes")
    if isinstance(segment, int) and segment > LARGEST_SEGMENT:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")


def _kind(arguments: dict[str, object]) -> str:
    """Return RabbitMQ's name for the type of a queue with these arguments."""
    type = arguments.get("x-queue-type", "classic")
    return f"rabbit_{type}_queue"


def _wrong_type(name: str, what: str, kind: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{name}' for {what} of queue type {kind}")


def delays_out_of_order(least: object, most: object) -> str:
    """Return an error text if the two limits of delayed retry contradict each other; "" if not."""
    if isinstance(least, int) and isinstance(most, int) and most < least:
        return f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})"
    return ""


def check_lasting(
    what: str, arguments: dict[str, object], durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Check that a queue of type quorum or stream is durable, not exclusive and not auto-delete.
    Raises: PreconditionFailed."""
    if arguments.get("x-queue-type") not in ("quorum", STREAM):
        return
    if not durable and not exclusive:
        raise PreconditionFailed(f"invalid property 'non-durable' for {what}")
    if exclusive:
        raise PreconditionFailed(f"invalid property 'exclusive-owner' for {what}")
    if auto_delete:
        raise PreconditionFailed(f"invalid property 'auto-delete' for {what}")


def check_server_named(name: str, arguments: dict[str, object]) -> None:
    """Check that a queue whose name is chosen by the broker is of type classic. Raises:
    PreconditionFailed."""
    if not name and arguments.get("x-queue-type") in ("quorum", STREAM):
        raise PreconditionFailed(f"Cannot declare a server-named queue for type {_kind(arguments)}")


def may_take_default_type(
    name: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, object]
) -> bool:
    """Return whether a default queue type applies to a declaration: it names no type. Queues that
    are not lasting, and queues named by the broker, are always classic."""
    is_lasting = durable and not exclusive and not auto_delete
    return name != "" and is_lasting and "x-queue-type" not in arguments


def check_default_type(type: str) -> None:
    """Check the default queue type of a virtual host; "" means none. Raises: PreconditionFailed."""
    if type and type not in QUEUE_TYPES:
        raise PreconditionFailed(
            f"unsupported queue type '{type}', expected one of {', '.join(QUEUE_TYPES)}"
        )


def check_consumer_arguments(what: str, arguments: dict[str, object]) -> None:
    """Check the type of every known argument of a consumer. Raises: PreconditionFailed."""
    _check(CONSUMER_CHECKS, what, arguments)


def check_consumer_suits(
    what: str, arguments: dict[str, object], of_queue: dict[str, object]
) -> None:
    """Check that a consumer's arguments suit a queue with the arguments `of_queue`. Raises:
    PreconditionFailed."""
    is_stream = of_queue.get("x-queue-type") == STREAM
    for name in NOT_FOR_READERS if is_stream else READ_ARGUMENTS:
        if name in arguments:
            raise _wrong_type(name, what, _kind(of_queue))


def consumer_priority(arguments: dict[str, object]) -> int:
    """Return `x-priority` of checked arguments, 0 by default. Higher priorities are served
    first."""
    value = arguments.get("x-priority", 0)
    return value if isinstance(value, int) else 0


def consumer_timeout_ms(arguments: dict[str, object]) -> Ms:
    """Return `x-consumer-timeout` of checked arguments, which overrides the queue's; -1 if it is
    not given."""
    value = arguments.get("x-consumer-timeout")
    return Ms(int(value) if isinstance(value, int) else -1)
