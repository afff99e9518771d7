"""Fields of messages in filter expressions, and their names.

Each gets a *slot*: the place of its value in the list that a reader fills (reading.py), so that a
message is looked through once for all of them, and only for them.

    section               SQL                      selector                     fields
    header                header.x h.x             amqp.x                       durable priority ttl
    properties            properties.x p.x         amqp.x, JMS...               the thirteen
    application-props     x, a.x, [any name]       x, "any name"                any
    message-annotations   message_annotations.x,   -                            any
                          m.x, m.[any-name]

What a broker changes on the way (first-acquirer, delivery-count, delivery-annotations) is nothing
to select by: a message would match today and not tomorrow.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.filters.errors import FilterError
from tallymark.bridge.filters.nodes import DeliveryMode, FieldValue, JmsId, Node

HEADER: Final = 0
PROPERTIES: Final = 1
APPLICATION: Final = 2
ANNOTATIONS: Final = 3

HEADER_FIELDS: Final = ("durable", "priority", "ttl")
"""Fields of the header in the order of the section [amqp-1.0 §3.2.1]; later ones cannot be selected
by."""
PROPERTY_FIELDS: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
"""Fields of the properties in the order of the section [amqp-1.0 §3.2.4]."""
MOST_FIELDS: Final = 64
"""Maximum number of different fields in all filters of a link."""

SECTIONS: Final = {
    "header": HEADER,
    "h": HEADER,
    "properties": PROPERTIES,
    "p": PROPERTIES,
    "application_properties": APPLICATION,
    "application-properties": APPLICATION,
    "a": APPLICATION,
    "message_annotations": ANNOTATIONS,
    "message-annotations": ANNOTATIONS,
    "m": ANNOTATIONS,
}
CLOSED_SECTIONS: Final = (
    "delivery_annotations", "delivery-annotations", "d", "footer", "f",
)  # fmt: skip
CHANGING: Final = ("first-acquirer", "delivery-count")

JMS_FIELDS: Final = {
    "JMSDeliveryMode": (HEADER, "durable"),
    "JMSPriority": (HEADER, "priority"),
    "JMSMessageID": (PROPERTIES, "message-id"),
    "JMSTimestamp": (PROPERTIES, "creation-time"),
    "JMSCorrelationID": (PROPERTIES, "correlation-id"),
    "JMSType": (PROPERTIES, "subject"),
    "JMSDestination": (PROPERTIES, "to"),
    "JMSReplyTo": (PROPERTIES, "reply-to"),
    "JMSExpiration": (PROPERTIES, "absolute-expiry-time"),
    "JMSXUserID": (PROPERTIES, "user-id"),
    "JMSXGroupID": (PROPERTIES, "group-id"),
    "JMSXGroupSeq": (PROPERTIES, "group-sequence"),
}
"""Fields behind the names of JMS [amqp-bindmap-jms §3.2]. JMS has no selectors on destination,
reply-to and expiration, but brokers do."""
JMS_CHANGING: Final = ("JMSRedelivered", "JMSXDeliveryCount")
AMQP_DOT: Final = "amqp."


@final
class Fields:
    """The slots assigned so far."""

    __slots__ = ("annotations", "application", "count", "header", "properties")

    def __init__(self) -> None:
        self.count = 0
        self.header: dict[str, int] = {}
        self.properties: dict[str, int] = {}
        self.application: dict[bytes, int] = {}
        self.annotations: dict[bytes, int] = {}
        """Slots of annotations by name, in UTF-8 where the name is the publisher's own choice."""

    def slot(self, section: int, name: str) -> int:
        """Return the slot of a field. Raises FilterError: too many fields, or an unknown one."""
        if section in (HEADER, PROPERTIES):
            return self._known(section, name)
        raw = name.encode("utf-8", "surrogatepass")
        named = self.application if section == APPLICATION else self.annotations
        found = named.get(raw)
        if found is None:
            found = named[raw] = self._next(name)
        return found

    def _known(self, section: int, name: str) -> int:
        offered = HEADER_FIELDS if section == HEADER else PROPERTY_FIELDS
        named = self.header if section == HEADER else self.properties
        field = name.replace("_", "-")
        if field not in offered:
            where = "the header" if section == HEADER else "properties"
            why = "changes on the way" if field in CHANGING else f"is no field of {where}"
            raise FilterError(f"'{name}' {why}, expected one of {', '.join(offered)}")
        found = named.get(field)
        if found is None:
            found = named[field] = self._next(name)
        return found

    def _next(self, name: str) -> int:
        if self.count == MOST_FIELDS:
            raise FilterError(f"'{name}' is one field too many, at most {MOST_FIELDS} are read")
        self.count += 1
        return self.count - 1

    # -- as the languages name them

    def sql(self, section: str, name: str) -> Node:
        """Return the field of an SQL filter; section "": none was given."""
        if not section:
            return FieldValue(self.slot(APPLICATION, name))
        number = SECTIONS.get(section)
        if number is None:
            why = "cannot be selected by" if section in CLOSED_SECTIONS else "is no section"
            raise FilterError(
                f"'{section}' {why}, expected header, properties, application_properties or "
                "message_annotations"
            )
        return FieldValue(self.slot(number, name))

    def selector(self, name: str) -> Node:
        """Return the field of a selector."""
        if name.startswith(AMQP_DOT):
            return self._amqp(name)
        place = JMS_FIELDS.get(name)
        if place is None:
            if name in JMS_CHANGING:
                raise FilterError(f"{name} changes on the way, nothing is selected by it")
            return FieldValue(self.slot(APPLICATION, name))
        field = FieldValue(self.slot(place[0], place[1]))
        if name == "JMSDeliveryMode":
            return DeliveryMode(field)
        return JmsId(field) if name in ("JMSMessageID", "JMSCorrelationID") else field

    def _amqp(self, name: str) -> Node:
        """Return the field behind `amqp.` and a name in header or properties, with underscores for
        hyphens [apache selector-filter]; amqp.delivery_mode is durable in JMS's form."""
        field = name[len(AMQP_DOT) :].replace("_", "-")
        if field == "delivery-mode":
            return DeliveryMode(FieldValue(self.slot(HEADER, "durable")))
        if field in HEADER_FIELDS or field in CHANGING:
            return FieldValue(self.slot(HEADER, field))
        return FieldValue(self.slot(PROPERTIES, field))
