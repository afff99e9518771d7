"""Readers of streams over AMQP 1.0: where they begin, what they see, what settling does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.wire.amqp10 import performatives as amqp
from tallymark.wire.amqp10.events import DrainFinished
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState, Modified, Rejected, Released
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.types import Array, Described, Symbol, Timestamp, UInt, ULong
from tests.bridge.rig10 import Got, Peer, Rig

SPEC = Symbol("rabbitmq:stream-offset-spec")
SQL = {Symbol("sql"): Described(Symbol("amqp:sql-filter"), "n > 2")}


def beginning(start: object) -> dict[object, object]:
    return {SPEC: Described(SPEC, start)}


def source(start: object = "first", name: str = "s", **more: object) -> Source:
    filter = {} if start is None else beginning(start)
    return Source(address=f"/queues/{name}", filter=filter, **more)  # type: ignore[arg-type]


def known(got: Got) -> dict[object, object]:
    found = got.sections.message_annotations
    assert found is not None
    return found


def failures(got: Got) -> int:
    header = got.sections.header
    assert header is not None
    return header.delivery_count


def stream(count: int = 0, **arguments: object) -> Rig:
    """A stream `s` of messages 0, 1, ..., each published in a turn of its own."""
    rig = Rig()
    rig.declare("s", queue_type="stream", **arguments)
    fill(rig, count)
    return rig


def fill(rig: Rig, count: int, first: int = 0) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session(), "/queues/s")
    for i in range(first, first + count):
        peer.send(link, b"%d" % i, application_properties={"n": i})


def read(peer: Peer, credit: int = 100, **more: object) -> ReceiverLink:
    more.setdefault("source", source())
    return peer.receiver(peer.session(), credit=credit, **more)  # type: ignore[arg-type]


def seen(peer: Peer) -> list[tuple[object, bytes]]:
    """Offset and body of what has come since the last call."""
    got, peer.got = peer.got, []
    return [(known(one)["x-stream-offset"], one.body) for one in got]


def offsets(peer: Peer) -> list[object]:
    return [offset for offset, _ in seen(peer)]


def test_each_message_says_its_offset_as_a_ulong() -> None:
    rig = stream(3)
    peer = rig.connect10()
    read(peer)
    one = peer.got[1]
    offset = known(one)["x-stream-offset"]
    assert isinstance(offset, ULong)
    assert known(one)["x-routing-key"] == "s"
    assert seen(peer) == [(0, b"0"), (1, b"1"), (2, b"2")]
    fill(rig, 1, first=3)
    peer.pump()
    assert seen(peer) == [(3, b"3")]


def test_a_publisher_cannot_forge_an_offset() -> None:
    rig = stream()
    publisher = rig.connect10()
    forged: dict[object, object] = {
        Symbol("x-stream-offset"): ULong(77), Symbol("x-mine"): "kept",
    }  # fmt: skip
    link = publisher.sender(publisher.session(), "/queues/s")
    publisher.send(link, b"a", message_annotations=forged)
    peer = rig.connect10()
    read(peer)
    found = known(peer.got[0])
    assert (found["x-stream-offset"], found["x-mine"]) == (0, "kept")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", [0, 1, 2, 3]), (Symbol("first"), [0, 1, 2, 3]), ("last", [3]), ("next", []),
        (None, []), (0, [0, 1, 2, 3]), (ULong(2), [2, 3]), (UInt(2), [2, 3]), (9, []),
        ("1h", [0, 1, 2, 3]), ("1s", [1, 2, 3]), (Timestamp(0), [0, 1, 2, 3]),
        (Timestamp(60_000), [1, 2, 3]), (Timestamp(1 << 45), []),
    ],
)  # fmt: skip
def test_where_a_reader_begins(start: object, expected: list[int]) -> None:
    rig = stream()
    rig.now_ms = 1_000
    fill(rig, 1)
    rig.now_ms = 60_000
    fill(rig, 3, first=1)
    peer = rig.connect10()
    link = read(peer, source=source(start))
    assert offsets(peer) == expected
    answer = link.remote_attach
    assert answer is not None
    assert answer.source is not None
    assert list(answer.source.filter or {}) == ([] if start is None else [SPEC])
    assert answer.source.distribution_mode == amqp.COPY


@pytest.mark.parametrize("start", ["", "soon", "5x", True, 1.5, None, b"\xff", ["first"]])
def test_a_beginning_without_a_meaning_refuses_the_link(start: object) -> None:
    peer = stream(1).connect10()
    asked = source()
    asked.filter = beginning(start)
    error = peer.refused(peer.session(), Attach(source=asked, target=Target()), False)
    assert error.condition == "amqp:invalid-field"
    assert "rabbitmq:stream-offset-spec" in (error.description or "")


def test_on_a_queue_the_beginning_is_left_out_of_the_answer() -> None:
    rig = Rig()
    rig.declare("q")
    peer = rig.connect10()
    link = peer.receiver(peer.session(), source=source("soon", name="q"))
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    assert not link.remote_attach.source.filter


def test_with_a_filter_only_what_matches_comes_and_offsets_tell_the_gaps() -> None:
    rig = stream(6)
    peer = rig.connect10()
    asked = source(1)
    asked.filter = {**beginning(1), **SQL}
    link = read(peer, source=asked)
    assert seen(peer) == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    assert set(link.remote_attach.source.filter or {}) == {SPEC, "sql"}


def test_credit_is_spent_by_sending_and_granted_anew_fc_2() -> None:
    rig = stream(5)
    peer = rig.connect10()
    link = read(peer, credit=2)
    assert link.credit == 0
    first, second = peer.got
    assert offsets(peer) == [0, 1]
    peer.settle(first, Accepted())
    peer.settle(second, Accepted())
    assert offsets(peer) == []
    link.flow(2)
    peer.pump()
    assert offsets(peer) == [2, 3]


@pytest.mark.parametrize(
    "state",
    [
        Accepted(), Released(), Rejected(), Modified(True, False),
        Modified(True, True, {Symbol("x-opt-note"): "n"}),
    ],
)  # fmt: skip
def test_dl_17_whatever_the_outcome_the_stream_keeps_its_messages(state: DeliveryState) -> None:
    rig = stream(2)
    rig.declare("letters")
    peer = rig.connect10()
    read(peer)
    for got in list(peer.got):
        peer.settle(got, state)
    assert offsets(peer) == [0, 1]  # and nothing comes again
    queue = rig.queue("s")
    assert (queue.ready, queue.acquired, queue.account.settled, queue.account.dead_lettered) == (
        2,
        0,
        0,
        0,
    )
    other = rig.connect10()
    read(other)
    assert [failures(got) for got in other.got] == [0, 0]
    assert offsets(other) == [0, 1]


def test_a_drain_ends_when_the_end_of_the_stream_was_sent() -> None:
    rig = stream(3)
    peer = rig.connect10()
    link = read(peer, credit=0)
    link.flow(10)
    link.drain()
    peer.pump()
    assert offsets(peer) == [0, 1, 2]
    assert peer.take(DrainFinished).link is link
    assert link.credit == 0


def test_what_is_sent_settled_is_read_the_same() -> None:
    peer = stream(2).connect10()
    read(peer, snd=1)
    assert [got.settled for got in peer.got] == [True, True]
    assert offsets(peer) == [0, 1]


def test_dl_17_a_letter_in_a_stream_says_how_it_died() -> None:
    rig = stream()
    arguments = {"dead_letter_exchange": "", "dead_letter_routing_key": "s"}
    rig.declare("q", **arguments)
    peer = rig.connect10()
    session = peer.session()
    peer.send(peer.sender(session, "/queues/q"), b"bad")
    peer.receiver(session, "/queues/q", 1)
    peer.settle(peer.got.pop(), Rejected())
    reader = rig.connect10()
    read(reader)
    (got,) = reader.got
    deaths = known(got)["x-opt-deaths"]
    assert isinstance(deaths, Array)
    assert deaths[0]["queue"] == "q"  # type: ignore[index]
    assert known(got)["x-stream-offset"] == 0


def test_messages_of_amqp_0_9_1_say_their_offset_too() -> None:
    rig = stream(1)
    old = rig.connect()
    old.ask(old.publish(b"old", "s", headers={"h": 1}), old.publish(b"older", "s"))
    peer = rig.connect10()
    read(peer)
    assert seen(peer) == [(0, b"0"), (1, b"old"), (2, b"older")]


@pytest.mark.parametrize("section", ["application_properties", "message_annotations"])
def test_what_a_publisher_has_numbered_is_taken_once(section: str) -> None:
    rig = stream()
    publisher = rig.connect10()
    link = publisher.sender(publisher.session(), "/queues/s")

    def send(body: bytes, name: object, number: object) -> None:
        said = {Symbol("x-publisher-name"): name, Symbol("x-publishing-id"): number}
        if section == "application_properties":
            said = {str(key): value for key, value in said.items()}  # type: ignore[misc]
        (number_sent,) = publisher.send(link, body, **{section: said})
        assert publisher.states([number_sent]) == [Accepted()]

    send(b"0", "p", ULong(1))
    send(b"1", "p", ULong(1))
    send(b"2", "q", 1)
    send(b"3", "p", 0)
    send(b"4", "p", UInt(2))
    send(b"5", "p", "2")  # no number, so not numbered
    send(b"6", "p", True)
    send(b"7", 5, 2)
    send(b"8", "p", Timestamp(1))
    send(b"9", "p", -1)
    publisher.send(link, b"x-publisher-name", application_properties={"x-publishing-id": 1})
    assert rig.queue("s").deduplication.numbers == {"p": 2, "q": 1}
    peer = rig.connect10()
    read(peer)
    assert [body for _, body in seen(peer)] == [
        b"0", b"2", b"4", b"5", b"6", b"7", b"8", b"9", b"x-publisher-name",
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 20), st.integers(1, 7),
    st.sampled_from([0, 1, 7]),
)  # fmt: skip
def test_however_messages_come_together_offsets_count_on(
    runs: list[int], start: int, credit: int, chunk: int
) -> None:
    rig = stream()
    publisher = rig.connect10()
    link = publisher.sender(publisher.session(), "/queues/s")
    number = 0
    for n in runs:
        publisher.send(link, *[b"%d" % i for i in range(number, number + n)])
        number += n
    peer = rig.connect10(chunk=chunk)
    receiver = read(peer, credit=0, source=source(start))
    for _ in range(number + 1):
        receiver.flow(credit)
        peer.pump()
    assert seen(peer) == [(i, b"%d" % i) for i in range(start, number)]


VALUE = "x-stream-filter-value"


def chosen(*values: object, unfiltered: object = None) -> dict[object, object]:
    """As RabbitMQ's clients ask: for values, and whether messages without any come."""
    asked: dict[object, object] = dict(beginning("first"))
    for name, value in (
        ("rabbitmq:stream-filter", list(values) if len(values) != 1 else values[0]),
        ("rabbitmq:stream-match-unfiltered", unfiltered),
    ):
        if value is not None and value != []:
            asked[Symbol(name)] = Described(Symbol(name), value)
    return asked


def valued(*values: str | None) -> Rig:
    """A stream with a message for each value, by publishers of both protocols in turn."""
    rig = stream()
    peer, other = rig.connect10(), rig.connect()
    link = peer.sender(peer.session(), "/queues/s")
    for i, value in enumerate(values):
        if i % 2:
            headers = {} if value is None else {VALUE: value}
            other.send(other.publish(b"%d" % i, "s", headers=headers))
            rig.settle_down()
        else:
            annotations = None if value is None else {VALUE: value}
            peer.send(link, b"%d" % i, message_annotations=annotations)
    return rig


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (chosen("eu"), [0, 1]),
        (chosen("eu", "us"), [0, 1, 2, 3]),
        (chosen("eu", unfiltered=True), [0, 1, 4, 5]),
        (chosen("eu", unfiltered=False), [0, 1]),
        (chosen("asia", unfiltered=True), [4, 5]),
        (chosen("asia"), []),
        (chosen(unfiltered=True), [0, 1, 2, 3, 4, 5]),  # nothing is filtered then
    ],
)
def test_a_stream_filter_compares_the_value_that_messages_have(
    asked: dict[object, object], expected: list[int]
) -> None:
    rig = valued("eu", "eu", "us", "us", None, None)
    peer = rig.connect10()
    link = read(peer, source=Source(address="/queues/s", filter=asked))
    assert offsets(peer) == expected
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    assert link.remote_attach.source.filter == asked  # they are in effect


@pytest.mark.parametrize("asked", [chosen(5), chosen("a", 5), chosen("a", unfiltered="yes")])
def test_a_stream_filter_without_a_meaning_refuses_the_link(asked: dict[object, object]) -> None:
    rig = stream(1)
    peer = rig.connect10()
    wrong = Attach(name="r", source=Source(address="/queues/s", filter=asked), target=Target())
    error = peer.refused(peer.session(), wrong, False)
    assert error.condition == "amqp:invalid-field"
    assert "rabbitmq:stream-" in (error.description or "")


def test_on_a_queue_a_stream_filter_is_left_out_of_the_answer() -> None:
    rig = Rig()
    rig.declare("q")
    peer = rig.connect10()
    link = read(peer, source=Source(address="/queues/q", filter=chosen("eu", unfiltered=True)))
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    assert link.remote_attach.source.filter is None
