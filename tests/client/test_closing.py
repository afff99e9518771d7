"""What becomes of messages and calls when a link, a session or the connection goes
[FC-19, FC-A6, FC-A7, FC-21]."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from tallymark.client import (
    ClientError,
    Closed,
    ConnectionClosed,
    ConnectionLost,
    LinkClosed,
    LinkRefused,
    NotPossible,
    Scope,
    Session,
    SessionClosed,
    TimedOut,
)
from tallymark.wire.amqp10.events import Event, LinkDetached, LinkRequested, SessionEnded
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Begin, Detach, Disposition, Flow, Transfer
from tests.support.amqp10_client import (
    Cancelled,
    cancelled_at,
    connected,
    outcome_of,
    receiver_of,
    session_of,
)
from tests.support.amqp10_peer import Peer
from tests.support.census import census
from tests.support.virtual_loop import quiet, virtual

GONE = Error("amqp:resource-deleted", "gone")

Loss = Callable[[Peer], None]


def by_detach(peer: Peer) -> None:
    peer.sending("q").detach(GONE)
    peer.flush()


def by_end(peer: Peer) -> None:
    peer.session().end(GONE)
    peer.flush()


def by_close(peer: Peer) -> None:
    peer.wire.close(GONE)
    peer.flush()


def by_cut(peer: Peer) -> None:
    peer.transport.cut(ConnectionResetError("reset by peer"))


LOSSES = [
    (by_detach, LinkClosed, Scope.LINK),
    (by_end, SessionClosed, Scope.SESSION),
    (by_close, ConnectionClosed, Scope.CONNECTION),
    (by_cut, ConnectionLost, Scope.CONNECTION),
]


@pytest.mark.parametrize(("lose", "kind", "scope"), LOSSES)
def test_fc_19_pending_settle_calls_raise_the_error(
    lose: Loss, kind: type[Closed], scope: Scope
) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.put("q", b"0", b"1", b"2", b"3")
        peer.answers_second = False
        errors: list[ClientError] = []
        async with session_of(peer) as session:
            session.on_error(errors.append)
            receiver = await session.receiver("q", credit=4, rcv_mode="second")
            pending, held = await receiver.receive(), await receiver.receive()
            call = asyncio.create_task(outcome_of(pending.accept()))
            await quiet()
            lose(peer)
            error = await call
            assert type(error) is kind
            assert error.scope is scope
            assert error.is_remote or kind is ConnectionLost
            if kind is not ConnectionLost:
                assert (error.condition, error.text) == (GONE.condition, GONE.description)
            # buffered messages can still be read; settling them raises; then reads raise
            buffered = [await receiver.receive(), await receiver.receive()]
            assert [message.body for message in buffered] == [b"2", b"3"]
            for message in (held, pending, *buffered):
                assert not message.settled
                assert type(await outcome_of(message.release())) is kind
            assert type(await outcome_of(receiver.receive())) is kind
            assert type(await outcome_of(receiver.receive())) is kind
            assert [type(error) for error in errors] == [kind]  # told once

    story()


@pytest.mark.parametrize("how", ["link", "session", "connection"])
def test_fc_19_the_application_closes_while_messages_are_buffered(how: str) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.put("q", b"0", b"1", b"2")
        errors: list[ClientError] = []
        async with connected(peer) as connection:
            session = await connection.session()
            session.on_error(errors.append)
            receiver = await session.receiver("q", credit=3)
            held = await receiver.receive()
            await (
                receiver if how == "link" else session if how == "session" else connection
            ).close()
            read = [await receiver.receive(), await receiver.receive()]
            assert [message.body for message in read] == [b"1", b"2"]
            for message in (held, *read):
                with pytest.raises(Closed, match="closed by the application") as raised:
                    await message.accept()
                assert raised.value.was_asked_for
                if how == "link":
                    assert type(raised.value) is LinkClosed
            with pytest.raises(Closed):
                await receiver.receive()
            assert [message async for message in receiver] == []
            assert errors == []
            assert peer.sent(Disposition) == []

    story()


@virtual
async def test_fc_a6_close_with_a_full_buffer_does_not_hang() -> None:
    peer = Peer()
    peer.put("q", *[b"x"] * 10)
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=5)
        await quiet()
        assert receiver.buffered == 5
        async with asyncio.timeout(1):
            await receiver.close()
        assert len([await receiver.receive() for _ in range(5)]) == 5
        with pytest.raises(LinkClosed):
            await receiver.receive()


@virtual
async def test_fc_a6_close_while_a_transfer_is_arriving() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=5)
        await quiet()
        peer.say(
            Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True),
            payload=b"\0Su\xa0\x04ab",
        )
        await quiet()
        async with asyncio.timeout(1):
            await receiver.close()
        with pytest.raises(LinkClosed):
            await receiver.receive()


@virtual
async def test_fc_a6_what_was_read_before_the_peers_detach_is_settled_first() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=2)
        await (await receiver.receive()).accept()
        await receiver.close()
        assert peer.story()[-4:] == [
            "client disposition 0..0 settled accepted",
            "client flow dc=2 credit=1",
            "client detach",
            "peer detach",
        ]


@virtual
async def test_fc_a7_transfers_between_our_detach_and_the_peers_are_buffered() -> None:
    peer = Peer()
    held: list[LinkDetached] = []

    def late(event: Event) -> bool:
        if isinstance(event, LinkDetached):
            held.append(event)
        return isinstance(event, LinkDetached)

    peer.answers = late
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=3)
        await quiet()
        closing = asyncio.create_task(receiver.close())
        await quiet()
        assert len(held) == 1
        reader = asyncio.create_task(receiver.receive())  # there may be more: it waits
        peer.forget()
        for number in range(2):
            peer.say(
                Transfer(
                    handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0,
                    settled=False,
                ),
                payload=b"\0Su\xa0\1%d" % number,
            )  # fmt: skip
        await quiet()
        assert not closing.done()
        assert (await reader).body == b"0"
        peer.answers = lambda event: False
        peer.answer(held[0])
        peer.flush()
        await closing
        message = await receiver.receive()
        assert message.body == b"1"
        with pytest.raises(LinkClosed):
            await message.accept()
        with pytest.raises(LinkClosed):
            await receiver.receive()
        assert peer.sent(Flow) == []
        assert peer.sent(Disposition) == []


@virtual
async def test_fc_21_an_error_of_the_peer_keeps_the_handle_until_its_detach_came() -> None:
    """A delivery without credit: we detach with an error, and go on reading what comes."""
    peer = Peer()
    async with session_of(peer) as session:
        receiver = await session.receiver("q", credit=1)
        await quiet()
        for number in range(3):  # two too many, and both before our detach can have arrived
            peer.say(
                Transfer(
                    handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0,
                    settled=False,
                ),
                payload=b"\0Su\xa0\1x",
            )  # fmt: skip
        await quiet()
        (detach,) = peer.sent(Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:link:transfer-limit-exceeded"
        assert (await receiver.receive()).body == b"x"
        with pytest.raises(LinkClosed, match="without credit"):
            await receiver.receive()
        async with session.receiver("q") as another:  # the session is as good as before
            assert not another.is_closed


@virtual
async def test_fc_21_a_detach_that_does_not_close_is_answered_not_implemented() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        receiver = await session.receiver("q")
        peer.sending("q").detach(closed=False)
        peer.flush()
        with pytest.raises(LinkClosed, match="the server detached link"):
            await receiver.receive()
        await quiet()
        (detach,) = peer.sent(Detach)
        assert detach.closed
        assert detach.error is not None
        assert detach.error.condition == "amqp:not-implemented"


@virtual
async def test_a_refused_attach_says_why() -> None:
    peer = Peer()
    errors: list[ClientError] = []
    async with session_of(peer) as session:
        session.on_error(errors.append)
        peer.refusal = Error("amqp:not-found", "no queue 'q'", {"queue": "q"})
        for attach in (lambda: session.receiver("q"), lambda: session.sender("q")):
            with pytest.raises(LinkRefused, match="amqp:not-found: no queue 'q'") as raised:
                await attach()
            assert raised.value.info == {"queue": "q"}
        peer.refusal = None
        async with session.receiver("q"):
            pass
        assert errors == []  # the call itself was told


@virtual
async def test_an_attach_that_is_detached_at_once_is_refused_too() -> None:
    """Some brokers grant every attach, and detach with the error behind it."""
    peer = Peer()

    def grant_and_detach(event: Event) -> bool:
        if isinstance(event, LinkRequested):
            peer.answer(event)
            event.link.detach(Error("amqp:not-found", "no such queue"))
            return True
        return False

    peer.answers = grant_and_detach
    async with session_of(peer) as session:
        with pytest.raises(LinkClosed, match="no such queue"):
            await session.receiver("q")
        with pytest.raises(LinkClosed, match="no such queue"):
            await session.sender("q")


@virtual
async def test_a_peer_that_does_not_answer_an_attach_costs_the_time_out_only() -> None:
    peer = Peer()
    peer.answers = lambda event: isinstance(event, LinkRequested)
    async with session_of(peer) as session:
        with pytest.raises(TimedOut, match=r"attach to 'q' not answered in 30\.0 s"):
            await session.receiver("q")
        await quiet()
        assert len(peer.sent(Detach)) == 1  # nothing remains
        peer.answers = lambda event: False
        async with session.receiver("other") as receiver:
            assert not receiver.is_closed


@virtual
async def test_a_peer_that_does_not_answer_a_detach_or_an_end_costs_the_time_out_only() -> None:
    peer = Peer()
    async with connected(peer, timeout=3) as connection:
        session = await connection.session()
        receiver = await session.receiver("q")
        sender = await session.sender("q")
        peer.answers = lambda event: isinstance(event, (LinkDetached, SessionEnded))
        for link in (receiver, sender):
            with pytest.raises(TimedOut, match="detach of 'q-"):
                await link.close()
            assert link.is_closed
            await link.close()
        with pytest.raises(TimedOut, match=r"end of a session not answered in 3 s"):
            await session.close()
        assert session.is_closed
        await session.close()


@virtual
async def test_closing_a_session_closes_what_is_on_it() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with connected(peer) as connection:
        async with connection.session() as session:
            receiver = await session.receiver("q")
            sender = await session.sender("t")
            peer.outcome = None
            call = asyncio.create_task(outcome_of(sender.send("x")))
            await quiet()
        error = await call
        assert isinstance(error, SessionClosed)
        assert error.in_doubt
        assert receiver.is_closed
        assert sender.is_closed
        with pytest.raises(SessionClosed):
            await session.receiver("q")
        with pytest.raises(SessionClosed):
            await session.stop()
        with pytest.raises(SessionClosed):
            session.resume()
        async with connection.session():
            pass


@virtual
async def test_a_cancelled_close_leaves_the_detach_under_way() -> None:
    peer = Peer()
    async with session_of(peer) as session:
        receiver = await session.receiver("q")
        with pytest.raises(Cancelled):
            await cancelled_at(1, receiver.close())
        await quiet()
        assert len(peer.sent(Detach)) == 1
        await receiver.close()
        with pytest.raises(LinkClosed):
            await receiver.receive()
        other = await session.sender("t")
        with pytest.raises(Cancelled):
            await cancelled_at(1, other.close())
        await other.close()
        assert other.is_closed


@virtual
async def test_cancelled_while_it_is_opened_nothing_remains() -> None:
    for number in range(1, 6):
        peer = Peer()
        async with connected(peer) as connection, connection.session() as session:
            try:
                receiver = await cancelled_at(number, open_receiver(session))
            except Cancelled:
                await quiet()
                assert len(peer.sent(Detach)) == len(peer.said(Detach)) == 1
            else:
                await receiver.close()  # type: ignore[attr-defined]
            async with session.receiver("q"):
                pass


async def open_receiver(session: Session) -> object:
    return await session.receiver("q")


@virtual
async def test_a_session_that_is_cancelled_while_it_begins_does_not_remain() -> None:
    peer = Peer()
    async with connected(peer) as connection:

        async def begin() -> Session:
            return await connection.session()

        with pytest.raises(Cancelled):
            await cancelled_at(1, begin())
        await quiet()
        assert peer.wire.sessions == []
        async with connection.session():
            assert len(peer.sent(Begin)) == 2


@virtual
async def test_the_peers_limit_of_links_is_an_error_of_the_call() -> None:
    from tallymark.wire.amqp10.limits import Limits

    peer = Peer(Limits(handle_max=0, channel_max=0, idle_time_out_ms=0))
    async with connected(peer) as connection, connection.session() as session:
        async with session.receiver("a"):
            with pytest.raises(NotPossible, match="no further receiver"):
                await session.receiver("b")
            with pytest.raises(NotPossible, match="no further sender"):
                await session.sender("b")
            with pytest.raises(NotPossible, match="no further session"):
                await connection.session()
        async with session.receiver("b"):
            pass


@virtual
async def test_a_session_the_peer_breaks_the_rules_of_is_closed_and_the_others_live() -> None:
    peer = Peer()
    errors: list[ClientError] = []
    async with connected(peer) as connection:
        session = await connection.session()
        session.on_error(errors.append)
        receiver = await session.receiver("q")
        peer.say(Detach(handle=7, closed=True))  # a handle that nobody attached
        with pytest.raises(SessionClosed) as raised:
            await receiver.receive()
        assert raised.value.condition == "amqp:session:unattached-handle"
        assert not raised.value.is_remote
        assert [type(error) for error in errors] == [SessionClosed]
        async with connection.session() as another, another.receiver("q") as again:
            assert not again.is_closed


@virtual
async def test_scoped_errors_are_told_once_per_session() -> None:
    peer = Peer()
    told: list[tuple[str, ClientError]] = []
    async with connected(peer) as connection:
        one, two = await connection.session(), await connection.session()
        one.on_error(lambda error: told.append(("one", error)))
        one.on_error(lambda error: told.append(("also one", error)))
        two.on_error(lambda error: told.append(("two", error)))
        await one.receiver("q")
        await one.sender("t")
        by_detach(peer)
        await quiet()
        assert [(who, error.scope) for who, error in told] == [
            ("one", Scope.LINK),
            ("also one", Scope.LINK),
        ]
        told.clear()
        by_cut(peer)
        await quiet()
        assert [(who, error.scope) for who, error in told] == [
            ("one", Scope.CONNECTION),
            ("also one", Scope.CONNECTION),
            ("two", Scope.CONNECTION),
        ]


@virtual
async def test_a_callback_of_on_error_that_raises_does_no_harm() -> None:
    peer = Peer()
    async with receiver_of(peer) as receiver:

        @receiver.session.on_error
        def callback(error: ClientError) -> None:
            raise RuntimeError("the application's fault")

        by_detach(peer)
        with pytest.raises(LinkClosed):
            await receiver.receive()


@pytest.mark.parametrize("lose", [by_end, by_close, by_cut])
def test_calls_that_open_something_raise_when_what_it_is_on_goes(lose: Loss) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.answers = lambda event: isinstance(event, LinkRequested)
        async with connected(peer) as connection:
            session = await connection.session()
            calls = [
                asyncio.create_task(outcome_of(session.receiver("q"))),
                asyncio.create_task(outcome_of(session.sender("q"))),
            ]
            await quiet()
            lose(peer)
            for call in calls:
                assert isinstance(await call, Closed)

    story()


@virtual
async def test_fc_a6_what_was_buffered_goes_with_its_receiver() -> None:
    """A program that opened receivers for one message each kept all that they had buffered, until
    its session ended."""
    peer = Peer()
    peer.put("q", *[b"message"] * 40)
    async with session_of(peer) as session:
        kept = await session.receiver("q", credit=5)
        await quiet()
        await kept.close()
        for _ in range(5):
            async with session.receiver("q", credit=5) as receiver:
                await (await receiver.receive()).accept()
        async with session.receiver("q", credit=1) as receiver:
            del receiver
            await quiet()
            gc.collect()
            found = census(session, leaves_out=[session.connection])
            assert found["Consumer"] == found["ReceivedMessage"] == 1
        assert (await kept.receive()).body == b"message"
