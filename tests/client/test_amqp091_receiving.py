"""Receivers over AMQP 0-9-1: credit by prefetch, settling, closing. In memory."""

from __future__ import annotations

import asyncio

import pytest

from tallymark.client import (
    ACCEPTED,
    RELEASED,
    LinkClosed,
    LinkRefused,
    Modified,
    NotPossible,
    SessionClosed,
    TimedOut,
    filters,
)
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicQos,
    BasicReject,
    ConnectionClose,
    QueueDelete,
)
from tests.support.amqp091 import method_frame
from tests.support.amqp091_peer import Peer091, session091
from tests.support.amqp10_client import outcome_of
from tests.support.amqp10_peer import bytewise
from tests.support.virtual_loop import quiet, virtual


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def filled(count: int, **options: bool) -> Peer091:
    peer = Peer091(**options)
    peer.declare("q")
    peer.put("q", *numbers(count))
    return peer


@virtual
async def test_receivers_of_one_queue_with_a_long_name_are_told_apart() -> None:
    """A consumer tag has room for the beginning of a receiver's name, which is the queue's."""
    queue = "q" * 250
    peer = Peer091()
    peer.declare(queue)
    peer.put(queue, *numbers(2))
    async with (
        session091(peer) as session,
        session.receiver(f"/queues/{queue}") as one,
        session.receiver(f"/queues/{queue}") as other,
    ):
        bodies = []
        for receiver in (one, other):
            async with await receiver.receive(timeout=5) as message:
                bodies.append(message.body)
        assert bodies == numbers(2)


@virtual
async def test_fc_17_the_prefetch_is_the_window_and_follows_settlement() -> None:
    """No credit is granted under way: one basic.qos, one basic.consume."""
    peer = filled(10)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit=3) as receiver:
            await quiet()
            assert peer.sent(BasicQos) == [BasicQos(0, 3, False)]
            assert (receiver.credit, receiver.buffered) == (0, 3)
            held = [await receiver.receive() for _ in range(3)]
            with pytest.raises(TimedOut):
                await receiver.receive(timeout=100)
            assert len(peer.heard(BasicDeliver)) == 3
            await held[1].accept()
            await quiet()
            assert len(peer.heard(BasicDeliver)) == 4
            assert receiver.credit + receiver.buffered + receiver.unsettled == 3
            await receiver.settle_many([held[0], held[2], await receiver.receive()], ACCEPTED)
            await quiet()
            assert len(peer.heard(BasicDeliver)) == 7
            assert len(peer.sent(BasicConsume)) == 1
            assert peer.sent(BasicAck) == [BasicAck(2), BasicAck(1), BasicAck(4, True)]


@virtual
async def test_bytes_may_come_one_by_one() -> None:
    peer = Peer091(cut=bytewise)
    peer.declare("q")
    async with session091(peer) as session:
        async with session.sender("/queues/q") as sender:
            await sender.send_batch(numbers(5))
        async with session.receiver("/queues/q", credit=2) as receiver:
            for number in numbers(5):
                async with await receiver.receive(timeout=5) as message:
                    assert message.body == number


@virtual
async def test_outcomes_and_what_they_become() -> None:
    peer = filled(6)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit=6) as receiver:
            held = [await receiver.receive() for _ in range(6)]
            await held[0].accept()
            await held[1].reject("no")
            await held[2].release()
            await held[3].modify()
            await held[4].modify(failed=False)
            await held[5].modify(undeliverable_here=True)
            await quiet()
            assert peer.sent(BasicAck) == [BasicAck(1)]
            assert peer.sent(BasicReject) == [BasicReject(4, requeue=True)]
            assert peer.sent(BasicNack) == [
                BasicNack(2, requeue=False),
                BasicNack(3, requeue=True),
                BasicNack(5, requeue=True),
                BasicNack(6, requeue=False),
            ]
            again = [await receiver.receive() for _ in range(3)]
            assert [message.body for message in again] == [b"2", b"3", b"4"]
            assert not any(message.first_acquirer for message in again)
            await receiver.settle_many(again, ACCEPTED)
    assert peer.depth("q") == (0, 0)


@virtual
async def test_a_range_is_one_frame_only_where_it_is_all_there_is() -> None:
    peer = filled(6)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit=6) as receiver:
            held = [await receiver.receive() for _ in range(6)]
            await receiver.settle_many(held[1:3], ACCEPTED)  # 1 is before them
            await quiet()
            assert peer.sent(BasicAck) == [BasicAck(2), BasicAck(3)]
            peer.forget()
            await receiver.settle_many([held[0], held[3], held[4]], ACCEPTED)  # 2, 3 are settled
            await quiet()
            assert peer.sent(BasicAck) == [BasicAck(1), BasicAck(5, True)]
            await held[5].accept()


@virtual
async def test_fc_25_an_ignored_message_gives_its_slot_to_another() -> None:
    """The prefetch still counts it, so the consumer is made again."""
    peer = filled(3)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit=1) as receiver:
            (await receiver.receive()).ignore()
            async with await receiver.receive(timeout=5) as message:
                assert message.body == b"1"
            assert len(peer.sent(BasicCancel)) == 1
            assert receiver.ignored_total == 1
            async with await receiver.receive(timeout=5) as message:
                assert message.body == b"2"
        await quiet()
        assert peer.depth("q") == (1, 0)  # closed, it gives back what was ignored


@virtual
async def test_fc_14_credit_by_hand_is_what_was_issued_and_not_what_was_settled() -> None:
    peer = filled(9)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit_mode="manual") as receiver:
            await quiet()
            assert not peer.sent(BasicConsume)
            receiver.issue_credit(2)
            held = [await receiver.receive() for _ in range(2)]
            await receiver.settle_many(held, ACCEPTED)
            await quiet()
            assert (receiver.credit, receiver.buffered) == (0, 0)
            assert len(peer.heard(BasicDeliver)) == 2
            receiver.issue_credit(2)
            receiver.issue_credit(1)
            held = [await receiver.receive() for _ in range(3)]
            with pytest.raises(TimedOut):
                await receiver.receive(timeout=10)
            await receiver.settle_many(held, RELEASED)
            await quiet()
            assert (receiver.credit, receiver.buffered) == (0, 0)
            receiver.issue_credit(100)
            await quiet()
            assert receiver.buffered == 7
            assert await receiver.drain() == 93
            assert receiver.credit == 0
            peer.put("q", b"more")
            await quiet()
            assert receiver.buffered == 7


@virtual
async def test_fc_14_settling_while_there_is_credit_lets_nothing_more_come() -> None:
    """A settlement of what came by the consumer would give the broker credit: it is made again."""
    peer = filled(2)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit_mode="manual") as receiver:
            receiver.issue_credit(5)
            held = [await receiver.receive() for _ in range(2)]
            await receiver.settle_many(held, ACCEPTED)
            await quiet()
            assert receiver.credit == 3
            peer.put("q", *numbers(9))
            await quiet()
            assert (receiver.credit, receiver.buffered) == (0, 3)


@virtual
async def test_more_credit_by_hand_than_a_prefetch_can_say() -> None:
    peer = filled(1)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit_mode="manual") as receiver:
            receiver.issue_credit(70_000)
            await quiet()
            assert peer.sent(BasicQos) == [BasicQos(0, 65_535, False)]
            assert receiver.credit == 69_999
            assert await receiver.drain() == 69_999


@virtual
async def test_fc_24_batches_by_hand() -> None:
    peer = filled(5)
    async with session091(peer) as session:
        async with session.receiver("/queues/q", credit_mode="manual") as receiver:
            batch = await receiver.receive_batch(3, timeout=1)
            assert [message.body for message in batch] == numbers(3)
            await receiver.settle_many(batch, ACCEPTED)
            batch = await receiver.receive_batch(3, timeout=1)
            assert [message.body for message in batch] == [b"3", b"4"]
            assert receiver.credit == 0
            await receiver.settle_many(batch, ACCEPTED)
            assert await receiver.receive_batch(3, timeout=0) == []
    assert peer.depth("q") == (0, 0)


@virtual
async def test_fc_19_closing_a_receiver_gives_back_what_it_has_in_order() -> None:
    peer = filled(5)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=4)
        other = await session.receiver("/queues/q", credit=1)
        await (await receiver.receive()).accept()
        held = await receiver.receive()
        await quiet()
        theirs = await other.receive()
        assert theirs.body == b"4"
        await receiver.close()
        with pytest.raises(LinkClosed):
            await held.accept()
        await quiet()
        assert peer.depth("q") == (3, 1)
        await theirs.accept()
        for number in (b"1", b"2", b"3"):
            async with await other.receive(timeout=5) as message:
                assert (message.body, message.first_acquirer) == (number, False)


@virtual
async def test_a_receiver_closed_before_its_consumer_is_there() -> None:
    """RabbitMQ 3.10 crashes where a cancel comes before its consume-ok."""
    peer = filled(3)
    peer.answers = lambda channel, method: isinstance(method, BasicConsume)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=1)
        await quiet()
        (consume,) = peer.sent(BasicConsume)
        closing = asyncio.create_task(receiver.close())
        await asyncio.sleep(1)
        assert not peer.sent(BasicCancel)
        assert not closing.done()
        peer.say(1, BasicConsumeOk(consume.consumer_tag))
        await closing
        assert peer.sent(BasicCancel) == [BasicCancel(consume.consumer_tag)]


@virtual
async def test_a_queue_that_is_not_there_costs_only_that_receiver() -> None:
    peer = filled(1)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q")
        with pytest.raises(LinkRefused, match="no queue 'none'") as raised:
            await session.receiver("/queues/none")
        assert (raised.value.condition, raised.value.code) == ("amqp:not-found", 404)
        assert raised.value.is_remote
        async with await receiver.receive(timeout=5) as message:
            assert message.body == b"0"


@virtual
async def test_a_queue_that_is_deleted_closes_its_receivers() -> None:
    peer = filled(1)
    async with session091(peer) as session:
        errors: list[Exception] = []
        session.on_error(errors.append)
        receiver = await session.receiver("/queues/q")
        held = await receiver.receive()
        peer.other().ask(QueueDelete("q"))
        peer.work()
        with pytest.raises(LinkClosed, match="amqp:resource-deleted"):
            await receiver.receive(timeout=5)
        assert len(errors) == 1
        with pytest.raises(LinkClosed):
            await held.accept()
        assert not session.is_closed


@virtual
async def test_what_the_protocol_has_not_is_not_possible() -> None:
    peer = filled(1)
    async with session091(peer) as session:
        for options in (
            {"browse": True},
            {"rcv_mode": "second"},
            {"snd_mode": "settled"},
            {"credit": 65_536},
            {"filter": filters.sql("a = 1")},
        ):
            with pytest.raises(NotPossible, match=r"AMQP 0-9-1"):
                await session.receiver("/queues/q", **options)  # type: ignore[arg-type]
        with pytest.raises(LinkRefused, match="bad address '/exchanges/e/k'"):
            await session.receiver("/exchanges/e/k")
        assert await session.receiver("/queues/q")


@virtual
async def test_a_dynamic_receiver_has_a_queue_of_its_own_that_goes_with_it() -> None:
    peer = Peer091()
    async with session091(peer) as session:
        receiver = await session.receiver(None, dynamic=True)
        assert receiver.address.startswith("/queues/amq.gen")
        async with session.sender(receiver.address) as sender:
            await sender.send(b"answer")
        async with await receiver.receive(timeout=5) as message:
            assert message.body == b"answer"
        address = receiver.address
        await receiver.close()
        with pytest.raises(LinkRefused, match="no queue"):
            await session.sender(address)


@virtual
async def test_properties_are_arguments_of_the_consumer() -> None:
    peer = filled(1)
    async with session091(peer) as session:
        options = {"x-priority": 5}
        start = filters.stream_offset("first")
        await session.receiver("/queues/q", properties=options, filter=start)
        await quiet()
        (consume,) = peer.sent(BasicConsume)
        assert consume.arguments == {"x-priority": 5, "x-stream-offset": "first"}


@virtual
async def test_an_exclusive_receiver_keeps_others_away() -> None:
    """Whoever comes second loses the session: 0-9-1 has no smaller place for that error."""
    peer = filled(2)
    async with session091(peer) as session, session.connection.session() as other:
        receiver = await session.receiver("/queues/q", exclusive=True)
        await receiver.receive()
        second = await other.receiver("/queues/q")
        with pytest.raises(SessionClosed, match="ACCESS_REFUSED") as raised:
            await second.receive(timeout=5)
        assert raised.value.code == 403
        assert not receiver.is_closed


@virtual
async def test_a_channel_that_the_broker_closes_is_the_session() -> None:
    peer = filled(2)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q")
        sender = await session.sender("/queues/q")
        held = await receiver.receive()
        peer.receive(method_frame(1, BasicAck(99)))  # as if we had settled what was not ours
        with pytest.raises(SessionClosed, match="unknown delivery tag 99") as raised:
            await receiver.receive(timeout=5)
        assert raised.value.condition == "amqp:precondition-failed"
        assert isinstance(await outcome_of(sender.send(b"x")), SessionClosed)
        assert isinstance(await outcome_of(held.accept()), SessionClosed)
        other = await session.connection.session()
        assert await other.receiver("/queues/q")


@virtual
async def test_stop_and_resume() -> None:
    peer = filled(4)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=2)
        await session.stop()
        with pytest.raises(TimedOut):
            await receiver.receive(timeout=10)
        session.resume()
        for number in numbers(4):
            async with await receiver.receive(timeout=5) as message:
                assert message.body == number


@virtual
async def test_fc_23_handlers() -> None:
    peer = filled(20)
    seen: list[bytes] = []
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=5)

        async def handler(message: object) -> None:
            seen.append(message.body)  # type: ignore[attr-defined]
            await asyncio.sleep(1)
            if len(seen) == 20:
                asyncio.get_running_loop().call_later(5, asyncio.ensure_future, receiver.close())

        await receiver.run(handler, concurrency=5)
        assert seen == numbers(20)
    assert peer.depth("q") == (0, 0)


@virtual
async def test_the_broker_ends_the_connection() -> None:
    peer = filled(1)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=2)
        await receiver.receive()
        peer.say(0, ConnectionClose(320, "CONNECTION_FORCED - shutdown"))
        with pytest.raises(Exception, match="amqp:connection:forced: CONNECTION_FORCED"):
            await receiver.receive(timeout=5)
        assert session.connection.is_closed


@virtual
async def test_modify_with_annotations_says_that_it_cannot() -> None:
    """They would be lost without a word: the message stays as it was, unsettled."""
    peer = filled(2)
    async with session091(peer) as session, session.receiver("/queues/q", credit=2) as receiver:
        message = await receiver.receive()
        with pytest.raises(NotPossible, match="AMQP 0-9-1 cannot change"):
            await message.modify(annotations={"x-opt-why": "busy"})
        with pytest.raises(NotPossible, match="AMQP 0-9-1 cannot change"):
            await receiver.settle_many([message], Modified(message_annotations={"x-a": 1}))
        assert peer.sent(BasicReject) == []
        await message.modify()
        await quiet()
        assert peer.sent(BasicReject) == [BasicReject(1, requeue=True)]
