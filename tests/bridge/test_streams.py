"""Readers of streams over AMQP 0-9-1: where they begin, what they are refused, what they see."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.queue_consumers import consumers_of
from tallymark.wire.amqp091.fields import Timestamp
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicReject,
    ChannelClose,
    ConnectionClose,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
)
from tallymark.wire.amqp091.properties import Properties
from tests.bridge.rig import Content, Heard, Peer, Rig
from tests.wire.amqp091.test_properties import properties

STREAM: dict[str, object] = {"x-queue-type": "stream"}
FIRST: dict[str, object] = {"x-stream-offset": "first"}


def contents(heard: list[Heard]) -> list[Content]:
    found = []
    for _, content in heard:
        assert isinstance(content, Content), content
        assert isinstance(content.method, BasicDeliver)
        found.append(content)
    return found


def offsets(heard: list[Heard]) -> list[object]:
    return [(c.properties.headers or {})["x-stream-offset"] for c in contents(heard)]


def bodies(heard: list[Heard]) -> list[bytes]:
    return [content.body for content in contents(heard)]


def stream(*messages: bytes, **arguments: object) -> tuple[Rig, Peer]:
    """A client with a stream `s` that holds these messages, each published as a run of its own."""
    rig = Rig()
    peer = rig.connect()
    asked = {**STREAM, **{"x-" + name.replace("_", "-"): v for name, v in arguments.items()}}
    peer.ask(QueueDeclare("s", durable=True, arguments=asked))
    for message in messages:
        peer.ask(peer.publish(message, "s"))
    return rig, peer


def read(
    peer: Peer, start: object = "first", prefetch: int = 1000, tag: str = "r", **more: bool
) -> list[Heard]:
    peer.ask(BasicQos(0, prefetch))
    arguments = {} if start is None else {"x-stream-offset": start}
    heard = peer.ask(BasicConsume("s", tag, arguments=arguments, **more))
    assert heard[0] == (1, BasicConsumeOk(tag)), heard
    return heard[1:]


def closed(heard: list[Heard]) -> tuple[int, int, str]:
    """How the broker ended it: channel, code and text."""
    ((channel, close),) = heard
    assert isinstance(close, ChannelClose | ConnectionClose), close
    return channel, close.reply_code, close.reply_text


def test_each_message_says_its_offset_and_nothing_else_changes() -> None:
    rig, peer = stream()
    peer.ask(
        peer.publish(b"a", "s"),
        peer.publish(b"bb", "s", headers={"h": 1}, delivery_mode=2, expiration="1"),
        peer.publish(b"", "s", content_type="text/plain", app_id="me"),
    )
    rig.now_ms += 1000
    first, second, third = contents(read(peer))
    assert first.method == BasicDeliver("r", 1, False, "", "s")
    assert first.properties == Properties(headers={"x-stream-offset": 0})
    assert second.properties == Properties(
        headers={"h": 1, "x-stream-offset": 1}, delivery_mode=2, expiration="1"
    )
    assert third.properties == Properties(
        content_type="text/plain", app_id="me", headers={"x-stream-offset": 2}
    )
    assert [first.body, second.body, third.body] == [b"a", b"bb", b""]
    assert {c.method.redelivered for c in (first, second, third)} == {False}


def test_a_publisher_cannot_forge_an_offset() -> None:
    _, peer = stream()
    peer.ask(peer.publish(b"a", "s", headers={"x-stream-offset": 77, "z": 1}))
    (only,) = contents(read(peer))
    assert only.properties.headers == {"z": 1, "x-stream-offset": 0}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", [0, 1, 2, 3]), ("last", [3]), ("next", []), (None, []), (0, [0, 1, 2, 3]),
        (2, [2, 3]), (9, []), (-1, [0, 1, 2, 3]), (b"first", [0, 1, 2, 3]), ("1h", [0, 1, 2, 3]),
        ("1s", [1, 2, 3]), (Timestamp(0), [0, 1, 2, 3]), (Timestamp(1), [0, 1, 2, 3]),
        (Timestamp(2), [1, 2, 3]), (Timestamp(1 << 40), []),
    ],
)  # fmt: skip
def test_where_a_reader_begins(start: object, expected: list[int]) -> None:
    rig, peer = stream(b"0")
    rig.now_ms = 2_000
    for body in (b"1", b"2", b"3"):
        peer.ask(peer.publish(body, "s"))
    rig.now_ms = 2_900
    assert offsets(read(peer, start)) == expected
    heard = peer.ask(peer.publish(b"new", "s"))
    assert offsets(heard) == ([] if start == 9 else [4])


@pytest.mark.parametrize("value", ["", "soon", "5", "-1m", "0s", "5x", True, 1.5, [], {}])
def test_an_offset_without_a_meaning_is_refused(value: object) -> None:
    _, peer = stream(b"0")
    peer.ask(BasicQos(0, 10))
    heard = peer.ask(BasicConsume("s", "r", arguments={"x-stream-offset": value}))
    channel, code, text = closed(heard)
    assert (channel, code) == (1, 406)
    assert text.startswith(
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 's' in vhost '/': "
        "{invalid_stream_offset_arg,"
    )


def test_nothing_is_shown_before_the_disk_has_it() -> None:
    rig, peer = stream()
    read(peer)
    rig.hold_disk = True
    peer.send(peer.publish(b"a", "s"), peer.publish(b"b", "s"))
    assert peer.hear() == []
    rig.hold_disk = False
    assert offsets(peer.hear()) == [0, 1]


def test_dl_17_any_settlement_gives_credit_back_and_takes_nothing() -> None:
    rig, peer = stream(*[b"%d" % n for n in range(6)])
    assert offsets(read(peer, prefetch=2)) == [0, 1]
    assert offsets(peer.ask(BasicAck(1))) == [2]
    assert offsets(peer.ask(BasicReject(2, requeue=True))) == [3]
    assert offsets(peer.ask(BasicNack(4, multiple=True, requeue=False))) == [4, 5]
    recovered = peer.ask(BasicRecover(requeue=True))
    assert len(recovered) == 1  # recover-ok: nothing comes twice
    assert peer.ask(QueueDeclare("s", passive=True)) == [(1, QueueDeclareOk("s", 6, 1))]
    queue = rig.broker.vhost("/").queues["s"]
    assert (queue.entered, queue.ready, queue.account.settled, queue.account.dropped) == (
        6,
        6,
        0,
        {},
    )
    rig.broker.check()


def test_a_late_acknowledgement_of_a_reader_that_ended() -> None:
    _, peer = stream(b"0", b"1", b"2")
    assert offsets(read(peer, prefetch=2)) == [0, 1]
    peer.ask(BasicCancel("r"))
    assert peer.ask(BasicAck(2, multiple=True)) == []
    assert offsets(read(peer, prefetch=2, tag="again")) == [0, 1]
    assert closed(peer.ask(BasicAck(2)))[:2] == (1, 406)


def test_readers_of_one_channel_share_nothing_but_its_tags() -> None:
    _, peer = stream(b"0", b"1", b"2")
    assert offsets(read(peer, prefetch=2, tag="a", exclusive=True)) == [0, 1]
    assert offsets(read(peer, prefetch=2, tag="b", exclusive=True)) == [0, 1]
    (more,) = contents(peer.ask(BasicAck(3)))
    assert isinstance(more.method, BasicDeliver)
    assert (more.method.consumer_tag, more.method.delivery_tag) == ("b", 5)


# -- refusals, in RabbitMQ's words


def test_a_prefetch_count_is_needed_then_acknowledgements() -> None:
    expected = "consumer prefetch count is not set for 'queue 's' in vhost '/''"
    for no_ack in (False, True):
        _, peer = stream(b"0")
        heard = peer.ask(BasicConsume("s", "r", no_ack=no_ack))
        assert closed(heard) == (1, 406, f"PRECONDITION_FAILED - {expected}")
    _, peer = stream(b"0")
    peer.ask(BasicQos(0, 10))
    assert closed(peer.ask(BasicConsume("s", "r", no_ack=True))) == (
        0, 540,
        "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues queue 's' in "
        "vhost '/'",
    )  # fmt: skip


def test_a_prefetch_count_for_all_consumers_is_none() -> None:
    _, peer = stream(b"0")
    peer.ask(BasicQos(0, 10, True))
    assert closed(peer.ask(BasicConsume("s", "r")))[1] == 406
    _, peer = stream(b"0")
    peer.ask(BasicQos(0, 10), BasicQos(0, 10, True))
    text = "NOT_IMPLEMENTED - queue 's' in vhost '/' does not support global qos"
    assert closed(peer.ask(BasicConsume("s", "r"))) == (0, 540, text)
    _, peer = stream(b"0")
    peer.ask(BasicQos(0, 10, True))
    assert offsets(read(peer)) == [0]


@pytest.mark.parametrize(
    ("ask", "what"), [(BasicGet("s"), "basic.get"), (QueuePurge("s"), "queue.purge")]
)
def test_what_streams_do_not_do(ask: BasicGet | QueuePurge, what: str) -> None:
    _, peer = stream(b"0")
    text = f"NOT_IMPLEMENTED - {what} not supported by stream queues queue 's' in vhost '/'"
    assert closed(peer.ask(ask)) == (0, 540, text)


@pytest.mark.parametrize("name", ["x-priority", "x-cancel-on-ha-failover"])
def test_arguments_of_other_consumers_are_refused(name: str) -> None:
    _, peer = stream(b"0")
    peer.ask(BasicQos(0, 10))
    text = f"invalid arg '{name}' for queue 's' in vhost '/' of queue type rabbit_stream_queue"
    heard = peer.ask(BasicConsume("s", "r", arguments={name: 1}))
    assert closed(heard) == (1, 406, f"PRECONDITION_FAILED - {text}")


def test_a_reader_keeps_the_arguments_that_its_client_gave() -> None:
    rig, peer = stream(b"0")
    read(peer)
    (reader,) = consumers_of(rig.broker.vhosts["/"].queues["s"])
    assert reader.arguments == FIRST


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_only_streams_have_offsets(kind: str) -> None:
    rig = Rig()
    peer = rig.connect()
    peer.ask(QueueDeclare("q", durable=True, arguments={"x-queue-type": kind}))
    text = (
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue "
        f"type rabbit_{kind}_queue"
    )
    assert closed(peer.ask(BasicConsume("q", "r", arguments=FIRST))) == (1, 406, text)


def test_a_stream_wants_a_name() -> None:
    rig = Rig()
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_stream_queue"
    heard = rig.connect().ask(QueueDeclare("", durable=True, arguments=STREAM))
    assert closed(heard) == (1, 406, text)


def test_a_reader_hears_of_the_end_of_its_stream() -> None:
    rig, peer = stream(b"0")
    read(peer)
    rig.connect().ask(QueueDelete("s"))
    assert peer.hear() == [(1, BasicCancel("r", True))]
    assert peer.ask(BasicAck(1)) == []


# -- the bytes of deliveries


def test_a_reader_with_small_frames() -> None:
    rig, peer = stream()
    body = bytes(range(256)) * 100
    peer.ask(peer.publish(body, "s", headers={"h": 1}), peer.publish(b"x", "s"))
    small = Peer(rig)
    small.login(frame_max=4096)
    small.open()
    first, second = contents(read(small))
    assert (first.body, second.body) == (body, b"x")
    assert first.properties.headers == {"h": 1, "x-stream-offset": 0}
    assert second.properties.headers == {"x-stream-offset": 1}


def test_dl_17_dead_letters_show_their_history_and_their_offset() -> None:
    rig, peer = stream(b"plain")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s"}
    peer.ask(QueueDeclare("q", durable=True, arguments={**letters, "x-message-ttl": 60_000}))
    for body in (b"one", b"two"):
        peer.ask(peer.publish(body, "q", expiration="10", headers={"k": 1, "x-stream-offset": 5}))
    rig.now_ms += 100_000
    _, *found = contents(read(peer))
    for at, (content, body) in enumerate(zip(found, (b"one", b"two"), strict=True)):
        headers = content.properties.headers or {}
        assert (content.body, content.properties.expiration) == (body, None)
        assert (headers["k"], headers["x-stream-offset"]) == (1, at + 1)
        (death,) = headers["x-death"]  # type: ignore[attr-defined]
        assert (death["queue"], death["reason"], death["count"]) == ("q", "expired", 1)
        assert death["original-expiration"] == "10"
        assert content.method == BasicDeliver("r", at + 2, False, "", "s")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(properties, st.binary(max_size=30), st.sampled_from(["s", "t"]), st.booleans()),
        max_size=12,
    ),
    st.sampled_from([0, 1]),
)
def test_whatever_was_published_is_read_back_with_its_offset(
    messages: list[tuple[Properties, bytes, str, bool]], channel: int
) -> None:
    rig, peer = stream()
    peer.ask(QueueDeclare("t", durable=True, arguments=STREAM))
    sent: list[tuple[Properties, bytes]] = []
    for said, body, key, together in messages:
        given_ = {name: getattr(said, name) for name in Properties.__dataclass_fields__}
        if said.expiration is not None or said.user_id is not None or said.reply_to is not None:
            given_ |= {"expiration": None, "user_id": None, "reply_to": None}
        headers = {k: v for k, v in (said.headers or {}).items() if k not in ("CC", "BCC")}
        given_["headers"] = headers if said.headers is not None else None
        frames = peer.publish(body, key, **given_)
        if together:
            peer.send(frames)
        else:
            peer.ask(frames)
        if key == "s":
            sent.append((Properties(**given_), body))  # type: ignore[arg-type]
    peer.hear()
    reader = rig.connect()
    if channel:
        reader.open(2)
    found = contents(read(reader, prefetch=1000))
    assert len(found) == len(sent)
    for offset, (content, (said, body)) in enumerate(zip(found, sent, strict=True)):
        headers = dict(said.headers or {})
        headers.pop("x-stream-offset", None)
        said.headers = {**headers, "x-stream-offset": offset}
        assert (content.body, content.properties) == (body, said)


def test_a_declaration_without_a_type_follows_the_virtual_host() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.broker.registry.set_default_queue_type(rig.broker.vhost("/"), "stream")
    for _ in range(2):
        assert peer.ask(QueueDeclare("s", durable=True)) == [(1, QueueDeclareOk("s", 0, 0))]
    assert rig.broker.vhost("/").queues["s"].settings.is_stream
    rig.broker.registry.set_default_queue_type(rig.broker.vhost("/"), "quorum")
    assert peer.ask(QueueDeclare("s", durable=True)) == [(1, QueueDeclareOk("s", 0, 0))]
    rig.broker.registry.set_default_queue_type(rig.broker.vhost("/"), "")
    assert closed(peer.ask(QueueDeclare("s", durable=True)))[1] == 406


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-stream-filter": "eu"}, [0]),
        ({"x-stream-filter": ["eu", "us"]}, [0, 1]),
        ({"x-stream-filter": "eu", "x-stream-match-unfiltered": True}, [0, 2]),
        ({"x-stream-match-unfiltered": True}, [0, 1, 2]),
    ],
)
def test_a_stream_filter_compares_the_value_that_messages_have(
    arguments: dict[str, object], expected: list[int]
) -> None:
    _, peer = stream()
    for headers in ({"x-stream-filter-value": "eu"}, {"x-stream-filter-value": "us"}, {"a": 1}):
        peer.ask(peer.publish(b"m", "s", headers=headers))
    peer.ask(BasicQos(0, 10))
    heard = peer.ask(BasicConsume("s", "r", arguments={**FIRST, **arguments}))
    assert offsets(heard[1:]) == expected


def test_a_stream_filter_without_a_meaning_closes_the_channel() -> None:
    _, peer = stream(b"1")
    peer.ask(BasicQos(0, 10))
    ((_, close),) = peer.ask(BasicConsume("s", "r", arguments={"x-stream-filter": 5}))
    assert isinstance(close, ChannelClose)
    assert close.reply_code == 406
    assert "5 found, expected a string or 1 to 64 of them" in close.reply_text
