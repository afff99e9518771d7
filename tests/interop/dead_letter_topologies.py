"""Topologies of dead lettering to run on two brokers: where letters go and what they carry.

Those about a queue's settings are in queue_setting_topologies.py.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tests.interop.side_by_side import (
    TURNED,
    Difference,
    Note,
    Stage,
    letters,
    newest_first,
    registry,
)

TOPOLOGIES, topology = registry()
WEEK_MS = 604_800_000
"""A TTL that does not end here."""


# -- where they go


@topology()
def dl_1_rejected_by_either_method_to_a_direct_exchange(stage: Stage) -> None:
    stage.exchange("dlx", "direct")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.queue("dlq")
    stage.bind("dlq", "dlx", "q")
    stage.publish("q", "m1", "m2", "m3")
    stage.reject(stage.get("q"))
    stage.nack(stage.get("q"))
    stage.take("dlq", 2)
    stage.depths(q=1, dlq=0)


@topology()
def dl_1_a_direct_exchange_without_a_binding_for_the_key_loses_the_letter(stage: Stage) -> None:
    stage.exchange("dlx", "direct")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.queue("dlq")
    stage.bind("dlq", "dlx", "other")
    stage.publish("q", "lost")
    stage.reject(stage.get("q"))
    stage.quiet_depths()


@topology()
def dl_1_rejected_to_a_fanout_exchange_with_three_queues(stage: Stage) -> None:
    stage.dead_letters("dlx", "one", "two", "three")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1", "m2")
    stage.reject(stage.get("q"))
    stage.reject(stage.get("q"))
    for queue in ("one", "two", "three"):
        stage.take(queue, 2)
    stage.depths(q=0, one=0, two=0, three=0)


@topology()
def dl_1_rejected_to_a_topic_exchange_by_the_key_published_with(stage: Stage) -> None:
    stage.exchange("orders", "topic")
    stage.exchange("dlx", "topic")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.bind("q", "orders", "#")
    for queue, key in (("germany", "order.de.*"), ("all", "order.#"), ("none", "invoice.*")):
        stage.queue(queue)
        stage.bind(queue, "dlx", key)
    stage.publish("order.de.7", "m1", exchange="orders")
    stage.publish("order.fr", "m2", exchange="orders")
    stage.reject(stage.get("q"))
    stage.reject(stage.get("q"))
    stage.take("germany")
    stage.take("all", 2)
    stage.depths(q=0, germany=0, all=0, none=0)


@topology()
def dl_1_rejected_to_a_headers_exchange_by_the_headers_published_with(stage: Stage) -> None:
    stage.exchange("dlx", "headers")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.queue("dlq")
    stage.queue("other")
    stage.bind("dlq", "dlx", arguments={"x-match": "all", "kind": "order", "size": 3})
    stage.bind("other", "dlx", arguments={"x-match": "any", "kind": "invoice", "size": 4})
    stage.publish("q", "m1", headers={"kind": "order", "size": 3, "deep": {"a": [1, "b"]}})
    stage.publish("q", "m2", headers={"kind": "invoice"})
    stage.reject(stage.get("q"))
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.take("other")
    stage.depths(q=0, dlq=0, other=0)


@topology()
def dl_a12_a_headers_exchange_matches_where_and_why_a_letter_first_died(stage: Stage) -> None:
    stage.exchange("dlx", "headers")
    stage.queue("q1", dead_letter_exchange="dlx", message_ttl=30)
    stage.queue("q2", dead_letter_exchange="dlx", message_ttl=30)
    stage.queue("q3", dead_letter_exchange="dlx")
    stage.queue("both")
    stage.queue("either")
    wanted = {"x-first-death-reason": "expired", "x-first-death-queue": "q1"}
    stage.bind("both", "dlx", arguments={"x-match": "all-with-x", **wanted})
    stage.bind("either", "dlx", arguments={"x-match": "any-with-x", **wanted})
    stage.publish("q3", "rejected in q3")
    stage.reject(stage.get("q3"))
    stage.publish("q2", "expired in q2")
    stage.take("either")
    stage.publish("q1", "expired in q1")
    stage.take("both")
    stage.take("either")
    stage.depths(q1=0, q2=0, q3=0, both=0, either=0)


@topology()
def dl_2_the_default_exchange_and_a_key_lead_to_a_queue(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq")
    stage.queue("dlq")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_1_an_internal_exchange_takes_letters(stage: Stage) -> None:
    stage.exchange("dlx", "fanout", internal=True)
    stage.queue("q", dead_letter_exchange="dlx")
    stage.queue("dlq")
    stage.bind("dlq", "dlx")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_9_an_alternate_exchange_behind_the_dead_letter_exchange(stage: Stage) -> None:
    stage.exchange("rest", "fanout")
    stage.exchange("dlx", "direct", alternate_exchange="rest")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.queue("p", dead_letter_exchange="dlx")
    stage.queue("known")
    stage.queue("unknown")
    stage.bind("known", "dlx", "q")
    stage.bind("unknown", "rest")
    for queue in ("q", "p"):
        stage.publish(queue, f"from {queue}")
        stage.reject(stage.get(queue))
    stage.take("known")
    stage.take("unknown")
    stage.depths(q=0, p=0, known=0, unknown=0)


@topology()
def dl_9_an_exchange_bound_behind_the_dead_letter_exchange(stage: Stage) -> None:
    stage.exchange("dlx", "fanout")
    stage.exchange("behind", "topic")
    stage.channel.exchange_bind("behind", "dlx", "")
    stage.queue("q", dead_letter_exchange="dlx", dead_letter_routing_key="a.b")
    stage.queue("near")
    stage.queue("far")
    stage.bind("near", "dlx")
    stage.bind("near", "behind", "a.*")  # reached twice, delivered once
    stage.bind("far", "behind", "*.b")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"))
    stage.take("near")
    stage.take("far")
    stage.depths(q=0, near=0, far=0)


@topology()
def dl_a11_a_missing_exchange_loses_letters_until_it_is_there(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="later")
    stage.queue("dlq")
    stage.publish("q", "m1", "m2")
    stage.reject(stage.get("q"))
    stage.depths(q=1, dlq=0)
    stage.exchange("later", "fanout")
    stage.bind("dlq", "later")
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


# -- what they carry


@topology()
def dl_11_properties_headers_and_body_stay_as_published(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish(
        "q",
        "body with ümlauts",
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"text": "t", "number": 1, "big": 2**40, "yes": True, "list": ["a", 1, {"b": 2}]},
        delivery_mode=1,
        priority=5,
        correlation_id="c-1",
        reply_to="answers",
        message_id="id-1",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_11_an_empty_body_and_empty_headers(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "", headers={})
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_10_a_key_of_the_queue_replaces_the_one_published_with(stage: Stage) -> None:
    stage.exchange("dlx", "direct")
    stage.queue("q", dead_letter_exchange="dlx", dead_letter_routing_key="dead")
    stage.queue("dlq")
    stage.queue("other")
    stage.bind("dlq", "dlx", "dead")
    stage.bind("other", "dlx", "q")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0, other=0)


@topology()
def dl_10_every_key_of_the_sender_counts_where_the_queue_has_none(stage: Stage) -> None:
    """DL-A6: also one of BCC, which is neither in the history nor in the headers."""
    stage.exchange("dlx", "direct")
    stage.queue("q", dead_letter_exchange="dlx")
    for queue in ("q", "cc1", "cc2", "bcc"):
        stage.queue(f"dead-{queue}")
        stage.bind(f"dead-{queue}", "dlx", queue)
    stage.publish("q", "m1", headers={"CC": ["cc1", "cc2"], "BCC": ["bcc"], "user": "kept"})
    stage.reject(stage.get("q"))
    for queue in ("dead-q", "dead-cc1", "dead-cc2", "dead-bcc"):
        stage.take(queue)
    stage.quiet_depths()


@topology()
def dl_10_keys_of_the_sender_still_count_at_the_second_death(stage: Stage) -> None:
    stage.exchange("dlx1", "fanout")
    stage.exchange("dlx2", "direct")
    stage.queue("q1", dead_letter_exchange="dlx1")
    stage.queue("q2", dead_letter_exchange="dlx2")
    stage.bind("q2", "dlx1")
    for queue in ("q1", "cc", "bcc"):
        stage.queue(f"dead-{queue}")
        stage.bind(f"dead-{queue}", "dlx2", queue)
    stage.publish("q1", "m1", headers={"CC": ["cc"], "BCC": ["bcc"]})
    stage.reject(stage.get("q1"))
    stage.reject(stage.get("q2"))
    for queue in ("dead-q1", "dead-cc", "dead-bcc"):
        stage.take(queue)
    stage.quiet_depths()


@topology()
def dl_a6_keys_of_the_sender_through_the_default_exchange(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="")
    stage.queue("cc")
    stage.queue("bcc")
    stage.publish("q", "m1", headers={"CC": ["q"], "BCC": ["bcc"]})
    stage.take("bcc")
    stage.reject(stage.get("q"))
    stage.take("q")
    stage.take("bcc")
    stage.depths(q=0, cc=0, bcc=0)


@topology()
def dl_d4_a_key_of_the_queue_that_the_sender_hid(stage: Stage) -> None:
    stage.exchange("in", "direct")
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    stage.bind("q", "in", "key")
    stage.queue("dead", dead_letter_exchange="", dead_letter_routing_key="last")
    stage.queue("last")
    stage.publish("key", "m1", exchange="in", headers={"BCC": ["dead"], "user": "kept"})
    stage.reject(stage.get("q"))
    stage.reject(stage.get("dead"))
    stage.take("last")
    stage.depths(q=0, dead=0, last=0)


def _cc_kept(seen: list[Note]) -> None:
    letters(seen)[-1]["headers"]["CC"] = ["cc"]


@topology(Difference("DL-11", "CC is kept with a key override, since 3.13", _cc_kept))
def dl_11_a_key_of_the_queue_replaces_cc_and_bcc(stage: Stage) -> None:
    stage.exchange("dlx", "direct")
    stage.queue("q", dead_letter_exchange="dlx", dead_letter_routing_key="dead")
    for queue in ("dead", "q", "cc", "bcc"):
        stage.queue(f"dead-{queue}")
        stage.bind(f"dead-{queue}", "dlx", queue)
    stage.publish("q", "m1", headers={"CC": ["cc"], "BCC": ["bcc"], "user": "kept"})
    stage.reject(stage.get("q"))
    stage.take("dead-dead")
    stage.quiet_depths()


def _three_deaths_in_order(seen: list[Note]) -> None:
    for note in letters(seen, "m3")[3:]:
        newest_first(note, "q rejected", "again rejected", "q maxlen")


@topology(Difference("DL-13", f"{TURNED} another order", _three_deaths_in_order))
def dl_12_two_reasons_from_one_queue_are_two_entries(stage: Stage) -> None:
    """q: maxlen, then rejected; hold: rejected in between."""
    stage.dead_letters("dlx", "hold")
    stage.queue("q", dead_letter_exchange="dlx", max_length=1)
    stage.exchange("back", "fanout")
    stage.queue("again", dead_letter_exchange="back")
    stage.bind("q", "back")
    stage.publish("q", "m1", "m2")  # m2 drops m1
    stage.wait_for_depth("hold", 1)
    stage.bind("again", "dlx")
    stage.take("q")
    stage.take("hold")
    stage.publish("q", "m3", "m4")
    stage.reject(stage.get("again"))  # m3 comes back and drops m4
    stage.wait_for_depth("hold", 2)
    stage.reject(stage.get("q"))
    stage.take("hold", 3)
    stage.take("again", 2)
    stage.depths(q=0, hold=0, again=0)


@topology()
def dl_13_a_second_death_for_the_same_reason_counts_in_its_entry(stage: Stage) -> None:
    stage.exchange("in", "topic")
    stage.exchange("dlx", "fanout")
    stage.exchange("back", "fanout")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.queue("hold", dead_letter_exchange="back")
    stage.bind("q", "in", "first.#")
    stage.bind("q", "back")
    stage.bind("hold", "dlx")
    stage.publish("first.key", "m1", exchange="in", expiration=str(WEEK_MS))
    for _ in range(3):
        stage.reject(stage.get("q"))
        stage.reject(stage.get("hold"))
    stage.take("q")
    stage.depths(q=0, hold=0)


@topology()
def dl_12_the_ttl_of_the_message_is_told_whatever_it_died_of(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx", max_length=1)
    stage.publish("q", "rejected", expiration=str(WEEK_MS))
    stage.reject(stage.get("q"))
    stage.publish("q", "dropped", "drops it", expiration=str(WEEK_MS))
    stage.take("dlq", 2)
    stage.depths(q=1, dlq=0)


@topology()
def dl_11_a_transient_letter_stays_transient(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", durable=False, dead_letter_exchange="dlx")
    stage.publish("q", "m1", delivery_mode=1)
    stage.channel.basic_publish("", "q", b"no properties at all")
    stage.reject(stage.get("q"))
    stage.reject(stage.get("q"))
    stage.take("dlq", 2)
    stage.depths(q=0, dlq=0)


@topology()
def dl_5_a_letter_is_new_in_its_next_queue(stage: Stage) -> None:
    """DL-A9: rejected with requeue, then without: one letter, not flagged as redelivered."""
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"), requeue=True)
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


# -- order


@topology()
def dl_a8_several_refused_at_once_leave_in_the_order_of_refusal(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    stage.publish("q", "m1", "m2", "m3")
    first, second, third = (stage.get("q") for _ in range(3))
    assert (first, second, third) == (1, 2, 3)
    stage.nack(2, multiple=True, requeue=True)
    assert [stage.get("q"), stage.get("q")] == [4, 5]
    stage.nack(5, multiple=True)
    stage.take("dlq", 3)
    stage.depths(q=0, dlq=0)


@topology()
def dl_7_a_hundred_refusals_keep_their_order(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("q", dead_letter_exchange="dlx")
    other = stage.connection.channel()
    for number in range(100):
        other.basic_publish("", "q", b"%d" % number)
    stage.wait_for_depth("q", 100)
    inbox = stage.consume("q")
    for message in stage.arrived(inbox, 100):
        stage.reject(message.method.delivery_tag)
    stage.channel.basic_cancel(inbox.tag)
    stage.take("dlq", 100)
    stage.depths(q=0, dlq=0)


@topology()
def dl_7_letters_of_two_queues_by_the_order_of_their_deaths(stage: Stage) -> None:
    stage.dead_letters("dlx", "dlq")
    stage.queue("a", dead_letter_exchange="dlx")
    stage.queue("b", dead_letter_exchange="dlx")
    stage.publish("a", "a1", "a2")
    stage.publish("b", "b1", "b2")
    for number, queue in enumerate(("b", "a", "a", "b"), 1):
        stage.reject(stage.get(queue))
        stage.wait_for_depth("dlq", number)
    stage.take("dlq", 4)
    stage.depths(a=0, b=0, dlq=0)


# -- what a client says of deaths


def _each_death_is_the_first(seen: list[Note]) -> None:
    for note in letters(seen):
        note["headers"]["x-death"][0]["count"] = "1L"


@topology(Difference("DL-18", "a published history does not count", _each_death_is_the_first))
def dl_a10_a_letter_published_again_with_its_headers(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq", message_ttl=1)
    stage.queue("dlq")
    stage.publish("q", "m1")
    for _ in range(2):
        letter = stage.message("dlq")
        stage.ack(letter.method.delivery_tag)
        stage.publish("q", "m1", headers=letter.properties.headers)
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_18_a_published_history_reaches_a_consumer_as_it_is(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq")
    stage.queue("dlq")
    stage.queue("next")
    stage.publish("q", "m1")
    stage.reject(stage.get("q"))
    letter = stage.message("dlq")
    stage.ack(letter.method.delivery_tag)
    stage.publish("next", "m1", headers=letter.properties.headers)
    stage.publish("next", "text", headers={"x-death": "plague", "x-first-death-queue": "Q"})
    stage.take("next", 2)
    stage.depths(q=0, dlq=0, next=0)


FORGED = {
    "count": 7,
    "reason": "expired",
    "queue": "dlq",
    "time": datetime(2020, 2, 2, tzinfo=UTC),
    "exchange": "nowhere",
    "routing-keys": ["nothing"],
}


def _forged_is_as_plain(seen: list[Note]) -> None:
    """RabbitMQ 3.10 drops it: the history says that it died in its target."""
    plain = letters(seen, "plain")[-1]
    seen[0]["depths"]["dlq"] = 2
    seen.append(plain | {"body": "forged"})


@topology(Difference("DL-18", "a published history makes no cycle", _forged_is_as_plain))
def dl_a10_a_forged_history_does_not_make_a_message_vanish(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq", message_ttl=1)
    stage.queue("dlq")
    stage.publish("q", "plain")
    stage.wait_for_depth("dlq", 1)
    stage.publish("q", "forged", headers={"x-death": [FORGED]})
    stage.drain("dlq")


def _real_death_only(seen: list[Note]) -> None:
    plain, forged = letters(seen, "plain")[0], letters(seen, "forged")[0]
    forged["headers"] = dict(plain["headers"])
    forged["fields"] = plain["fields"]


@topology(Difference("DL-18", "a published history does not count", _real_death_only))
def dl_18_a_forged_count_is_replaced_by_the_first_death(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq", message_ttl=1)
    stage.queue("dlq")
    stage.publish("q", "plain")
    stage.take("dlq")
    stage.publish("q", "forged", headers={"x-death": [FORGED | {"queue": "q"}]})
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


def _first_death_is_told(seen: list[Note]) -> None:
    headers = letters(seen)[0]["headers"]
    headers |= {f"x-first-death-{what}": headers["x-death"][0][what] for what in FIRST}


FIRST = ("reason", "queue", "exchange")


@topology(Difference("DL-14", "the first real death sets x-first-death-*", _first_death_is_told))
def dl_a10_a_history_that_is_text_is_replaced_by_the_first_death(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq", message_ttl=1)
    stage.queue("dlq")
    stage.publish("q", "m1", headers={"x-death": "plague"})
    stage.take("dlq")
    stage.depths(q=0, dlq=0)


@topology()
def dl_14_first_death_headers_of_a_client_are_replaced(stage: Stage) -> None:
    stage.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq")
    stage.queue("dlq")
    said = {f"x-first-death-{what}": "said" for what in FIRST}
    stage.publish("q", "m1", headers=said)
    stage.reject(stage.get("q"))
    stage.take("dlq")
    stage.depths(q=0, dlq=0)
