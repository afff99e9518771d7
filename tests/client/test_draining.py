"""Credit by hand, and drain [FC-5, FC-14, FC-A9, FC-D1]."""

from __future__ import annotations

import asyncio

import pytest

from tallymark.client import LinkClosed, NotPossible
from tallymark.client.events import CreditDecided, Decision
from tallymark.wire.amqp10.events import CreditReceived, Event
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Flow, Transfer
from tests.support.amqp10_client import Events, outcome_of, receiver_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual


def undrained(event: Event) -> bool:
    """A peer that does not get round to answer a drain."""
    return isinstance(event, CreditReceived) and event.drain


@virtual
async def test_fc_14_issue_credit_adds_to_the_present_credit() -> None:
    peer = Peer()
    async with receiver_of(peer, credit_mode="manual") as receiver:
        await quiet()
        assert peer.flows() == []  # nothing by itself
        receiver.issue_credit(3)
        receiver.issue_credit(2)
        assert receiver.credit == 5
        peer.put("q", b"0", b"1")
        messages = [await receiver.receive(), await receiver.receive()]
        receiver.issue_credit(1)
        await quiet()
        assert peer.flows() == [(0, 3), (0, 5), (2, 4)]
        for message in messages:
            await message.accept()
        await quiet()
        assert len(peer.flows()) == 3  # settling gives nothing back
        with pytest.raises(ValueError, match="n=0, expected 1 or more"):
            receiver.issue_credit(0)


@virtual
async def test_fc_14_not_in_automatic_mode() -> None:
    async with receiver_of(Peer(), credit=4) as receiver:
        with pytest.raises(NotPossible, match="its window of 4 gives the credit"):
            receiver.issue_credit(1)
        with pytest.raises(NotPossible, match="drain on a receiver with credit_mode='auto'"):
            await receiver.drain()


@virtual
async def test_fc_14_one_drain_at_a_time_and_no_credit_meanwhile() -> None:
    peer = Peer()
    peer.answers = undrained
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(5)
        call = asyncio.create_task(receiver.drain())
        await quiet()
        with pytest.raises(NotPossible, match="drain while a drain is under way"):
            await receiver.drain()
        with pytest.raises(NotPossible, match="issue_credit while a drain is under way"):
            receiver.issue_credit(1)
        peer.sending("q").drained()
        peer.flush()
        assert await call == 5
        receiver.issue_credit(1)
        await quiet()
        assert peer.flows()[-1] == (5, 1)


@virtual
async def test_fc_a9_exactly_one_flow_with_drain_and_it_carries_the_present_credit() -> None:
    """FC-D1: credit 0 would revoke, not drain; and the answer's delivery-count is adopted."""
    peer = Peer()
    peer.put("q", b"0", b"1")
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(5)
        await quiet()
        assert await receiver.drain() == 3
        flows = [flow for flow in peer.sent(Flow) if flow.drain]
        assert [(flow.delivery_count, flow.link_credit) for flow in flows] == [(2, 3)]
        (answer,) = [flow for flow in peer.said(Flow) if flow.drain]
        assert (answer.delivery_count, answer.link_credit) == (5, 0)
        assert receiver.credit == 0
        receiver.issue_credit(5)
        await quiet()
        assert peer.flows()[-1] == (5, 5)
        assert peer.sending("q").credit == 5  # not short by what was drained
        for _ in range(2):
            (await receiver.receive()).ignore()


@virtual
async def test_fc_a9_the_answer_may_come_together_with_transfers() -> None:
    peer = Peer()
    peer.answers = undrained
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(5)
        call = asyncio.create_task(receiver.drain())
        await quiet()
        peer.put("q", b"0", b"1")  # transfers and the drain's flow in one write
        assert await call == 3
        assert receiver.buffered == 2
        kinds = [type(f.body) for f in peer.frames if not f.client][-3:]
        assert kinds == [Transfer, Transfer, Flow]
        for _ in range(2):
            (await receiver.receive()).ignore()


@virtual
async def test_fc_a9_draining_an_idle_link_returns() -> None:
    peer = Peer()
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(1)
        assert await receiver.drain() == 1
        peer.forget()
        assert await receiver.drain() == 0  # there is no credit: nothing to be said
        await quiet()
        assert peer.frames == []


@virtual
async def test_fc_a9_a_sender_that_could_use_all_of_it_need_not_say_so() -> None:
    peer = Peer()
    peer.answers = undrained
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(2)
        call = asyncio.create_task(receiver.drain())
        await quiet()
        for delivery_id in (0, 1):
            peer.say(
                Transfer(
                    handle=0, delivery_id=delivery_id, delivery_tag=b"%d" % delivery_id,
                    message_format=0, settled=True,
                ),
                payload=b"\0Su\xa0\1x",
            )  # fmt: skip
        assert await call == 0
        assert receiver.buffered == 2


@virtual
async def test_fc_a9_cancelling_a_drain_returns_at_once_and_leaves_it_under_way() -> None:
    peer = Peer()
    peer.answers = undrained
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(3)
        call = asyncio.create_task(receiver.drain())
        await quiet()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(NotPossible):
            receiver.issue_credit(1)  # the credit is unknown
        peer.sending("q").drained()
        peer.flush()
        await quiet()
        receiver.issue_credit(1)
        await quiet()
        assert peer.flows()[-1] == (3, 1)


@virtual
async def test_fc_14_a_drain_ends_with_the_links_error() -> None:
    peer = Peer()
    peer.answers = undrained
    async with receiver_of(peer, credit_mode="manual") as receiver:
        receiver.issue_credit(3)
        call = asyncio.create_task(outcome_of(receiver.drain()))
        await quiet()
        peer.sending("q").detach(Error("amqp:resource-deleted", "gone"))
        peer.flush()
        error = await call
        assert isinstance(error, LinkClosed)
        assert error.condition == "amqp:resource-deleted"
        with pytest.raises(LinkClosed):
            receiver.issue_credit(1)
        with pytest.raises(LinkClosed):
            await receiver.drain()


@virtual
async def test_drain_and_issue_are_credit_events() -> None:
    peer = Peer()
    events = Events()
    async with receiver_of(peer, credit_mode="manual", on_event=events.append) as receiver:
        receiver.issue_credit(3)
        await receiver.drain()
        decided = [(d.decision, d.credit, d.delivery_count) for d in events.of(CreditDecided)]
        assert decided == [
            (Decision.ISSUE, 3, 0),
            (Decision.DRAIN, 3, 0),
            (Decision.DRAINED, 0, 3),
        ]


@virtual
async def test_fc_24_a_peer_that_does_not_answer_a_drain_is_waited_for_once() -> None:
    """Proton's example broker is one. Its credit is taken back then; what was on its way is kept
    for the next batch."""
    peer = Peer()
    peer.answers = undrained
    async with receiver_of(peer, credit_mode="manual") as receiver:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await receiver.receive_batch(10, timeout=1) == []
        assert loop.time() - began == pytest.approx(6, abs=0.1)
        await quiet()
        assert peer.flows()[-3:] == [(0, 10), (0, 10), (0, 0)]
        began = loop.time()
        assert await receiver.receive_batch(10, timeout=1) == []
        assert loop.time() - began == pytest.approx(1, abs=0.1)
        peer.say(
            Transfer(handle=0, delivery_id=0, delivery_tag=b"0", message_format=0, settled=False),
            payload=b"\0Su\xa0\1x",
        )
        await quiet()
        (message,) = await receiver.receive_batch(1, timeout=1)
        await message.accept()
