"""Senders: outcomes, credit, order, cancellation [FC-3, FC-5, FC-A12, FC-A13]."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tallymark.client import (
    Accepted,
    BatchNotAccepted,
    LinkClosed,
    Message,
    MessageModified,
    MessageRejected,
    MessageReleased,
    Modified,
    NotAccepted,
    NotPossible,
    Rejected,
    Released,
    TimedOut,
)
from tallymark.wire.amqp10.events import Event, TransfersReceived
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Error, Received
from tallymark.wire.amqp10.performatives import Disposition, Flow, Transfer
from tests.support.amqp10_client import Cancelled, cancelled_at, outcome_of, sender_of, session_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, turns, virtual


def bodies(peer: Peer) -> list[Any]:
    return [Message.parse(data).body for data in peer.received]


@virtual
async def test_a_send_returns_the_outcome() -> None:
    peer = Peer()
    async with sender_of(peer) as sender:
        assert await sender.send(b"bytes") == Accepted()
        assert await sender.send("text") == Accepted()
        assert await sender.send(Message({"a": 1}, subject="s")) == Accepted()
        assert bodies(peer) == [b"bytes", "text", {"a": 1}]


@pytest.mark.parametrize(
    ("outcome", "kind", "may_retry"),
    [
        (Rejected(Error("amqp:not-allowed", "no", {"why": 1})), MessageRejected, False),
        (Rejected(), MessageRejected, False),
        (Released(), MessageReleased, True),
        (Modified(delivery_failed=True), MessageModified, True),
    ],
)
def test_a_send_raises_what_is_not_accepted(
    outcome: Any, kind: type[NotAccepted], may_retry: bool
) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.outcome = outcome
        async with sender_of(peer) as sender:
            with pytest.raises(kind) as raised:
                await sender.send("x")
            assert type(raised.value) is kind
            assert raised.value.outcome == outcome
            assert raised.value.may_retry is may_retry
            if outcome == Rejected(Error("amqp:not-allowed", "no", {"why": 1})):
                assert (raised.value.condition, raised.value.text) == ("amqp:not-allowed", "no")
                assert raised.value.info == {"why": 1}
            peer.outcome = Accepted()
            await sender.send("y")  # the sender lives

    story()


@virtual
async def test_a_batch_returns_all_outcomes_in_order_or_raises_with_them() -> None:
    peer = Peer()
    peer.credit = 0
    async with sender_of(peer) as sender:
        call = asyncio.create_task(sender.send_batch([b"%d" % i for i in range(10)]))
        for _ in range(5):
            await quiet()
            peer.receiving("q").flow(2)  # two at a time
            peer.flush()
        assert await call == [Accepted()] * 10
        assert bodies(peer) == [b"%d" % i for i in range(10)]
        assert await sender.send_batch([]) == []

        def odd_ones(event: Event) -> bool:
            if isinstance(event, TransfersReceived):
                for i in range(len(event)):
                    odd = (event.first + i) % 2
                    event.link.settle(
                        event.first + i, event.first + i, Rejected() if odd else Accepted()
                    )
            return isinstance(event, TransfersReceived)

        peer.answers = odd_ones
        peer.receiving("q").flow(100)
        peer.flush()
        with pytest.raises(BatchNotAccepted, match="2 of 4 messages were not accepted") as raised:
            await sender.send_batch(["a", "b", "c", "d"])
        assert raised.value.outcomes == [Accepted(), Rejected(), Accepted(), Rejected()]


@virtual
async def test_presettled_returns_when_it_has_left_and_nobody_answers() -> None:
    peer = Peer()
    async with sender_of(peer, settle_mode="settled") as sender:
        assert await sender.send("x") is None
        assert await sender.send_batch(["y", "z"]) == [None, None]
        with pytest.raises(NotPossible, match="settled=False on a sender with settle_mode='set"):
            await sender.send("x", settled=False)
        await quiet()
        assert bodies(peer) == ["x", "y", "z"]
        assert all(transfer.settled for transfer in peer.sent(Transfer))
        assert peer.said(Disposition) == []
    async with sender_of(peer, settle_mode="unsettled") as sender:
        with pytest.raises(NotPossible, match="settled=True"):
            await sender.send("x", settled=True)
    peer.forget()
    async with sender_of(peer) as sender:
        results = await asyncio.gather(
            sender.send("a"), sender.send("b", settled=True), sender.send("c")
        )
        assert results == [Accepted(), None, Accepted()]
        assert [bool(transfer.settled) for transfer in peer.sent(Transfer)] == [False, True, False]


@virtual
async def test_fc_3_nothing_leaves_without_credit_and_never_more_than_it() -> None:
    peer = Peer()
    peer.credit = 0
    peer.outcome = None
    async with sender_of(peer) as sender:
        calls = [asyncio.create_task(outcome_of(sender.send(b"%d" % i))) for i in range(10)]
        await asyncio.sleep(5)
        assert peer.sent(Transfer) == []
        assert sender.waiting == 10
        link = peer.receiving("q")
        link.flow(3)
        peer.flush()
        await quiet()
        assert (len(peer.received), sender.waiting, sender.credit) == (3, 7, 0)
        link.flow(2)
        peer.flush()
        await quiet()
        assert (len(peer.received), sender.waiting) == (5, 5)
        assert bodies(peer) == [b"%d" % i for i in range(5)]
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@virtual
async def test_fc_5_a_drained_sender_gives_its_unused_credit_up_behind_its_transfers() -> None:
    peer = Peer()
    peer.credit = 10
    async with sender_of(peer) as sender:
        await sender.send("x")
        peer.forget()
        sending = asyncio.create_task(sender.send("y"))
        link = peer.receiving("q")
        link.drain()
        peer.flush()
        await sending
        await quiet()
        assert peer.story() == [
            "peer flow dc=1 credit=9 drain",
            "client transfer 1",
            "client flow dc=10 credit=0 drain",
            "peer disposition 1..1 settled accepted",
        ]
        (answer,) = [flow for flow in peer.sent(Flow) if flow.drain]
        assert (answer.delivery_count, answer.link_credit) == (10, 0)
        assert sender.credit == 0


@virtual
async def test_fc_a12_concurrent_senders_have_strictly_sequential_delivery_ids() -> None:
    peer = Peer(Limits(incoming_window=5, idle_time_out_ms=0))
    peer.put("in", *[b"m%d" % i for i in range(200)])
    chance = random.Random(12)
    async with session_of(peer) as session:
        senders = [await session.sender(f"out{i}") for i in range(4)]
        receiver = await session.receiver("in", credit=3)

        async def send(number: int) -> None:
            for i in range(50):
                size = chance.choice((10, 100, 200_000))
                body = b"%d:%d:" % (number, i)
                await senders[number].send(body + bytes(size))
                await asyncio.sleep(chance.random() * 0.01)

        async def receive() -> None:
            for _ in range(200):
                async with await receiver.receive(timeout=60):
                    await asyncio.sleep(chance.random() * 0.001)

        await asyncio.gather(receive(), *[send(number) for number in range(4)])
        ids = [t.delivery_id for t in peer.sent(Transfer) if t.delivery_id is not None]
        assert sorted(set(ids)) == list(range(200))
        firsts = list(dict.fromkeys(ids))
        assert firsts == list(range(200))  # in the order on the wire
        seen = [body.split(b":")[:2] for body in bodies(peer)]
        for number in range(4):  # and each sender's messages in the order of its calls
            assert [b for a, b in seen if a == b"%d" % number] == [b"%d" % i for i in range(50)]


@virtual
async def test_fc_a12_a_sender_without_credit_does_not_block_the_others() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        peer.credit = 0
        stuck = await session.sender("stuck")
        peer.credit = 10
        free = await session.sender("free")
        call = asyncio.create_task(outcome_of(stuck.send("x")))
        assert await free.send("y") == Accepted()
        peer.put("in", b"0")
        async with session.receiver("in") as receiver:
            await (await receiver.receive()).accept()
        assert not call.done()
        await stuck.close()
        error = await call
        assert isinstance(error, LinkClosed)
        assert not error.in_doubt  # it never left


@virtual
async def test_fc_a13_cancelled_before_it_left_credit_and_delivery_count_are_untouched() -> None:
    peer = Peer()
    peer.credit = 2
    async with sender_of(peer) as sender:
        first = asyncio.create_task(sender.send("never"))
        await asyncio.sleep(0)  # it is posted; the turn has not ended
        assert sender.waiting == 1
        first.cancel()
        results = await asyncio.gather(sender.send("a"), sender.send("b"))
        assert results == [Accepted()] * 2
        with pytest.raises(asyncio.CancelledError):
            await first
        assert bodies(peer) == ["a", "b"]
        assert [t.delivery_id for t in peer.sent(Transfer)] == [0, 1]
        assert sender.credit == 0


@virtual
async def test_fc_a13_cancelled_while_it_waits_for_credit_or_the_socket() -> None:
    for obstacle in ("credit", "socket"):
        peer = Peer()
        peer.credit = 0 if obstacle == "credit" else 10
        async with sender_of(peer) as sender:
            await quiet()
            if obstacle == "socket":
                peer.transport.fill()
            calls = [asyncio.create_task(sender.send(b"%d" % i)) for i in range(4)]
            await asyncio.sleep(1)
            assert peer.sent(Transfer) == []
            calls[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[1]
            if obstacle == "socket":
                peer.transport.empty()
            else:
                peer.receiving("q").flow(10)
                peer.flush()
            for call in (calls[0], calls[2], calls[3]):
                assert await call == Accepted()
            assert bodies(peer) == [b"0", b"2", b"3"]
            assert [t.delivery_id for t in peer.sent(Transfer)] == [0, 1, 2]


@virtual
async def test_fc_a13_cancelled_behind_a_closed_session_window_it_is_withdrawn() -> None:
    """The frames are with the protocol already, and have not left."""
    peer = Peer(Limits(incoming_window=1, idle_time_out_ms=0))
    peer.credit = 10
    async with sender_of(peer, on_event=None) as sender:
        peer.session().hold_window(True)
        calls = [asyncio.create_task(sender.send(b"%d" % i)) for i in range(4)]
        await asyncio.sleep(1)
        assert len(peer.sent(Transfer)) == 1
        calls[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[2]
        peer.session().hold_window(False)
        peer.flush()
        for call in (calls[0], calls[1], calls[3]):
            assert await call == Accepted()
        assert bodies(peer) == [b"0", b"1", b"3"]
        assert [t.delivery_id for t in peer.sent(Transfer)] == [0, 1, 2]
        assert await sender.send("more") == Accepted()


@virtual
async def test_a_send_cancelled_anywhere_is_sent_whole_or_not_at_all() -> None:
    """At every await, with and without credit; the next send works, and ids have no gap."""
    for number in range(1, 5):
        peer = Peer()
        peer.credit = 1
        async with sender_of(peer) as sender:
            big = bytes(300_000)
            try:
                await cancelled_at(number, sender.send(big))
            except Cancelled:
                await quiet()
            peer.receiving("q").flow(5)
            peer.flush()
            assert await sender.send("next") == Accepted()
            whole = bodies(peer)
            assert whole in ([big, "next"], ["next"])
            ids = [t.delivery_id for t in peer.sent(Transfer) if t.delivery_id is not None]
            assert list(dict.fromkeys(ids)) == list(range(len(whole)))


@virtual
async def test_a_timed_out_send_says_whether_it_may_have_arrived() -> None:
    peer = Peer()
    peer.credit = 0
    peer.outcome = None
    async with sender_of(peer) as sender:
        with pytest.raises(TimedOut, match=r"no outcome from 'q' within 2 s") as raised:
            await sender.send("x", timeout=2)
        assert not raised.value.in_doubt
        peer.receiving("q").flow(1)
        peer.flush()
        await quiet()
        assert peer.received == []
        with pytest.raises(TimedOut) as raised:
            await sender.send("y", timeout=2)
        assert raised.value.in_doubt
        assert bodies(peer) == ["y"]
        peer.receiving("q").settle(0, 0, Accepted())  # nobody waits for it
        peer.flush()
        await quiet()


@virtual
async def test_the_links_error_is_raised_in_sends_and_says_what_is_in_doubt() -> None:
    peer = Peer()
    peer.credit = 1
    peer.outcome = None
    async with sender_of(peer) as sender:
        sent, waiting = (asyncio.create_task(outcome_of(sender.send(b))) for b in ("a", "b"))
        batch = asyncio.create_task(outcome_of(sender.send_batch(["c", "d"])))
        await quiet()
        peer.receiving("q").detach(Error("amqp:resource-deleted", "gone"))
        peer.flush()
        for call, in_doubt in ((sent, True), (waiting, False)):
            error = await call
            assert isinstance(error, LinkClosed)
            assert error.condition == "amqp:resource-deleted"
            assert error.in_doubt is in_doubt
        failed = await batch
        assert isinstance(failed, BatchNotAccepted)
        assert [type(outcome) for outcome in failed.outcomes] == [LinkClosed, LinkClosed]
        with pytest.raises(LinkClosed, match="gone"):
            await sender.send("e")


@virtual
async def test_an_anonymous_sender_wants_to_know_where_to() -> None:
    peer = Peer()
    async with sender_of(peer, None) as sender:
        assert sender.address is None
        with pytest.raises(ValueError, match="a message without `to`"):
            await sender.send("x")
        await sender.send(Message("x", to="/queues/q"))
        assert Message.parse(peer.received[0]).to == "/queues/q"
        asked = peer.sent(Transfer)
        assert len(asked) == 1


@virtual
async def test_a_dynamic_sender_and_receiver_get_an_address() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        async with session.sender(None, dynamic=True) as sender:
            assert sender.address == "made-up"
        async with session.receiver(None, dynamic=True) as receiver:
            assert receiver.address == "made-up"
        with pytest.raises(ValueError, match="the peer makes the address"):
            session.sender("q", dynamic=True)


@virtual
async def test_a_message_larger_than_the_peer_takes_is_not_sent() -> None:
    peer = Peer()
    peer.max_message_size = 1000
    async with sender_of(peer) as sender:
        with pytest.raises(ValueError, match=r"a message of \d+ bytes, 'q' takes at most 1000"):
            await sender.send(bytes(1000))
        await sender.send(bytes(900))


@virtual
async def test_a_receiver_that_settles_second_is_answered() -> None:
    peer = Peer()

    def second(event: Event) -> bool:
        if isinstance(event, TransfersReceived):
            event.link.settle(event.first, event.first, Accepted())
        return isinstance(event, TransfersReceived)

    peer.answers = second
    async with sender_of(peer, rcv_mode="second") as sender:
        assert await sender.send("x") == Accepted()
        await quiet()
        (answer,) = peer.sent(Disposition)
        assert (answer.role, answer.first, answer.settled) == (False, 0, True)


@virtual
async def test_how_far_it_has_come_is_no_outcome() -> None:
    peer = Peer()
    peer.outcome = None
    async with sender_of(peer) as sender:
        call = asyncio.create_task(sender.send("x"))
        await quiet()
        peer.say(Disposition(role=True, first=0, state=Received(0, 0)))
        await quiet()
        assert not call.done()
        peer.say(Disposition(role=True, first=0, settled=True))  # without a word: accepted
        assert await call == Accepted()


@virtual
async def test_outcomes_of_many_come_as_one_range_over_the_wrap() -> None:
    peer = Peer()
    peer.outcome = None
    async with sender_of(peer) as sender:
        dispatcher = sender._producer.dispatcher
        assert dispatcher.port is not None
        dispatcher.port.wire.next_delivery_id = 4294967290  # type: ignore[attr-defined]
        call = asyncio.create_task(sender.send_batch([b"x"] * 20))
        await quiet()
        peer.session().settle_received(4294967290, 13, Accepted())
        peer.flush()
        assert await call == [Accepted()] * 20
        assert dispatcher.sent == {}


@virtual
async def test_a_million_bytes_a_turn_so_that_others_get_theirs() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        big, small = await session.sender("big"), await session.sender("small")
        call = asyncio.create_task(big.send_batch([bytes(400_000)] * 10))
        await turns(3)
        assert await small.send("x") == Accepted()
        assert not call.done()
        assert await call == [Accepted()] * 10


@virtual
async def test_what_was_withdrawn_does_not_stay_in_the_queue() -> None:
    peer = Peer()
    peer.credit = 0
    async with sender_of(peer) as sender:
        calls = [asyncio.create_task(sender.send(bytes(100))) for _ in range(100)]
        await quiet()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert (sender.waiting, len(sender._producer.queue)) == (0, 0)


@virtual
async def test_fc_a13_credit_taken_back_for_what_had_not_left_means_that_it_waits_again() -> None:
    """Behind a closed session window; nothing is sent twice, nothing is lost, order holds."""
    for settled in (False, True):
        peer = Peer(Limits(incoming_window=1, idle_time_out_ms=0))
        peer.credit = 10
        async with sender_of(peer) as sender:
            peer.session().hold_window(True)
            calls = [asyncio.create_task(sender.send(b"%d" % i, settled=settled)) for i in range(5)]
            await asyncio.sleep(1)
            assert len(peer.sent(Transfer)) == 1
            assert not any(call.done() for call in calls[1:])
            link = peer.receiving("q")
            link.flow(0)
            peer.flush()
            await asyncio.sleep(1)
            peer.session().hold_window(False)
            peer.flush()
            await asyncio.sleep(1)
            assert len(peer.sent(Transfer)) == 1
            link.flow(10)
            peer.flush()
            for call in calls:
                assert await call == (None if settled else Accepted())
            await quiet()
            assert bodies(peer) == [b"%d" % i for i in range(5)]


@virtual
async def test_a_settled_send_behind_the_window_that_is_cancelled_is_withdrawn() -> None:
    peer = Peer(Limits(incoming_window=1, idle_time_out_ms=0))
    peer.credit = 10
    async with sender_of(peer, settle_mode="settled") as sender:
        peer.session().hold_window(True)
        calls = [asyncio.create_task(sender.send(b"%d" % i)) for i in range(3)]
        await asyncio.sleep(1)
        calls[1].cancel()
        await asyncio.wait([calls[1]])
        peer.session().hold_window(False)
        peer.flush()
        assert await calls[2] is None
        await quiet()
        assert bodies(peer) == [b"0", b"2"]
