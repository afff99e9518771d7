"""Credit and settlement on the wire, frame by frame, against a scripted peer [FC-2 to FC-18]."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tallymark.client import (
    ACCEPTED,
    RELEASED,
    Accepted,
    LinkClosed,
    Modified,
    Rejected,
    Released,
    SettlementRefused,
)
from tallymark.client.events import (
    CallbackFailed,
    CreditDecided,
    Decision,
    ReceiverStalled,
    SettlementFailed,
)
from tallymark.wire.amqp10.outcomes import Error, Received
from tallymark.wire.amqp10.performatives import Disposition, Flow, Transfer
from tests.support.amqp10_client import Events, outcome_of, receiver_of, session_of
from tests.support.amqp10_peer import Peer, bytewise, whole
from tests.support.long import longer, sized
from tests.support.virtual_loop import quiet, turns, virtual


@pytest.mark.parametrize("cut", [whole, bytewise])
def test_fc_a1_window_of_one_second_mode(cut: object) -> None:
    @virtual
    async def story() -> None:
        peer = Peer(cut=cut)  # type: ignore[arg-type]
        peer.put("q", b"message 0", b"message 1")
        async with receiver_of(peer, credit=1, rcv_mode="second") as receiver:
            message = await receiver.receive()
            assert message.body == b"message 0"
            peer.forget()
            began = peer.now_ms
            await asyncio.sleep(20)
            assert peer.frames == []  # not a word for 20 s: no flow, no delivery
            await message.accept()
            await quiet()
            assert peer.story() == [
                "client disposition 0..0 unsettled accepted",
                "peer disposition 0..0 settled accepted",
                "client flow dc=1 credit=1",
                "peer transfer 1",
            ]
            assert [frame.at_ms - began for frame in peer.frames] == [20_000] * 4
            assert (await receiver.receive()).body == b"message 1"

    story()


@virtual
async def test_fc_a1_in_mode_first_no_answer_is_awaited() -> None:
    """FC-11: one settled disposition, and the flow behind it in the same write."""
    peer = Peer()
    peer.put("q", b"0", b"1")
    async with receiver_of(peer, credit=1, rcv_mode="first") as receiver:
        message = await receiver.receive()
        peer.forget()
        await message.accept()
        assert message.settled  # at once
        assert peer.frames == []  # nothing is written before the turn ends
        await quiet()
        assert peer.story() == [
            "client disposition 0..0 settled accepted",
            "client flow dc=1 credit=1",
            "peer transfer 1",
        ]


@virtual
async def test_fc_a2_all_of_a_window_unsettled_means_no_flow_and_no_transfer() -> None:
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(1010)])
    async with receiver_of(peer, credit=10) as receiver:
        held = [await receiver.receive() for _ in range(10)]
        peer.forget()
        await asyncio.sleep(3600)
        assert peer.frames == []
        assert (receiver.credit, receiver.buffered, receiver.unsettled) == (0, 0, 10)
        assert len(peer.nodes["q"].messages) == 1000
        await held[3].accept()
        await quiet()
        assert peer.flows() == [(10, 1)]  # exactly one slot came back


@virtual
async def test_fc_a3_leaked_messages_leave_the_other_slots_and_are_named() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", *[b"%d" % i for i in range(100)])
    async with receiver_of(peer, credit=10, on_event=events.append) as receiver:
        first = [await receiver.receive() for _ in range(10)]
        for message in first[6:]:
            await message.accept()
        await asyncio.sleep(5)
        # FC-15 would have stopped here for good: see test_credit.py. Four slots are left:
        rest = [await receiver.receive() for _ in range(4)]
        for _ in range(5):
            for message in rest:
                await message.accept()
            rest = [await receiver.receive() for _ in range(4)]
        assert not events.of(ReceiverStalled)
        await asyncio.sleep(7)
        peer.forget()
        await asyncio.sleep(100)  # ten of ten are never settled
        assert peer.frames == []
        stalled = events.one(ReceiverStalled)
        assert stalled.window == 10
        ids = [message.delivery_id for message in stalled.messages]
        assert ids == [*range(6), *range(30, 34)]
        assert [m.age_ms for m in stalled.messages] == [65_000] * 6 + [60_000] * 4
        assert "all 10 slots are taken, by 0 (tag 00000000, 65000 ms)" in str(stalled)
        for message in first[:6] + rest:
            message.ignore()


@virtual
async def test_fc_a4_accept_times_out_and_the_answer_comes_later() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    peer.answers_second = False
    async with receiver_of(peer, credit=1, rcv_mode="second") as receiver:
        message = await receiver.receive()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await message.accept()
        assert not message.settled
        assert (receiver.unsettled, receiver.credit) == (1, 0)
        peer.session().settle_sent(0, 0, Accepted())
        peer.flush()
        await quiet()
        assert message.settled
        assert message.outcome == Accepted()
        assert (receiver.unsettled, receiver.buffered, receiver.credit) == (0, 1, 0)
        assert peer.flows()[-1] == (1, 1)
        assert await message.accept() == Accepted()  # the same result, and not a word more
        await quiet()
        assert len(peer.sent(Disposition)) == 1
        peer.answers_second = True


@virtual
async def test_fc_12_the_slot_comes_back_with_the_answer_and_not_before() -> None:
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(8)])
    peer.answers_second = False
    async with receiver_of(peer, credit=4, rcv_mode="second") as receiver:
        messages = [await receiver.receive() for _ in range(4)]
        calls = [asyncio.create_task(message.accept()) for message in messages]
        await quiet()
        assert receiver.unsettled == 4
        peer.forget()
        peer.session().settle_sent(1, 2, Accepted())
        peer.flush()
        await quiet()
        assert receiver.unsettled == 2
        assert peer.flows() == [(4, 2)]
        assert [call.done() for call in calls] == [False, True, True, False]
        peer.session().settle_sent(0, 0, Accepted())
        peer.session().settle_sent(3, 3, Accepted())
        peer.flush()
        assert [await call for call in calls] == [Accepted()] * 4
        peer.answers_second = True
        for _ in range(4):
            await (await receiver.receive()).accept()
        assert receiver.unsettled == 0


@virtual
async def test_fc_12_a_rejected_answer_is_raised_by_the_settle_call_and_settles() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    peer.answers_second = False
    async with receiver_of(peer, credit=1, rcv_mode="second") as receiver:
        message = await receiver.receive()
        call = asyncio.create_task(outcome_of(message.accept()))
        await quiet()
        refusal = Rejected(Error("amqp:precondition-failed", "the lock is gone"))
        peer.session().settle_sent(0, 0, refusal)
        peer.flush()
        error = await call
        assert isinstance(error, SettlementRefused)
        assert (error.condition, error.text) == ("amqp:precondition-failed", "the lock is gone")
        assert (error.asked, error.answered) == (Accepted(), refusal)
        assert message.settled
        assert message.outcome is None
        with pytest.raises(SettlementRefused, match="the lock is gone"):
            await message.release()  # the first call has won
        await quiet()
        assert receiver.buffered == 1  # its slot came back
        peer.answers_second = True


@virtual
async def test_fc_12_an_answer_nobody_waits_for_is_reported() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0")
    peer.answers_second = False
    async with receiver_of(peer, rcv_mode="second", on_event=events.append) as receiver:
        message = await receiver.receive()
        message.settle_nowait(ACCEPTED)
        await quiet()
        peer.session().settle_sent(0, 0, Released())
        peer.flush()
        await quiet()
        failed = events.one(SettlementFailed)
        assert failed.delivery_id == 0
        assert "the sender answered released to accepted" in str(failed.error)
        peer.answers_second = True


@pytest.mark.parametrize("rcv_mode", ["first", "second"])
def test_fc_a5_settling_twice_is_one_settlement(rcv_mode: str) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.put("q", b"0")
        async with receiver_of(peer, rcv_mode=rcv_mode) as receiver:
            message = await receiver.receive()
            assert await message.accept() == Accepted()
            assert await message.reject("too late") == Accepted()
            assert await message.modify() == Accepted()
            message.ignore()
            await quiet()
            assert len(peer.sent(Disposition)) == 1
            assert (receiver.unsettled, receiver.ignored_total) == (0, 0)

    story()


@virtual
async def test_fc_a5_fc_10_sent_settled_means_no_disposition_and_the_slot_is_free_when_read() -> (
    None
):
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(20)], settled=True)
    async with receiver_of(peer, credit=4) as receiver:
        await quiet()
        assert (receiver.buffered, receiver.unsettled, receiver.credit) == (4, 0, 0)
        peer.forget()
        await asyncio.sleep(5)
        assert peer.frames == []  # not when it arrives
        message = await receiver.receive()
        assert message.settled
        assert await message.accept() is None
        assert await message.accept() is None
        await quiet()
        assert peer.flows() == [(4, 1)]  # but when it is read
        for _ in range(19):
            await receiver.receive()
        assert receiver.unsettled == 0
        assert peer.sent(Disposition) == []


@virtual
async def test_fc_a10_three_deliveries_across_the_wrap_keep_credit_right() -> None:
    peer = Peer()
    peer.first_delivery_id = peer.initial_delivery_count = 4294967295
    peer.put("q", b"0", b"1", b"2")
    async with receiver_of(peer, credit=4) as receiver:
        await quiet()
        assert peer.flows() == [(4294967295, 4)]
        messages = [await receiver.receive() for _ in range(3)]
        assert [m.delivery_id for m in messages] == [4294967295, 0, 1]
        assert receiver.credit == 1
        for message in messages:
            await message.accept()
        await quiet()
        assert peer.ranges() == [(4294967295, 1, True, "accepted")]
        assert peer.flows()[-1] == (2, 4)


@virtual
async def test_fc_a10_fc_d5_a_range_over_the_wrap_settles_four_and_terminates() -> None:
    peer = Peer()
    peer.first_delivery_id = 4294967294
    peer.put("q", *[b"%d" % i for i in range(4)])
    peer.answers_second = False
    async with receiver_of(peer, credit=4, rcv_mode="second") as receiver:
        messages = [await receiver.receive() for _ in range(4)]
        call = asyncio.create_task(receiver.settle_many(messages, ACCEPTED))
        await quiet()
        assert peer.ranges() == [(4294967294, 1, False, "accepted")]
        peer.session().settle_sent(4294967294, 1, Accepted())
        peer.flush()
        await call
        assert all(message.settled for message in messages)
        assert receiver.unsettled == 0
        peer.answers_second = True


@virtual
async def test_fc_d5_ranges_that_end_at_the_last_number_or_span_everything_terminate() -> None:
    peer = Peer()
    peer.first_delivery_id = 4294967295
    peer.put("q", b"0")
    async with receiver_of(peer, credit=1) as receiver:
        message = await receiver.receive()
        peer.say(Disposition(role=False, first=4294967290, last=4294967295, state=Released()))
        await quiet()
        assert message.settled
        peer.say(Disposition(role=False, first=0, last=2147483646, settled=True))
        await quiet()
        assert receiver.unsettled == 0


@virtual
async def test_fc_a11_one_range_for_messages_of_two_links() -> None:
    peer = Peer()
    peer.put("a", b"a0", b"a1")
    peer.put("b", b"b0", b"b1")
    async with session_of(peer) as session:
        async with session.receiver("a") as a, session.receiver("b") as b:
            ma, mb = await a.receive(), await b.receive()
            assert [ma.delivery_id, mb.delivery_id] == [0, 1]
            peer.forget()
            await mb.accept()
            await ma.accept()
            await quiet()
            assert peer.ranges() == [(0, 1, True, "accepted")]
            assert sorted(peer.flows()) == [(1, 1), (1, 1)]  # each slot once
            assert (a.unsettled, b.unsettled) == (0, 0)
            await a.settle_many([ma, mb], ACCEPTED)
            await quiet()
            assert len(peer.sent(Disposition)) == 1


@virtual
async def test_fc_24_settle_many_sends_ranges_of_contiguous_ids_only() -> None:
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(10)])
    async with receiver_of(peer, credit=10) as receiver:
        m = [await receiver.receive() for _ in range(10)]
        peer.forget()
        await receiver.settle_many([m[5], m[1], m[0], m[2], m[9], m[6]], ACCEPTED)
        await quiet()
        assert peer.ranges() == [
            (0, 2, True, "accepted"),
            (5, 6, True, "accepted"),
            (9, 9, True, "accepted"),
        ]
        assert len(peer.flows()) == 1
        await receiver.settle_many([m[3], m[0], m[4]], RELEASED)  # 0 is settled: it stays out
        await quiet()
        assert peer.ranges()[3:] == [(3, 4, True, "released")]
        await receiver.settle_many(m, Modified(delivery_failed=True))
        await quiet()
        assert peer.ranges()[4:] == [(7, 8, True, "modified")]
        assert receiver.unsettled == 0


@virtual
async def test_fc_17_a_turn_of_settlements_is_one_flow_and_one_range() -> None:
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(1000)])
    async with receiver_of(peer, credit=500) as receiver:
        batch = [await receiver.receive() for _ in range(500)]
        peer.forget()
        for message in reversed(batch):
            await message.accept()
        await quiet()
        assert peer.ranges() == [(0, 499, True, "accepted")]
        assert peer.flows() == [(500, 500)]


@virtual
async def test_fc_17_the_trace_of_the_rule_on_the_wire() -> None:
    """W = 4, mode first: the table of semantics FC-17, step by step."""
    peer = Peer()
    async with receiver_of(peer, credit=4) as receiver:
        await quiet()
        assert peer.flows() == [(0, 4)]
        peer.put("q", b"0", b"1", b"2")
        await quiet()
        assert (receiver.credit, receiver.buffered) == (1, 3)
        first, second = await receiver.receive(), await receiver.receive()
        await quiet()
        assert peer.flows() == [(0, 4)]
        await first.accept()
        await quiet()
        assert peer.flows() == [(0, 4), (3, 2)]
        peer.put("q", b"3", b"4")
        await quiet()
        assert peer.flows() == [(0, 4), (3, 2)]
        for message in [second, *[await receiver.receive() for _ in range(3)]]:
            await message.accept()
        await quiet()
        assert peer.flows() == [(0, 4), (3, 2), (5, 4)]


@virtual
async def test_fc_2_a_delivery_of_many_frames_takes_one_slot_once() -> None:
    peer = Peer()
    body = bytes(range(256)) * 2000
    peer.put("q", body, b"small")
    async with receiver_of(peer, credit=2) as receiver:
        message = await receiver.receive()
        assert message.body == body
        assert len(peer.said(Transfer)) > 4
        assert receiver.credit == 0
        assert (await receiver.receive()).body == b"small"


@virtual
async def test_fc_2_an_aborted_delivery_takes_none() -> None:
    peer = Peer()
    async with receiver_of(peer, credit=1) as receiver:
        await quiet()
        peer.say(
            Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True),
            payload=b"\0S\xa0",
        )
        peer.say(Transfer(handle=0, aborted=True, more=True))
        await quiet()
        assert (receiver.credit, receiver.buffered) == (1, 0)


@virtual
async def test_fc_4_fc_d3_a_delivery_without_credit_costs_the_peer_the_link() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer, credit=1) as receiver:
        message = await receiver.receive()
        peer.say(
            Transfer(handle=0, delivery_id=1, delivery_tag=b"1", message_format=0, settled=False),
            payload=b"\0Su\xa0\1x",
        )
        await quiet()
        assert receiver.credit == 0
        with pytest.raises(LinkClosed) as raised:
            await receiver.receive()
        assert raised.value.condition == "amqp:link:transfer-limit-exceeded"
        with pytest.raises(LinkClosed):
            await message.accept()


@virtual
async def test_fc_6_echo_is_answered_and_not_echoed() -> None:
    peer = Peer()
    async with receiver_of(peer, credit=3):
        await quiet()
        peer.forget()
        peer.sending("q").flow(echo=True)
        peer.flush()
        await quiet()
        assert peer.flows() == [(0, 3)]
        assert not peer.sent(Flow)[-1].echo


@virtual
async def test_fc_18_the_sender_takes_a_message_back() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    seen: list[tuple[object, object]] = []
    async with receiver_of(peer, credit=1) as receiver:
        receiver.on_delivery_state_changed(lambda m, state: seen.append((m, state)))
        message = await receiver.receive()
        peer.forget()
        peer.session().settle_sent(0, 0, Released(), settled=False)
        peer.flush()
        await quiet()
        assert seen == [(message, Released())]
        assert peer.story() == [
            "peer disposition 0..0 unsettled released",
            "client disposition 0..0 settled released",
            "client flow dc=1 credit=1",
            "peer transfer 1",
        ]
        assert message.settled
        assert await message.accept() == Released()  # too late: a no-op
        await quiet()
        assert len(peer.sent(Disposition)) == 1
        assert receiver.buffered == 1


@virtual
async def test_fc_18_what_was_taken_back_while_buffered_is_not_shown() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1", b"2")
    seen: list[object] = []
    async with receiver_of(peer, credit=3) as receiver:
        receiver.on_delivery_state_changed(lambda m, state: seen.append(m))
        await quiet()
        peer.session().settle_sent(0, 1, Released(), settled=False)
        peer.flush()
        await quiet()
        assert (receiver.buffered, receiver.unsettled) == (1, 0)
        assert (await receiver.receive()).body == b"2"
        assert seen == []  # the application never had them
        assert peer.ranges() == [(0, 1, True, "released")]


@virtual
async def test_fc_18_while_a_settlement_is_under_way() -> None:
    """The sender's time-out and our accept cross: the sender's word holds, and accept says so."""
    peer = Peer()
    peer.put("q", b"0")
    peer.answers_second = False
    async with receiver_of(peer, rcv_mode="second") as receiver:
        message = await receiver.receive()
        call = asyncio.create_task(outcome_of(message.accept()))
        await quiet()
        peer.session().settle_sent(0, 0, Released(), settled=False)
        peer.flush()
        error = await call
        assert isinstance(error, SettlementRefused)
        assert error.answered == Released()
        assert receiver.unsettled == 0
        peer.answers_second = True


@virtual
async def test_fc_18_a_state_that_is_no_outcome_changes_nothing() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer) as receiver:
        message = await receiver.receive()
        peer.forget()
        peer.say(Disposition(role=False, first=0, state=Received(0, 0)))
        await quiet()
        assert not message.settled
        assert peer.sent(Disposition) == []
        await message.accept()


@virtual
async def test_fc_18_a_callback_that_raises_does_no_harm() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0", b"1")

    def callback(message: object, state: object) -> None:
        raise RuntimeError("the application's fault")

    async with receiver_of(peer, on_event=events.append) as receiver:
        receiver.on_delivery_state_changed(callback)
        message = await receiver.receive()
        peer.session().settle_sent(0, 0, Released(), settled=False)
        peer.flush()
        async with await receiver.receive() as following:
            assert following.body == b"1"
        assert message.settled
        failed = events.one(CallbackFailed)
        assert failed.callback == "on_delivery_state_changed"
        assert str(failed.error) == "the application's fault"


@virtual
async def test_fc_9_a_mode_that_was_asked_for_and_not_granted_fails_the_attach() -> None:
    peer = Peer()
    peer.rcv_mode = 0
    async with session_of(peer) as session:
        with pytest.raises(LinkClosed, match="rcv-settle-mode 1 was asked for, not 0"):
            await session.receiver("q", rcv_mode="second")
        async with session.receiver("q", rcv_mode="first") as receiver:
            assert receiver.settle_mode == "first"
        peer.rcv_mode = 1
        async with session.receiver("q") as receiver:
            assert receiver.settle_mode == "second"  # not asked: as the peer likes


@longer
@virtual
async def test_fc_a8_few_session_flows_for_many_transfers() -> None:
    peer = Peer()
    count = sized(10_000, 20_000, 1_000_000)
    window = 500
    peer.put("q", *[b"x"] * count)
    async with session_of(peer, session_window=window) as session:
        async with session.receiver("q", credit=count) as receiver:
            held = [await receiver.receive() for _ in range(count)]
            await quiet()
            flows = [flow for flow in peer.sent(Flow) if flow.handle is None]
            assert 0 < len(flows) <= count / (window / 2) + 1
            assert len(held) == count


@virtual
async def test_credit_decisions_are_events() -> None:
    peer = Peer()
    events = Events()
    async with receiver_of(peer, credit=4, on_event=events.append) as receiver:
        peer.put("q", b"0", b"1", b"2")
        messages = [await receiver.receive() for _ in range(3)]
        await messages[0].accept()
        peer.put("q", b"3", b"4")
        await quiet()
        decided = events.of(CreditDecided)
        assert [(d.decision, d.credit, d.delivery_count) for d in decided] == [
            (Decision.RESUME, 4, 0),
            (Decision.TOP_UP, 2, 3),
            (Decision.PAUSE, 0, 5),
        ]
        last = decided[-1]
        assert (last.buffered, last.unsettled, last.window) == (2, 2, 4)
        assert (last.settle_mode, last.delivery_tag) == ("first", b"\0\0\0\4")
        assert last.delivery_uuid is None
        await turns()


@virtual
async def test_a_tag_of_16_bytes_is_shown_as_a_uuid() -> None:
    peer = Peer()
    events = Events()
    tag = bytes(range(16))
    async with receiver_of(peer, on_event=events.append) as receiver:
        await quiet()
        peer.say(
            Transfer(handle=0, delivery_id=0, delivery_tag=tag, message_format=0, settled=False),
            payload=b"\0Su\xa0\1x",
        )
        message = await receiver.receive()
        assert str(message.delivery_uuid) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
        paused = events.of(CreditDecided)[-1]
        assert paused.delivery_uuid == message.delivery_uuid
        assert str(message.delivery_uuid) in str(paused)


@virtual
async def test_a_settlement_of_another_receivers_message_goes_its_own_way() -> None:
    """go-amqp #316"""
    peer = Peer()
    peer.put("a", b"a0", b"a1")
    other = Peer()
    async with session_of(peer) as session, session_of(other) as elsewhere:
        async with session.receiver("a") as a, elsewhere.receiver("b") as b:
            message = await a.receive()
            await b.settle_many([message], ACCEPTED)
            await quiet()
            assert peer.ranges() == [(0, 0, True, "accepted")]
            assert other.ranges() == []
            assert (await a.receive()).body == b"a1"


@virtual
async def test_no_disposition_names_what_was_sent_settled() -> None:
    """Mixed: settled and unsettled deliveries between each other are not joined into one range."""
    peer = Peer()
    async with receiver_of(peer, credit=10) as receiver:
        for settled in (False, True, False, False):
            peer.put("q", b"x", settled=settled)
            await quiet()
        messages = [await receiver.receive() for _ in range(4)]
        await receiver.settle_many(messages, ACCEPTED)
        await quiet()
        assert peer.ranges() == [(0, 0, True, "accepted"), (2, 3, True, "accepted")]


@virtual
async def test_the_window_is_asked_for_again_and_again() -> None:
    """A thousand messages one by one: each settlement frees its slot, none is lost or doubled."""
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(1000)])
    seen = []
    async with receiver_of(peer, credit=7) as receiver:
        async for message in receiver:
            async with message:
                seen.append(int(message.body))
            if len(seen) == 1000:
                break
        await quiet()
        assert receiver.unsettled == 0
    assert seen == list(range(1000))
    settled = [i for first, last, _, _ in peer.ranges() for i in range(first, last + 1)]
    assert settled == list(range(1000))


@virtual
async def test_what_settles_is_checked_where_it_is_given() -> None:
    """At the end of the turn, when it is encoded, nobody would hear of it."""
    peer = Peer()
    peer.put("q", b"0", b"1")
    async with receiver_of(peer, credit=2) as receiver:
        messages = [await receiver.receive(), await receiver.receive()]
        wrong: list[tuple[Any, type[Exception], str]] = [
            ("accepted", ValueError, "outcome='accepted', expected one of 'accept'"),
            (Accepted, TypeError, "expected an Accepted, Rejected, Released or Modified"),
            (None, TypeError, "outcome None"),
            (Modified(message_annotations={"x-a": object()}), TypeError, "no AMQP type"),
            (Modified(message_annotations={"x-a": 2**70}), ValueError, "64 signed bits"),
        ]
        for outcome, kind, text in wrong:
            with pytest.raises(kind, match=text):
                await receiver.settle_many(messages, outcome)
            with pytest.raises(kind, match=text):
                messages[0].settle_nowait(outcome)
        # Compiled, no such outcome can be made; interpreted, it is refused where it is given.
        with pytest.raises(TypeError, match=r"error 'no' of a Rejected|got str"):
            await receiver.settle_many(messages, Rejected(error="no"))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected received messages"):
            await receiver.settle_many([messages[0], b"body"], ACCEPTED)  # type: ignore[list-item]
        assert receiver.unsettled == 2
        await receiver.settle_many(messages, ACCEPTED)
        await quiet()
        assert peer.ranges() == [(0, 1, True, "accepted")]
