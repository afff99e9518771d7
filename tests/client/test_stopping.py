"""The dispatcher's stop, which rollback will stand on [TX-18, TX-20, TX-21, TX-25]."""

from __future__ import annotations

import asyncio

import pytest

from tallymark.client import ReceivedMessage, Receiver
from tests.support.amqp10_client import Cancelled, cancelled_at, receiver_of, session_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual


@virtual
async def test_tx_21_a_stop_reaches_readers_that_wait_and_none_keeps_a_message() -> None:
    peer = Peer()
    async with receiver_of(peer, credit=5) as receiver:
        readers = [asyncio.create_task(receiver.receive()) for _ in range(3)]
        await quiet()
        await receiver.session.stop()
        peer.put("q", b"0", b"1", b"2")
        await asyncio.sleep(100)
        assert not any(reader.done() for reader in readers)
        assert (receiver.buffered, receiver.unsettled) == (3, 0)
        with pytest.raises(TimeoutError):
            await receiver.receive(timeout=1)
        assert await receiver.receive_batch(2, timeout=1) == []
        receiver.session.resume()
        messages = [await reader for reader in readers]
        assert [message.body for message in messages] == [b"0", b"1", b"2"]
        for message in messages:
            await message.accept()


@virtual
async def test_tx_18_a_reader_woken_before_the_stop_takes_nothing_after_it() -> None:
    """It was woken with nothing in its hands, and is decided about when it runs."""
    peer = Peer()
    async with receiver_of(peer) as receiver:
        reader = asyncio.create_task(receiver.receive())
        await quiet()
        peer.put("q", b"0")
        while not receiver.buffered:
            await asyncio.sleep(0)
        await receiver.session.stop()  # the reader's wake-up is on its way
        await asyncio.sleep(5)
        assert not reader.done()
        receiver.session.resume()
        async with await reader as message:
            assert message.body == b"0"


@virtual
async def test_tx_25_stop_waits_for_handlers_in_progress_and_no_call_starts_after_it() -> None:
    peer = Peer()
    peer.put("q", *[b"%d" % i for i in range(10)])
    story: list[str] = []

    async def handler(message: ReceivedMessage) -> None:
        story.append(f"begin {message.body.decode()}")
        await asyncio.sleep(3)
        story.append(f"end {message.body.decode()}")

    async with receiver_of(peer, credit=4) as receiver:
        task = asyncio.create_task(receiver.run(handler, concurrency=2))
        await asyncio.sleep(1)
        await receiver.session.stop()
        assert sorted(story) == ["begin 0", "begin 1", "end 0", "end 1"]
        await asyncio.sleep(100)
        assert len(story) == 4
        receiver.session.resume()
        await asyncio.sleep(1)
        assert story[4:] == ["begin 2", "begin 3"]
        task.cancel()
        await asyncio.wait([task])


@virtual
async def test_tx_20_a_stop_from_inside_a_handler_does_not_wait_for_itself() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1", b"2")
    stopped: list[bytes] = []
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=3)

        async def handler(message: ReceivedMessage) -> None:
            async with asyncio.timeout(5):
                await session.stop()
            stopped.append(message.body)
            session.resume()

        task = asyncio.create_task(receiver.run(handler))
        await asyncio.sleep(1)
        assert stopped == [b"0", b"1", b"2"]
        task.cancel()
        await asyncio.wait([task])


@virtual
async def test_tx_20_two_handlers_that_stop_at_once_do_not_wait_for_each_other() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1", b"2", b"3")
    stopped: list[bytes] = []
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=4)

        async def handler(message: ReceivedMessage) -> None:
            await asyncio.sleep(1)
            await session.stop()
            stopped.append(message.body)

        task = asyncio.create_task(receiver.run(handler, concurrency=2))
        await asyncio.sleep(10)
        assert sorted(stopped) == [b"0", b"1"]
        task.cancel()
        await asyncio.wait([task])


@virtual
async def test_tx_20_a_stop_from_another_task_waits_and_ends_with_the_handler() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with session_of(peer) as session:
        receiver = await session.receiver("q")

        async def handler(message: ReceivedMessage) -> None:
            await asyncio.sleep(7)
            raise ValueError("whatever it does")

        task = asyncio.create_task(receiver.run(handler, on_error="reject"))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await session.stop()
        assert asyncio.get_running_loop().time() - began == pytest.approx(6, abs=0.1)
        assert peer.ranges() == [] or peer.ranges()[0][3] == "rejected"
        task.cancel()
        await asyncio.wait([task])


@virtual
async def test_a_cancelled_stop_leaves_the_session_stopping() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    async with receiver_of(peer, credit=2) as receiver:

        async def handler(message: ReceivedMessage) -> None:
            await asyncio.sleep(7)

        task = asyncio.create_task(receiver.run(handler))
        await asyncio.sleep(1)
        with pytest.raises(Cancelled):
            await cancelled_at(1, receiver.session.stop())
        await asyncio.sleep(100)
        assert receiver.buffered == 1  # nothing is handed over until resume
        receiver.session.resume()
        await asyncio.sleep(10)
        assert receiver.buffered == 0
        task.cancel()
        await asyncio.wait([task])


@virtual
async def test_a_stop_during_which_the_session_goes_ends() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer) as receiver:

        async def handler(message: ReceivedMessage) -> None:
            await asyncio.sleep(1000)

        task = asyncio.create_task(run_quietly(receiver, handler))
        await asyncio.sleep(1)
        stopping = asyncio.create_task(receiver.session.stop())
        await asyncio.sleep(1)
        peer.session().end()
        peer.flush()
        async with asyncio.timeout(1):
            await stopping
        task.cancel()
        await asyncio.wait([task])


async def run_quietly(receiver: Receiver, handler):  # type: ignore[no-untyped-def]
    await receiver.run(handler)
