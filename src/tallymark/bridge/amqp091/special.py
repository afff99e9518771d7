"""Special properties, on which a broker acts at publish: user-id, expiration, reply-to, and headers
CC, BCC and x-delay.

All messages of such a stretch have equal properties, so everything here is done once per stretch,
but for writing the changed ones into each message.
"""

from __future__ import annotations

import re
from array import array
from typing import Final, final

from tallymark.bridge.amqp091.channel import Channel, Client
from tallymark.bridge.direct_reply import PREFIX, PSEUDO_QUEUE
from tallymark.bridge.permissions import Access
from tallymark.engine.arguments import LONGEST_MS, TIME, too_large
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.exchange import property_key
from tallymark.engine.table_values import type_name, wire_bytes
from tallymark.stored.annotations import Annotations
from tallymark.units import EngineMs, Ms
from tallymark.wire.amqp091.fields import Timestamp
from tallymark.wire.amqp091.properties import (
    Properties,
    decode_properties,
    encode_properties,
    is_special_by_reply_to_alone,
    reply_to_at,
)
from tallymark.wire.octets import pair

DELAY: Final = "x-delay"
LONGEST_DELAY_MS: Final = (1 << 32) - 1
"""Longest delay in milliseconds. A longer one is ignored, as in
rabbitmq_delayed_message_exchange."""
_ASKS: Final = bytes((len(PSEUDO_QUEUE),)) + PSEUDO_QUEUE.encode()
"""Value of reply-to in a request."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_SHORT_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,20}")


@final
class Special:
    """The consequences of a property section."""

    __slots__ = ("annotations", "headers", "more_keys", "returned", "section")

    def __init__(
        self,
        annotations: Annotations | None,
        more_keys: list[str],
        headers: dict[str, object] | None,
        section: bytes | None,
        returned: bytes | None,
    ) -> None:
        self.annotations = annotations
        """Annotations of the messages, if they need any."""
        self.more_keys = more_keys
        """Further routing keys: CC, then BCC."""
        self.headers = headers
        """Headers and properties for routing by headers; None: not read yet."""
        self.section = section
        """Property section for consumers, if it differs from the publisher's."""
        self.returned = returned
        """Property section for messages returned to their publisher, if it differs. The publisher
        may send them again as they are, and they must be delayed again then."""


def asks_for_reply(channel: Channel, section: bytes) -> Special | None:
    """Return the consequences of a property section where they are those of reply-to alone: its
    value is replaced and the rest left as it is. None: read all of it (`examine`).

    Requests are like that, and to decode one costs more than all else that publishing it takes."""
    consumer = channel.reply_consumer
    if consumer is None or not is_special_by_reply_to_alone(section):
        return None
    at = reply_to_at(section, 0)
    end = at + len(_ASKS)
    if section[at:end] != _ASKS:
        return None
    new = section[:at] + consumer.address + section[end:]
    return Special(None, [], None, new, new)


def examine(channel: Channel, section: bytes) -> Special:
    """Check a property section and return its consequences.

    Raises:
        PreconditionFailed: another user's id, a malformed expiration, CC or BCC that is no array,
            reply-to without a reply consumer. A malformed x-delay is no error: it says nothing.
        WireError: it cannot be decoded.
    """
    properties = decode_properties(section)
    changed = False
    if properties.reply_to == PSEUDO_QUEUE:
        consumer = channel.reply_consumer
        if consumer is None:
            raise PreconditionFailed("fast reply consumer does not exist")
        properties.reply_to = PREFIX + consumer.token
        changed = True
    check_user(properties.user_id, channel.client.access)
    ttl_ms = time_to_live(properties.expiration)
    headers = properties.headers
    more_keys: list[str] = []
    bcc: list[str] = []
    delay_ms = due_ms = 0
    if headers is not None:
        bcc = _keys(headers, "BCC")
        more_keys = _keys(headers, "CC") + bcc
        delay_ms = delay_of(headers.get(DELAY))
        if delay_ms:
            due_ms = channel.client.owner.engine_ms + delay_ms
    annotations = _annotations(channel.client, ttl_ms, tuple(more_keys), tuple(bcc), due_ms)
    seen = _seen_by_routing(properties)
    if headers is not None and "BCC" in headers:
        del headers["BCC"]
        changed = True
    new = returned = encode_properties(properties) if changed else None
    if headers is not None and delay_ms:
        headers[DELAY] = seen[DELAY] = -delay_ms
        new = encode_properties(properties)
    return Special(annotations, more_keys, seen, new, returned)


def _annotations(
    client: Client,
    ttl_ms: int,
    more_keys: tuple[str, ...],
    bcc: tuple[str, ...],
    due_ms: int,
) -> Annotations | None:
    """Return the annotations for messages with these properties. Equal annotations of consecutive
    messages are one object, since stretches in a queue can only be merged if they share it."""
    if ttl_ms < 0 and not more_keys and not due_ms:
        return None
    last = client.annotations
    if (
        last is None
        or last.ttl_ms != ttl_ms
        or last.more_keys != more_keys
        or last.bcc != bcc
        or last.due_ms != due_ms
    ):
        last = Annotations(ttl_ms=Ms(ttl_ms), more_keys=more_keys, bcc=bcc, due_ms=EngineMs(due_ms))
        client.annotations = last
    return last


def check_user(user_id: str | None, access: Access) -> None:
    """Check that a message claims no other user [rabbitmq validated user-id]. Raises
    PreconditionFailed."""
    if user_id is not None and not access.may_claim(user_id):
        raise PreconditionFailed(
            f"user_id property set to '{user_id}' but authenticated user was '{access.user}'"
        )


def time_to_live(expiration: str | None) -> int:
    """Return an expiration in milliseconds; -1 if there is none.

    Raises PreconditionFailed for anything but an integer from 0 to ten years.
    """
    if expiration is None:
        return -1
    number = _NUMBER.match(expiration)
    if number is None:
        wrong = "no_integer"
    elif number.end() < len(expiration):
        wrong = f'{{leftover_string,"{expiration[number.end() :]}"}}'
    else:
        ttl_ms = int(number.group())
        if 0 <= ttl_ms <= LONGEST_MS:
            return ttl_ms
        wrong = f"{{value_negative,{ttl_ms}}}" if ttl_ms < 0 else too_large(ttl_ms, TIME)
    raise PreconditionFailed(f"invalid expiration '{expiration}': {wrong}")


def delay_of(value: object) -> int:
    """Return the delay in milliseconds that a header `x-delay` requests; 0 if none.

    As rabbitmq_delayed_message_exchange reads it: whole numbers, others without their fraction, and
    texts that are a whole number. What is anything else, not above 0 or above LONGEST_DELAY_MS is
    no delay. A message that waited is shown with the number negated, so that it does not wait again
    where it is published anew with the headers it came with.
    """
    number = 0
    if isinstance(value, (bool, Timestamp)):
        return 0
    if isinstance(value, int):
        number = value
    elif isinstance(value, float):
        # NaN is left out, too: it is not equal to anything.
        number = int(value) if 0 < value <= LONGEST_DELAY_MS else 0
    elif isinstance(value, (str, bytes)):
        text = wire_bytes(value) if isinstance(value, str) else value
        if _SHORT_NUMBER.fullmatch(text):
            number = int(text)
    return number if 0 < number <= LONGEST_DELAY_MS else 0


def _keys(headers: dict[str, object], name: str) -> list[str]:
    """Return the routing keys in CC or BCC; items of the array that are no strings are ignored."""
    if name not in headers:
        return []
    value = headers[name]
    if not isinstance(value, list):
        raise PreconditionFailed(
            f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}'
        )
    return [key for key in value if isinstance(key, str)]


def headers_of(section: bytes) -> dict[str, object]:
    """Return the headers and properties in a property section for routing by headers. Raises
    WireError."""
    return _seen_by_routing(decode_properties(section))


def _seen_by_routing(properties: Properties) -> dict[str, object]:
    """Return the headers, and the properties that x-consistent-hash can be set to hash."""
    seen: dict[str, object] = {}
    if properties.headers is not None:
        seen.update(properties.headers)
    if properties.message_id is not None:
        seen[property_key("message_id")] = properties.message_id
    if properties.correlation_id is not None:
        seen[property_key("correlation_id")] = properties.correlation_id
    if properties.timestamp is not None:
        seen[property_key("timestamp")] = properties.timestamp
    return seen


def with_section(
    raw: bytes, cuts: array[int], bounds: list[int], sizes: list[int], section: bytes
) -> tuple[bytes, array[int]]:
    """Replace the property section of messages.

    Messages bounds[k]..bounds[k+1]-1 have method frames of sizes[k] bytes; those after the last
    bound are left out.
    """
    size = (12 + len(section)).to_bytes(4, "big")
    parts: list[bytes] = []
    ends = [0]
    at = 0
    for k, method_size in enumerate(sizes):
        for i in range(bounds[k], bounds[k + 1]):
            start = cuts[i]
            header = start + method_size
            old = 8 + int.from_bytes(raw[header + 3 : header + 7], "big")
            parts += (
                raw[start : header + 3],
                size,
                raw[header + 7 : header + 19],
                section,
                b"\xce",
                raw[header + old : cuts[i + 1]],
            )
            at += cuts[i + 1] - start - old + 20 + len(section)
            ends.append(at)
    return b"".join(parts), pair(0, at) if len(ends) == 2 else array("I", ends)
