"""The pair of links to `/management`: requests in, answers out, in order, as credit allows. What
the node answers is tested elsewhere."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp10.management_link import RequestLink
from tallymark.wire.amqp10.events import LinkDetached
from tallymark.wire.amqp10.frames import frame_head
from tallymark.wire.amqp10.outcomes import Accepted
from tallymark.wire.amqp10.performatives import Attach, Source, Target, decode_performative
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, Value, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.types import Symbol
from tests.bridge.rig10 import Peer, Rig

NODE = "/management"


def request(id: str, method: str, to: str, body: object = None) -> bytes:
    properties = Properties(message_id=id, to=to, subject=method, reply_to="$me")
    return encode_message(properties=properties, body=Value(body))


def half(
    peer: Peer, session: Session, is_sender: bool, most: int | None = None
) -> SenderLink | ReceiverLink:
    attach = Attach(
        max_message_size=most,
        name="pair",
        source=Source(address=NODE),
        target=Target(address=NODE),
        properties={Symbol("paired"): True},
    )
    if is_sender:
        return peer.sender(session, attach=attach, snd=1)
    return peer.receiver(session, attach=attach, snd=1)


def pair(peer: Peer, session: Session) -> tuple[SenderLink, ReceiverLink]:
    sender, receiver = half(peer, session, True), half(peer, session, False)
    assert isinstance(sender, SenderLink)
    assert isinstance(receiver, ReceiverLink)
    return sender, receiver


def answers(peer: Peer) -> list[tuple[object, str | None]]:
    """Of what has come: the id of the request, and the status."""
    found = []
    for got in peer.got:
        properties = got.sections.properties
        assert properties is not None
        assert got.settled
        found.append((properties.correlation_id, properties.subject))
    peer.got.clear()
    return found


@pytest.mark.parametrize("chunk", [0, 1])
def test_requests_are_answered_in_order_as_credit_allows(chunk: int) -> None:
    rig = Rig()
    peer = rig.connect10(chunk=chunk)
    sender, receiver = pair(peer, peer.session())
    assert sender.credit == 8
    assert sender.remote_attach is not None
    assert sender.remote_attach.properties == {"paired": True}
    for i in range(3):
        sender.send(request(f"r{i}", "GET", "/queues/none"), settled=True)
    peer.pump()
    assert answers(peer) == []
    receiver.flow(2)
    peer.pump()
    assert answers(peer) == [("r0", "404"), ("r1", "404")]
    receiver.flow(100)
    peer.pump()
    assert answers(peer) == [("r2", "404")]


@pytest.mark.parametrize("drain", [False, True])
def test_a_response_beyond_the_readers_max_message_size_ends_its_link(drain: bool) -> None:
    """It was sent all the same [amqp-1.0 §2.7.3]."""
    rig = Rig()
    peer = rig.connect10()
    session = peer.session()
    sender, receiver = half(peer, session, True), half(peer, session, False, most=50)
    assert isinstance(sender, SenderLink)
    assert isinstance(receiver, ReceiverLink)
    for id in ("a", "b"):
        sender.send(request(id, "GET", "/queues/none"), settled=True)
    receiver.flow(2)
    if drain:
        receiver.drain()
    peer.pump()
    assert answers(peer) == []
    ended = next(event for event in peer.events if isinstance(event, LinkDetached))
    assert (ended.link, ended.error and ended.error.condition) == (
        receiver, "amqp:link:message-size-exceeded",
    )  # fmt: skip
    again = half(peer, session, False)
    assert isinstance(again, ReceiverLink)
    again.flow(1)
    peer.pump()
    assert answers(peer) == [("b", "404")]


def test_many_requests_one_after_the_other() -> None:
    rig = Rig()
    peer = rig.connect10()
    sender, receiver = pair(peer, peer.session())
    receiver.flow(100)
    peer.pump()
    for i in range(40):
        assert sender.credit > 0
        sender.send(request(str(i), "GET", "/queues/none"), settled=True)
        peer.pump()
    assert [id for id, _ in answers(peer)] == [str(i) for i in range(40)]


def test_no_more_requests_than_answers_that_may_wait() -> None:
    rig = Rig()
    peer = rig.connect10()
    sender, _ = pair(peer, peer.session())
    for _ in range(3):
        while sender.credit:
            sender.send(request("r", "GET", "/queues/none"), settled=True)
        peer.pump()
    client = peer.bridge.client
    assert client is not None
    (request_link,) = [end for end in client.sessions[0].ends if isinstance(end, RequestLink)]
    assert len(request_link.pair.responses) == 8
    assert sender.credit == 0


def test_an_answer_waits_for_the_disk_and_later_ones_behind_it() -> None:
    rig = Rig()
    peer = rig.connect10()
    sender, receiver = pair(peer, peer.session())
    receiver.flow(10)
    rig.hold_disk = True
    body = {"durable": True, "arguments": {}}
    sender.send(request("put", "PUT", "/queues/new", body), settled=True)
    sender.send(request("get", "GET", "/queues/none"), settled=True)
    peer.pump()
    assert answers(peer) == []
    assert rig.queue("new").durable
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert answers(peer) == [("put", "201"), ("get", "404")]


def test_what_is_gone_is_not_found_when_the_disk_knows() -> None:
    rig = Rig()
    rig.declare("gone")
    rig.settle_down()
    peer = rig.connect10()
    sender, receiver = pair(peer, peer.session())
    receiver.flow(10)
    rig.hold_disk = True
    rig.delete("gone")
    sender.send(request("purge", "DELETE", "/queues/gone/messages"), settled=True)
    peer.pump()
    assert answers(peer) == []
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert answers(peer) == [("purge", "404")]


def test_an_unsettled_request_is_accepted() -> None:
    rig = Rig()
    peer = rig.connect10()
    session = peer.session()
    attach = Attach(name="pair", source=Source(address=NODE), target=Target(address=NODE))
    sender = peer.sender(session, attach=attach)
    number = sender.send(request("r", "GET", "/queues/none"))
    peer.pump()
    assert peer.states([number]) == [Accepted()]


def test_what_is_no_request_ends_its_link_only() -> None:
    rig = Rig()
    rig.declare("q")
    peer = rig.connect10()
    session = peer.session()
    sender, _ = pair(peer, session)
    sender.send(encode_message(body=b"hello"), settled=True)
    peer.pump()
    detached = peer.take(LinkDetached)
    assert detached.link is sender
    assert detached.error is not None
    sender.detach()
    assert peer.sender(session).credit == 170


def test_a_half_there_twice_is_refused() -> None:
    rig = Rig()
    peer = rig.connect10()
    session = peer.session()
    pair(peer, session)
    other = Attach(name="other", source=Source(address=NODE), target=Target(address=NODE))
    assert peer.sender(session, attach=other).credit == 8


def test_halves_may_come_and_go() -> None:
    rig = Rig()
    peer = rig.connect10()
    session = peer.session()
    for _ in range(3):
        sender, receiver = pair(peer, session)
        receiver.flow(1)
        sender.send(request("r", "GET", "/queues/none"), settled=True)
        peer.pump()
        assert answers(peer) == [("r", "404")]
        sender.detach()
        receiver.detach()
        peer.pump()
        peer.events.clear()
    client = peer.bridge.client
    assert client is not None
    assert client.sessions[0].ends == {}


def test_numbers_stay_in_step_with_deliveries_from_queues() -> None:
    rig = Rig()
    rig.declare("q")
    peer = rig.connect10()
    session = peer.session()
    sender, receiver = pair(peer, session)
    receiver.flow(10)
    peer.receiver(session, credit=10)
    link = peer.sender(session)
    for i in range(3):
        peer.send(link, f"{i}")
        sender.send(request("r", "GET", "/queues/none"), settled=True)
        peer.pump()
    assert [got.id for got in peer.got] == list(range(6))
    for got in peer.got:
        if not got.settled:
            peer.settle(got, Accepted())
    assert rig.queue("q").account.settled == 3


def written(peer: Peer) -> list[str]:
    """What the broker has written since, frame by frame: answers and detaches."""
    data = b"".join(peer.sent_bytes)
    peer.sent_bytes.clear()
    found = []
    pos = 0
    while pos < len(data):
        size, offset, _, _ = frame_head(data, pos)
        if size > offset:
            body, _ = decode_performative(data, pos + offset, pos + size)
            found.append(type(body).__name__)
        pos += size
    return [name for name in found if name in ("Transfer", "Detach")]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("same_session", [True, False])
def test_links_of_a_deleted_queue_are_detached_behind_the_answer(
    durable: bool, same_session: bool
) -> None:
    """A client that waits for the answer stumbles over a detach in front of it [rabbitmq]. Links of
    other connections need not wait."""
    rig = Rig()
    rig.declare("q", durable=durable)
    peer, other = rig.connect10(), rig.connect10()
    session = peer.session()
    sender, receiver = pair(peer, session)
    receiver.flow(10)
    links = session if same_session else peer.session()
    publisher, consumer = peer.sender(links, "/queues/q"), peer.receiver(links, "/queues/q")
    stranger = other.receiver(other.session(), "/queues/q")
    peer.pump()
    peer.sent_bytes.clear()
    rig.hold_disk = True
    sender.send(request("delete", "DELETE", "/queues/q"), settled=True)
    peer.pump()
    assert written(peer) == ([] if durable else ["Transfer", "Detach", "Detach"])
    if durable:  # in between they are links of no queue
        publisher.send(encode_message(body=b"for nobody"))
        consumer.flow(5)
        peer.pump()
        assert written(peer) == []
    rig.hold_disk = False
    peer.pump()
    if durable:
        assert written(peer) == ["Transfer", "Detach", "Detach"]
    assert answers(peer) == [("delete", "200")]
    gone = [event for event in peer.events if isinstance(event, LinkDetached)]
    assert {event.link for event in gone} == {publisher, consumer}
    assert {event.error.condition for event in gone if event.error} == {"amqp:resource-deleted"}
    other.pump()
    assert other.take(LinkDetached).link is stranger


def test_a_link_that_is_closed_before_the_answer_is_not_detached_again() -> None:
    rig = Rig()
    rig.declare("q")
    peer = rig.connect10()
    session = peer.session()
    sender, receiver = pair(peer, session)
    receiver.flow(10)
    publisher, consumer = peer.sender(session, "/queues/q"), peer.receiver(session, "/queues/q")
    peer.pump()
    rig.hold_disk = True
    sender.send(request("delete", "DELETE", "/queues/q"), settled=True)
    peer.pump()
    publisher.detach()
    consumer.detach()
    peer.pump()
    peer.sent_bytes.clear()
    rig.hold_disk = False
    peer.pump()
    assert written(peer) == ["Transfer"]


def test_links_are_detached_though_nobody_takes_the_answer() -> None:
    rig = Rig()
    rig.declare("q")
    peer = rig.connect10()
    session = peer.session()
    sender, receiver = pair(peer, session)
    peer.receiver(session, "/queues/q")
    peer.sent_bytes.clear()
    sender.send(request("delete", "DELETE", "/queues/q"), settled=True)
    peer.pump()
    assert written(peer) == ["Detach"]
    receiver.flow(1)
    peer.pump()
    assert answers(peer) == [("delete", "200")]
