"""Messages that nobody settles are found and named, and their locks watched [FC-D2]."""

from __future__ import annotations

import asyncio
import gc
import logging
from datetime import UTC, datetime

import pytest

from tallymark.client import Receiver
from tallymark.client.events import MessageDropped, MessageOverdue, ReceiverStalled
from tallymark.wire.amqp10.sections import Data, Header, encode_message
from tallymark.wire.amqp10.types import Timestamp
from tests.support.amqp10_client import Events, receiver_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual


def wall_ms(receiver: Receiver) -> int:
    """The client's idea of the wall clock follows the virtual one."""
    return receiver._consumer.dispatcher.wall_ms()


@pytest.fixture(autouse=True)
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time is virtual time: time.time() must not decide what a test sees."""
    monkeypatch.setattr("time.time", lambda: asyncio.get_running_loop().time())


def locked(body: bytes, until_ms: int) -> bytes:
    annotations: dict[object, object] = {"x-opt-locked-until": Timestamp(until_ms)}
    return encode_message(message_annotations=annotations, body=Data(body))


@virtual
async def test_fc_d2_a_message_that_is_forgotten_is_reported_at_once() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0", b"1", b"2", b"3")
    async with receiver_of(peer, credit=3, on_event=events.append) as receiver:
        message = await receiver.receive()
        assert (await receiver.receive()).body == b"1"  # and nobody has it any more
        dropped = events.one(MessageDropped)
        assert (dropped.message.delivery_id, dropped.unsettled, dropped.window) == (1, 2, 3)
        assert "message 1 (tag 00000001, 0 ms, dropped) was never settled" in str(dropped)
        await message.accept()
        del message
        await asyncio.sleep(5)
        await (await receiver.receive()).accept()
        assert len(events.of(MessageDropped)) == 1  # settled ones are not leaks
        (leaked,) = receiver.unsettled_messages()
        assert (leaked.delivery_id, leaked.age_ms, leaked.is_dropped) == (1, 5000, True)
        assert (receiver.unsettled, receiver.oldest_unsettled_age) == (1, 5000)


@virtual
async def test_fc_d2_all_slots_forgotten_is_a_stall_at_once() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0", b"1", b"2")
    async with receiver_of(peer, credit=2, on_event=events.append) as receiver:
        for _ in range(2):
            await receiver.receive()
        stalled = events.one(ReceiverStalled)
        assert [message.delivery_id for message in stalled.messages] == [0, 1]
        with pytest.raises(TimeoutError):
            await receiver.receive(timeout=1000)
        assert len(events.of(ReceiverStalled)) == 2  # and once more after stall_warning_ms


@virtual
async def test_a_forgotten_message_whose_link_is_gone_is_no_leak() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0")
    async with receiver_of(peer, on_event=events.append) as receiver:
        message = await receiver.receive()
        await receiver.close()
        del message
        gc.collect()
        assert events.of(MessageDropped) == []


@virtual
async def test_a_message_in_the_buffer_or_under_way_is_no_leak() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0", b"1")
    peer.answers_second = False
    async with receiver_of(peer, credit=2, rcv_mode="second", on_event=events.append) as receiver:
        task = asyncio.create_task((await receiver.receive()).accept())
        await quiet()
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
        assert events.of(MessageDropped) == []
        assert (receiver.unsettled, receiver.buffered) == (1, 1)
        peer.answers_second = True


@virtual
async def test_stall_warning_may_be_off_or_earlier() -> None:
    for after_ms, expected in ((0, 0), (500, 1)):
        peer = Peer()
        events = Events()
        peer.put("q", b"0", b"1")
        async with receiver_of(peer, stall_warning_ms=after_ms, on_event=events.append) as receiver:
            message = await receiver.receive()
            await asyncio.sleep(100)
            assert len(events.of(ReceiverStalled)) == expected
            await message.accept()


@virtual
async def test_a_handler_that_goes_on_settling_never_stalls() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", *[b"x"] * 100)
    async with receiver_of(peer, stall_warning_ms=5000, on_event=events.append) as receiver:
        for _ in range(100):
            message = await receiver.receive()
            await asyncio.sleep(3)  # all slots are taken all the time
            await message.accept()
        assert events.of(ReceiverStalled) == []


@virtual
async def test_fc_d2_max_unsettled_age_warns_and_then_releases() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0", b"1", b"2")
    async with receiver_of(
        peer, credit=2, max_unsettled_age=10_000, on_event=events.append
    ) as receiver:
        old = await receiver.receive()
        await asyncio.sleep(4)
        young = await receiver.receive()
        await asyncio.sleep(3.9)
        assert events.of(MessageOverdue) == []
        await asyncio.sleep(0.2)  # 8.1 s
        warning = events.one(MessageOverdue)
        assert (warning.message.delivery_id, warning.limit_ms) == (0, 10_000)
        assert not warning.was_released
        assert "message 0 (tag 00000000, 8000 ms) is still not settled" in str(warning)
        assert peer.ranges() == []
        await asyncio.sleep(2)  # 10.1 s
        assert [event.was_released for event in events.of(MessageOverdue)] == [False, True]
        assert peer.ranges() == [(0, 0, True, "released")]
        assert old.settled
        assert (await old.accept()) == old.outcome  # too late, a no-op
        await young.accept()
        async with await receiver.receive():
            await asyncio.sleep(3)
        assert len(events.of(MessageOverdue)) == 2


@virtual
async def test_fc_d2_a_forgotten_message_is_released_too() -> None:
    for mode in ("first", "second"):
        peer = Peer()
        peer.put("q", b"0", b"1")
        async with receiver_of(peer, max_unsettled_age=1000, rcv_mode=mode) as receiver:
            await receiver.receive()  # and forget
            async with await receiver.receive(timeout=2) as message:
                assert message.body == b"1"
            assert peer.ranges()[0] == (0, 0, mode == "first", "released")


@virtual
async def test_warnings_only() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0")
    async with receiver_of(
        peer, max_unsettled_age=1000, release_overdue=False, on_event=events.append
    ) as receiver:
        message = await receiver.receive()
        await asyncio.sleep(50)
        assert not events.one(MessageOverdue).was_released
        assert peer.ranges() == []
        await message.accept()


@virtual
async def test_locked_until_and_expires_at_are_shown() -> None:
    peer = Peer()
    async with receiver_of(peer, credit=2) as receiver:
        now = wall_ms(receiver)
        header = Header(ttl=60_000, delivery_count=2)
        annotations: dict[object, object] = {"x-opt-locked-until": Timestamp(now + 30_000)}
        peer.put("q", encode_message(header, None, annotations, body=b"x"), b"plain")
        message = await receiver.receive()
        assert message.locked_until == datetime.fromtimestamp((now + 30_000) / 1000, UTC)
        assert message.expires_at == datetime.fromtimestamp((now + 60_000) / 1000, UTC)
        assert message.delivery_count == 2
        plain = await receiver.receive()
        assert (plain.locked_until, plain.expires_at) == (None, None)
        await receiver.settle_many([message, plain], _accepted())


def _accepted() -> object:
    from tallymark.client import ACCEPTED

    return ACCEPTED


@virtual
async def test_lock_warns_at_80_percent_and_releases_before_expiry() -> None:
    peer = Peer()
    events = Events()
    async with receiver_of(
        peer, credit=3, max_unsettled_age="lock", on_event=events.append
    ) as receiver:
        now = wall_ms(receiver)
        peer.put("q", locked(b"0", now + 30_000), locked(b"1", now + 30_000), b"without a lock")
        held = await receiver.receive()  # 1 stays in the buffer: its lock runs as well
        await asyncio.sleep(23.9)
        assert events.of(MessageOverdue) == []
        await asyncio.sleep(0.2)
        warning = events.one(MessageOverdue)
        assert (warning.message.delivery_id, warning.limit_ms) == (0, 30_000)
        await asyncio.sleep(2.8)
        assert peer.ranges() == []
        await asyncio.sleep(0.2)  # 27.1 s: 90 %
        assert peer.ranges() == [(0, 1, True, "released")]
        assert held.settled
        assert receiver.buffered == 1
        async with await receiver.receive() as message:
            assert message.body == b"without a lock"
            await asyncio.sleep(100)
            assert not message.settled


@virtual
async def test_messages_settled_in_time_cause_no_warning_whatever_the_traffic() -> None:
    peer = Peer()
    events = Events()
    async with receiver_of(
        peer, credit=5, max_unsettled_age="lock", on_event=events.append
    ) as receiver:
        for _ in range(50):
            now = wall_ms(receiver)
            peer.put("q", *[locked(b"x", now + 5000)] * 5)
            for _ in range(5):
                async with await receiver.receive():
                    await asyncio.sleep(0.5)
        assert events.of(MessageOverdue) == []
        assert all(outcome == "accepted" for *_, outcome in peer.ranges())


def test_events_go_to_logging_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.put("q", b"0")
        async with receiver_of(peer) as receiver:
            await receiver.receive()

    with caplog.at_level(logging.DEBUG, "tallymark.client"):
        story()
    by_name = {getattr(r, "tallymark_event", None).__class__.__name__: r for r in caplog.records}
    dropped = by_name["MessageDropped"]
    assert dropped.name == "tallymark.client.leaks"
    assert dropped.levelno == logging.WARNING
    assert (dropped.address, dropped.window) == ("q", 1)  # type: ignore[attr-defined]
    decided = by_name["CreditDecided"]
    assert decided.name == "tallymark.client.credit"
    assert decided.levelno == logging.DEBUG
    assert decided.settle_mode == "first"  # type: ignore[attr-defined]
    assert "credit.decided: " in decided.getMessage()


def test_nothing_is_built_when_nobody_listens() -> None:
    """Credit decisions are debug events: with logging at its default they cost a comparison."""
    from tallymark.client.events import CreditDecided, Reporter

    assert not Reporter(None).wants(CreditDecided)
    assert Reporter(lambda event: None).wants(CreditDecided)
