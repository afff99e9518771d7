"""The forms of receiving: handler, iterator, one, batch [FC-22 to FC-25]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallymark.client import (
    ACCEPTED,
    Closed,
    Handler,
    LinkClosed,
    NotPossible,
    ReceivedMessage,
    TimedOut,
)
from tallymark.client.arguments import OnError
from tallymark.client.events import HandlerFailed, MessageDropped, SettlementFailed
from tallymark.wire.amqp10.outcomes import Error
from tests.support.amqp10_client import (
    Cancelled,
    Events,
    cancelled_at,
    outcome_of,
    receiver_of,
    session_of,
)
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


async def run_until(
    receiver_run: Awaitable[None], condition: Callable[[], bool]
) -> asyncio.Future[None]:
    """Start it, and wait until the condition holds."""
    task = asyncio.ensure_future(receiver_run)
    while not condition():
        await asyncio.sleep(0.001)
    return task


async def stop(task: asyncio.Future[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# One message


@virtual
async def test_receive_waits_for_the_next_message_and_no_longer_than_it_was_told() -> None:
    peer = Peer()
    async with receiver_of(peer) as receiver:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimedOut, match=r"no message from 'q' within 2\.5 s"):
            await receiver.receive(timeout=2.5)
        assert loop.time() - began == pytest.approx(2.5, abs=0.01)
        with pytest.raises(TimeoutError):  # it is one
            await receiver.receive(timeout=0)
        call = asyncio.create_task(receiver.receive(timeout=5))
        await asyncio.sleep(1)
        peer.put("q", b"late")
        async with await call as message:
            assert message.body == b"late"


@virtual
async def test_a_message_that_comes_as_time_is_up_is_not_lost() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer) as receiver:
        await quiet()
        async with await receiver.receive(timeout=0) as message:
            assert message.body == b"0"


@virtual
async def test_a_cancelled_receive_has_taken_nothing() -> None:
    """Also where it is cancelled in the very turn in which it is woken."""
    peer = Peer()
    async with receiver_of(peer, credit=2) as receiver:
        first = asyncio.create_task(receiver.receive())
        second = asyncio.create_task(receiver.receive())
        await quiet()
        peer.put("q", b"0")
        while not receiver.buffered:
            await asyncio.sleep(0)
        first.cancel()  # it has been woken, and did not run yet
        async with await second as message:
            assert message.body == b"0"
        with pytest.raises(asyncio.CancelledError):
            await first


@virtual
async def test_readers_take_turns_and_each_message_goes_to_one() -> None:
    peer = Peer()
    async with receiver_of(peer, credit=10) as receiver:
        calls = [asyncio.create_task(receiver.receive()) for _ in range(10)]
        await quiet()
        peer.put("q", *numbers(10))
        messages = [await call for call in calls]
        assert [message.body for message in messages] == numbers(10)
        await receiver.settle_many(messages, ACCEPTED)


# Iterator


@virtual
async def test_fc_24_async_with_accepts_on_a_clean_exit_and_releases_on_an_exception() -> None:
    peer = Peer()
    peer.put("q", *numbers(4))
    async with receiver_of(peer) as receiver:
        async for message in receiver:
            number = int(message.body)
            try:
                async with message:
                    if number == 1:
                        raise ValueError("not this one")
                    if number == 2:
                        await message.reject("by hand")
                    if number == 3:
                        message.ignore()
                        break
            except ValueError:
                assert number == 1
        await quiet()
        assert peer.ranges() == [
            (0, 0, True, "accepted"),
            (1, 1, True, "released"),
            (2, 2, True, "rejected"),
        ]
        assert receiver.ignored_total == 1


@virtual
async def test_fc_24_async_with_releases_when_it_is_cancelled() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer, rcv_mode="second") as receiver:

        async def work() -> None:
            async with await receiver.receive():
                await asyncio.sleep(1000)

        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await quiet()
        assert peer.ranges() == [(0, 0, False, "released")]
        assert receiver.unsettled == 0


@virtual
async def test_the_iteration_ends_when_the_application_closes_the_receiver() -> None:
    peer = Peer()
    peer.put("q", *numbers(3))
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=10)
        seen = []
        async for message in receiver:
            seen.append(message.body)
            await message.accept()
            if len(seen) == 3:
                asyncio.get_running_loop().call_later(1, asyncio.ensure_future, receiver.close())
        assert seen == numbers(3)


@virtual
async def test_the_iteration_raises_when_the_peer_closes_the_receiver() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer) as receiver:
        with pytest.raises(LinkClosed, match="amqp:resource-deleted: gone") as raised:  # noqa: PT012
            async for message in receiver:
                await message.accept()
                peer.sending("q").detach(Error("amqp:resource-deleted", "gone"))
                peer.flush()
        assert raised.value.is_remote
        assert not raised.value.was_asked_for


# Handler


@virtual
async def test_fc_23_the_handler_form_accepts_what_returns() -> None:
    peer = Peer()
    peer.put("q", *numbers(20))
    seen: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)
        seen.append(message.body)

    async with receiver_of(peer, credit=5) as receiver:
        task = await run_until(receiver.run(handler), lambda: len(seen) == 20)
        await quiet()
        assert receiver.unsettled == 0
        await stop(task)
    assert seen == numbers(20)


@virtual
async def test_fc_23_concurrency_is_as_many_handlers_at_a_time_and_no_more() -> None:
    peer = Peer()
    peer.put("q", *numbers(30))
    busy = most = done = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal busy, most, done
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(1)
        busy -= 1
        done += 1

    async with receiver_of(peer, credit=10) as receiver:
        began = asyncio.get_running_loop().time()
        task = await run_until(receiver.run(handler, concurrency=6), lambda: done == 30)
        assert most == 6
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.2)
        await stop(task)


@pytest.mark.parametrize(
    ("on_error", "outcome"),
    [("release", "released"), ("reject", "rejected"), ("modify", "modified"), ("ignore", None)],
)
def test_fc_23_a_raising_handler_never_leaks(on_error: str, outcome: str | None) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        events = Events()
        peer.put("q", *numbers(3))
        seen: list[bytes] = []

        async def handler(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"1":
                raise ValueError("cannot do that")

        async with receiver_of(peer, on_event=events.append) as receiver:
            run = receiver.run(handler, on_error=on_error)  # type: ignore[arg-type]
            task = await run_until(run, lambda: len(seen) == 3)
            await quiet()
            expected = [(0, 0, True, "accepted"), (2, 2, True, "accepted")]
            if outcome is not None:
                expected.insert(1, (1, 1, True, outcome))
            assert peer.ranges() == expected
            assert receiver.unsettled == 0
            assert receiver.ignored_total == (1 if on_error == "ignore" else 0)
            failed = events.one(HandlerFailed)
            assert (failed.delivery_id, failed.on_error) == (1, on_error)
            assert str(failed.error) == "cannot do that"
            if on_error == "reject":
                states = [event.state for event in peer.events if hasattr(event, "state")]
                errors = [getattr(state, "error", None) for state in states]
                assert Error("amqp:internal-error", "ValueError: cannot do that") in errors
            await stop(task)

    story()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_on_error_raise_stops_the_receiver_and_propagates(concurrency: int) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.put("q", *numbers(6))
        cancelled = 0

        async def handler(message: ReceivedMessage) -> None:
            nonlocal cancelled
            if message.body == b"1":
                await asyncio.sleep(1)
                raise LookupError("stop here")
            try:
                await asyncio.sleep(0 if message.body == b"0" else 1000)
            except asyncio.CancelledError:
                cancelled += 1
                raise

        async with receiver_of(peer, credit=3) as receiver:
            with pytest.raises(LookupError, match="stop here"):
                await receiver.run(handler, concurrency=concurrency, on_error="raise")
            assert receiver.is_closed
            assert cancelled == concurrency - 1  # their messages are given back too
            released = [r for r in peer.ranges() if r[3] == "released"]
            assert sum(last - first + 1 for first, last, _, _ in released) == concurrency
            while not isinstance(await outcome_of(receiver.receive()), LinkClosed):
                pass  # what was buffered can be read

    story()


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("on_error", ["reject", "raise"])
def test_a_handler_that_waits_for_a_task_that_was_cancelled_has_failed(
    on_error: OnError, concurrency: int
) -> None:
    """Nobody has cancelled the call of `run`."""

    @virtual
    async def story() -> None:
        peer = Peer()
        events = Events()
        peer.put("q", *numbers(6))
        called = 0

        async def handler(message: ReceivedMessage) -> None:
            nonlocal called
            called += 1
            if called == 6:
                await asyncio.sleep(1)  # the other handler settles
                await receiver.close()
                return
            job = asyncio.ensure_future(asyncio.sleep(1))
            job.cancel()
            await job

        async with receiver_of(peer, credit=2, on_event=events.append) as receiver:
            running = receiver.run(handler, concurrency=concurrency, on_error=on_error)
            if on_error == "raise":
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                await running
                assert called == 6
                rejected = [r for r in peer.ranges() if r[3] == "rejected"]
                assert sum(last - first + 1 for first, last, _, _ in rejected) == 5
            assert receiver.is_closed
            failed = events.of(HandlerFailed)
            assert {type(event.error) for event in failed} == {asyncio.CancelledError}

    story()


@virtual
async def test_on_success_none_leaves_settling_to_the_handler_and_the_slot_taken() -> None:
    peer = Peer()
    peer.put("q", *numbers(4))
    kept: list[ReceivedMessage] = []

    async def handler(message: ReceivedMessage) -> None:
        kept.append(message)

    async with receiver_of(peer, credit=2) as receiver:
        task = await run_until(receiver.run(handler, on_success=None), lambda: len(kept) == 2)
        await asyncio.sleep(30)
        assert len(kept) == receiver.unsettled == 2  # freed at settlement, not at handler return
        await kept[0].accept()
        await asyncio.sleep(1)
        assert len(kept) == 3
        await receiver.settle_many(kept, ACCEPTED)
        await asyncio.sleep(1)
        await receiver.settle_many(kept, ACCEPTED)
        await stop(task)


@virtual
async def test_middleware_wraps_the_handler_the_first_outermost() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    story: list[str] = []

    async def outer(message: ReceivedMessage, handler: Handler) -> None:
        story.append("outer in")
        await handler(message)
        story.append("outer out")

    async def inner(message: ReceivedMessage, handler: Handler) -> None:
        if message.body == b"1":
            await message.reject("not wanted")
            return
        story.append("inner in")
        await handler(message)
        story.append("inner out")

    async def handler(message: ReceivedMessage) -> None:
        story.append("handler")

    async with receiver_of(peer) as receiver:
        run = receiver.run(handler, middleware=[outer, inner])
        task = await run_until(run, lambda: len(story) == 7)
        assert story == [
            *("outer in", "inner in", "handler", "inner out", "outer out"),
            *("outer in", "outer out"),
        ]
        await quiet()
        assert [outcome for *_, outcome in peer.ranges()] == ["accepted", "rejected"]
        await stop(task)


@virtual
async def test_run_returns_when_the_application_closes_and_raises_when_the_peer_does() -> None:
    peer = Peer()

    async def handler(message: ReceivedMessage) -> None:
        pass

    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=3)
        for concurrency in (1, 3):
            task = asyncio.create_task(receiver.run(handler, concurrency=concurrency))
            await asyncio.sleep(1)
            await receiver.close()
            assert await task is None
            receiver = await session.receiver("q", credit=3)
            task = asyncio.create_task(receiver.run(handler, concurrency=concurrency))
            await asyncio.sleep(1)
            peer.sending("q").detach(Error("amqp:resource-deleted", "gone"))
            peer.flush()
            with pytest.raises(LinkClosed, match="gone"):
                await task
            receiver = await session.receiver("q", credit=3)


@virtual
async def test_a_cancelled_run_gives_back_what_its_handlers_have() -> None:
    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(1000)

    for mode in ("first", "second"):
        peer = Peer()
        peer.put("q", *numbers(6))
        async with receiver_of(peer, credit=3, rcv_mode=mode) as receiver:
            task = asyncio.create_task(receiver.run(handler, concurrency=3))
            await asyncio.sleep(1)
            assert receiver.unsettled == 3
            peer.forget()
            await stop(task)
            await quiet()
            assert peer.ranges() == [(0, 2, mode == "first", "released")]
            assert receiver.unsettled == 0


@virtual
async def test_a_handler_may_close_its_own_receiver() -> None:
    peer = Peer()
    peer.put("q", *numbers(5))
    events = Events()
    seen: list[bytes] = []
    async with session_of(peer, on_event=events.append) as session:
        receiver = await session.receiver("q", credit=5)

        async def handler(message: ReceivedMessage) -> None:
            seen.append(message.body)
            await receiver.close()

        await receiver.run(handler)
        assert seen == [b"0"]  # what was buffered is the broker's again, and not handled
        failed = events.one(SettlementFailed)
        assert isinstance(failed.error, LinkClosed)


@virtual
async def test_run_checks_what_it_is_given() -> None:
    peer = Peer()

    async def handler(message: ReceivedMessage) -> None:
        pass

    async with receiver_of(peer, credit=2) as receiver:
        with pytest.raises(ValueError, match="on_error='drop', expected one of 'release'"):
            await receiver.run(handler, on_error="drop")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="on_success='ack', expected one of 'accept', None"):
            await receiver.run(handler, on_success="ack")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="concurrency=0"):
            await receiver.run(handler, concurrency=0)
        with pytest.raises(ValueError, match="3 handlers at a time with a window of 2"):
            await receiver.run(handler, concurrency=3)


# Batches


@virtual
async def test_fc_24_a_batch_on_the_wire() -> None:
    """n=10 with 3 available and time up: the frames of semantics FC-24, and the next flow."""
    peer = Peer()
    peer.put("q", *numbers(3))
    async with receiver_of(peer, credit_mode="manual") as receiver:
        peer.forget()
        batch = await receiver.receive_batch(10, timeout=5)
        assert [message.body for message in batch] == numbers(3)
        assert peer.story() == [
            "client flow dc=0 credit=10",
            "peer transfer 0",
            "peer transfer 1",
            "peer transfer 2",
            "client flow dc=3 credit=7 drain",
            "peer flow dc=10 credit=0 drain",
        ]
        await receiver.settle_many(batch, ACCEPTED)
        peer.put("q", b"3")
        peer.forget()
        (message,) = await receiver.receive_batch(1, timeout=5)
        assert peer.story()[:2] == [
            "client disposition 0..2 settled accepted",
            "client flow dc=10 credit=1",  # from where the peer is [FC-D1]
        ]
        await message.accept()


@virtual
async def test_fc_24_a_batch_returns_as_soon_as_it_is_full() -> None:
    peer = Peer()
    async with receiver_of(peer, credit_mode="manual") as receiver:
        call = asyncio.create_task(receiver.receive_batch(3, timeout=100))
        for i in range(3):
            await asyncio.sleep(1)
            assert not call.done()
            peer.put("q", b"%d" % i)
        batch = await call
        assert [message.body for message in batch] == numbers(3)
        assert receiver.credit == 0
        await receiver.settle_many(batch, ACCEPTED)
        assert await receiver.receive_batch(2, timeout=1) == []
        with pytest.raises(ValueError, match="n=0, expected 1 or more"):
            await receiver.receive_batch(0, timeout=1)


@virtual
async def test_a_batch_of_a_window_reads_what_it_brings() -> None:
    peer = Peer()
    peer.put("q", *numbers(7))
    async with receiver_of(peer, credit=5) as receiver:
        with pytest.raises(ValueError, match="a batch of 6 from a window of 5"):
            await receiver.receive_batch(6, timeout=1)
        first = await receiver.receive_batch(5, timeout=10)
        assert [message.body for message in first] == numbers(5)
        assert await receiver.receive_batch(5, timeout=3) == []  # no slot is free
        await receiver.settle_many(first, ACCEPTED)
        second = await receiver.receive_batch(5, timeout=3)
        assert [message.body for message in second] == [b"5", b"6"]
        await receiver.settle_many(second, ACCEPTED)
        assert not any(flow.endswith("drain") for flow in peer.story())


@virtual
async def test_a_cancelled_batch_has_taken_nothing() -> None:
    """At every await of it; then everything can still be read, in order, once."""
    for number in range(1, 12):
        peer = Peer()
        peer.put("q", *numbers(3))
        async with receiver_of(peer, credit_mode="manual") as receiver:
            read: list[ReceivedMessage] = []
            try:
                read += await cancelled_at(number, receiver.receive_batch(10, timeout=2))
            except Cancelled:
                assert receiver.unsettled == 0
            while len(read) < 3:
                await asyncio.sleep(1)  # a drain that was cancelled is over by then
                read += await receiver.receive_batch(10, timeout=2)
            assert [message.body for message in read] == numbers(3)
            await receiver.settle_many(read, ACCEPTED)


@virtual
async def test_a_batch_of_a_closed_receiver() -> None:
    peer = Peer()
    peer.put("q", *numbers(2))
    async with receiver_of(peer, credit=5) as receiver:
        await quiet()
        peer.sending("q").detach(Error("amqp:resource-deleted", "gone"))
        peer.flush()
        await quiet()
        assert len(await receiver.receive_batch(5, timeout=10)) == 2  # without waiting
        with pytest.raises(LinkClosed, match="gone"):
            await receiver.receive_batch(5, timeout=10)


@virtual
async def test_one_batch_at_a_time() -> None:
    peer = Peer()
    async with receiver_of(peer, credit=5) as receiver:
        call = asyncio.create_task(receiver.receive_batch(5, timeout=2))
        await quiet()
        with pytest.raises(NotPossible, match="another one is under way"):
            await receiver.receive_batch(5, timeout=2)
        assert await call == []


# Ignoring


@virtual
async def test_fc_25_ignore_frees_the_slot_without_any_disposition() -> None:
    peer = Peer()
    peer.put("q", *numbers(3))
    async with receiver_of(peer, credit=1) as receiver:
        for i in range(3):
            message = await receiver.receive()
            message.ignore()
            message.ignore()
            assert not message.settled
            assert await message.accept() is None  # it has been decided
            assert (receiver.unsettled, receiver.ignored_total) == (0, i + 1)
        await quiet()
        assert peer.ranges() == []
        assert peer.flows() == [(0, 1), (1, 1), (2, 1), (3, 1)]


@virtual
async def test_messages_of_a_run_are_not_kept_by_the_client() -> None:
    """So that one the handler forgets unsettled is noticed at once."""
    peer = Peer()
    events = Events()
    peer.put("q", *numbers(2))
    calls = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal calls
        calls += 1

    async with receiver_of(peer, credit=2, on_event=events.append) as receiver:
        task = await run_until(receiver.run(handler, on_success=None), lambda: calls == 2)
        await quiet()
        assert [event.message.delivery_id for event in events.of(MessageDropped)] == [0, 1]
        await stop(task)


@virtual
async def test_reading_a_closed_receiver_raises_each_time() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        receiver = await session.receiver("q")
        await receiver.close()
        for _ in range(2):
            error = await outcome_of(receiver.receive())
            assert isinstance(error, Closed)
            assert error.was_asked_for
        await receiver.close()  # does nothing
