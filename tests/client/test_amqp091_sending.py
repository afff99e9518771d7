"""Senders over AMQP 0-9-1: confirms, returns, addresses, what holds them up. In memory."""

from __future__ import annotations

import asyncio

import pytest

from tallymark.client import (
    Accepted,
    BatchNotAccepted,
    LinkClosed,
    LinkRefused,
    Message,
    MessageRejected,
    MessageReleased,
    NotPossible,
    Released,
    TimedOut,
)
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicNack,
    BasicPublish,
    BasicReturn,
    ChannelFlow,
    ChannelFlowOk,
    ConnectionBlocked,
    ConnectionUnblocked,
    ExchangeDeclare,
    ExchangeDelete,
    QueueDelete,
)
from tests.support.amqp091_peer import Peer091, session091
from tests.support.amqp10_client import outcome_of
from tests.support.virtual_loop import quiet, virtual


def with_queue() -> Peer091:
    peer = Peer091()
    peer.declare("q")
    return peer


def holds_confirms(peer: Peer091) -> None:
    """The broker does not see publishes: the test confirms them."""
    peer.answers = lambda channel, method: isinstance(method, BasicPublish)


@virtual
async def test_a_send_returns_with_the_confirm() -> None:
    peer = with_queue()
    async with session091(peer) as session, session.sender("/queues/q") as sender:
        peer.rig.hold_disk = True
        task = asyncio.create_task(sender.send(b"one"))
        await asyncio.sleep(10)
        assert not task.done()
        peer.rig.hold_disk = False
        peer.work()
        assert await task == Accepted()
        assert peer.sent(BasicPublish) == [BasicPublish("", "q", mandatory=True)]
    assert peer.depth("q") == (1, 0)


@virtual
async def test_addresses_of_queues_and_exchanges() -> None:
    peer = Peer091()
    peer.declare("a/b c")
    async with session091(peer) as session:
        for address in ("/queues/a%2Fb%20c", "a/b c", "/queue/a/b c"):
            async with session.sender(address) as sender:
                assert sender.address == address
                await sender.send(b"x")
        async with session.sender("/exchanges/amq.topic/no%2Fkey") as sender:
            with pytest.raises(MessageReleased):
                await sender.send(b"x")
        async with session.sender("/exchanges/amq.topic") as sender:
            with pytest.raises(MessageReleased):
                await sender.send(b"x")
    publishes = peer.sent(BasicPublish)
    assert publishes[:3] == [BasicPublish("", "a/b c", mandatory=True)] * 3
    assert publishes[3:] == [
        BasicPublish("amq.topic", "no/key", mandatory=True),
        BasicPublish("amq.topic", "", mandatory=True),
    ]
    assert peer.depth("a/b c") == (3, 0)


@virtual
async def test_what_is_not_there_is_refused() -> None:
    peer = with_queue()
    async with session091(peer) as session:
        for address, text in (
            ("/queues/none", "no queue 'none'"),
            ("/exchanges/none/k", "no exchange 'none'"),
            ("/exchanges/", "bad address"),
            ("/queues/" + "x" * 256, "at most 255 bytes"),
        ):
            with pytest.raises(LinkRefused, match=text):
                await session.sender(address)
        with pytest.raises(NotPossible, match="rcv_mode='second'"):
            await session.sender("/queues/q", rcv_mode="second")
        async with session.sender("/queues/q") as sender:
            assert await sender.send(b"x") == Accepted()


@virtual
async def test_each_message_may_say_where_it_goes() -> None:
    peer = with_queue()
    async with session091(peer) as session, session.sender(None) as sender:
        outcomes = await outcome_of(
            sender.send_batch(
                [
                    Message(b"0", to="/queues/q"),
                    Message(b"1", to="/queues/none"),
                    Message(b"2", to="/nothing"),
                    Message(b"3", to="/queues/q"),
                ]
            )
        )
        assert isinstance(outcomes, BatchNotAccepted)
        first, second, third, last = outcomes.outcomes
        assert (first, second, last) == (Accepted(), Released(), Accepted())
        assert "bad address '/nothing'" in repr(third)
        with pytest.raises(MessageRejected, match="bad address"):
            await sender.send(Message(b"", to="/nothing"))
    assert peer.depth("q") == (2, 0)


@virtual
async def test_a_return_says_which_of_many_was_not_routed() -> None:
    """The queue is deleted between two that look the same."""
    peer = with_queue()
    async with session091(peer) as session, session.sender("/queues/q") as sender:
        assert await sender.send_batch([b"same", b"other"]) == [Accepted(), Accepted()]
        peer.other().ask(QueueDelete("q"))
        error = await outcome_of(sender.send_batch([b"same", b"other", b"same"]))
        assert isinstance(error, BatchNotAccepted)
        assert error.outcomes == [Released()] * 3


@virtual
async def test_confirms_in_any_order_and_several_at_once() -> None:
    """And a return in front of a confirm for several concerns the message that it shows."""
    peer = with_queue()
    holds_confirms(peer)
    async with session091(peer) as session, session.sender("/queues/q") as sender:
        task = asyncio.create_task(outcome_of(sender.send_batch([b"%d" % i for i in range(6)])))
        await quiet()
        assert len(peer.sent(BasicPublish)) == 6
        peer.say(2, BasicAck(3))
        peer.say(2, BasicNack(2))
        peer.say(2, BasicReturn(312, "NO_ROUTE", "", "q"), b"4")
        peer.say(2, BasicAck(99))  # nobody's
        peer.say(2, BasicAck(5, multiple=True))
        await quiet()
        assert not task.done()
        peer.say(2, BasicAck(0, multiple=True))
        error = await task
        assert isinstance(error, BatchNotAccepted)
        shown = [type(outcome).__name__ for outcome in error.outcomes]
        assert shown == ["Accepted", "Rejected", "Accepted", "Accepted", "Released", "Accepted"]


@virtual
async def test_a_queue_that_is_full_rejects() -> None:
    peer = Peer091()
    peer.declare("q", x_max_length=1, x_overflow="reject-publish")
    async with session091(peer) as session, session.sender("/queues/q") as sender:
        await sender.send(b"0")
        with pytest.raises(MessageRejected, match=r"amqp:resource-limit-exceeded"):
            await sender.send(b"1")


@virtual
async def test_no_more_than_a_thousand_wait_for_their_confirms() -> None:
    peer = with_queue()
    holds_confirms(peer)
    async with session091(peer) as session, session.sender("/queues/q") as sender:
        task = asyncio.create_task(sender.send_batch([b"x"] * 1500))
        await asyncio.sleep(1)
        assert len(peer.sent(BasicPublish)) == 1000
        assert (sender.credit, sender.waiting) == (0, 500)
        peer.say(2, BasicAck(400, multiple=True))
        await asyncio.sleep(1)
        assert len(peer.sent(BasicPublish)) == 1400
        peer.say(2, BasicAck(1400, multiple=True))
        await asyncio.sleep(1)
        peer.say(2, BasicAck(1500, multiple=True))
        assert await task == [Accepted()] * 1500


@virtual
async def test_sent_settled_it_is_not_mandatory_and_nobody_waits() -> None:
    peer = with_queue()
    async with session091(peer) as session:
        async with session.sender("/queues/q", settle_mode="settled") as sender:
            assert await sender.send(b"x") is None
        async with session.sender("/exchanges/amq.direct/none") as sender:
            assert await sender.send(b"x", settled=True) is None
            settled, unsettled = await asyncio.gather(
                sender.send(b"x", settled=True), outcome_of(sender.send(b"x"))
            )
            assert settled is None
            assert isinstance(unsettled, MessageReleased)  # its twin was not mandatory
        assert not any(one.mandatory for one in peer.sent(BasicPublish)[:2])
    assert peer.depth("q") == (1, 0)


@virtual
async def test_a_blocked_connection_holds_messages_in_the_client() -> None:
    """A send that is given up then has not been sent [FC-A13]."""
    peer = with_queue()
    async with session091(peer) as session, session.sender("/queues/q") as sender:
        peer.say(0, ConnectionBlocked("low on memory"))
        await quiet()
        assert sender.credit == 0
        with pytest.raises(TimedOut) as raised:
            await sender.send(b"0", timeout=5)
        assert not raised.value.in_doubt
        task = asyncio.create_task(sender.send(b"1"))
        await asyncio.sleep(5)
        assert not peer.sent(BasicPublish)
        peer.say(0, ConnectionUnblocked())
        assert await task == Accepted()


@virtual
async def test_channel_flow_of_the_broker_holds_one_sender() -> None:
    peer = with_queue()
    peer.answers = lambda channel, method: isinstance(method, ChannelFlowOk)
    async with session091(peer) as session:
        one = await session.sender("/queues/q")
        other = await session.sender("/queues/q")
        peer.say(2, ChannelFlow(False))
        await quiet()
        assert peer.sent(ChannelFlowOk) == [ChannelFlowOk(False)]
        task = asyncio.create_task(one.send(b"0"))
        assert await other.send(b"1") == Accepted()
        assert not task.done()
        peer.say(2, ChannelFlow(True))
        assert await task == Accepted()
        async with session.transaction():
            peer.say(1, ChannelFlow(False))
            await quiet()
            task = asyncio.create_task(one.send(b"2"))
            await quiet()
            assert not task.done()
            peer.say(1, ChannelFlow(True))
            assert await task == Accepted()


@virtual
async def test_an_error_is_that_senders_alone_and_what_had_left_is_in_doubt() -> None:
    peer = with_queue()
    peer.other().ask(ExchangeDeclare("e", "direct"))
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q")
        sender = await session.sender("/exchanges/e/k")
        other = await session.sender("/queues/q")
        peer.other().ask(ExchangeDelete("e"))
        error = await outcome_of(sender.send(b"x"))
        assert isinstance(error, LinkClosed)
        assert (error.condition, error.in_doubt) == ("amqp:not-found", True)
        assert await other.send(b"y") == Accepted()
        async with await receiver.receive(timeout=5) as message:
            assert message.body == b"y"


@virtual
async def test_a_dynamic_sender_has_a_queue_of_its_own() -> None:
    peer = Peer091()
    async with session091(peer) as session:
        sender = await session.sender(None, dynamic=True)
        assert sender.address is not None
        await sender.send(b"x")
        async with session.receiver(sender.address) as receiver:
            async with await receiver.receive(timeout=5) as message:
                assert message.body == b"x"
        address = sender.address
        await sender.close()
        with pytest.raises(LinkRefused):
            await session.receiver(address)


@virtual
async def test_a_message_without_room_for_its_properties_is_rejected() -> None:
    peer = with_queue()
    async with session091(peer, max_frame_size=4096) as session:
        async with session.sender("/queues/q") as sender:
            large = Message(b"x", application_properties={"a": "y" * 5000})
            with pytest.raises(MessageRejected, match="a frame of 4096 has room for"):
                await sender.send(large)
            assert await sender.send(b"x" * 100_000) == Accepted()
    assert peer.depth("q") == (1, 0)
