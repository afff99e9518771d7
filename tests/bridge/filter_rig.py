"""One message and the filters asked of it."""

from __future__ import annotations

from array import array

import pytest

from tallymark.bridge.filters import FilterError, filters_of
from tallymark.bridge.filters.attach import SELECTOR_FILTER, SQL_FILTER
from tallymark.engine.clock import Clock
from tallymark.engine.message import Filter, Payload
from tallymark.stored.annotations import Annotations, Route
from tallymark.wire.amqp10.sections import Header, Properties, encode_message
from tallymark.wire.amqp10.types import Described, Symbol

NOW_MS = 1_760_000_000_000
AMQP10 = 3


def clock(now_ms: int = NOW_MS) -> Clock:
    made = Clock()
    made.tell(now_ms)
    return made


def payload_of(*cells: bytes, format: int = AMQP10, persistent: bool = True) -> Payload:
    cuts = [0]
    for cell in cells:
        cuts.append(cuts[-1] + len(cell))
    route = Route("the exchange", "the.key")
    return Payload(format, b"".join(cells), array("I", cuts), route, None, 1, NOW_MS, persistent, 0)


def message(
    application: dict[str, object] | None = None,
    properties: Properties | None = None,
    header: Header | None = None,
    annotations: dict[str, object] | None = None,
) -> bytes:
    named: dict[object, object] | None = None
    if annotations is not None:
        named = {Symbol(name): value for name, value in annotations.items()}
    mapped: dict[object, object] | None = None
    if application is not None:
        mapped = {name: value for name, value in application.items()}  # noqa: C416
    return encode_message(
        header=header,
        message_annotations=named,
        properties=properties,
        application_properties=mapped,
        body=b"the body",
    )


def made(kind: str, value: object, now_ms: int = NOW_MS) -> Filter:
    """The one filter of that kind."""
    found, supported = filters_of({Symbol("f"): Described(Symbol(kind), value)}, clock(now_ms))
    assert found is not None
    assert list(supported) == ["f"]
    return found


def refused(kind: str, value: object) -> str:
    """The text with which the filter is refused."""
    with pytest.raises(FilterError) as caught:
        filters_of({Symbol("f"): Described(Symbol(kind), value)}, clock())
    error = caught.value
    assert error.condition == "amqp:invalid-field"
    start = f"filter 'f' ({kind}): "
    assert error.text.startswith(start), error.text
    return error.text[len(start) :]


def asked(found: Filter, cell: bytes, known: Annotations | None = None) -> bool:
    """The answer for one message, which must not depend on who asked before."""
    payload = payload_of(cell)
    answer = found.matches(payload, 0, known)
    assert found.matches(payload, 0, known) is answer
    return answer


def sql(text: str, cell: bytes) -> bool:
    return asked(made(SQL_FILTER, text), cell)


def selector(text: str, cell: bytes) -> bool:
    return asked(made(SELECTOR_FILTER, text), cell)
