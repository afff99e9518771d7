"""The filters of an attach: which are offered, and what they come to [amqp-1.0 §3.5.8, filtex §2].

    descriptor                                code                   value
    amqp:sql-filter                           0x120                  string: an SQL filter
    amqp:properties-filter                    0x173                  map
    amqp:application-properties-filter        0x174                  map
    apache.org:selector-filter:string         0x0000468C00000004     string: a JMS selector

The keys of the filter map are names that the client chose: the descriptor says what a filter is.
A message has to pass through all of them.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.filters.errors import FilterError, shown
from tallymark.bridge.filters.fields import Fields
from tallymark.bridge.filters.message_filter import MessageFilter
from tallymark.bridge.filters.nodes import And, Node
from tallymark.bridge.filters.parser import Parser
from tallymark.bridge.filters.properties import application_property_filter, property_filter
from tallymark.engine.clock import Clock
from tallymark.engine.filters import Filter
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
OFFERED: Final = tuple(CODES.values())
CAPABILITIES: Final = ("AMQP_FILTEX_SQL_V1_0", "AMQP_FILTEX_PROP_V1_0", "APACHE.ORG:SELECTOR")
"""What a connection that offers these filters may say of itself [filtex §2, RabbitMQ]."""
MOST_FILTERS: Final = 16
"""Of one link."""


def filters_of(
    asked: dict[object, object] | None, clock: Clock
) -> tuple[Filter | None, dict[object, object]]:
    """What a source's filter map asks for, and the part of the map that is in effect: what is not
    offered is left out of it. None: every message passes.

    clock: tells UTC() the time.
    Raises: FilterError for a filter that is offered and makes no sense.
    """
    supported: dict[object, object] = {}
    conditions: list[Node] = []
    fields = Fields()
    reads_time = False
    for name, value in (asked or {}).items():
        kind = _kind_of(name, value)
        if not kind:
            continue
        if len(supported) == MOST_FILTERS:
            raise FilterError(f"more than {MOST_FILTERS} filters")
        supported[name] = value
        assert isinstance(value, Described), value
        try:
            reads_time = _add(kind, value.value, fields, conditions) or reads_time
        except FilterError as error:
            raise FilterError(f"filter '{name}' ({kind}): {error.text}") from None
    if not conditions:
        return None, supported
    return MessageFilter(And(conditions), fields, clock, reads_time), supported


def _kind_of(name: object, value: object) -> str:
    """The name of the filter's kind; "": it is not offered."""
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
    """Append what a filter asks for; returns whether the answer depends on the time."""
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
