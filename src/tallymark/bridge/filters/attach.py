"""The filters of an attach: those offered, and the conditions they stand for
[amqp-1.0 §3.5.8, filtex §2].

    descriptor                                code                   value
    amqp:sql-filter                           0x120                  string: an SQL filter
    amqp:properties-filter                    0x173                  map
    amqp:application-properties-filter        0x174                  map
    apache.org:selector-filter:string         0x0000468C00000004     string: a JMS selector
  of streams only
    rabbitmq:stream-filter                    -                      string, or a list of such
    rabbitmq:stream-match-unfiltered          -                      boolean

The keys of the filter map are names that the client chose: the descriptor says what a filter is.
A message has to pass through all of them.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.filters.errors import FilterError, shown
from tallymark.bridge.filters.fields import ANNOTATIONS, Fields
from tallymark.bridge.filters.message_filter import MessageFilter
from tallymark.bridge.filters.nodes import And, Constant, FieldValue, In, IsNull, Node, Or
from tallymark.bridge.filters.parser import Parser
from tallymark.bridge.filters.properties import application_property_filter, property_filter
from tallymark.engine.clock import Clock
from tallymark.engine.message import Filter
from tallymark.wire.amqp10.types import Described

SQL_FILTER: Final = "amqp:sql-filter"
PROPERTIES_FILTER: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES_FILTER: Final = "amqp:application-properties-filter"
SELECTOR_FILTER: Final = "apache.org:selector-filter:string"
CODES: Final[dict[int, str]] = {
    0x120: SQL_FILTER,
    0x173: PROPERTIES_FILTER,
    0x174: APPLICATION_PROPERTIES_FILTER,
    0x0000_468C_0000_0004: SELECTOR_FILTER,
}
STREAM_FILTER: Final = "rabbitmq:stream-filter"
MATCH_UNFILTERED: Final = "rabbitmq:stream-match-unfiltered"
FILTER_VALUE: Final = "x-stream-filter-value"
"""Annotation, or header of AMQP 0-9-1, whose value a stream filter compares."""
OFFERED: Final = tuple(CODES.values())
CAPABILITIES: Final = ("AMQP_FILTEX_SQL_V1_0", "AMQP_FILTEX_PROP_V1_0", "APACHE.ORG:SELECTOR")
"""Capabilities of a connection that offers these filters [filtex §2, RabbitMQ]."""
MOST_FILTERS: Final = 16
"""Maximum number of filters of one link."""
MOST_VALUES: Final = 64
"""Maximum number of values of one stream filter."""


def filters_of(
    asked: dict[object, object] | None, clock: Clock, of_stream: bool = False
) -> tuple[Filter | None, dict[object, object]]:
    """Return the filter that a source's filter map requests, and the part of the map that is in
    effect, without filters that are not offered. None: every message passes.

    clock: tells UTC() the time.
    of_stream: stream filters are offered, too. RabbitMQ looks at chunks by a Bloom filter, so that
        a client has to look at each message again; here what does not match does not come.
    Raises: FilterError for a filter that is offered and makes no sense.
    """
    supported: dict[object, object] = {}
    conditions: list[Node] = []
    fields = Fields()
    reads_time = False
    if of_stream:
        conditions += _stream_filter(asked or {}, fields, supported)
    for name, value in (asked or {}).items():
        kind = _kind_of(name, value)
        if not kind or not isinstance(value, Described):
            continue
        if len(supported) == MOST_FILTERS:
            raise FilterError(f"more than {MOST_FILTERS} filters")
        supported[name] = value
        try:
            reads_time = _add(kind, value.value, fields, conditions) or reads_time
        except FilterError as error:
            raise FilterError(f"filter '{name}' ({kind}): {error.text}") from None
    if not conditions:
        return None, supported
    return MessageFilter(And(conditions), fields, clock, reads_time), supported


def _stream_filter(
    asked: dict[object, object], fields: Fields, supported: dict[object, object]
) -> list[Node]:
    """Return the condition that a message has one of the values, or none if unfiltered messages are
    to match as well."""
    wanted: list[Node] = []
    takes_unfiltered = False
    for name, value in asked.items():
        kind, said = name, value
        if isinstance(value, Described):
            kind, said = value.descriptor, value.value
        if kind == STREAM_FILTER:
            wanted += _values(name, said)
        elif kind == MATCH_UNFILTERED:
            if not isinstance(said, bool):
                text = f"filter '{name}' ({kind}): {shown(said)} found, expected a boolean"
                raise FilterError(text)
            takes_unfiltered = said
        else:
            continue
        supported[name] = value
    if not wanted:
        return []
    field = FieldValue(fields.slot(ANNOTATIONS, FILTER_VALUE))
    matches: Node = In(field, wanted)
    return [Or([matches, IsNull(field)]) if takes_unfiltered else matches]


def _values(name: object, said: object) -> list[Node]:
    values = said if isinstance(said, list) else [said]
    if not 0 < len(values) <= MOST_VALUES or not all(isinstance(one, str) for one in values):
        raise FilterError(
            f"filter '{name}' ({STREAM_FILTER}): {shown(said)} found, expected a string or 1 to "
            f"{MOST_VALUES} of them"
        )
    return [Constant(str(one)) for one in values]


def _kind_of(name: object, value: object) -> str:
    """Return the name of the filter's kind; "" if it is not offered."""
    if not isinstance(value, Described):
        if value is not None and str(name) in OFFERED:
            raise FilterError(f"filter '{name}' is {shown(value)}, expected a described value")
        return ""
    descriptor = value.descriptor
    if isinstance(descriptor, str):
        return str(descriptor) if str(descriptor) in OFFERED else ""
    if isinstance(descriptor, bool) or not isinstance(descriptor, int):
        return ""
    return CODES.get(descriptor, "")


def _add(kind: str, value: object, fields: Fields, conditions: list[Node]) -> bool:
    """Append the conditions of a filter; return whether the result depends on the time."""
    if kind == PROPERTIES_FILTER:
        conditions += property_filter(value, fields)
        return False
    if kind == APPLICATION_PROPERTIES_FILTER:
        conditions += application_property_filter(value, fields)
        return False
    if not isinstance(value, str):
        raise FilterError(f"{shown(value)} found, expected a string")
    parser = Parser(str(value), fields, kind == SQL_FILTER)
    conditions.append(parser.parse())
    return parser.reads_time
