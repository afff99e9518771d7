"""NSQ clients against the engine: what they are answered, sent, and held to."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from tallymark.bridge.nsq.connection import RANGES_A_STEP
from tallymark.bridge.permissions import Permissions
from tallymark.engine.queue import Queue
from tallymark.stored.records import ENTERED, PAYLOAD, SETTLED
from tallymark.wire.line import ALL, SHARE
from tallymark.wire.nsq.errors import NOT_IN_FLIGHT
from tallymark.wire.nsq.frames import ERROR, MESSAGE, RESPONSE
from tallymark.wire.nsq.kernel import RUN_BYTES
from tallymark.wire.nsq.limits import Limits
from tests.bridge.nsq_rig import OK, NsqRig, dpub, mpub, pub
from tests.support.growth import assert_linear

CLOSE_WAIT = (RESPONSE, b"CLOSE_WAIT")


# -- publishing


def test_an_ok_waits_for_the_disk_and_what_is_said_after_it_waits_too() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=0)
    rig.hold_disk = True
    assert peer.ask(pub(b"1"), pub(b"2"), b"FIN 00000000000000ff\n", pub(b"3")) == []
    assert peer.ask(b"CLS\n") == []
    rig.hold_disk = False
    assert peer.hear() == [
        OK, OK, (ERROR, b"E_FIN_FAILED FIN 00000000000000ff failed ID not in flight"), OK,
        CLOSE_WAIT,
    ]  # fmt: skip


def test_an_ok_of_a_later_turn_waits_for_its_own_block() -> None:
    rig = NsqRig()
    peer = rig.client()
    assert peer.ask(pub(b"1")) == [OK]
    rig.hold_disk = True
    assert peer.ask(pub(b"2")) == []
    assert peer.ask(pub(b"3")) == []
    rig.hold_disk = False
    assert peer.hear() == [OK, OK]


def test_a_fatal_error_is_told_behind_the_answers_before_it_and_ends_the_connection() -> None:
    rig = NsqRig()
    peer = rig.client()
    rig.hold_disk = True
    assert peer.ask(pub(b"1"), b"NONSENSE\n", pub(b"2")) == []
    assert not peer.bridge.closing
    rig.hold_disk = False
    assert peer.hear() == [OK, (ERROR, b"E_INVALID invalid command NONSENSE")]
    assert peer.bridge.closing
    topic = rig.topics.find("t")
    assert topic is not None
    assert topic.message_count == 1


def test_an_ok_leaves_also_when_the_client_says_no_more() -> None:
    rig = NsqRig()
    peer = rig.client()
    rig.hold_disk = True
    assert peer.ask(pub(b"1")) == []
    peer.bridge.eof()
    assert not peer.bridge.closing
    rig.hold_disk = False
    assert peer.hear() == [OK]
    assert peer.bridge.closing
    assert peer.bridge.reason == "closed by the peer"


def test_pubs_of_a_stretch_are_one_run() -> None:
    rig = NsqRig()
    rig.topics.channel("t", "c")
    peer = rig.client()
    assert peer.ask(*[pub(b"%03d" % n) for n in range(100)]) == [OK] * 100
    assert len(rig.queue().slices()) == 1
    assert rig.queue().ready == 100


def test_an_mpub_of_100_is_one_run_from_the_socket_to_the_fins() -> None:
    """One slice, one record of each kind in the journal, one entry of what the subscriber holds."""
    rig = NsqRig()
    taker = rig.consumer(ready=2500)
    taker.hear()
    queue, producer = rig.queue(), rig.client()
    rig.turn()
    producer.send(mpub(*[b"%d" % n for n in range(100)]))
    assert [(one.kind, one.count) for one in rig.broker.ledger.rows] == [
        (PAYLOAD, 100),
        (ENTERED, 100),
    ]
    assert len(queue.slices()) == 1
    assert producer.hear() == [OK]
    assert taker.bridge.consumer is not None
    assert len(taker.bridge.consumer.session.inflight) == 1
    got = taker.messages()
    assert [one.body for one in got] == [b"%d" % n for n in range(100)]
    taker.send(*[one.fin() for one in got])
    rig.broker.turn(rig.now_ms)
    assert [(one.kind, one.count) for one in rig.broker.ledger.rows] == [(SETTLED, 100)]
    assert (queue.account.settled, taker.in_flight) == (100, 0)


def test_nq_d5_an_mpub_is_taken_whole_or_not_at_all() -> None:
    rig = NsqRig()
    queue = rig.topics.channel("t", "c")
    peer = rig.client()
    text = peer.error(mpub(b"1", b"", b"3"))
    assert text == "E_BAD_MESSAGE MPUB invalid message(1) body size 0"
    assert queue.ready == 0
    rig.vhost_exchange("d", "direct")
    assert rig.client().error(mpub(b"1", b"2", topic="d")).startswith("E_BAD_TOPIC MPUB ")
    assert list(rig.broker.vhosts["/"].queues) == ["t:", "t:c"]


@pytest.mark.parametrize("command", [pub(b"x"), mpub(b"x"), dpub(b"x", 5), b"SUB t c\n"])
def test_a_topic_that_amqp_made_something_else_is_a_bad_topic(command: bytes) -> None:
    rig = NsqRig()
    rig.vhost_exchange("t", "direct")
    peer = rig.client()
    verb = command.split()[0].decode()
    assert peer.error(command) == (
        f"E_BAD_TOPIC {verb} topic 't': exchange 't' in vhost '/' is of type 'direct', expected a "
        "fanout one"
    )
    assert peer.bridge.closing


def test_what_was_published_is_counted_by_topic() -> None:
    rig = NsqRig()
    peer = rig.client()
    peer.ask(pub(b"12"), pub(b"345"), mpub(b"6", b"78"), pub(b"x", "u"))
    topic = rig.topics.find("t")
    assert topic is not None
    assert (topic.message_count, topic.message_bytes) == (4, 8)
    assert peer.bridge.published == {"t": 4, "u": 1}


# -- delivery


def test_nq_2_a_message_has_its_time_its_attempts_and_its_id() -> None:
    rig = NsqRig()
    rig.client().ask(pub(b"body"))
    peer = rig.consumer()
    message = peer.message()
    assert message.body == b"body"
    assert message.timestamp_ns == rig.now_ms * 1_000_000
    assert message.attempts == 1
    assert int(message.id, 16) > 0


def test_nq_9_two_channels_see_the_same_id_with_attempts_of_their_own() -> None:
    rig = NsqRig()
    one, two = rig.consumer(channel="one"), rig.consumer(channel="two")
    rig.client().ask(pub(b"x"))
    first, second = one.message(), two.message()
    assert first.id == second.id
    again = one.send(first.req()).message()
    assert (again.attempts, again.id) == (2, first.id)
    assert two.ask(second.fin()) == []


def test_nq_11_no_more_in_flight_than_ready() -> None:
    rig = NsqRig()
    rig.client().ask(*[pub(b"%d" % n) for n in range(10)])
    peer = rig.consumer(ready=3)
    first = peer.messages()
    assert [m.body for m in first] == [b"0", b"1", b"2"]
    assert peer.in_flight == 3
    peer.send(first[1].fin())
    assert [m.body for m in peer.messages()] == [b"3"]
    peer.send(b"RDY 5\n")
    assert [m.body for m in peer.messages()] == [b"4", b"5"]
    peer.send(b"RDY 0\n", first[0].fin(), first[2].fin())
    assert peer.messages() == []
    assert peer.in_flight == 3
    assert (peer.bridge.message_count, peer.bridge.finish_count) == (6, 3)


def test_nothing_is_sent_before_the_answer_to_sub() -> None:
    rig = NsqRig()
    rig.client().ask(pub(b"x"))
    peer = rig.client()
    rig.hold_disk = True
    assert peer.ask(b"SUB t c\nRDY 1\n") == []
    rig.hold_disk = False
    assert [kind for kind, _ in peer.hear()] == [RESPONSE, MESSAGE]


def test_a_paused_channel_delivers_nothing_until_it_goes_on() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=5)
    rig.topics.pause_channel("t", "c", True)
    rig.client().ask(pub(b"x"))
    assert peer.messages() == []
    rig.topics.pause_channel("t", "c", False)
    assert peer.message().body == b"x"


# -- FIN, REQ, TOUCH


def test_nq_12_fin_in_the_order_of_delivery_is_one_settlement() -> None:
    told: list[tuple[str, int, int, int]] = []

    def on_finish(queue: Queue, arrived_ms: int, now_ms: int, count: int) -> None:
        told.append((queue.name, arrived_ms, now_ms, count))

    rig = NsqRig(on_finish=on_finish)
    peer = rig.consumer(ready=100)
    rig.client().ask(*[pub(b"%d" % n) for n in range(50)])
    messages = peer.messages()
    published = rig.now_ms
    rig.advance(7)
    assert peer.ask(*[m.fin() for m in messages]) == []
    assert told == [("t:c", published, published + 7, 50)]
    assert (peer.in_flight, rig.queue().account.settled) == (0, 50)
    rig.broker.check()


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [1, 3, 0, 2, 4], [2, 3, 4, 0, 1]])
def test_nq_12_fin_in_any_order(order: list[int]) -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=5)
    rig.client().ask(*[pub(b"%d" % n) for n in range(5)])
    messages = peer.messages()
    assert peer.ask(*[messages[n].fin() for n in order]) == []
    assert (peer.in_flight, rig.queue().account.settled, rig.queue().ready) == (0, 5, 0)
    rig.broker.check()


def test_fin_twice_in_one_run_fails_once() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=5)
    rig.client().ask(*[pub(b"%d" % n) for n in range(5)])
    messages = peer.messages()
    twice = [messages[n].fin() for n in (2, 0, 1, 2, 3, 4)]
    assert (
        peer.error(*twice) == f"E_FIN_FAILED FIN {messages[2].id.decode()} failed ID not in flight"
    )
    assert peer.bridge.finish_count == 5
    assert not peer.bridge.closing


def test_fins_across_payloads_and_gaps() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=100)
    producer = rig.client()
    for n in range(4):
        producer.ask(*[pub(b"%d.%d" % (n, i)) for i in range(5)], pub(b"other", "u"))
    messages = peer.messages()
    assert len(messages) == 20
    odd = messages[1::2]
    assert peer.ask(*[m.fin() for m in odd]) == []
    assert peer.in_flight == 10
    assert peer.ask(*[m.fin() for m in messages[0::2]]) == []
    assert peer.in_flight == 0
    rig.broker.check()


def test_nq_a3_req_0_is_redelivered_at_once_behind_the_others() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1)
    rig.client().ask(pub(b"a"), pub(b"b"))
    peer.send(peer.message().req())
    second = peer.message()
    assert (second.body, second.attempts) == (b"b", 1)
    peer.send(second.fin())
    again = peer.message()
    assert (again.body, again.attempts) == (b"a", 2)
    assert (rig.queue().requeued, peer.bridge.requeue_count) == (1, 1)


def test_nq_a3_req_with_a_delay_is_deferred_and_clamped() -> None:
    rig = NsqRig(Limits(max_req_timeout_ms=5_000))
    peer = rig.consumer(ready=1)
    rig.client().ask(pub(b"a"))
    assert peer.ask(peer.message().req(10_000)) == []
    assert (rig.queue().deferred, rig.queue().ready) == (1, 0)
    rig.advance(4_999)
    assert peer.messages() == []
    rig.advance(1)
    assert peer.message().attempts == 2
    rig.broker.check()


def test_nq_16_dpub_waits_its_time() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1)
    assert rig.client().ask(dpub(b"later", 500)) == [OK]
    assert (rig.queue().deferred, rig.queue().ready) == (1, 0)
    rig.advance(499)
    assert peer.messages() == []
    rig.advance(1)
    message = peer.message()
    assert (message.body, message.attempts) == (b"later", 1)


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_nq_5_what_is_not_in_flight_is_told_and_the_connection_stays(verb: str) -> None:
    rig = NsqRig()
    peer = rig.consumer()
    delay = " 0" if verb == "REQ" else ""
    for id in ("00000000000000ff", "ffffffffffffffff"):
        text = peer.error(f"{verb} {id}{delay}\n".encode())
        assert text == f"E_{verb}_FAILED {verb} {id} failed ID not in flight"
    assert not peer.bridge.closing


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_nq_a6_another_clients_message_is_not_ours_to_settle(verb: str) -> None:
    rig = NsqRig()
    owner, other = rig.consumer(), rig.consumer(ready=0)
    rig.client().ask(pub(b"x"))
    message = owner.message()
    command = {"FIN": message.fin(), "REQ": message.req(), "TOUCH": message.touch()}[verb]
    assert other.error(command) == (
        f"E_{verb}_FAILED {verb} {message.id.decode()} failed client does not own message"
    )
    assert owner.ask(message.fin()) == []
    assert rig.queue().account.settled == 1


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_nq_5_late_answers_are_looked_for_once_together(verb: str) -> None:
    """Each of them had all that was in flight in the channel looked through."""

    def prepare(size: int) -> Callable[[], object]:
        rig = NsqRig()
        peers = [rig.consumer(ready=size) for _ in range(2)]
        producer = rig.client()
        for _ in range(2 * size):
            producer.ask(pub(b"x"))  # each a range of its own
            rig.advance(10)
        mine = peers[0].bridge.in_flight
        assert mine is not None
        late = array("Q", range(10**6, 10**6 + size))

        def answer() -> None:
            if verb == "FIN":
                assert len(mine.finish(late)) == size
            elif verb == "REQ":
                assert len(mine.requeue(late, 0)) == size
            else:
                assert len(mine.touch(late, 900_000)) == size
            assert set(mine.reasons(list(late))) == {NOT_IN_FLIGHT}

        return answer

    assert_linear(prepare, 50)


def test_nq_5_the_search_for_a_late_answer_counts_as_work() -> None:
    rig = NsqRig()
    owner, other = rig.consumer(ready=200), rig.consumer(ready=0)
    producer = rig.client()
    for _ in range(200):
        producer.ask(pub(b"x"))
        rig.advance(10)
    assert owner.in_flight == 200
    other.error(b"FIN 00000000000000ff\n")
    assert ALL - other.bridge.line.steps > 200 // RANGES_A_STEP


def test_nq_a1_a_time_out_queues_again_and_a_late_fin_fails() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1, msg_timeout=1000)
    rig.client().ask(pub(b"x"))
    message = peer.message()
    peer.send(b"RDY 0\n")
    rig.advance(1_150)
    queue = rig.queue()
    assert (queue.timed_out, queue.requeued, queue.ready, peer.in_flight) == (1, 0, 1, 0)
    assert peer.error(message.fin()) == (
        f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"
    )
    assert not peer.bridge.closing
    peer.send(b"RDY 1\n")
    assert peer.message().attempts == 2
    rig.broker.check()


def test_nq_14_a_redelivery_after_a_time_out_can_be_finished_under_the_same_id() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1, msg_timeout=1000)
    rig.client().ask(pub(b"x"))
    first = peer.message()
    rig.advance(1_100)
    second = peer.message()
    assert (second.id, second.attempts) == (first.id, 2)
    assert peer.ask(second.fin()) == []
    assert (rig.queue().account.settled, rig.queue().ready, peer.in_flight) == (1, 0, 0)


def test_nq_a2_touch_counts_from_now() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1, msg_timeout=1000)
    rig.client().ask(pub(b"x"))
    message = peer.message()
    for _ in range(5):
        rig.advance(900)
        assert peer.ask(message.touch()) == []
    assert peer.ask(message.fin()) == []
    assert (rig.queue().timed_out, rig.queue().account.settled) == (0, 1)


def test_nq_a2_touching_for_ever_ends_with_the_longest_time() -> None:
    rig = NsqRig(Limits(max_msg_timeout_ms=3_000))
    peer = rig.consumer(ready=1, msg_timeout=1000)
    rig.client().ask(pub(b"x"))
    message = peer.message()
    for _ in range(7):
        rig.advance(400)
        peer.ask(message.touch())
    assert rig.queue().timed_out == 0
    rig.advance(300)
    assert rig.queue().timed_out == 1


def test_nq_a9_an_emptied_channel_holds_nothing_and_goes_on() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=25)
    producer = rig.client()
    producer.ask(*[pub(b"%d" % n) for n in range(30)])
    messages = peer.messages()
    assert len(messages) == 25
    rig.topics.empty_channel("t", "c")
    assert (peer.in_flight, rig.queue().acquired, rig.queue().ready) == (0, 0, 0)
    assert peer.error(messages[0].fin()).endswith("failed ID not in flight")
    producer.ask(pub(b"new"))
    assert [m.body for m in peer.messages()] == [b"new"]
    rig.broker.check()


# -- leaving


def test_nq_a5_who_goes_leaves_its_messages_to_others_at_once() -> None:
    rig = NsqRig()
    gone, stays = rig.consumer(), rig.consumer(ready=0)
    rig.client().ask(pub(b"x"))
    gone.message()
    stays.send(b"RDY 1\n")
    gone.leave()
    message = stays.message()
    assert (message.body, message.attempts) == (b"x", 2)
    rig.broker.check()


def test_nq_a13_a_client_that_answers_no_heartbeat_is_dead_after_two_intervals() -> None:
    rig = NsqRig()
    dead = rig.consumer(heartbeat_interval=1000)
    rig.client().ask(pub(b"x"))
    dead.message()
    rig.advance(1_900)
    assert not dead.bridge.closing
    rig.advance(200)
    assert dead.bridge.closing
    assert rig.consumer().message().attempts == 2


def test_nq_25_cls_ends_deliveries_and_lets_the_client_finish() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1)
    rig.client().ask(pub(b"1"), pub(b"2"))
    message = peer.message()
    assert peer.ask(b"CLS\n") == [CLOSE_WAIT]
    assert peer.ask(b"RDY 5\n", message.fin()) == []
    assert (rig.queue().account.settled, rig.queue().ready) == (1, 1)
    assert not peer.bridge.closing


def test_nq_25_after_cls_what_is_given_back_goes_to_others_and_answering_twice_does_no_harm() -> (
    None
):
    rig = NsqRig()
    peer = rig.consumer(ready=2)
    rig.client().ask(pub(b"1"), pub(b"2"))
    kept, given = peer.messages()
    assert peer.ask(b"CLS\n", given.req(0)) == [CLOSE_WAIT]
    other = rig.consumer(ready=1)
    assert other.message().body == given.body
    for late in (given.req(0), given.fin()):
        assert peer.error(late).startswith(f"E_{late[:3].decode()}_FAILED ")
    assert peer.ask(kept.fin()) == []
    assert not peer.bridge.closing
    peer.leave()
    assert (rig.queue().account.settled, rig.queue().ready, other.in_flight) == (1, 0, 1)


def test_nq_25_after_cls_the_next_client_is_served_where_one_is_active() -> None:
    """It waited until the first was gone, which settles what it holds before it goes."""
    rig = NsqRig()
    arguments = {"x-nsq-topic": "t", "x-nsq-channel": "c", "x-single-active-consumer": True}
    rig.vhost_queue("t:c", arguments)
    first, second = rig.consumer(ready=1), rig.consumer(ready=1)
    rig.client().ask(pub(b"1"), pub(b"2"))
    message = first.message()
    assert first.ask(b"CLS\n") == [CLOSE_WAIT]
    assert second.message().body == b"2"
    assert first.ask(message.fin()) == []
    rig.broker.check()


def test_a_stop_answers_what_was_published_and_gives_back_what_was_held() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=1)
    peer.ask(pub(b"1"))
    rig.hold_disk = True
    assert peer.ask(pub(b"2")) == []
    peer.bridge.shutdown()
    assert (rig.queue().ready, rig.queue().acquired) == (2, 0)
    assert peer.hear() == []
    assert not peer.bridge.closing
    rig.hold_disk = False
    assert peer.hear() == [OK]
    assert peer.bridge.closing


def test_nq_a13_an_ephemeral_channel_goes_with_its_last_client_and_comes_again() -> None:
    rig = NsqRig()
    one = rig.consumer(channel="c#ephemeral")
    two = rig.consumer(channel="c#ephemeral")
    one.leave()
    assert rig.queue(channel="c#ephemeral").consumers
    two.leave()
    topic = rig.topics.find("t")
    assert topic is not None
    assert topic.channels == {}
    rig.consumer(channel="c#ephemeral")
    assert list(topic.channels) == ["c#ephemeral"]


@pytest.mark.parametrize("verb", ["REQ", "TOUCH"])
def test_what_is_said_of_a_message_when_its_channel_has_just_been_deleted(verb: str) -> None:
    """The client is closed with the turn; what it has published before that is answered."""
    rig = NsqRig()
    peer = rig.consumer()
    rig.client().ask(pub(b"m"))
    message = peer.message()
    rig.topics.delete_channel("t", "c")
    said = message.req() if verb == "REQ" else message.touch()
    failed = f"E_{verb}_FAILED {verb} {message.id.decode()} failed ID not in flight"
    assert peer.ask(pub(b"x", "other"), said) == [OK, (ERROR, failed.encode())]
    assert peer.bridge.closing
    rig.broker.check()


def test_the_clients_of_a_deleted_channel_are_closed() -> None:
    rig = NsqRig()
    peer = rig.consumer()
    rig.topics.delete_channel("t", "c")
    rig.settle_down()
    assert peer.bridge.closing
    assert peer.bridge.reason == "channel t:c was deleted"


def test_no_more_consumers_than_allowed() -> None:
    rig = NsqRig(max_channel_consumers=1)
    first = rig.consumer()
    peer = rig.client()
    assert peer.error(b"SUB t c\n") == (
        "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"
    )
    assert peer.bridge.closing
    first.leave()
    rig.consumer()


@pytest.mark.parametrize("channel", ["c", "c#ephemeral"])
def test_who_may_have_no_session_makes_no_channel(channel: str) -> None:
    """An ephemeral channel without a client would stay for ever, and take the backlog."""
    rig = NsqRig()
    rig.topics.topic("t")
    peer = rig.client()
    assert peer.ask(pub(b"waits")) == [OK]
    peer.bridge.act_as(Permissions.all("ann"))
    assert peer.bridge.enter("AUTH")
    rig.broker.quotas.limit({}, {"ann": {"max-channels": 0}})
    code = peer.error(f"SUB t {channel}\n".encode())
    assert code.startswith("E_SUB_FAILED SUB failed number of channels")
    topic = rig.topics.find("t")
    assert topic is not None
    assert (topic.channels, topic.backlog.ready) == ({}, 1)
    assert peer.bridge.closing
    assert rig.broker.state.connections == {}


# -- sample rate and output buffer


def test_nq_d6_a_sample_of_25_percent_is_one_in_four_and_the_rest_is_done_with() -> None:
    draws = iter(range(1000))
    rig = NsqRig(draw=lambda: next(draws) % 100)
    peer = rig.consumer(ready=1000, sample_rate=25)
    rig.client().ask(*[pub(b"%d" % n) for n in range(200)])
    bodies = [int(m.body) for m in peer.messages()]
    assert bodies == [*range(25), *range(100, 125)]
    assert peer.in_flight == 50
    assert rig.queue().account.settled == 150
    assert peer.bridge.message_count == 50
    rig.broker.check()


def test_the_output_buffer_holds_messages_for_the_time_the_client_named() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=10, output_buffer_size=1000, output_buffer_timeout=500)
    rig.client().ask(pub(b"x" * 100))
    assert peer.messages() == []
    rig.advance(499)
    assert peer.messages() == []
    rig.advance(1)
    assert len(peer.messages()) == 1


def test_the_output_buffer_is_written_when_it_is_full_or_the_client_takes_no_more() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=10, output_buffer_size=1000, output_buffer_timeout=500)
    producer = rig.client()
    producer.ask(pub(b"x" * 600))
    assert peer.messages() == []
    producer.ask(pub(b"x" * 600))
    messages = peer.messages()
    assert len(messages) == 2
    peer.ask(*[m.fin() for m in messages])
    peer.ask(b"RDY 1\n")
    producer.ask(pub(b"last"))
    assert len(peer.messages()) == 1


def test_the_output_buffer_is_written_with_an_answer() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=10, output_buffer_size=1000, output_buffer_timeout=500)
    rig.client().ask(pub(b"x"))
    assert peer.messages() == []
    assert [kind for kind, _ in peer.ask(b"FIN 00000000000000ff\n")] == [MESSAGE, ERROR]


@pytest.mark.parametrize("identify", [{}, {"output_buffer_size": -1}])
def test_messages_leave_at_once_for_who_does_not_ask_otherwise(identify: dict[str, object]) -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=10, **identify)
    rig.client().ask(pub(b"x"))
    assert len(peer.messages()) == 1


# -- ids


def test_nq_d8_a_clock_that_steps_back_stops_nothing() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=9)
    peer.ask(pub(b"1"))
    rig.now_ms -= 500_000
    producer = rig.client()
    assert producer.ask(pub(b"2"), mpub(b"3", b"4")) == [OK, OK]
    got = peer.messages()
    assert [one.body for one in got] == [b"2", b"3", b"4"]
    assert peer.ask(*[one.fin() for one in got]) == []
    again = [int(one.id, 16) for one in got]
    assert again == sorted(set(again))


def test_a_message_id_counts_up_within_a_run() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=10)
    rig.client().ask(mpub(b"a", b"b", b"c"))
    ids = [int(m.id, 16) for m in peer.messages()]
    assert ids == list(range(ids[0], ids[0] + 3))


# -- how much is done on one read


@pytest.mark.parametrize("verb", ["FIN", "TOUCH", "REQ"])
def test_what_is_refused_counts_as_work_however_it_came(verb: str) -> None:
    """A read of 10,000 commands for messages that are not there: each receive answers a share, and
    the rest waits for the next."""
    rig = NsqRig(Limits(steps=SHARE))
    peer = rig.consumer(ready=0)
    delay = " 0" if verb == "REQ" else ""
    count, shares, answered = 10_000, 0, 0
    peer.send(f"{verb} 00000000000000ff{delay}\n".encode() * count)
    while True:
        answers = len(peer.hear())
        shares += 1
        answered += answers
        assert answers <= RUN_BYTES // len("FIN 00000000000000ff\n") + SHARE
        if not peer.bridge.is_behind:
            break
        peer.send(b"")
    assert answered == count
    assert shares >= count * 21 // (RUN_BYTES + SHARE * 21)


def test_answers_that_wait_for_the_disk_count_as_memory() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=0)
    rig.hold_disk = True
    peer.send(pub(b"1"), b"FIN 00000000000000ff\n" * 500)
    assert peer.bridge.output_bytes >= 501 * len(b"E_FIN_FAILED FIN 00000000000000ff failed")
    rig.hold_disk = False
    assert len(peer.hear()) == 501
    assert peer.bridge.output_bytes == 0
