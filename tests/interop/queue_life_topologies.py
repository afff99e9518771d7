"""Topologies of the life of a queue, to run on two brokers: consumers, counts, ends, refusals."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.interop.side_by_side import Difference, Note, Stage, counts, registry

TOPOLOGIES, topology = registry()
LONG_MS = 60_000
LONGEST_MS = 315_360_000_000
"""Ten years: no TTL is longer."""


# -- single active consumer


@topology()
def a_single_active_consumer_gets_all_until_its_channel_goes(stage: Stage) -> None:
    stage.queue("q", single_active_consumer=True)
    channels = [stage.connection.channel() for _ in range(3)]
    for channel in channels:
        channel.basic_qos(prefetch_count=2)
    first, second, third = (stage.consume("q", channel) for channel in channels)
    stage.publish("q", "m1", "m2", "m3", "m4")
    stage.arrived(first, 2)
    stage.depths(q=2)
    with pytest.raises(ChannelClosedByBroker):  # pika's own close would cancel first
        channels[0].queue_declare("no such queue", passive=True)
    stage.arrived(second, 2)
    channels[1].basic_ack(2, multiple=True)
    stage.arrived(second, 2)
    channels[1].basic_cancel(second.tag)
    channels[1].basic_ack(0, multiple=True)
    stage.publish("q", "m5")
    stage.arrived(third, 1)
    assert not first.messages
    assert not second.messages
    stage.depths(q=0)


@topology()
def a_single_active_consumer_that_is_cancelled_keeps_what_it_has(stage: Stage) -> None:
    stage.queue("q", single_active_consumer=True)
    channels = [stage.connection.channel() for _ in range(2)]
    first, second = (stage.consume("q", channel) for channel in channels)
    stage.publish("q", "m1", "m2")
    stage.arrived(first, 2)
    channels[0].basic_cancel(first.tag)
    stage.publish("q", "m3")
    stage.arrived(second, 1)
    channels[0].basic_nack(1, requeue=True)
    stage.arrived(second, 1)
    channels[0].close()
    stage.arrived(second, 1)
    stage.depths(q=0)


@topology()
def a_single_active_consumer_with_refusals(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", single_active_consumer=True, dead_letter_exchange="dlx")
    channel, other = stage.connection.channel(), stage.connection.channel()
    active = stage.consume("q", channel)
    waiting = stage.consume("q", other)
    stage.publish("q", "m1", "m2", "m3")
    tags = [message.method.delivery_tag for message in stage.arrived(active, 3)]
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_reject(tags[0], requeue=True)
    stage.arrived(active, 1)
    stage.take("dlq")
    channel.close()
    stage.arrived(waiting, 2)
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_a_consumer_is_not_given_what_had_its_time_behind_a_head_that_lives(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    for body, ttl in (("m1", LONG_MS), ("m2", 10), ("m3", 10), ("m4", 10), ("m5", LONG_MS)):
        stage.publish("q", body, expiration=str(ttl))
    stage.pass_time(30)
    stage.arrived(stage.consume("q"), 2)
    stage.take("dlq", 3)
    stage.depths(q=0, dlq=0)


# -- quorum queues


@topology(counts((0, 0), (0, 0), (0, 0)))
def dl_6_a_quorum_queue_drops_its_head(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx", max_length=2)
    stage.publish("q", "m1", "m2", "m3")
    stage.take("dlq")
    stage.take("q", 2)
    stage.depths(q=0, dlq=0)


@topology(counts((0, 0), (0, 0)))
def dl_4_a_quorum_queue_expires_at_its_head(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx", message_ttl=LONG_MS)
    stage.publish("q", "lives")
    stage.publish("q", "due", expiration="10")
    stage.pass_time(30)
    stage.depths(q=2, dlq=0)
    stage.take("q")
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology(counts((0, 0), (1, 1), (2, 2), (3, 3)))
def dl_5_counts_of_a_quorum_queue_without_a_limit(stage: Stage) -> None:
    stage.quorum("q")
    stage.publish("q", "m1")
    for _ in range(3):
        stage.nack(stage.get("q"), requeue=True)
    stage.take("q")
    stage.depths(q=0)


@topology(counts((0, 0), (0, 1)))
def dl_5_an_orderly_close_is_no_failure(stage: Stage) -> None:
    stage.quorum("q", delivery_limit=1)
    stage.publish("q", "m1")
    hold = stage.hold("q")
    hold.wait()
    hold.channel.close()
    stage.take("q")
    stage.depths(q=0)


@topology(counts((0, 0), (1, 1), (2, 2)))
def dl_5_nack_with_requeue_reaches_the_limit(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx", delivery_limit=1)
    stage.publish("q", "m1")
    for _ in range(2):
        stage.nack(stage.get("q"), requeue=True)
    stage.drain("q", "dlq")


@topology(counts(*[(0, 0)] * 4, *[(0, 1)] * 4))
def dl_7_refusals_of_a_quorum_queue_keep_their_order(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1", "m2", "m3", "m4")
    tags = [stage.get("q") for _ in range(4)]
    stage.nack(tags[2])
    stage.nack(tags[0])
    stage.nack(tags[3], multiple=True)
    stage.take("dlq", 4)
    stage.depths(q=0, dlq=0)


@topology(counts((0, 0), (0, 0)))
def dl_9_letters_of_a_classic_queue_in_a_quorum_queue(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq", max_length=1)
    stage.quorum("dlq")
    stage.publish("q", "m1", "m2", "m3", headers={"user": "kept"}, expiration=str(LONG_MS))
    stage.take("dlq", 2)
    stage.depths(q=1, dlq=0)


@topology()
def dl_4_a_quorum_queue_with_a_ttl(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx", message_ttl=20)
    stage.publish("q", "m1", "m2", expiration=str(LONG_MS))
    stage.take("dlq", 2)
    stage.depths(q=0, dlq=0)


# -- the life of a queue


@topology()
def a_queue_expires_when_nobody_uses_it_and_its_messages_with_it(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", expires=60)
    stage.publish("q", "m1")
    stage.pass_time(150)
    stage.wait_until_gone("q")
    stage.quiet_depths()


@topology()
def a_queue_with_a_consumer_does_not_expire(stage: Stage) -> None:
    stage.queue("q", expires=300)
    channel = stage.connection.channel()
    inbox = stage.consume("q", channel)
    stage.pass_time(400)
    stage.publish("q", "m1")
    stage.arrived(inbox, 1)
    channel.close()
    stage.pass_time(400)
    stage.wait_until_gone("q")


@topology()
def dl_1_purged_and_deleted_messages_are_no_letters(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1", "m2")
    stage.note(purged=stage.channel.queue_purge("q").method.message_count)
    stage.publish("q", "m3")
    stage.note(deleted=stage.channel.queue_delete("q").method.message_count)
    stage.queue("q")
    stage.quiet_depths()


@topology()
def dl_4_a_queue_declared_again_with_another_setting(stage: Stage) -> None:
    stage.queue("q", message_ttl=LONG_MS, max_length=5, overflow="drop-head")
    same = {"x-message-ttl": LONG_MS, "x-max-length": 5, "x-overflow": "drop-head"}
    others = {"x-message-ttl": 1, "x-max-length": 4, "x-overflow": "reject-publish"}
    for name, value in others.items():
        with stage.refusal(name) as channel:
            channel.queue_declare("q", durable=True, arguments=same | {name: value})
    stage.depths(q=0)


REFUSED_ARGUMENTS: tuple[dict[str, object], ...] = (
    {"x-dead-letter-routing-key": "key"},
    {"x-dead-letter-exchange": 1},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 1},
    {"x-overflow": "drop-middle"},
    {"x-overflow": 1},
    {"x-message-ttl": -1},
    {"x-message-ttl": "10"},
    {"x-expires": 0},
    {"x-expires": -1},
    {"x-max-length": -1},
    {"x-max-length-bytes": "big"},
    {"x-max-priority": 256},
    {"x-max-priority": -1},
    {"x-single-active-consumer": "yes"},
    {"x-queue-type": "quorum", "x-delivery-limit": -1},
    {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"},
)


def _accepted(seen: list[Note]) -> None:
    seen[-1] |= {"code": None, "text": ""}


ONE_KIND = Difference("docs/policies.md", "classic and quorum are one kind of queue", _accepted)


@topology(ONE_KIND)
def quorum_queues_with_priorities(stage: Stage) -> None:
    with stage.refusal("x-max-priority") as channel:
        arguments = {"x-queue-type": "quorum", "x-max-priority": 3}
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.queue_delete("q")


@topology(ONE_KIND)
def classic_queues_with_a_delivery_limit(stage: Stage) -> None:
    with stage.refusal("x-delivery-limit") as channel:
        channel.queue_declare("q", durable=True, arguments={"x-delivery-limit": 3})
        channel.queue_delete("q")


def _refused(stage: Stage, *attempts: dict[str, object]) -> None:
    for arguments in attempts:
        with stage.refusal(str(arguments)) as channel:
            channel.queue_declare("q", durable=True, arguments=arguments)
            channel.queue_delete("q")


@topology()
def dl_3_arguments_that_are_refused(stage: Stage) -> None:
    _refused(stage, *REFUSED_ARGUMENTS)


@topology()
def a_queue_type_that_is_refused(stage: Stage) -> None:
    _refused(stage, {"x-queue-type": "sort-of"}, {"x-queue-type": 3})


def _says_what_was_expected(seen: list[Note]) -> None:
    for note in seen:
        name = note["refusal"]
        if "value_too_large" in note["text"]:
            least = 1 if "x-expires" in name else 0
            note["text"] += f", expected {least} to {LONGEST_MS} milliseconds, ten years"


EXPECTED_TIME = Difference(
    "docs/from-rabbitmq.md",
    "the refusal of a time says which times are accepted",
    _says_what_was_expected,
)


@topology(EXPECTED_TIME)
def dl_4_times_of_a_queue_end_at_ten_years(stage: Stage) -> None:
    for name in ("x-message-ttl", "x-expires"):
        _refused(stage, {name: LONGEST_MS}, {name: LONGEST_MS + 1})


@topology(EXPECTED_TIME)
def dl_4_the_expiration_of_a_message_ends_at_ten_years(stage: Stage) -> None:
    _expirations(stage, str(LONGEST_MS), str(LONGEST_MS + 1))


@topology()
def dl_4_expirations_that_are_refused(stage: Stage) -> None:
    _expirations(stage, "0", "007", "soon", "-1", "", "1.5", " 1", "1 ", "+1")


def _expirations(stage: Stage, *texts: str) -> None:
    for text in texts:
        with stage.refusal(text) as channel:
            channel.confirm_delivery()
            channel.basic_publish("", "nowhere", b"", pika.BasicProperties(expiration=text))
