"""Topics and channels over exchanges and queues."""

from __future__ import annotations

import pytest

from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.errors import AccessRefused, BrokerError, NotFound, PreconditionFailed
from tallymark.engine.policies import QUEUES, Policy
from tallymark.engine.queue import Queue
from tallymark.engine.session import REQUEUES
from tallymark.wire.nsq.kernel import body_of, make_cells
from tests.support.census import census, grown
from tests.support.engine_rig import Rig


def made(
    rig: Rig | None = None, mem_queue_size: int = 3, adopts: bool = False
) -> tuple[Rig, Topics]:
    rig = rig or Rig()
    return rig, Topics(rig.broker, "/", mem_queue_size, adopts)


def put(topics: Topics, topic: str, *bodies: bytes, delay_ms: int = 0) -> None:
    raw, cuts = make_cells(list(bodies))
    topics.publish(topic, raw, cuts, 4, topics.broker.clock.now_ms, delay_ms)


def bodies(rig: Rig, queue: Queue) -> list[bytes]:
    queue.unpack()
    found = []
    for piece in queue.slices():
        rig.broker.store.load(piece.payload)
        raw, cuts = piece.payload.raw, piece.payload.cuts
        assert raw is not None
        found += [body_of(raw, cuts[i], cuts[i + 1]) for i in range(piece.lo, piece.hi)]
    return found


def bound(topics: Topics, name: str) -> set[str]:
    topic = topics.find(name)
    assert topic is not None
    return {binding.destination() for binding in topic.exchange.bindings.values()}


def test_nq_9_topic_and_channel_are_made_by_first_use() -> None:
    _, topics = made()
    queue = topics.channel("t", "c")
    topic = topics.find("t")
    assert topic is not None
    assert (queue.name, queue.durable, queue.auto_delete) == ("t:c", True, False)
    assert topic.exchange.type == "fanout"
    assert topic.exchange.durable
    assert topic.channels == {"c": queue}
    assert topics.topics() == [topic]
    assert topics.channel("t", "c") is queue
    assert topics.topic("t") is topic
    assert topics.changed == [("t", "", True), ("t", "c", True)]
    assert topics.find("other") is None


def test_nq_9_every_channel_gets_every_message_with_the_same_id() -> None:
    rig, topics = made()
    one, two = topics.channel("t", "one"), topics.channel("t", "two")
    put(topics, "t", b"a", b"b")
    assert bodies(rig, one) == bodies(rig, two) == [b"a", b"b"]
    topic = topics.find("t")
    assert topic is not None
    assert (topic.message_count, topic.message_bytes, topic.backlog.ready) == (2, 2, 0)
    assert one.slices()[0].payload is two.slices()[0].payload
    rig.settle_down()
    rig.broker.check()


def test_nq_9_a_topic_without_a_channel_keeps_messages_for_the_first() -> None:
    rig, topics = made()
    put(topics, "t", b"a")
    put(topics, "t", b"b")
    topic = topics.find("t")
    assert topic is not None
    assert topic.backlog.ready == 2
    first = topics.channel("t", "first")
    assert bodies(rig, first) == [b"a", b"b"]
    assert topic.backlog.ready == 0
    second = topics.channel("t", "second")
    assert bodies(rig, second) == []
    put(topics, "t", b"c")
    assert (first.ready, second.ready, topic.backlog.ready) == (3, 1, 0)
    rig.settle_down()
    rig.broker.check()


def test_nq_9_after_its_last_channel_a_topic_keeps_messages_again() -> None:
    rig, topics = made()
    topics.channel("t", "c")
    topics.delete_channel("t", "c")
    put(topics, "t", b"a")
    topic = topics.find("t")
    assert topic is not None
    assert topic.backlog.ready == 1
    assert topic.channels == {}
    assert bodies(rig, topics.channel("t", "d")) == [b"a"]


def test_nq_9_a_paused_topic_copies_nothing_until_it_goes_on() -> None:
    rig, topics = made()
    one = topics.channel("t", "one")
    put(topics, "t", b"a")
    topics.pause_topic("t", True)
    topic = topics.find("t")
    assert topic is not None
    assert topic.paused
    put(topics, "t", b"b")
    two = topics.channel("t", "two")
    assert (one.ready, two.ready, topic.backlog.ready) == (1, 0, 1)
    topics.pause_topic("t", True)
    assert (one.ready, two.ready, topic.backlog.ready) == (1, 0, 1)
    topics.pause_topic("t", False)
    assert not topic.paused
    assert bodies(rig, one) == [b"a", b"b"]
    assert bodies(rig, two) == [b"b"]
    assert topic.backlog.ready == 0
    put(topics, "t", b"c")
    assert (one.ready, two.ready, topic.backlog.ready) == (3, 2, 0)
    rig.settle_down()
    rig.broker.check()


@pytest.mark.parametrize("clean", [False, True])
def test_nq_9_pauses_topics_and_channels_outlive_a_restart(clean: bool) -> None:
    rig, topics = made()
    topics.channel("t", "c")
    topics.channel("u", "d")
    topics.pause_topic("t", True)
    topics.pause_channel("u", "d", True)
    put(topics, "t", b"waits")
    put(topics, "u", b"rests")
    rig.settle_down()
    rig, topics = made(rig.restart(clean))
    t, u = topics.find("t"), topics.find("u")
    assert t is not None
    assert u is not None
    assert (t.paused, u.paused) == (True, False)
    assert (t.channels["c"].paused, u.channels["d"].paused) == (False, True)
    assert bound(topics, "t") == {"t:"}
    assert bound(topics, "u") == {"u:d"}
    topics.pause_topic("t", False)
    assert bodies(rig, t.channels["c"]) == [b"waits"]
    assert bodies(rig, u.channels["d"]) == [b"rests"]
    assert bound(topics, "t") == {"t:c"}


def test_nq_10_an_ephemeral_channel_goes_with_its_last_consumer() -> None:
    rig, topics = made()
    topics.channel("t", "c#ephemeral")
    session = rig.session()
    consumer = rig.consume(session, "t:c#ephemeral", "x")
    rig.broker.consuming.cancel(consumer)
    topic = topics.find("t")
    assert topic is not None
    assert topic.channels == {}
    assert topics.changed[-1] == ("t", "c#ephemeral", False)
    put(topics, "t", b"kept")
    assert topic.backlog.ready == 1


def test_nq_10_an_ephemeral_topic_goes_with_its_last_channel() -> None:
    rig, topics = made()
    topics.channel("t#ephemeral", "a")
    topics.channel("t#ephemeral", "b#ephemeral")
    topics.delete_channel("t#ephemeral", "a")
    assert topics.find("t#ephemeral") is not None
    rig.broker.consuming.cancel(rig.consume(rig.session(), "t#ephemeral:b#ephemeral", "x"))
    assert topics.find("t#ephemeral") is None
    assert "t#ephemeral" not in rig.vhost.exchanges
    assert [name for name in rig.vhost.queues if name.startswith("t")] == []
    assert topics.changed[-1] == ("t#ephemeral", "", False)


def test_nq_10_what_an_ephemeral_channel_has_no_room_for_is_dropped_without_a_word() -> None:
    rig, topics = made()
    lasting = topics.channel("t", "c")
    fleeting = topics.channel("t", "c#ephemeral")
    put(topics, "t", b"1", b"2")
    put(topics, "t", b"3", b"4", b"5")
    assert bodies(rig, fleeting) == [b"1", b"2", b"3"]
    assert lasting.ready == 5
    assert rig.dropped(fleeting.name) == {"maxlen": 2}
    rig.settle_down()
    rig.broker.check()


def test_nq_10_a_full_ephemeral_channel_refuses_nothing_to_amqp_publishers() -> None:
    rig, topics = made()
    topics.channel("t", "c#ephemeral")
    session = rig.session()
    session.confirming = True
    for n in range(5):
        rig.send("", n, exchange="t", session=session)
    rig.settle_down()
    assert rig.refused == []
    assert rig.confirmed[session.id] == 5


def test_nq_10_an_ephemeral_topic_keeps_no_more_than_its_room() -> None:
    rig, topics = made()
    put(topics, "t#ephemeral", b"1", b"2", b"3", b"4")
    assert bodies(rig, topics.channel("t#ephemeral", "c")) == [b"1", b"2", b"3"]


def test_nq_10_nothing_ephemeral_is_there_after_a_restart() -> None:
    rig, topics = made()
    topics.channel("t#ephemeral", "a")
    topics.channel("t", "c#ephemeral")
    rig.settle_down()
    rig, topics = made(rig.restart())
    assert [topic.name for topic in topics.topics()] == ["t"]
    put(topics, "t", b"kept")
    topic = topics.find("t")
    assert topic is not None
    assert topic.backlog.ready == 1
    assert topics.changed == []


def test_nq_16_a_deferred_message_waits_in_the_backlog_and_in_channels() -> None:
    rig = Rig()
    rig.tick_ms = 0
    rig, topics = made(rig)
    put(topics, "t", b"later", delay_ms=1000)
    topic = topics.find("t")
    assert topic is not None
    assert (topic.backlog.ready, topic.backlog.deferred) == (0, 1)
    queue = topics.channel("t", "c")
    assert (queue.ready, queue.deferred) == (0, 1)
    rig.advance(999)
    assert queue.ready == 0
    rig.advance(1)
    assert (queue.ready, queue.deferred) == (1, 0)


def test_nq_15_empty_takes_ready_deferred_and_in_flight() -> None:
    rig, topics = made()
    queue = topics.channel("t", "c")
    put(topics, "t", b"1", b"2")
    put(topics, "t", b"3", delay_ms=100_000)
    session = rig.session()
    rig.consume(session, "t:c", "x", prefetch=1).on_timeout = REQUEUES
    rig.settle_down()
    assert (queue.ready, queue.acquired, queue.deferred) == (1, 1, 1)
    topics.empty_channel("t", "c")
    assert (queue.ready, queue.acquired, queue.deferred, session.unacked) == (0, 0, 0, 0)
    rig.broker.check()


def test_empty_topic_leaves_its_channels_alone() -> None:
    rig, topics = made()
    queue = topics.channel("t", "c")
    put(topics, "t", b"1")
    topics.pause_topic("t", True)
    put(topics, "t", b"2")
    topics.empty_topic("t")
    topics.pause_topic("t", False)
    assert bodies(rig, queue) == [b"1"]


def test_delete_topic_takes_everything_with_it() -> None:
    rig, topics = made()
    topics.channel("t", "a")
    topics.channel("t", "b")
    put(topics, "t", b"1")
    topics.changed.clear()
    topics.delete_topic("t")
    assert topics.topics() == []
    assert "t" not in rig.vhost.exchanges
    assert rig.vhost.queues == {}
    assert topics.changed == [("t", "a", False), ("t", "b", False), ("t", "", False)]
    rig.settle_down()
    rig, topics = made(rig.restart())
    assert topics.topics() == []


@pytest.mark.parametrize(
    "command",
    [
        lambda topics: topics.delete_topic("x"),
        lambda topics: topics.empty_topic("x"),
        lambda topics: topics.pause_topic("x", True),
        lambda topics: topics.delete_channel("t", "x"),
        lambda topics: topics.empty_channel("t", "x"),
        lambda topics: topics.pause_channel("x", "c", True),
    ],
)
def test_operators_are_told_of_what_is_not_there(command: object) -> None:
    _, topics = made()
    topics.channel("t", "c")
    with pytest.raises(NotFound):
        command(topics)  # type: ignore[operator]
    assert [topic.name for topic in topics.topics()] == ["t"]


def test_an_exchange_that_nsq_did_not_make_is_no_topic() -> None:
    rig, topics = made()
    rig.exchange("t", "fanout")
    for use in (lambda: topics.topic("t"), lambda: put(topics, "t", b"x")):
        with pytest.raises(PreconditionFailed, match=r"'t'.* was not made by NSQ"):
            use()
    assert topics.topics() == []
    assert rig.vhost.queues == {}


def test_a_topic_is_marked_and_known_by_that_after_a_restart() -> None:
    rig, topics = made()
    topics.channel("t", "c")
    topics.topic("lonely")
    assert rig.vhost.exchanges["t"].arguments == {"x-nsq-topic": "t"}
    rig.turn()
    rig = rig.restart()
    _, again = made(rig)
    assert sorted(topic.name for topic in again.topics()) == ["lonely", "t"]
    assert rig.vhost.exchanges["t"].arguments == {"x-nsq-topic": "t"}


def test_a_topic_of_before_exchanges_were_marked_is_one_after_a_restart() -> None:
    """Its own queue says so; an AMQP client that only declares a queue while the broker runs makes
    no topic of somebody's exchange."""
    rig, topics = made()
    rig.exchange("old", "fanout")
    rig.declare("old:", {"nsq-topic": "old"})
    assert topics.topics() == []
    rig.turn()
    _, again = made(rig.restart())
    assert [topic.name for topic in again.topics()] == ["old"]


def test_an_exchange_in_the_place_of_a_deleted_topic_is_none() -> None:
    rig, topics = made()
    topics.topic("t")
    topics.delete_topic("t")
    rig.exchange("t", "fanout")
    with pytest.raises(PreconditionFailed, match="not made by NSQ"):
        put(topics, "t", b"x")


def test_an_exchange_in_the_place_of_a_topics_is_its_exchange_as_after_a_restart() -> None:
    """It was none until the restart: the mark is on the topic's own queue, too."""
    rig, topics = made()
    queue = topics.channel("t", "c")
    topics.channel("u", "c")
    rig.vhost.delete_exchange("t", False)
    rig.exchange("t", "fanout")
    assert bound(topics, "t") == {"t:c"}
    put(topics, "t", b"x")
    assert queue.ready == 1
    rig.vhost.delete_exchange("u", False)
    rig.exchange("u", "direct")
    with pytest.raises(PreconditionFailed, match="expected a fanout one"):
        put(topics, "u", b"x")
    rig.settle_down()
    _, again = made(rig.restart())
    assert [topic.name for topic in again.topics()] == ["t"]


def test_by_the_setting_a_fanout_exchange_of_amqp_becomes_a_topic_and_keeps_its_bindings() -> None:
    rig, topics = made(adopts=True)
    rig.queue("mine")
    rig.exchange("t", "fanout", ("mine", ""))
    queue = topics.channel("t", "c")
    put(topics, "t", b"x")
    assert bodies(rig, rig.vhost.queues["mine"]) == bodies(rig, queue) == [b"x"]


@pytest.mark.parametrize("kind", ["direct", "topic", "headers"])
def test_an_exchange_of_another_type_is_no_topic(kind: str) -> None:
    rig, topics = made()
    rig.exchange("t", kind)
    with pytest.raises(PreconditionFailed, match=rf"'t'.*'{kind}', expected a fanout"):
        topics.channel("t", "c")
    assert topics.topics() == []
    assert rig.vhost.queues == {}


def test_a_queue_that_only_has_the_name_is_no_channel() -> None:
    rig, topics = made()
    rig.queue("t:c")
    topics.topic("t")
    with pytest.raises(PreconditionFailed, match=r"'t:c'.*not a queue of topic 't'"):
        topics.channel("t", "c")
    topic = topics.find("t")
    assert topic is not None
    assert topic.channels == {}


def test_predeclared_exchanges_are_no_topics() -> None:
    _, topics = made()
    with pytest.raises(AccessRefused):
        topics.topic("amq.fanout")


def test_what_amqp_clients_delete_is_made_anew() -> None:
    rig, topics = made()
    queue = topics.channel("t", "c")
    rig.vhost.delete_exchange("t", False)
    put(topics, "t", b"1")
    assert bodies(rig, queue) == [b"1"]
    rig.delete("t:")
    put(topics, "t", b"2")
    assert bodies(rig, queue) == [b"1", b"2"]
    rig.delete("t:c")
    put(topics, "t", b"3")
    topic = topics.find("t")
    assert topic is not None
    assert topic.backlog.ready == 1


@pytest.mark.parametrize("paused", [False, True])
def test_a_backlog_that_amqp_clients_delete_is_made_anew_while_there_are_channels(
    paused: bool,
) -> None:
    """What AMQP clients publish goes where it went before, paused or not."""
    rig, topics = made()
    queue = topics.channel("t", "c")
    topics.pause_topic("t", paused)
    topics.changed.clear()
    rig.delete("t:")
    topic = topics.find("t")
    assert topic is not None
    assert (topic.paused, topics.changed) == (paused, [])
    assert topic.backlog is rig.vhost.queues["t:"]
    assert bound(topics, "t") == {"t:" if paused else "t:c"}
    rig.send("", 1, exchange="t")
    assert (topic.backlog.ready, queue.ready) == ((1, 0) if paused else (0, 1))
    rig.settle_down()
    rig, topics = made(rig.restart())
    again = topics.find("t")
    assert again is not None
    assert again.paused == paused
    rig.broker.check()


def test_a_backlog_without_a_channel_or_an_exchange_is_gone_when_it_is_deleted() -> None:
    rig, topics = made()
    topics.topic("lonely")
    rig.delete("lonely:")
    topics.channel("t", "c")
    rig.vhost.delete_exchange("t", False)
    rig.delete("t:")
    assert topics.topics() == []
    assert list(rig.vhost.queues) == ["t:c"]


def test_a_backlog_that_may_not_be_made_anew_is_gone() -> None:
    rig, topics = made()
    topics.channel("t", "c")
    rig.broker.quotas.limit({"/": {"max-queues": 1}}, {})
    rig.delete("t:")
    assert topics.topics() == []
    assert list(rig.vhost.queues) == ["t:c"]


def test_nothing_of_a_topic_is_left_with_its_virtual_host() -> None:
    rig, topics = made()
    topics.channel("t", "c")
    topics.channel("t#ephemeral", "c")
    rig.broker.registry.delete_vhost("/")
    assert topics.topics() == []
    assert list(rig.broker.state.queues) == []


def test_nothing_is_known_of_a_topic_whose_backlog_is_gone() -> None:
    rig, topics = made()
    before = census(topics, leaves_out=[rig.broker])
    topics.topic("lonely")
    topics.channel("left", "c")
    topics.delete_channel("left", "c")
    for name in ("lonely", "left"):
        rig.delete(f"{name}:")
        rig.vhost.delete_exchange(name, False)
    topics.changed.clear()
    assert not grown(before, census(topics, leaves_out=[rig.broker]), 1)


def test_x_expires_takes_no_backlog_of_a_topic_with_channels() -> None:
    rig = Rig()
    rig.tick_ms = 0
    rig, topics = made(rig)
    queue = topics.channel("t", "c")
    topics.topic("lonely")
    rig.consume(rig.session(), "t:c", "x")
    rig.broker.registry.set_policy("/", Policy("all", ".*", {"expires": 1000}, 0, QUEUES))
    topics.pause_topic("t", True)
    put(topics, "t", b"waits")
    rig.advance(5000)
    assert [topic.name for topic in topics.topics()] == ["t"]
    topics.pause_topic("t", False)
    assert queue.entered == 1
    topics.delete_channel("t", "c")
    rig.advance(999)
    assert [topic.name for topic in topics.topics()] == ["t"]
    rig.advance(1)
    assert topics.topics() == []


def test_a_channel_that_an_amqp_client_declares_is_one() -> None:
    rig, topics = made()
    rig.declare("t:c", {"nsq-topic": "t", "nsq-channel": "c"})
    topic = topics.find("t")
    assert topic is not None
    assert list(topic.channels) == ["c"]
    put(topics, "t", b"1")
    assert topic.channels["c"].ready == 1


def test_a_failed_publish_leaves_nothing() -> None:
    rig, topics = made()
    rig.exchange("t", "direct")
    with pytest.raises(BrokerError):
        put(topics, "t", b"1")
    assert rig.vhost.queues == {}
    assert rig.broker.store.resident_bytes == 0


def test_nq_9_what_reaches_a_backlog_late_goes_on_to_the_channels() -> None:
    """A transaction publishes to the queues that were bound when its messages came."""
    rig, topics = made()
    topic = topics.topic("t")
    transaction = rig.broker.transactions.begin(rig.session())
    rig.stage(transaction, "", 1, 2, exchange="t")
    channel = topics.channel("t", "c")
    rig.broker.transactions.commit(transaction)
    rig.settle_down()
    assert (topic.backlog.ready, channel.ready) == (2, 0)
    topics.pause_topic("t", True)
    assert not topics.release_late()
    topics.pause_topic("t", False)
    assert (topic.backlog.ready, channel.ready) == (0, 2)
    rig.publish(rig.session(), "t:", [3])
    assert topics.release_late()
    assert not topics.release_late()
    assert (topic.backlog.ready, channel.ready) == (0, 3)
    topics.delete_channel("t", "c")
    rig.publish(rig.session(), "t:", [4])
    assert not topics.release_late()
    rig.settle_down()
    rig.broker.check()


def test_a_topic_is_one_when_its_backlog_is_declared() -> None:
    """As by a definitions file. It was in neither /stats nor nsqlookupd, and could not be paused,
    until the next start or an NSQ client's use."""
    rig, topics = made()
    backlog = rig.declare("t:", {"nsq-topic": "t"})
    topic = topics.find("t")
    assert topic is not None
    assert topic.backlog is backlog
    assert topics.changed == [("t", "", True)]
    put(topics, "t", b"1")
    topics.pause_topic("t", True)
    channel = topics.channel("t", "c")
    assert (backlog.ready, channel.ready) == (1, 0)
    topics.delete_topic("t")
    assert topics.topics() == []
    assert rig.vhost.queues == {}


def test_a_backlog_declared_where_the_exchange_is_none_of_a_topic_makes_none() -> None:
    rig, topics = made()
    rig.exchange("t", "direct")
    rig.declare("t:", {"nsq-topic": "t"})
    assert topics.topics() == []


@pytest.mark.parametrize("channel", ["", "c"])
def test_a_stream_is_neither_a_backlog_nor_a_channel(channel: str) -> None:
    """The messages of a stream that was a backlog went to the first channel, and were gone from the
    stream; one that was a channel took messages that no NSQ client could read."""
    rig, topics = made()
    arguments: dict[str, object] = {"queue-type": "stream", "nsq-topic": "t"}
    if channel:
        arguments["nsq-channel"] = channel
    stream = rig.declare(f"t:{channel}", arguments)
    assert topics.topics() == []
    with pytest.raises(PreconditionFailed, match="is not a queue of topic 't'"):
        topics.channel("t", "c")
    assert stream.ready == 0


@pytest.mark.parametrize(
    ("topic", "channel"),
    [
        ("a b", "c"), ("a", "c d"), ("a" * 65, ""), ("a", "c" * 65), ("\xe9", "c"),
        ("a:b", ""), ("", "c"), ("#ephemeral", "c"),
    ],
)  # fmt: skip
def test_nq_3_what_is_no_name_of_nsqs_is_no_topic_and_no_channel(topic: str, channel: str) -> None:
    """nsqlookupd closed the connection on which it was told of such a one, again and again, and
    forgot all topics with it."""
    rig, topics = made()
    arguments: dict[str, object] = {"nsq-topic": topic}
    if channel:
        arguments["nsq-channel"] = channel
    rig.declare(f"{topic}:{channel}", arguments)
    assert topics.topics() == []
    assert topics.changed == []
    again = Topics(rig.broker, "/", 3)
    assert again.topics() == []


@pytest.mark.parametrize("limit", [True, False])
def test_a_topic_whose_backlog_cannot_be_made_leaves_no_exchange(limit: bool) -> None:
    """Each new name that a client published to left one, though every publish failed."""
    rig, topics = made()
    before = set(rig.vhost.exchanges)
    if limit:
        rig.broker.quotas.limit({"/": {"max-queues": 0}}, {})
    else:
        rig.declare("t:", {})
    with pytest.raises(BrokerError):
        put(topics, "t", b"1")
    assert set(rig.vhost.exchanges) == before
    assert topics.topics() == []
