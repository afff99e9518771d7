"""Publishes that are handed over to a sink, from their frames to its commit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp091.channel import Intake
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.sinks import Committed
from tallymark.wire.amqp091.methods import ExchangeDeclare, QueueBind
from tests.bridge.rig import Peer, Rig
from tests.bridge.test_publish import bodies, payloads, queues


def taken(peer: Peer, *sent: bytes) -> Intake:
    """What a sink takes out of these reads."""
    client = peer.bridge.client
    assert client is not None
    intake = client.channels[1].intake = Intake()
    for one in sent:
        peer.send(one)
    client.channels[1].intake = None
    return intake


def committed(peer: Peer, *sent: bytes) -> Committed:
    """The commit of what is staged by these reads."""
    intake = taken(peer, *sent)
    broker = peer.rig.broker
    staging = broker.sinks.stage("/", "s", intake.parts, 1000)
    done = broker.publishing.commit_sink("/", "s", "me", 0, [staging.id])
    assert done.published == intake.count
    return done


@pytest.mark.parametrize("together", [True, False])
def test_each_message_has_a_mandatory_bit_of_its_own(together: bool) -> None:
    peer = Rig().connect()
    queues(peer, "q")
    sent = [
        peer.publish(b"0", "q", mandatory=True), peer.publish(b"1", "no"),
        peer.publish(b"2", "no"), peer.publish(b"3", "q", mandatory=True), peer.publish(b"4", "q"),
    ]  # fmt: skip
    done = committed(peer, b"".join(sent)) if together else committed(peer, *sent)
    assert done.unroutable == 2
    assert bodies(peer, "q") == [b"0", b"3", b"4"]


def test_a_mandatory_message_among_others_still_stops_the_commit() -> None:
    peer = Rig().connect()
    queues(peer, "q")
    sent = peer.publish(b"0", "q") + peer.publish(b"1", "no", mandatory=True)
    with pytest.raises(PreconditionFailed, match="'no'"):
        committed(peer, sent)
    assert bodies(peer, "q") == []


def topics(peer: Peer, **patterns: str) -> None:
    """Queues, each bound to the exchange `t` by a pattern."""
    queues(peer, *patterns)
    peer.ask(ExchangeDeclare("t", "topic"))
    for queue, pattern in patterns.items():
        peer.ask(QueueBind(queue, "t", pattern))


def test_messages_of_different_queues_are_handed_over_apart() -> None:
    """The commit is one step, in which nobody else is served: it took 0.5 s for 100,000 messages
    that went to two queues by turns, 6 ms since."""
    peer = Rig().connect()
    topics(peer, p="p.*", q="q.*")
    keys = [f"{'pq'[i % 2]}.{i % 3}" for i in range(100)]
    sent = b"".join(peer.publish(b"%d" % i, key, exchange="t") for i, key in enumerate(keys))
    assert [part.payload.count for part in taken(peer, sent).parts] == [50, 50]
    committed(peer, sent)
    assert payloads(peer.rig, "p") == payloads(peer.rig, "q") == [50]
    assert bodies(peer, "p") == [b"%d" % i for i in range(0, 100, 2)]
    assert bodies(peer, "q") == [b"%d" % i for i in range(1, 100, 2)]


def test_queues_that_share_messages_get_them_in_the_order_of_publishing() -> None:
    peer = Rig().connect()
    topics(peer, p="p", all="#")
    sent = b"".join(peer.publish(b"%d" % i, "pq"[i % 2], exchange="t") for i in range(100))
    assert [part.payload.count for part in taken(peer, sent).parts] == [100]
    committed(peer, sent)
    assert bodies(peer, "p") == [b"%d" % i for i in range(0, 100, 2)]
    assert bodies(peer, "all") == [b"%d" % i for i in range(100)]


def test_few_messages_for_each_queue_stay_together() -> None:
    """Each part has a record of its own."""
    peer = Rig().connect()
    names = [f"q{i}" for i in range(26)]
    queues(peer, *names)
    sent = b"".join(peer.publish(b"%d" % i, names[i % 26]) for i in range(100))
    assert [part.payload.count for part in taken(peer, sent).parts] == [100]
    committed(peer, sent)
    assert bodies(peer, "q21") == [b"21", b"47", b"73", b"99"]


PUBLISHES = st.lists(
    st.tuples(st.sampled_from(("p", "q", "r", "p.q", "nowhere")), st.booleans()), max_size=60
)


@given(publishes=PUBLISHES, cut=st.integers(0, 60), shares=st.booleans())
def test_a_commit_leaves_in_each_queue_what_publishing_does(
    publishes: list[tuple[str, bool]], cut: int, shares: bool
) -> None:
    """Keys, mandatory bits and the bounds of reads by chance; of two brokers one is published to
    as on any channel."""
    found = []
    for is_staged in (False, True):
        peer = Rig().connect()
        topics(peer, p="p", q="q", r="r", both="p.q" if not shares else "#")
        frames = [
            peer.publish(b"%d" % i, key, exchange="t", mandatory=must and key != "nowhere")
            for i, (key, must) in enumerate(publishes)
        ]
        reads = [b"".join(frames[:cut]), b"".join(frames[cut:])]
        if is_staged:
            committed(peer, *reads)
        else:
            for read in reads:
                peer.send(read)
        peer.rig.turn()
        peer.rig.broker.check()
        found.append({queue: bodies(peer, queue) for queue in ("p", "q", "r", "both")})
    assert found[0] == found[1]
