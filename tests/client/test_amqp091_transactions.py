"""Transactions over AMQP 0-9-1, method by method, at a broker that honours channel.flow and at one
that answers 540 [TX-1 to TX-10, TX-17 to TX-26, TX-D3]. In memory."""

from __future__ import annotations

import asyncio
import random

import pytest

from tallymark.client import (
    ACCEPTED,
    Backoff,
    ClientError,
    CommitUncertain,
    Message,
    MessagesReturned,
    ReceivedMessage,
    TransactionRolledBack,
)
from tallymark.wire.amqp091.methods import (
    BasicCancelOk,
    BasicConsume,
    BasicNack,
    BasicPublish,
    BasicRecover,
    BasicRecoverOk,
    ChannelClose,
    ChannelFlow,
    ChannelFlowOk,
    ConnectionClose,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxSelect,
)
from tests.support.amqp091_peer import Peer091, connected091, session091
from tests.support.amqp10_client import outcome_of
from tests.support.long import longer, sized
from tests.support.virtual_loop import quiet, run, virtual

SEEDS = sized(10, 100, 1000)
FLOW = pytest.mark.parametrize("has_flow", [True, False])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def filled(count: int, has_flow: bool = True) -> Peer091:
    peer = Peer091(has_flow=has_flow)
    peer.declare("q")
    peer.put("q", *numbers(count))
    return peer


async def rolled_back_once(peer: Peer091) -> list[str]:
    """What was said on the channel meanwhile."""
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=3)
        async with session.transaction() as tx:
            messages = [await receiver.receive() for _ in range(2)]
            await messages[0].accept()
            await quiet()
            peer.forget()
            await tx.rollback()
            again = await receiver.receive(timeout=5)
            assert (again.body, again.first_acquirer) == (b"0", False)
            await quiet()
            story = [line for line in peer.story() if "qos" not in line]
            assert receiver.buffered + receiver.unsettled + receiver.credit == 3
            await receiver.settle_many(
                [again, await receiver.receive(), await receiver.receive()], ACCEPTED
            )
    return story


@virtual
async def test_tx_19_a_rollback_by_channel_flow() -> None:
    """The consumer stays where it is: nothing is said of it."""
    peer = filled(4)
    assert await rolled_back_once(peer) == [
        "> channel.flow False",
        "< channel.flow-ok",
        "> tx.rollback",
        "< tx.rollback-ok",
        "> basic.recover",
        "< basic.recover-ok",
        "> channel.flow True",
        "< channel.flow-ok",
        "< basic.deliver 4 redelivered",
        "< basic.deliver 5 redelivered",
        "< basic.deliver 6 redelivered",
    ]
    assert peer.depth() == (1, 0)


@virtual
async def test_tx_d3_tx_19a_a_rollback_at_a_broker_without_channel_flow() -> None:
    """It is cancelled before the recovery, and made again after it; flow is never tried."""
    peer = filled(4, has_flow=False)
    assert await rolled_back_once(peer) == [
        "> basic.cancel",
        "< basic.cancel-ok",
        "> tx.rollback",
        "< tx.rollback-ok",
        "> basic.recover",
        "< basic.recover-ok",
        "> basic.consume",
        "< basic.consume-ok",
        "< basic.deliver 4 redelivered",
        "< basic.deliver 5 redelivered",
        "< basic.deliver 6 redelivered",
    ]
    assert not peer.sent(ChannelFlow)
    assert not peer.heard(ConnectionClose)
    assert peer.depth() == (1, 0)


@virtual
async def test_the_peer_of_these_tests_answers_540() -> None:
    peer = filled(1, has_flow=False)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q")
        await receiver.receive()
        session._dispatcher.port.channels.has_flow = True  # type: ignore[union-attr]
        with pytest.raises(ClientError):
            await session.recover()
        assert peer.heard(ConnectionClose)[0].reply_code == 540


@FLOW
def test_tx_19_a_rollback_before_the_consumer_is_there(has_flow: bool) -> None:
    @virtual
    async def story() -> None:
        peer = filled(4, has_flow)
        async with session091(peer) as session:
            async with session.transaction() as tx:
                sender = await session.sender("/queues/q")
                await sender.send(b"never")
                receiver = await session.receiver("/queues/q", credit=2)
                other = await session.receiver("/queues/q", credit_mode="manual")
                other.issue_credit(2)
                await tx.rollback()
                late = await session.receiver("/queues/q", credit=9)
                await quiet()
                found = []
                for one in (receiver, other, late):
                    while one.buffered:
                        found.append(await one.receive())
                assert sorted(message.body for message in found) == numbers(4)
                await receiver.settle_many(found, ACCEPTED)
        assert peer.depth() == (0, 0)

    story()


@FLOW
def test_tx_19_credit_by_hand_is_issued_again(has_flow: bool) -> None:
    @virtual
    async def story() -> None:
        peer = filled(5, has_flow)
        async with session091(peer) as session:
            receiver = await session.receiver("/queues/q", credit_mode="manual")
            async with session.transaction() as tx:
                receiver.issue_credit(7)
                await (await receiver.receive()).accept()
                await quiet()
                assert (receiver.buffered, receiver.credit) == (4, 2)
                await tx.rollback()
                await quiet()
                assert receiver.buffered + receiver.credit == 6
                assert (await receiver.receive(timeout=5)).body == b"0"

    story()


@virtual
async def test_tx_1_what_is_settled_outside_takes_effect_at_once() -> None:
    """The channel is transactional for good: each turn's settlements are committed."""
    peer = filled(8)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=8)
        held = [await receiver.receive() for _ in range(8)]
        await held[0].accept()
        await quiet()
        async with session.transaction():
            await held[1].accept()
        assert len(peer.sent(TxSelect)) == 1
        assert len(peer.sent(TxCommit)) == 1
        await receiver.settle_many(held[2:5], ACCEPTED)
        await quiet()
        assert len(peer.sent(TxCommit)) == 2
        assert peer.depth() == (0, 3)
        async with session.transaction():
            await held[5].accept()
        await receiver.close()
        await quiet()
        assert peer.depth() == (2, 0)
        assert len(peer.sent(TxSelect)) == 1
        sender = await session.sender("/queues/q")
        await sender.send(b"at once")
        assert peer.depth() == (3, 0)


@FLOW
def test_tx_4_slots_come_back_with_the_commit_or_the_rollback(has_flow: bool) -> None:
    """Of the broker's prefetch and of the window alike: the consumer is made again only where a
    rollback needs it."""

    @virtual
    async def story() -> None:
        peer = filled(9, has_flow)
        async with session091(peer) as session:
            receiver = await session.receiver("/queues/q", credit=3)
            async with session.transaction() as tx:
                for _ in range(3):
                    await receiver.settle_many(await receiver.receive_batch(3, 5), ACCEPTED)
                    await quiet()
                    assert (receiver.credit, receiver.buffered, receiver.unsettled) == (0, 0, 3)
                    await tx.commit()
                await quiet()
                assert (receiver.credit, receiver.unsettled) == (3, 0)
                assert len(peer.sent(BasicConsume)) == 1
                peer.put("q", *numbers(3))
                await receiver.settle_many(await receiver.receive_batch(3, 5), ACCEPTED)
                await tx.rollback()
                await quiet()
                assert (receiver.credit, receiver.buffered) == (0, 3)
                assert len(peer.sent(BasicConsume)) == (1 if has_flow else 2)

    story()


@virtual
async def test_tx_5_nothing_is_said_on_the_channel_while_a_commit_is_under_way() -> None:
    """It would be 504. Other channels go on."""
    peer = filled(3)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=2)
        sender = await session.sender("/queues/q")
        tx = session.transaction()
        await tx.__aenter__()
        await sender.send(b"in it")
        held = await receiver.receive()
        await held.accept()
        await quiet()
        peer.rig.hold_disk = True
        committing = asyncio.create_task(tx.commit())
        await quiet()
        peer.forget()
        other = asyncio.ensure_future(session.receiver("/queues/q", credit=5)._open())
        closing = asyncio.create_task(receiver.close())
        await asyncio.sleep(1)
        assert not committing.done()
        assert not [line for line in peer.story() if line.startswith(">")]
        peer.rig.hold_disk = False
        peer.work()
        await committing
        await closing
        another = await other
        bodies = [(await another.receive(timeout=5)).body for _ in range(3)]
        assert sorted(bodies) == [b"1", b"2", b"in it"]
        await tx.__aexit__(None, None, None)
        assert not peer.heard(ConnectionClose)


@pytest.mark.parametrize("what", ["session", "connection"])
@virtual
async def test_tx_1_what_was_settled_behind_a_commit_under_way_is_said_before_the_end(
    what: str,
) -> None:
    """The channel has been in a transaction: what is settled on it takes a commit of its own, and
    nothing is said before that is answered."""
    peer = filled(3)
    async with connected091(peer) as connection:
        session = await connection.session()
        receiver = await session.receiver("/queues/q", credit=3)
        async with session.transaction():
            await (await receiver.receive()).accept()
        await quiet()
        peer.rig.hold_disk = True
        await (await receiver.receive()).accept()
        await quiet()
        await (await receiver.receive()).accept()
        ending = asyncio.create_task((session if what == "session" else connection).close())
        await asyncio.sleep(1)
        assert not ending.done()
        peer.rig.hold_disk = False
        peer.work()
        await ending
    assert peer.depth() == (0, 0)
    assert not peer.heard(ConnectionClose)


@virtual
async def test_what_cannot_be_said_any_more_holds_no_close_up() -> None:
    peer = filled(3)
    async with connected091(peer) as connection:
        session = await connection.session()
        receiver = await session.receiver("/queues/q", credit=3)
        async with session.transaction():
            await (await receiver.receive()).accept()
        peer.answers = lambda channel, method: channel == 1
        for _ in range(2):
            await (await receiver.receive()).accept()
            await quiet()
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(1)
        assert not closing.done()
        peer.say(1, ChannelClose(541, "INTERNAL_ERROR"))
        await asyncio.sleep(1)
        assert closing.done()


@virtual
async def test_tx_3_messages_without_a_queue_come_back_with_the_commit() -> None:
    peer = filled(0)
    async with session091(peer) as session, session.sender(None) as sender:
        with pytest.raises(MessagesReturned) as raised:  # noqa: PT012
            async with session.transaction():
                for name in ("q", "none", "q", "none"):
                    await sender.send(Message(b"x", to=f"/queues/{name}"))
        assert raised.value.count == 2
        async with session.transaction():
            await sender.send(Message(b"x", to="/queues/q"))
    assert peer.depth() == (3, 0)
    assert all(publish.mandatory for publish in peer.sent(BasicPublish))


@virtual
async def test_tx_5_a_commit_that_is_refused_closes_the_session() -> None:
    """406 partial tx completion: nothing took effect [TX-D1]."""
    peer = filled(2)
    peer.declare("full", x_max_length=1, x_overflow="reject-publish")
    async with session091(peer) as session:
        sender = await session.sender("/queues/full")
        receiver = await session.receiver("/queues/q", credit=2)

        async def work() -> None:
            async with session.transaction():
                await (await receiver.receive()).accept()
                await sender.send_batch([b"0", b"1"])

        error = await outcome_of(work())
        assert isinstance(error, (TransactionRolledBack, CommitUncertain))
        assert session.is_closed
    assert (peer.depth("q"), peer.depth("full")) == ((2, 0), (0, 0))


@virtual
async def test_tx_22_after_a_break_marks_and_tags_begin_anew() -> None:
    peer = filled(5)
    quick = Backoff(initial_ms=100, max_ms=100, jitter=0)
    async with session091(peer, reconnect=quick) as session:
        receiver = await session.receiver("/queues/q", credit=5)
        async with session.transaction() as tx:
            for _ in range(3):
                await receiver.receive()
            await tx.rollback()
        tags = [(await receiver.receive()).delivery_id for _ in range(5)]
        assert tags == [6, 7, 8, 9, 10]
        peer.cut_off()
        await asyncio.sleep(1)
        async with session.transaction() as tx:
            held = [await receiver.receive(timeout=5) for _ in range(5)]
            assert [message.delivery_id for message in held] == [1, 2, 3, 4, 5]
            assert [message.body for message in held] == numbers(5)
            await tx.rollback()
            async with await receiver.receive(timeout=5) as message:
                assert message.body == b"0"
    assert len(peer.sent(TxSelect)) == 2


@virtual
async def test_tx_7_a_session_that_goes_rolls_back() -> None:
    peer = filled(3)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=3)
        sender = await session.sender("/queues/q")
        tx = session.transaction()
        await tx.__aenter__()
        await sender.send(b"never")
        await (await receiver.receive()).accept()
        await session.close()
        with pytest.raises(ClientError):
            await tx.commit()
    await quiet()
    assert peer.depth() == (3, 0)
    assert not peer.heard(TxCommitOk)


@FLOW
def test_tx_26_recover_without_a_transaction(has_flow: bool) -> None:
    @virtual
    async def story() -> None:
        peer = filled(4, has_flow)
        async with session091(peer) as session:
            receiver = await session.receiver("/queues/q", credit=3)
            await (await receiver.receive()).accept()
            await receiver.receive()
            await session.recover()
            held = [await receiver.receive(timeout=5) for _ in range(3)]
            assert [message.body for message in held] == [b"1", b"2", b"3"]
            assert peer.sent(BasicRecover) == [BasicRecover(True)]
            assert not peer.sent(TxSelect)
            assert not peer.sent(TxRollback)
            await receiver.settle_many(held, ACCEPTED)
        assert peer.depth() == (0, 0)

    story()


@virtual
async def test_tx_26_what_is_settled_just_before_a_recovery_is_said_before_it() -> None:
    """Behind it the broker would take the tag for one that it gave to nobody."""
    peer = filled(1)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q")
        held = await receiver.receive()
        peer.answers = lambda channel, method: isinstance(method, ChannelFlow)
        recovering = asyncio.create_task(session.recover())
        await quiet()
        peer.forget()
        peer.answers = lambda channel, method: False
        peer.say(1, ChannelFlowOk(False))
        while not session._dispatcher._has_stopped:
            await asyncio.sleep(0)
        await held.accept()
        await recovering
        await quiet()
        assert held.settled
        assert [line for line in peer.story() if line.startswith("> basic")] == [
            "> basic.ack 1",
            "> basic.recover",
        ]
    assert peer.depth() == (0, 0)


@virtual
async def test_tx_26_nothing_is_settled_behind_a_recovery_that_is_under_way() -> None:
    """The tags are the broker's again: to settle them would be 406."""
    peer = filled(4)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=2)
        await receiver.receive()
        peer.answers = lambda channel, method: isinstance(method, BasicRecover)
        recovering = asyncio.create_task(session.recover())
        await quiet()
        assert len(peer.sent(BasicRecover)) == 1
        closing = asyncio.create_task(receiver.close())
        await quiet()
        assert len(peer.heard(BasicCancelOk)) == 1
        assert not peer.sent(BasicNack)
        peer.say(1, BasicRecoverOk())
        await recovering
        await closing


@virtual
async def test_outside_of_transactions_a_consumer_stays_where_it_is() -> None:
    """Credit for what a commit of our own settles is on its way."""
    peer = filled(30)
    async with session091(peer) as session:
        receiver = await session.receiver("/queues/q", credit=2)
        async with session.transaction():
            await (await receiver.receive()).accept()
        for _ in range(29):
            await (await receiver.receive(timeout=5)).accept()
            assert receiver.credit + receiver.buffered + receiver.unsettled <= 2
        await quiet()
        assert len(peer.sent(BasicConsume)) == 1
    assert peer.depth() == (0, 0)


async def random_story(peer: Peer091, draw: random.Random) -> None:
    """Handlers, commits, rollbacks, recoveries, receivers that come and go, in any order: each
    message is committed once, in order, and none is seen behind one that comes later [TX-INV]."""
    committed: list[int] = []
    async with session091(peer) as session:
        async with session.transaction() as tx:
            receiver = await session.receiver("/queues/q", credit=draw.choice((1, 2, 5, 30)))
            fresh = True
            expected = 0
            while len(committed) < 20:
                batch: list[ReceivedMessage] = []
                accepts = draw.choice((0.5, 1, 1))
                for _ in range(draw.randint(1, receiver.window)):
                    if len(committed) + len(batch) == 20:
                        break
                    message = await receiver.receive(timeout=50)
                    number = int(message.body)
                    assert number == expected, (number, expected, fresh)
                    expected += 1
                    batch.append(message)
                    if draw.random() < accepts:
                        await message.accept()
                    if draw.random() < 0.3:
                        await asyncio.sleep(0)
                if accepts < 1 or draw.random() < 0.3:
                    await tx.rollback()
                    expected = len(committed)
                    if draw.random() < 0.2:
                        await receiver.close()
                        receiver = await session.receiver("/queues/q", credit=7)
                else:
                    await tx.commit()
                    committed += [int(message.body) for message in batch]
                assert receiver.credit + receiver.buffered + receiver.unsettled <= receiver.window
    assert committed == list(range(20))
    assert peer.depth() == (0, 0)


@longer
@FLOW
def test_tx_inv_in_any_order(has_flow: bool) -> None:
    for seed in range(SEEDS):

        async def main(seed: int = seed) -> None:
            await random_story(filled(20, has_flow), random.Random(seed))

        try:
            run(main, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
