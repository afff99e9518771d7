"""NSQ messages as Spark reads them: their bodies, whatever command they came by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.message import Payload
from tallymark.journal import packer
from tallymark.spark import schema
from tallymark.spark.cells.amqp091 import PROPERTY_NAMES
from tallymark.stored.formats import NSQ
from tallymark.wire.nsq.kernel import make_cells
from tests.spark.test_decode import cell, entry, leased, payload_of, rows_of


def sized(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def pub(body: bytes, topic: bytes = b"t") -> bytes:
    return b"PUB " + topic + b"\n" + sized(body)


def dpub(body: bytes) -> bytes:
    return b"DPUB topic 3600000\n" + sized(body)


def nsq(cells: list[bytes], first_id: int = 1) -> Payload:
    made = payload_of(cells, first_id)
    made.format = NSQ
    return made


def read(*payloads: Payload, names: tuple[str, ...] = schema.ALL) -> list[dict[str, Any]]:
    """All their messages, in one block."""
    rows, at = [], 1
    for payload in payloads:
        rows += [entry(payload), leased(payload, 0, payload.count, at, at)]
        at += payload.count
    return rows_of(packer.pack(rows, 64), names)


def bodies(rows: list[dict[str, Any]]) -> list[bytes | None]:
    return [None if row["body"] is None else bytes(row["body"]) for row in rows]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), min_size=1, max_size=20))
def test_bodies_come_out_as_they_went_in(messages: list[tuple[int, bytes]]) -> None:
    made = [(pub, dpub, sized)[kind](body) for kind, body in messages]
    found = read(nsq(made))
    assert bodies(found) == [body for _, body in messages]
    assert {row["malformed"] for row in found} == {False}
    assert {row[name] for row in found for name in PROPERTY_NAMES & set(schema.ALL)} == {None}


def test_the_cells_of_the_broker_are_these() -> None:
    told = [b"", b"a", b"\n\n\n", b"PUB x\n", b"x" * 3000]
    raw, cuts = make_cells(told)
    made = [raw[cuts[i] : cuts[i + 1]] for i in range(len(told))]
    assert bodies(read(nsq(made))) == told


def test_newlines_of_other_messages_end_no_line() -> None:
    made = [sized(b"\n"), pub(b"one\ntwo"), sized(b"no newline"), dpub(b""), pub(b"\n", b"x.y-z")]
    assert bodies(read(nsq(made))) == [b"\n", b"one\ntwo", b"no newline", b"", b"\n"]


@pytest.mark.parametrize(
    "torn",
    [
        b"", b"\0\0", sized(b"abc")[:-1], sized(b"abc") + b"d", b"PUB t", b"PUB t\n",
        b"PUB t\n\0\0", pub(b"abc")[:-1], b"SUB t c\n", b"\xff" * 9,
    ],
)  # fmt: skip
def test_what_is_no_cell_is_malformed_and_harms_no_neighbour(torn: bytes) -> None:
    found = read(nsq([pub(b"before"), torn, sized(b"after")]))
    assert bodies(found) == [b"before", None, b"after"]
    assert [row["malformed"] for row in found] == [False, True, False]


def test_messages_of_three_formats_in_one_block_keep_their_places() -> None:
    odd = payload_of([b"?", b"??"], 20)
    odd.format = 99
    mixed = (payload_of([cell(b"amqp")]), nsq([pub(b"nsq"), sized(b"more")], 10), odd)
    typed = (*schema.ALL, "typed_headers")
    for names in (schema.ALL, typed, ("body", "malformed"), ("sequence", "body"), ("malformed",)):
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            found = read(*(mixed[i] for i in order), names=names)
            expected = {0: [b"amqp"], 1: [b"nsq", b"more"], 2: [None, None]}
            wanted = [body for i in order for body in expected[i]]
            if "body" in names:
                assert bodies(found) == wanted
            if "malformed" in names:
                assert [row["malformed"] for row in found] == [body is None for body in wanted]


def test_other_columns_alone() -> None:
    (row,) = read(nsq([pub(b"x")]), names=("sequence", "message_id", "headers", "exchange"))
    assert row == {"sequence": 1, "message_id": None, "headers": None, "exchange": "ex"}
