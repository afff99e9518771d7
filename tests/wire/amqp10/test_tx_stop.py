"""Stopping a receiver's inflow: credit taken back, and an answer that nothing more is on its way
[amqp-1.0 §2.6.10, TX-19 step 1]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import InflowStopped, TransfersReceived
from tallymark.wire.amqp10.performatives import Flow
from tests.support.amqp10_pair import CUTS, Cut, Pair

BODY = b"\0\x53\x75\xa0\1x"


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("crossing", [0, 1, 5])
def test_tx_19_it_is_stopped_behind_what_crosses_it(cut: Cut, crossing: int) -> None:
    """Also where the sender uses up all it had before it hears of it: then it need not answer."""
    pair = Pair(cut=cut).open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(5)
    pair.pump()
    for _ in range(crossing):
        sender.send(BODY)
    assert receiver.stop()
    assert receiver.stop()  # once is enough
    assert receiver.credit == 0
    assert not pair.client.of(InflowStopped)
    pair.pump()
    flows = [flow for flow in pair.client.sent(Flow) if flow.link_credit == 0]
    assert [flow.echo for flow in flows] == [True]
    assert pair.client.one(InflowStopped).link is receiver
    assert len(pair.client.messages()) == crossing
    kinds = [type(event) for event in pair.client.events]
    if crossing:
        last = len(kinds) - 1 - kinds[::-1].index(TransfersReceived)
        assert kinds.index(InflowStopped) > last
    assert sender.credit == 0
    assert (receiver.allowance, receiver.is_stopping) == (0, False)
    receiver.flow(3)
    pair.pump()
    assert sender.credit == 3


def test_tx_19_without_credit_nothing_is_on_its_way() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    assert not receiver.stop()
    receiver.flow(1)
    pair.pump()
    sender.send(BODY)
    pair.pump()
    assert not receiver.stop()
    assert not pair.client.of(InflowStopped)


def test_tx_19_the_rest_of_a_large_message_is_waited_for() -> None:
    """What was begun before the sender heard of it is sent to its end."""
    pair = Pair().open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(2)
    pair.pump()
    large = b"\0\x53\x75\xb0" + (400_000).to_bytes(4, "big") + bytes(400_000)
    sender.send(large)
    data = pair.server.take(0)
    pair.client.give(data[:200_000], 0)
    assert receiver.stop()
    pair.client.give(data[200_000:250_000], 0)
    assert not pair.client.of(InflowStopped)
    pair.client.give(data[250_000:], 0)
    assert not pair.client.of(InflowStopped)  # it may have begun another one
    pair.pump()
    assert pair.client.one(InflowStopped)
    assert len(pair.client.messages()) == 1


def test_tx_19_new_credit_calls_it_off() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(2)
    pair.pump()
    assert receiver.stop()
    receiver.flow(4)
    pair.pump()
    assert not pair.client.of(InflowStopped)
    assert sender.credit == 4
