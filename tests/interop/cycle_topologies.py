"""Topologies of dead letters that come back, to run on two brokers: retry loops and cycles."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tests.interop.side_by_side import (
    TURNED,
    Difference,
    Note,
    Stage,
    counts,
    letters,
    newest_first,
    registry,
)

TOPOLOGIES, topology = registry()
ROUNDS = 3


def _ring(stage: Stage, *queues: str, **words: object) -> None:
    """Queues that dead-letter each to the next one, the last one to the first."""
    for queue, following in zip(queues, (*queues[1:], queues[0]), strict=True):
        stage.queue(queue, dead_letter_exchange="", dead_letter_routing_key=following, **words)


# -- a client's decision in the loop: for ever


@topology()
def dl_a3_a_queue_that_dead_letters_to_itself_returns_what_is_refused(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="")
    stage.publish("q", "m1")
    for _ in range(ROUNDS):
        stage.nack(stage.get("q"))
    stage.take("q")
    stage.depths(q=0)


@topology()
def dl_15_a_retry_loop_over_a_waiting_queue(stage: Stage) -> None:
    stage.exchange("work", "direct")
    stage.exchange("retry", "direct")
    stage.queue("jobs", dead_letter_exchange="retry")
    stage.queue("wait", dead_letter_exchange="work", message_ttl=20)
    stage.bind("jobs", "work", "job")
    stage.bind("wait", "retry", "job")
    stage.publish("job", "m1", exchange="work")
    for _ in range(4):
        stage.reject(stage.get("jobs"))
    stage.take("jobs")
    stage.depths(jobs=0, wait=0)


@topology()
def dl_15_a_retry_loop_with_several_messages_keeps_their_order(stage: Stage) -> None:
    stage.queue("jobs", dead_letter_exchange="", dead_letter_routing_key="wait")
    stage.queue("wait", dead_letter_exchange="", dead_letter_routing_key="jobs", message_ttl=20)
    stage.publish("jobs", "m1", "m2", "m3")
    for _ in range(ROUNDS):
        for _ in range(3):
            stage.reject(stage.get("jobs"))
        stage.wait_for_depth("jobs", 3)
    stage.take("jobs", 3)
    stage.depths(jobs=0, wait=0)


@topology()
def dl_15_a_retry_loop_whose_wait_each_message_tells_itself(stage: Stage) -> None:
    """The waiting time is the message's own: gone after its first death, so set anew."""
    stage.queue("jobs")
    stage.queue("wait", dead_letter_exchange="", dead_letter_routing_key="jobs")
    stage.publish("wait", "m1", expiration="20")
    stage.take("jobs")
    stage.publish("wait", "m1", expiration="30")
    stage.take("jobs")
    stage.depths(jobs=0, wait=0)


def _goes_on(*order: str) -> Callable[[list[Note]], None]:
    """The second round ends as the first, with every entry counted twice, in this order."""

    def edit(seen: list[Note]) -> None:
        first = letters(seen)[-1]
        newest_first(first, *order)
        second = copy.deepcopy(first)
        for death in second["headers"]["x-death"]:
            death["count"] = "2L"
        assert seen[-2] == {"lost": second["letter"]}
        seen[-2] = second

    return edit


@topology(
    Difference("DL-13", f"{TURNED} a cycle", _goes_on("q3 expired", "q2 expired", "q1 rejected"))
)
def dl_15_three_queues_in_a_ring_with_a_reject(stage: Stage) -> None:
    stage.queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2")
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q3", message_ttl=15)
    stage.queue("q3", dead_letter_exchange="", dead_letter_routing_key="q1", message_ttl=15)
    stage.publish("q1", "m1")
    stage.reject(stage.get("q1"))
    stage.reject(stage.get("q1"))
    stage.take_or_lose("q1")
    stage.depths(q1=0, q2=0, q3=0)


def _latest_of_the_ring_first(seen: list[Note]) -> None:
    died = ["q1", "q2", "q3"] * ROUNDS
    for number, note in enumerate(letters(seen)):
        latest = died[max(0, number - 3) : number]
        newest_first(note, *(f"{queue} rejected" for queue in reversed(latest)))


@topology(Difference("DL-13", f"{TURNED} another order", _latest_of_the_ring_first))
def dl_15_three_queues_in_a_ring_where_all_are_refused(stage: Stage) -> None:
    _ring(stage, "q1", "q2", "q3")
    stage.publish("q1", "m1")
    for _ in range(ROUNDS):
        for queue in ("q1", "q2", "q3"):
            stage.reject(stage.get(queue))
    stage.take("q1")
    stage.depths(q1=0, q2=0, q3=0)


@topology(
    Difference("DL-A1", f"{TURNED} a cycle", _goes_on("a3 expired", "a2 expired", "b rejected"))
)
def dl_a1_a_reject_and_two_expiries_come_back_whatever_the_names(stage: Stage) -> None:
    stage.queue("b", dead_letter_exchange="", dead_letter_routing_key="a2")
    stage.queue("a2", dead_letter_exchange="", dead_letter_routing_key="a3", message_ttl=5)
    stage.queue("a3", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl=5)
    stage.publish("b", "m1")
    stage.reject(stage.get("b"))
    stage.reject(stage.get("b"))
    stage.take_or_lose("b")
    stage.depths(b=0, a2=0, a3=0)


@topology()
def dl_a15_refused_in_the_queue_where_the_ring_waits(stage: Stage) -> None:
    """q1 expires to q2, q2 is refused to q1; history [q1 expired 3, q2 rejected 2]."""
    stage.queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2", message_ttl=15)
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q1")
    stage.publish("q1", "m1")
    stage.reject(stage.get("q2"))
    stage.reject(stage.get("q2"))
    stage.take("q2")
    stage.depths(q1=0, q2=0)


# -- nobody's decision: dropped


@topology()
def dl_a2_a_queue_that_expires_into_itself_drops(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", message_ttl=1)
    stage.publish("q", "m1", "m2")
    stage.quiet_depths()


@topology()
def dl_a2_a_queue_that_overflows_into_itself_drops_the_oldest(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", max_length=1)
    stage.publish("q", "m1", "m2")
    stage.drain("q")


@topology()
def dl_15_two_queues_that_expire_into_each_other_drop(stage: Stage) -> None:
    _ring(stage, "q1", "q2", message_ttl=15)
    stage.publish("q1", "m1")
    stage.publish("q2", "m2")
    stage.quiet_depths()


@topology()
def dl_15_three_queues_in_a_ring_without_a_reject_drop(stage: Stage) -> None:
    _ring(stage, "q1", "q2", "q3", message_ttl=15)
    stage.publish("q1", "m1")
    stage.publish("q3", "m3")
    stage.quiet_depths()


def _all_three(seen: list[Note]) -> None:
    newest_first(letters(seen)[-1], "q3 expired", "q2 expired", "q1 expired")


@topology(Difference("DL-13", f"{TURNED} another order", _all_three))
def dl_15_a_queue_on_the_way_shows_how_far_a_ring_went(stage: Stage) -> None:
    """Each queue of the ring sends a copy to `log`: it has one of every death."""
    stage.queue("log")
    for queue, following in (("q1", "q2"), ("q2", "q3"), ("q3", "q1")):
        stage.exchange(f"to-{following}", "fanout")
        stage.queue(queue, dead_letter_exchange=f"to-{following}", message_ttl=15)
    for queue in ("q1", "q2", "q3"):
        stage.bind(queue, f"to-{queue}")
        stage.bind("log", f"to-{queue}")
    stage.publish("q1", "m1")
    stage.drain("log")


def _dropped(queue: str) -> Callable[[list[Note]], None]:
    """What RabbitMQ delivers to `queue` in the end is dropped, being a cycle."""

    def edit(seen: list[Note]) -> None:
        assert seen[-1]["letter"] == queue
        seen.pop()
        depths = [note["depths"] for note in seen if "depths" in note][-1]
        depths[queue] = 0

    return edit


@topology(Difference("DL-15", f"{TURNED} no cycle", _dropped("q2")))
def dl_15_the_walk_stops_at_the_target_before_an_older_reject(stage: Stage) -> None:
    """q1 rejected, q2 expired, q1 expired: the way back to q2 is a cycle."""
    stage.queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2", message_ttl=15)
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q1", message_ttl=15)
    in_q1 = stage.hold("q1")
    stage.publish("q1", "m1")
    in_q1.wait()
    in_q1.reject()
    in_q1.wait()
    _make_a_trap(stage, "q2")
    stage.pass_time(15)
    in_q1.give_back()
    stage.drain("q2")


def _make_a_trap(stage: Stage, queue: str) -> None:
    """Declare it anew, so that what comes stays."""
    stage.channel.queue_delete(queue)
    stage.channel.queue_declare(queue, durable=True)


@topology()
def dl_15_other_targets_get_what_a_cycling_one_does_not(stage: Stage) -> None:
    """Fan-out to three queues, one of them the source itself."""
    stage.dead_letters("dlx", "one", "two")
    stage.queue("q", dead_letter_exchange="dlx", message_ttl=15)
    stage.bind("q", "dlx")
    stage.publish("q", "m1", "m2")
    stage.drain("one", "two")


def _q4_only(seen: list[Note]) -> None:
    _dropped("q2")(seen)
    newest_first(letters(seen)[-1], "q3 expired", "q2 expired", "q1 rejected")


@topology(Difference("DL-15", f"{TURNED} no cycle", _q4_only))
def dl_15_a_reject_before_the_target_does_not_count(stage: Stage) -> None:
    """q1 rejected, q2 expired, q3 expired to q4 and q2: q4 gets it, q2 does not."""
    stage.exchange("dlx", "fanout")
    stage.queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2")
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q3", message_ttl=15)
    stage.queue("q3", dead_letter_exchange="dlx", message_ttl=15)
    stage.queue("q4")
    in_q3 = stage.hold("q3")
    stage.publish("q1", "m1")
    stage.reject(stage.get("q1"))
    in_q3.wait()
    _make_a_trap(stage, "q2")
    stage.bind("q2", "dlx")
    stage.bind("q4", "dlx")
    stage.pass_time(15)
    in_q3.give_back()
    stage.wait_for_depth("q4", 1)
    stage.drain("q4", "q2")


@topology()
def dl_15_a_fan_out_with_the_source_itself_when_a_client_refuses(stage: Stage) -> None:
    stage.dead_letters("dlx", "one", "two")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.bind("q", "dlx")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"))
    stage.reject(stage.get("q"))
    stage.drain("q", "one", "two")


@topology()
def dl_15_overflow_of_two_queues_into_each_other(stage: Stage) -> None:
    stage.queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2", max_length=1)
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q1", max_length=1)
    for number in range(1, 6):
        stage.publish("q1", f"m{number}")
        stage.quiet_depths()
    stage.drain("q1", "q2")


@topology()
def dl_15_a_message_published_into_a_cycle_anew_is_new(stage: Stage) -> None:
    stage.dead_letters("dlx", "log")
    stage.queue("q", dead_letter_exchange="dlx", message_ttl=15)
    stage.bind("q", "dlx")
    stage.publish("q", "m1")
    stage.take("log")
    stage.publish("q", "m1")
    stage.drain("log")


# -- delivery limit on the way


@topology(counts((0, 0), (1, 1), (2, 2)))
def dl_5_a_delivery_limit_sends_on_after_the_last_failure(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx", delivery_limit=1)
    stage.publish("q", "m1")
    for _ in range(2):
        stage.reject(stage.get("q"), requeue=True)
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology(counts((0, 0), (1, 1)))
def dl_5_a_delivery_limit_of_0_fires_at_the_first_failure(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.quorum("q", dead_letter_exchange="dlx", delivery_limit=0)
    stage.publish("q", "m1")
    stage.reject(stage.get("q"), requeue=True)
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology(counts((0, 0)))
def dl_a3_a_delivery_limit_and_an_expiry_make_a_cycle(stage: Stage) -> None:
    stage.quorum("q1", dead_letter_exchange="", dead_letter_routing_key="q2", delivery_limit=0)
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q1", message_ttl=15)
    stage.publish("q1", "m1")
    stage.reject(stage.get("q1"), requeue=True)
    stage.quiet_depths()


@topology(counts((0, 0), (1, 1), (2, 2), (3, 3)))
def dl_a3_a_reject_of_a_quorum_queue_comes_back(stage: Stage) -> None:
    stage.quorum("q1", dead_letter_exchange="", dead_letter_routing_key="q2")
    stage.queue("q2", dead_letter_exchange="", dead_letter_routing_key="q1", message_ttl=15)
    stage.publish("q1", "m1")
    for _ in range(ROUNDS):
        stage.reject(stage.get("q1"))
    stage.take("q1")
    stage.depths(q1=0, q2=0)
