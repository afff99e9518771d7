"""AMQP 1.0: how links, sessions and connections end, and what becomes of what they held [FC-19]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.wire.amqp10.events import (
    CloseReceived,
    Ended,
    LinkDetached,
    SessionEnded,
    SessionFailed,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Modified
from tallymark.wire.amqp10.performatives import Attach, Flow, Source, Target, Transfer
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import encode_message
from tests.bridge.rig10 import Peer, Rig
from tests.bridge.test_amqp10_consume import counts, failed, fill


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q")
    return made


def detach(peer: Peer, link: ReceiverLink) -> None:
    link.detach()
    peer.pump()
    assert peer.take(LinkDetached).closed


def suspend(peer: Peer, link: ReceiverLink) -> None:
    link.detach(closed=False)
    peer.pump()
    assert not peer.take(LinkDetached).closed


def end(peer: Peer, link: ReceiverLink) -> None:
    link.session.end()
    peer.pump()
    assert peer.take(SessionEnded).error is None


def close(peer: Peer, link: ReceiverLink) -> None:
    peer.wire.close()
    peer.pump()
    assert peer.take(Ended).clean
    assert peer.bridge.closing


def vanish(peer: Peer, link: ReceiverLink) -> None:
    peer.vanish()
    assert peer.bridge.closing


def fall_silent(peer: Peer, link: ReceiverLink) -> None:
    rig = peer.rig
    rig.now_ms += 121_000
    deadline = peer.bridge.next_deadline()
    assert deadline is not None
    assert deadline <= rig.now_ms
    peer.bridge.tick(rig.now_ms)
    rig.settle_down()


def break_the_link(peer: Peer, link: ReceiverLink) -> None:
    """A transfer to a sender."""
    transfer = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"t", message_format=0)
    peer.wire.line.out.append(frame(0, transfer.encode() + encode_message(body=b"x")))
    peer.pump()
    assert peer.take(LinkDetached).error is not None


def break_the_session(peer: Peer, link: ReceiverLink) -> None:
    """A flow for a handle that nobody has [amqp-1.0 §2.7.4]."""
    flow = Flow(0, 100, 0, 100, handle=99)
    peer.wire.line.out.append(frame(0, flow.encode()))
    peer.pump()
    error = peer.take(SessionEnded).error
    assert error is not None
    assert error.condition == "amqp:session:unattached-handle"


def break_the_protocol(peer: Peer, link: ReceiverLink) -> None:
    peer.wire.line.out.append(b"\x00\x00\x00\x08\x07\x00\x00\x00")
    peer.pump()
    error = peer.take(CloseReceived).error
    assert error is not None
    assert error.condition == "amqp:connection:framing-error"


def be_shut_down(peer: Peer, link: ReceiverLink) -> None:
    peer.bridge.shutdown()
    peer.rig.settle_down()


@pytest.mark.parametrize(
    ("ending", "failures"),
    [
        (detach, 0),
        (suspend, 0),
        (end, 0),
        (close, 0),
        (be_shut_down, 0),
        (break_the_link, 0),
        (break_the_session, 0),
        (break_the_protocol, 0),
        (vanish, 1),
        (fall_silent, 1),
    ],
)
@pytest.mark.parametrize("chunk", [0, 1])
def test_fc_19_what_was_held_returns_and_counts_only_where_the_client_vanished(
    rig: Rig, ending: Callable[[Peer, ReceiverLink], None], failures: int, chunk: int
) -> None:
    fill(rig, 6)
    peer = rig.connect10(chunk=chunk)
    session = peer.session()
    link = peer.receiver(session, credit=5)
    session.settle_received(1, 1, Accepted())
    session.settle_received(3, 3, Modified(delivery_failed=True))
    peer.pump()
    assert counts(rig) == (2, 3, 1)
    ending(peer, link)
    assert counts(rig) == (5, 0, 1)
    again = rig.connect10()
    again.receiver(again.session(), credit=5)
    assert [int(body) for body in again.bodies()] == [0, 2, 3, 4, 5]
    again.bridge.shutdown()
    expected = [failures, failures, 1, failures, 0]
    assert failed(rig) == expected


def test_a_link_that_ends_leaves_the_others_of_its_session_alone(rig: Rig) -> None:
    rig.declare("r")
    fill(rig, 3)
    fill(rig, 3, "r", 10)
    peer = rig.connect10()
    session = peer.session()
    first = peer.receiver(session, "q", credit=3)
    peer.receiver(session, "r", credit=3)
    detach(peer, first)
    assert (counts(rig), counts(rig, "r")) == ((3, 0, 0), (0, 3, 0))
    session.settle_received(0, 5, Accepted())
    peer.pump()
    assert (counts(rig), counts(rig, "r")) == ((3, 0, 0), (0, 0, 3)), "a late settle hits nothing"


def test_sessions_of_one_connection_are_apart(rig: Rig) -> None:
    fill(rig, 4)
    peer = rig.connect10()
    one, two = peer.session(), peer.session()
    first = peer.receiver(one, credit=2)
    second = peer.receiver(two, credit=2)
    assert [(got.link, got.id) for got in peer.got] == [
        (first, 0),
        (first, 1),
        (second, 0),
        (second, 1),
    ]
    one.end()
    peer.pump()
    assert counts(rig) == (2, 2, 0)
    two.settle_received(0, 1, Accepted())
    peer.pump()
    assert counts(rig) == (2, 0, 2)
    three = peer.session()
    peer.got.clear()
    peer.receiver(three, credit=5)
    assert [int(body) for body in peer.bodies()] == [0, 1]


def test_handles_and_names_may_be_used_again(rig: Rig) -> None:
    fill(rig, 20)
    peer = rig.connect10()
    session = peer.session()
    for i in range(10):
        asked = Attach(name="same", source=Source(address="q"), target=Target())
        link = peer.receiver(session, attach=asked, credit=2)
        assert [int(got.body) for got in peer.got] == [i, i + 1]
        peer.settle(peer.got[0], Accepted())
        peer.got.clear()
        detach(peer, link)
    assert counts(rig) == (10, 0, 10)


def test_any_names_may_be_used_at_once(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    for name in ("a (2)", "a", "a"):
        peer.receiver(session, attach=Attach(name=name, source=Source(address="q")))
    tags = [consumer.tag for consumer in rig.queue("q").consumers]
    assert sorted(tags) == ["a", "a (2)", "a (2) (2)"]


def test_more_links_than_handle_max_end_the_session() -> None:
    rig = Rig(Limits(handle_max=3))
    rig.declare("q")
    peer = rig.connect10()
    session = peer.session()
    for _ in range(4):
        peer.sender(session)
    with pytest.raises(ValueError, match="the peer takes no more"):
        session.attach_sender(Attach(name="x", source=Source(), target=Target(address="q")))


def test_more_sessions_than_channel_max_close_the_connection() -> None:
    rig = Rig(Limits(channel_max=1))
    peer = rig.connect10()
    peer.session()
    peer.session()
    with pytest.raises(ValueError, match="channel-max"):
        peer.wire.begin()


def test_the_handshake_has_its_time(rig: Rig) -> None:
    peer = Peer(rig)
    peer.bridge.tick(rig.now_ms)
    assert not peer.bridge.closing
    rig.now_ms += 10_001
    peer.bridge.tick(rig.now_ms)
    assert peer.bridge.closing


def test_an_exclusive_queue_goes_with_its_connection(rig: Rig) -> None:
    peer = rig.connect10()
    connection = peer.bridge.entered
    assert connection is not None
    rig.broker.registry.declare_queue(connection, "mine", False, True, False, {}, False)
    peer.receiver(peer.session(), "mine")
    peer.wire.close()
    peer.pump()
    assert "mine" not in rig.broker.vhost("/").queues
    assert not [event for event in peer.events if isinstance(event, SessionFailed)]
    assert rig.broker.connections.keys() == {rig.owner.id}


def test_an_auto_delete_queue_goes_with_its_last_link(rig: Rig) -> None:
    rig.broker.registry.declare_queue(rig.owner, "auto", True, False, True, {}, False)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, "auto")
    publisher = peer.sender(session, "auto")
    link.detach()
    peer.pump()
    assert "auto" not in rig.broker.vhost("/").queues
    told = {event.link: event.error for event in peer.events if isinstance(event, LinkDetached)}
    assert told[link] is None
    error = told[publisher]
    assert error is not None
    assert error.condition == "amqp:resource-deleted"


def test_effects_for_a_client_that_is_gone_are_passed_over(rig: Rig) -> None:
    """Deliveries and confirms that were decided on before its end was noticed."""
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, credit=10)
    link = peer.sender(session)
    rig.hold_disk = True
    peer.send(link, "1", "2")
    peer.bridge.eof()
    rig.hold_disk = False
    rig.settle_down()
    assert counts(rig)[:2] == (2, 0)


@pytest.mark.parametrize("reads", [True, False])
def test_an_attach_to_a_queue_that_is_gone_is_refused_when_the_disk_knows(
    rig: Rig, reads: bool
) -> None:
    """After a power cut it could be back, though somebody was told that it is not there."""
    rig.declare("gone")
    rig.settle_down()
    peer = rig.connect10()
    session = peer.session()
    peer.pump()
    rig.hold_disk = True
    rig.delete("gone")
    if reads:
        attach = Attach(name="l", source=Source(address="gone"), target=Target())
        session.attach_receiver(attach)
    else:
        attach = Attach(name="l", source=Source(), target=Target(address="/queues/gone"))
        session.attach_sender(attach)
    peer.pump()
    assert not peer.events
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:not-found"


def test_half_an_attach_is_no_link(rig: Rig) -> None:
    """A client that vanishes while its queue is being declared."""
    made = Rig(auto_create=".")
    peer = made.connect10()
    session = peer.session()
    made.hold_disk = True
    session.attach_receiver(Attach(name="l", source=Source(address="new"), target=Target()))
    peer.pump()
    peer.bridge.eof()
    made.hold_disk = False
    made.settle_down()
    assert not made.queue("new").consumers


def test_a_client_may_leave_before_its_attach_is_answered(rig: Rig) -> None:
    made = Rig(auto_create=".")
    peer = made.connect10()
    session = peer.session()
    made.hold_disk = True
    link = session.attach_receiver(Attach(name="l", source=Source(address="new"), target=Target()))
    link.detach()
    peer.pump()
    made.hold_disk = False
    made.settle_down()
    peer.pump()
    assert not made.queue("new").consumers
    assert peer.receiver(session, "new")
