"""Queues that refuse: which publish gets a basic.nack, and what confirms say then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.effects import Confirm, Refused
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicNack,
    ConfirmSelect,
    QueueBind,
)
from tests.bridge.rig import Heard, Peer, Rig
from tests.bridge.test_dead_letters import declare, get, queue


def answers(heard: list[Heard]) -> list[tuple[str, int, bool]]:
    """Confirms in the order they came."""
    found = []
    for _, method in heard:
        assert isinstance(method, (BasicAck, BasicNack)), method
        name = "ack" if isinstance(method, BasicAck) else "nack"
        found.append((name, method.delivery_tag, method.multiple))
    return found


def told(heard: list[Heard], published: int) -> dict[int, str]:
    """What a publisher that keeps book takes from them; each publish is answered once."""
    open_ones = set(range(1, published + 1))
    verdicts: dict[int, str] = {}
    for name, number, multiple in answers(heard):
        assert number in open_ones, f"{name} of {number}, which is answered or not published"
        for one in sorted(open_ones) if multiple else [number]:
            if one <= number:
                open_ones.discard(one)
                verdicts[one] = name
    assert not open_ones, "without an answer"
    return verdicts


def test_dl_6_what_a_full_queue_refuses_gets_a_nack() -> None:
    peer = Rig().connect()
    declare(peer, "q", max_length=2, overflow="reject-publish")
    peer.ask(ConfirmSelect())
    heard = peer.ask(b"".join(peer.publish(b"%d" % i, "q") for i in range(5)))
    assert sorted(answers(heard)) == [
        ("ack", 2, True), ("nack", 3, False), ("nack", 4, False), ("nack", 5, False),
    ]  # fmt: skip
    assert [get(peer, "q").body for _ in range(2)] == [b"0", b"1"]  # type: ignore[union-attr]
    heard = peer.ask(peer.publish(b"5", "q"))
    assert answers(heard) == [("ack", 6, False)]


def test_dl_6_without_confirms_a_refusal_is_silent() -> None:
    peer = Rig().connect()
    declare(peer, "q", max_length=1, overflow="reject-publish")
    assert peer.ask(b"".join(peer.publish(b"%d" % i, "q") for i in range(3))) == []
    assert queue(peer, "q").ready == 1


def test_dl_6_a_refusal_names_the_publish_it_is_of() -> None:
    """Publishes to several queues in turn; one of the queues is full, one is not there."""
    peer = Rig().connect()
    declare(peer, "full", max_length=1, overflow="reject-publish")
    declare(peer, "roomy")
    peer.ask(ConfirmSelect())
    names = ["roomy", "full", "nowhere", "full", "roomy", "full", "full", "roomy", "nowhere"]
    heard = peer.ask(b"".join(peer.publish(b"%d" % i, name) for i, name in enumerate(names)))
    verdicts = told(heard, len(names))
    refused = [i + 1 for i, name in enumerate(names) if name == "full"][1:]
    assert [number for number, verdict in sorted(verdicts.items()) if verdict == "nack"] == refused
    assert [get(peer, "roomy").body for _ in range(3)] == [b"0", b"4", b"7"]  # type: ignore[union-attr]
    assert get(peer, "full").body == b"1"  # type: ignore[union-attr]


def test_dl_6_a_refusal_names_the_publish_it_is_of_also_where_others_share_a_queue() -> None:
    """What reaches the full queue comes behind publishes to sets of queues with one in common."""
    peer = Rig().connect()
    for name in ("one", "two", "three"):
        declare(peer, name)
    declare(peer, "full", max_length=0, overflow="reject-publish")
    for key, name in (("a", "one"), ("a", "two"), ("b", "two"), ("b", "three"), ("c", "full")):
        peer.ask(QueueBind(name, "amq.direct", key))
    peer.ask(ConfirmSelect())
    keys = ("a", "b", "c", "nowhere", "a")
    heard = peer.ask(
        b"".join(peer.publish(key.encode(), key, exchange="amq.direct") for key in keys)
    )
    assert [number for number, said in told(heard, len(keys)).items() if said == "nack"] == [3]
    assert [get(peer, "two").body for _ in range(3)] == [b"a", b"b", b"a"]  # type: ignore[union-attr]


def test_the_last_publish_confirmed_is_never_a_refused_one() -> None:
    """Its client has closed the books on it: an acknowledgement would be of nothing it knows."""
    peer = Rig().connect()
    declare(peer, "q", max_length=1, overflow="reject-publish")
    declare(peer, "other")
    peer.ask(ConfirmSelect())
    peer.rig.hold_disk = True
    heard = peer.ask(peer.publish(b"1", "other", delivery_mode=2))
    heard += peer.ask(peer.publish(b"2", "q", delivery_mode=2))
    heard += peer.ask(peer.publish(b"3", "q", delivery_mode=2))
    assert answers(heard) == [("nack", 3, False)]
    assert channel_state(peer)["unconfirmed"] == 2
    peer.rig.hold_disk = False
    heard += peer.hear()
    assert told(heard, 3) == {1: "ack", 2: "ack", 3: "nack"}
    assert channel_state(peer)["unconfirmed"] == 0
    assert answers(peer.ask(peer.publish(b"4", "q"))) == [("nack", 4, False)]
    assert channel_state(peer)["unconfirmed"] == 0
    assert answers(peer.ask(peer.publish(b"5", "other"))) == [("ack", 5, False)]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8),
    st.lists(st.integers(1, 30), max_size=6),
)
def test_every_publish_is_answered_once_however_confirms_fall(
    ranges: list[tuple[int, bool]], confirms: list[int]
) -> None:
    """Refusals are told at once, confirms come later and may end amid a refused range."""
    peer = Rig().connect()
    peer.ask(ConfirmSelect())
    client = peer.bridge.client
    assert client is not None
    session = client.channels[1].session
    refused: set[int] = set()
    for count, is_refused in ranges:
        first = session.published + 1
        session.published += count
        if is_refused:
            refused.update(range(first, session.published + 1))
            peer.bridge.refused(Refused(session, first, session.published))
    heard = peer.heard_now()
    assert [number for _, number, _ in answers(heard)] == sorted(refused)
    for upto in [*confirms, session.published]:
        peer.bridge.confirm(Confirm(session, min(upto, session.published)))
        heard += peer.heard_now()
    verdicts = told(heard, session.published)
    assert {number for number, verdict in verdicts.items() if verdict == "nack"} == refused
    assert channel_state(peer)["unconfirmed"] == 0


def channel_state(peer: Peer) -> dict[str, object]:
    channels = peer.bridge.describe()["channels"]
    assert isinstance(channels, list)
    state: dict[str, object] = channels[0]
    return state


def test_a_stretch_to_one_guarded_queue_is_one_payload() -> None:
    """However many routes lead there."""
    peer = Rig().connect()
    declare(peer, "q", max_length=100, overflow="reject-publish")
    peer.ask(QueueBind("q", "amq.topic", "#"))
    peer.send(b"".join(peer.publish(b"x", f"k{i % 3}", exchange="amq.topic") for i in range(9)))
    assert [piece.payload.count for piece in queue(peer, "q").slices()] == [9]


def test_runs_of_one_set_are_one_payload_each_where_a_queue_is_guarded() -> None:
    peer = Rig().connect()
    declare(peer, "q", max_length=100, overflow="reject-publish")
    declare(peer, "p")
    sent = ["q", "q", "p", "p", "p", "q", "p"]
    peer.send(b"".join(peer.publish(b"%d" % i, name) for i, name in enumerate(sent)))
    assert [piece.payload.count for piece in queue(peer, "q").slices()] == [2, 1]
    assert [piece.payload.count for piece in queue(peer, "p").slices()] == [3, 1]
