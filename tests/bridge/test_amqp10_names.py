"""Names that AMQP 0-9-1 knows and AMQP 1.0 cannot say: bytes that are not UTF-8. Clients get at
them by percent-encoded addresses; texts for people show a ? or U+FFFD."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import LinkDetached
from tallymark.wire.amqp10.outcomes import Accepted, Error, Rejected
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.sections import Properties
from tests.bridge.rig10 import Peer, Rig
from tests.bridge.test_amqp10_management import Node

NAME = "q\udcff"
ADDRESS = "/queues/q%FF"


@pytest.fixture
def rig() -> Rig:
    return Rig()


def detached(peer: Peer) -> list[tuple[str, str | None]]:
    """Why links ended."""
    errors = [event.error for event in peer.events if isinstance(event, LinkDetached)]
    return [(error.condition, error.description) for error in errors if error is not None]


def test_a_queue_is_deleted_under_its_links(rig: Rig) -> None:
    rig.declare(NAME)
    peer = rig.connect10()
    session = peer.session()
    publisher = peer.sender(session, ADDRESS)
    peer.receiver(session, ADDRESS, 5)
    peer.send(publisher, "a")
    assert peer.bodies() == [b"a"]
    rig.delete(NAME)
    peer.pump()
    text = "queue 'q?' in vhost '/' was deleted"
    assert detached(peer) == [("amqp:resource-deleted", text)] * 2


def test_a_queue_without_room_refuses_messages(rig: Rig) -> None:
    rig.declare(NAME, max_length=1, overflow="reject-publish")
    peer = rig.connect10()
    first, second = peer.states(peer.send(peer.sender(peer.session(), ADDRESS), "a", "b"))
    assert first == Accepted()
    assert isinstance(second, Rejected)
    text = "queue 'q?' in vhost '/' has no room for it"
    info = {"reason": "maxlen", "queue": "q\N{REPLACEMENT CHARACTER}"}
    assert second.error == Error("amqp:resource-limit-exceeded", text, info)


def test_what_is_not_there_is_refused(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    error = peer.refused(session, Attach(source=Source(address=ADDRESS), target=Target()), False)
    assert error == Error("amqp:not-found", "no queue 'q?' in vhost '/'")
    anonymous = peer.sender(session, None)
    [told] = peer.states(peer.send(anonymous, "a", properties=Properties(to="/exchanges/e%FF/k")))
    assert told == Rejected(Error("amqp:not-found", "no exchange 'e?' in vhost '/'"))


def test_management_tells_of_arguments_that_are_no_text() -> None:
    node = Node()
    arguments: dict[str, object] = {"x-dead-letter-exchange": "k\udcff"}
    node.broker.declare_queue(node.connection, "q", True, False, False, arguments, False)
    status, text = node.ask("PUT", "/queues/q", {})
    assert status == 409
    assert "k\N{REPLACEMENT CHARACTER}" in str(text)
