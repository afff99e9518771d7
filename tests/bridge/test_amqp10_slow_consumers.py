"""What an AMQP 1.0 client hears when its consumer is too slow [SC-9, SC-A3]."""

from __future__ import annotations

import pytest

from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.slow.rules import Rule, Rules
from tallymark.wire.amqp10.events import LinkDetached, SessionEnded
from tallymark.wire.amqp10.outcomes import Accepted, Error
from tallymark.wire.amqp10.performatives import SND_SETTLED, Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.types import Symbol
from tests.bridge.rig10 import Peer, Rig

SLOW = Error("amqp:resource-limit-exceeded", "Consuming too slow.")
EXCLUSIVE = {Symbol("tallymark:exclusive"): True}
COUNT = 3


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.broker.slow.rules = Rules(general=Rule(count=COUNT))
    return rig


class Subscriber:
    """A subscription of an AMQP 1.0 client, which takes one message of what is published. Without a
    name its queue is the link's own."""

    def __init__(
        self, rig: Rig, name: str = "sub", durable: bool = False, snd: int | None = None,
        peer: Peer | None = None, session: Session | None = None,
    ) -> None:  # fmt: skip
        self.rig = rig
        self.name = name
        self.peer = peer or rig.connect10()
        self.session = session or self.peer.session()
        connection = self.peer.bridge.connection
        assert connection is not None
        broker = rig.broker
        source = Source(address=f"/queues/{name}")
        if name:
            broker.registry.declare_queue(connection, name, durable, not durable, False, {}, False)
        else:
            source = Source(dynamic=True)
        self.link: ReceiverLink = self.peer.receiver(
            self.session, snd=snd,
            attach=Attach(
                source=source, target=Target(), properties=EXCLUSIVE if durable else None
            ),
        )  # fmt: skip
        if not name:
            (self.name,) = broker.vhost("/").queues
        broker.vhost("/").bind_queue(self.name, "amq.topic", "k", {}, connection.id)
        self.link.flow(1)
        self.peer.pump()

    def publish(self, count: int = COUNT + 1) -> None:
        publisher = self.rig.connect10()
        link = publisher.sender(publisher.session(), "/exchanges/amq.topic/k")
        numbers = publisher.send(link, *[b"%d" % n for n in range(count)])
        assert [type(state) for state in publisher.states(numbers)] == [Accepted] * count
        self.peer.pump()

    def disconnect(self, delete_persistent: bool = False, whole_session: bool = True) -> bool:
        """What the housekeeping does, with the turn that follows at once."""
        slow = self.rig.broker.slow
        (watched,) = [one for one in slow.watched() if one.queue.name == self.name]
        reading = slow.look(watched)
        assert reading is not None
        assert reading.over
        acted = SlowSubscription(self.rig.broker, reading).disconnect(
            delete_persistent, whole_session
        )
        self.rig.turn()
        self.peer.pump()
        self.rig.broker.check()
        return acted

    @property
    def is_there(self) -> bool:
        return self.name in self.rig.broker.vhost("/").queues


@pytest.mark.parametrize("snd", [None, SND_SETTLED])
@pytest.mark.parametrize("durable", [False, True])
def test_sc_9_the_session_ends_with_the_condition_and_the_text_once(
    rig: Rig, durable: bool, snd: int | None
) -> None:
    slow = Subscriber(rig, durable=durable, snd=snd)
    slow.publish(COUNT + 2)
    assert slow.disconnect(delete_persistent=durable)
    ended = slow.peer.take(SessionEnded)
    assert (ended.session, ended.error) == (slow.session, SLOW)
    assert slow.peer.events == []  # no detach beside it, and not of the deleted queue
    assert not slow.peer.bridge.closing
    assert not slow.is_there


def test_sc_9_with_scope_link_only_the_link_is_detached_closed(rig: Rig) -> None:
    slow = Subscriber(rig)
    beside = slow.peer.sender(slow.session, "/exchanges/amq.fanout")
    slow.publish()
    assert slow.disconnect(whole_session=False)
    detached = slow.peer.take(LinkDetached)
    assert (detached.link, detached.error, detached.closed) == (slow.link, SLOW, True)
    assert not [one for one in slow.peer.events if isinstance(one, (LinkDetached, SessionEnded))]
    assert not slow.is_there
    slow.link.detach()
    (number,) = slow.peer.send(beside, b"on the same session")
    assert len(slow.peer.states([number])) == 1


@pytest.mark.parametrize("whole_session", [True, False])
def test_sc_7_a_durable_subscription_is_left_alone_unless_told(
    rig: Rig, whole_session: bool
) -> None:
    slow = Subscriber(rig, durable=True)
    slow.publish()
    assert not slow.disconnect(whole_session=whole_session)
    assert slow.peer.events == []
    assert slow.is_there
    (first,) = slow.peer.got
    slow.peer.settle(first, Accepted())
    slow.link.flow(COUNT)
    slow.peer.pump()
    assert slow.peer.bodies() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("whole_session", [True, False])
def test_sc_8_what_other_queues_hold_and_other_sessions_stay(rig: Rig, whole_session: bool) -> None:
    slow = Subscriber(rig)
    beside = Subscriber(rig, "beside", peer=slow.peer)
    slow.publish()
    assert slow.disconnect(whole_session=whole_session)
    assert beside.is_there
    assert rig.queue("beside").ready + rig.queue("beside").acquired == COUNT + 1
    beside.link.flow(COUNT + 1)
    beside.peer.pump()
    bodies = [got.body for got in beside.peer.got if got.link is beside.link]
    assert bodies == [b"0", b"1", b"2", b"3"]


def test_sc_8_consumers_of_other_queues_on_the_same_session_go_with_it(rig: Rig) -> None:
    slow = Subscriber(rig)
    rig.broker.slow.rules = Rules(queues={"sub": Rule(count=COUNT)})
    other = Subscriber(rig, "beside", durable=True, peer=slow.peer, session=slow.session)
    slow.publish()
    assert slow.disconnect()
    assert slow.peer.take(SessionEnded).error == SLOW
    assert other.is_there  # what it held is there again
    assert rig.queue("beside").ready == COUNT + 1
    assert rig.queue("beside").consumers == []


def test_sc_a3_the_connection_subscribes_anew_at_once(rig: Rig) -> None:
    slow = Subscriber(rig)
    slow.publish()
    assert slow.disconnect()
    slow.peer.take(SessionEnded)
    slow.peer.got.clear()
    again = Subscriber(rig, peer=slow.peer)
    again.publish(1)
    assert slow.peer.bodies() == [b"0"]


def test_sc_9_what_the_client_says_before_it_knows_changes_nothing(rig: Rig) -> None:
    slow = Subscriber(rig)
    publisher = slow.peer.sender(slow.session, "/exchanges/amq.topic/k")
    slow.publish()
    published = rig.broker.publishing.published
    (got,) = slow.peer.got
    slow.link.settle(got.id, got.id, Accepted())  # on their way when the session is ended
    slow.link.flow(5)
    publisher.send(b"", settled=False)
    assert slow.disconnect()
    assert slow.peer.take(SessionEnded).error == SLOW
    assert rig.broker.publishing.published == published
    assert not slow.peer.bridge.closing


@pytest.mark.parametrize("whole_session", [True, False])
def test_sc_9_a_dynamic_queue_is_deleted_once(rig: Rig, whole_session: bool) -> None:
    slow = Subscriber(rig, "")
    assert slow.is_there
    slow.publish()
    assert slow.disconnect(whole_session=whole_session)
    gone = slow.peer.take(SessionEnded if whole_session else LinkDetached)
    assert gone.error == SLOW
    assert slow.peer.events == []
    assert not slow.is_there


# -- exclusive use, which a durable subscription has


def test_sc_1_a_link_may_ask_to_be_the_only_one(rig: Rig) -> None:
    slow = Subscriber(rig, durable=True)
    assert rig.queue("sub").consumers[0].exclusive
    other = rig.connect10()
    attach = Attach(source=Source(address="/queues/sub"), target=Target())
    error = other.refused(other.session(), attach, False)
    assert error.condition == "amqp:unauthorized-access"
    slow.link.detach()
    slow.peer.pump()
    assert other.receiver(other.session(), "/queues/sub") is not None


@pytest.mark.parametrize(
    ("value", "mode", "condition", "text"),
    [
        ("yes", None, "amqp:invalid-field", "is 'yes', expected true or false"),
        (True, "copy", "amqp:not-allowed", "on a link that takes nothing"),
    ],
)
def test_an_exclusive_link_that_makes_no_sense_is_refused(
    rig: Rig, value: object, mode: str | None, condition: str, text: str
) -> None:
    rig.declare("q")
    peer = rig.connect10()
    attach = Attach(
        source=Source(address="/queues/q", distribution_mode=mode), target=Target(),
        properties={Symbol("tallymark:exclusive"): value},
    )  # fmt: skip
    error = peer.refused(peer.session(), attach, False)
    assert error.condition == condition
    assert text in (error.description or "")
