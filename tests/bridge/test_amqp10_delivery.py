"""What AMQP 1.0 readers are shown in front of a message, and that nothing behind it is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp10.delivery import ROUTES_KEPT, Outgoing, reply_to_amqp10
from tallymark.engine.deaths import after_death
from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Annotations, Death, Route
from tallymark.stored.formats import NSQ
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.sections import (
    Data,
    Header,
    Properties,
    Sections,
    Sequences,
    Value,
)
from tallymark.wire.amqp10.types import Array, Symbol, Timestamp, UByte, UInt, ULong
from tallymark.wire.nsq.kernel import make_cells
from tests.bridge.conversion import (
    ROUTE,
    annotation_section,
    header,
    message,
    only,
    payload,
    published,
    same,
    sent,
    values,
    whole,
)

PLACE = {Symbol("x-exchange"): "ex", Symbol("x-routing-key"): "rk"}
DEATHS = (
    Death("q2", "expired", 3, "dlx", ("k",), 2_000_999, 4_000_000, 700),
    Death("q1", "rejected", 1, "", ("q1", "cc"), 1_000_000, 1_000_000),
)
DEAD = Annotations(
    route=Route("dlx", "new"),
    deaths=DEATHS,
    first_death=("rejected", "q1", ""),
    last_death=("expired", "q2", "dlx"),
    form=3,
)


def shown(
    stored: Payload,
    known: Annotations | None = None,
    *,
    shows_counts: bool = False,
    locked_until_ms: int = 0,
    acquired: int = 0,
    failed: int = 0,
) -> list[Sections]:
    piece = whole(stored, known, acquired=acquired, failed=failed)
    found = sent(Outgoing().runs(piece, shows_counts, locked_until_ms))
    return [Sections(raw, 0, len(raw)) for raw in found]


def annotated(found: Sections) -> dict[object, object]:
    known = found.message_annotations
    assert known is not None
    return known


def bare(raw: bytes) -> bytes:
    """The message behind header and annotations."""
    found = Sections(raw, 0, len(raw))
    return raw[next(bound[1] for bound in found.bounds if bound[0] >= 0x73) :]


# -- the header


@pytest.mark.parametrize(
    ("own", "facts", "expected"),
    [
        (b"", {}, Header(True, first_acquirer=True)),
        (header(False, UByte(9), UInt(50)), {}, Header(True, 9, 50, True)),
        (header(None, UByte(0), UInt(0)), {}, Header(True, 0, 0, True)),
        (header(True, None, None, True, UInt(77)), {}, Header(True, first_acquirer=True)),
        (b"", {"acquired": 1}, Header(True)),
        (b"", {"acquired": 3, "failed": 2}, Header(True, delivery_count=2)),
        (b"", {"acquired": 3, "failed": 2, "shows_counts": True}, Header(True, delivery_count=2)),
        (header(True, UByte(1)), {"acquired": 2, "failed": 300},
         Header(True, 1, None, False, 300)),
    ],
)  # fmt: skip
def test_lc_1_the_header_is_the_brokers(
    own: bytes, facts: dict[str, int], expected: Header
) -> None:
    [found] = shown(payload(3, message(front=own)), **facts)  # type: ignore[arg-type]
    assert found.header == expected


@pytest.mark.parametrize("persistent", [True, False])
def test_durable_is_what_the_broker_did(persistent: bool) -> None:
    [found] = shown(payload(3, message(), persistent=persistent))
    assert found.header == Header(persistent, first_acquirer=True)


def test_dl_5_counts_of_the_queues_it_died_in_are_in_the_header() -> None:
    known = Annotations(route=Route("dlx", "new"), failed=2, acquired=4, deaths=DEATHS, form=3)
    [found] = shown(payload(3, message()), known, acquired=1, failed=1)
    assert found.header == Header(True, delivery_count=3)
    assert annotated(found)[Symbol("x-acquired-count")] == 5


def test_dl_5_acquisitions_are_shown_where_the_queue_counts_them() -> None:
    stored = payload(3, message(front=annotation_section({Symbol("x-acquired-count"): "own"})))
    [quiet] = shown(stored, acquired=2)
    assert annotated(quiet)[Symbol("x-acquired-count")] == "own"
    [fresh] = shown(stored, shows_counts=True)
    assert annotated(fresh)[Symbol("x-acquired-count")] == "own"
    [counted] = shown(stored, acquired=2, shows_counts=True)
    assert same(annotated(counted)[Symbol("x-acquired-count")], 2)


def test_acquisitions_are_shown_under_the_name_they_have_in_rabbitmq_4_0_to_4_2() -> None:
    """Its clients look for x-delivery-count, which a first delivery has not."""
    forged = annotation_section({Symbol("x-delivery-count"): 99})
    stored = payload(3, message(front=forged))
    [counted] = shown(stored, acquired=2, failed=1, shows_counts=True)
    assert same(annotated(counted)[Symbol("x-delivery-count")], 2)
    [first] = shown(payload(3, message()), shows_counts=True)
    assert Symbol("x-delivery-count") not in annotated(first)


# -- annotations


def test_the_place_is_shown_and_the_publishers_own_words_stay() -> None:
    own = {Symbol("x-opt-a"): 1, ULong(5): "n", Symbol("x-exchange"): "forged", "x-b": [2]}
    [found] = shown(payload(3, message(front=annotation_section(own))))
    assert same(
        annotated(found),
        {Symbol("x-opt-a"): 1, ULong(5): "n", "x-b": [2], **PLACE},
    )


@pytest.mark.parametrize("name", ["x-exchange", "x-routing-key", "x-opt-deaths"])
def test_dl_18_what_is_the_brokers_to_say_a_publisher_cannot(name: str) -> None:
    for key in (Symbol(name), name):
        [found] = shown(payload(3, message(front=annotation_section({key: "forged"}))))
        assert annotated(found).get(Symbol(name)) == PLACE.get(Symbol(name))
        assert sum(str(each) == name for each in annotated(found)) == (name != "x-opt-deaths")


def test_x_opt_locked_until_is_a_time_and_only_there_under_a_lock() -> None:
    stored = payload(3, message(front=annotation_section({Symbol("x-opt-locked-until"): "forged"})))
    [free] = shown(stored)
    assert annotated(free) == PLACE
    [locked] = shown(stored, locked_until_ms=1_700_000_000_123)
    found = annotated(locked)
    assert same(found[Symbol("x-opt-locked-until")], Timestamp(1_700_000_000_123))
    assert len(found) == 3


def test_the_lock_changes_from_turn_to_turn_and_nothing_else() -> None:
    outgoing = Outgoing()
    piece = whole(payload(3, message(front=header(True, UByte(3)))))
    for until in (5, 6, 0, 1 << 40, 0):
        [raw] = sent(outgoing.runs(piece, False, until))
        found = Sections(raw, 0, len(raw))
        assert annotated(found).get(Symbol("x-opt-locked-until"), 0) == until
        assert found.header == Header(True, 3, None, True)


@pytest.mark.parametrize("size", [150, 200, 206, 207, 208, 209, 210, 220, 255, 300, 70_000])
@pytest.mark.parametrize("locked_until_ms", [0, 9])
def test_annotations_of_any_size_are_readable(size: int, locked_until_ms: int) -> None:
    """Where the sizes grow from one byte to four."""
    own = annotation_section({Symbol("x-a"): "v" * size})
    [found] = shown(payload(3, message(front=own)), locked_until_ms=locked_until_ms)
    assert annotated(found)[Symbol("x-a")] == "v" * size
    assert found.bodies == [b"body"]


def test_many_annotations_are_readable() -> None:
    own = {Symbol(f"x-{i}"): i for i in range(200)}
    [found] = shown(payload(3, message(front=annotation_section(own))), locked_until_ms=7)
    assert len(annotated(found)) == 203


def test_dl_16_deaths_are_an_array_of_maps_in_this_order_with_these_types() -> None:
    [found] = shown(payload(3, message()), DEAD)
    deaths = annotated(found)[Symbol("x-opt-deaths")]
    assert type(deaths) is Array
    assert same(
        list(deaths),
        [
            {
                Symbol("ttl"): UInt(700),
                Symbol("queue"): "q2",
                Symbol("reason"): Symbol("expired"),
                Symbol("count"): ULong(3),
                Symbol("first-time"): Timestamp(2_000_999),
                Symbol("last-time"): Timestamp(4_000_000),
                Symbol("exchange"): "dlx",
                Symbol("routing-keys"): Array(["k"], 0xA1),
            },
            {
                Symbol("queue"): "q1",
                Symbol("reason"): Symbol("rejected"),
                Symbol("count"): ULong(1),
                Symbol("first-time"): Timestamp(1_000_000),
                Symbol("last-time"): Timestamp(1_000_000),
                Symbol("exchange"): "",
                Symbol("routing-keys"): Array(["q1", "cc"], 0xA1),
            },
        ],
    )


def test_dl_14_dl_16_a_dead_letter_shows_first_and_last_death_and_its_new_place() -> None:
    own = {
        Symbol("x-death"): "mine",
        Symbol("x-first-death-queue"): "mine",
        Symbol("x-opt-mine"): 1,
    }
    front = header(True, UByte(3), UInt(700)) + annotation_section(own)
    [found] = shown(payload(3, message(front=front)), DEAD)
    known = annotated(found)
    del known[Symbol("x-opt-deaths")]
    assert same(
        known,
        {
            Symbol("x-opt-mine"): 1,
            Symbol("x-exchange"): "dlx",
            Symbol("x-routing-key"): "new",
            Symbol("x-first-death-reason"): "rejected",
            Symbol("x-first-death-queue"): "q1",
            Symbol("x-first-death-exchange"): "",
            Symbol("x-last-death-reason"): "expired",
            Symbol("x-last-death-queue"): "q2",
            Symbol("x-last-death-exchange"): "dlx",
        },
    )
    # [DL-11] without its time to live, [DL-16] and not for its first acquirer
    assert found.header == Header(True, 3, None, False)


def test_dl_19_the_oldest_form_has_no_last_death() -> None:
    known = Annotations(deaths=DEATHS[1:], first_death=("rejected", "q1", ""), form=1)
    names = {str(key) for key in annotated(shown(payload(3, message()), known)[0])}
    assert "x-first-death-queue" in names
    assert not any(name.startswith("x-last") for name in names)


def test_dl_a17_a_ttl_that_no_uint_can_say_is_the_longest() -> None:
    death = Death("q", "expired", 1, "", (), 1, 1, 10**12)
    known = Annotations(deaths=(death,), first_death=("expired", "q", ""), form=3)
    found = only(annotated(shown(payload(3, message()), known)[0])[Symbol("x-opt-deaths")])
    assert same(found["ttl"], UInt(2**32 - 1))
    assert same(found["routing-keys"], Array([], 0xA1))


def test_names_that_are_not_utf_8_are_shown_as_far_as_they_are() -> None:
    death = Death("q\udcff", "expired", 1, "e", ("\udcfe",), 1, 1)
    known = Annotations(
        route=Route("dlx", "k\udcff"), deaths=(death,), first_death=("expired", "q\udcff", "e"),
        form=3,
    )  # fmt: skip
    found = annotated(shown(payload(3, message()), known)[0])
    assert found[Symbol("x-routing-key")] == "k\ufffd"
    assert found[Symbol("x-first-death-queue")] == "q\ufffd"
    one = only(found[Symbol("x-opt-deaths")])
    assert (one["queue"], list(one["routing-keys"])) == ("q\ufffd", ["\ufffd"])


def test_fc_20_what_consumers_noted_replaces_what_publishers_said() -> None:
    notes = (
        ("x-exchange", encode("forged")),
        ("x-opt-list", encode([Symbol("a"), {}])),
        ("x-opt-own", encode("noted")),
    )
    own = annotation_section({Symbol("x-opt-own"): "published", Symbol("x-opt-other"): 1})
    [found] = shown(payload(3, message(front=own)), Annotations(notes=notes))
    assert same(
        annotated(found),
        {
            Symbol("x-opt-other"): 1,
            Symbol("x-opt-list"): [Symbol("a"), {}],
            Symbol("x-opt-own"): "noted",
            **PLACE,
        },
    )


def test_dl_a18_notes_survive_death() -> None:
    noted = Annotations(notes=(("x-opt-a", encode(1)),))
    known = after_death(
        noted, ROUTE, "q", "rejected", "dlx", None, 5, 0, 0, 3, True, -1, Route("dlx", "rk")
    )
    assert annotated(shown(payload(3, message()), known)[0])[Symbol("x-opt-a")] == 1


# -- the rest


@pytest.mark.parametrize(
    "raw",
    [
        message(Properties(message_id="m"), {"k": 1}, Data(b"a", b"b" * 300)),
        message(body=Sequences([1], [])),
        message(body=Value(types.Described(Symbol("x"), 1))),
        # as no encoder of ours would write it
        b"\0\x80" + (0x73).to_bytes(8, "big") + b"\xd0\0\0\0\x08\0\0\0\x01\xa1\x02id"
        + b"\0\xa3\x10amqp:data:binary\xb0\0\0\0\x01x",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "front", [b"", header(False, UByte(1)), annotation_section({Symbol("x-a"): 1})]
)
def test_the_bare_message_is_not_touched(raw: bytes, front: bytes) -> None:
    [found] = sent(Outgoing().runs(whole(payload(3, front + raw)), False, 9))
    assert bare(found) == raw


def test_a_run_of_equal_fronts_is_one_slice_of_the_payload() -> None:
    front = header(True, UByte(2))
    row = [message(Properties(message_id=f"{i}"), front=front) for i in range(6)]
    stored = payload(3, *row)
    [run] = Outgoing().runs(Slice(stored, 1, 5, 1, 0), False, 0)
    assert (run.lo, run.hi, run.skip) == (1, 5, len(front))
    assert run.raw is stored.raw
    assert run.cuts is stored.cuts
    found = [Sections(raw, 0, len(raw)).properties for raw in sent([run])]
    assert found == [Properties(message_id=f"{i}") for i in range(1, 5)]


def test_runs_end_where_fronts_or_routes_change() -> None:
    one, other = Route("ex", "1"), Route("ex", "2")
    plain, urgent = message(), message(front=header(True, UByte(9)))
    stored = payload(3, plain, plain, urgent, plain, plain, routes=[one, one, one, one, other])
    runs = Outgoing().runs(whole(stored), False, 0)
    assert [(run.lo, run.hi) for run in runs] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    found = [Sections(raw, 0, len(raw)) for raw in sent(runs)]
    assert [annotated(each)[Symbol("x-routing-key")] for each in found] == list("11112")


def test_routes_that_interleave_are_remembered() -> None:
    outgoing = Outgoing()
    routes = [Route("ex", str(i)) for i in range(ROUTES_KEPT + 5)]
    stored = payload(3, *[message()] * len(routes), routes=routes)
    for _ in range(2):
        found = sent(outgoing.runs(whole(stored), False, 0))
        keys = [annotated(Sections(raw, 0, len(raw)))[Symbol("x-routing-key")] for raw in found]
        assert keys == [route.key for route in routes]


def test_nothing_is_remembered_of_other_facts() -> None:
    """One link, one route, one payload: whatever the broker knows may change between slices."""
    outgoing = Outgoing()
    stored = payload(3, message())
    facts: list[tuple[Annotations | None, int, int, bool]] = [
        (None, 0, 0, False),
        (None, 1, 0, False),
        (None, 1, 0, True),
        (None, 1, 1, True),
        (DEAD, 0, 0, False),
        (None, 0, 0, True),
        (Annotations(notes=(("x-n", encode(1)),)), 0, 0, False),
        (None, 0, 0, False),
    ]
    for known, acquired, failed, shows_counts in facts:
        piece = whole(stored, known, acquired=acquired, failed=failed)
        again = sent(Outgoing().runs(piece, shows_counts, 0))
        assert sent(outgoing.runs(piece, shows_counts, 0)) == again
    transient = payload(3, message(), persistent=False)
    assert sent(outgoing.runs(whole(transient), False, 0)) == sent(
        Outgoing().runs(whole(transient), False, 0)
    )


def test_slices_of_three_protocols_through_one_link() -> None:
    outgoing = Outgoing()
    nsq, cuts = make_cells([b"n1", b""])
    row = [
        payload(3, message(body=b"a")),
        Payload(NSQ, nsq, cuts, Route("topic", "topic"), None, 1, 1, True, 100),
        payload(1, published(BasicProperties(priority=4), b"b")),
        payload(3, message(body=b"c", front=header(None, UByte(5)))),
    ]
    found = [
        [Sections(raw, 0, len(raw)) for raw in sent(outgoing.runs(whole(each), False, 0))]
        for each in row
    ]
    bodies = [[each.bodies for each in some] for some in found]
    assert bodies == [[[b"a"]], [[b"n1"], [b""]], [[b"b"]], [[b"c"]]]
    priorities = [each.header and each.header.priority for some in found for each in some]
    assert priorities == [4, 4, 4, 4, 5]
    places = [annotated(some[0])[Symbol("x-exchange")] for some in found]
    assert places == ["ex", "topic", "ex", "ex"]


def test_an_nsq_message_says_nothing_but_its_place_and_its_body() -> None:
    raw, cuts = make_cells([b"x" * 300])
    [found] = shown(Payload(NSQ, raw, cuts, Route("topic", "topic"), None, 1, 1, True, 400))
    assert [bound[0] for bound in found.bounds] == [0x70, 0x72, 0x75]
    assert found.header == Header(True, first_acquirer=True)
    assert found.bodies == [b"x" * 300]


def test_what_nobody_can_read_leaves_as_it_came() -> None:
    bad = [b"?", b"\0\x53\x70\xc0\xff", header("no")]
    stored = payload(3, message(), *bad, message())
    found = sent(Outgoing().runs(whole(stored), False, 0))
    assert found[1:4] == bad
    assert bare(found[0]) == bare(found[4]) == message()


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4))
def test_any_bytes_leave_somehow(row: list[bytes]) -> None:
    found = sent(Outgoing().runs(whole(payload(3, *row)), False, 5))
    assert len(found) == len(row)
    for raw, original in zip(found, row, strict=True):
        assert raw.endswith(original[-1:])


@pytest.mark.parametrize(
    ("format", "raw"),
    [
        (1, published(BasicProperties(correlation_id="c"), b"answer")),
        (3, message(Properties(correlation_id="c"), body=b"answer")),
    ],
)
def test_a_direct_reply_is_a_message(format: int, raw: bytes) -> None:
    reply = reply_to_amqp10(format, raw, Route("", "amq.rabbitmq.reply-to.t"))
    found = Sections(reply, 0, len(reply))
    assert found.properties == Properties(correlation_id="c")
    assert found.bodies == [b"answer"]
    assert annotated(found)[Symbol("x-routing-key")] == "amq.rabbitmq.reply-to.t"
    assert same(values(reply)[0].value[0], False)  # type: ignore[attr-defined]
