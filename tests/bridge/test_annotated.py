"""What the broker adds to messages for their readers: histories and counts, to the byte."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp091.annotated import Additions, additions_to
from tallymark.bridge.amqp091.channel import Channel
from tallymark.bridge.amqp091.content import send_got
from tallymark.engine.deaths import after_death
from tallymark.engine.effects import Deliver
from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Annotations, Death, Route
from tallymark.stored.formats import AMQP091
from tallymark.wire.amqp091.fields import Timestamp, WireInt
from tallymark.wire.amqp091.frames import frame_length
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicDeliver,
    BasicGetOk,
    ChannelOpen,
    QueueDeclare,
)
from tallymark.wire.amqp091.properties import Properties, decode_properties, encode_properties
from tests.bridge.rig import Content, Peer, Rig
from tests.bridge.test_amqp091_format import of_routes, payload
from tests.support.amqp091 import publish
from tests.wire.amqp091.test_properties import properties

SECOND = 1_700_000_000
EXPIRED = ("expired", "q", "ex")


def annotations(*deaths: Death, **more: object) -> Annotations:
    """Of a dead letter whose first and last death is EXPIRED, unless told otherwise."""
    known: dict[str, object] = {
        "route": Route("dlx", "shown"),
        "deaths": deaths or (Death("q", "expired", 1, "ex", ("rk",), SECOND * 1000 + 999, 0),),
        "first_death": EXPIRED,
        "last_death": EXPIRED,
        "form": 3,
    }
    return Annotations(**{**known, **more})  # type: ignore[arg-type]


def text(raw: bytes) -> bytes:
    return b"S" + len(raw).to_bytes(4, "big") + raw


def key(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw


def sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw


def patched(additions: Additions, section: bytes) -> bytes:
    """Between other bytes, as in a payload."""
    return additions.section(b"before" + section + b"behind", 6, 6 + len(section))


def headers_of(section: bytes) -> dict[str, object]:
    headers = decode_properties(section).headers
    assert headers is not None
    return headers


# -- to the byte


def test_dl_12_x_death_to_the_byte() -> None:
    known = annotations(
        Death("q", "expired", 3, "ex", ("rk", "c\u00e9"), SECOND * 1000 + 999, 0, 250),
        Death("p", "rejected", 1, "", (), 5000, 0),
        first_death=("rejected", "p", ""),
    )
    newest = (
        key(b"original-expiration") + text(b"250")
        + key(b"count") + b"l" + (3).to_bytes(8, "big")
        + key(b"reason") + text(b"expired")
        + key(b"queue") + text(b"q")
        + key(b"time") + b"T" + SECOND.to_bytes(8, "big")
        + key(b"exchange") + text(b"ex")
        + key(b"routing-keys") + b"A" + sized(text(b"rk") + text("c\u00e9".encode()))
    )  # fmt: skip
    oldest = (
        key(b"count") + b"l" + (1).to_bytes(8, "big")
        + key(b"reason") + text(b"rejected")
        + key(b"queue") + text(b"p")
        + key(b"time") + b"T" + (5).to_bytes(8, "big")
        + key(b"exchange") + text(b"")
        + key(b"routing-keys") + b"A" + sized(b"")
    )  # fmt: skip
    table = (
        key(b"x-death") + b"A" + sized(b"F" + sized(newest) + b"F" + sized(oldest))
        + key(b"x-first-death-reason") + text(b"rejected")
        + key(b"x-first-death-queue") + text(b"p")
        + key(b"x-first-death-exchange") + text(b"")
        + key(b"x-last-death-reason") + text(b"expired")
        + key(b"x-last-death-queue") + text(b"q")
        + key(b"x-last-death-exchange") + text(b"ex")
    )  # fmt: skip
    assert patched(Additions(known, 0, 0), b"\0\0") == b"\x20\0" + sized(table)


def test_dl_5_counts_to_the_byte() -> None:
    table = (
        key(b"x-delivery-count") + b"l" + (2).to_bytes(8, "big")
        + key(b"x-acquired-count") + b"l" + (5).to_bytes(8, "big")
    )  # fmt: skip
    assert patched(Additions(None, 2, 5), b"\0\0") == b"\x20\0" + sized(table)


def test_dl_12_a_message_that_expired_at_once_had_an_expiration_too() -> None:
    """DL-A7: "0" is a TTL of its own."""
    known = annotations(Death("q", "expired", 1, "", ("q",), 0, 0, 0))
    (death,) = headers_of(patched(Additions(known, 0, 0), b"\0\0"))["x-death"]  # type: ignore[misc]
    assert death["original-expiration"] == "0"


# -- everything else stays


def ours(known: Annotations) -> dict[str, object]:
    """The headers of a dead letter as tables have them."""
    deaths = []
    for death in known.deaths:
        entry: dict[str, object] = {}
        if death.ttl_ms >= 0:
            entry["original-expiration"] = str(death.ttl_ms)
        entry |= {
            "count": WireInt(death.count, "l"),
            "reason": death.reason,
            "queue": death.queue,
            "time": Timestamp(death.first_ms // 1000),
            "exchange": death.exchange,
            "routing-keys": list(death.keys),
        }
        deaths.append(entry)
    headers: dict[str, object] = {"x-death": deaths}
    for which, place in (("first", known.first_death), ("last", known.last_death)):
        if place is not None:
            for name, value in zip(("reason", "queue", "exchange"), place, strict=True):
                headers[f"x-{which}-death-{name}"] = value
    return headers


RESERVED = [
    "x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange",
    "x-last-death-reason", "x-last-death-queue", "x-last-death-exchange",
]  # fmt: skip
values = st.sampled_from(["text", 5, True, None, 1.5, ["x-death"], {"x-death": []}, b"x-death"])
alike = st.dictionaries(
    st.sampled_from(
        [*RESERVED, "x-delivery-count", "x-acquired-count", "x-deaths", "my-x-death", "x", "CC"]
    ),
    values,
    max_size=6,
)


@given(
    st.lists(st.tuples(properties, alike, st.booleans()), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_dl_11_dl_18_what_is_not_ours_stays_byte_for_byte(
    messages: list[tuple[Properties, dict[str, object], bool]],
    dead: bool,
    failed: int,
    acquired: int,
) -> None:
    """And what is ours replaces what a publisher called so. Each message once, some twice, some
    again with another id: what was learned of one must not show in the next."""
    known = annotations() if dead else None
    additions = Additions(known, failed, acquired)
    for message, some, again in messages:
        if some:
            message.headers = {**(message.headers or {}), **some}
        for id in (message.message_id, "another") if again else (message.message_id,):
            message.message_id = id
            found = patched(additions, encode_properties(message))
            assert found == encode_properties(expected(message, known, failed, acquired))


def expected(
    message: Properties, known: Annotations | None, failed: int, acquired: int
) -> Properties:
    """What a reader sees of a message."""
    more: dict[str, object] = {}
    gone = []
    if known is not None:
        more = ours(known)
        gone = list(RESERVED)
    if failed:
        more["x-delivery-count"] = WireInt(failed, "l")
        gone.append("x-delivery-count")
    if acquired:
        more["x-acquired-count"] = WireInt(acquired, "l")
        gone.append("x-acquired-count")
    headers = message.headers
    if more:
        kept = {name: value for name, value in (headers or {}).items() if name not in gone}
        headers = {**kept, **more}
    return replace(
        message, headers=headers, expiration=None if known is not None else message.expiration
    )


def test_dl_18_every_one_of_equal_names_is_replaced() -> None:
    """A table may name a header twice."""
    entries = key(b"x-death") + text(b"1") + key(b"k") + b"V" + key(b"x-death") + text(b"2")
    found = patched(Additions(annotations(), 0, 0), b"\x20\0" + sized(entries))
    assert found.count(b"\x07x-death") == 1
    assert headers_of(found)["k"] is None


@pytest.mark.parametrize("form", [1, 3])
def test_dl_18_a_last_death_of_the_publisher_goes_even_where_we_tell_of_none(form: int) -> None:
    known = after_death(
        None, Route("", "q"), "q", "expired", "dlx", None, 5000, 0, 0, form, True, -1,
        Route("dlx", "q"),
    )  # fmt: skip
    sent = Properties(headers={"x-last-death-queue": "forged", "x-last-death-reason": "forged"})
    headers = headers_of(patched(Additions(known, 0, 0), encode_properties(sent)))
    assert headers.get("x-last-death-queue") == (None if form == 1 else "q")
    assert headers.get("x-last-death-reason") == (None if form == 1 else "expired")


def test_a_table_nobody_can_read_stays_as_it_is() -> None:
    broken = key(b"x-death") + b"?" + key(b"CC")
    found = patched(Additions(annotations(), 0, 0), b"\x20\0" + sized(broken))
    assert found[6:].startswith(broken)
    assert int.from_bytes(found[2:6], "big") == len(found) - 6


# -- what is shown when


def piece(
    known: Annotations | None, acquired: int = 0, failed: int = 0, made: Payload | None = None
) -> Slice:
    made = made or payload(Properties())
    return Slice(made, 0, made.count, 1, acquired, failed, 0, known)


def shown(
    known: Annotations | None, acquired: int, failed: int, shows_counts: bool
) -> dict[str, object] | None:
    """The headers that readers of a message without any see; None: it leaves as it came."""
    additions = additions_to(piece(known, acquired, failed), shows_counts, None)
    return None if additions is None else decode_properties(patched(additions, b"\0\0")).headers


def test_what_only_the_broker_needs_is_not_shown() -> None:
    quiet = Annotations(ttl_ms=5, more_keys=("c",), bcc=("c",), hops=3, since_ms=9)
    assert additions_to(piece(None), True, None) is None
    assert additions_to(piece(quiet), True, None) is None
    assert additions_to(piece(quiet, 3, 2), False, None) is None


def test_dl_5_counts_are_shown_by_queues_that_count() -> None:
    assert shown(None, 0, 0, True) is None
    assert shown(None, 2, 1, False) is None
    assert shown(None, 2, 0, True) == {"x-acquired-count": 2}
    assert shown(None, 2, 1, True) == {"x-delivery-count": 1, "x-acquired-count": 2}


def test_dl_5_counts_survive_death_and_are_shown_wherever_it_leads() -> None:
    counted = Annotations(failed=1, acquired=3)
    both = {"x-delivery-count": 1, "x-acquired-count": 3}
    assert shown(counted, 0, 0, False) == both
    assert shown(counted, 0, 0, True) == both
    more = {"x-delivery-count": 2, "x-acquired-count": 5}
    assert shown(counted, 2, 1, False) == more
    assert shown(counted, 2, 1, True) == more
    assert shown(Annotations(failed=0, acquired=1), 0, 0, False) == {"x-acquired-count": 1}


def test_what_was_encoded_for_a_slice_serves_the_next_that_says_the_same() -> None:
    known = annotations()
    first = additions_to(piece(known, 1), True, None)
    assert first is not None
    assert additions_to(piece(known, 1), True, first) is first
    assert additions_to(piece(known, 2), True, first) is not first
    assert additions_to(piece(annotations(), 1), True, first) is not first


# -- through a connection


class Reader:
    """A client with a consumer on queue q, or one that asks; it is handed slices made by hand."""

    def __init__(self, frame_max: int = 131_072, channel: int = 1) -> None:
        self.peer = Peer(Rig())
        self.peer.login(frame_max=frame_max)
        self.peer.open()
        if channel != 1:
            self.peer.ask((channel, ChannelOpen()))
        self.peer.ask((channel, QueueDeclare("q", durable=True)))
        self.peer.ask((channel, BasicConsume("q", "ctag", no_ack=True)))
        client = self.peer.bridge.client
        assert client is not None
        self.channel: Channel = client.channels[channel]
        self.number = channel

    def reads(
        self, *pieces: Slice, first_tag: int = 1, shows_counts: bool = False
    ) -> list[Content]:
        consumer = self.channel.session.consumers["ctag"]
        consumer.queue.shows_counts = shows_counts
        for one in pieces:
            self.peer.bridge.deliver(Deliver(consumer, one, first_tag))
            first_tag += len(one)
        return self._heard()

    def gets(self, one: Slice, shows_counts: bool = False) -> Content:
        send_got(self.channel, one, 7, 0, shows_counts)
        (content,) = self._heard()
        return content

    def _heard(self) -> list[Content]:
        found = []
        for number, content in self.peer.heard_now():
            assert number == self.number
            assert isinstance(content, Content)
            found.append(content)
        return found


def test_a_dead_letter_is_shown_where_its_letter_went() -> None:
    messages = [Properties(expiration="5", headers={"n": i}) for i in range(3)]
    made = payload(*messages, routes=of_routes(3))
    for channel in (1, 3):
        heard = Reader(channel=channel).reads(piece(annotations(), made=made), first_tag=40)
        assert [content.method for content in heard] == [
            BasicDeliver("ctag", 40 + i, False, "dlx", "shown") for i in range(3)
        ]
        for i, content in enumerate(heard):
            assert content.body == b"body %d" % i
            assert content.properties == Properties(headers={"n": i, **ours(annotations())})


def test_counts_alone_leave_every_message_its_own_route() -> None:
    made = payload(*[Properties()] * 4, routes=of_routes(4))
    heard = Reader().reads(piece(None, 1, made=made), shows_counts=True)
    assert [content.method for content in heard] == [
        BasicDeliver("ctag", i + 1, True, route.exchange, route.key)
        for i, route in enumerate(of_routes(4))
    ]
    assert {content.properties.headers["x-acquired-count"] for content in heard} == {1}  # type: ignore[index]


def test_slices_of_other_annotations_behind_one_another() -> None:
    other = annotations(route=Route("", "elsewhere"), first_death=("maxlen", "p", ""))
    made = payload(Properties(), Properties())
    heard = Reader().reads(
        piece(annotations(), made=made), piece(other, made=made), piece(None, made=made)
    )
    firsts = [
        content.properties.headers and content.properties.headers["x-first-death-queue"]
        for content in heard
    ]
    assert firsts == ["q", "q", "p", "p", None, None]
    keys = [content.method.routing_key for content in heard]  # type: ignore[attr-defined]
    assert keys == ["shown", "shown", "elsewhere", "elsewhere", "q", "q"]


def test_a_part_of_a_payload() -> None:
    made = payload(*[Properties(message_id=f"{i}") for i in range(5)])
    part = Slice(made, 2, 4, 1, 0, 0, 0, annotations())
    heard = Reader().reads(part)
    assert [content.body for content in heard] == [b"body 2", b"body 3"]
    assert [content.properties.message_id for content in heard] == ["2", "3"]


@pytest.mark.parametrize("channel", [1, 3])
def test_bodies_are_cut_for_a_reader_of_small_frames(channel: int) -> None:
    """The header frame is not: the protocol has no way to."""
    sender = Rig()
    publisher = sender.connect()
    publisher.ask(QueueDeclare("q", durable=True))
    body = bytes(range(256)) * 100
    publisher.ask(publisher.publish(body, "q", expiration="100000", message_id="m"))
    (stored,) = sender.broker.vhosts["/"].queues["q"].slices()
    assert stored.payload.largest_frame > 4096
    reader = Reader(frame_max=4096, channel=channel)
    letter = Slice(stored.payload, 0, 1, 1, 0, 0, 0, annotations())
    (content,) = reader.reads(letter)
    assert content.body == body
    assert content.properties == Properties(message_id="m", headers=ours(annotations()))
    assert reader.gets(letter).body == body


@pytest.mark.parametrize("channel", [1, 3])
@pytest.mark.parametrize("largest", [100, 5000])
def test_every_frame_is_of_the_readers_channel_and_size(channel: int, largest: int) -> None:
    """Whatever the largest frame of the payload is: messages beside it may be small."""
    body = bytes(9000) if largest > 4096 else b"x"
    raw = publish(3, body, properties=Properties(expiration="1"))
    made = Payload(
        AMQP091, raw, array("I", [0, len(raw)]), Route("", "q"), None, 1, 0, True, largest
    )
    reader = Reader(frame_max=4096, channel=channel)
    consumer = reader.channel.session.consumers["ctag"]
    reader.peer.bridge.deliver(Deliver(consumer, piece(annotations(), made=made), 1))
    sent = b"".join(reader.peer.bridge.take_output())
    sizes, at = [], 0
    while at < len(sent):
        size = frame_length(sent, at)
        assert int.from_bytes(sent[at + 1 : at + 3], "big") == channel
        assert sent[at + size - 1] == 0xCE
        sizes.append(size)
        at += size
    assert max(sizes) <= 4096
    assert len(sizes) == (5 if largest > 4096 else 3)


@pytest.mark.parametrize("channel", [1, 3])
def test_a_message_asked_for_is_shown_alike(channel: int) -> None:
    made = payload(Properties(expiration="5", app_id="a"), routes=[Route("ex", "rk")])
    reader = Reader(channel=channel)
    got = reader.gets(piece(annotations(), made=made))
    assert got.method == BasicGetOk(7, False, "dlx", "shown", 0)
    assert got.properties == Properties(app_id="a", headers=ours(annotations()))
    assert got.body == b"body 0"
    got = reader.gets(piece(None, 2, 1, made), shows_counts=True)
    assert got.method == BasicGetOk(7, True, "ex", "rk", 0)
    assert got.properties.headers == {"x-delivery-count": 1, "x-acquired-count": 2}
    assert got.properties.expiration == "5"
    assert reader.gets(piece(None, 2, 1, made)).properties.headers is None
