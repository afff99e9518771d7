"""Topologies of what a queue can be told, to run on two brokers: expiry, lengths, priorities."""

from __future__ import annotations

import copy

from tests.interop.side_by_side import Difference, Note, Stage, letters, registry

TOPOLOGIES, topology = registry()
LONG_MS = 60_000


# -- TTL


@topology()
def dl_4_the_ttl_of_the_queue(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", message_ttl=20)
    stage.publish("q", "m1", "m2", "m3")
    stage.take("dlq", 3)
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_the_ttl_of_the_message(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1", "m2", expiration="20")
    stage.publish("q", "stays")
    stage.take("dlq", 2)
    stage.depths(q=1, dlq=0)


@topology()
def dl_4_the_smaller_of_both_ttls(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("short", dead_letter_exchange="dlx", message_ttl=20)
    stage.queue("long", dead_letter_exchange="dlx", message_ttl=LONG_MS)
    stage.publish("short", "by the queue", expiration=str(LONG_MS))
    stage.take("dlq")
    stage.publish("long", "by its own", expiration="20")
    stage.take("dlq")
    stage.depths(short=0, long=0, dlq=0)


@topology()
def dl_a7_a_ttl_of_0_without_a_consumer(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("none", dead_letter_exchange="dlx", message_ttl=0)
    stage.queue("own", dead_letter_exchange="dlx")
    stage.publish("none", "of the queue")
    stage.take("dlq")
    stage.publish("own", "of the message", expiration="0")
    stage.pass_time(20)
    stage.take("dlq")
    stage.depths(none=0, own=0, dlq=0)


@topology()
def dl_4_a_ttl_of_0_reaches_a_consumer_that_waits(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", message_ttl=0)
    stage.channel.basic_qos(prefetch_count=1)
    inbox = stage.consume("q")
    stage.publish("q", "taken")
    stage.arrived(inbox, 1)
    stage.publish("q", "consumer is busy")
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_a_head_that_lives_shields_what_is_behind_it(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "lives")
    stage.publish("q", "due", expiration="10")
    stage.publish("q", "lives too")
    stage.pass_time(40)
    stage.depths(q=3, dlq=0)
    stage.take("q")
    stage.take("dlq")
    stage.take("q")
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_unsettled_messages_do_not_expire(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", message_ttl=20)
    hold = stage.hold("q")
    stage.publish("q", "held")
    hold.wait()
    stage.publish("q", "waits")
    stage.take("dlq")
    stage.pass_time(20)
    stage.depths(q=0, dlq=0)
    hold.ack()
    stage.quiet_depths()


@topology()
def dl_4_giving_back_does_not_start_the_clock_anew(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", message_ttl=500)
    hold = stage.hold("q")
    stage.publish("q", "m1")
    hold.wait()
    stage.pass_time(500)
    hold.give_back()
    stage.get_nothing("q")
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_expired_without_a_dead_letter_exchange_is_gone(stage: Stage) -> None:
    stage.queue("q", message_ttl=10)
    stage.publish("q", "m1", "m2")
    stage.depths(q=0)


@topology()
def dl_a7_the_letter_does_not_expire_again(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1", expiration="10", headers={"user": "kept"})
    stage.wait_for_depth("dlq", 1)
    stage.pass_time(30)
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_the_next_queue_has_a_clock_of_its_own(stage: Stage) -> None:
    stage.queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2", message_ttl=30)
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q3", message_ttl=20)
    stage.queue("q3")
    stage.publish("q1", "m1", expiration=str(LONG_MS))
    stage.take("q3")
    stage.depths(q1=0, q2=0, q3=0)


# -- lengths


@topology()
def dl_6_drop_head_sends_on_the_oldest(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=2)
    stage.publish("q", *(f"m{number}" for number in range(5)))
    stage.take("dlq", 3)
    stage.take("q", 2)
    stage.depths(q=0, dlq=0)


@topology()
def dl_7_a_thousand_dropped_at_the_head_keep_their_order(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=10)
    other = stage.connection.channel()
    for number in range(1000):
        other.basic_publish("", "q", b"%d" % number)
    stage.wait_for_depth("dlq", 990)
    inbox = stage.consume("dlq", auto_ack=True)
    stage.arrived(inbox, 990)
    stage.depths(q=10, dlq=0)


@topology()
def dl_6_a_length_of_0_keeps_nothing(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=0)
    stage.publish("q", "m1", "m2")
    stage.take("dlq", 2)
    stage.depths(q=0, dlq=0)


@topology()
def dl_6_a_length_in_bytes_counts_bodies(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length_bytes=10)
    stage.publish("q", "four", "4444", "22", "1", headers={"not": "counted" * 10})
    stage.take("dlq")
    stage.publish("q", "more than ten bytes")
    stage.take("dlq", 4)
    stage.depths(q=0, dlq=0)


@topology()
def dl_6_unsettled_messages_do_not_count(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=2)
    stage.publish("q", "m1", "m2")
    tags = [stage.get("q"), stage.get("q")]
    stage.publish("q", "m3", "m4")
    stage.depths(q=2, dlq=0)
    stage.publish("q", "m5")
    stage.take("dlq")
    for tag in tags:
        stage.nack(tag, requeue=True)
    stage.drain("dlq", "q")


@topology()
def dl_6_reject_publish_refuses_the_new_one(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=2, overflow="reject-publish")
    stage.publish("q", "m1", "m2", "m3", "m4")
    stage.take("q")
    stage.publish("q", "m5", "m6")
    stage.take("q", 2)
    stage.quiet_depths()


@topology()
def dl_6_reject_publish_by_bytes(stage: Stage) -> None:
    """RabbitMQ lets the one in that goes over; only then the queue is full."""
    stage.queue("q", max_length_bytes=10, overflow="reject-publish")
    stage.publish("q", "seven 7", "seven 8", "1", "")
    stage.drain("q")


@topology()
def dl_6_reject_publish_dlx_refuses_and_sends_on_the_new_one(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=2, overflow="reject-publish-dlx")
    stage.publish("q", "m1", "m2", "m3", "m4", expiration=str(LONG_MS), headers={"user": "kept"})
    stage.take("dlq", 2)
    stage.take("q", 2)
    stage.depths(q=0, dlq=0)


@topology()
def dl_6_one_of_two_targets_refuses(stage: Stage) -> None:
    """Confirmed negatively, yet the other one has it."""
    stage.exchange("in", "fanout")
    stage.queue("full", max_length=1, overflow="reject-publish")
    stage.queue("free")
    stage.bind("full", "in")
    stage.bind("free", "in")
    stage.publish("", "m1", "m2", exchange="in")
    stage.take("full")
    stage.take("free", 2)
    stage.depths(full=0, free=0)


@topology()
def dl_6_reject_publish_without_confirms_is_silent(stage: Stage) -> None:
    stage.queue("q", max_length=1, overflow="reject-publish")
    other = stage.connection.channel()
    for body in (b"m1", b"m2"):
        other.basic_publish("", "q", body)
    other.close()
    stage.drain("q")


@topology()
def dl_6_a_full_target_refuses_letters(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq")
    stage.queue("dlq", max_length=1, overflow="reject-publish")
    stage.publish("q", "m1", "m2")
    stage.reject(stage.get("q"))
    stage.wait_for_depth("dlq", 1)
    stage.reject(stage.get("q"))
    stage.drain("dlq")


@topology()
def dl_6_letters_push_out_the_oldest_letter(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq")
    stage.queue("dlq", dead_letter_exchange="", dead_letter_routing_key="rest", max_length=1)
    stage.queue("rest")
    stage.publish("q", "m1", "m2")
    stage.reject(stage.get("q"))
    stage.reject(stage.get("q"))
    stage.take("rest")
    stage.take("dlq")
    stage.depths(q=0, dlq=0, rest=0)


# -- priorities


@topology()
def priorities_go_first_and_stop_at_the_highest_of_the_queue(stage: Stage) -> None:
    stage.queue("q", max_priority=5)
    for number, priority in enumerate((None, 1, 5, 9, 0, 3, 5, 255, 1)):
        stage.publish("q", f"{number} at {priority}", priority=priority)
    stage.take("q", 9)
    stage.depths(q=0)


@topology()
def priorities_of_what_is_given_back(stage: Stage) -> None:
    stage.queue("q", max_priority=3)
    stage.publish("q", "low 1", "low 2", priority=1)
    stage.publish("q", "high 1", "high 2", priority=3)
    tags = [stage.get("q") for _ in range(3)]
    for tag in tags:
        stage.nack(tag, requeue=True)
    stage.wait_for_depth("q", 4)
    stage.take("q", 4)
    stage.depths(q=0)


def _each_lane_has_a_head(seen: list[Note]) -> None:
    """RabbitMQ does not look at low priorities while a message of a higher one lives."""
    seen[0]["depths"] |= {"q": 1, "dlq": 1}


@topology(Difference("DL-4", "every priority has a head of its own", _each_lane_has_a_head))
def dl_4_priorities_with_ttl_expire_at_the_head_of_their_lane(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_priority=2)
    stage.publish("q", "high lives", priority=2)
    stage.publish("q", "low is due", priority=1, expiration="20")
    stage.pass_time(40)
    stage.quiet_depths()
    stage.take("q")
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_priorities_with_ttl_behind_a_head_of_the_same_priority(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_priority=2)
    stage.publish("q", "high lives", priority=2)
    stage.publish("q", "high is due", priority=2, expiration="20")
    stage.pass_time(40)
    stage.depths(q=2, dlq=0)
    stage.take("q")
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


def _due_is_dead(seen: list[Note]) -> None:
    """RabbitMQ even delivers it: it looks for what is due when its oldest message is."""
    seen[0]["depths"] = {"q": 1, "dlq": 1}
    lives, due, witness = (letters(seen, body)[0] for body in ("low lives", "due", "witness"))
    letter = copy.deepcopy(witness)
    letter |= {"body": due["body"], "properties": witness["properties"] | {"priority": 2}}
    seen[1:3] = [lives, letter]


@topology(Difference("DL-4", "every priority has a head of its own", _due_is_dead))
def dl_4_priorities_with_ttl_where_the_high_one_is_due(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_priority=2)
    stage.publish("q", "low lives", priority=1)
    stage.publish("q", "due", priority=2, expiration="20")
    stage.pass_time(40)
    stage.drain("q", "dlq")
    stage.publish("q", "witness", expiration="20")
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_4_priorities_with_a_ttl_of_the_queue(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_priority=2, message_ttl=40)
    hold = stage.hold("q")
    stage.publish("q", "held", priority=2)
    hold.wait()
    stage.publish("q", "m1", priority=0)
    stage.wait_for_depth("dlq", 1)
    stage.publish("q", "m2", priority=2)
    stage.take("dlq", 2)
    hold.ack()
    stage.depths(q=0, dlq=0)


@topology()
def dl_6_a_full_queue_of_priorities_drops_the_lowest(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_priority=3, max_length=2)
    for body, priority in (("high", 3), ("low", 1), ("middle", 2), ("lowest", 0)):
        stage.publish("q", body, priority=priority)
    stage.drain("dlq", "q")


@topology()
def dl_11_letters_keep_their_priority(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq", max_length=0)
    stage.queue("dlq", max_priority=5)
    for body, priority in (("low", 1), ("high", 5), ("none", None), ("middle", 3)):
        stage.publish("q", body, priority=priority)
    stage.wait_for_depth("dlq", 4)
    stage.take("dlq", 4)
    stage.depths(q=0, dlq=0)
