"""Streams on two brokers: declarations, where readers begin, what they see, what they are refused.

Not compared: when what is kept becomes too much (RabbitMQ lets go of whole segment files, ours of
messages), and what a `last` reader gets of messages stored together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.interop.blocking import Inbox, connect
from tests.interop.side_by_side import Difference, Note, Stage, arguments_of, letters, registry

TOPOLOGIES, topology = registry()
BODIES = ("m0", "m1", "m2", "m3", "m4")


def stream(stage: Stage, name: str = "s", bodies: tuple[str, ...] = BODIES) -> None:
    """A stream with messages, each stored by itself."""
    stage.queue(name, queue_type="stream")
    stage.publish(name, *bodies)


@contextmanager
def reader(stage: Stage, start: object, queue: str = "s", prefetch: int = 10) -> Iterator[Inbox]:
    """A reader on a channel of its own; start None: it does not say where."""
    channel = stage.connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    arguments = {} if start is None else {"x-stream-offset": start}
    yield stage.consume(queue, channel, arguments=arguments)
    channel.close()


def read(stage: Stage, start: object, count: int, queue: str = "s") -> None:
    """Note what a reader sees first."""
    stage.note(reader=str(start))
    with reader(stage, start, queue) as inbox:
        stage.arrived(inbox, count)


@contextmanager
def breach(stage: Stage, what: str) -> Iterator[BlockingChannel]:
    """Note with which words the broker closes the channel or the connection, which is one of its
    own, over what is done in the block."""
    connection = connect(stage.port)
    try:
        yield connection.channel()
        stage.note(breach=what, closed=None)
    except ChannelClosedByBroker as error:
        stage.note(breach=what, closed="channel", code=error.reply_code, text=error.reply_text)
    except ConnectionClosedByBroker as error:
        stage.note(breach=what, closed="connection", code=error.reply_code, text=error.reply_text)
    if connection.is_open:
        connection.close()


# -- declarations


@topology()
def declarations_that_are_refused(stage: Stage) -> None:
    refused: list[dict[str, object]] = [
        {"max_age": "7"}, {"max_age": "0s"}, {"max_age": 5}, {"max_age": "5 s"},
        {"max_length_bytes": -1}, {"max_length_bytes": "a"},
        {"stream_max_segment_size_bytes": -1}, {"stream_max_segment_size_bytes": 4_000_000_000},
        {"initial_cluster_size": 0}, {"message_ttl": 1}, {"max_length": 3}, {"max_priority": 1},
        {"expires": 1000}, {"dead_letter_exchange": "x"}, {"single_active_consumer": True},
        {"overflow": "drop-head"}, {"queue_mode": "lazy"}, {"delivery_limit": 3},
        {"max_in_memory_length": 2}, {"quorum_initial_group_size": 1},
    ]  # fmt: skip
    for words in refused:
        with stage.refusal(str(words)) as channel:
            asked = arguments_of({"queue_type": "stream", **words})
            channel.queue_declare("t", durable=True, arguments=asked)
    for kind in ("classic", "quorum"):
        for words in ({"max_age": "1h"}, {"stream_max_segment_size_bytes": 100}):
            with stage.refusal(f"{kind} {words}") as channel:
                asked = arguments_of({"queue_type": kind, **words})
                channel.queue_declare("t", durable=True, arguments=asked)


@topology()
def properties_that_are_refused(stage: Stage) -> None:
    for words in ({"durable": False}, {"durable": True, "exclusive": True},
                  {"durable": True, "auto_delete": True}):  # fmt: skip
        with stage.refusal(str(words)) as channel:
            channel.queue_declare("t", arguments={"x-queue-type": "stream"}, **words)
    for kind in ("quorum", "stream"):
        with stage.refusal(f"{kind} without a name") as channel:
            channel.queue_declare("", durable=True, arguments={"x-queue-type": kind})


@topology()
def a_declaration_must_be_the_same(stage: Stage) -> None:
    given: dict[str, object] = {
        "queue_type": "stream", "max_age": "7D", "max_length_bytes": 10_000_000,
        "stream_max_segment_size_bytes": 1_000_000, "queue_leader_locator": "client-local",
    }  # fmt: skip
    stage.queue("s", **given)
    stage.channel.queue_declare("s", durable=True, arguments=arguments_of(given))
    stage.queue("plain", queue_type="stream")
    others: list[tuple[str, dict[str, object]]] = [
        ("plain", {}),
        ("plain", {"queue_type": "quorum"}),
        ("plain", {"queue_type": "stream", "max_age": "1h"}),
        ("s", {**given, "max_age": "1h"}),
        ("s", {**given, "max_length_bytes": 1}),
        ("s", {**given, "stream_max_segment_size_bytes": 1}),
    ]
    for name, words in others:
        with stage.refusal(f"{name} {words}") as channel:
            channel.queue_declare(name, durable=True, arguments=arguments_of(words))


# -- readers


@topology()
def where_a_reader_begins(stage: Stage) -> None:
    stream(stage)
    for start, count in (
        ("first", 5), ("last", 1), (0, 5), (3, 2), (-1, 5), ("1h", 5), ("2D", 5), (b"first", 5),
        (datetime(2020, 1, 1, tzinfo=UTC), 5), (4, 1),
    ):  # fmt: skip
        read(stage, start, count)


@topology()
def a_reader_that_waits(stage: Stage) -> None:
    stream(stage)
    for start in ("next", None):
        with reader(stage, start) as inbox:
            stage.publish("s", "new")
            stage.arrived(inbox, 1)


@topology()
def a_reader_of_a_stream_without_messages(stage: Stage) -> None:
    stream(stage, bodies=())
    with reader(stage, "first") as inbox:
        stage.publish("s", "new")
        stage.arrived(inbox, 1)


@topology()
def what_a_reader_sees(stage: Stage) -> None:
    stage.queue("s", queue_type="stream")
    stage.exchange("x", "topic")
    stage.bind("s", "x", "#")
    stage.publish("a.b", "routed", exchange="x")
    stage.publish("s", "headers", headers={"n": 1, "t": "text", "b": True, "l": 1 << 40})
    stage.publish("s", "forged", headers={"x-stream-offset": 77, "z": 1})
    stage.publish("s", "properties", content_type="text/plain", priority=3, app_id="me",
                  type="t", correlation_id="c", reply_to="r", message_id="m")  # fmt: skip
    stage.publish("s", "expires", expiration="1")
    stage.publish("s", "transient", delivery_mode=1)
    stage.publish("s", "", headers={})
    read(stage, "first", 7)
    read(stage, 5, 2)


@topology()
def credit_comes_back_with_acknowledgements(stage: Stage) -> None:
    stream(stage)
    with reader(stage, "first", prefetch=2) as inbox:
        stage.arrived(inbox, 2)
        inbox.channel.basic_ack(1)
        stage.arrived(inbox, 1)
        inbox.channel.basic_ack(3, multiple=True)
        stage.arrived(inbox, 2)


@topology()
def readers_of_one_channel(stage: Stage) -> None:
    stream(stage)
    channel = stage.connection.channel()
    channel.basic_qos(prefetch_count=2)
    for tag in ("a", "b"):
        inbox = stage.consume(
            "s", channel, arguments={"x-stream-offset": "first"}, consumer_tag=tag, exclusive=True
        )
        for message in stage.arrived(inbox, 2):
            stage.note(tag=message.method.delivery_tag, of=message.method.consumer_tag)
    channel.close()


@topology()
def a_reader_is_told_of_the_end_of_its_stream(stage: Stage) -> None:
    stage.queue("gone", queue_type="stream")
    channel = stage.connection.channel()
    channel.basic_qos(prefetch_count=2)
    inbox = stage.consume("gone", channel)
    stage.channel.queue_delete("gone")
    stage.wait_for(lambda: inbox.cancelled_by_broker)
    stage.note(cancelled=inbox.cancelled_by_broker)


# -- refusals


@topology()
def readers_that_are_refused(stage: Stage) -> None:
    stream(stage)
    first = {"x-stream-offset": "first"}

    def consume(
        arguments: dict[str, object], prefetch: int = 10, shared: int = 0, no_ack: bool = False
    ) -> Callable[[BlockingChannel], object]:
        def ask(channel: BlockingChannel) -> None:
            if prefetch:
                channel.basic_qos(prefetch_count=prefetch)
            if shared:
                channel.basic_qos(prefetch_count=shared, global_qos=True)
            channel.basic_consume("s", print, arguments=arguments, auto_ack=no_ack)

        return ask

    for what, ask in (
        ("no prefetch", consume(first, 0)),
        ("no prefetch, no acknowledgement", consume(first, 0, 0, True)),
        ("no acknowledgement", consume(first, no_ack=True)),
        ("a shared prefetch", consume(first, 0, 5)),
        ("both kinds of prefetch", consume(first, 5, 5)),
        ("a number as text", consume({"x-stream-offset": "5"})),
        ("no time at all", consume({"x-stream-offset": "0s"})),
        ("priority", consume({"x-priority": 5})),
        ("a wrong priority", consume({"x-priority": "a"})),
        ("failover", consume({"x-cancel-on-ha-failover": True})),
    ):
        with breach(stage, what) as channel:
            ask(channel)
    for kind in ("classic", "quorum"):
        stage.queue(kind, queue_type=kind)
        with breach(stage, f"offset in a {kind} queue") as channel:
            channel.basic_consume(kind, print, arguments=first)


@topology()
def what_streams_do_not_do(stage: Stage) -> None:
    stream(stage)
    with breach(stage, "get") as channel:
        channel.basic_get("s")
    with breach(stage, "purge") as channel:
        channel.queue_purge("s")


# -- what ours does otherwise


def _settles_whatever_the_outcome(seen: list[Note]) -> None:
    for note in seen:
        if "breach" in note:
            assert (note["closed"], note["code"]) == ("connection", 540)
            what = note["breach"]
            note.clear()
            note.update(breach=what, closed=None)


@topology(
    Difference(
        "DL-17", "any settlement gives credit back; RabbitMQ 3.10 knows acknowledgements only",
        _settles_whatever_the_outcome,
    )
)  # fmt: skip
def dl_17_refusing_what_was_read(stage: Stage) -> None:
    stream(stage)
    for what in ("reject", "reject, requeue", "nack", "nack, requeue"):
        with breach(stage, what) as channel:
            channel.basic_qos(prefetch_count=2)
            inbox = Inbox(channel, "s", arguments={"x-stream-offset": "first"})
            tag = inbox.wait(2)[0].method.delivery_tag
            if what.startswith("reject"):
                channel.basic_reject(tag, requeue="requeue" in what)
            else:
                channel.basic_nack(tag, requeue="requeue" in what)
            inbox.wait(1)
    stage.depths(s=5)


def _reach_the_stream(seen: list[Note]) -> None:
    """RabbitMQ 3.10 loses dead letters on their way to a stream."""
    plain = letters(seen, "plain")
    model = copy.deepcopy(plain[0])
    for offset, body, reason, more in (
        (1, "expired", "expired", {"original-expiration": "10"}), (2, "rejected", "rejected", {}),
    ):  # fmt: skip
        death = {
            **more, "count": "1L", "reason": reason, "queue": "q", "time": "recent",
            "exchange": "", "routing-keys": ["q"],
        }  # fmt: skip
        history = {
            f"x-{which}-death-{part}": value
            for which in ("first", "last")
            for part, value in (("reason", reason), ("queue", "q"), ("exchange", ""))
        }
        headers = {"x-death": [death], **history, "x-stream-offset": f"{offset}L"}
        seen.append({**model, "body": body, "headers": headers, "fields": [list(death)]})


@topology(Difference("DL-17", "dead letters reach streams, with history", _reach_the_stream))
def dl_17_dead_letters(stage: Stage) -> None:
    stream(stage, bodies=("plain",))
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="s")
    stage.publish("q", "expired", expiration="10")
    stage.wait_for_depth("q", 0)
    stage.publish("q", "rejected")
    stage.reject(stage.get("q"))
    del stage.seen[-1]
    stage.wait_for(lambda: stage.depth("s") > 0)
    stage.quiet_depths()
    count = stage.seen.pop()["depths"]["s"]
    read(stage, "first", count)
