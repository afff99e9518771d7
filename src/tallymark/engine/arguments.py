"""Arguments and names of declarations: their types, ranges, and when two declarations say the same;
names made by the broker.

A value is what a protocol's table can hold: None, bool, int, float, str, bytes, Decimal, datetime,
list and dict of these. Texts follow RabbitMQ, whose clients' tests compare them; types are named as
in AMQP 0-9-1 tables.

Acted upon: x-message-ttl, x-expires, x-max-length, x-max-length-bytes, x-overflow, x-dead-letter-
exchange, x-dead-letter-routing-key, x-dead-letter-strategy, x-dead-letter-hop-limit, x-delivery-
limit, x-acquired-limit, x-consumer-timeout, x-delayed-retry-type, x-delayed-retry-min, x-delayed-
retry-max, x-message-deduplication, x-deliver-after, x-max-priority, x-single-active-consumer (see
settings.py), on queues of both types; x-queue-type classic and quorum, which are one kind of queue
with other defaults; of consumers x-priority and x-consumer-timeout; of streams (x-queue-type
stream) x-max-length-bytes, x-max-age and x-stream-max-segment-size-bytes. Accepted, compared, and
without meaning here, on one node: x-queue-mode, x-queue-version, x-max-in-memory-length, x-max-in-
memory-bytes, x-quorum-initial-group-size, x-queue-leader-locator, x-queue-master-locator, x-stream-
filter-size-bytes, x-initial-cluster-size. Unknown arguments are kept and not compared.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Container
from datetime import datetime
from decimal import Decimal
from typing import Final

from tallymark.engine.errors import AccessRefused, InvalidCommand, PreconditionFailed
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
LARGEST_DESCRIPTION: Final = 4096
"""Bytes of a virtual host's description, at most."""
MOST_TAGS: Final = 64
LONGEST_TAG: Final = 255
"""Bytes of a virtual host's tag, at most."""
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
DELIVER_AFTER: Final = ("written", "synced")
"""Values of x-deliver-after. Persistent messages may be delivered once they are written to the
journal but perhaps not synced, or once they are synced to disk."""
RETRY_TYPES: Final = ("all", "failed", "returned", "disabled")
"""Types of delayed retry: the requeued messages that wait are all, those whose delivery failed, the
others, or none."""
TAGGED_TYPES: Final = {
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "T": "timestamp",
}
"""Type names by the `tag` that a protocol's numbers of unusual width, and its times, may have."""


def wire_bytes(text: str) -> bytes:
    """Return the bytes a protocol's string was decoded from. Bytes that are not UTF-8 were decoded
    by surrogateescape."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def named(kind: str, name: str, vhost: str) -> str:
    """Return a thing's name as error texts show it: `queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def type_name(value: object) -> str:
    """Return the AMQP 0-9-1 name of a value's type."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    # Asked before the value is known to be an int: compiled code turns it into a plain one there.
    tagged = TAGGED_TYPES.get(str(getattr(value, "tag", "")))
    if isinstance(value, int):
        return tagged or ("signedint" if -(1 << 31) <= value < 1 << 31 else "long")
    if isinstance(value, float):
        return tagged or "double"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, (bytes, bytearray)):
        return "binary"
    if isinstance(value, dict):
        return "table"
    if isinstance(value, (list, tuple)):
        return "array"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, datetime):
        return "timestamp"
    return type(value).__name__


def erlang_term(value: object) -> str:
    """Return a value, as JSON has it, in the form in which RabbitMQ prints terms in its texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'<<"{value}">>' if value else "<<>>"
    if isinstance(value, (bytes, bytearray)):
        return erlang_term(bytes(value).decode("utf-8", "replace"))
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([erlang_term(item) for item in value]) + "]"
    if isinstance(value, dict):
        fields = [f"{erlang_term(name)} => {erlang_term(item)}" for name, item in value.items()]
        return "#{" + ",".join(fields) + "}"
    if isinstance(value, Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        return f"{{{-int(exponent)},{int(''.join(map(str, digits)))}}}"
    return "undefined" if value is None else str(value)


def table_term(value: object) -> str:
    """Return a value of a table as erlang_term does, but with the types of what it contains."""
    if isinstance(value, (list, tuple)):
        items = [f"{{{type_name(item)},{table_term(item)}}}" for item in value]
        return "[" + ",".join(items) + "]"
    if isinstance(value, dict):
        fields = [
            f"{{{erlang_term(name)},{type_name(item)},{table_term(item)}}}"
            for name, item in value.items()
        ]
        return "[" + ",".join(fields) + "]"
    return erlang_term(value)


def shown(value: object) -> str:
    """Return a value between quotes, as RabbitMQ shows it in texts about inequivalent arguments."""
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value).decode("utf-8", "replace")
    return f"'{value}'" if isinstance(value, str) else f"'{table_term(value)}'"


def equal_values(a: object, b: object) -> bool:
    """Return whether two table values are equal: numbers by value (1 equals 1.0), text by its bytes
    whether string or binary, booleans only with booleans, containers by their items."""
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if isinstance(a, (str, bytes, bytearray)) and isinstance(b, (str, bytes, bytearray)):
        raw_a = wire_bytes(a) if isinstance(a, str) else bytes(a)
        raw_b = wire_bytes(b) if isinstance(b, str) else bytes(b)
        return raw_a == raw_b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return False
        return all(equal_values(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        if len(a) != len(b):
            return False
        for name, value in a.items():
            if name not in b or not equal_values(value, b[name]):
                return False
        return True
    return type(a) is type(b) and a == b


def same_argument(a: object, b: object) -> bool:
    """Return whether two arguments of declarations are equal: as equal_values, but 1 is not 1.0."""
    return isinstance(a, float) == isinstance(b, float) and equal_values(a, b)


def inequivalent(name: str, what: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {what}: received {received} but current is {current}"
    )


def check_same_flag(name: str, what: str, received: bool, current: bool) -> None:
    """Raise PreconditionFailed if a re-declaration changes a property such as `durable`."""
    if received != current:
        raise inequivalent(name, what, shown(received), shown(current))


def check_same_arguments(
    names: list[str], what: str, received: dict[str, object], current: dict[str, object]
) -> None:
    """Refuse a re-declaration that changes one of the named arguments.

    A queue type of "classic" is the same as none. Raises: PreconditionFailed.
    """
    for name in names:
        if name not in received and name not in current:
            continue
        if name in received and name in current:
            new, old = received[name], current[name]
            if not same_argument(new, old):
                raise inequivalent(name, what, shown(new), shown(old))
        elif name != "x-queue-type" or (received.get(name) or current.get(name)) != "classic":
            raise inequivalent(name, what, _described(name, received), _described(name, current))


def _described(name: str, arguments: dict[str, object]) -> str:
    if name not in arguments:
        return "none"
    return f"the value {shown(arguments[name])} of type '{type_name(arguments[name])}'"


def check_exchange_name(argument: str, what: str, arguments: dict[str, object]) -> None:
    """Check that the named argument, where given, is text and so can be an exchange's name.

    Raises: PreconditionFailed.
    """
    if argument in arguments and not isinstance(arguments[argument], str):
        raise PreconditionFailed(
            f"invalid type '{type_name(arguments[argument])}' for arg '{argument}' in {what}"
        )


# A check returns what is wrong with the value, as RabbitMQ words it, or "".


def too_large(value: int, expected: str) -> str:
    """Return what is wrong with a number above its range: RabbitMQ's words, and the range."""
    return f"{{value_too_large,{value}}}, expected {expected}"


def _no_integer(value: object) -> str:
    """Return what is wrong with a value that is none: a time, though a number, is not one. Ask
    before the value is known to be an int: compiled code makes it a plain one there."""
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


def is_routing_key(value: object) -> bool:
    """Return whether a routing key can be sent to readers: UTF-8 text of at most 255 bytes
    [amqp-0.9.1 shortstr]."""
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= 255
    except UnicodeEncodeError:
        return False


def _routing_key(value: object) -> str:
    wrong = _text(value)
    if wrong or is_routing_key(value):
        return wrong
    return '"expected a routing key: UTF-8, at most 255 bytes"'


def _overflow(value: object) -> str:
    if value in ("drop-head", "drop-tail", "reject-publish", "reject-publish-dlx"):
        return ""
    return _text(value) or "invalid_overflow"


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
    if value in ("default", "lazy"):
        return ""
    return _text(value) or f"\"unsupported queue mode '{value}'\""


def _queue_version(value: object) -> str:
    wrong = _not_negative(value)
    return wrong if wrong or value in (1, 2) else f"\"unsupported queue version '{value}'\""


def _queue_type(value: object) -> str:
    if value in QUEUE_TYPES:
        return ""
    return _text(value) or f"\"unsupported queue type '{value}'\""


def _dead_letter_strategy(value: object) -> str:
    if value in ("at-most-once", "at-least-once"):
        return ""
    return _text(value) or "invalid_dlx_strategy"


def _limit_counts(value: object) -> str:
    if value in ("returns", "failures"):
        return ""
    return _text(value) or "invalid_delivery_limit_counts"


def _retry_type(value: object) -> str:
    if value in RETRY_TYPES:
        return ""
    return _text(value) or "invalid_delayed_retry_type"


def _deliver_after(value: object) -> str:
    if value in DELIVER_AFTER:
        return ""
    return _text(value) or "invalid_deliver_after"


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


def check_named(name: str, arguments: dict[str, object]) -> None:
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


def check_description(description: str, tags: tuple[str, ...]) -> None:
    """Check that a virtual host's description and tags are of a size to be kept. Raises:
    PreconditionFailed."""
    size = len(description.encode("utf-8", "surrogatepass"))
    if size > LARGEST_DESCRIPTION:
        raise PreconditionFailed(
            f"description of {size} bytes, expected {LARGEST_DESCRIPTION} at most"
        )
    if len(tags) > MOST_TAGS:
        raise PreconditionFailed(f"{len(tags)} tags, expected {MOST_TAGS} at most")
    for tag in tags:
        size = len(tag.encode("utf-8", "surrogatepass"))
        if size > LONGEST_TAG:
            raise PreconditionFailed(f"tag of {size} bytes, expected {LONGEST_TAG} at most")


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


def cleaned(name: str) -> str:
    """Return a name as it is stored: without line breaks."""
    return name.replace("\r", "").replace("\n", "")


def check_new_name(kind: str, name: str) -> None:
    """Check a new name. Raises AccessRefused for a name reserved for the broker, InvalidCommand for
    one that cannot be sent to readers of AMQP 0-9-1, whose deliveries contain it."""
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if not is_routing_key(name):
        raise InvalidCommand(f"{kind} name {name!r:.60}, expected UTF-8 text of at most 255 bytes")


def free_name(id: int, seed: bytes, taken: Container[str]) -> str:
    """Return a free queue name. The id makes it unique, the seed unguessable."""
    salt = 0
    while True:
        digest = hashlib.blake2b(b"%d.%d" % (id, salt), key=seed[:64], digest_size=16)
        text = urlsafe_b64encode(digest.digest()).decode("ascii").rstrip("=")
        name = f"amq.gen-{text}"
        if name not in taken:
            return name
        salt += 1
