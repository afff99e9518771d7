"""Our connections against proton's engine, in memory: both roles, no sockets, no broker."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    CreditReceived,
    DispositionReceived,
    DrainFinished,
    Ended,
    FlowReceived,
    LinkAttached,
    LinkDetached,
    SaslReceived,
    SessionBegun,
    SettlementReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Error, Rejected, Released
from tallymark.wire.amqp10.performatives import Attach, Begin, Open, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sasl import SaslInit, SaslMechanisms
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tests.support.amqp10_pair import End, run_of

proton = pytest.importorskip("proton")

from tests.support.proton_engine import Engine, pump, receive, send  # noqa: E402

SMALL = Limits(max_frame_size=512, incoming_window=3)


class ProtonClient:
    """Our server, proton's client, a session with a receiver r and a sender w of proton's."""

    def __init__(self, limits: Limits = SMALL, credit: int = 5, **modes: int) -> None:
        self.ours = End(Connection(limits, is_server=True))
        self.engine = Engine(False, 512)
        self.engine.bind()
        self.engine.connection.open()
        session = self.engine.connection.session()
        session.open()
        self.r: Any = session.receiver("r")
        self.r.source.address = "q"
        self.r.rcv_settle_mode = modes.get("rcv", 0)
        self.r.open()
        self.r.flow(credit)
        self.w: Any = session.sender("w")
        self.w.target.address = "q"
        self.w.open()
        self.pump()
        self.session = self.ours.connection.sessions[0]
        links = {link.name: link for link in self.session.links}
        sender, receiver = links["r"], links["w"]
        assert isinstance(sender, SenderLink)
        assert isinstance(receiver, ReceiverLink)
        self.sender, self.receiver = sender, receiver

    def pump(self) -> None:
        pump(self.ours, self.engine)
        assert self.engine.error is None


class ProtonServer:
    """Our client, proton's server, which grants whatever is asked for."""

    def __init__(self, limits: Limits = SMALL) -> None:
        self.ours = End(Connection(limits, is_server=False))
        self.engine = Engine(True, 512)
        self.engine.bind()
        self.ours.connection.start(sasl=False)
        self.ours.connection.open(Open("ours"))
        self.pump()
        self.engine.connection.open()
        self.pump()
        self.session: Session = self.ours.connection.begin()
        self.pump()
        self.engine.of("PN_SESSION_REMOTE_OPEN")[0].open()
        self.pump()
        assert self.ours.one(SessionBegun)

    def pump(self) -> None:
        pump(self.ours, self.engine)
        assert self.engine.error is None

    def grant(self) -> Any:
        self.pump()
        link = self.engine.of("PN_LINK_REMOTE_OPEN")[-1]
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.open()
        self.pump()
        assert self.ours.last(LinkAttached)
        return link


def test_sasl_with_protons_client() -> None:
    ours = End(Connection(Limits(), is_server=True, mechanisms=("ANONYMOUS",), needs_sasl=True))
    engine = Engine(False)
    engine.transport.sasl().allowed_mechs("ANONYMOUS")
    engine.bind()
    engine.connection.open()
    pump(ours, engine)
    init = ours.one(SaslReceived).frame
    assert isinstance(init, SaslInit)
    assert init.mechanism == "ANONYMOUS"
    ours.connection.sasl_outcome(0)
    pump(ours, engine)
    assert engine.error is None
    assert engine.of("PN_CONNECTION_REMOTE_OPEN")


def test_sasl_with_protons_server() -> None:
    ours = End(Connection(Limits(), is_server=False))
    engine = Engine(True)
    engine.transport.sasl().allowed_mechs("ANONYMOUS")
    engine.bind()
    ours.connection.start(sasl=True)
    pump(ours, engine)
    offer = ours.one(SaslReceived).frame
    assert isinstance(offer, SaslMechanisms)
    assert offer.sasl_server_mechanisms == ("ANONYMOUS",)
    ours.connection.sasl_init("ANONYMOUS", b"me")
    pump(ours, engine)
    ours.connection.open(Open("ours"))
    pump(ours, engine)
    engine.connection.open()
    pump(ours, engine)
    assert ours.connection.remote_open is not None
    assert ours.connection.remote_open.container_id == "proton"


@pytest.mark.parametrize("credit", [1, 5, 100])
def test_messages_large_and_small_to_protons_receiver(credit: int) -> None:
    peer = ProtonClient(credit=credit)
    messages = [b"%d" % i + bytes(size) for i, size in enumerate((0, 400, 500, 3000, 5))]
    got = []
    for message in messages:
        if not peer.sender.credit:
            peer.r.flow(1)
            peer.pump()
        peer.sender.send(message)
        peer.pump()
        got += receive(peer.r)
    assert [found[1] for found in got] == messages
    assert [found[0] for found in got] == [i.to_bytes(4, "big") for i in range(5)]
    for _, _, delivery in got:
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    peer.pump()
    named = [
        number
        for event in peer.ours.of(DispositionReceived)
        for number in range(event.first, event.last + 1)
        if event.settled and event.state == Accepted()
    ]
    assert named == list(range(5))


def test_drain_by_proton() -> None:
    peer = ProtonClient(credit=0)
    peer.r.drain(10)
    peer.pump()
    assert peer.ours.last(CreditReceived).drain
    raw, cuts = run_of([b"a", b"b", b"c"])
    peer.sender.send_run(raw, cuts, 0, 3, settled=True)
    peer.sender.drained()
    peer.pump()
    assert len(receive(peer.r)) == 3
    assert peer.r.credit == 0
    assert not peer.r.draining()
    peer.r.flow(2)
    peer.pump()
    assert peer.sender.credit == 2


def test_no_gaps_behind_a_detach_with_deliveries_waiting() -> None:
    """Proton closes the connection on a gap in delivery-ids."""
    ours = End(Connection(Limits(), is_server=True))
    engine = Engine(False, 512)
    engine.bind()
    engine.connection.open()
    session = engine.connection.session()
    session.incoming_capacity = 2048  # a window of four frames
    session.open()
    links = [session.receiver(name) for name in ("a", "b")]
    for link in links:
        link.open()
        link.flow(50)
    pump(ours, engine)
    a, b = ours.connection.sessions[0].links
    assert isinstance(a, SenderLink)
    assert isinstance(b, SenderLink)
    raw, cuts = run_of([bytes(400)] * 10)
    a.send_run(raw, cuts, 0, 10, settled=True)
    b.send(b"behind", settled=True)
    pump(ours, engine)
    assert a.session.is_blocked
    links[0].close()
    pump(ours, engine)
    assert b.cancel(10) or not b.session.is_blocked
    b.send(b"last", settled=True)
    receive(links[0])
    session.incoming_capacity = 65536
    links[1].flow(1)
    pump(ours, engine)
    assert engine.error is None
    assert not b.session.is_blocked
    assert receive(links[1])[-1][1] == b"last"


def test_mode_second_with_protons_receiver() -> None:
    peer = ProtonClient(rcv=1)
    assert peer.sender.rcv_settle_mode == 1
    number = peer.sender.send(b"x")
    peer.pump()
    (_, _, delivery), *_ = receive(peer.r)
    delivery.update(proton.Delivery.ACCEPTED)
    peer.pump()
    event = peer.ours.one(DispositionReceived)
    assert (event.first, event.settled, event.state) == (number, False, Accepted())
    peer.session.settle_sent(number, number, Accepted())
    peer.pump()
    assert delivery.settled
    delivery.settle()
    peer.pump()


def test_messages_from_protons_sender() -> None:
    peer = ProtonClient()
    peer.receiver.flow(10)
    peer.pump()
    sent = [send(peer.w, f"t{i}", bytes(size)) for i, size in enumerate((0, 10, 450, 2000, 7))]
    peer.pump()
    got = peer.ours.messages()
    assert [(len(message[2]), message[1]) for message in got] == [
        (0, b"t0"),
        (10, b"t1"),
        (450, b"t2"),
        (2000, b"t3"),
        (7, b"t4"),
    ]
    assert (peer.receiver.credit, peer.w.credit) == (5, 5)
    peer.session.settle_received(0, 2, Accepted())
    peer.session.settle_received(3, 3, Rejected(Error("amqp:precondition-failed", "no")))
    peer.session.settle_received(4, 4, Released())
    peer.pump()
    assert [delivery.remote_state for delivery in sent] == [
        proton.Delivery.ACCEPTED,
        proton.Delivery.ACCEPTED,
        proton.Delivery.ACCEPTED,
        proton.Delivery.REJECTED,
        proton.Delivery.RELEASED,
    ]
    assert all(delivery.settled for delivery in sent)
    assert peer.receiver.drain()
    peer.pump()
    assert peer.w.drained() == 5
    peer.pump()
    assert peer.ours.one(DrainFinished).given_up == 5
    assert peer.receiver.delivery_count == 10


def test_fc_2_a_delivery_that_proton_aborts_does_not_cost_credit_for_ever() -> None:
    peer = ProtonClient()
    for i in range(3):
        peer.receiver.flow(1)
        peer.pump()
        assert peer.w.credit == 1
        delivery = peer.w.delivery(f"a{i}")
        peer.w.send(bytes(1000))
        peer.pump()
        assert peer.receiver.unfinished > 0
        delivery.abort()
        peer.pump()
        assert peer.receiver.unfinished == 0
        assert peer.receiver.credit == peer.w.credit == 0
        assert peer.receiver.delivery_count == i + 1
        assert len(peer.ours.of(FlowReceived)) >= i + 1
    assert peer.ours.messages() == []


def test_proton_takes_our_aborts() -> None:
    peer = ProtonClient(credit=5)
    peer.session.outbox.window = 2
    peer.sender.send(bytes(3000))
    peer.pump()
    peer.sender.send(b"next")
    assert peer.session.is_blocked
    assert peer.sender.cancel(0)
    peer.session.outbox.window = 100
    peer.session.outbox.flush()
    peer.pump()
    while peer.r.current is not None and peer.r.current.aborted:
        peer.r.advance()
    assert [found[1] for found in receive(peer.r)] == [b"next"]


@pytest.mark.parametrize("closed", [True, False])
def test_detaches_both_ways(closed: bool) -> None:
    peer = ProtonClient()
    if closed:
        peer.r.close()
    else:
        peer.r.detach()
    peer.receiver.detach(Error("amqp:resource-deleted", "gone"))
    peer.pump()
    assert peer.ours.of(LinkDetached)[0].closed is closed
    assert peer.w.remote_condition.name == "amqp:resource-deleted"
    assert peer.w.state & proton.Endpoint.REMOTE_CLOSED
    peer.w.close()
    peer.engine.connection.close()
    peer.pump()
    assert peer.ours.one(Ended).clean


# Proton serves


def test_our_sender_and_protons_receiver() -> None:
    peer = ProtonServer()
    attach = Attach("s", source=Source(), target=Target(address="q"))
    sender = peer.session.attach_sender(attach, None, 0)
    link = peer.grant()
    link.flow(10)
    peer.pump()
    assert sender.credit == 10
    raw, cuts = run_of([b"a", bytes(2000), b"c"])
    sender.send_run(raw, cuts, 0, 3, settled=False)
    peer.pump()
    got = receive(link)
    assert [found[1] for found in got] == [b"a", bytes(2000), b"c"]
    for _, _, delivery in got:
        delivery.update(proton.Delivery.MODIFIED)
        delivery.settle()
    peer.pump()
    named = [
        number
        for event in peer.ours.of(DispositionReceived)
        for number in range(event.first, event.last + 1)
    ]
    assert named == [0, 1, 2]


@pytest.mark.parametrize("mode", [0, 1])
def test_our_receiver_and_protons_sender(mode: int) -> None:
    peer = ProtonServer()
    attach = Attach("r", source=Source(address="q"), target=Target())
    receiver = peer.session.attach_receiver(attach, None, mode)
    link = peer.grant()
    assert receiver.rcv_settle_mode == mode
    receiver.flow(3)
    peer.pump()
    sent = [send(link, f"{i}", bytes(700 * i)) for i in range(3)]
    peer.pump()
    assert [len(message[2]) for message in peer.ours.messages()] == [0, 700, 1400]
    receiver.settle(0, 2, Accepted())
    peer.pump()
    assert [delivery.remote_state for delivery in sent] == [proton.Delivery.ACCEPTED] * 3
    assert [delivery.settled for delivery in sent] == [mode == 0] * 3
    for delivery in sent:
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    peer.pump()
    settled = [
        number
        for event in peer.ours.of(SettlementReceived)
        for number in range(event.first, event.last + 1)
    ]
    assert settled == ([0, 1, 2] if mode else [])
    assert receiver.in_flight() == []


def test_refused_by_proton() -> None:
    peer = ProtonServer()
    link = peer.session.attach_receiver(Attach("r", source=Source(address="no"), target=Target()))
    peer.pump()
    theirs = peer.engine.of("PN_LINK_REMOTE_OPEN")[0]
    theirs.source.type = proton.Terminus.UNSPECIFIED
    theirs.condition = proton.Condition("amqp:not-found", "no such node")
    theirs.open()
    theirs.close()
    peer.pump()
    detached = peer.ours.one(LinkDetached)
    assert (detached.link, detached.refused) == (link, True)
    assert detached.error == Error("amqp:not-found", "no such node")
    assert peer.session.links == []


def test_many_small_messages_within_protons_window() -> None:
    peer = ProtonClient(Limits(), credit=2000)
    raw, cuts = run_of([b"x" * 100] * 1000)
    peer.sender.send_run(raw, cuts, 0, 1000, settled=True)
    peer.pump()
    assert len(receive(peer.r)) == 1000
    peer.sender.send_run(raw, cuts, 0, 1000, settled=True)
    peer.pump()
    assert len(receive(peer.r)) == 1000
    assert not peer.session.is_blocked


def test_a_session_that_we_begin_on_protons_connection() -> None:
    peer = ProtonServer()
    other = peer.ours.connection.begin(Begin(None, 2**32 - 2))
    peer.pump()
    peer.engine.of("PN_SESSION_REMOTE_OPEN")[1].open()
    peer.pump()
    sender = other.attach_sender(Attach("s", source=Source(), target=Target()))
    link = peer.grant()
    link.flow(10)
    peer.pump()
    for i in range(5):
        sender.send(b"%d" % i, settled=True)
    peer.pump()
    assert [found[1] for found in receive(link)] == [b"%d" % i for i in range(5)]
