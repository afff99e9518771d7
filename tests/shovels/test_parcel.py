"""Parcels: what a shovel writes into a message, also into one like those before it."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark.client import BadMessage, Message
from tallymark.client.amqp091.messages import Outgoing
from tallymark.shovels.parcel import Parcel, Stamp
from tallymark.wire.amqp091.properties import decode_properties

ROUTED = {"x-exchange": "e", "x-routing-key": "k", "x-delivery-count": 3, "x-kept": 1}
MESSAGES = {
    "bytes": Message(b"body", annotations=ROUTED),
    "nothing but a body": Message(b"", durable=False),
    "properties": Message(b"b", message_id="m", subject="s", application_properties={"n": 1}),
    "an id as long as a list's second size": Message(b"b", message_id="m" * 400, to="t"),
    "one property": Message(b"b", message_id=b"id"),
    "a user": Message(b"b", user_id="u", message_id="m", annotations=ROUTED),
    "moved before": Message(b"b", annotations={"x-shovelled": [{"src": "old"}]}),
    "further keys": Message(b"b", annotations={"x-cc": ["a", "b"]}),
    "of a hop": Message(b"b", delivery_annotations={"x-hop": 1}, ttl_ms=5000, priority=9),
    "a value": Message({"a": [1, None]}, annotations=ROUTED),
    "a sequence, and a footer": Message([1, 2], kind="sequence", footer={"x-f": 1}),
}


def content(message: Message) -> dict[str, Any]:
    names = ("body", "kind", "properties", "application_properties", "durable", "priority")
    more = ("ttl_ms", "annotations", "delivery_annotations", "footer")
    return {name: getattr(message, name) for name in (*names, *more)}


def as_received(message: Message) -> Message:
    return Message.parse(message.encode())


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("name", MESSAGES)
def test_all_is_kept_but_what_is_the_sources_own(name: str, redelivered: bool) -> None:
    given = as_received(MESSAGES[name])
    sent = content(as_received(Stamp("me", "s", "q").put_on(Parcel(given, redelivered))))
    wanted = content(given)
    said: Any = sent["annotations"].pop("x-shovelled")
    assert said[1:] == wanted["annotations"].pop("x-shovelled", [])
    head = {"shovelled-by": "me", "shovel-name": "s", "src": "q", "redelivered": redelivered}
    if wanted["annotations"].pop("x-exchange", None) is not None:
        head |= {"exchange": "e", "routing-key": "k"}
    if (further := wanted["annotations"].pop("x-cc", None)) is not None:
        head["cc"] = further
    if (user := wanted["properties"].user_id) is not None:
        head["user-id"] = user
        wanted["properties"].user_id = None
    assert said[0] == head
    for name in ("x-routing-key", "x-delivery-count"):
        wanted["annotations"].pop(name, None)
    assert sent == {**wanted, "delivery_annotations": {}}


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("name", MESSAGES)
def test_it_makes_no_difference_what_came_before(name: str, redelivered: bool) -> None:
    used = Stamp("me", "s", "q")
    for before in (True, False):
        for other in MESSAGES.values():
            used.put_on(Parcel(as_received(other), before))
    parcel = Parcel(as_received(MESSAGES[name]), redelivered)
    fresh = Stamp("me", "s", "q").put_on(parcel)
    assert content(used.put_on(parcel)) == content(fresh)


@pytest.mark.parametrize("user", [None, "u"])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("priority", [None, 0, 4, 9])
def test_a_priority_is_sent_on_where_it_was_said(
    priority: int | None, durable: bool, user: str | None
) -> None:
    given = Message(b"b", priority=priority, durable=durable, user_id=user)
    sent = Stamp("me", "s", "q").put_on(Parcel(as_received(given), False))
    section, _, _ = Outgoing().content(sent.encode())
    assert decode_properties(section).priority == priority


@pytest.mark.parametrize(
    "data",
    [
        b"no message",
        b"\0\x53\x73\xc0\x03\x02\x40",  # properties that end within their list
        b"\0\x53\x73\xc0\x02\x02\xa1\0\x53\x75\xa0\x00",  # and within their first field
    ],
)
def test_what_is_no_message_says_so(data: bytes) -> None:
    with pytest.raises(BadMessage):
        Stamp("me", "s", "q").put_on(Parcel(Message.parse(data), False))
