"""Source filters: which messages of a queue a receiver wants [amqp-1.0 §3.5.8, AMQP filter
expressions 1.0].

    session.receiver("/queues/orders", filter=sql("properties.subject = 'new' AND n > 3"))

A broker that does not know a filter leaves it out of its answer: `receiver.filter` says what is in
effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tallymark.client.arguments import check_fields, check_text
from tallymark.wire.amqp10.types import Described, Symbol, Timestamp, ULong

SQL = "amqp:sql-filter"
PROPERTIES = "amqp:properties-filter"
APPLICATION_PROPERTIES = "amqp:application-properties-filter"
SELECTOR = "apache.org:selector-filter:string"
STREAM_OFFSET = "rabbitmq:stream-offset-spec"


def sql(expression: str) -> dict[str, object]:
    """An SQL filter expression, as RabbitMQ 4.2 and Tallymark have it."""
    check_text("expression", expression)
    return _one("sql-filter", SQL, expression)


def selector(expression: str) -> dict[str, object]:
    """A JMS selector, as ActiveMQ, Artemis, Qpid and Tallymark have it."""
    check_text("expression", expression)
    return _one("selector", SELECTOR, expression)


def properties(**values: object) -> dict[str, object]:
    """Properties must be equal: `properties(subject="new", group_id="g")`. A text that begins with
    `$p:` is a prefix, with `$s:` a suffix."""
    fields: dict[object, object] = {}
    for name, value in values.items():
        fields[Symbol(name.replace("_", "-"))] = value
    return _one("properties-filter", PROPERTIES, fields)


def application_properties(values: Mapping[str, object]) -> dict[str, object]:
    """Return the filter for messages with these application properties; text is matched as by the
    properties' filter."""
    check_fields("values", values, optional=False)
    fields: dict[object, object] = dict(values.items())
    return _one("application-properties-filter", APPLICATION_PROPERTIES, fields)


def stream_offset(start: int | str | datetime) -> dict[str, object]:
    """Return the filter that names where to begin reading a stream, as RabbitMQ and Tallymark have
    it: an offset; `first`, `last` or `next`; an interval back from now, such as `5m`; or a time
    (one without a time zone is local time). Joined with others by `|`: `stream_offset("first") |
    sql("n > 3")`.

    Raises ValueError: an offset below 0, or a time before 1970.
    """
    value: object = start
    if isinstance(start, bool) or not isinstance(start, int | str | datetime):
        raise TypeError(f"start={start!r:.80}, expected an offset, a text or a datetime")
    if isinstance(start, datetime):
        ms = int(start.timestamp() * 1000)
        if ms < 0:
            raise ValueError(f"stream offset {start}: expected a time from 1970 on")
        value = Timestamp(ms)
    elif isinstance(start, int):
        if start < 0:
            raise ValueError(f"stream offset {start}: expected 0 or more")
        value = ULong(start)
    return _one(STREAM_OFFSET, STREAM_OFFSET, value)


def _one(name: str, descriptor: str, value: object) -> dict[str, object]:
    return {name: Described(Symbol(descriptor), value)}
