"""Direct replies over AMQP 1.0, and across protocols."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp091.methods import BasicConsume, BasicDeliver
from tallymark.wire.amqp10.events import DrainFinished
from tallymark.wire.amqp10.outcomes import Accepted, Released
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, encode_message
from tallymark.wire.amqp10.session import Session
from tallymark.wire.conversion.addresses import queue_of
from tests.bridge.rig import Content
from tests.bridge.rig10 import Peer, Rig

VOLATILE = Source(dynamic=True, capabilities=("rabbitmq:volatile-queue",))


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("work")
    return made


def replies(peer: Peer, session: Session, source: Source, credit: int) -> tuple[ReceiverLink, str]:
    """A link to wait for answers on, and the address to have them sent to."""
    asked = Attach(name="replies", source=source, target=Target())
    link = peer.receiver(session, attach=asked, credit=credit, snd=1)
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    address = link.remote_attach.source.address
    assert address is not None
    return link, address


@pytest.mark.parametrize(
    "source",
    [
        VOLATILE,
        Source(address="amq.rabbitmq.reply-to"),
        Source(address="/queues/amq.rabbitmq.reply-to"),
    ],
)
@pytest.mark.parametrize("anonymous", [True, False])
def test_an_answer_goes_straight_to_who_asked(rig: Rig, source: Source, anonymous: bool) -> None:
    asker, worker = rig.connect10(), rig.connect10()
    session = asker.session()
    _, address = replies(asker, session, source, 5)
    assert address.startswith("/queues/amq.rabbitmq.reply-to.")
    asker.send(asker.sender(session, "work"), "?", properties=Properties(reply_to=address))
    theirs = worker.session()
    worker.receiver(theirs, "work", credit=1)
    properties = worker.got[0].sections.properties
    assert properties is not None
    assert properties.reply_to == address
    if anonymous:
        link = worker.sender(theirs, None)
        numbers = [link.send(encode_message(properties=Properties(to=address), body=b"!"))]
        worker.pump()
    else:
        numbers = worker.send(worker.sender(theirs, address), "!")
    assert worker.states(numbers) == [Accepted()]
    assert asker.bridge in rig.replies.take_written()
    asker.pump()
    (got,) = asker.got
    assert (got.body, got.settled) == (b"!", True)
    assert len(rig.broker.vhost("/").queues) == 1, "there is no queue"


@pytest.mark.parametrize("to_asker", [True, False])
def test_an_answer_may_have_further_routing_keys_or_be_reached_by_one(
    rig: Rig, to_asker: bool
) -> None:
    """As over AMQP 0-9-1, where CC and BCC lead to queues and to who waits alike."""
    rig.declare("audit")
    asker, worker = rig.connect10(), rig.connect10()
    _, address = replies(asker, asker.session(), VOLATILE, 5)
    waits, audit = queue_of(address), "audit"
    to, copy = (waits, audit) if to_asker else (audit, waits)
    sender = worker.sender(worker.session(), f"/queues/{to}")
    numbers = worker.send(sender, "!", message_annotations={"x-cc": [copy]})
    assert worker.states(numbers) == [Accepted()]
    asker.pump()
    assert asker.bodies() == [b"!"]
    assert rig.queue("audit").ready == 1
    asker.vanish()
    if not to_asker:
        numbers = worker.send(sender, "?", message_annotations={"x-cc": [copy]})
        assert worker.states(numbers) == [Accepted()]
        assert rig.queue("audit").ready == 2


def test_an_answer_beyond_the_credit_is_dropped(rig: Rig) -> None:
    asker, worker = rig.connect10(), rig.connect10()
    session = asker.session()
    link, address = replies(asker, session, VOLATILE, 2)
    numbers = worker.send(worker.sender(worker.session(), address), "1", "2", "3")
    assert worker.states(numbers) == [Accepted()] * 3
    asker.pump()
    assert asker.bodies() == [b"1", b"2"]
    link.flow(5)
    link.drain()
    asker.pump()
    assert asker.take(DrainFinished).given_up == 5
    assert asker.bodies() == []


def test_numbers_stay_in_step_with_deliveries_from_queues(rig: Rig) -> None:
    asker, worker = rig.connect10(), rig.connect10()
    session = asker.session()
    _, address = replies(asker, session, VOLATILE, 10)
    asker.receiver(session, "work", credit=10)
    out = worker.session()
    to_queue, to_asker = worker.sender(out, "work"), worker.sender(out, address)
    for i in range(4):
        worker.send(to_queue, f"q{i}")
        worker.send(to_asker, f"a{i}")
    asker.pump()
    assert [got.id for got in asker.got] == list(range(8))
    for got in asker.got:
        if not got.settled:
            asker.settle(got, Accepted())
    assert rig.queue("work").account.settled == 4


def test_when_nobody_waits_any_more_the_answer_is_released(rig: Rig) -> None:
    asker, worker = rig.connect10(), rig.connect10()
    session = asker.session()
    link, address = replies(asker, session, VOLATILE, 2)
    sender = worker.sender(worker.session(), address)
    link.detach()
    asker.pump()
    assert worker.states(worker.send(sender, "!")) == [Released()]
    assert rig.replies.consumers == {}
    refused = worker.refused(worker.session(), Attach(target=Target(address=address)), True)
    assert refused.condition == "amqp:not-found"
    asker.bridge.eof()


def test_a_connection_that_ends_waits_no_more(rig: Rig) -> None:
    asker = rig.connect10()
    replies(asker, asker.session(), VOLATILE, 2)
    assert len(rig.replies.consumers) == 1
    asker.bridge.eof()
    assert rig.replies.consumers == {}


def test_replies_must_be_taken_settled(rig: Rig) -> None:
    asker = rig.connect10()
    asked = Attach(source=VOLATILE, target=Target())
    session = asker.session()
    link = session.attach_receiver(asked, 0)
    asker.pump()
    assert link.state.value != "ATTACHED"


def test_amqp_091_asks_and_amqp_10_answers(rig: Rig) -> None:
    asker = rig.connect()
    asker.ask(BasicConsume("amq.rabbitmq.reply-to", "t", False, True, False, False, {}))
    asker.send(asker.publish(b"?", "work", reply_to="amq.rabbitmq.reply-to", correlation_id="7"))
    rig.settle_down()
    worker = rig.connect10()
    session = worker.session()
    worker.receiver(session, "work", credit=1)
    properties = worker.got[0].sections.properties
    assert properties is not None
    assert properties.reply_to is not None
    assert queue_of(properties.reply_to).startswith("amq.rabbitmq.reply-to.")
    answer = encode_message(
        properties=Properties(to=properties.reply_to, correlation_id=properties.correlation_id),
        body=b"!",
    )
    number = worker.sender(session, None).send(answer)
    worker.pump()
    assert worker.states([number]) == [Accepted()]
    assert asker.bridge in rig.replies.take_written()
    ((_, content),) = asker.heard_now()
    assert isinstance(content, Content)
    assert isinstance(content.method, BasicDeliver)
    assert (content.body, content.properties.correlation_id) == (b"!", "7")


def test_amqp_10_asks_and_amqp_091_answers(rig: Rig) -> None:
    asker = rig.connect10()
    session = asker.session()
    _, address = replies(asker, session, VOLATILE, 1)
    asker.send(asker.sender(session, "work"), "?", properties=Properties(reply_to=address))
    worker = rig.connect()
    heard = worker.ask(BasicConsume("work", "t", False, True, False, False, {}))
    (content,) = [one for _, one in heard if isinstance(one, Content)]
    assert content.properties.reply_to == queue_of(address)
    worker.send(worker.publish(b"!", content.properties.reply_to or ""))
    rig.settle_down()
    asker.pump()
    assert asker.bodies() == [b"!"]
