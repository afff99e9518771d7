"""AMQP 1.0: publishing on a link: addresses, outcomes, credit."""

from __future__ import annotations

import pytest

from tallymark.bridge.permissions import Permissions
from tallymark.stored.records import DROPPED_QUEUE_DELETED
from tallymark.wire.amqp10.events import (
    CreditReceived,
    LinkAttached,
    LinkDetached,
    LinkFailed,
    SettlementReceived,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Error,
    Rejected,
    Released,
)
from tallymark.wire.amqp10.performatives import Attach, Source, Target, Transfer
from tallymark.wire.amqp10.sections import Header, Properties, Sections, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.types import Symbol, UInt
from tests.bridge.rig10 import Peer, Rig

ACCEPTED = Accepted()
RELEASED = Released()


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q")
    return made


def held(rig: Rig, name: str = "q") -> list[bytes]:
    """The bodies of a queue's ready messages."""
    pieces = rig.broker.contents.pin(rig.queue(name))
    out = []
    for piece in pieces:
        raw = piece.payload.raw
        assert raw is not None
        cuts = piece.payload.cuts
        for i in range(piece.lo, piece.hi):
            (body,) = Sections(raw, cuts[i], cuts[i + 1]).bodies
            assert isinstance(body, bytes)
            out.append(body)
    rig.broker.contents.unpin(pieces)
    return out


def error_of(state: object) -> Error:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error


# -- addresses


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize(
    "address", ["/queues/q", "q", "/queue/q", "/amq/queue/q", "/exchanges/amq.direct/key"]
)
def test_what_an_address_stands_for_gets_the_messages(rig: Rig, address: str, chunk: int) -> None:
    rig.broker.vhost("/").bind_queue("q", "amq.direct", "key", {}, rig.owner.id)
    peer = rig.connect10(chunk=chunk)
    link = peer.sender(peer.session(), address)
    assert peer.states(peer.send(link, "one", "two")) == [ACCEPTED, ACCEPTED]
    assert held(rig) == [b"one", b"two"]


def test_names_in_addresses_are_percent_encoded(rig: Rig) -> None:
    rig.declare("a/b c%é")
    rig.broker.vhost("/").declare_exchange("e/x", "direct", True, False, False, {}, False)
    rig.broker.vhost("/").bind_queue("q", "e/x", "k/y", {}, rig.owner.id)
    peer = rig.connect10()
    session = peer.session()
    first = peer.sender(session, "/queues/a%2Fb%20c%25%C3%A9")
    second = peer.sender(session, "/exchanges/e%2Fx/k%2Fy")
    assert peer.states(peer.send(first, "1") + peer.send(second, "2")) == [ACCEPTED, ACCEPTED]
    assert held(rig, "a/b c%é") == [b"1"]
    assert held(rig) == [b"2"]


def test_an_exchange_without_a_key_has_the_empty_one(rig: Rig) -> None:
    rig.broker.vhost("/").bind_queue("q", "amq.fanout", "", {}, rig.owner.id)
    peer = rig.connect10()
    session = peer.session()
    for address in ("/exchanges/amq.fanout", "/exchanges/amq.fanout/"):
        assert peer.states(peer.send(peer.sender(session, address), "x")) == [ACCEPTED]
    assert rig.queue("q").ready == 2


@pytest.mark.parametrize(
    ("address", "condition", "text"),
    [
        ("/queues/none", "amqp:not-found", "no queue 'none' in vhost '/'"),
        ("none", "amqp:not-found", "no queue 'none' in vhost '/'"),
        ("/exchanges/none/k", "amqp:not-found", "no exchange 'none' in vhost '/'"),
        ("/queues/", "amqp:invalid-field", "bad address '/queues/'"),
        ("/queues/a/b", "amqp:invalid-field", "bad address '/queues/a/b'"),
        ("/queues/%zz", "amqp:invalid-field", "two hexadecimal digits"),
        ("/exchanges/", "amqp:invalid-field", "the name of an exchange"),
        ("/exchanges/amq.default/q", "amqp:invalid-field", "the name of an exchange"),
        ("/exchanges/a/b/c", "amqp:invalid-field", "each part percent-encoded"),
        ("/topic/t", "amqp:invalid-field", "bad address '/topic/t'"),
        ("/exchanges/inner/k", "amqp:unauthorized-access", "cannot publish to internal"),
        ("/queues/amq.rabbitmq.reply-to.x", "amqp:not-found", "amq.rabbitmq.reply-to.x"),
    ],
)
def test_an_address_that_stands_for_nothing_refuses_the_link(
    rig: Rig, address: str, condition: str, text: str
) -> None:
    rig.broker.vhost("/").declare_exchange("inner", "fanout", True, False, True, {}, False)
    peer = rig.connect10()
    session = peer.session()
    error = peer.refused(session, Attach(source=Source(), target=Target(address=address)), True)
    assert error.condition == condition
    assert text in (error.description or "")
    assert peer.sender(session, "/queues/q").credit == 170  # the session goes on


def test_a_queue_of_another_connection_is_there_to_publish_to(rig: Rig) -> None:
    """Its own is where a client of another connection is answered; only reading it is locked."""
    own = rig.broker.registry.declare_queue(rig.owner, "own", False, True, False, {}, False)
    peer = rig.connect10()
    session = peer.session()
    error = peer.refused(session, Attach(source=Source(address="own")), False)
    assert error.condition == "amqp:resource-locked"
    assert peer.states(peer.send(peer.sender(session, "own"), "an answer")) == [ACCEPTED]
    assert own.ready == 1


def test_permission_to_write_is_the_exchanges(rig: Rig) -> None:
    rig.users["guest"] = Permissions("guest", {"/": ("", "^amq\\.topic$", "")})
    peer = rig.connect10()
    session = peer.session()
    error = peer.refused(session, Attach(target=Target(address="/queues/q")), True)
    assert error.condition == "amqp:unauthorized-access"
    assert "access to exchange 'amq.default'" in (error.description or "")
    assert peer.sender(session, "/exchanges/amq.topic/x").credit


def test_no_target_at_all_is_refused(rig: Rig) -> None:
    peer = rig.connect10()
    assert peer.refused(peer.session(), Attach(), True).condition == "amqp:invalid-field"


# -- the anonymous terminus


def test_each_message_may_say_where_it_goes(rig: Rig) -> None:
    rig.declare("r")
    peer = rig.connect10()
    link = peer.sender(peer.session(), None)
    where = ["/queues/q", "/queues/r", "/queues/q", "/exchanges/amq.direct/nobody", "r", "q"]
    numbers = [
        link.send(encode_message(properties=Properties(to=to), body=str(i).encode()))
        for i, to in enumerate(where)
    ]
    peer.pump()
    expected = [ACCEPTED, ACCEPTED, ACCEPTED, RELEASED, ACCEPTED, ACCEPTED]
    assert peer.states(numbers) == expected
    assert held(rig) == [b"0", b"2", b"5"]
    assert held(rig, "r") == [b"1", b"4"]


@pytest.mark.parametrize(
    ("to", "condition"),
    [
        (None, "amqp:precondition-failed"),
        ("/nonsense", "amqp:precondition-failed"),
        ("/exchanges/none/x", "amqp:not-found"),
        ("/exchanges/closed/x", "amqp:unauthorized-access"),
        ("/exchanges/inner/x", "amqp:unauthorized-access"),
        ("/exchanges/inner-headers/x", "amqp:unauthorized-access"),
    ],
)
def test_a_message_that_goes_nowhere_is_rejected_and_the_others_are_not(
    rig: Rig, to: str | None, condition: str
) -> None:
    declare = rig.broker.vhost("/").declare_exchange
    declare("closed", "fanout", True, False, False, {}, False)
    declare("inner", "fanout", True, False, True, {}, False)
    declare("inner-headers", "headers", True, False, True, {}, False)
    rig.users["guest"] = Permissions("guest", {"/": (".*", "^(?!closed)", ".*")})
    peer = rig.connect10()
    link = peer.sender(peer.session(), None)
    numbers = [
        link.send(encode_message(properties=Properties(to=address), body=b"x"))
        for address in ("q", to, "q")
    ]
    peer.pump()
    first, middle, last = peer.states(numbers)
    assert (first, last) == (ACCEPTED, ACCEPTED)
    assert error_of(middle).condition == condition
    assert rig.queue("q").ready == 2


@pytest.mark.parametrize("settled", [True, False])
def test_who_cannot_hear_of_a_rejection_loses_the_link(rig: Rig, settled: bool) -> None:
    """Settled already, or rejected is none of the outcomes it knows [amqp-1.0 anonterm]."""
    peer = rig.connect10()
    session = peer.session()
    source = Source(outcomes=("amqp:accepted:list", "amqp:released:list"))
    link = peer.sender(session, attach=Attach(source=source, target=Target()))
    link.send(encode_message(properties=Properties(to="q"), body=b"x"), settled=settled)
    link.send(encode_message(properties=Properties(to="/bad"), body=b"x"), settled=settled)
    link.send(encode_message(properties=Properties(to="q"), body=b"x"), settled=settled)
    peer.pump()
    detached = peer.take(LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == "amqp:precondition-failed"
    assert rig.queue("q").ready == 1, "what came behind it is not published"


# -- outcomes


def test_unroutable_messages_are_released(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session(), "/exchanges/amq.topic/nobody")
    assert peer.states(peer.send(link, "1", "2")) == [RELEASED, RELEASED]
    assert peer.send(link, "3", settled=True)
    assert rig.broker.publishing.published == 3
    assert (rig.broker.traffic.returned, rig.broker.traffic.discarded) == (2, 1)


def test_accepted_leaves_only_when_the_disk_has_it(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    rig.hold_disk = True
    (number,) = peer.send(link, "x")
    assert number not in peer.told
    assert rig.queue("q").ready == 1
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert peer.states([number]) == [ACCEPTED]


def test_confirms_of_many_are_one_disposition(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    first, second = peer.sender(session), peer.sender(session, "/exchanges/amq.topic/x")
    rig.broker.vhost("/").bind_queue("q", "amq.topic", "x", {}, rig.owner.id)
    peer.sent_bytes.clear()
    numbers = []
    for _ in range(10):
        numbers += [first.send(encode_message(body=b"a")), second.send(encode_message(body=b"b"))]
    peer.pump()
    assert peer.states(numbers) == [ACCEPTED] * 20
    said = b"".join(peer.sent_bytes)
    assert said.count(b"\x00\x53\x15") == 1, "over all links of the session"


def test_a_full_queue_rejects_dl_6(rig: Rig) -> None:
    rig.declare("full", max_length=2, overflow="reject-publish")
    peer = rig.connect10()
    link = peer.sender(peer.session(), "full")
    states = peer.states(peer.send(link, "1", "2", "3", "4"))
    assert states[:2] == [ACCEPTED, ACCEPTED]
    for state in states[2:]:
        error = error_of(state)
        assert error.condition == "amqp:resource-limit-exceeded"
        assert error.info is not None
        assert error.info["reason"] == "maxlen"
        assert error.info["queue"] == "full"
    assert held(rig, "full") == [b"1", b"2"]
    assert link.session.connection.state.value == "OPENED"


def test_refused_ones_come_back_as_credit(rig: Rig) -> None:
    rig.declare("full", max_length=0, overflow="reject-publish")
    peer = rig.connect10()
    link = peer.sender(peer.session(), "full")
    for _ in range(5):
        numbers = peer.send(link, *["x"] * 100)
        assert len(peer.states(numbers)) == 100
    assert link.credit > 0


def test_settled_messages_get_no_disposition_fc_10(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session(), snd=1)
    peer.sent_bytes.clear()
    peer.send(link, *["x"] * 10, settled=True)
    assert rig.queue("q").ready == 10
    assert not peer.told
    assert b"\x00\x53\x15" not in b"".join(peer.sent_bytes)


def test_mixed_settle_modes_on_one_link(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    numbers = []
    for i in range(9):
        number = link.send(encode_message(body=b"%d" % i), settled=i % 3 == 1)
        if i % 3 != 1:
            numbers.append(number)
    peer.pump()
    assert peer.states(numbers) == [ACCEPTED] * 6
    assert not peer.told
    assert held(rig) == [b"%d" % i for i in range(9)]


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_sender_may_ask_for_mode_second_fc_12(rig: Rig, chunk: int) -> None:
    """Our outcome is not settled until the sender has settled it; till then it counts."""
    peer = rig.connect10(chunk=chunk)
    peer.auto_settle_second = False
    session = peer.session()
    link = peer.sender(session, rcv=1)
    assert link.rcv_settle_mode == 1
    first, second = peer.send(link, "1", "2")
    for number in (first, second):
        told = peer.told.pop(number)
        assert (told.states, told.settled) == ([ACCEPTED], False)
    end = peer.bridge.client.sessions[0].ends  # type: ignore[union-attr]
    (incoming,) = end
    assert incoming.unconfirmed == 2  # type: ignore[attr-defined]
    session.settle_sent(first, second, ACCEPTED)
    peer.pump()
    assert incoming.unconfirmed == 0  # type: ignore[attr-defined]
    (third,) = peer.send(link, "3", settled=True)
    assert third not in peer.told


def test_the_modes_asked_for_are_those_in_effect_fc_9(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    for snd in (0, 1, 2, None):
        for rcv in (0, 1, None):
            link = peer.sender(session, snd=snd, rcv=rcv)
            assert link.snd_settle_mode == (2 if snd is None else snd)
            assert link.rcv_settle_mode == (rcv or 0)


def test_a_sender_that_settles_first_is_told_nothing_more(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    rig.hold_disk = True
    numbers = peer.send(link, "1", "2", "3")
    link.session.settle_sent(numbers[1], numbers[1], None)
    peer.pump()
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert sorted(peer.told) == [numbers[0], numbers[2]]
    (incoming,) = peer.bridge.client.sessions[0].ends  # type: ignore[union-attr]
    assert incoming.unconfirmed == 0  # type: ignore[attr-defined]


def test_unsound_messages_are_rejected_one_by_one(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    good = encode_message(body=b"x")
    bad = [
        b"",
        b"\x00\x53\x75",
        b"garbage",
        encode_message(delivery_annotations={Symbol("x"): 1}, body=b"")[:-5],
        b"\x00\x53\x75\xa0\x05ab",
        encode_message(body=b"x") + encode_message(header=Header(), body=b"y"),
        b"\x00\x53\x70\xc0\x03\x01\xa1\x01x\x00\x53\x75\xa0\x01x",
        b"\x00\x53\x70",
    ]
    numbers = [link.send(data) for one in bad for data in (good, one)]
    numbers.append(link.send(good))
    peer.pump()
    states = peer.states(numbers)
    for i, state in enumerate(states):
        if i % 2 == 0:
            assert state == ACCEPTED
        else:
            assert error_of(state).condition == "amqp:decode-error", bad[i // 2]
    assert rig.queue("q").ready == len(bad) + 1
    text = error_of(states[-2]).description
    assert text is not None
    assert text.endswith("begins with 005370"), "of that message only"


def test_another_message_format_is_not_implemented(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    number = link.send(b"whatever", message_format=7)
    peer.pump()
    (state,) = peer.states([number])
    assert error_of(state).condition == "amqp:not-implemented"


def test_the_user_id_must_be_the_users_own(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    numbers = [
        link.send(encode_message(properties=Properties(user_id=id), body=b"x"))
        for id in (b"guest", b"root", None, b"guest")
    ]
    peer.pump()
    states = peer.states(numbers)
    assert [states[i] for i in (0, 2, 3)] == [ACCEPTED] * 3
    error = error_of(states[1])
    assert error.condition == "amqp:unauthorized-access"
    assert "user_id property set to 'root'" in (error.description or "")
    assert rig.queue("q").ready == 3


@pytest.mark.parametrize("together", [True, False])
def test_a_refusal_that_ends_the_link_leaves_nothing_in_its_dynamic_queue(
    rig: Rig, together: bool
) -> None:
    """The messages before it are in the queue, and go with it."""
    peer = rig.connect10()
    asked = Attach(source=Source(), target=Target(dynamic=True))
    link = peer.sender(peer.session(), attach=asked)
    (queue,) = [one for name, one in rig.broker.vhost("/").queues.items() if name != "q"]
    for id in (b"guest", b"guest", b"root"):
        link.send(encode_message(properties=Properties(user_id=id), body=b"x"), settled=True)
        if not together:
            peer.pump()
    peer.pump()
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert queue.deleted
    assert queue.account.dropped == {DROPPED_QUEUE_DELETED: 2}
    queue.account.check()
    assert (queue.ready, rig.broker.store.resident_bytes) == (0, 0)


def test_a_transfer_in_a_state_that_means_nothing_there_ends_the_link(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    link.send(encode_message(body=b"x"), state=ACCEPTED)
    peer.pump()
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:not-implemented"
    assert rig.queue("q").ready == 0


# -- what the broker makes of a message


def test_delivery_annotations_end_here_and_nothing_else_changes(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session)
    bare = encode_message(properties=Properties(subject="s"), body=b"x")
    front = encode_message(
        delivery_annotations={Symbol("x-hop"): 1}, message_annotations={Symbol("x-mine"): 7},
        body=b"",
    )[: -len(encode_message(body=b""))]  # fmt: skip
    link.send(front + bare)
    link.send(bare)
    peer.pump()
    peer.receiver(session, credit=2)
    first, second = peer.got
    assert first.data.endswith(bare)
    assert second.data.endswith(bare)
    assert first.sections.delivery_annotations is None
    assert first.sections.message_annotations is not None
    assert first.sections.message_annotations["x-mine"] == 7
    assert "x-mine" not in (second.sections.message_annotations or {})


def test_header_ttl_and_durable_are_acted_upon(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    peer.send(link, "short", header=Header(ttl=1))
    peer.send(link, "long", header=Header(ttl=1_000_000))
    link.send(b"\x00\x53\x70\xc0\x02\x01\x42" + encode_message(body=b"passing"))
    peer.pump()
    rig.now_ms += 10
    rig.settle_down()
    assert held(rig) == [b"long", b"passing"]
    persistent = [piece.payload.persistent for piece in rig.queue("q").slices()]
    assert persistent == [True, False]


def test_deliveries_may_be_deferred(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    for key in ("x-opt-delivery-delay", "x-opt-delivery-time"):
        when = 5_000 if key.endswith("delay") else rig.now_ms + 5_000
        peer.send(link, key, message_annotations={Symbol(key): UInt(when)})
    assert (rig.queue("q").ready, rig.queue("q").deferred) == (0, 2)
    rig.now_ms += 6_000
    rig.settle_down()
    assert (rig.queue("q").ready, rig.queue("q").deferred) == (2, 0)


def test_x_cc_adds_routing_keys(rig: Rig) -> None:
    rig.declare("r")
    peer = rig.connect10()
    link = peer.sender(peer.session())
    numbers = peer.send(link, "x", message_annotations={Symbol("x-cc"): ["r"]})
    assert peer.states(numbers) == [ACCEPTED]
    assert held(rig) == held(rig, "r") == [b"x"]


def test_application_properties_route_through_a_headers_exchange(rig: Rig) -> None:
    rig.declare("r")
    vhost = rig.broker.vhost("/")
    vhost.bind_queue("q", "amq.headers", "", {"x-match": "all", "kind": "a"}, rig.owner.id)
    vhost.bind_queue("r", "amq.headers", "", {"x-match": "all", "kind": "b"}, rig.owner.id)
    peer = rig.connect10()
    link = peer.sender(peer.session(), "/exchanges/amq.headers")
    numbers = [
        link.send(encode_message(application_properties={"kind": kind}, body=b"%d" % i))
        for i, kind in enumerate(["a", "b", "c", "a"])
    ]
    peer.pump()
    assert peer.states(numbers) == [ACCEPTED, ACCEPTED, RELEASED, ACCEPTED]
    assert held(rig) == [b"0", b"3"]
    assert held(rig, "r") == [b"1"]


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_message_of_many_frames(chunk: int) -> None:
    rig = Rig(Limits(max_frame_size=512))
    rig.declare("q")
    peer = rig.connect10(chunk=chunk, limits=Limits(max_frame_size=512))
    session = peer.session()
    body = bytes(range(256)) * 20
    link = peer.sender(session)
    assert peer.states(peer.send(link, body, "small", body)) == [ACCEPTED] * 3
    peer.receiver(session, credit=3)
    assert peer.bodies() == [body, b"small", body]


def test_a_message_above_the_limit_costs_the_link() -> None:
    rig = Rig(Limits(max_message_size=1000))
    rig.declare("q")
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session)
    assert link.max_message_size == 1000
    peer.send(link, bytes(2000))
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:link:message-size-exceeded"
    assert peer.sender(session).credit


# -- credit [FC-8]


def credits(peer: Peer) -> list[int]:
    """What was granted since the last call."""
    found = [event for event in peer.events if isinstance(event, CreditReceived)]
    peer.events = [event for event in peer.events if event not in found]
    return [event.credit for event in found]


def test_fc_8_credit_is_170_and_again_when_half_is_used(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    assert credits(peer) == [170]
    peer.send(link, *["x"] * 84)
    assert credits(peer) == []
    assert link.credit == 86
    peer.send(link, "x")
    assert credits(peer) == [170]
    assert link.credit == 170


def test_fc_8_nothing_is_granted_while_too_much_is_unconfirmed(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    rig.hold_disk = True
    peer.send(link, *["x"] * 170)
    assert link.credit == 0
    credits(peer)
    peer.pump()
    assert link.credit == 0
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert credits(peer) == [170]
    rig.hold_disk = True
    peer.send(link, *["x"] * 85)
    assert link.credit == 170, "85 unconfirmed are not too many"
    peer.send(link, *["x"] * 85)
    assert (link.credit, rig.queue("q").ready) == (85, 340)


def test_the_measure_of_credit_is_a_setting() -> None:
    rig = Rig(link_credit=4)
    rig.declare("q")
    peer = rig.connect10()
    assert peer.sender(peer.session()).credit == 4


def overshoot(peer: Peer, link: SenderLink, id: int) -> None:
    """Send a message that there is no credit for; our own wire layer does no such thing."""
    transfer = Transfer(handle=link.handle, delivery_id=id, delivery_tag=b"t", message_format=0)
    peer.wire.line.out.append(frame(0, transfer.encode() + encode_message(body=b"one too many")))
    peer.pump()


def test_fc_4_a_sender_without_credit_loses_the_link(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session())
    rig.hold_disk = True
    peer.send(link, *["x"] * 170)
    overshoot(peer, link, 170)
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:link:transfer-limit-exceeded"
    assert rig.queue("q").ready == 170


def test_fc_7_an_alarm_closes_windows_and_stops_credit(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session)
    credits(peer)
    peer.bridge.block("low on memory")
    peer.send(link, *["x"] * 170)
    assert (link.credit, credits(peer)) == (0, [])
    later = peer.attach(session, Attach(source=Source(), target=Target(address="q")), True)
    assert isinstance(later, SenderLink)
    assert later.credit == 0
    peer.take(LinkAttached)
    consumer = peer.receiver(session, credit=5)
    assert len(peer.bodies()) == 5, "consumers go on"
    assert consumer.credit == 0
    peer.bridge.unblock()
    peer.pump()
    assert link.credit == later.credit == 170


def test_fc_7_the_window_stays_open_over_a_million_frames_of_nothing(rig: Rig) -> None:
    """More transfers than the window, in one go after the other."""
    peer = rig.connect10()
    link = peer.sender(peer.session())
    for _ in range(12):
        peer.states(peer.send(link, *["x"] * link.credit))
    assert rig.queue("q").ready == 12 * 170


# -- ends


def test_a_queue_that_is_deleted_takes_its_publishers_links_with_it(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session)
    other = peer.sender(session, "/exchanges/amq.topic/x")
    rig.delete("q")
    assert peer.bridge in rig.replies.take_written(), "whoever owns the sockets flushes it"
    peer.pump()
    detached = peer.take(LinkDetached)
    assert detached.link is link
    assert detached.error is not None
    assert detached.error.condition == "amqp:resource-deleted"
    link.detach()
    assert peer.states(peer.send(other, "x")) == [RELEASED]


def test_an_exchange_that_is_deleted_ends_the_link_at_the_next_message(rig: Rig) -> None:
    vhost = rig.broker.vhost("/")
    vhost.declare_exchange("e", "fanout", True, False, False, {}, False)
    vhost.bind_queue("q", "e", "", {}, rig.owner.id)
    peer = rig.connect10()
    link = peer.sender(peer.session(), "/exchanges/e")
    assert peer.states(peer.send(link, "1")) == [ACCEPTED]
    vhost.delete_exchange("e", False)
    numbers = peer.send(link, "2")
    assert peer.states(numbers) == [RELEASED]
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:not-found"


@pytest.mark.parametrize("chunk", [0, 1, 100])
@pytest.mark.parametrize("rcv", [0, 1])
def test_the_first_message_that_an_exchange_misses_is_released_and_the_others_end_with_the_link(
    rig: Rig, chunk: int, rcv: int
) -> None:
    """However many the broker reads at once: it released all that came in one read."""
    vhost = rig.broker.vhost("/")
    vhost.declare_exchange("e", "fanout", True, False, False, {}, False)
    vhost.bind_queue("q", "e", "", {}, rig.owner.id)
    peer = rig.connect10(chunk=chunk)
    link = peer.sender(peer.session(), "/exchanges/e", rcv=rcv)
    vhost.delete_exchange("e", False)
    first, *_ = peer.send(link, "1", "2", "3")
    assert peer.told.pop(first).states == [RELEASED]
    assert peer.told == {}
    error = peer.take(LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:not-found"


def test_a_new_binding_counts_at_once(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session(), "/exchanges/amq.topic/a")
    assert peer.states(peer.send(link, "1")) == [RELEASED]
    rig.broker.vhost("/").bind_queue("q", "amq.topic", "#", {}, rig.owner.id)
    assert peer.states(peer.send(link, "2")) == [ACCEPTED]
    assert held(rig) == [b"2"]


def test_confirms_of_a_link_that_is_gone_are_not_sent(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session)
    rig.hold_disk = True
    (number,) = peer.send(link, "x")
    link.detach()
    peer.pump()
    peer.events.clear()
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert number not in peer.told
    assert not peer.events
    assert rig.queue("q").ready == 1
    assert peer.states(peer.send(peer.sender(session), "y")) == [ACCEPTED]


def test_a_dynamic_target_is_a_queue_that_goes_with_the_link(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session, attach=Attach(source=Source(), target=Target(dynamic=True)))
    target = link.remote_attach.target  # type: ignore[union-attr]
    assert isinstance(target, Target)
    assert target.dynamic
    assert target.address is not None
    assert target.address.startswith("/queues/amq.gen-")
    name = target.address[len("/queues/") :]
    assert peer.states(peer.send(link, "x")) == [ACCEPTED]
    assert rig.queue(name).exclusive_owner
    reader = peer.receiver(session, target.address, credit=1)
    assert peer.bodies() == [b"x"]
    reader.detach()
    peer.pump()
    peer.take(LinkDetached)
    assert rig.queue(name).ready == 1, "the link whose node it is is still there"
    assert peer.states(peer.send(link, "y")) == [ACCEPTED]
    link.detach()
    peer.pump()
    assert name not in rig.broker.vhost("/").queues


@pytest.mark.parametrize("by_policy", [True, False])
def test_an_attach_may_declare_a_durable_queue(by_policy: bool) -> None:
    from tallymark.engine.policies import QUEUES, Policy

    rig = Rig(auto_create="" if by_policy else "^jobs-")
    if by_policy:
        rig.broker.registry.set_policy(
            "/", Policy("auto", "^jobs-", {"auto-create": True}, 0, QUEUES)
        )
    peer = rig.connect10()
    session = peer.session()
    rig.hold_disk = True
    asked = Attach(name="l", source=Source(), target=Target(address="/queues/jobs-1"))
    link = peer.attach(session, asked, True)
    assert not peer.events, "not attached before the disk has the queue"
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert isinstance(link, SenderLink)
    assert link.credit == 170
    assert rig.queue("jobs-1").durable
    peer.events.clear()
    peer.receiver(session, "jobs-2", credit=1)
    assert rig.queue("jobs-2").durable
    refused = peer.refused(session, Attach(target=Target(address="work")), True)
    assert refused.condition == "amqp:not-found"


def test_a_queue_that_an_attach_declares_gets_the_default_type() -> None:
    rig = Rig(auto_create="^jobs-")
    rig.broker.registry.set_default_queue_type(rig.broker.vhost("/"), "stream")
    peer = rig.connect10()
    peer.sender(peer.session(), "jobs-1")
    assert rig.queue("jobs-1").settings.is_stream


def test_an_attach_declares_no_queue_whose_name_has_a_line_break() -> None:
    rig = Rig(auto_create="^jobs-")
    peer = rig.connect10()
    asked = Attach(target=Target(address="/queues/jobs-%0A"))
    assert peer.refused(peer.session(), asked, True).condition == "amqp:invalid-field"
    assert "jobs-" not in rig.broker.vhost("/").queues


def test_auto_create_needs_permission_to_configure() -> None:
    rig = Rig(auto_create="^jobs-")
    rig.users["guest"] = Permissions("guest", {"/": ("^other", ".*", ".*")})
    peer = rig.connect10()
    refused = peer.refused(peer.session(), Attach(target=Target(address="jobs-1")), True)
    assert refused.condition == "amqp:unauthorized-access"
    assert "jobs-1" not in rig.broker.vhost("/").queues


def test_link_recovery_is_answered_without_resumption(rig: Rig) -> None:
    """A client that still has unsettled deliveries of an earlier link attaches anew: it hears that
    we know nothing of them, and the link is usable [amqp-1.0 §2.6.13]."""
    peer = rig.connect10()
    asked = Attach(
        name="l", source=Source(), target=Target(address="q"), unsettled={b"tag": None},
    )  # fmt: skip
    link = peer.sender(peer.session(), attach=asked)
    assert link.remote_attach is not None
    assert link.remote_attach.unsettled is None
    assert not link.remote_attach.incomplete_unsettled
    assert peer.states(peer.send(link, "x")) == [ACCEPTED]


def test_nothing_is_left_of_failed_links(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.sender(session)
    peer.sender(session, "/exchanges/amq.topic/x").detach()
    rig.hold_disk = True
    peer.send(link, *["x"] * 170)
    overshoot(peer, link, 170)
    peer.events = [event for event in peer.events if getattr(event, "link", None) is link]
    assert peer.take(LinkDetached).error is not None
    assert not [event for event in peer.events if isinstance(event, LinkFailed)]
    assert not [event for event in peer.events if isinstance(event, SettlementReceived)]
    client = peer.bridge.client
    assert client is not None
    assert not client.sessions[0].ends
