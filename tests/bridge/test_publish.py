"""Publishing: routes, groups, order, returns before confirms, properties that are acted upon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicReturn,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
    QueueDelete,
)
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tests.bridge.rig import Content, Heard, Peer, Rig
from tests.support.amqp091 import publish


def contents(peer: Peer, queue: str) -> Iterator[Content]:
    """Everything in a queue, taken out by basic.get."""
    while True:
        ((_, got),) = peer.ask(BasicGet(queue, True))
        if isinstance(got, BasicGetEmpty):
            return
        assert isinstance(got, Content)
        yield got


def bodies(peer: Peer, queue: str) -> list[bytes]:
    return [content.body for content in contents(peer, queue)]


def keys(peer: Peer, queue: str) -> list[str]:
    found = []
    for content in contents(peer, queue):
        assert isinstance(content.method, BasicGetOk)
        found.append(content.method.routing_key)
    return found


def queues(peer: Peer, *names: str) -> None:
    for name in names:
        peer.ask(QueueDeclare(name, durable=True))


def payloads(rig: Rig, queue: str) -> list[int]:
    """Message counts of the payloads that lie in a queue."""
    return [piece.payload.count for piece in rig.broker.vhosts["/"].queues[queue].slices()]


def test_one_route_is_one_payload_without_a_copy() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "q")
    peer.ask(b"".join(peer.publish(b"%d" % i, "q") for i in range(100)))
    assert payloads(rig, "q") == [100]
    assert bodies(peer, "q") == [b"%d" % i for i in range(100)]


def test_routes_with_the_same_queues_are_one_payload() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "q")
    peer.ask(QueueBind("q", "amq.topic", "#"))
    sent = [f"k{i % 7}" for i in range(50)]
    peer.ask(b"".join(peer.publish(b"x", key, exchange="amq.topic") for key in sent))
    assert payloads(rig, "q") == [50]
    assert keys(peer, "q") == sent


def test_interleaved_routes_are_one_payload_per_set_of_queues() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "a", "b", "c")
    sent = [("a", "b", "c")[i * i % 3] for i in range(60)]
    peer.ask(b"".join(peer.publish(b"%d" % i, key) for i, key in enumerate(sent)))
    for name in "abc":
        wanted = [b"%d" % i for i, key in enumerate(sent) if key == name]
        assert len(payloads(rig, name)) == (1 if wanted else 0)
        assert bodies(peer, name) == wanted


def test_sets_that_share_a_queue_keep_their_order() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "all", "some", "other")
    for queue, key in (("all", "#"), ("some", "s.#"), ("other", "o.#")):
        peer.ask(QueueBind(queue, "amq.topic", key))
    sent = ["s.1", "o.1", "x", "s.2", "s.3", "x", "o.2", "nowhere", "s.4"]
    peer.ask(b"".join(peer.publish(b"x", key, exchange="amq.topic") for key in sent))
    assert keys(peer, "all") == sent
    assert keys(peer, "some") == [key for key in sent if key.startswith("s")]
    assert keys(peer, "other") == [key for key in sent if key.startswith("o")]


def test_what_came_before_a_refused_publish_is_kept() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "q", "p")
    heard = peer.ask(
        peer.publish(b"1", "q") + peer.publish(b"2", "p") + peer.publish(b"3", "q", exchange="no")
        + peer.publish(b"4", "q")
    )  # fmt: skip
    assert isinstance(heard[0][1], ChannelClose)
    other = rig.connect()
    assert bodies(other, "q") == [b"1"]
    assert bodies(other, "p") == [b"2"]


def test_routes_are_looked_up_anew_when_the_topology_changes() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.ask(peer.publish(b"lost", "q"))
    queues(peer, "q")
    peer.ask(peer.publish(b"kept", "q"))
    peer.ask(QueueDelete("q"))
    peer.ask(peer.publish(b"lost", "q"))
    queues(peer, "q")
    assert bodies(peer, "q") == []
    peer.ask(peer.publish(b"kept", "q"))
    assert bodies(peer, "q") == [b"kept"]


# -- returns and confirms


def test_mandatory_comes_back_before_its_confirm() -> None:
    peer = Rig().connect()
    heard = peer.ask(ConfirmSelect(), peer.publish(b"x", "no", mandatory=True, content_type="a"))
    returned = Content(BasicReturn(312, "NO_ROUTE", "", "no"), Properties(content_type="a"), b"x")
    assert heard == [(1, ConfirmSelectOk()), (1, returned), (1, BasicAck(1, False))]


def test_mandatory_among_routable_ones_comes_back_each_time() -> None:
    peer = Rig().connect()
    queues(peer, "q")
    sent = b"".join(
        peer.publish(b"%d" % i, "q" if i % 2 else "no", mandatory=True) for i in range(6)
    )
    heard = peer.ask(ConfirmSelect(no_wait=True), sent)
    assert [one.body for _, one in heard[:-1] if isinstance(one, Content)] == [b"0", b"2", b"4"]
    assert heard[-1] == (1, BasicAck(6, True))
    assert bodies(peer, "q") == [b"1", b"3", b"5"]


def test_confirms_wait_for_the_disk_and_are_joined() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "q")
    peer.ask(ConfirmSelect())
    rig.hold_disk = True
    assert peer.ask(*[peer.publish(b"x", delivery_mode=2)] * 3) == []
    assert peer.ask(peer.publish(b"x", delivery_mode=2)) == []
    rig.hold_disk = False
    assert peer.hear() == [(1, BasicAck(4, True))]
    assert peer.ask(peer.publish(b"x", delivery_mode=2)) == [(1, BasicAck(5, False))]


def test_confirms_of_channels_are_their_own() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.open(2)
    queues(peer, "q")
    peer.ask((1, ConfirmSelect()), (2, ConfirmSelect()))
    heard = peer.ask(
        peer.publish(b"1", channel=1) * 2 + peer.publish(b"2", channel=2) + peer.publish(b"3")
    )
    assert sorted(heard, key=lambda one: one[0]) == [
        (1, BasicAck(3, True)),
        (2, BasicAck(1, False)),
    ]


# -- properties that are acted upon


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        ({"CC": ["a"], "o": 1}, {"CC": ["a"], "o": 1}),
        ({"BCC": ["a"], "o": 1}, {"o": 1}),
        ({"BCC": ["a"]}, {}),
        ({"CC": ["a"], "BCC": ["b"]}, {"CC": ["a"]}),
        ({"CC": [1, "a"], "BCC": []}, {"CC": [1, "a"]}),
    ],
)
def test_cc_and_bcc_are_further_keys_and_bcc_is_not_shown(
    table: dict[str, object], shown: dict[str, object]
) -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "a", "b")
    big = b"x" * 10
    peer.ask(peer.publish(big, "nowhere", headers=table, message_id="m") * 3)
    wanted = {"a": "a" in str(table.values()), "b": "b" in str(table.values())}
    for name, expected in wanted.items():
        found = list(contents(peer, name))
        assert len(found) == (3 if expected else 0)
        for content in found:
            assert content.properties == Properties(headers=shown, message_id="m")
            assert content.body == big
            assert isinstance(content.method, BasicGetOk)
            assert content.method.routing_key == "nowhere"


def test_a_returned_message_does_not_show_bcc() -> None:
    peer = Rig().connect()
    ((_, got),) = peer.ask(peer.publish(b"x", "no", mandatory=True, headers={"BCC": ["no"]}))
    assert got == Content(BasicReturn(312, "NO_ROUTE", "", "no"), Properties(headers={}), b"x")


def test_own_user_id_and_expiration_are_kept() -> None:
    peer = Rig().connect()
    queues(peer, "q")
    peer.ask(peer.publish(b"x", user_id="guest", expiration="60000"))
    (found,) = contents(peer, "q")
    assert found.properties == Properties(user_id="guest", expiration="60000")


@pytest.mark.parametrize("varied", [True, False])
def test_headers_decide_message_by_message(varied: bool) -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "red", "blue")
    for colour in ("red", "blue"):
        peer.ask(QueueBind(colour, "amq.headers", "", arguments={"colour": colour}))
    sent = ["red", "blue", "green", "red"] if varied else ["red"] * 4
    peer.ask(
        b"".join(
            peer.publish(b"%d" % i, "", exchange="amq.headers", headers={"colour": colour})
            for i, colour in enumerate(sent)
        )
    )
    for colour in ("red", "blue"):
        assert bodies(peer, colour) == [b"%d" % i for i, c in enumerate(sent) if c == colour]


def test_headers_behind_another_exchange_are_seen() -> None:
    rig = Rig()
    peer = rig.connect()
    queues(peer, "q")
    peer.ask(
        ExchangeDeclare("front", "direct", arguments={"alternate-exchange": "amq.headers"}),
        QueueBind("q", "amq.headers", "", arguments={"n": 1}),
    )
    peer.ask(
        peer.publish(b"1", "k", exchange="front", headers={"n": 1})
        + peer.publish(b"2", "k", exchange="front", headers={"n": 2})
        + peer.publish(b"3", "k", exchange="front", headers={"n": 1}, expiration="60000")
    )
    assert bodies(peer, "q") == [b"1", b"3"]


@pytest.mark.parametrize("size", [0, 1, 4000, 131_064, 131_065, 400_000])
def test_bodies_of_any_size_over_any_number_of_frames(size: int) -> None:
    peer = Rig().connect()
    queues(peer, "q")
    body = bytes(range(251)) * (size // 251 + 1)
    peer.ask(peer.publish(body[:size]))
    assert bodies(peer, "q") == [body[:size]]


def test_bodies_interleaved_over_channels() -> None:
    peer = Rig().connect()
    peer.open(2)
    queues(peer, "q")
    peer.frame_max = 4096
    one = peer.publish(b"1" * 9000, channel=1)
    two = peer.publish(b"2" * 9000, channel=2)
    frames = [[], []]  # type: list[list[bytes]]
    for at, raw in enumerate((one, two)):
        pos = 0
        while pos < len(raw):
            after = pos + 8 + int.from_bytes(raw[pos + 3 : pos + 7], "big")
            frames[at].append(raw[pos:after])
            pos = after
    mixed = b"".join(a + b for a, b in zip(*frames, strict=True))
    peer.ask(mixed)
    assert sorted(bodies(peer, "q")) == [b"1" * 9000, b"2" * 9000]


# -- however the bytes come


Program = list[tuple[int, int, int, bool]]
KEYS = ("a", "b", "s.1", "s.2", "o.1", "nowhere")


def run(program: Program, cut: int) -> tuple[list[Heard], list[list[bytes]]]:
    """Publish a program in chunks of `cut` bytes; what the publisher heard, but for how confirms
    were joined, and what the queues hold."""
    rig = Rig()
    peer = rig.connect()
    peer.open(2)
    queues(peer, "a", "b", "all")
    for queue, key in (("all", "#"), ("a", "s.#"), ("b", "o.1")):
        peer.ask(QueueBind(queue, "amq.topic", key))
    peer.ask(ConfirmSelect(), (2, ConfirmSelect()))
    raw = b""
    for i, (route, exchange, kind, mandatory) in enumerate(program):
        properties: dict[str, object] = {}
        if kind == 1:
            properties = {"delivery_mode": 2, "message_id": str(i)}
        elif kind == 2:
            properties = {"headers": {"BCC": ["b"], "i": i % 2}}
        elif kind == 3:
            properties = {"expiration": "60000"}
        raw += publish(
            1 + i % 2 * (kind == 0),
            b"%d" % i,
            exchange=("", "amq.topic")[exchange],
            routing_key=KEYS[route],
            mandatory=mandatory,
            properties=encode_properties(Properties(**properties)),  # type: ignore[arg-type]
        )
    heard: list[Heard] = []
    for at in range(0, len(raw), cut):
        heard += peer.ask(raw[at : at + cut])
    heard += peer.hear()
    last: dict[int, int] = {}
    returned = []
    for channel, one in heard:
        if isinstance(one, BasicAck):
            assert last.get(channel, 0) < one.delivery_tag
            last[channel] = one.delivery_tag
        else:
            returned.append((channel, one))
    returned.append((0, BasicAck(last.get(1, 0) * 1000 + last.get(2, 0))))
    rig.broker.check()
    return returned, [bodies(peer, name) for name in ("a", "b", "all")]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(KEYS) - 1), st.integers(0, 1), st.integers(0, 3), st.booleans()
        ),
        max_size=30,
    ),
    st.integers(1, 400),
)
def test_the_same_whatever_the_cuts(program: Program, cut: int) -> None:
    whole = run(program, 1 << 30)
    assert run(program, cut) == whole


def test_a_channel_opened_again_starts_anew() -> None:
    peer = Rig().connect()
    peer.ask(ConfirmSelect(), peer.publish(b"x", "no"))
    heard = peer.ask(ChannelClose(200, "bye"), ChannelOpen(), peer.publish(b"x", "no"))
    assert len(heard) == 2  # close-ok, open-ok, and no confirm
    assert peer.ask(ConfirmSelect(), peer.publish(b"x", "no"))[1:] == [(1, BasicAck(1, False))]
