"""Selectors, as JMS has them, over the fields of AMQP 1.0."""

from __future__ import annotations

from uuid import UUID

import pytest

from tallymark.bridge.filters.attach import SELECTOR_FILTER
from tallymark.wire.amqp10.sections import Header, MessageId, Properties
from tallymark.wire.amqp10.types import Symbol, Timestamp, UByte, UInt, ULong
from tests.bridge.filter_rig import NOW_MS, message, payload_of, refused, selector

ORDER = message(
    {
        "color": "blue",
        "weight": 2501,
        "ratio": 0.5,
        "fresh": True,
        "nil": None,
        "$cash": 1,
        "_low": 2,
        "a.dotted.name": 3,
        "größe": 4,
        "with space": 5,
        "JMSCustom": 6,
        "UTC": 7,
    },
    Properties(
        message_id="ID:7",
        user_id=b"guest",
        to="a queue",
        subject="greeting",
        reply_to="answers",
        correlation_id="abc",
        content_type=Symbol("text/plain"),
        absolute_expiry_time=Timestamp(NOW_MS + 1000),
        creation_time=Timestamp(NOW_MS),
        group_id="a group",
        group_sequence=UInt(9),
    ),
    Header(priority=UByte(7), ttl=UInt(5)),
)


def check(rows: str) -> None:
    for row in rows.strip().splitlines():
        answer, text = row.split(None, 1)
        assert selector(text, ORDER) is (answer == "T"), text


def test_headers_by_their_jms_names() -> None:
    check("""
        T JMSPriority = 7
        T JMSMessageID = 'ID:7'
        T JMSCorrelationID = 'abc'
        T JMSTimestamp = 1760000000000
        T JMSDeliveryMode = 'PERSISTENT'
        F JMSDeliveryMode <> 'PERSISTENT'
        T JMSType = 'greeting'
        T JMSDestination = 'a queue'
        T JMSReplyTo = 'answers'
        T JMSExpiration = 1760000001000
        T JMSXUserID = 'guest'
        T JMSXGroupID = 'a group'
        T JMSXGroupSeq = 9
        T JMSCustom = 6
        F JMSXNothing IS NOT NULL
    """)


def test_fields_by_their_amqp_names() -> None:
    check("""
        T amqp.priority = 7
        T amqp.durable
        T amqp.delivery_mode = 'PERSISTENT'
        T amqp.ttl = 5
        T amqp.message_id = 'ID:7'
        T amqp.user_id = 'guest'
        T amqp.to = 'a queue'
        T amqp.subject LIKE 'greet%'
        T amqp.reply_to = 'answers'
        T amqp.correlation_id = 'abc'
        T amqp.content_type = 'text/plain'
        T amqp.content_encoding IS NULL
        T amqp.absolute_expiry_time > amqp.creation_time
        T amqp.group_id = 'a group' AND amqp.group_sequence = 9
        T amqp.reply_to_group_id IS NULL
    """)


def test_not_persistent() -> None:
    from tallymark.bridge.filters import filters_of
    from tallymark.wire.amqp10.types import Described
    from tests.bridge.filter_rig import clock

    asked: dict[object, object] = {
        "f": Described(ULong(0x0000_468C_0000_0004), "JMSDeliveryMode = 'NON_PERSISTENT'")
    }
    found, _ = filters_of(asked, clock())
    assert found is not None
    # Equal bytes: what the broker keeps is not in them.
    assert found.matches(payload_of(ORDER, persistent=False), 0, None)
    assert not found.matches(payload_of(ORDER, persistent=True), 0, None)


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("plain", "plain"),
        (ULong(12), "ID:AMQP_ULONG:12"),
        (b"\x0a\xff", "ID:AMQP_BINARY:0AFF"),
        (b"0123456789abcdef", "ID:AMQP_BINARY:30313233343536373839616263646566"),
        (UUID(int=1), "ID:AMQP_UUID:00000000-0000-0000-0000-000000000001"),
    ],
)
def test_ids_of_every_type_have_a_text(id: MessageId, text: str) -> None:
    cell = message(properties=Properties(message_id=id, correlation_id=id))
    assert selector(f"JMSMessageID = '{text}' AND JMSCorrelationID = '{text}'", cell)
    assert not selector("JMSMessageID IS NULL", cell)
    assert selector("JMSMessageID IS NULL AND JMSCorrelationID IS NULL", message())


def test_identifiers() -> None:
    check("""
        T $cash = 1
        T _low = 2
        T a.dotted.name = 3
        T größe = 4
        T "with space" = 5
        T UTC = 7
        T "color" = 'blue'
        F "blue" = color
        F Color = 'blue'
    """)


def test_operators() -> None:
    check("""
        T JMSType = 'greeting' AND color = 'blue' AND weight > 2500
        T color IN ('red', 'blue') and not fresh = false
        T weight BETWEEN 2501 AND 2501
        T weight between 1 and 3000 AND fresh
        F weight NOT BETWEEN 1 AND 3000
        T weight NOT BETWEEN 1 AND 2
        F absent BETWEEN 1 AND 2
        F absent NOT BETWEEN 1 AND 2
        F weight BETWEEN 1 AND absent
        T weight NOT BETWEEN absent AND 2
        T color LIKE 'bl_e' AND color NOT LIKE 'r%'
        T nil IS NULL AND color IS NOT NULL
        T color <> 'red' AND color != 'red'
        T -weight = -2501 AND +ratio = .5
    """)


def test_numbers_are_written_as_in_java() -> None:
    check("""
        T ratio = .5 AND ratio = 0.5F AND ratio = 5e-1d AND ratio = .05E+1
        T weight = 2501L AND weight = 2501. AND weight = 0x9C5 AND weight = 04705
        T 7. = 7 AND 7D = 7 AND 7E0 = 7 AND 0 = 00 AND 0xffL = 255
    """)


def test_integers_divide_to_integers() -> None:
    check("""
        T weight / 2 = 1250
        T -7 / 2 = -3
        T 7 / 2.0 = 3.5
        T weight / 2 * 2 = 2500
        F weight / 0 = 0
        F NOT weight / 0 = 0
    """)


ERRORS = [
    ("a % 2 = 0", "at character 3: '%' found, expected an operator of selectors"),
    ("a = 0xZZ", "at character 5: '0x' is neither a number nor a name"),
    ("a = 1.5L", "at character 5: '1.5L' is no integer, expected no L behind it"),
    ("a = 089", "at character 5: '089' begins with 0, expected octal digits"),
    ("a = 1st", "at character 5: '1s' is neither a number nor a name"),
    ("a = 1.2.3", "at character 5: '1.2.' is neither a number nor a name"),
    ('"a = 1', "at character 1: the name '\"a = 1' has no end or a control character"),
    ("a BETWEEN 1", "at character 12: the end found, expected AND"),
    ("a BETWEEN 1 AND", "at character 16: the end found, expected a field, a constant or ("),
    ("a NOT 1", "at character 7: '1' found, expected LIKE, IN or BETWEEN"),
    ("amqp.nothing = 1", "at character 1: 'nothing' is no field of properties, expected one of"),
    ("amqp.delivery_count > 0", "at character 1: 'delivery-count' changes on the way, expected"),
    ("amqp.first_acquirer", "at character 1: 'first-acquirer' changes on the way, expected one"),
    ("JMSRedelivered", "at character 1: JMSRedelivered changes on the way, nothing is selected"),
    ("a AND JMSXDeliveryCount > 1", "at character 7: JMSXDeliveryCount changes on the way, noth"),
    ("a-b = 1 AND [c] = 1", "at character 13: '[' begins nothing that is known here"),
]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_errors(text: str, expected: str) -> None:
    assert refused(SELECTOR_FILTER, text).startswith(expected), refused(SELECTOR_FILTER, text)
