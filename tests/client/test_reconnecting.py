"""A connection that comes back: what lives on, and what does not [FC-19, TX-22]."""

from __future__ import annotations

import asyncio
import random
from itertools import islice

import pytest

from tallymark.client import (
    Accepted,
    Backoff,
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LinkClosed,
    LoginRefused,
    Message,
    ReceivedMessage,
    Scope,
    SessionClosed,
    TimedOut,
)
from tallymark.client.arguments import Endpoint
from tallymark.client.connection import Life
from tallymark.client.events import ConnectionChange, ConnectionChanged, SettlementFailed
from tallymark.wire.amqp10.events import (
    CreditReceived,
    Event,
    LinkDetached,
    LinkRequested,
    SessionEnded,
    SessionRequested,
)
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Attach, Transfer
from tests.support.amqp10_client import (
    Cancelled,
    Events,
    cancelled_at,
    connected,
    outcome_of,
    receiver_of,
    session_of,
)
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual

SOON = Backoff(initial_ms=1000, jitter=0)


def cut(peer: Peer) -> None:
    peer.transport.cut(ConnectionResetError("reset by peer"))


def test_backoff_grows_to_its_maximum_and_is_random_downwards() -> None:
    plain = Backoff(initial_ms=100, factor=3, max_ms=2000, jitter=0)
    assert list(islice(plain.delays_ms(lambda: 0.9), 5)) == [100, 300, 900, 2000, 2000]
    some = Backoff(initial_ms=100, factor=2, jitter=0.5, attempts=3)
    assert list(some.delays_ms(lambda: 1.0)) == [50, 100, 200]
    assert list(some.delays_ms(lambda: 0.0)) == [100, 200, 400]
    for wrong in (
        {"initial_ms": -1},
        {"initial_ms": 5, "max_ms": 4},
        {"factor": 0.5},
        {"jitter": 2},
        {"attempts": 0},
    ):
        with pytest.raises(ValueError, match="expected"):
            Backoff(**wrong)  # type: ignore[arg-type]


@virtual
async def test_receivers_go_on_where_they_were() -> None:
    peer = Peer()
    events = Events()
    errors: list[ClientError] = []
    peer.put("q", *[b"%d" % i for i in range(4)])
    async with session_of(peer, reconnect=SOON, on_event=events.append) as session:
        session.on_error(errors.append)
        receiver = await session.receiver("q", credit=3)
        held = await receiver.receive()
        assert receiver.buffered == 2
        cut(peer)
        await quiet()
        assert receiver.buffered == 0  # the broker gives them again: not shown now
        assert (receiver.unsettled, receiver.credit) == (0, 0)
        with pytest.raises(ConnectionLost, match="reset by peer"):
            await held.accept()
        reader = asyncio.create_task(receiver.receive())
        peer.nodes["q"].messages.clear()
        peer.put("q", b"again 0", b"again 1")
        message = await reader  # it just waits
        assert message.body == b"again 0"
        await message.accept()
        await (await receiver.receive()).accept()
        assert peer.connections == 2
        assert [type(error) for error in errors] == [ConnectionLost]
        assert errors[0].scope is Scope.CONNECTION
        attaches = peer.sent(Attach)
        assert len({attach.name for attach in attaches}) == 1  # the same link again
        await quiet()
        assert receiver.unsettled == 0
    changes = [event.change for event in events.of(ConnectionChanged)]
    assert changes == [
        ConnectionChange.OPENED,
        ConnectionChange.LOST,
        ConnectionChange.RETRYING,
        ConnectionChange.RESTORED,
        ConnectionChange.CLOSED,
    ]


@virtual
async def test_tx_22_tags_begin_anew_and_late_settles_hit_nothing() -> None:
    peer = Peer()
    peer.put("q", b"0")
    async with receiver_of(peer, reconnect=SOON) as receiver:
        old = await receiver.receive()
        cut(peer)
        await asyncio.sleep(2)
        peer.put("q", b"1")
        new = await receiver.receive()
        assert old.delivery_id == new.delivery_id == 0
        peer.forget()
        assert isinstance(await outcome_of(old.accept()), ConnectionLost)
        old.ignore()
        del old
        await quiet()
        assert peer.ranges() == []
        assert receiver.unsettled == 1
        assert await new.accept() == Accepted()
        await quiet()
        assert peer.ranges() == [(0, 0, True, "accepted")]


@virtual
async def test_sends_that_wait_go_out_and_those_that_left_are_in_doubt() -> None:
    peer = Peer()
    peer.credit = 1
    peer.outcome = None
    async with session_of(peer, reconnect=SOON) as session:
        sender = await session.sender("t")
        calls = [asyncio.create_task(outcome_of(sender.send(b"%d" % i))) for i in range(3)]
        await quiet()
        cut(peer)
        error = await calls[0]
        assert isinstance(error, ConnectionLost)
        assert error.in_doubt
        calls.append(asyncio.create_task(outcome_of(sender.send(b"3"))))  # while it is away
        await quiet()
        peer.credit = 10
        peer.outcome = Accepted()
        assert [await call for call in calls[1:]] == [Accepted()] * 3
        bodies = [Message.parse(data).body for data in peer.received]
        assert bodies == [b"0", b"1", b"2", b"3"]
        assert [t.delivery_id for t in peer.sent(Transfer)] == [0, 0, 1, 2]


@virtual
async def test_a_handler_form_goes_on_and_reports_what_it_could_not_settle() -> None:
    peer = Peer()
    events = Events()
    peer.put("q", b"0")
    seen: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0":
            cut(peer)
            await asyncio.sleep(5)

    async with receiver_of(peer, reconnect=SOON, on_event=events.append) as receiver:
        task = asyncio.create_task(receiver.run(handler))
        await asyncio.sleep(3)
        peer.put("q", b"again 0")
        await asyncio.sleep(10)
        assert seen == [b"0", b"again 0"]
        failed = events.one(SettlementFailed)
        assert isinstance(failed.error, ConnectionLost)
        assert peer.ranges() == [(0, 0, True, "accepted")]
        task.cancel()
        await asyncio.wait([task])


@virtual
async def test_credit_by_hand_is_issued_again() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1")
    async with receiver_of(peer, credit_mode="manual", reconnect=SOON) as receiver:
        receiver.issue_credit(5)
        await (await receiver.receive()).accept()
        await quiet()
        assert (receiver.credit, receiver.buffered) == (3, 1)
        cut(peer)
        await asyncio.sleep(2)
        assert (receiver.credit, receiver.buffered) == (4, 0)  # what was not read comes again
        assert peer.flows()[-1] == (0, 4)


@pytest.mark.parametrize("before", [0, 2])
def test_a_batch_asked_for_while_the_connection_is_away_gets_its_credit_later(before: int) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        async with receiver_of(peer, credit_mode="manual", reconnect=SOON) as receiver:
            if before:
                receiver.issue_credit(before)
            cut(peer)
            await quiet()
            call = asyncio.create_task(receiver.receive_batch(3, timeout=None))
            await asyncio.sleep(2)
            assert receiver.credit == 3
            peer.put("q", b"0", b"1", b"2", b"3")
            batch = await call
            assert [message.body for message in batch] == [b"0", b"1", b"2"]
            await receiver.settle_many(batch, "accept")

    story()


@virtual
async def test_a_link_the_peer_does_not_want_any_more_is_closed_and_the_others_live() -> None:
    peer = Peer()
    errors: list[ClientError] = []

    def deleted(event: Event) -> bool:
        if isinstance(event, LinkRequested) and peer.connections == 2:
            terminus = event.attach.target if not event.link.is_sender else event.attach.source
            if getattr(terminus, "address", "").startswith("gone"):
                event.link.refuse(Error("amqp:not-found", "deleted meanwhile"))
                return True
        return False

    peer.answers = deleted
    async with session_of(peer, reconnect=SOON) as session:
        session.on_error(errors.append)
        gone = await session.receiver("gone")
        gone_too = await session.sender("gone too")
        kept = await session.receiver("kept")
        sender = await session.sender("t")
        cut(peer)
        with pytest.raises(LinkClosed, match="deleted meanwhile"):
            await gone.receive()
        with pytest.raises(LinkClosed, match="deleted meanwhile"):
            await gone_too.send("x")
        peer.put("kept", b"0")
        async with await kept.receive() as message:
            assert message.body == b"0"
        assert await sender.send("y") == Accepted()
        scopes = [error.scope for error in errors]
        assert scopes == [Scope.CONNECTION, Scope.LINK, Scope.LINK]


@virtual
async def test_a_session_the_peer_does_not_want_any_more() -> None:
    peer = Peer()

    asked: list[Event] = []

    def refuse(event: Event) -> bool:
        if isinstance(event, SessionRequested):
            asked.append(event)
            if len(asked) == 3:  # the first one, again
                event.session.end(Error("amqp:resource-limit-exceeded", "enough"))
                return True
        return False

    peer.answers = refuse
    async with connected(peer, reconnect=SOON) as connection:
        first, second = await connection.session(), await connection.session()
        a, b = await first.receiver("a"), await second.receiver("b")
        cut(peer)
        with pytest.raises(SessionClosed, match="enough"):
            await a.receive()
        peer.put("b", b"0")
        await (await b.receive()).accept()


@virtual
async def test_a_session_that_goes_while_its_links_are_restored_takes_nothing_else_along() -> None:
    peer = Peer()

    def end(event: Event) -> bool:
        is_again = peer.connections == 2 and isinstance(event, LinkRequested)
        if is_again and getattr(event.attach.source, "address", "") == "a":
            event.link.session.end(Error("amqp:resource-limit-exceeded", "enough"))
            return True
        return False

    peer.answers = end
    async with connected(peer, reconnect=SOON) as connection:
        first, second = await connection.session(), await connection.session()
        a, b = await first.receiver("a"), await second.receiver("b")
        cut(peer)
        with pytest.raises(SessionClosed, match="enough"):
            await a.receive()
        peer.put("b", b"0")
        await (await b.receive()).accept()
        assert not connection.is_closed


@virtual
async def test_a_broker_that_is_away_for_a_while_is_tried_again_and_again() -> None:
    peer = Peer()
    events = Events()
    async with receiver_of(peer, reconnect=SOON, on_event=events.append) as receiver:
        cut(peer)
        await quiet()
        peer.refusing = ConnectionRefusedError("nobody listens")
        await asyncio.sleep(100)
        peer.refusing = None
        peer.put("q", b"0")
        await (await receiver.receive(timeout=60)).accept()
        delays = [
            event.delay_ms
            for event in events.of(ConnectionChanged)
            if event.change is ConnectionChange.RETRYING
        ]
        assert delays == [1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]


@pytest.mark.parametrize("raised", [UnicodeError("label empty or too long"), EOFError()])
def test_an_attempt_fails_whatever_it_raises(raised: Exception) -> None:
    """As for a host that is no name, and from an opener that goes by way of a proxy."""

    @virtual
    async def story() -> None:
        peer = Peer()
        events = Events()
        async with receiver_of(peer, reconnect=SOON, on_event=events.append) as receiver:
            peer.refusing = raised
            cut(peer)
            await asyncio.sleep(2)
            peer.refusing = None
            peer.put("q", b"0")
            await (await receiver.receive(timeout=30)).accept()
        reasons = [event.reason for event in events.of(ConnectionChanged)]
        assert f"amqp://peer:5672: {str(raised) or 'EOFError'}" in reasons

    story()


@virtual
async def test_it_gives_up_after_so_many_attempts() -> None:
    peer = Peer()
    errors: list[ClientError] = []
    backoff = Backoff(initial_ms=100, attempts=3)
    async with connected(peer, reconnect=backoff) as connection:
        session = await connection.session()
        session.on_error(errors.append)
        receiver = await session.receiver("q")
        sender = await session.sender("t")
        peer.refusing = OSError("no route")
        cut(peer)
        await quiet()
        sending = asyncio.create_task(outcome_of(sender.send("x")))
        waiting = asyncio.create_task(outcome_of(connection.session()))
        with pytest.raises(ConnectFailed, match="no route"):
            await receiver.receive()
        for call in (sending, waiting):
            assert isinstance(await call, ConnectFailed)
        assert connection.is_closed
        assert [type(error) for error in errors] == [ConnectionLost, ConnectFailed]


@virtual
async def test_what_trying_again_cannot_help_ends_it() -> None:
    peer = Peer()
    async with receiver_of(peer, reconnect=SOON) as receiver:
        peer.sasl_code = 1
        cut(peer)
        with pytest.raises(LoginRefused):
            await receiver.receive()
    peer = Peer()
    async with receiver_of(peer, reconnect=SOON) as receiver:
        peer.wire.close(Error("amqp:unauthorized-access", "you are not wanted"))
        peer.flush()
        with pytest.raises(ConnectionClosed, match="not wanted"):
            await receiver.receive()
        assert peer.connections == 1


@virtual
async def test_a_broker_that_is_stopped_says_close_and_that_is_a_reason_to_come_back() -> None:
    peer = Peer()
    async with receiver_of(peer, reconnect=SOON) as receiver:
        peer.wire.close(Error("amqp:connection:forced", "going down"))
        peer.flush()
        await asyncio.sleep(2)
        peer.put("q", b"0")
        await (await receiver.receive()).accept()
        assert peer.connections == 2


@virtual
async def test_calls_made_while_it_is_away_wait() -> None:
    peer = Peer()
    async with connected(peer, reconnect=SOON) as connection:
        session = await connection.session()
        cut(peer)
        await quiet()
        calls = [
            asyncio.create_task(outcome_of(connection.session())),
            asyncio.create_task(outcome_of(session.receiver("q"))),
            asyncio.create_task(outcome_of(session.sender("q"))),
        ]
        for call in calls:
            assert not isinstance(await call, Exception)
        assert peer.connections == 2


@virtual
async def test_a_wait_whose_time_is_up_in_the_turn_in_which_the_connection_is_back() -> None:
    peer = Peer()
    async with connected(peer, reconnect=SOON) as connection:
        cut(peer)
        await quiet()
        call = asyncio.create_task(connection.ready(0.5))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + 0.5, connection._wake)  # behind the call's own timer
        assert isinstance(await outcome_of(call), TimedOut)


@virtual
async def test_closed_while_it_is_away() -> None:
    for what in ("receiver", "sender", "session", "connection"):
        peer = Peer()
        async with connected(peer, reconnect=SOON) as connection:
            session = await connection.session()
            links = {"receiver": await session.receiver("q"), "sender": await session.sender("q")}
            peer.refusing = OSError("away")
            cut(peer)
            await asyncio.sleep(2)
            peer.forget()
            await {**links, "session": session, "connection": connection}[what].close()
            peer.refusing = None
            await asyncio.sleep(20)
            expected = {"receiver": 1, "sender": 1, "session": 0, "connection": 0}[what]
            assert len(peer.sent(Attach)) == expected


@virtual
async def test_a_close_that_is_cancelled_while_it_is_away_closes_it() -> None:
    peer = Peer()
    async with connected(peer, reconnect=SOON) as connection:
        receiver = await (await connection.session()).receiver("q")
        cut(peer)
        await quiet()
        reader = asyncio.create_task(receiver.receive(timeout=60))
        with pytest.raises(Cancelled):
            await cancelled_at(1, connection.close())
        assert connection.life is Life.CLOSED
        assert isinstance(await outcome_of(reader), ConnectionClosed)
        assert peer.connections == 1


@virtual
async def test_lost_again_while_it_is_restored() -> None:
    peer = Peer()

    def cut_at_attach(event: Event) -> bool:
        if isinstance(event, LinkRequested) and peer.connections in (2, 3):
            cut(peer)
            return True
        return False

    peer.answers = cut_at_attach
    async with receiver_of(peer, reconnect=SOON) as receiver:
        cut(peer)
        await asyncio.sleep(30)
        peer.put("q", b"0")
        await (await receiver.receive(timeout=30)).accept()
        assert peer.connections == 4


@virtual
async def test_a_peer_that_does_not_answer_while_it_is_restored() -> None:
    peer = Peer()
    peer.answers = lambda event: isinstance(event, LinkRequested) and peer.connections == 2
    async with receiver_of(peer, reconnect=SOON) as receiver:
        cut(peer)
        await asyncio.sleep(60)
        peer.put("q", b"0")
        await (await receiver.receive(timeout=60)).accept()
        assert peer.connections == 3


@virtual
async def test_another_address_takes_over() -> None:
    one, two = Peer(), Peer()

    async def opener(endpoint: Endpoint, factory):  # type: ignore[no-untyped-def]
        return await {"one": one, "two": two}[endpoint.host].open(endpoint, factory)

    from tallymark.client import connect

    async with (
        connect(["amqp://one", "amqp://two"], opener=opener, reconnect=SOON) as connection,
        connection.session() as session,
    ):
        receiver = await session.receiver("q")
        one.refusing = OSError("gone")
        cut(one)
        two.put("q", b"0")
        await (await receiver.receive()).accept()
        assert connection.endpoint == "amqp://two:5672"


@virtual
async def test_cut_at_any_moment_nothing_is_lost_and_nothing_settled_comes_again() -> None:
    """A broker that keeps what is not settled; the cable is pulled 30 times. At least once: what
    was settled in the moment of the cut may come again, nothing else."""
    chance = random.Random(5)
    peer = Peer()
    store = {i: b"%d" % i for i in range(300)}
    doubles = 0

    def refill() -> None:
        peer.nodes["q"].messages.clear()
        peer.put("q", *store.values())

    def settled(event: Event) -> bool:
        if isinstance(event, LinkRequested):
            refill()
        return False

    peer.put("q")
    peer.answers = settled
    seen: set[int] = set()
    async with receiver_of(peer, credit=10, reconnect=Backoff(initial_ms=10)) as receiver:

        async def puller() -> None:
            for _ in range(30):
                await asyncio.sleep(chance.random())
                cut(peer)
                await asyncio.sleep(0.5)

        pulling = asyncio.create_task(puller())
        while store:
            message = await receiver.receive()
            number = int(message.body)
            await asyncio.sleep(chance.random() * 0.2)
            if await outcome_of(message.accept()) == Accepted():
                await quiet()
                if not message.settled:
                    continue
                doubles += number in seen
                seen.add(number)
                store.pop(number, None)
        await pulling
    assert seen == set(range(300))
    assert doubles <= 31


@virtual
async def test_a_close_that_waits_for_its_answer_when_the_connection_breaks_is_done() -> None:
    for what in ("receiver", "sender", "session"):
        peer = Peer()
        peer.answers = lambda event: isinstance(event, (LinkDetached, SessionEnded))
        async with connected(peer, reconnect=SOON) as connection:
            session = await connection.session()
            parts = {
                "receiver": await session.receiver("q"),
                "sender": await session.sender("q"),
                "session": session,
            }
            closing = asyncio.create_task(parts[what].close())
            await quiet()
            assert not closing.done()
            peer.answers = lambda event: False
            cut(peer)
            async with asyncio.timeout(1):
                await closing
            await asyncio.sleep(5)
            assert parts[what].is_closed


@virtual
async def test_a_batch_that_is_gathered_or_drained_when_the_connection_breaks() -> None:
    """Gathering goes on behind the break; a drain is over with it. Either way nothing comes
    unasked afterwards."""
    for moment in ("gathering", "draining", "away at the end"):
        peer = Peer()
        peer.put("q", b"0", b"1")
        async with receiver_of(peer, credit_mode="manual", reconnect=SOON) as receiver:
            if moment == "draining":
                peer.answers = lambda event: isinstance(event, CreditReceived) and event.drain
            call = asyncio.create_task(receiver.receive_batch(10, timeout=5))
            await asyncio.sleep({"gathering": 1, "draining": 5.5, "away at the end": 4.5}[moment])
            if moment == "away at the end":
                peer.refusing = OSError("away")
            cut(peer)
            await quiet()
            peer.nodes["q"].messages.clear()
            peer.put("q", b"again 0", b"again 1")
            batch = await call
            assert len(batch) == (2 if moment == "gathering" else 0)
            peer.answers = lambda event: False
            peer.refusing = None
            await asyncio.sleep(10)
            if batch:
                assert [message.body for message in batch] == [b"again 0", b"again 1"]
            assert (receiver.credit, receiver.buffered) == (0, 0)
            rest = await receiver.receive_batch(2 - len(batch) or 1, timeout=5)
            assert len(rest) == 2 - len(batch)
            await receiver.settle_many(batch + rest, Accepted())
