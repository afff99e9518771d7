"""Names and routing keys that AMQP 1.0 could say and readers of AMQP 0-9-1 cannot be told: bytes
that are not UTF-8, and more than 255 of them. They are refused where they come in."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Error, Rejected
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.sections import Properties, encode_message
from tallymark.wire.amqp10.types import Symbol
from tests.bridge.rig10 import Rig
from tests.bridge.test_amqp10_management import Node
from tests.bridge.test_convert_end_to_end import consumed

LONGEST = "k" * 253 + "%C3%9F"
BAD_KEYS = ["%FF", "ok%ED%B3%BF", "k" * 256, "k" * 254 + "%C3%9F"]


@pytest.fixture
def rig() -> Rig:
    made = Rig(auto_create="auto.*")
    made.declare("q")
    made.broker.vhost("/").bind_queue("q", "amq.fanout", "", {}, made.owner.id)
    return made


@pytest.mark.parametrize("key", BAD_KEYS)
def test_routing_keys_that_no_other_reader_could_be_told_are_refused(rig: Rig, key: str) -> None:
    peer = rig.connect10()
    session = peer.session()
    address = f"/exchanges/amq.fanout/{key}"
    text = f"bad address '{address}': expected names in UTF-8 of at most 255 bytes"
    error = peer.refused(session, Attach(source=Source(), target=Target(address=address)), True)
    assert error == Error("amqp:invalid-field", text)
    anonymous = peer.sender(session, None)
    [told] = peer.states(peer.send(anonymous, "a", properties=Properties(to=address)))
    assert told == Rejected(Error("amqp:precondition-failed", text))
    assert rig.queue("q").ready == 0


@pytest.mark.parametrize("key", BAD_KEYS)
def test_nor_do_they_come_in_beside_further_keys(rig: Rig, key: str) -> None:
    """A queue that is not there is no reason to refuse a message that others get."""
    peer = rig.connect10()
    anonymous = peer.sender(peer.session(), None)
    further = {Symbol("x-cc"): ["q"]}
    sound, bad = [
        anonymous.send(
            encode_message(
                message_annotations=further, properties=Properties(to=f"/queues/{name}"), body=b"a"
            )
        )
        for name in ("nowhere", key)
    ]
    peer.pump()
    first, second = peer.states([sound, bad])
    assert first == Accepted()
    assert isinstance(second, Rejected)
    assert rig.queue("q").ready == 1


def test_the_longest_routing_key_reaches_every_reader(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    sender = peer.sender(session, f"/exchanges/amq.fanout/{LONGEST}")
    assert peer.states(peer.send(sender, "a", "b")) == [Accepted()] * 2
    peer.receiver(session, "/queues/q", 1)
    [got] = peer.got
    annotations = got.sections.message_annotations
    assert annotations is not None
    assert annotations["x-routing-key"] == "k" * 253 + "ß"
    peer.settle(got, Accepted())
    assert consumed(rig).method.routing_key == "k" * 253 + "ß"


@pytest.mark.parametrize("name", ["auto%FF", "auto" + "k" * 252])
def test_no_queue_of_such_a_name_is_made_by_an_attach(rig: Rig, name: str) -> None:
    peer = rig.connect10()
    session = peer.session()
    for is_sender in (True, False):
        node = f"/queues/{name}"
        attach = Attach(source=Source(address=node), target=Target(address=node))
        error = peer.refused(session, attach, is_sender)
        assert error.condition == "amqp:invalid-field"
        assert "of at most 255 bytes" in str(error.description)
    assert list(rig.broker.vhost("/").queues) == ["q"]


def test_what_is_not_there_is_named_all_the_same(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    attach = Attach(source=Source(address="/queues/q%FF"), target=Target())
    error = peer.refused(session, attach, False)
    assert error == Error("amqp:not-found", "no queue 'q?' in vhost '/'")


def test_management_makes_nothing_of_such_a_name() -> None:
    node = Node()
    long = "n" * 256
    for target in (f"/queues/{long}", f"/exchanges/{long}"):
        status, text = node.ask("PUT", target, {})
        assert status == 400
        assert "expected UTF-8 text of at most 255 bytes" in str(text)
    node.ask("PUT", "/queues/q", {})
    body = {"source": "amq.topic", "destination_queue": "q", "binding_key": long}
    assert node.ask("POST", "/bindings", body | {"arguments": {}})[0] == 400
    assert node.bound() == []


def test_management_tells_of_a_number_that_only_a_stored_timestamp_has() -> None:
    """Arguments that are not known are kept. After a restart such a queue ended the connection of
    whoever asked for it."""
    node = Node()
    stored: dict[str, object] = {"x-odd": (1 << 64) - 1}
    node.broker.registry.declare_queue(node.connection, "stored", True, False, False, stored, False)
    status, found = node.ask("GET", "/queues/stored", None)
    assert status == 200
    assert isinstance(found, dict)
    assert found["arguments"]["x-odd"] == (1 << 64) - 1


def test_management_tells_of_arguments_that_are_no_text() -> None:
    node = Node()
    arguments: dict[str, object] = {"x-dead-letter-exchange": "k\udcff"}
    node.broker.registry.declare_queue(node.connection, "q", True, False, False, arguments, False)
    status, text = node.ask("PUT", "/queues/q", {})
    assert status == 409
    assert "k\N{REPLACEMENT CHARACTER}" in str(text)


def test_a_refusal_whose_text_is_too_long_for_the_peer_is_cut(rig: Rig) -> None:
    """It ended the connection, with all its links."""
    peer = rig.connect10(limits=Limits(incoming_window=5000, max_frame_size=512))
    session = peer.session()
    address = "k" * 420
    error = peer.refused(session, Attach(source=Source(), target=Target(address=address)), True)
    assert error.condition == "amqp:invalid-field"
    assert (error.description or "").startswith(f"bad address '{address}': ")
    anonymous = peer.sender(session, None)
    [told] = peer.states(peer.send(anonymous, "a", properties=Properties(to=address)))
    assert isinstance(told, Rejected)
    assert told.error is not None
    assert (told.error.description or "").endswith("...")
    assert peer.states(peer.send(peer.sender(session), "a")) == [Accepted()]


@pytest.mark.parametrize("is_sender", [True, False])
def test_a_link_whose_answer_is_too_large_for_the_peer_is_refused(
    rig: Rig, is_sender: bool
) -> None:
    """The connection and its other links go on, and no consumer is left."""
    peer = rig.connect10(limits=Limits(incoming_window=5000, max_frame_size=512))
    session = peer.session()
    name = "l" * 440  # the client's attach just fits
    if is_sender:
        asked = Attach(name=name, source=Source(), target=Target(address="/queues/q"))
    else:
        asked = Attach(name=name, source=Source(address="/queues/q"), target=Target())
    error = peer.refused(session, asked, is_sender)
    assert error.condition == "amqp:frame-size-too-small"
    assert "max-frame-size is 512" in (error.description or "")
    assert not rig.queue("q").consumers
    reader = peer.receiver(session, credit=1)
    assert peer.states(peer.send(peer.sender(session), "a")) == [Accepted()]
    assert [got.link for got in peer.got] == [reader]
