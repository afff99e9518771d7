"""Connecting, logging in, keeping alive, closing."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
import traceback

import pytest

from tallymark.client import (
    Closed,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    Life,
    LoginRefused,
    connect,
)
from tallymark.client.arguments import Endpoint, parse
from tallymark.client.events import CallbackFailed, ConnectionChange, ConnectionChanged, Event
from tallymark.client.events import Event as ClientEvent
from tallymark.wire.amqp10.events import CloseReceived, OpenReceived, SaslReceived
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Close, Open
from tests.support.amqp10_client import Cancelled, Events, cancelled_at, connected, outcome_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual


@virtual
async def test_both_sides_know_who_the_other_is() -> None:
    peer = Peer()
    async with connected(
        peer, container_id="me", properties={"purpose": "test"}, idle_timeout_ms=7000
    ) as connection:
        (opened,) = peer.sent(Open)
        assert (opened.container_id, opened.hostname) == ("me", "peer")
        assert opened.idle_time_out == 7000
        assert opened.properties is not None
        assert opened.properties["product"] == "tallymark-client"
        assert opened.properties["purpose"] == "test"
        assert connection.container_id == "peer"
        assert connection.properties == {"product": "peer"}
        assert connection.endpoint == "amqp://peer:5672"
        assert connection.life is Life.OPEN
    assert connection.life is Life.CLOSED
    assert connection.is_closed


@pytest.mark.parametrize(
    ("url", "sasl", "login"),
    [
        ("amqp://peer", None, ("ANONYMOUS", None)),
        ("amqp://u:p%40ss@peer", None, ("PLAIN", b"\0u\0p@ss")),
        ("amqp://u@peer", None, ("PLAIN", b"\0u\0")),
        ("amqp://u:p@peer", "ANONYMOUS", ("ANONYMOUS", None)),
        ("amqp://peer", "EXTERNAL", ("EXTERNAL", b"")),
        ("amqp://u:p@peer", "none", None),
    ],
)
def test_the_sasl_mechanism(url: str, sasl: str | None, login: object) -> None:
    @virtual
    async def story() -> None:
        peer = Peer()
        async with connect(url, sasl=sasl, opener=peer.open):  # type: ignore[arg-type]
            assert peer.login == login

    story()


@virtual
async def test_a_refused_login_is_an_error_of_its_own() -> None:
    peer = Peer()
    peer.sasl_code = 1
    with pytest.raises(LoginRefused, match="login as 'u' is refused") as raised:
        await connect("amqp://u:secret@peer", opener=peer.open)
    assert not raised.value.may_retry
    assert "secret" not in str(raised.value)
    peer.sasl_code = 4
    with pytest.raises(ConnectFailed, match=r"sasl code 4") as failed:
        await connect("amqp://u:secret@peer", opener=peer.open)
    assert failed.value.may_retry


@virtual
async def test_a_mechanism_the_peer_does_not_offer() -> None:
    peer = Peer()
    peer.mechanisms = ("PLAIN",)
    with pytest.raises(LoginRefused, match="SASL mechanism ANONYMOUS, the server offers PLAIN"):
        await connect("amqp://peer", opener=peer.open)


@virtual
async def test_a_vhost_is_named_as_rabbitmq_wants_it() -> None:
    peer = Peer()
    async with connect("amqp://peer/a%2Fb", opener=peer.open):
        assert peer.sent(Open)[-1].hostname == "vhost:a/b"
    async with connect("amqp://peer/a", hostname="h", opener=peer.open):
        assert peer.sent(Open)[-1].hostname == "h"


@virtual
async def test_a_close_instead_of_an_open_says_why() -> None:
    peer = Peer()

    def refuse(event: object) -> bool:
        if isinstance(event, OpenReceived):
            peer.wire.close(Error("amqp:not-allowed", "vhost 'x' not found"))
        return isinstance(event, OpenReceived)

    peer.answers = refuse
    with pytest.raises(ConnectFailed, match="amqp:not-allowed: vhost 'x' not found") as raised:
        await connect("amqp://peer/x", opener=peer.open)
    assert not raised.value.may_retry


@virtual
async def test_who_hangs_up_on_an_open_may_mean_the_virtual_host() -> None:
    """RabbitMQ and Tallymark say nothing where it is not there."""
    peer = Peer()

    def hang_up(event: object) -> bool:
        if isinstance(event, OpenReceived):
            peer.transport.cut()
        return isinstance(event, OpenReceived)

    peer.answers = hang_up
    with pytest.raises(ConnectFailed, match="is there a virtual host 'x', and may"):
        await connect("amqp://peer/x", opener=peer.open)


@virtual
async def test_nobody_there() -> None:
    peer = Peer()
    peer.refusing = ConnectionRefusedError("nobody listens")
    with pytest.raises(ConnectFailed, match="amqp://peer:5672: nobody listens"):
        await connect("amqp://peer", opener=peer.open)


@pytest.mark.parametrize("silent", [SaslReceived, OpenReceived])
def test_a_peer_that_does_not_answer_is_left_in_time(silent: type) -> None:
    @virtual
    async def story() -> None:
        peer = Peer(Limits(idle_time_out_ms=0, handshake_timeout_ms=1_000_000))
        peer.answers = lambda event: isinstance(event, silent)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectFailed):
            await connect("amqp://peer", timeout=3, opener=peer.open)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.1)
        await quiet()
        assert peer.transport.is_closing()

    story()


@virtual
async def test_the_time_may_be_without_limit() -> None:
    async with connected(Peer(), timeout=float("inf")) as connection, connection.session() as one:
        async with one.receiver("q") as receiver:
            assert not receiver.is_closed


@virtual
async def test_several_addresses_are_tried_in_turn() -> None:
    bad, good = Peer(), Peer()
    bad.refusing = OSError("no route")

    async def opener(endpoint: Endpoint, factory):  # type: ignore[no-untyped-def]
        return await {"bad": bad, "good": good}[endpoint.host].open(endpoint, factory)

    async with connect(["amqp://bad", "amqp://good"], opener=opener) as connection:
        assert connection.endpoint == "amqp://good:5672"
    with pytest.raises(ConnectFailed, match="bad:1: no route"):
        await connect(["amqp://bad", "amqp://bad:1"], opener=opener)
    with pytest.raises(ValueError, match="no url"):
        connect([])


@virtual
async def test_cancelled_while_it_connects_nothing_remains() -> None:
    for number in range(1, 8):
        peer = Peer()

        async def open_it(peer: Peer = peer) -> object:
            return await connect("amqp://peer", opener=peer.open)

        try:
            connection = await cancelled_at(number, open_it())
        except Cancelled:
            await quiet()
            assert not peer.connections or peer.transport.is_closing()
        else:
            await connection.close()  # type: ignore[attr-defined]


@virtual
async def test_heartbeats_keep_an_idle_connection() -> None:
    peer = Peer(Limits(idle_time_out_ms=10_000))
    async with connected(peer, idle_timeout_ms=5_000) as connection:
        await asyncio.sleep(1000)
        assert connection.life is Life.OPEN


@virtual
async def test_a_silent_peer_is_lost_after_twice_the_idle_time_out() -> None:
    peer = Peer()
    events = Events()
    async with connected(peer, idle_timeout_ms=5_000, on_event=events.append) as connection:
        session = await connection.session()
        began = asyncio.get_running_loop().time()
        peer.is_silent = True
        peer._arm()
        with pytest.raises(ConnectionLost):
            await _lost(session)
        assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.1)
        assert events.of(ConnectionChanged)[-1].change is ConnectionChange.CLOSED


async def _lost(session):  # type: ignore[no-untyped-def]
    told: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    session.on_error(told.set_result)
    raise await told


@virtual
async def test_closing_is_clean_on_the_wire_and_the_second_time_nothing() -> None:
    peer = Peer()
    events = Events()
    async with connected(peer, on_event=events.append) as connection:
        await connection.session()
        await asyncio.gather(connection.close(), connection.close())
        await connection.close()
        assert len(peer.sent(Close)) == len(peer.said(Close)) == 1
        with pytest.raises(ConnectionClosed, match="closed by the application"):
            await connection.session()
    changes = [event.change for event in events.of(ConnectionChanged)]
    assert changes == [ConnectionChange.OPENED, ConnectionChange.CLOSED]


@virtual
async def test_a_peer_that_does_not_answer_the_close_is_left() -> None:
    peer = Peer()
    async with connected(peer, timeout=2) as connection:
        peer.answers = lambda event: isinstance(event, CloseReceived)
        began = asyncio.get_running_loop().time()
        await connection.close()
        assert asyncio.get_running_loop().time() - began == pytest.approx(2, abs=0.1)
        await quiet()
        assert peer.transport.is_closing()


@virtual
async def test_a_cancelled_close_drops_the_socket() -> None:
    peer = Peer()
    peer.answers = lambda event: isinstance(event, CloseReceived)
    async with connected(peer) as connection:
        with pytest.raises(Cancelled):
            await cancelled_at(1, connection.close())
        await quiet()
        assert peer.transport.is_closing()
        await connection.close()
        assert connection.life is Life.CLOSED


@virtual
async def test_what_is_not_amqp_is_an_error_and_not_an_exception() -> None:
    peer = Peer()
    async with connected(peer) as connection:
        session = await connection.session()
        peer.transport.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        error = await outcome_of(_lost(session))
        assert isinstance(error, ConnectionLost)
        assert error.condition == "amqp:connection:framing-error"


@virtual
async def test_an_exception_in_on_event_does_no_harm() -> None:
    peer = Peer()

    def callback(event: ClientEvent) -> None:
        raise RuntimeError("the application's fault")

    async with connected(peer, on_event=callback):
        pass
    assert isinstance(CallbackFailed("x", RuntimeError()), Event)


@virtual
async def test_frames_are_traced() -> None:
    peer = Peer()
    lines: list[str] = []
    async with connect("amqp://u:secret@peer", opener=peer.open, trace=lines.append):
        pass
    assert lines[0] == "-> AMQP 3 1.0.0"
    assert any(line.startswith("<- [0] Open container-id='peer'") for line in lines)
    assert lines[-1] == "<- [0] Close"
    assert not any("secret" in line for line in lines)


def test_frames_are_traced_to_standard_error_where_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @virtual
    async def story() -> None:
        async with connected(Peer()):
            pass

    monkeypatch.setenv("TALLYMARK_TRACE", "frames")
    story()
    assert "-> [0] Open container-id='tallymark-" in capsys.readouterr().err
    monkeypatch.setenv("TALLYMARK_TRACE", "other")
    story()
    assert capsys.readouterr().err == ""


def test_addresses() -> None:
    assert parse("amqp://localhost") == Endpoint(host="localhost", port=5672)
    assert parse("amqps://h") == Endpoint(host="h", port=5671, is_tls=True)
    assert parse("AMQP://u%3A:p%2F@h:1/%2F") == Endpoint(
        host="h", port=1, user="u:", password="p/", vhost="/"
    )
    assert parse("amqp://[::1]:7/x").host == "::1"
    assert str(parse("amqp://u:p@[::1]:7/x")) == "amqp://[::1]:7"
    assert "secret" not in repr(parse("amqp://u:secret@h"))
    for bad in ("http://h", "localhost:5672", "", "amqp://u:secret@h:x", "amqp://u:secret@h?a=b"):
        with pytest.raises(ValueError, match=r"expected|not a number|not read") as raised:
            parse(bad)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("sign", "#/?[\u2100")
def test_an_address_whose_password_is_not_escaped_does_not_show_it(sign: str) -> None:
    for host in ("h", "[::1]"):
        url = f"amqp://u:secret{sign}secret@{host}"
        with pytest.raises(
            ValueError, match=r"^amqp://.*(expected|not a number|not read)"
        ) as raised:
            parse(url)
        assert "secret" not in "".join(traceback.format_exception(raised.value, chain=True))


@pytest.mark.parametrize(
    ("url", "properties", "kind"),
    [
        ("amqp://h", {"k": object()}, TypeError),
        ("amqp://h", {"é": 1}, ValueError),  # keys are symbols
        ("amqp091://h", {"k": object()}, TypeError),
        ("amqp091://h", {"k" * 300: 1}, ValueError),
    ],
)
def test_properties_that_cannot_be_sent_are_refused_at_once(
    url: str, properties: dict[str, object], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=f"^properties, expected what {url}:5672 has types for: "):
        connect(url, properties=properties)


def test_options_are_checked_before_anything_happens() -> None:
    with pytest.raises(ValueError, match="sasl='MD5', expected one of 'PLAIN'"):
        connect("amqp://h", sasl="MD5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ssl for amqp://h:5672, expected an amqps:// address"):
        connect("amqp://h", ssl=ssl.create_default_context())
    from tallymark.client.arguments import ReceiverOptions, SenderOptions

    good = ReceiverOptions(address="q", name="n")
    for change, text in (
        ({"credit": 0}, "credit=0, expected a window of 1 to"),
        ({"credit_mode": "Auto"}, "credit_mode='Auto'"),
        ({"credit_on": "arrival"}, "credit_on='arrival'"),
        ({"rcv_mode": 1}, "rcv_mode=1"),
        ({"snd_mode": "none"}, "snd_mode='none'"),
        ({"max_unsettled_age": 0}, "max_unsettled_age=0"),
        ({"max_unsettled_age": "locks"}, "max_unsettled_age='locks'"),
        ({"stall_warning_ms": -1}, "stall_warning_ms=-1"),
        ({"credit_mode": "manual", "credit_on": "handover"}, "credit_on belongs to"),
    ):
        with pytest.raises(ValueError, match=text):
            dataclasses.replace(good, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="settle_mode='no'"):
        SenderOptions(address="q", name="n", settle_mode="no")  # type: ignore[arg-type]
    assert issubclass(LoginRefused, Closed)
