"""The broker ends a session, or a link, because its consumer is too slow [SC-9, SC-10]."""

from __future__ import annotations

import asyncio

import pytest

from tallymark.client import (
    Backoff,
    ClientError,
    Closed,
    LinkClosed,
    MessageRejected,
    Rejected,
    Scope,
    SessionClosed,
)
from tallymark.client.events import ConnectionChange, ConnectionChanged
from tallymark.wire.amqp10.outcomes import Error
from tests.support.amqp10_client import Events, connected, outcome_of, session_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual

SLOW = Error("amqp:resource-limit-exceeded", "Consuming too slow.")


def too_slow(peer: Peer, scope: Scope) -> None:
    """What the broker does."""
    if scope is Scope.SESSION:
        peer.session().end(SLOW)
    else:
        peer.sending("q").detach(SLOW)
    peer.flush()


@pytest.mark.parametrize(
    ("scope", "kind"), [(Scope.SESSION, SessionClosed), (Scope.LINK, LinkClosed)]
)
def test_sc_a2_second_pending_settle_calls_and_receive_raise_506(
    scope: Scope, kind: type[Closed]
) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        peer.put("q", b"0", b"1")
        peer.answers_second = False
        errors: list[ClientError] = []
        async with session_of(peer) as session:
            session.on_error(errors.append)
            receiver = await session.receiver("q", credit=2, rcv_mode="second")
            held, other = await receiver.receive(), await receiver.receive()
            settling = asyncio.create_task(outcome_of(held.accept()))
            receiving = asyncio.create_task(outcome_of(receiver.receive()))
            await quiet()
            too_slow(peer, scope)
            for error in (await settling, await receiving, await outcome_of(other.accept())):
                assert type(error) is kind
                assert (error.code, error.scope) == (506, scope)
                assert str(error) == "506 amqp:resource-limit-exceeded: Consuming too slow."
            assert [error.code for error in errors] == [506]
            assert session.is_closed == (scope is Scope.SESSION)

    story()


def test_sc_10_it_starts_no_reconnect_and_a_later_one_does_not_bring_the_session_back() -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        events = Events()
        backoff = Backoff(initial_ms=1000, jitter=0)
        async with connected(peer, reconnect=backoff, on_event=events.append) as connection:
            slow = await connection.session()
            receiver = await slow.receiver("q")
            too_slow(peer, Scope.SESSION)
            assert (await outcome_of(receiver.receive())).code == 506
            assert not connection.is_closed
            changes = [one.change for one in events.of(ConnectionChanged)]
            assert changes == [ConnectionChange.OPENED]
            session = await connection.session()  # at once
            again = await session.receiver("q")
            peer.transport.cut(ConnectionResetError("reset by peer"))
            reading = asyncio.create_task(again.receive())
            await asyncio.sleep(2)
            peer.put("q", b"0")
            peer.flush()
            assert (await reading).body == b"0"
            assert slow.is_closed
            assert len(peer.wire.sessions) == 1
            with pytest.raises(SessionClosed):
                await slow.receiver("q")

    story()


@pytest.mark.parametrize(
    ("condition", "info", "code"),
    [
        ("amqp:not-found", {}, 404),
        ("amqp:resource-limit-exceeded", {}, 506),
        ("amqp:not-found", {"reply-code": 312}, 312),
        ("com.example:anything", {}, 0),
        ("", {}, 0),
    ],
)
def test_the_code_is_the_peers_or_what_the_condition_stands_for(
    condition: str, info: dict[object, object], code: int
) -> None:
    error = MessageRejected("text", Rejected(), condition=condition, info=info)
    assert error.code == code
    assert error.copied().code == code
