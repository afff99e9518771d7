"""Messages of each protocol as stored, and what readers of another protocol are given."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from uuid import UUID

from tallymark.bridge.amqp10.delivery import Outgoing, Run
from tallymark.bridge.conversion.amqp10_to_amqp091 import as_amqp091
from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Annotations, Route
from tallymark.wire.amqp091.frames import body, property_section
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp091.properties import decode_properties
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.sections import Body, Properties, Sections, encode_message
from tallymark.wire.amqp10.types import Described, ULong
from tests.support.amqp091 import publish

ROUTE = Route("ex", "rk")
SOME_UUID = UUID("550e8400-e29b-41d4-a716-446655440000")
URN = f"urn:uuid:{SOME_UUID}"


def facts(properties: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; a compiled one has no __dict__."""
    return {field.name: getattr(properties, field.name) for field in fields(properties)}


def payload(
    format: int,
    *messages: bytes,
    route: Route = ROUTE,
    routes: list[Route] | None = None,
    persistent: bool = True,
) -> Payload:
    cuts = [0]
    for message in messages:
        cuts.append(cuts[-1] + len(message))
    return Payload(
        format, b"".join(messages), array("I", cuts), route, routes, 7, 1_000, persistent, 4096
    )


def whole(stored: Payload, known: Annotations | None = None, **counts: int) -> Slice:
    """All of a payload as a slice."""
    acquired = counts.pop("acquired", 0)
    return Slice(stored, 0, stored.count, 1, acquired, annotations=known, **counts)


def header(*fields: object) -> bytes:
    """A header section with these fields, and no others written."""
    return encode(Described(ULong(0x70), list(fields)))


def annotation_section(entries: Mapping[Any, object]) -> bytes:
    return encode(Described(ULong(0x72), dict(entries)))


def only(found: object) -> Any:
    """The one thing in a list."""
    assert isinstance(found, list)
    [one] = found
    return one


def message(
    properties: Properties | None = None,
    application: dict[object, object] | None = None,
    body: Body | bytes | None = b"body",
    front: bytes = b"",
) -> bytes:
    """An AMQP 1.0 message; front: header and annotations."""
    bare = encode_message(properties=properties, application_properties=application, body=body)
    return front + bare


def in_amqp10(stored: Payload, known: Annotations | None = None) -> list[Sections]:
    """What an AMQP 1.0 reader is given, message by message."""
    return [
        Sections(raw, 0, len(raw)) for raw in sent(Outgoing().runs(whole(stored, known), False, 0))
    ]


def sent(runs: list[Run]) -> list[bytes]:
    """The messages of runs as they go over a link."""
    found = []
    for run in runs:
        for i in range(run.lo, run.hi):
            found.append(run.front + run.raw[run.cuts[i] + run.skip : run.cuts[i + 1]])
    return found


def in_amqp091(stored: Payload) -> list[tuple[BasicProperties, bytes]]:
    """What an AMQP 0-9-1 reader is given of AMQP 1.0 messages, but for what the broker adds."""
    piece = as_amqp091(whole(stored))
    found = []
    raw, cuts = piece.payload.raw, piece.payload.cuts
    assert raw is not None
    for i in range(len(piece)):
        frames = raw[cuts[i] : cuts[i + 1]]
        found.append((decode_properties(property_section(frames)), body(frames)))
    return found


def published(properties: BasicProperties | bytes, content: bytes = b"body") -> bytes:
    """An AMQP 0-9-1 message as it is stored."""
    return publish(3, content, exchange="ex", routing_key="rk", properties=properties)


def values(raw: bytes) -> list[object]:
    """The values that stand in raw, one behind the other."""
    found = []
    pos = 0
    while pos < len(raw):
        value, pos = decode(raw, pos, len(raw))
        found.append(value)
    return found


def same(found: object, expected: object) -> bool:
    """Equality of values and of their types, inside of maps and lists as well."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [(type(key), key) for key in found]
        return keys == [(type(key), key) for key in expected] and all(
            same(found[key], expected[key]) for key in found
        )
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(
            same(one, other) for one, other in zip(found, expected, strict=True)
        )
    if getattr(found, "tag", None) != getattr(expected, "tag", None):
        return False
    return found == expected or (found != found and expected != expected)
