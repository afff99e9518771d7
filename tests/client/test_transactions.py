"""Transactions of the client, frame by frame, against a scripted broker [TX-17 to TX-26, TX-D2]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tallymark.client import (
    ACCEPTED,
    CommitUncertain,
    ConnectionLost,
    LinkRefused,
    NotPossible,
    ReceivedMessage,
    Receiver,
    RollbackUncertain,
    Session,
    SessionClosed,
    TimedOut,
    TransactionRolledBack,
)
from tallymark.client.events import TransactionFailed
from tallymark.client.received import RETURNED, STAGED
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Transfer
from tests.support.amqp10_client import Cancelled, Events, cancelled_at, session_of
from tests.support.amqp10_tx_broker import TxBroker
from tests.support.virtual_loop import quiet, turns, virtual


def broker_with(count: int, queue: str = "q") -> TxBroker:
    broker = TxBroker()
    broker.fill(queue, *[b"%d" % i for i in range(count)])
    return broker


@asynccontextmanager
async def reading(
    broker: TxBroker, credit: int = 5, **told: object
) -> AsyncIterator[tuple[Session, Receiver]]:
    async with session_of(broker, timeout=5, **told) as session:
        receiver = await session.receiver("q", credit=credit)
        yield session, receiver


async def read(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    return [await receiver.receive(timeout=5) for _ in range(count)]


def bodies(messages: list[ReceivedMessage]) -> list[object]:
    return [message.body for message in messages]


# On the wire


@virtual
async def test_tx_19_the_steps_of_a_rollback_in_their_order() -> None:
    broker = broker_with(9)
    async with reading(broker, 6) as (session, receiver):
        async with session.transaction() as tx:
            messages = await read(receiver, 4)
            await messages[1].accept()
            await quiet()
            await messages[0].accept()
            await quiet()
            broker.forget()
            await tx.rollback()
            await quiet()
            story = [line for line in broker.story() if line != "peer flow dc=4 credit=1"]
            assert story[:4] == [
                "client transfer 3",  # discharge; 0 and 1 were the trial of the coordinator
                "peer disposition 3..3 settled accepted",
                "client disposition 2..5 settled released",  # held 2 and 3, buffered 4 and 5
                "client flow dc=6 credit=6",
            ]
            assert bodies(await read(receiver, 6)) == [b"%d" % i for i in range(6)]


@virtual
async def test_tx_19_credit_that_is_out_is_taken_back_and_what_crosses_that_goes_back_too() -> None:
    """Five may still come; one does. Until the broker has said that no more will, nothing is given
    back, and no reader gets anything."""
    broker = broker_with(1)
    async with reading(broker, 6) as (session, receiver):
        await read(receiver, 1)
        reader = asyncio.create_task(receiver.receive())
        await quiet()
        broker.forget()
        recovering = asyncio.create_task(session.recover())
        while not session._dispatcher.has_no_inflow:
            await asyncio.sleep(0)
        broker.put_in("q", b"1")
        await recovering
        messages = [await reader, *await read(receiver, 1)]
        assert [(message.tag, message.body) for message in messages] == [(2, b"0"), (3, b"1")]
        story = broker.story()
        assert story[:5] == [
            "peer transfer 1",
            "client flow dc=1 credit=0",
            "peer flow dc=2 credit=0",
            "client disposition 0..1 settled released",
            "client flow dc=2 credit=6",
        ]


@virtual
async def test_tx_24_settlements_leave_in_tag_order_before_the_commit_and_none_of_prefetched() -> (
    None
):
    broker = broker_with(6)
    async with reading(broker, 6) as (session, receiver):
        async with session.transaction() as tx:
            messages = await read(receiver, 4)
            for i in (2, 0, 1):
                await messages[i].accept()
            assert [message.state for message in messages[:3]] == [STAGED] * 3
            assert not messages[0].settled
            broker.forget()
            await tx.commit()
            assert all(message.settled for message in messages[:3])
            assert broker.ranges() == [(0, 2, True, "transactionalstate")]
            kinds = [line for line in broker.story() if line.startswith("client")]
            assert kinds[:3] == [
                "client transfer 2",  # declare
                "client disposition 0..2 settled transactionalstate",
                "client transfer 3",  # discharge
            ]
        assert [body for _, body in broker.done] == [b"0", b"1", b"2"]
        assert messages[3].outcome is None  # held on, and not settled by the commit


@virtual
async def test_a_transaction_without_work_is_not_said() -> None:
    broker = broker_with(1)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            await tx.commit()
        assert broker.declared == 0
        async with await receiver.receive(timeout=5):
            pass
        await quiet()
        assert broker.declared == 0  # outside of the block it is settled for good
        assert broker.done == [("q", b"0")]


# Delivery


@virtual
async def test_tx_20_a_handler_that_waits_for_a_message_itself_holds_nobody_up() -> None:
    broker = broker_with(1)
    async with reading(broker) as (session, receiver):
        other = await session.receiver("empty")
        async with session.transaction() as tx:

            async def handler(message: ReceivedMessage) -> None:
                await other.receive()

            running = asyncio.create_task(receiver.run(handler))
            await asyncio.sleep(1)
            async with asyncio.timeout(1):
                await tx.rollback()
            running.cancel()
            await asyncio.wait([running])


@virtual
async def test_tx_20_a_handler_that_waits_for_a_batch_holds_nobody_up() -> None:
    broker = broker_with(1)
    async with reading(broker) as (session, receiver):
        other = await session.receiver("empty", credit=2)
        async with session.transaction() as tx:

            async def handler(message: ReceivedMessage) -> None:
                await other.receive_batch(2, None)

            running = asyncio.create_task(receiver.run(handler))
            await asyncio.sleep(1)
            async with asyncio.timeout(1):
                await tx.rollback()
            running.cancel()
            await asyncio.wait([running])


@virtual
async def test_tx_25_a_rollback_from_another_task_waits_for_the_handler_at_work() -> None:
    broker = broker_with(3)
    story: list[object] = []
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:

            async def handler(message: ReceivedMessage) -> None:
                story.append(message.body)
                await asyncio.sleep(3)
                story.append("end")

            running = asyncio.create_task(receiver.run(handler))
            await asyncio.sleep(1)
            await tx.rollback()
            story.append("rolled back")
            await asyncio.sleep(1)
            assert story[:4] == [b"0", "end", "rolled back", b"0"]
            running.cancel()
            await asyncio.wait([running])


@virtual
async def test_tx_19_buffers_of_receivers_that_were_closed_are_emptied_too() -> None:
    """And what was sent settled stays: nobody would send it again."""
    broker = broker_with(3)
    broker.fill("settled", b"a", b"b")
    async with reading(broker) as (session, receiver):
        await quiet()
        once = await session.receiver("settled", credit=2, snd_mode="settled")
        await quiet()
        await receiver.close()
        assert receiver.buffered == 3
        async with session.transaction() as tx:
            await tx.rollback()
            assert receiver.buffered == 0
            assert bodies(await read(once, 2)) == [b"a", b"b"]


@virtual
async def test_tx_25_a_session_that_was_stopped_stays_stopped() -> None:
    broker = broker_with(3)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            await read(receiver, 1)
            await session.stop()
            await tx.rollback()
            with pytest.raises(TimedOut):
                await receiver.receive(timeout=1)
            session.resume()
            assert bodies(await read(receiver, 3)) == [b"0", b"1", b"2"]


@virtual
async def test_tx_25_a_stop_and_a_resume_during_a_rollback_hold_after_it() -> None:
    broker = broker_with(3)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            await read(receiver, 1)
            rolling = asyncio.create_task(tx.rollback())
            await asyncio.sleep(0)
            await session.stop()
            await rolling
            with pytest.raises(TimedOut):
                await receiver.receive(timeout=1)
            rolling = asyncio.create_task(tx.rollback())
            await asyncio.sleep(0)
            session.resume()
            assert receiver.buffered == 0 or not rolling.done()
            await rolling
            assert bodies(await read(receiver, 3)) == [b"0", b"1", b"2"]


@virtual
async def test_fc_14_credit_by_hand_that_a_rollback_took_back_is_issued_again() -> None:
    broker = broker_with(3)
    async with session_of(broker) as session:
        receiver = await session.receiver("q", credit_mode="manual")
        receiver.issue_credit(5)
        async with session.transaction() as tx:
            await read(receiver, 2)
            await tx.rollback()
            await quiet()
            # three had come, one of them was read: one in the buffer, and two credits
            assert (receiver.buffered, receiver.credit) == (3, 0)


@virtual
async def test_tx_26_recover_gives_back_what_is_held_and_leaves_what_is_staged() -> None:
    broker = broker_with(5)
    async with reading(broker, 4) as (session, receiver):
        first = await read(receiver, 2)
        await session.recover()
        assert [message.state for message in first] == [RETURNED] * 2
        with pytest.raises(NotPossible, match="comes again"):
            await first[0].accept()
        await first[1].release()  # which is what became of it
        async with session.transaction() as tx:
            again = await read(receiver, 2)
            assert bodies(again) == [b"0", b"1"]
            await again[0].accept()
            await session.recover()
            assert (receiver.unsettled, again[0].state) == (1, STAGED)
            assert bodies(await read(receiver, 1)) == [b"1"]
            await tx.commit()
        assert broker.done == [("q", b"0")]


# Ends


@virtual
async def test_what_a_rollback_gave_back_cannot_be_settled_and_says_so() -> None:
    broker = broker_with(2)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            async with await receiver.receive() as message:  # leaves without a word
                await tx.rollback()
            with pytest.raises(TransactionRolledBack) as raised:
                await message.accept()
            assert raised.value.was_asked_for
            assert not message.settled
            message.ignore()
            assert receiver.ignored_total == 0


@virtual
async def test_a_commit_that_the_broker_refuses_is_a_rollback() -> None:
    broker = broker_with(3)
    async with reading(broker) as (session, receiver):
        sender = await session.sender("out")
        async with session.transaction() as tx:
            messages = await read(receiver, 2)
            await messages[0].accept()
            await sender.send(b"never")
            broker.refuses.append(Error("amqp:transaction:rollback", "queue 'out' has no room"))
            with pytest.raises(TransactionRolledBack, match="no room") as raised:
                await tx.commit()
            assert raised.value.condition == "amqp:transaction:rollback"
            assert (tx.commits, tx.rollbacks) == (0, 1)
            assert bodies(await read(receiver, 3)) == [b"0", b"1", b"2"]
            assert broker.bodies("out") == []


@virtual
async def test_tx_20_a_refused_commit_does_not_wait_for_a_handler_that_sends_meanwhile() -> None:
    """What the handler sends is in the next transaction, which begins with the answer."""
    broker = broker_with(1)
    async with reading(broker) as (session, receiver):
        sender = await session.sender("out")
        async with session.transaction() as tx:
            await sender.send(b"never")
            broker.refuses.append(Error("amqp:transaction:rollback", "queue 'out' has no room"))
            broker.is_mute = True
            committing = asyncio.create_task(tx.commit())
            await quiet()

            async def handler(message: ReceivedMessage) -> None:
                await sender.send(b"next")

            running = asyncio.create_task(receiver.run(handler, on_success=None))
            await quiet()
            broker.is_mute = False
            broker.answer_discharges()
            async with asyncio.timeout(1):
                with pytest.raises(TransactionRolledBack, match="no room"):
                    await committing
            running.cancel()
            await asyncio.wait([running])
        assert broker.bodies("out") == [b"next"]


@virtual
async def test_tx_24_a_commit_behind_another_tasks_rollback_does_not_pretend() -> None:
    broker = broker_with(3)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            await (await receiver.receive()).accept()
            rolling = asyncio.create_task(tx.rollback())
            await turns(2)
            with pytest.raises(TransactionRolledBack) as raised:
                await tx.commit()
            assert raised.value.was_asked_for
            await rolling
            assert broker.done == []


@virtual
async def test_tx_24_a_commit_waits_for_messages_that_are_being_sent_in_it() -> None:
    broker = TxBroker()
    broker.credit = 0
    async with session_of(broker) as session:
        sender = await session.sender("out")
        async with session.transaction() as tx:
            sending = asyncio.create_task(sender.send(b"one"))
            await quiet()
            with pytest.raises(Cancelled):
                await cancelled_at(1, tx.commit())  # nothing has happened
            committing = asyncio.create_task(tx.commit())
            await asyncio.sleep(100)
            assert not committing.done()
            broker.receiving("out").flow(10)
            broker.flush()
            await committing
            assert sending.done()
            assert broker.bodies("out") == [b"one"]


@virtual
async def test_tx_5_what_other_tasks_send_during_a_commit_is_in_the_next_transaction() -> None:
    broker = TxBroker()
    async with session_of(broker, timeout=50) as session:
        sender = await session.sender("out")
        async with session.transaction() as tx:
            await sender.send(b"one")
            broker.is_mute = True
            committing = asyncio.create_task(tx.commit())
            await quiet()
            assert broker.bodies("out") == [b"one"]
            sending = asyncio.create_task(sender.send(b"two"))
            await asyncio.sleep(10)
            assert broker.declared == 1  # not before the first has ended
            broker.is_mute = False
            broker.answer_discharges()
            await committing
            await sending
            assert (broker.declared, broker.bodies("out")) == (2, [b"one"])
            await tx.rollback()
            assert broker.bodies("out") == [b"one"]


@virtual
async def test_a_cancelled_commit_is_under_way_and_counted() -> None:
    broker = broker_with(2)
    events = Events()
    async with reading(broker, on_event=events.append) as (session, receiver):
        async with session.transaction() as tx:
            await (await receiver.receive()).accept()
            await quiet()
            with pytest.raises(Cancelled):
                await cancelled_at(1, tx.commit())
            await quiet()
            assert (tx.commits, broker.committed) == (1, 1)
            await (await receiver.receive()).accept()
            broker.refuses.append(Error("amqp:transaction:rollback"))
            await quiet()
            with pytest.raises(Cancelled):
                await cancelled_at(1, tx.commit())
            await quiet()
            assert isinstance(events.one(TransactionFailed).error, TransactionRolledBack)


@virtual
async def test_a_cancelled_rollback_is_under_way_at_every_await() -> None:
    for number in range(1, 4):
        broker = broker_with(4)
        async with reading(broker) as (session, receiver):
            async with session.transaction() as tx:
                await (await receiver.receive()).accept()
                with suppress(Cancelled):
                    await cancelled_at(number, tx.rollback())
                assert bodies(await read(receiver, 4)) == [b"0", b"1", b"2", b"3"]
                assert tx.rollbacks == 1


@virtual
async def test_leaving_the_block_by_an_error_or_a_cancellation_rolls_back() -> None:
    broker = broker_with(2)
    async with reading(broker) as (session, receiver):

        async def fails() -> None:
            async with session.transaction():
                await (await receiver.receive()).accept()
                raise LookupError

        async def waits() -> None:
            async with session.transaction():
                await (await receiver.receive()).accept()
                await asyncio.sleep(1000)

        with pytest.raises(LookupError):
            await fails()
        waiting = asyncio.create_task(waits())
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert broker.done == []
        assert bodies(await read(receiver, 2)) == [b"0", b"1"]


@virtual
async def test_tx_23_closing_the_session_waits_for_a_commit_that_is_under_way() -> None:
    broker = broker_with(1)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            await (await receiver.receive()).accept()
            await quiet()
            committing = asyncio.create_task(tx.commit())
            await asyncio.sleep(0)
            await session.close()
            await committing
        assert broker.done == [("q", b"0")]


@virtual
async def test_tx_23_no_lock_is_held_while_a_handler_runs() -> None:
    broker = broker_with(2)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:

            async def handler(message: ReceivedMessage) -> None:
                await asyncio.sleep(5)

            running = asyncio.create_task(receiver.run(handler))
            await asyncio.sleep(1)
            async with asyncio.timeout(1):
                await tx.commit()
            running.cancel()
            await asyncio.wait([running])


# What the broker does, and the network


@virtual
async def test_tx_d2_a_rollback_whose_answer_is_lost_is_uncertain() -> None:
    broker = broker_with(1)
    async with session_of(broker, timeout=50) as session:
        receiver = await session.receiver("q", credit=2)
        with suppress(TransactionRolledBack):  # leaving the block: there is no session
            async with session.transaction() as tx:
                await (await receiver.receive()).accept()
                await quiet()
                broker.is_mute = True
                rolling = asyncio.create_task(tx.rollback())
                await asyncio.sleep(1)
                broker.transport.cut()
                with pytest.raises(RollbackUncertain):
                    await rolling
                assert broker.done == []


@pytest.mark.parametrize("breaks", [True, False])
@virtual
async def test_tx_d2_a_commit_whose_answer_is_lost_or_too_late_is_uncertain(breaks: bool) -> None:
    broker = broker_with(1)
    async with session_of(broker, timeout=5) as session:
        receiver = await session.receiver("q", credit=2)
        with suppress(TransactionRolledBack):
            async with session.transaction() as tx:
                await (await receiver.receive()).accept()
                await quiet()
                broker.is_mute = True
                committing = asyncio.create_task(tx.commit())
                await asyncio.sleep(1)
                if breaks:
                    broker.transport.cut()
                with pytest.raises(CommitUncertain) as raised:
                    await committing
                assert raised.value.in_doubt
                assert session.is_closed


@virtual
async def test_tx_22_after_a_reconnect_the_marks_are_reset_and_the_transaction_is_over() -> None:
    broker = broker_with(8)
    async with session_of(broker, reconnect=True) as session:
        receiver = await session.receiver("q", credit=4)
        sender = await session.sender("out")
        async with session.transaction() as tx:
            await read(receiver, 3)
            await tx.rollback()  # the mark is 3
            message = await receiver.receive(timeout=5)
            await message.accept()
            broker.transport.cut()
            await asyncio.sleep(10)
            with pytest.raises(TransactionRolledBack):
                await sender.send(b"part of what is over")
            with pytest.raises(TransactionRolledBack) as raised:
                await tx.commit()
            assert isinstance(raised.value.__cause__, ConnectionLost)
            messages = await read(receiver, 4)
            assert bodies(messages) == [b"0", b"1", b"2", b"3"]
            await messages[0].accept()
            await sender.send(b"one")
        assert broker.done == [("q", b"0")]
        assert broker.bodies("out") == [b"one"]


@virtual
async def test_tx_22_tags_that_begin_anew_are_not_compared_with_the_mark_of_before() -> None:
    """QPID-3546: a stale mark kept everything from the application after a fail-over."""
    broker = broker_with(8)
    async with session_of(broker, reconnect=True) as session:
        receiver = await session.receiver("q", credit=4)
        await read(receiver, 3)
        await session.recover()  # the mark is 3
        assert session._dispatcher.rollback_mark == 3
        broker.transport.cut()
        await asyncio.sleep(10)
        messages = await read(receiver, 4)
        assert [message.tag for message in messages] == [0, 1, 2, 3]
        assert bodies(messages) == [b"0", b"1", b"2", b"3"]


@virtual
async def test_a_coordinator_that_goes_takes_what_is_open_with_it() -> None:
    broker = broker_with(2)
    async with reading(broker) as (session, receiver):
        async with session.transaction() as tx:
            await (await receiver.receive()).accept()
            await quiet()
            broker.drop_coordinator(Error("amqp:transaction:timeout", "took too long"))
            broker.flush()
            await quiet()
            with pytest.raises(TransactionRolledBack, match="took too long"):
                await tx.commit()
            messages = await read(receiver, 2)
            assert bodies(messages) == [b"0", b"1"]
            await messages[0].accept()
        assert broker.done == [("q", b"0")]


@virtual
async def test_a_receiver_that_the_broker_closes_dooms_what_was_settled_from_it() -> None:
    broker = broker_with(2)
    async with reading(broker) as (session, receiver):
        sender = await session.sender("out")
        async with session.transaction() as tx:
            await (await receiver.receive()).accept()
            await sender.send(b"made of it")
            broker.sending("q").detach(Error("amqp:resource-deleted"), closed=True)
            broker.flush()
            await quiet()
            with pytest.raises(TransactionRolledBack, match="receiver"):
                await tx.commit()
        assert broker.bodies("out") == []
        assert broker.txns == {}


@virtual
async def test_a_broker_without_transactions_says_so_when_the_block_is_entered() -> None:
    broker = broker_with(1)
    broker.no_coordinator = Error("amqp:not-implemented", "no transactions here")
    async with reading(broker) as (session, receiver):
        with pytest.raises(LinkRefused, match="no transactions here"):
            await session.transaction().__aenter__()
        async with await receiver.receive():
            pass  # as if nothing had been


@virtual
async def test_a_broker_that_takes_the_coordinator_for_a_queue_is_found_out_on_entering() -> None:
    """It echoes the target and gives credit, so that only its answer to a declare tells."""
    broker = broker_with(1)
    broker.has_only_queues = True
    async with reading(broker) as (session, receiver):
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            with pytest.raises(NotPossible, match=r"no transactions: .*Accepted"):
                await session.transaction().__aenter__()
        assert asyncio.get_running_loop().time() - began < 1
        async with await receiver.receive():
            pass  # as if nothing had been


@virtual
async def test_the_coordinator_is_tried_once_a_session() -> None:
    broker = broker_with(3)
    async with reading(broker) as (session, receiver):
        for _ in range(3):
            async with session.transaction():
                await (await receiver.receive()).accept()
        assert len(broker.done) == broker.declared == broker.committed == 3
        assert broker.rolled_back == 0
        assert len(broker.sent(Transfer)) == 2 + 2 * 3


@virtual
async def test_a_peer_that_takes_no_more_links_says_so_each_time() -> None:
    broker = broker_with(1)
    broker.limits = Limits(idle_time_out_ms=0, handle_max=0)
    async with reading(broker) as (session, _):
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            with pytest.raises(NotPossible, match="no further link"):
                await session.transaction().__aenter__()
        assert asyncio.get_running_loop().time() - began < 1


@virtual
async def test_one_transaction_a_session_unless_they_are_explicit() -> None:
    broker = broker_with(4)
    async with reading(broker) as (session, receiver):
        sender = await session.sender("out")
        async with session.transaction() as tx:
            with pytest.raises(NotPossible, match="in one"):
                await session.transaction().__aenter__()
            with pytest.raises(NotPossible, match="in one"):
                await session.transaction(explicit=True).__aenter__()
        with pytest.raises(NotPossible, match="outside"):
            await tx.commit()
        with pytest.raises(NotPossible, match="entered twice"):
            await tx.__aenter__()
        async with session.transaction(explicit=True) as one:
            async with session.transaction(explicit=True) as two:
                messages = await read(receiver, 3)
                await messages[0].accept(transaction=one)
                await messages[1].accept(transaction=two)
                await sender.send(b"one", transaction=one)
                await sender.send(b"two", transaction=two)
                await messages[2].accept()
                await sender.send(b"at once")
                assert broker.bodies("out") == [b"at once"]
                await one.rollback()
            assert broker.bodies("out") == [b"at once", b"two"]
        assert sorted(broker.done) == [("q", b"1"), ("q", b"2")]
        assert bodies(await read(receiver, 2)) in ([b"3", b"0"], [b"0", b"3"])


@virtual
async def test_settle_many_takes_messages_and_a_transaction_of_another_session() -> None:
    broker = broker_with(2)
    async with reading(broker) as (session, receiver):
        async with session.connection.session() as other:
            elsewhere = await other.receiver("empty")
            async with session.transaction(explicit=True) as tx:
                messages = await read(receiver, 2)
                await elsewhere.settle_many(messages, ACCEPTED, transaction=tx)
                assert broker.done == []
        assert [message.settled for message in messages] == [True] * 2
        assert sorted(broker.done) == [("q", b"0"), ("q", b"1")]


@virtual
async def test_explicit_transactions_need_a_broker_that_has_several() -> None:
    broker = broker_with(1)
    broker.capabilities = ("amqp:local-transactions",)
    async with reading(broker) as (session, _):
        with pytest.raises(NotPossible, match="one a session"):
            await session.transaction(explicit=True).__aenter__()
        async with session.transaction():
            pass


@virtual
async def test_a_session_that_ends_in_a_block_rolls_back_and_says_so() -> None:
    broker = broker_with(1)
    async with session_of(broker) as session:
        receiver = await session.receiver("q")

        async def works() -> None:
            async with session.transaction():
                await (await receiver.receive()).accept()
                broker.session().end(Error("amqp:internal-error", "enough"))
                broker.flush()
                await quiet()

        with pytest.raises((TransactionRolledBack, SessionClosed), match="enough"):
            await works()
        assert broker.done == []
