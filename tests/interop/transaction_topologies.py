"""Transactions on two brokers: what is seen before, at and after the end of each."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.interop.blocking import PERSISTENT, QUIET_S, connect
from tests.interop.side_by_side import Difference, Note, Stage, letters, registry

TOPOLOGIES, topology = registry()


class Work:
    """A transactional channel; what it is given and told is noted."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.channel: BlockingChannel = stage.connection.channel()
        self.channel.add_on_return_callback(self._returned)
        self.channel.tx_select()

    def _returned(
        self, _: object, method: spec.Basic.Return, properties: object, body: bytes
    ) -> None:
        self.stage.note(
            returned=body.decode(), code=method.reply_code, text=method.reply_text,
            exchange=method.exchange, routing_key=method.routing_key,
        )  # fmt: skip

    def publish(
        self, key: str, *bodies: str, exchange: str = "", mandatory: bool = False, **more: object
    ) -> None:
        made = pika.BasicProperties(**{"delivery_mode": 2, **more})
        for body in bodies:
            self.channel.basic_publish(exchange, key, body.encode(), made, mandatory)

    def get(self, queue: str, n: int = 1) -> list[int]:
        """Tags of the messages that were there, each noted."""
        tags = []
        for _ in range(n):
            method, _, body = self.channel.basic_get(queue)
            if method is None:
                self.stage.note(nothing_in=queue)
                continue
            self.stage.note(
                got=body.decode(), queue=queue, tag=method.delivery_tag,
                redelivered=method.redelivered, left=method.message_count,
            )  # fmt: skip
            tags.append(method.delivery_tag)
        return tags

    def commit(self) -> None:
        self.channel.tx_commit()
        self.stage.connection.process_data_events(QUIET_S)
        self.stage.note(committed=True)

    def rollback(self) -> None:
        self.channel.tx_rollback()
        self.stage.note(rolled_back=True)

    def recover(self) -> None:
        self.channel.basic_recover(requeue=True)
        self.stage.note(recovered=True)

    def refused(self, what: str, action: Callable[[], object] | None = None) -> None:
        """Note how the channel was closed over the action, or over what was sent before."""
        with pytest.raises(ChannelClosedByBroker) as caught:
            (action or self.channel.basic_qos)()
        self.stage.note(refused=what, code=caught.value.reply_code, text=caught.value.reply_text)


# -- publishes


@topology()
def publishes_are_invisible_until_the_commit(stage: Stage) -> None:
    """TX-A8."""
    stage.queue("q")
    work = Work(stage)
    work.publish("q", "1", "2")
    stage.depths(q=0)
    work.rollback()
    work.commit()
    stage.depths(q=0)
    work.publish("q", "3")
    stage.depths(q=0)
    work.commit()
    stage.depths(q=1)
    work.publish("q", "4", delivery_mode=1)
    work.commit()
    stage.take("q", 2)


@topology()
def selecting_again_keeps_the_transaction(stage: Stage) -> None:
    """TX-1."""
    stage.queue("q")
    work = Work(stage)
    work.publish("q", "1")
    work.channel.tx_select()
    stage.depths(q=0)
    work.commit()
    stage.depths(q=1)


@topology()
def confirms_and_transactions_exclude_each_other(stage: Stage) -> None:
    """TX-1, TX-2."""
    with stage.refusal("select on a confirm channel") as channel:
        channel.confirm_delivery()
        channel.tx_select()
    with stage.refusal("confirms on a tx channel") as channel:
        channel.tx_select()
        channel.confirm_delivery()
    with stage.refusal("commit") as channel:
        channel.tx_commit()
    with stage.refusal("rollback") as channel:
        channel.tx_rollback()


@topology()
def targets_are_those_of_the_publish(stage: Stage) -> None:
    """TX-3: also where bindings change before the commit."""
    stage.exchange("x", "fanout")
    for name in ("a", "b"):
        stage.queue(name)
    stage.bind("a", "x")
    work = Work(stage)
    work.publish("", "1", exchange="x")
    stage.bind("b", "x")
    stage.channel.queue_unbind("a", "x")
    work.publish("", "2", exchange="x")
    work.commit()
    stage.drain("a", "b")


@topology()
def queues_that_come_and_go_before_the_commit(stage: Stage) -> None:
    """TX-3: names are looked up at the commit."""
    stage.exchange("x", "fanout")
    for name in ("a", "b"):
        stage.queue(name)
        stage.bind(name, "x")
    work = Work(stage)
    work.publish("", "1", exchange="x")
    work.publish("a", "2")
    work.publish("late", "3")
    stage.channel.queue_delete("a")
    stage.queue("a")
    stage.queue("late")
    stage.channel.queue_delete("b")
    stage.queues.remove("b")
    work.commit()
    stage.drain("a", "late")


@topology()
def unroutable_mandatory_messages_go_back_at_the_commit(stage: Stage) -> None:
    stage.queue("a")
    stage.queue("gone")
    work = Work(stage)
    work.publish("a", "1", mandatory=True)
    work.publish("nowhere", "2", mandatory=True)
    work.publish("gone", "3", mandatory=True)
    work.publish("nowhere", "4")
    work.publish("nowhere", "5", mandatory=True, exchange="amq.direct")
    stage.channel.queue_delete("gone")
    stage.queues.remove("gone")
    stage.connection.process_data_events(QUIET_S)
    stage.note(before="the commit")
    work.commit()
    work.publish("nowhere", "6", mandatory=True)
    work.rollback()
    work.commit()
    stage.depths(a=1)


@topology()
def a_publish_that_is_refused_ends_the_channel_and_the_transaction(stage: Stage) -> None:
    stage.queue("q")
    work = Work(stage)
    work.publish("q", "1")
    work.publish("q", "2", exchange="no such exchange")
    work.refused("publish")
    stage.depths(q=0)


@topology()
def time_to_live_counts_from_the_commit(stage: Stage) -> None:
    stage.queue("q")
    stage.queue("ttl", message_ttl=1000)
    work = Work(stage)
    work.publish("q", "1", expiration="1000")
    work.publish("ttl", "2")
    stage.pass_time(1200)
    work.commit()
    stage.depths(q=1, ttl=1)
    stage.wait_for_depth("q", 0)
    stage.wait_for_depth("ttl", 0)


@topology()
def a_full_queue_drops_its_head_at_the_commit(stage: Stage) -> None:
    stage.queue("q", max_length=2)
    work = Work(stage)
    work.publish("q", "1", "2", "3", "4", "5")
    work.commit()
    stage.depths(q=2)
    stage.take("q", 2)


def _nothing_of_it(seen: list[Note]) -> None:
    """Ours: neither the publishes that found room nor the ack."""
    for note in seen:
        if "refused" in note:
            note["text"] = (
                "PRECONDITION_FAILED - partial tx completion refused: queue 'full' in vhost '/' "
                "has no room for what the transaction publishes, nothing of it was committed"
            )
        if note.get("depths") == {"full": 1, "q": 2}:
            note["depths"] = {"full": 0, "q": 1}
    for letter in letters(seen):
        letter["redelivered"] = True
        letter["body"] = "0"
    del seen[-1]


@topology(
    Difference("TX-D1", "a commit is whole or not at all; RabbitMQ keeps a part", _nothing_of_it)
)
def a_queue_without_room_refuses_the_commit(stage: Stage) -> None:
    stage.queue("full", max_length=1, overflow="reject-publish")
    stage.queue("q")
    stage.publish("q", "0")
    work = Work(stage)
    (tag,) = work.get("q")
    work.channel.basic_ack(tag)
    work.publish("q", "1")
    work.publish("full", "2", "3")
    work.publish("q", "4")
    work.refused("commit", work.channel.tx_commit)
    stage.quiet_depths()
    stage.take("q", stage.seen[-1]["depths"]["q"])


# -- settlements


@topology()
def a_rollback_opens_the_same_tags_again(stage: Stage) -> None:
    """TX-A7."""
    stage.queue("q")
    stage.publish("q", "m0", "m1", "m2", "m3")
    work = Work(stage)
    work.get("q", 2)
    work.channel.basic_ack(1)
    work.rollback()
    work.get("q")
    work.channel.basic_ack(1)
    work.commit()
    work.recover()
    work.get("q", 4)


@topology()
def the_window_through_rollback_cancel_recover_and_close(stage: Stage) -> None:
    """TX-A12."""
    stage.queue("q")
    stage.publish("q", *[f"m{n}" for n in range(6)])
    work = Work(stage)
    work.channel.basic_qos(prefetch_count=4)
    inbox = stage.consume("q", work.channel)
    stage.arrived(inbox, 4)
    work.channel.basic_nack(4, multiple=True, requeue=True)
    work.rollback()
    inbox.settle_quiet()
    stage.note(redelivered=inbox.bodies)
    work.channel.basic_cancel(inbox.tag)
    stage.depths(q=2)
    work.recover()
    stage.depths(q=6)
    inbox = stage.consume("q", work.channel)
    stage.note(tags=[m.method.delivery_tag for m in stage.arrived(inbox, 4)])
    work.recover()
    stage.note(tags=[m.method.delivery_tag for m in stage.arrived(inbox, 4)])
    with pytest.raises(ChannelClosedByBroker):  # pika's own close would cancel first
        work.channel.queue_declare("no such queue", passive=True)
    Work(stage).get("q", 7)


@topology()
def parked_acks_keep_their_place_in_the_window(stage: Stage) -> None:
    """TX-4."""
    stage.queue("q")
    stage.publish("q", "1", "2", "3", "4")
    work = Work(stage)
    work.channel.basic_qos(prefetch_count=2)
    inbox = stage.consume("q", work.channel)
    stage.arrived(inbox, 2)
    work.channel.basic_ack(2, multiple=True)
    inbox.settle_quiet()
    stage.note(arrived=inbox.bodies)
    work.commit()
    stage.arrived(inbox, 2)


@topology()
def recover_leaves_parked_deliveries_alone(stage: Stage) -> None:
    stage.queue("q")
    stage.publish("q", "1", "2", "3")
    work = Work(stage)
    work.get("q", 3)
    work.channel.basic_ack(2)
    work.recover()
    stage.depths(q=2)
    work.get("q", 3)
    work.rollback()
    work.recover()
    stage.depths(q=3)
    work.get("q", 3)


@topology()
def tags_that_are_parked_or_unknown_are_refused(stage: Stage) -> None:
    stage.queue("q")
    stage.publish("q", *"abcdef")
    for tag, multiple in ((1, False), (2, False), (9, False), (0, False), (2, True), (9, True)):
        work = Work(stage)
        work.get("q", 5)
        work.channel.basic_ack(2)
        work.channel.basic_ack(1)
        work.channel.basic_ack(tag, multiple)
        work.refused(f"{tag} {multiple}")
    work = Work(stage)
    work.channel.basic_ack(0, multiple=True)
    work.commit()
    work.get("q", 6)
    work.channel.basic_ack(3)
    work.channel.basic_nack(0, multiple=True, requeue=True)
    work.commit()
    stage.depths(q=5)


@topology()
def what_was_taken_before_the_select_is_part_of_it(stage: Stage) -> None:
    stage.queue("q")
    stage.publish("q", "1", "2")
    channel = stage.connection.channel()
    channel.basic_get("q")
    channel.tx_select()
    channel.basic_ack(1)
    channel.tx_rollback()
    channel.basic_ack(1)
    channel.tx_commit()
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("no such queue", passive=True)
    stage.depths(q=1)


@topology()
def requeued_messages_take_their_old_places_at_the_commit(stage: Stage) -> None:
    """TX-9."""
    stage.queue("q")
    stage.publish("q", *"12345")
    work = Work(stage)
    work.get("q", 4)
    work.channel.basic_nack(3, requeue=True)
    work.channel.basic_reject(1, requeue=True)
    stage.depths(q=1)
    work.commit()
    stage.depths(q=3)
    work.get("q", 4)


@topology()
def rejects_become_letters_at_the_commit(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", *"1234")
    work = Work(stage)
    work.get("q", 3)
    work.channel.basic_reject(1, requeue=False)
    work.channel.basic_ack(2)
    work.channel.basic_nack(3, requeue=False)
    stage.depths(q=1, dlq=0)
    work.rollback()
    work.channel.basic_nack(3, multiple=True, requeue=False)
    work.commit()
    stage.depths(q=1, dlq=3)
    stage.take("dlq", 3)


def _as_issued(seen: list[Note]) -> None:
    bodies = ["3", "1", "5", "4"]
    for letter, body in zip(letters(seen), bodies, strict=True):
        letter["body"] = body


@topology(
    Difference(
        "TX-5, DL-7", "rejects take effect in the order they were issued; RabbitMQ sorts by tag "
        "those that follow each other", _as_issued,
    )
)  # fmt: skip
def rejects_out_of_order(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", *"12345")
    work = Work(stage)
    work.get("q", 5)
    work.channel.basic_reject(3, requeue=False)
    work.channel.basic_reject(1, requeue=False)
    work.channel.basic_ack(2)
    work.channel.basic_nack(5, requeue=False)
    work.channel.basic_nack(4, requeue=False)
    work.commit()
    stage.depths(q=0, dlq=4)
    stage.take("dlq", 4)


@topology()
def purging_and_deleting_under_a_transaction(stage: Stage) -> None:
    for name in ("purged", "deleted"):
        stage.queue(name)
        stage.publish(name, *"1234")
    work = Work(stage)
    work.get("purged", 3)
    work.get("deleted", 3)
    work.channel.basic_ack(1)
    work.channel.basic_nack(4)
    stage.note(purged=stage.channel.queue_purge("purged").method.message_count)
    stage.note(deleted=stage.channel.queue_delete("deleted").method.message_count)
    stage.queues.remove("deleted")
    work.rollback()
    work.channel.basic_ack(2)
    work.channel.basic_ack(5)
    work.commit()
    work.channel.basic_ack(6)
    work.commit()
    work.recover()
    stage.depths(purged=2)


# -- endings


@topology()
def a_channel_that_closes_rolls_back(stage: Stage) -> None:
    """TX-7, TX-A9."""
    stage.queue("q")
    stage.publish("q", "1", "2", "3")
    work = Work(stage)
    work.get("q", 2)
    work.channel.basic_ack(1)
    work.publish("q", "4")
    work.channel.close()
    stage.depths(q=3)
    Work(stage).get("q", 4)


@topology()
def a_connection_that_closes_rolls_back(stage: Stage) -> None:
    stage.queue("q")
    stage.publish("q", "1", "2")
    connection = connect(stage.port)
    channel = connection.channel()
    channel.tx_select()
    channel.basic_get("q")
    channel.basic_ack(1)
    channel.basic_publish("", "q", b"3", PERSISTENT)
    connection.close()
    stage.depths(q=2)
    Work(stage).get("q", 3)


@topology()
def a_cancelled_consumer_keeps_what_it_has(stage: Stage) -> None:
    """TX-A9."""
    stage.queue("q")
    stage.publish("q", "1", "2")
    work = Work(stage)
    inbox = stage.consume("q", work.channel)
    stage.arrived(inbox, 2)
    work.channel.basic_ack(1)
    work.channel.basic_cancel(inbox.tag)
    work.rollback()
    stage.depths(q=0)
    work.channel.basic_ack(2)
    work.commit()
    work.recover()
    work.get("q", 2)


@topology()
def a_method_after_commit_does_not_wait_for_its_answer(stage: Stage) -> None:
    """TX-5: an error where messages were published, none otherwise."""
    stage.queue("q")
    for what in ("nothing", "publishes", "acks"):
        connection = connect(stage.port)
        channel = connection.channel()
        channel.tx_select()
        if what == "publishes":
            for _ in range(20):
                channel.basic_publish("", "q", b"x", PERSISTENT)
        if what == "acks":
            channel.basic_get("q")
            channel.basic_ack(1)
        try:
            # In one write: else the answer may be there before the next method.
            _send_together(channel, spec.Tx.Commit(), spec.Basic.Qos())
            channel.queue_declare("q", passive=True)
        except ConnectionClosedByBroker as error:
            stage.note(after=what, code=error.reply_code, text=error.reply_text)
        else:
            stage.note(after=what, code=None)
            connection.close()
    stage.depths(q=19)


def _send_together(channel: BlockingChannel, *methods: pika.amqp_object.Method) -> None:
    frames = [pika.frame.Method(channel.channel_number, method).marshal() for method in methods]
    channel.connection._impl._adapter_emit_data(b"".join(frames))


def _held_back(seen: list[Note]) -> None:
    for note in seen:
        if "answered" in note:
            note["answered"] = note["after"] == "the commit"


@topology(
    Difference(
        "TX-4", "direct replies wait for the commit; RabbitMQ sends them at once", _held_back
    )
)
def direct_replies(stage: Stage) -> None:
    stage.queue("rpc")
    inbox = stage.consume("amq.rabbitmq.reply-to", auto_ack=True)
    asked = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    stage.channel.basic_publish("", "rpc", b"?", asked)
    work = Work(stage)
    method, properties, _ = work.channel.basic_get("rpc")
    work.publish(properties.reply_to, "rolled back")
    work.rollback()
    inbox.settle_quiet()
    stage.note(after="the rollback", answered=bool(inbox.messages))
    inbox.messages.clear()
    work.publish(properties.reply_to, "!")
    work.channel.basic_ack(method.delivery_tag)
    inbox.settle_quiet()
    stage.note(after="the publish", answered=bool(inbox.messages))
    work.commit()
    inbox.settle_quiet()
    stage.note(after="the commit", answered=bool(inbox.messages))
    stage.depths(rpc=0)
