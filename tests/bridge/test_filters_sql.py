"""SQL filters: every operator in a table, unknown values, types, names, errors with their place."""

from __future__ import annotations

from uuid import UUID

import pytest

from tallymark.bridge.filters.attach import SQL_FILTER
from tallymark.bridge.filters.lexer import LONGEST, MOST_WORDS
from tallymark.bridge.filters.parser import DEEPEST
from tallymark.wire.amqp10.sections import Header, Properties
from tallymark.wire.amqp10.types import (
    Byte,
    Char,
    Decimal,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.bridge.filter_rig import NOW_MS, made, message, refused, sql

IDENTITY = UUID("11111111-2222-3333-4444-555555555555")
ORDER = message(
    {
        "country": Symbol("UK"),
        "city": "London",
        "text": "it's a test",
        "flag": "🥕",
        "weight": UShort(5),
        "price": 10.5,
        "hundred": UInt(100),
        "quarter": 0.25,
        "cold": Int(-5),
        "none": ULong(0),
        "most": ULong(2**64 - 1),
        "small": Byte(-1),
        "single": Float(1.5),
        "paid": True,
        "returned": False,
        "nil": None,
        "raw": b"\xde\xad",
        "word": b"Hello",
        "invalid": b"\xff",
        "when": Timestamp(1_000),
        "letter": Char("x"),
        "id": IDENTITY,
        "decimal": Decimal(0x84, (398 << 53 | 42).to_bytes(8, "big")),
        "with space": 1,
        "[odd]": 2,
        "AND": 3,
        "p.to": 4,
        "Weight": 10,
    }
)


def check(rows: str) -> None:
    """Rows of an answer, T or F, and the filter."""
    for row in rows.strip().splitlines():
        answer, text = row.split(None, 1)
        assert sql(text, ORDER) is (answer == "T"), text


def test_equality() -> None:
    check("""
        T country = 'UK'
        F country = 'US'
        F country <> 'UK'
        T country <> 'US'
        T country != 'US'
        T 'UK' = country
        T city = "London"
        F city = 'london'
        T paid = TRUE
        T returned = FALSE
        F paid <> TRUE
        T flag = '🥕'
        T letter = 'x'
        T when = 1000
    """)


def test_order() -> None:
    check("""
        T weight > 4
        F weight > 5
        T weight >= 5
        T weight < 6
        F weight < 5
        T weight <= 5
        F weight <= 4.99
        T country > 'DE'
        F country > 'US'
        T country <= 'UK'
        T 'Zurich' > city
        T flag > 'z'
        T 0xBB > 0xAA
        T 0xBB >= 0xBB
        F 0xAA >= 0xBB
        T raw < 0xDEAE
    """)


def test_numbers_are_compared_by_value_whatever_their_width() -> None:
    check("""
        T weight = 5.0
        T weight = 5
        T single = 1.5
        T price = 10.5
        T price = 1.05E1
        T none = 0.0
        T small = -1
        T most = 18446744073709551615
        F most = 18446744073709551616.0E0
        T most < 18446744073709551616.0E0
        F most = 18446744073709551614
        T decimal = 42
        T decimal + 1 = 43
    """)


def test_unlike_values_are_unequal_and_have_no_order() -> None:
    check("""
        F weight = '5'
        T weight <> '5'
        F weight >= '5'
        F weight <= '5'
        F paid = 1
        T paid <> 1
        F paid = 'TRUE'
        F paid >= FALSE
        F paid <= TRUE
        F country > 1
        F country < 1
        F 1 = TRUE
        F 0 = FALSE
        F weight = 0x05
        F weight LIKE '5'
    """)


def test_binary_and_uuid_are_compared_by_their_bytes() -> None:
    check("""
        T raw = 0xDEAD
        T raw = 0xdead
        F raw = 0xDEAE
        T word = 'Hello'
        T word LIKE 'H%'
        T id = 0x11111111222233334444555555555555
        F id = '11111111-2222-3333-4444-555555555555'
        T raw IN (0xBEEF, 0xDEAD)
        F raw + 1 = 0xDEAE
        F invalid LIKE '%'
        F NOT invalid LIKE '%'
    """)


def test_logic() -> None:
    check("""
        T paid
        F returned
        T TRUE
        F FALSE
        T NOT returned
        F NOT paid
        T NOT NOT paid
        T paid AND weight = 5
        F paid AND returned
        T returned OR paid
        F returned OR FALSE
        T paid and not returned
        T NOT country = 'FR' AND weight > 3
        T returned AND returned OR paid
        F returned AND (returned OR paid)
        T paid OR returned AND returned
        F NOT (paid OR returned)
        T NOT returned AND paid
        T (country = 'UK') = paid
    """)


def test_what_is_no_truth_value_is_unknown() -> None:
    check("""
        F weight
        F NOT weight
        F country
        F weight AND paid
        T weight OR paid
        T paid OR weight
        F 5 + 5
        F UTC()
    """)


def test_unknown() -> None:
    """Truth tables [JMS 2.0 tables 3-4 to 3-6]; `absent` is not there, `nil` is null."""
    check("""
        F absent
        F NOT absent
        F absent AND paid
        F NOT (absent AND paid)
        F absent AND returned
        T NOT (absent AND returned)
        T NOT (returned AND absent)
        F absent AND absent
        T absent OR paid
        T paid OR absent
        F absent OR returned
        F NOT (absent OR returned)
        F NOT (returned OR absent)
        F absent = absent
        F absent <> 0
        F nil = 0
        F 0 > nil
        F NOT nil > 0
        F absent + 1 = 1
        F 2 * absent = 0
        F -absent = 0
        F absent LIKE '%'
        F absent NOT LIKE '%'
        F absent IN ('a')
        F absent NOT IN ('a')
        F NOT (absent IN ('a'))
    """)


def test_null() -> None:
    check("""
        T absent IS NULL
        T nil IS NULL
        F country IS NULL
        T country IS NOT NULL
        F absent IS NOT NULL
        F nil IS NOT NULL
        T EXISTS(country)
        F EXISTS(absent)
        F exists ( nil )
        T NOT EXISTS(absent) AND paid
        T returned IS NOT NULL
        T decimal IS NOT NULL
    """)


def test_arithmetic() -> None:
    check("""
        T weight + 5 = 10
        T weight - 2 = 3
        T weight - 2 - 2 = 1
        T weight * 2 = 10
        T price + 4.5 = 15
        T weight / 2 = 2.5
        T hundred / 10 = 10
        T hundred / weight / 2 = 10
        T weight + 2 * 3 = 11
        T (weight + 2) * 3 = 21
        T hundred * price * quarter = 262.5
        T weight % 2 = 1
        T hundred % weight = 0.0
        T 101 % 75 % weight = 1
        T 101 % (75 % 30) = 11
        T 7 % cold = 2
        T -7 % 5 = -2
        T cold % 3 = -2
        F price % 2 = 0.5
        T -cold = 5
        T +cold = -5
        T 6 + -weight = 1
        T 6 - -weight = 11
        T -(-weight) = weight
        T - - weight = 5
        F -city = 1
        F +city = 'London'
        F country + weight = 'UK5'
        F paid + paid = 2
        F -paid = -1
        T most + 1 = 18446744073709551616
        T weight < price * 2 AND price > weight
    """)


def test_what_has_no_result_is_unknown() -> None:
    check("""
        F weight / 0 > 0
        F NOT weight / 0 > 0
        F weight / none = 0
        F weight / 0.0 = 0
        F 0 / 0 = 0
        F weight % 0 = 0
        F 1.0E308 * 10 > 0
        F NOT 1.0E308 * 10 > 0
        F -1.0E308 * 10 < 0
        F hundred + (1.0E308 * 10 - 1.0E308 * 10) = 0
    """)


def test_in() -> None:
    check("""
        T country IN ('US', 'UK')
        F country IN ('US', 'FR')
        T country NOT IN ('US', 'FR')
        F country NOT IN ('UK')
        T 'London' IN (country, city)
        T weight IN (1, 5.0)
        T price IN (weight + 5.5)
        F weight IN ('5', TRUE)
        F paid IN (1)
        T paid IN (1, TRUE)
        T country IN (absent, 'UK')
        F country IN (absent, 'US')
        T country NOT IN (absent, 'US')
    """)


def test_like() -> None:
    check("""
        T city LIKE 'Lon%'
        T city LIKE '%don'
        T city LIKE 'L%n'
        T city LIKE '_ondon'
        F city LIKE 'ondon'
        T city NOT LIKE 'ondon'
        F city NOT LIKE '%'
        T text LIKE 'it''s%'
        T text LIKE "it's%"
        T flag LIKE '_'
        T letter LIKE '_'
        T city LIKE 'x_%' ESCAPE 'x' OR TRUE
        F city LIKE 'Lx_ndon' ESCAPE 'x'
        T 'a_c' LIKE 'ax_c' ESCAPE 'x'
        F 'abc' LIKE 'ax_c' ESCAPE 'x'
        T '5%' LIKE '_!%' ESCAPE '!'
    """)


def test_names() -> None:
    check("""
        T a.city = 'London'
        T application_properties.city = 'London'
        T application-properties.city = 'London'
        T [city] = 'London'
        T a.[city] = 'London'
        T [with space] = 1
        T [[[odd]]] = 2
        T [AND] = 3
        T [p.to] = 4
        T Weight = 10
        F WEIGHT IS NOT NULL
        F [] IS NOT NULL
        T a.AND = 3
        T weight-Weight=-5
        T country='UK'AND weight=5
    """)


def test_space_is_what_java_calls_space() -> None:
    assert sql(" \t\f\r\ncountry\t=\f'UK'\nAND\rweight  =5 \n", ORDER)
    assert "begins nothing" in refused(SQL_FILTER, "a\u00a0= 1")


FULL = message(
    {"to": "application"},
    Properties(
        message_id="id-1",
        user_id=b"guest",
        to="a queue",
        subject="greeting",
        reply_to="answers",
        correlation_id=ULong(789),
        content_type=Symbol("text/plain"),
        content_encoding=Symbol("gzip"),
        absolute_expiry_time=Timestamp(NOW_MS + 1000),
        creation_time=Timestamp(NOW_MS - 1000),
        group_id="a group",
        group_sequence=UInt(9),
        reply_to_group_id="another group",
    ),
    Header(durable=True, priority=UByte(7), ttl=UInt(60_000)),
    {"x-opt-color": "red", "plain": 3},
)
SECTIONS = [
    "p.message_id = 'id-1'",
    "properties.message_id = 'id-1'",
    "p.[message-id] = 'id-1'",
    "p.user_id = 'guest' AND p.user_id = 0x6775657374",
    "p.to = 'a queue' AND to = 'application'",
    "p.subject LIKE 'greet%'",
    "p.reply_to = 'answers'",
    "p.correlation_id = 789 AND p.correlation_id > 700",
    "p.content_type = 'text/plain' AND p.content_type LIKE 'text/%'",
    "p.content_encoding IN ('gzip', 'deflate')",
    "p.absolute_expiry_time > UTC()",
    "p.creation_time < UTC() AND UTC() - p.creation_time = 1000",
    "p.group_id = 'a group'",
    "p.group_sequence = 9",
    "p.reply_to_group_id NOT LIKE 'a group'",
    "h.priority = 7 AND header.priority > h.priority - 1",
    "h.durable",
    "h.ttl = 60000",
    "m.plain = 3 AND message_annotations.plain = 3",
    "m.[x-opt-color] = 'red'",
    "message-annotations.[x-opt-color] = 'red'",
    "m.[x-exchange] = 'the exchange' AND m.[x-routing-key] LIKE 'the.%'",
    "UTC() = 1760000000000 AND UTC ( ) = UTC()",
]


@pytest.mark.parametrize("text", SECTIONS)
def test_each_section(text: str) -> None:
    assert sql(text, FULL)
    assert not sql(f"NOT ({text})", FULL)


def test_what_a_message_does_not_say() -> None:
    bare = message()
    assert sql("h.priority = 4", bare)
    assert sql("h.durable = TRUE", bare)  # as the broker keeps it
    for field in ("h.ttl", "p.to", "p.message_id", "p.reply_to_group_id", "x", "m.x"):
        assert sql(f"{field} IS NULL", bare), field
    short = message(properties=Properties(message_id="1"))
    assert sql("p.message_id = '1' AND p.user_id IS NULL AND p.group_id IS NULL", short)


def test_the_time_is_asked_for_anew_each_time() -> None:
    from tallymark.bridge.filters import filters_of
    from tallymark.wire.amqp10.types import Described
    from tests.bridge.filter_rig import clock, payload_of

    now = clock()
    found, _ = filters_of({"f": Described(Symbol(SQL_FILTER), "due <= UTC()")}, now)
    assert found is not None
    payload = payload_of(message({"due": Timestamp(NOW_MS + 5)}))
    assert not found.matches(payload, 0, None)
    now.tell(NOW_MS + 5)
    assert found.matches(payload, 0, None)


ERRORS = [
    ("", "at character 1: the end found, expected a field, a constant or ("),
    ("   ", "at character 4: the end found, expected a field, a constant or ("),
    ("a >", "at character 4: the end found, expected a field, a constant or ("),
    ("a > > 1", "at character 5: '>' found, expected a field, a constant or ("),
    ("a = 1 = 2", "at character 7: '=' found, expected an operator or the end"),
    ("a b", "at character 3: the name 'b' found, expected an operator or the end"),
    ("(a = 1", "at character 7: the end found, expected )"),
    ("a = 1)", "at character 6: ')' found, expected an operator or the end"),
    ("AND a", "at character 1: 'AND' found, expected a field, a constant or ("),
    ("not", "at character 4: the end found, expected a field, a constant or ("),
    ("null", "at character 1: 'NULL' found, expected a field, a constant or ("),
    ("a = null", "at character 5: 'NULL' found, expected a field, a constant or ("),
    ("a IS 1", "at character 6: '1' found, expected NULL"),
    ("1 IS NULL", "at character 3: IS NULL asks about a field, expected its name before it"),
    ("a + b IS NULL", "at character 7: IS NULL asks about a field, expected its name before it"),
    ("a NOT = 1", "at character 7: '=' found, expected LIKE or IN"),
    ("a NOT BETWEEN 1 AND 2", "at character 7: the name 'BETWEEN' found, expected LIKE or IN"),
    ("a BETWEEN 1 AND 2", "at character 3: the name 'BETWEEN' found, expected an operator or"),
    ("a IN 1", "at character 6: '1' found, expected ("),
    ("a IN ()", "at character 7: ')' found, expected a field, a constant or ("),
    ("a IN (1,)", "at character 9: ')' found, expected a field, a constant or ("),
    ("a IN (1 2)", "at character 9: '2' found, expected )"),
    ("a LIKE b", "at character 8: the name 'b' found, expected a pattern: a string"),
    ("a LIKE 0x48", "at character 8: '0x48' found, expected a pattern: a string"),
    ("a LIKE 'x' ESCAPE", "at character 18: the end found, expected a string of one character"),
    ("a LIKE 'x' ESCAPE '!!'", "at character 19: the escape '!!' has 2 characters, expected one"),
    ("a LIKE 'x' ESCAPE ''", "at character 19: the escape '' has 0 characters, expected one"),
    ("a LIKE 'x!' ESCAPE '!'", "at character 8: the pattern 'x!' ends in its escape character"),
    ("a = 'x", "at character 5: the string \"'x\" has no end, expected '"),
    ('a = "x', "at character 5: the string '\"x' has no end, expected \""),
    ("[a = 1", "at character 1: the name '[a = 1' has no end or a control character in it"),
    ("[a\n] = 1", "at character 1: the name '[a\\n] = 1' has no end or a control character"),
    ("a = 0x", "at character 5: '0x' has 0 digits, expected two for each byte"),
    ("a = 0x123", "at character 5: '0x123' has 3 digits, expected two for each byte"),
    ("a = 0x1G", "at character 5: '0x1G' is neither a number nor a name"),
    ("a = 1st", "at character 5: '1s' is neither a number nor a name"),
    ("a = 5.", "at character 5: '5.' is neither a number nor a name"),
    ("a = .5", "at character 5: '.' begins nothing that is known here"),
    ("a = 1E999", "at character 5: '1E999' is too large, expected what fits 64 bits of a double"),
    ("_a = 1", "at character 1: '_' begins nothing that is known here"),
    ("a$b = 1", "at character 2: '$' begins nothing that is known here"),
    ("a ! b", "at character 3: '!' begins nothing that is known here"),
    ("a; b", "at character 2: ';' begins nothing that is known here"),
    ("x.y = 1", "at character 1: 'x' is no section, expected header, properties, "),
    ("d.y = 1", "at character 1: 'd' cannot be selected by, expected header, properties, "),
    ("footer.y = 1", "at character 1: 'footer' cannot be selected by, expected header, "),
    ("delivery-annotations.y = 1", "at character 1: 'delivery-annotations' cannot be selected"),
    ("p.nothing = 1", "at character 1: 'nothing' is no field of properties, expected one of mess"),
    ("h.message_id = 1", "at character 1: 'message_id' is no field of the header, expected one"),
    ("h.delivery_count > 1", "at character 1: 'delivery_count' changes on the way, expected one"),
    ("h.first_acquirer", "at character 1: 'first_acquirer' changes on the way, expected one of"),
    ("p. = 1", "at character 4: '=' found, expected a field of p"),
    ("a.b.c = 1", "at character 3: 'b' found, expected a field of a"),
    ("UTC = 1", "at character 5: '=' found, expected ("),
    ("UTC(1) > 1", "at character 5: '1' found, expected )"),
    ("EXISTS a", "at character 8: the name 'a' found, expected ("),
    ("EXISTS(1)", "at character 8: '1' found, expected a field"),
    ("UPPER(a) = 'A'", "at character 1: the function UPPER is not offered, expected UTC()"),
    ("substring(a, 1) = 'A'", "at character 1: the function SUBSTRING is not offered"),
]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_an_error_says_where_it_is_what_is_there_and_what_was_expected(
    text: str, expected: str
) -> None:
    assert refused(SQL_FILTER, text).startswith(expected), refused(SQL_FILTER, text)


def test_limits() -> None:
    longest = "a = '" + "x" * (LONGEST - 6) + "'"
    assert not sql(longest, ORDER)
    assert refused(SQL_FILTER, longest + " ") == f"{LONGEST + 1} characters, at most {LONGEST}" + (
        " are taken"
    )
    most = "+".join(["1"] * (MOST_WORDS // 2 - 1)) + "=1"
    assert len(most) == MOST_WORDS - 1
    assert not sql(most, ORDER)
    assert not sql("-" + most, ORDER)
    text = refused(SQL_FILTER, "+-" + most)
    assert text.endswith(f"more than {MOST_WORDS} words, constants and signs")
    for opening, closing in (("(", ")"), ("NOT ", ""), ("-", "")):
        deepest = opening * DEEPEST + "paid" + closing * DEEPEST
        assert sql(deepest, ORDER) is (opening != "-")
        text = refused(SQL_FILTER, opening + deepest + closing)
        assert text.endswith(f"nested deeper than {DEEPEST}")


def test_no_more_than_so_many_fields_are_read() -> None:
    fields = " AND ".join([f"f{i} IS NULL" for i in range(40)])
    assert sql(fields, ORDER)
    assert "is one field too many, at most 64 are read" in refused(
        SQL_FILTER, "0 IN (" + ",".join([f"f{i}" for i in range(65)]) + ")"
    )


def test_a_filter_is_a_string() -> None:
    for value in (b"paid", 1, None, {"paid": True}):
        assert refused(SQL_FILTER, value).endswith("found, expected a string")
    assert made(SQL_FILTER, Symbol("paid")) is not None
