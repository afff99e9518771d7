"""AMQP 1.0 transactions: retirement and acquisition [TX-15, TX-16]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import (
    DispositionReceived,
    LinkDetached,
    SettlementReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import (
    Modified,
)
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.types import Symbol
from tests.bridge.rig10 import Rig
from tests.bridge.test_amqp10_consume import counts, failed, fill, numbers
from tests.bridge.tx10_rig import (
    ACCEPTED,
    FAILED,
    REJECTED,
    RELEASED,
    ROLLBACK,
    UNKNOWN_ID,
    Control,
    begun,
    detached,
    dispose,
    error_of,
    ready,
    retire,
    under,
)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q")
    return made


def acquire(link: ReceiverLink, id: bytes | None, credit: int) -> None:
    """Credit for what is handed out under a transaction."""
    link.flow(credit, properties={Symbol("txn-id"): id})


# -- retirement


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("chunk", [0, 1])
def test_tx_15_a_commit_applies_the_outcome(rig: Rig, chunk: int, settled: bool) -> None:
    rig.declare("letters")
    rig.declare("work", dead_letter_exchange="", dead_letter_routing_key="letters")
    fill(rig, 4, "work")
    peer, session, control = begun(rig, chunk=chunk)
    link = peer.receiver(session, "work", credit=4)
    id = control.declare()
    for got, outcome in zip(peer.got, (ACCEPTED, REJECTED, RELEASED, FAILED), strict=True):
        retire(peer, got, id, outcome, settled)
    assert counts(rig, "work") == (0, 0, 0)
    assert rig.queue("work").account.staged == 4
    assert not [one for one in peer.events if isinstance(one, DispositionReceived)]
    control.commit(id)
    assert counts(rig, "work") == (2, 0, 1)
    assert ready(rig, "work") == ["2", "3"]
    assert failed(rig, "work") == [0, 1]
    assert ready(rig, "letters") == ["1"]
    told = [one for one in peer.events if isinstance(one, DispositionReceived)]
    if settled:
        assert told == []
    else:
        assert [(one.first, one.last, one.state, one.settled) for one in told] == [
            (got.id, got.id, outcome, True)
            for got, outcome in zip(peer.got, (ACCEPTED, REJECTED, RELEASED, FAILED), strict=True)
        ]
    assert link.credit == 0


def test_tx_15_a_rollback_gives_back_what_was_settled(rig: Rig) -> None:
    fill(rig, 3)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=3)
    id = control.declare()
    for got in peer.got:
        retire(peer, got, id, ACCEPTED)
    control.roll_back(id)
    assert ready(rig) == ["0", "1", "2"]
    assert failed(rig) == [0, 0, 0]


def test_tx_15_a_rollback_of_what_was_settled_applies_the_default_outcome(rig: Rig) -> None:
    fill(rig, 2)
    peer, session, control = begun(rig)
    source = Source(address="q", default_outcome=Modified(delivery_failed=True))
    peer.receiver(session, source=source, credit=2)
    id = control.declare()
    retire(peer, peer.got[0], id, ACCEPTED)
    retire(peer, peer.got[1], id, ACCEPTED, settled=False)
    control.roll_back(id)
    assert ready(rig) == ["0"]
    assert failed(rig) == [1]
    assert counts(rig) == (1, 1, 0)


def test_tx_15_nothing_is_confirmed_of_what_the_discharge_decides(rig: Rig) -> None:
    """A range that is disposed of outside of the transaction has such a delivery in it: to say that
    it is accepted would have the client forget what a rollback leaves with it."""
    fill(rig, 3)
    peer, session, control = begun(rig)
    link = peer.receiver(session, credit=3, rcv=1)
    id = control.declare()
    retire(peer, peer.got[1], id, ACCEPTED, settled=False)
    session.settle_second(link, peer.got[0].id, peer.got[2].id, ACCEPTED)  # type: ignore[arg-type]
    peer.pump()
    told = [one for one in peer.events if isinstance(one, SettlementReceived)]
    assert [(one.first, one.last) for one in told] == [(0, 0), (2, 2)]
    control.roll_back(id)
    assert counts(rig) == (0, 1, 2)
    peer.settle(peer.got[1], RELEASED)
    assert ready(rig) == ["1"]


def test_tx_15_a_rollback_leaves_unsettled_ones_to_the_link(rig: Rig) -> None:
    """They may be disposed of again, under another transaction or under none."""
    fill(rig, 3)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=3)
    id = control.declare()
    for got in peer.got:
        retire(peer, got, id, ACCEPTED, settled=False)
    control.roll_back(id)
    assert counts(rig) == (0, 3, 0)
    peer.settle(peer.got[0], ACCEPTED)
    peer.settle(peer.got[1], RELEASED)
    id = control.declare()
    retire(peer, peer.got[2], id, REJECTED, settled=False)
    control.commit(id)
    assert counts(rig) == (1, 0, 1)
    assert ready(rig) == ["1"]


@pytest.mark.parametrize("state", ["same", "none", "plain"])
def test_tx_15_settling_may_come_after_the_outcome(rig: Rig, state: str) -> None:
    """proton sends the outcome, then settles: that is one settlement, not two."""
    fill(rig, 2)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=2)
    first, second = control.declare(), control.declare()
    said = {"none": None, "plain": ACCEPTED}
    for got, id in zip(peer.got, (first, second), strict=True):
        retire(peer, got, id, ACCEPTED, settled=False)
        dispose(peer, got, said.get(state, under(id, ACCEPTED)), settled=True)
    assert rig.queue("q").account.staged == 2
    control.roll_back(first)
    assert ready(rig) == ["0"]
    control.commit(second)
    assert counts(rig) == (1, 0, 1)
    assert not [one for one in peer.events if isinstance(one, DispositionReceived)]


def test_tx_15_settled_under_a_transaction_without_an_outcome(rig: Rig) -> None:
    fill(rig, 2)
    peer, session, control = begun(rig)
    peer.receiver(session, source=Source(address="q", default_outcome=ACCEPTED), credit=2)
    id = control.declare()
    dispose(peer, peer.got[0], under(id), settled=True)
    dispose(peer, peer.got[1], under(id), settled=False)  # says nothing
    assert rig.queue("q").account.staged == 1
    control.commit(id)
    assert counts(rig) == (0, 1, 1)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("same", [True, False])
def test_tx_15_an_outcome_may_change_before_the_discharge(rig: Rig, same: bool, told: bool) -> None:
    """Also to that of another transaction. The last one counts."""
    fill(rig, 5)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=5)
    one, two = control.declare(), control.declare()
    dispose(peer, peer.got[0], under(one, ACCEPTED), settled=False, last=peer.got[4])
    if told:  # the ledger has rows of what is staged
        rig.turn()
    after = one if same else two
    dispose(peer, peer.got[1], under(after, RELEASED), settled=False, last=peer.got[2])
    dispose(peer, peer.got[2], under(after, ACCEPTED), settled=True)
    assert rig.queue("q").account.staged == 5
    control.commit(one)
    assert counts(rig) == ((1, 0, 4) if same else (0, 0, 3))
    if not same:
        control.commit(two)
    assert ready(rig) == ["1"]
    assert counts(rig) == (1, 0, 4)
    answered = [one for one in peer.events if isinstance(one, DispositionReceived)]
    assert sorted((one.first, one.last) for one in answered) == [(0, 0), (1, 1), (3, 4)]


def test_tx_15_a_range_does_not_reach_what_was_settled_before(rig: Rig) -> None:
    fill(rig, 3)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=3)
    id = control.declare()
    retire(peer, peer.got[1], id, RELEASED)
    dispose(peer, peer.got[0], under(id, ACCEPTED), settled=True, last=peer.got[2])
    control.commit(id)
    assert ready(rig) == ["1"]
    assert counts(rig) == (1, 0, 2)


def test_tx_15_a_range_over_several_links_and_transactions(rig: Rig) -> None:
    rig.declare("r")
    fill(rig, 3)
    fill(rig, 3, "r")
    peer, session, control = begun(rig)
    peer.receiver(session, "q", credit=3)
    peer.receiver(session, "r", credit=3)
    one, two = control.declare(), control.declare()
    dispose(peer, peer.got[1], under(two, ACCEPTED), settled=True)
    dispose(peer, peer.got[0], under(one, ACCEPTED), settled=True, last=peer.got[4])
    assert (rig.queue("q").account.staged, rig.queue("r").account.staged) == (3, 2)
    control.commit(one)
    assert (rig.queue("q").account.settled, rig.queue("r").account.settled) == (2, 2)
    control.roll_back(two)
    assert ready(rig) == ["1"]
    assert counts(rig, "r") == (0, 1, 2)


def test_tx_15_an_unknown_id_ends_the_link_and_what_it_holds_goes_back(rig: Rig) -> None:
    rig.declare("r")
    fill(rig, 2)
    fill(rig, 1, "r")
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, "r", credit=1)
    link = peer.receiver(session, credit=2)
    retire(peer, peer.got[1], b"never", ACCEPTED)
    gone = peer.take(LinkDetached)
    assert gone.link is link
    assert gone.error is not None
    assert gone.error.condition == UNKNOWN_ID
    assert ready(rig) == ["0", "1"]
    assert counts(rig, "r") == (0, 1, 0)  # another link of the session


def test_tx_16_discharge_works_after_the_consuming_link_was_detached(rig: Rig) -> None:
    fill(rig, 4)
    peer, session, control = begun(rig)
    link = peer.receiver(session, credit=4)
    one, two = control.declare(), control.declare()
    retire(peer, peer.got[0], one, ACCEPTED)
    retire(peer, peer.got[1], one, ACCEPTED, settled=False)
    retire(peer, peer.got[2], two, ACCEPTED, settled=False)
    link.detach()
    peer.pump()
    assert counts(rig) == (1, 0, 0)
    assert rig.queue("q").account.staged == 3
    control.commit(one)
    assert counts(rig) == (1, 0, 2)
    control.roll_back(two)
    assert ready(rig) == ["2", "3"]


def test_tx_13_what_went_back_with_its_link_cannot_be_settled_under_a_transaction(
    rig: Rig,
) -> None:
    """The broker ends a link, and the client settles under a transaction before it hears of it."""
    fill(rig, 3)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=3)
    one, two, unknown = control.declare(), control.declare(), b"never"
    retire(peer, peer.got[0], one, ACCEPTED)
    retire(peer, peer.got[1], unknown, ACCEPTED)  # which ends the link
    assert detached(peer).condition == UNKNOWN_ID
    assert ready(rig) == ["1", "2"]
    retire(peer, peer.got[2], two, ACCEPTED)
    control.commit(one)  # settled while the link was there
    refused = error_of(control.discharge(two))
    assert refused.condition == ROLLBACK
    assert "had gone back" in (refused.description or "")
    assert ready(rig) == ["1", "2"]
    three = control.declare()
    control.commit(three)


# -- acquisition


def test_tx_16_what_is_handed_out_under_a_transaction_goes_back_with_it(rig: Rig) -> None:
    fill(rig, 6)
    peer, session, control = begun(rig)
    link = peer.receiver(session, credit=1)
    id = control.declare()
    acquire(link, id, 3)
    peer.pump()
    assert numbers(peer) == [0, 1, 2, 3]
    control.roll_back(id)
    (told,) = [one for one in peer.events if isinstance(one, DispositionReceived)]
    assert (told.by_sender, told.settled, told.state) == (True, True, RELEASED)
    assert (told.first, told.last) == (1, 3)
    assert counts(rig) == (5, 1, 0)
    assert ready(rig) == ["1", "2", "3", "4", "5"]
    peer.events.clear()
    link.flow(1)  # the transaction is over: this is under none
    peer.pump()
    assert numbers(peer) == [1]
    assert counts(rig) == (4, 2, 0)


def test_tx_16_nothing_taken_back_comes_behind_the_discharge(rig: Rig) -> None:
    """What waits for the client's window is not sent any more, a message that is half sent is
    aborted, and their credit is there again."""
    fill(rig, 6)
    publisher = rig.connect10()
    publisher.send(publisher.sender(publisher.session()), "x" * 700)
    peer = rig.connect10(limits=Limits(incoming_window=7, max_frame_size=512))
    session = peer.session()
    control = Control(peer, session)
    link = peer.receiver(session)
    id = control.declare()
    session.hold_window(True)
    acquire(link, id, 7)
    peer.pump()
    assert [got.body for got in peer.got] == [b"%d" % n for n in range(6)]
    assert counts(rig) == (0, 7, 0)
    control.roll_back(id)
    peer.got.clear()
    session.hold_window(False)
    peer.pump()
    assert [got.body for got in peer.got] == [b"0"]  # the credit that is left
    assert counts(rig) == (6, 1, 0)


def test_tx_16_what_is_handed_out_says_so(rig: Rig) -> None:
    fill(rig, 2)
    peer, session, control = begun(rig)
    link = peer.receiver(session)
    id = control.declare()
    acquire(link, id, 1)
    peer.pump()
    acquire(link, None, 1)
    peer.pump()
    with_id = b"".join(peer.sent_bytes).count(under(id).encode())
    assert with_id == 1
    control.roll_back(id)
    assert counts(rig) == (1, 1, 0)


def test_tx_16_after_a_commit_what_was_handed_out_is_still_held(rig: Rig) -> None:
    fill(rig, 3)
    peer, session, control = begun(rig)
    link = peer.receiver(session)
    id = control.declare()
    acquire(link, id, 3)
    peer.pump()
    retire(peer, peer.got[0], id, ACCEPTED)
    control.commit(id)
    assert counts(rig) == (0, 2, 1)
    peer.settle(peer.got[1], ACCEPTED)
    assert counts(rig) == (0, 1, 2)


def test_tx_16_credit_for_an_unknown_transaction_ends_the_link(rig: Rig) -> None:
    fill(rig, 2)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, credit=1)
    acquire(link, b"never", 5)
    peer.pump()
    assert detached(peer).condition == UNKNOWN_ID
    assert ready(rig) == ["0", "1"]


@pytest.mark.parametrize("kind", ["settled", "copies"])
def test_tx_16_a_link_that_cannot_take_back_says_so(rig: Rig, kind: str) -> None:
    fill(rig, 2)
    peer, session, control = begun(rig)
    if kind == "settled":
        link = peer.receiver(session, snd=1)
    else:
        link = peer.receiver(session, source=Source(address="q", distribution_mode="copy"))
    acquire(link, control.declare(), 2)
    peer.pump()
    assert detached(peer).condition == "amqp:not-implemented"
    assert counts(rig) == (2, 0, 0)


def test_tx_16_settled_under_another_than_it_was_handed_out_under(rig: Rig) -> None:
    """The transaction of the outcome ends, and its control link [amqp-1.0 §4.4.2]."""
    fill(rig, 1)
    peer = rig.connect10()
    session = peer.session()
    one, two = Control(peer, session), Control(peer, session)
    link = peer.receiver(session)
    first, second = one.declare(), two.declare()
    acquire(link, first, 1)
    peer.pump()
    retire(peer, peer.got[0], second, ACCEPTED)
    gone = peer.take(LinkDetached)
    assert gone.link is two.link
    assert gone.error is not None
    assert gone.error.condition == ROLLBACK
    assert len(rig.broker.transactions.open) == 1
    retire(peer, peer.got[0], first, ACCEPTED)
    one.commit(first)
    assert counts(rig) == (0, 0, 1)


def test_tx_16_a_transaction_named_before_the_queue_was_there() -> None:
    """The attach waits for its queue's declaration, and the flow came meanwhile."""
    rig = Rig(auto_create=r"^new")
    rig.hold_disk = True
    peer, session, control = begun(rig)
    id = control.declare()
    asked = Attach(name="l", source=Source(address="/queues/new"), target=Target())
    link = session.attach_receiver(asked)
    acquire(link, id, 2)
    peer.pump()
    rig.hold_disk = False
    peer.pump()
    fill(rig, 3, "new")
    peer.pump()
    assert numbers(peer) == [0, 1]
    control.roll_back(id)
    assert ready(rig, "new") == ["0", "1", "2"]
