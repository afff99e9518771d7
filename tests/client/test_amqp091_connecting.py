"""Connections over AMQP 0-9-1: logging in, keeping alive, ending, coming back. In memory."""

from __future__ import annotations

import asyncio
import functools
import random
from contextlib import suppress

import pytest

from tallymark.client import (
    ACCEPTED,
    Backoff,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    Life,
    LoginRefused,
    NotPossible,
    TimedOut,
    connect,
)
from tallymark.client.arguments import parse
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
)
from tests.support.amqp091_peer import Peer091, connected091, session091
from tests.support.amqp10_client import Cancelled, cancelled_at, outcome_of
from tests.support.virtual_loop import quiet, run, turns, virtual

QUICK = Backoff(initial_ms=100, max_ms=100, jitter=0)


def test_addresses_of_091() -> None:
    plain = parse("amqp091://u:p@host/v")
    assert (plain.is_091, plain.is_tls, plain.port, plain.vhost) == (True, False, 5672, "v")
    assert str(plain) == "amqp091://host:5672"
    secure = parse("AMQPS091://host")
    assert (secure.is_091, secure.is_tls, secure.port) == (True, True, 5671)
    assert str(secure) == "amqps091://host:5671"
    assert not parse("amqp://host").is_091
    with pytest.raises(ValueError, match="expected amqp://"):
        parse("amqp090://host")


@virtual
async def test_both_sides_know_who_the_other_is() -> None:
    peer = Peer091()
    async with connected091(
        peer, container_id="me", properties={"purpose": "test"}, idle_timeout_ms=7500
    ) as connection:
        (start,) = peer.sent(ConnectionStartOk)
        assert start.client_properties["product"] == "tallymark-client"
        assert start.client_properties["purpose"] == "test"
        assert start.client_properties["connection_name"] == "me"
        assert (start.mechanism, start.response) == ("PLAIN", b"\0guest\0guest")
        (tuned,) = peer.sent(ConnectionTuneOk)
        assert (tuned.frame_max, tuned.heartbeat) == (131_072, 8)
        assert peer.sent(ConnectionOpen) == [ConnectionOpen("/")]
        assert connection.properties["broker_name"] == "Tallymark"
        assert connection.endpoint == "amqp091://peer:5672"
    assert len(peer.sent(ConnectionClose)) == len(peer.heard(ConnectionCloseOk)) == 1


@virtual
async def test_a_refused_login_is_an_error_of_its_own() -> None:
    peer = Peer091()
    peer.password = b"other"
    with pytest.raises(LoginRefused, match="ACCESS_REFUSED") as raised:
        await connect("amqp091://guest:guest@peer", opener=peer.open)
    assert raised.value.condition == "amqp:unauthorized-access"
    assert not raised.value.may_retry
    for sasl in ("EXTERNAL", "none"):
        with pytest.raises(LoginRefused, match=f"{sasl}, the server offers PLAIN, AMQPLAIN"):
            await connect("amqp091://peer", opener=peer.open, sasl=sasl)


@virtual
async def test_without_a_user_it_is_the_guest() -> None:
    peer = Peer091()
    async with connect("amqp091://peer", opener=peer.open):
        assert peer.sent(ConnectionStartOk)[0].response == b"\0guest\0guest"


@virtual
async def test_a_vhost_that_is_not_there() -> None:
    peer = Peer091()
    with pytest.raises(ConnectFailed, match="vhost none not found") as raised:
        await connect("amqp091://guest:guest@peer/none", opener=peer.open)
    assert raised.value.info == {"reply-code": 530}
    assert not raised.value.may_retry


@virtual
async def test_a_server_that_speaks_another_protocol() -> None:
    peer = Peer091()
    opening = asyncio.ensure_future(outcome_of(connect("amqp091://peer", opener=peer.open)))
    while peer.transport is None:
        await asyncio.sleep(0)
    peer.transport.send(b"AMQP\3\1\0\0")
    assert "does not speak AMQP 0-9-1" in str(await opening)


@virtual
async def test_heartbeats_keep_an_idle_connection_and_a_silent_one_is_lost() -> None:
    peer = Peer091()
    async with connected091(peer, idle_timeout_ms=10_000) as connection:
        async with connection.session() as session:
            for _ in range(10):
                await asyncio.sleep(5)
                peer.send(b"\x08\0\0\0\0\0\0\xce")
            assert connection.life is Life.OPEN
            with pytest.raises(ConnectionLost, match="nothing came from the server for 20 s"):
                await (await session.receiver(None, dynamic=True)).receive()
    assert connection.is_closed


@virtual
async def test_what_breaks_the_protocol_is_an_error() -> None:
    peer = Peer091()
    async with session091(peer) as session:
        receiver = await session.receiver(None, dynamic=True)
        peer.say(7, BasicAck(1))
        with pytest.raises(ConnectionLost, match="the server broke the protocol: 504"):
            await receiver.receive()
        (close,) = peer.sent(ConnectionClose)
        assert close.reply_code == 504


@virtual
async def test_channels_run_out() -> None:
    """Sessions and senders have one each."""
    peer = Peer091(limits=Limits(channel_max=3))
    async with connected091(peer) as connection:
        sessions = [await connection.session() for _ in range(2)]
        sender = await sessions[0].sender(None)
        with pytest.raises(NotPossible, match="3 channels are in use"):
            await connection.session()
        with pytest.raises(NotPossible, match="3 channels are in use"):
            await sessions[0].receiver("/queues/q")
        await sender.close()
        assert await connection.session()


@virtual
async def test_reconnected_it_goes_on_where_it_was() -> None:
    """And tags begin at 1 again [TX-22]."""
    peer = Peer091()
    peer.declare("q")
    peer.put("q", *[b"%d" % i for i in range(6)])
    async with session091(peer, reconnect=QUICK) as session:
        receiver = await session.receiver("/queues/q", credit=3)
        by_hand = await session.receiver("/queues/q", credit_mode="manual")
        sender = await session.sender("/queues/q")
        await (await receiver.receive()).accept()
        held = await receiver.receive()
        await quiet()
        by_hand.issue_credit(5)
        await quiet()
        assert (by_hand.buffered, by_hand.credit) == (2, 3)
        peer.rig.hold_disk = True
        doubtful = asyncio.ensure_future(outcome_of(sender.send(b"in doubt")))
        await quiet()
        peer.cut_off()
        error = await doubtful
        assert isinstance(error, ConnectionLost)
        assert error.in_doubt
        peer.rig.hold_disk = False
        assert isinstance(await outcome_of(held.accept()), ConnectionLost)
        await asyncio.sleep(1)
        assert peer.connections == 2
        await sender.send(b"last")
        seen = [await receiver.receive(timeout=5) for _ in range(3)]
        assert seen[0].delivery_id == 1
        assert [message.body for message in seen] == [b"1", b"2", b"3"]
        await receiver.settle_many(seen, ACCEPTED)
        await quiet()
        assert by_hand.buffered + by_hand.credit == 5


@virtual
async def test_a_queue_that_has_gone_meanwhile_closes_its_receiver_alone() -> None:
    peer = Peer091()
    peer.declare("q")
    async with session091(peer, reconnect=QUICK) as session:
        own = await session.receiver(None, dynamic=True)
        lost = await session.receiver("/queues/q")
        await quiet()
        peer.delete("q")
        peer.cut_off()
        await asyncio.sleep(1)
        assert lost.is_closed
        assert not own.is_closed
        async with session.sender(own.address) as sender:
            await sender.send(b"here")
        async with await own.receive(timeout=5) as message:
            assert message.body == b"here"


@virtual
async def test_a_broker_that_stops_says_close_and_is_tried_again() -> None:
    peer = Peer091()
    async with connected091(peer, reconnect=QUICK) as connection:
        peer.say(0, ConnectionClose(320, "CONNECTION_FORCED - shutdown"))
        await asyncio.sleep(1)
        assert (connection.life, peer.connections) == (Life.OPEN, 2)
        peer.say(0, ConnectionClose(530, "NOT_ALLOWED - go away"))
        await asyncio.sleep(1)
        with pytest.raises(ConnectionClosed, match="amqp:not-allowed: NOT_ALLOWED - go away"):
            await connection.session()


@pytest.mark.parametrize("number", range(1, 6))
def test_an_opening_that_is_cancelled_leaves_nothing(number: int) -> None:
    @virtual
    async def run() -> None:
        peer = Peer091()
        peer.declare("q")
        peer.put("q", b"0")
        async with session091(peer) as session:

            async def open() -> object:
                return await session.receiver("/queues/q")

            try:
                receiver = await cancelled_at(number, open())
            except Cancelled:
                await quiet()
                assert not peer.sent(BasicConsume)
                receiver = await session.receiver("/queues/q")
            async with await receiver.receive(timeout=5) as message:  # type: ignore[attr-defined]
                assert message.body == b"0"

    run()


@virtual
async def test_the_trace_has_a_line_for_each_method_and_no_password() -> None:
    lines: list[str] = []
    peer = Peer091()
    peer.declare("q")
    async with session091(peer, trace=lines.append) as session:
        async with session.sender("/queues/q") as sender:
            await sender.send(b"secret")
    assert "-> [2] basic.publish routing_key='q' mandatory=True +6" in lines
    assert not [line for line in lines if "secret" in line or "guest" in line]
    assert "<- [0] connection.open-ok" in lines


async def cut_again_and_again(draw: random.Random) -> None:
    """Messages are sent on from one queue to another while the cable is pulled at any moment: none
    is lost, none stays behind, and what comes twice had been in doubt."""
    peer = Peer091()
    peer.declare("q")
    peer.declare("out")
    bodies = [b"%d" % i for i in range(30)]
    peer.put("q", *bodies)
    doubted: list[bytes] = []
    async with session091(peer, reconnect=QUICK) as session:
        receiver = await session.receiver("/queues/q", credit=draw.choice((1, 4, 30)))
        sender = await session.sender("/queues/out")

        async def cut() -> None:
            for _ in range(5):
                await turns(draw.randrange(40))
                if peer.transport is not None and not peer.transport.is_closing():
                    peer.cut_off()
                await asyncio.sleep(draw.random())

        cutting = asyncio.create_task(cut())
        while peer.depth("q") != (0, 0) or not cutting.done():
            try:
                message = await receiver.receive(timeout=1)
                await sender.send(message.body)
                await message.accept()
            except TimedOut:
                continue
            except ConnectionLost:  # the send is in doubt, or the settlement never was heard of
                doubted.append(message.body)
            await turns(draw.randrange(3))
        await cutting
        async with session.receiver("/queues/out", credit=100) as rest:
            found = []
            with suppress(TimedOut):
                while True:
                    message = await rest.receive(timeout=1)
                    found.append(message.body)
                    await message.accept()
    assert set(found) == set(bodies)
    twice = {body for body in found if found.count(body) > 1}
    unheard = twice - set(doubted)  # accepted, and the settlement was in the cable
    assert len(unheard) <= 5


def test_cut_at_any_moment_nothing_is_lost() -> None:
    for seed in range(15):
        story = functools.partial(cut_again_and_again, random.Random(seed))
        try:
            run(story, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@virtual
async def test_the_time_may_be_without_limit() -> None:
    async with connected091(Peer091(), timeout=float("inf")) as connection:
        async with connection.session():
            pass
