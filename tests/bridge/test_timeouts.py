"""What a client hears when its consumer takes too long [LC-4]."""

from __future__ import annotations

from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    ChannelClose,
    QueueDeclare,
)
from tests.bridge.rig import Peer, Rig

LIMIT: dict[str, object] = {"x-consumer-timeout": 50}


def overdue(capabilities: dict[str, object]) -> tuple[Rig, Peer, list[object]]:
    """A client that holds one message for too long, and the methods it hears then."""
    rig = Rig()
    peer = rig.connect(capabilities=capabilities)
    peer.ask(QueueDeclare("q", arguments=LIMIT), BasicConsume("q", "slow"))
    peer.ask(peer.publish(b"1", "q"))
    return rig, peer, later(rig, peer)


def later(rig: Rig, peer: Peer) -> list[object]:
    rig.now_ms += 1000
    return [heard for _, heard in peer.hear()]


def test_lc_4_a_client_that_understands_cancel_is_told_so() -> None:
    rig, peer, heard = overdue({"consumer_cancel_notify": True})
    assert heard == [BasicCancel("slow", True)]
    # Its late acknowledgement is no error; the message is there for others.
    assert peer.ask(BasicAck(1, False)) == []
    assert rig.broker.vhost("/").queues["q"].ready == 1


def test_lc_4_a_client_that_does_not_loses_the_channel() -> None:
    rig, _, heard = overdue({})
    [closed] = heard
    assert isinstance(closed, ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (
        406,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
        "Timeout value used: 50 ms",
    )
    assert rig.broker.vhost("/").queues["q"].ready == 1


def test_lc_4_what_was_asked_for_itself_costs_the_channel() -> None:
    rig = Rig()
    peer = rig.connect(capabilities={"consumer_cancel_notify": True})
    peer.ask(QueueDeclare("q", arguments=LIMIT))
    peer.ask(peer.publish(b"1", "q"))
    peer.ask(BasicGet("q"))
    [closed] = later(rig, peer)
    assert isinstance(closed, ChannelClose)
    assert closed.reply_code == 406
