"""Publishes that are handed over to a sink, from their frames to its commit."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp091.channel import Intake
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.sinks import Committed
from tests.bridge.rig import Peer, Rig
from tests.bridge.test_publish import bodies, queues


def committed(peer: Peer, *sent: bytes) -> Committed:
    """The commit of what is staged by these reads."""
    client = peer.bridge.client
    assert client is not None
    intake = client.channels[1].intake = Intake()
    for one in sent:
        peer.send(one)
    client.channels[1].intake = None
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
