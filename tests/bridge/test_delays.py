"""The header x-delay and the exchange type x-delayed-message, from frame to frame."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from tallymark.bridge.amqp091.special import LONGEST_DELAY_MS, delay_of
from tallymark.engine.queue import Queue
from tallymark.wire.amqp091.fields import Timestamp, WireInt
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ConfirmSelect,
    ConnectionClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from tallymark.wire.amqp091.properties import Properties
from tests.bridge.rig import Content, Heard, Peer, Rig


def declare(peer: Peer, *names: str, **arguments: object) -> None:
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    for name in names:
        peer.ask(QueueDeclare(name, durable=True, arguments=table))


def queue(peer: Peer, name: str = "q") -> Queue:
    return peer.rig.broker.vhosts["/"].queues[name]


def wait(peer: Peer, until_ms: int) -> None:
    """Let the broker do what is due at that time, and nothing later."""
    peer.rig.now_ms = until_ms - 1
    peer.rig.settle_down()


def taken(peer: Peer, name: str = "q") -> list[Content]:
    """Everything ready."""
    found = []
    while True:
        ((_, got),) = peer.ask(BasicGet(name, no_ack=True))
        if isinstance(got, BasicGetEmpty):
            return found
        assert isinstance(got, Content)
        found.append(got)


def bodies(peer: Peer, name: str = "q") -> list[bytes]:
    return [content.body for content in taken(peer, name)]


def connected() -> Peer:
    peer = Rig().connect()
    peer.rig.now_ms = 1_700_000_000_000
    return peer


# -- what is a delay


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (5, 5), (1, 1), (LONGEST_DELAY_MS, LONGEST_DELAY_MS), (LONGEST_DELAY_MS + 1, 0),
        (0, 0), (-5, 0), (1 << 63, 0),
        *[(WireInt(100, tag), 100) for tag in "bBsuIilL"],
        (WireInt(-100, "b"), 0), (WireInt(255, "B"), 255),
        (100.9, 100), (0.5, 0), (-3.5, 0), (math.nan, 0), (math.inf, 0), (-math.inf, 0), (1e300, 0),
        ("100", 100), ("+100", 100), ("-100", 0), ("0100", 100), (b"100", 100), ("", 0), (" 5", 0),
        ("5 ", 0), ("5\n", 0), ("soon", 0), ("1.5", 0), ("0x10", 0), ("٣", 0), ("\udcff", 0),
        ("9" * 5000, 0), ("4294967296", 0), ("4294967295", LONGEST_DELAY_MS),
        (True, 0), (None, 0), ([100], 0), ({"x-delay": 100}, 0), (Decimal(100), 0),
        (Timestamp(100), 0),
    ],
)  # fmt: skip
def test_what_the_plugin_takes_for_a_delay(value: object, ms: int) -> None:
    assert delay_of(value) == ms


@pytest.mark.parametrize(
    "value",
    [0, -100, LONGEST_DELAY_MS + 1, "soon", True, [100], None, WireInt(-1, "s"), Timestamp(100)],
)
def test_what_is_no_delay_is_ready_at_once_and_shown_as_it_came(value: object) -> None:
    peer = connected()
    declare(peer, "q")
    peer.ask(peer.publish(b"x", headers={"x-delay": value, "o": 1}))
    (found,) = taken(peer)
    assert found.properties == Properties(headers={"x-delay": value, "o": 1})
    assert queue(peer).deferred == 0


# -- waiting


@pytest.mark.parametrize("value", [*[WireInt(100, tag) for tag in "bBsuIilL"], "100", 100.5])
def test_a_delayed_message_is_delivered_when_its_time_has_come_with_the_delay_negated(
    value: object,
) -> None:
    peer = connected()
    declare(peer, "q")
    peer.ask(BasicConsume("q", "c", no_ack=True))
    sent_ms = peer.rig.now_ms
    sent = peer.publish(
        b"body", headers={"a": 1, "x-delay": value, "z": [2]}, message_id="m", delivery_mode=2
    )
    assert peer.ask(sent) == []
    assert (queue(peer).ready, queue(peer).deferred) == (0, 1)
    assert peer.rig.broker.next_due() == sent_ms + 100
    wait(peer, sent_ms + 99)
    assert peer.heard_now() == []
    wait(peer, sent_ms + 100)
    ((_, got),) = peer.hear()
    assert isinstance(got, Content)
    assert got.method == BasicDeliver("c", 1, False, "", "q")
    headers = {"a": 1, "x-delay": -100, "z": [2]}
    assert got.properties == Properties(headers=headers, message_id="m", delivery_mode=2)
    assert list(got.properties.headers or {}) == ["a", "x-delay", "z"]
    assert got.body == b"body"
    assert queue(peer).deferred == 0


def test_delays_of_many_kinds_in_one_read_are_each_their_own() -> None:
    peer = connected()
    declare(peer, "q")
    sent_ms = peer.rig.now_ms
    delays = [500, 100, None, 300, 200, 200, 100, None, -7, 400]
    sent = b"".join(
        peer.publish(b"%d" % i, headers=None if delay is None else {"x-delay": delay})
        for i, delay in enumerate(delays)
    )
    heard = peer.ask(ConfirmSelect(no_wait=True), sent)
    assert heard == [(1, BasicAck(10, True))]
    assert (queue(peer).ready, queue(peer).deferred) == (3, 7)
    assert bodies(peer) == [b"2", b"7", b"8"]
    for after, expected in (
        (99, []), (100, [b"1", b"6"]), (200, [b"4", b"5"]), (300, [b"3"]), (399, []),
        (400, [b"9"]), (500, [b"0"]),
    ):  # fmt: skip
        wait(peer, sent_ms + after)
        assert bodies(peer) == expected, after
    peer.rig.broker.check()


def test_any_split_of_the_bytes_gives_the_same() -> None:
    def run(cut: int) -> list[bytes]:
        peer = connected()
        declare(peer, "q")
        sent_ms = peer.rig.now_ms
        raw = b"".join(
            peer.publish(b"%d" % i, headers={"x-delay": 2000 - 100 * i, "n": i % 2})
            for i in range(8)
        )
        for at in range(0, len(raw), cut):
            peer.rig.now_ms = sent_ms
            peer.ask(raw[at : at + cut])
        wait(peer, sent_ms + 1700)
        assert queue(peer).deferred == 3
        wait(peer, sent_ms + 2000)
        return bodies(peer)

    whole = run(1 << 20)
    assert whole == [b"%d" % i for i in reversed(range(8))]
    assert run(7) == run(61) == whole


def test_every_queue_it_is_routed_to_holds_it_back_and_confirms_do_not_wait_for_it() -> None:
    peer = connected()
    declare(peer, "a", "b")
    for name in ("a", "b"):
        peer.ask(QueueBind(name, "amq.fanout", ""))
    sent = peer.publish(b"x", "", exchange="amq.fanout", headers={"x-delay": 50}, delivery_mode=2)
    sent_ms = peer.rig.now_ms
    assert peer.ask(ConfirmSelect(no_wait=True), sent) == [(1, BasicAck(1, False))]
    assert [queue(peer, name).deferred for name in ("a", "b")] == [1, 1]
    wait(peer, sent_ms + 50)
    assert bodies(peer, "a") == bodies(peer, "b") == [b"x"]


def test_routing_happens_when_it_is_published() -> None:
    peer = connected()
    declare(peer, "early", "late")
    peer.ask(QueueBind("early", "amq.direct", "k"))
    sent_ms = peer.rig.now_ms
    peer.ask(peer.publish(b"x", "k", exchange="amq.direct", headers={"x-delay": 50}))
    peer.ask(QueueBind("late", "amq.direct", "k"))
    wait(peer, sent_ms + 50)
    assert (bodies(peer, "early"), bodies(peer, "late")) == ([b"x"], [])


def test_cc_bcc_and_expiration_beside_a_delay_and_the_time_to_live_begins_when_it_is_ready() -> (
    None
):
    peer = connected()
    declare(peer, "a", "b", "c")
    sent_ms = peer.rig.now_ms
    table = {"CC": ["b"], "BCC": ["c"], "x-delay": 100}
    peer.ask(peer.publish(b"x", "a", headers=table, expiration="30"))
    wait(peer, sent_ms + 100)
    (found,) = taken(peer, "a")
    assert found.properties == Properties(headers={"CC": ["b"], "x-delay": -100}, expiration="30")
    wait(peer, sent_ms + 129)
    assert (queue(peer, "b").ready, queue(peer, "c").ready) == (1, 1)
    assert bodies(peer, "b") == [b"x"]
    wait(peer, sent_ms + 130)
    assert (queue(peer, "b").ready, queue(peer, "c").ready) == (0, 0)
    peer.rig.broker.check()


def test_a_dead_letter_does_not_wait_again() -> None:
    peer = connected()
    declare(peer, "dead")
    declare(peer, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    sent_ms = peer.rig.now_ms
    peer.ask(peer.publish(b"x", headers={"x-delay": 100}))
    wait(peer, sent_ms + 100)
    ((_, got),) = peer.ask(BasicGet("q"))
    assert isinstance(got, Content)
    peer.ask(BasicReject(1, False))
    assert (queue(peer, "dead").ready, queue(peer, "dead").deferred) == (1, 0)
    (letter,) = taken(peer, "dead")
    assert (letter.properties.headers or {})["x-delay"] == -100


def test_what_was_delivered_does_not_wait_again_where_it_is_published_anew() -> None:
    peer = connected()
    declare(peer, "q")
    sent_ms = peer.rig.now_ms
    peer.ask(peer.publish(b"x", headers={"x-delay": 100}))
    wait(peer, sent_ms + 100)
    (found,) = taken(peer)
    peer.ask(peer.publish(b"x", headers=found.properties.headers))
    assert len(taken(peer)) == 1


@pytest.mark.parametrize("more", [{}, {"BCC": ["nobody"]}])
def test_a_mandatory_message_that_nobody_takes_comes_back_with_its_delay(
    more: dict[str, object],
) -> None:
    """The plugin sends every delayed one back, taken or not; here routing is known at once."""
    peer = connected()
    declare(peer, "q")
    table = {"x-delay": 100, **more}
    ((_, got),) = peer.ask(peer.publish(b"x", "no", mandatory=True, headers=table))
    assert got == Content(
        BasicReturn(312, "NO_ROUTE", "", "no"), Properties(headers={"x-delay": 100}), b"x"
    )
    assert peer.ask(peer.publish(b"x", "q", mandatory=True, headers=table)) == []
    both = peer.publish(b"1", "q", mandatory=True, headers=table) + peer.publish(
        b"2", "no", mandatory=True, headers=table
    )
    ((_, got),) = peer.ask(both)
    assert isinstance(got, Content)
    assert (got.properties.headers, got.body) == ({"x-delay": 100}, b"2")
    assert queue(peer).deferred == 2


def test_a_full_queue_refuses_a_delayed_message_and_what_waits_is_not_counted() -> None:
    peer = connected()
    declare(peer, "q", max_length=1, overflow="reject-publish")
    sent_ms = peer.rig.now_ms
    peer.ask(ConfirmSelect())
    for _ in range(2):
        assert isinstance(peer.ask(peer.publish(headers={"x-delay": 50}))[0][1], BasicAck)
    assert isinstance(peer.ask(peer.publish())[0][1], BasicAck)
    (refused,) = peer.ask(peer.publish(headers={"x-delay": 50}))
    assert isinstance(refused[1], BasicNack)
    wait(peer, sent_ms + 100)
    assert (queue(peer).ready, queue(peer).deferred) == (3, 0)
    peer.rig.broker.check()


@pytest.mark.parametrize(
    "limit",
    [{"max_length": 1}, {"max_length_bytes": 1}, {"max_length_bytes": 1, "max_priority": 5}],
)
@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx", "drop-tail"])
@pytest.mark.parametrize("in_tx", [False, True])
def test_what_waits_is_not_counted_among_messages_that_come_together_either(
    limit: dict[str, object], overflow: str, in_tx: bool
) -> None:
    peer = connected()
    declare(peer, "q", overflow=overflow, **limit)
    peer.ask(TxSelect() if in_tx else ConfirmSelect())
    sent = peer.publish(headers={"x-delay": 50}) * 3 + peer.publish()
    if in_tx:
        assert peer.ask(sent, TxCommit()) == [(1, TxCommitOk())]
    else:
        assert peer.ask(sent) == [(1, BasicAck(4, True))]
    assert (queue(peer).ready, queue(peer).deferred) == (1, 3)
    if not in_tx and overflow == "reject-publish":
        heard = peer.ask(peer.publish(headers={"x-delay": 50}) * 2)
        assert heard == [(1, BasicNack(number, False, False)) for number in (5, 6)]
    peer.rig.broker.check()


def test_priorities_hold_among_what_became_ready() -> None:
    peer = connected()
    declare(peer, "q", max_priority=5)
    sent_ms = peer.rig.now_ms
    for priority in (1, 5, 3):
        peer.ask(peer.publish(b"%d" % priority, priority=priority, headers={"x-delay": 100}))
    wait(peer, sent_ms + 110)
    assert bodies(peer) == [b"5", b"3", b"1"]


def test_deleting_a_queue_and_purging_it_end_what_waits() -> None:
    peer = connected()
    declare(peer, "q")
    sent_ms = peer.rig.now_ms
    peer.ask(peer.publish(headers={"x-delay": 100}) * 3)
    assert peer.ask(QueueDeclare("q", passive=True)) == [(1, QueueDeclareOk("q", 0, 0))]
    peer.rig.broker.contents.purge(queue(peer))
    wait(peer, sent_ms + 200)
    assert bodies(peer) == []
    peer.rig.broker.check()


# -- the exchange type


def exchange(peer: Peer, name: str, kind: object, **more: object) -> list[Heard]:
    arguments = {"x-delayed-type": kind, **more}
    return peer.ask(ExchangeDeclare(name, "x-delayed-message", durable=True, arguments=arguments))


@pytest.mark.parametrize(
    ("kind", "key", "arguments", "hit", "missed"),
    [
        ("direct", "k", {}, "k", "l"),
        ("topic", "a.#", {}, "a.b.c", "b.a"),
        ("fanout", "", {}, "any", None),
        ("headers", "", {"n": 1}, "", None),
    ],
)
def test_a_delayed_exchange_behaves_as_its_kind_and_delays(
    kind: str, key: str, arguments: dict[str, object], hit: str, missed: str | None
) -> None:
    peer = connected()
    declare(peer, "q")
    assert exchange(peer, "x", kind) == [(1, ExchangeDeclareOk())]
    peer.ask(QueueBind("q", "x", key, arguments=arguments))
    sent_ms = peer.rig.now_ms
    sent = peer.publish(b"late", hit, exchange="x", headers={"n": 1, "x-delay": 100})
    sent += peer.publish(b"now", hit, exchange="x", headers={"n": 1})
    if missed is not None:
        sent += peer.publish(b"no", missed, exchange="x", headers={"x-delay": 100})
    if kind == "headers":
        sent += peer.publish(b"no", hit, exchange="x", headers={"n": 2, "x-delay": 100})
    peer.ask(sent)
    assert bodies(peer) == [b"now"]
    wait(peer, sent_ms + 100)
    (found,) = taken(peer)
    assert (found.body, (found.properties.headers or {})["x-delay"]) == (b"late", -100)


def test_a_delayed_exchange_outlives_a_restart_as_what_it_is() -> None:
    peer = connected()
    declare(peer, "q")
    exchange(peer, "x", "topic")
    peer.ask(QueueBind("q", "x", "a.*"))
    vhost = peer.rig.broker.vhosts["/"]
    again = Rig().broker.vhosts["/"]
    for blob in vhost.topology.definitions():
        again.topology.apply(blob)
    assert again.exchanges["x"].type == "x-delayed-message"
    assert [one.name for one in again.route("x", ["a.b"], None).queues] == ["q"]
    assert again.route("x", ["b.a"], None).queues == []


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ({}, 406, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": 1}, 406, "'x-delayed-type' must be an existing exchange type"),
        (
            {"x-delayed-type": "x-delayed-message"},
            406,
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
        ({"x-delayed-type": "nothing"}, 503, "unknown exchange type 'nothing'"),
    ],
)
def test_a_delayed_exchange_without_a_kind_is_refused(
    arguments: dict[str, object], code: int, told: str
) -> None:
    peer = connected()
    ((_, close),) = peer.ask(ExchangeDeclare("x", "x-delayed-message", arguments=arguments))
    assert isinstance(close, (ChannelClose, ConnectionClose))
    assert close.reply_code == code
    assert told in close.reply_text
    assert "x" not in peer.rig.broker.vhosts["/"].exchanges


def test_exchanges_behind_and_before_a_delayed_one() -> None:
    peer = connected()
    declare(peer, "q", "other")
    exchange(peer, "x", "direct", **{"alternate-exchange": "amq.fanout"})
    vhost = peer.rig.broker.vhosts["/"]
    vhost.bind_exchange("amq.topic", "x", "k", {})
    vhost.bind_exchange("x", "amq.direct", "k", {})
    peer.ask(QueueBind("q", "amq.topic", "k"), QueueBind("other", "amq.fanout", ""))
    sent_ms = peer.rig.now_ms
    peer.ask(peer.publish(b"1", "k", exchange="amq.direct", headers={"x-delay": 50}))
    peer.ask(peer.publish(b"2", "nowhere", exchange="x", headers={"x-delay": 50}))
    assert (bodies(peer), bodies(peer, "other")) == ([], [])
    wait(peer, sent_ms + 60)
    assert (bodies(peer), bodies(peer, "other")) == ([b"1"], [b"2"])
