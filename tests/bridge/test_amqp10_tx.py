"""AMQP 1.0 transactions: the coordinator, posting, the disk, and what ends them [TX-11 to TX-14,
TX-16, TX-D1]; test_amqp10_tx_settling.py has the rest."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import (
    CloseReceived,
)
from tallymark.wire.amqp10.outcomes import (
    Declare,
    Declared,
    Discharge,
)
from tallymark.wire.amqp10.performatives import Attach, Coordinator, Source, Target
from tallymark.wire.amqp10.sections import Header, Properties, encode_message
from tallymark.wire.amqp10.types import Symbol, Timestamp, UInt
from tests.bridge.rig10 import Rig
from tests.bridge.test_amqp10_consume import counts, fill
from tests.bridge.tx10_rig import (
    ACCEPTED,
    RELEASED,
    ROLLBACK,
    UNKNOWN_ID,
    Control,
    begun,
    detached,
    error_of,
    post,
    ready,
    retire,
    under,
)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q")
    return made


# -- the coordinator


@pytest.mark.parametrize("chunk", [0, 1])
def test_tx_11_a_coordinator_grants_credit_and_says_what_it_can_do(rig: Rig, chunk: int) -> None:
    _, _, control = begun(rig, chunk=chunk)
    answer = control.link.remote_attach
    assert answer is not None
    assert isinstance(answer.target, Coordinator)
    assert set(answer.target.capabilities) == {
        "amqp:local-transactions",
        "amqp:multi-txns-per-ssn",
        "amqp:multi-ssns-per-txn",
    }
    assert control.link.credit > 0
    for _ in range(100):  # and it is kept up
        control.roll_back(control.declare())
    assert control.link.credit > 0


def test_tx_12_each_declare_has_an_id_of_its_own(rig: Rig) -> None:
    _, _, control = begun(rig)
    ids = [control.declare() for _ in range(20)]
    assert len(set(ids)) == 20
    assert len(rig.broker.transactions.open) == 20


def test_tx_12_discharge_is_accepted_whether_it_fails_or_not(rig: Rig) -> None:
    _, _, control = begun(rig)
    first, second, third = control.declare(), control.declare(), control.declare()
    assert control.discharge(first, False) == ACCEPTED
    assert control.discharge(second, True) == ACCEPTED
    assert control.discharge(third) == ACCEPTED
    assert not rig.broker.transactions.open


def test_tx_12_both_steps_of_a_coordinator_link_in_mode_second(rig: Rig) -> None:
    peer, _, control = begun(rig, rcv=1)
    id = control.declare()
    link = peer.sender(control.link.session)
    post(peer, link, id, "m")
    control.commit(id)
    assert ready(rig) == ["m"]


def test_a_global_id_is_refused_and_the_link_goes_on(rig: Rig) -> None:
    peer, _, control = begun(rig)
    (state,) = peer.states([control.ask(Declare(b"xa"))])
    assert error_of(state).condition == "amqp:not-implemented"
    control.commit(control.declare())


@pytest.mark.parametrize(
    ("message", "condition"),
    [
        (encode_message(body=b"hello"), "amqp:decode-error"),
        (encode_message(body="hello"), "amqp:decode-error"),
        (encode_message(body=ACCEPTED), "amqp:decode-error"),
        (b"\x00\x53", "amqp:decode-error"),
        (b"", "amqp:decode-error"),
    ],
)
def test_what_is_no_request_is_rejected(rig: Rig, message: bytes, condition: str) -> None:
    peer, _, control = begun(rig)
    number = control.link.send(message)
    peer.pump()
    (state,) = peer.states([number])
    assert error_of(state).condition == condition
    control.commit(control.declare())


@pytest.mark.parametrize("request_", [Declare(), Discharge(b"x")])
def test_a_settled_request_ends_the_link(rig: Rig, request_: object) -> None:
    """Whoever declares must learn the id [amqp-1.0 §4.2]."""
    peer, _, control = begun(rig)
    control.ask(request_, settled=True)
    assert detached(peer).condition == "amqp:not-allowed"
    assert not rig.broker.transactions.open


def test_tx_13_an_unknown_id_is_rejected_where_the_source_lists_rejected(rig: Rig) -> None:
    _, _, control = begun(rig)
    id = control.declare()
    control.commit(id)
    for unknown in (id, b"never", b"", b"x" * 300):
        assert error_of(control.discharge(unknown)).condition == UNKNOWN_ID
    control.commit(control.declare())


@pytest.mark.parametrize("outcomes", [(), ("amqp:accepted:list",)])
def test_tx_13_an_unknown_id_ends_the_link_where_it_does_not(
    rig: Rig, outcomes: tuple[str, ...]
) -> None:
    peer, session, control = begun(rig, outcomes=outcomes)
    id = control.declare()
    link = peer.sender(session)
    post(peer, link, id, "m")
    control.ask(Discharge(b"never"))
    assert detached(peer).condition == UNKNOWN_ID
    assert not rig.broker.transactions.open  # with the link went what was declared on it [TX-16]
    assert ready(rig) == []


def test_a_transaction_is_of_its_own_connection_alone(rig: Rig) -> None:
    owner, other = rig.connect10(), rig.connect10()
    control = Control(owner, owner.session())
    id = control.declare()
    stranger = Control(other, other.session())
    assert error_of(stranger.discharge(id)).condition == UNKNOWN_ID
    post(other, other.sender(other.session()), id, "m")
    assert detached(other).condition == UNKNOWN_ID
    control.commit(id)
    assert ready(rig) == []


def test_a_connection_has_no_more_than_so_many_open(rig: Rig) -> None:
    peer, _, control = begun(rig)
    while len(rig.broker.transactions.open) < 1024:
        for _ in range(min(control.link.credit, 1024 - len(rig.broker.transactions.open))):
            control.link.send(encode_message(body=Declare()))
        peer.pump()
    (state,) = peer.states([control.ask(Declare())])
    assert error_of(state).condition == "amqp:resource-limit-exceeded"


# -- posting


@pytest.mark.parametrize("chunk", [0, 1])
def test_tx_14_what_is_posted_is_seen_after_the_discharge(rig: Rig, chunk: int) -> None:
    peer, session, control = begun(rig, chunk=chunk)
    link = peer.sender(session)
    id = control.declare()
    told = peer.states(post(peer, link, id, "a", "b", "c"))
    assert told == [under(id, ACCEPTED)] * 3
    assert counts(rig) == (0, 0, 0)
    control.commit(id)
    assert ready(rig) == ["a", "b", "c"]


def test_tx_14_nothing_is_left_of_it_after_a_rollback(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    id = control.declare()
    post(peer, link, id, "a", "b")
    post(peer, link, id, "c", settled=True)
    control.roll_back(id)
    assert counts(rig) == (0, 0, 0)
    assert rig.queue("q").entered == 0
    assert rig.broker.store.resident_bytes == 0


def test_tx_14_the_answer_takes_two_steps_in_mode_second(rig: Rig) -> None:
    peer = rig.connect10()
    peer.auto_settle_second = False
    session = peer.session()
    link = peer.sender(session, rcv=1)
    control = Control(peer, session)
    id = control.declare()
    (number,) = post(peer, link, id, "m")
    told = peer.told[number]
    assert told.states == [under(id, ACCEPTED)]
    assert not told.settled
    session.settle_sent(number, number, under(id, ACCEPTED))
    control.commit(id)
    assert ready(rig) == ["m"]


def test_tx_14_several_transactions_on_one_link(rig: Rig) -> None:
    """Each is seen by itself, in its own order, when it is discharged."""
    peer, session, control = begun(rig)
    link = peer.sender(session)
    one, two = control.declare(), control.declare()
    for n in range(4):
        post(peer, link, one, f"one {n}")
        post(peer, link, two, f"two {n}")
        peer.send(link, f"none {n}")
    assert ready(rig) == [f"none {n}" for n in range(4)]
    control.commit(two)
    assert ready(rig)[4:] == [f"two {n}" for n in range(4)]
    control.roll_back(one)
    assert len(ready(rig)) == 8


def test_tx_14_a_transaction_of_several_sessions(rig: Rig) -> None:
    peer, _, control = begun(rig)
    links = [peer.sender(peer.session()) for _ in range(3)]
    id = control.declare()
    for n, link in enumerate(links):
        post(peer, link, id, f"{n}")
    assert ready(rig) == []
    control.commit(id)
    assert ready(rig) == ["0", "1", "2"]


def test_tx_14_an_unknown_id_ends_the_link(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    id = control.declare()
    control.commit(id)
    post(peer, link, id, "late")
    assert detached(peer).condition == UNKNOWN_ID
    assert ready(rig) == []
    control.commit(control.declare())  # the session goes on


def test_tx_14_who_gets_it_is_decided_when_it_is_posted(rig: Rig) -> None:
    rig.declare("r")
    peer, session, control = begun(rig)
    link = peer.sender(session, None)
    id = control.declare()
    to = ["/queues/q", "/queues/r", "/exchanges/amq.direct/nobody", "/queues/nowhere", "q"]
    numbers_ = [
        link.send(encode_message(properties=Properties(to=one), body=one.encode()), state=under(id))
        for one in to
    ]
    peer.pump()
    told = peer.states(numbers_)
    assert told[0] == told[1] == told[4] == under(id, ACCEPTED)
    assert told[2] == told[3] == under(id, RELEASED)
    control.commit(id)
    assert ready(rig) == ["/queues/q", "q"]
    assert ready(rig, "r") == ["/queues/r"]


def test_tx_14_what_cannot_be_read_is_rejected_under_the_transaction(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    id = control.declare()
    good = link.send(encode_message(body=b"good"), state=under(id))
    bad = link.send(b"\x00\x53\x75\xa0\x09", state=under(id))
    peer.pump()
    first, second = peer.states([good, bad])
    assert first == under(id, ACCEPTED)
    assert error_of(getattr(second, "outcome")).condition == "amqp:decode-error"  # noqa: B009
    control.commit(id)  # the client was told: what is left may be committed
    assert ready(rig) == ["good"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/exchanges/amq.direct/nobody", encode_message(body=b"m")),
        ("/queues/q", b"\x00\x53\x75\xa0\x09"),
    ],
)
def test_tx_13_a_settled_message_that_cannot_be_queued_makes_it_rollback_only(
    rig: Rig, address: str, message: bytes
) -> None:
    peer, session, control = begun(rig)
    id = control.declare()
    good = peer.sender(session)
    post(peer, good, id, "good")
    link = peer.sender(session, address)
    link.send(message, state=under(id), settled=True)
    peer.pump()
    assert error_of(control.discharge(id)).condition == ROLLBACK
    assert ready(rig) == []
    assert not rig.broker.transactions.open
    assert error_of(control.discharge(id)).condition == UNKNOWN_ID


def test_tx_13_rollback_only_may_be_rolled_back(rig: Rig) -> None:
    peer, session, control = begun(rig, outcomes=())
    id = control.declare()
    link = peer.sender(session, "/exchanges/amq.direct/nobody")
    post(peer, link, id, "m", settled=True)
    control.roll_back(id)


@pytest.mark.parametrize("outcomes", [(), ("amqp:rejected:list",)])
def test_tx_13_a_client_that_lists_nothing_is_told_of_a_rollback_too(
    rig: Rig, outcomes: tuple[str, ...]
) -> None:
    """qpid-proton lists no outcomes, and understands all."""
    peer, session, control = begun(rig, outcomes=outcomes)
    id = control.declare()
    post(peer, peer.sender(session, "/exchanges/amq.direct/nobody"), id, "m", settled=True)
    assert error_of(control.discharge(id)).condition == ROLLBACK


def test_tx_13_a_client_that_does_not_know_rejected_loses_the_link(rig: Rig) -> None:
    peer, session, control = begun(rig, outcomes=("amqp:accepted:list",))
    id = control.declare()
    post(peer, peer.sender(session, "/exchanges/amq.direct/nobody"), id, "m", settled=True)
    control.ask(Discharge(id))
    assert detached(peer).condition == ROLLBACK


@pytest.mark.parametrize("outcomes", [("amqp:rejected:list",)])
def test_tx_d1_a_full_queue_refuses_all_of_it(rig: Rig, outcomes: tuple[str, ...]) -> None:
    rig.declare("full", max_length=1, overflow="reject-publish")
    fill(rig, 1)
    peer, session, control = begun(rig, outcomes=outcomes)
    peer.receiver(session, credit=1)
    id = control.declare()
    post(peer, peer.sender(session, "q"), id, "a")
    post(peer, peer.sender(session, "full"), id, "b", "c")
    retire(peer, peer.got[0], id, ACCEPTED, settled=False)
    error = error_of(control.discharge(id))
    assert error.condition == ROLLBACK
    assert "queue 'full'" in str(error.description)
    assert ready(rig, "full") == []
    assert counts(rig) == (0, 1, 0)  # in the client's hands again
    peer.settle(peer.got[0], ACCEPTED)
    assert counts(rig) == (0, 0, 1)


def test_tx_d1_a_queue_deleted_after_the_posting_refuses_all_of_it(rig: Rig) -> None:
    """The client was told that its message is taken: a commit without it would be none."""
    rig.declare("r")
    peer, session, control = begun(rig)
    id = control.declare()
    link = peer.sender(session, None)
    for to in ("q", "r"):
        link.send(encode_message(properties=Properties(to=to), body=b"m"), state=under(id))
    peer.pump()
    rig.delete("r")
    assert error_of(control.discharge(id)).condition == ROLLBACK
    assert ready(rig) == []


def test_tx_14_a_delay_counts_from_the_commit_a_moment_stays(rig: Rig) -> None:
    rig.declare("delayed")
    rig.declare("dated")
    peer, session, control = begun(rig)
    link = peer.sender(session, None)
    id = control.declare()
    due = rig.now_ms + 5_000
    for to, key, value in (
        ("delayed", "x-opt-delivery-delay", UInt(5_000)),
        ("dated", "x-opt-delivery-time", Timestamp(due)),
    ):
        message = encode_message(
            message_annotations={Symbol(key): value}, properties=Properties(to=to), body=b"m"
        )
        link.send(message, state=under(id))
    peer.pump()
    rig.now_ms += 3_000
    rig.turn()
    control.commit(id)
    assert (rig.queue("delayed").deferred, rig.queue("dated").deferred) == (1, 1)
    rig.now_ms = due
    peer.pump()
    assert (ready(rig, "delayed"), ready(rig, "dated")) == ([], ["m"])
    rig.now_ms += 2_900
    peer.pump()
    assert ready(rig, "delayed") == []
    rig.now_ms += 200
    peer.pump()
    assert ready(rig, "delayed") == ["m"]


def test_tx_14_a_time_to_live_counts_from_the_commit(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    id = control.declare()
    link.send(encode_message(header=Header(ttl=1_000), body=b"m"), state=under(id))
    peer.pump()
    rig.now_ms += 2_000
    rig.turn()
    control.commit(id)
    assert ready(rig) == ["m"]
    rig.now_ms += 2_000
    peer.pump()
    assert ready(rig) == []


def test_tx_14_direct_replies_leave_with_the_commit(rig: Rig) -> None:
    asker = rig.connect10()
    asked = Attach(name="r", source=Source(address="amq.rabbitmq.reply-to"), target=Target())
    waiting = asker.receiver(asker.session(), attach=asked, credit=5, snd=1)
    assert waiting.remote_attach is not None
    assert waiting.remote_attach.source is not None
    address = waiting.remote_attach.source.address
    peer, session, control = begun(rig)
    link = peer.sender(session, address)
    one, two = control.declare(), control.declare()
    assert peer.states(post(peer, link, one, "never")) == [under(one, ACCEPTED)]
    assert peer.states(post(peer, link, two, "a", "b")) == [under(two, ACCEPTED)] * 2
    asker.pump()
    assert asker.bodies() == []
    control.roll_back(one)
    control.commit(two)
    asker.pump()
    assert asker.bodies() == [b"a", b"b"]
    three = control.declare()
    copied = encode_message(message_annotations={"x-cc": ["q"]}, body=b"c")
    number = link.send(copied, state=under(three))
    peer.pump()
    assert peer.states([number]) == [under(three, ACCEPTED)]
    assert (asker.bodies(), ready(rig)) == ([], [])
    control.commit(three)
    asker.pump()
    assert (asker.bodies(), ready(rig)) == ([b"c"], ["c"])


def test_tx_14_to_a_stream(rig: Rig) -> None:
    rig.declare("log", queue_type="stream")
    peer, session, control = begun(rig)
    link = peer.sender(session, "log")
    one, two = control.declare(), control.declare()
    post(peer, link, one, "a", "b")
    post(peer, link, two, "never")
    control.roll_back(two)
    assert ready(rig, "log") == []
    control.commit(one)
    assert ready(rig, "log") == ["a", "b"]


def test_tx_14_by_headers_and_to_further_keys(rig: Rig) -> None:
    """Each message of a stretch may go elsewhere; their order in each queue stays."""
    rig.declare("r")
    vhost = rig.broker.vhost("/")
    for name in ("q", "r"):
        vhost.bind_queue(name, "amq.match", "", {"x-match": "all", "to": name}, rig.owner.id)
    peer, session, control = begun(rig)
    by_headers = peer.sender(session, "/exchanges/amq.match")
    direct = peer.sender(session, "q")
    id = control.declare()
    for n, to in enumerate(("q", "r", "r", "q", "nobody")):
        message = encode_message(application_properties={"to": to}, body=b"%d" % n)
        by_headers.send(message, state=under(id))
    further = {Symbol("x-cc"): ["r"]}
    direct.send(encode_message(message_annotations=further, body=b"5"), state=under(id))
    peer.pump()
    told = peer.states(range(1, 7))  # 0 was the declare
    assert told == [under(id, RELEASED if n == 4 else ACCEPTED) for n in range(6)]
    control.commit(id)
    assert ready(rig) == ["0", "3", "5"]
    assert ready(rig, "r") == ["1", "2", "5"]


def test_tx_14_large_messages_in_parts(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    id = control.declare()
    bodies = [f"{n}" * 300_000 for n in range(4)]
    for body in bodies:
        post(peer, link, id, body)
    assert ready(rig) == []
    control.commit(id)
    assert ready(rig) == bodies


def test_tx_16_discharge_works_after_the_publishing_link_was_detached(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    id = control.declare()
    post(peer, link, id, "m")
    link.detach()
    peer.pump()
    control.commit(id)
    assert ready(rig) == ["m"]


# -- the disk


def test_tx_d1_the_discharge_is_answered_when_the_disk_has_it(rig: Rig) -> None:
    fill(rig, 1)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=1)
    id = control.declare()
    post(peer, peer.sender(session), id, "m")
    retire(peer, peer.got[0], id, ACCEPTED)
    rig.hold_disk = True
    number = control.ask(Discharge(id))
    assert number not in peer.told
    another = control.ask(Declare())  # the link goes on meanwhile
    assert isinstance(peer.states([another])[0], Declared)
    rig.hold_disk = False
    peer.pump()
    assert peer.states([number]) == [ACCEPTED]
    assert ready(rig) == ["m"]


def test_tx_d1_posting_and_an_empty_commit_need_no_disk(rig: Rig) -> None:
    peer, session, control = begun(rig)
    link = peer.sender(session)
    rig.hold_disk = True
    id = control.declare()
    assert peer.states(post(peer, link, id, "m")) == [under(id, ACCEPTED)]
    control.roll_back(id)
    control.commit(control.declare())


# -- endings


@pytest.mark.parametrize("how", ["detach", "end", "close", "vanish"])
def test_tx_16_whatever_ends_the_coordinators_link_rolls_back(rig: Rig, how: str) -> None:
    fill(rig, 4)
    peer = rig.connect10()
    session, other = peer.session(), peer.session()
    control = Control(peer, session)
    peer.receiver(other, credit=3)
    id = control.declare()
    post(peer, peer.sender(other), id, "m")
    retire(peer, peer.got[0], id, ACCEPTED)
    retire(peer, peer.got[1], id, ACCEPTED, settled=False)
    if how == "detach":
        control.link.detach()
    elif how == "end":
        session.end()
    elif how == "close":
        peer.wire.close()
    if how == "vanish":
        peer.vanish()
    else:
        peer.pump()
    assert not rig.broker.transactions.open
    if how in ("detach", "end"):  # the consumer's session is another
        assert counts(rig) == (2, 2, 0)
        assert ready(rig) == ["0", "3"]
        peer.settle(peer.got[1], ACCEPTED)
        assert counts(rig) == (2, 1, 1)
    else:
        assert ready(rig) == ["0", "1", "2", "3"]
    assert rig.queue("q").entered == 4


def test_tx_16_an_ended_link_leaves_the_transactions_of_another(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    one, two = Control(peer, session), Control(peer, session)
    link = peer.sender(session)
    first, second = one.declare(), two.declare()
    post(peer, link, first, "first")
    post(peer, link, second, "second")
    one.link.detach()
    peer.pump()
    two.commit(second)
    assert ready(rig) == ["second"]


def test_tx_16_a_transaction_that_takes_too_long_ends_the_connection() -> None:
    rig = Rig(transaction_timeout_ms=1000)
    rig.declare("q")
    fill(rig, 2)
    peer, session, control = begun(rig)
    peer.receiver(session, credit=1)
    quick = control.declare()
    post(peer, peer.sender(session), quick, "quick")
    control.commit(quick)
    slow = control.declare()
    post(peer, peer.sender(session), slow, "slow")
    retire(peer, peer.got[0], slow, ACCEPTED)
    rig.now_ms += 900
    peer.pump()
    assert not [one for one in peer.events if isinstance(one, CloseReceived)]
    rig.now_ms += 200
    peer.pump()
    error = peer.take(CloseReceived).error
    assert error is not None
    assert error.condition == "amqp:transaction:timeout"
    assert ready(rig) == ["0", "1", "quick"]
    assert not rig.broker.transactions.open
