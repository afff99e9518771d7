"""/stats: the counters of NQ-21, latencies, and both forms to the letter. With a pure broker."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.broker import Broker
from tallymark.engine.message import Payload
from tallymark.engine.queue import Queue
from tallymark.engine.session import REQUEUES
from tallymark.server.nsq.stats import (
    CHUNK,
    ClientRow,
    Latencies,
    Report,
    Stats,
    go_duration,
    memory,
    topic_json,
    topic_text,
)
from tallymark.wire.nsq.kernel import make_cells

START_MS = 1_700_000_000_000


def no_bytes(payload: Payload) -> bytes:
    raise AssertionError("nothing is in the journal only")


def rows_of(
    stats: Stats, *clients: ClientRow, now_ms: int = START_MS, **more: Any
) -> list[dict[str, Any]]:
    return [row for row in stats.collect(clients, now_ms, **more) if row is not None]


class Rig:
    """Topics, and what /stats says of them."""

    def __init__(self, *percentiles: float) -> None:
        self.broker = Broker(no_bytes)
        self.broker.registry.add_vhost("/")
        self.broker.clock.tell(START_MS)
        self.topics = Topics(self.broker, "/", 10)
        self.latencies = Latencies(percentiles, 60_000)
        self.stats = Stats(self.topics, self.latencies)

    def publish(self, topic: str, *bodies: bytes, delay_ms: int = 0) -> None:
        raw, cuts = make_cells(list(bodies))
        self.topics.publish(topic, raw, array("I", cuts), 4, START_MS, delay_ms)

    def collect(self, *clients: ClientRow, **more: Any) -> list[dict[str, Any]]:
        return rows_of(self.stats, *clients, **more)


def client(queue: Queue | None, **more: Any) -> ClientRow:
    values: dict[str, Any] = {
        "client_id": "box", "hostname": "box.example", "version": "V2",
        "remote_address": "10.0.0.1:5000", "connect_ts": START_MS // 1000 - 90,
        "user_agent": "go-nsq/1.1.0", **more,
    }  # fmt: skip
    return ClientRow(queue=queue, **values)


def test_nq_21_topics_and_channels_are_shown_by_name_with_all_fields() -> None:
    rig = Rig()
    rig.topics.topic("b")
    rig.topics.channel("a", "y")
    rig.topics.channel("a", "x")
    rig.publish("a", b"12", b"345")
    rig.publish("b", b"6")
    rows = rig.collect()
    assert [row["topic_name"] for row in rows] == ["a", "b"]
    assert [one["channel_name"] for one in rows[0]["channels"]] == ["x", "y"]
    none = {"count": 0, "percentiles": None}
    assert rows[1] == {
        "topic_name": "b", "channels": [], "depth": 1, "backend_depth": 1, "message_count": 1,
        "message_bytes": 1, "paused": False, "e2e_processing_latency": none,
    }  # fmt: skip
    assert (rows[0]["depth"], rows[0]["message_count"], rows[0]["message_bytes"]) == (0, 2, 5)
    assert rows[0]["channels"][0] == {
        "channel_name": "x", "depth": 2, "backend_depth": 2, "in_flight_count": 0,
        "deferred_count": 0, "message_count": 2, "requeue_count": 0, "timeout_count": 0,
        "client_count": 0, "clients": [], "paused": False, "e2e_processing_latency": none,
    }  # fmt: skip


def test_nq_21_counters_follow_the_steps_of_a_message() -> None:
    rig = Rig()
    broker = rig.broker
    queue = rig.topics.channel("t", "c")

    def row() -> tuple[int, ...]:
        ((channel,),) = [one["channels"] for one in rig.collect()]
        names = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count")
        return tuple(channel[name] for name in (*names, "timeout_count"))

    rig.publish("t", b"m")
    rig.publish("t", b"later", delay_ms=5000)
    assert row() == (1, 0, 1, 2, 0, 0)
    connection = broker.clients.open_connection("/", "", "peer")
    session = broker.clients.open_session(connection)
    consumer = broker.consuming.consume(session, queue, "c", False, False, 0, {})
    consumer.limit, consumer.timeout_ms, consumer.on_timeout = 1, 1000, REQUEUES
    queue.high_water.durable = 100
    broker.turn(START_MS)
    assert row() == (0, 1, 1, 2, 0, 0)
    consumer.limit = 0
    broker.settlement.requeue(session, 1, 0)
    broker.turn(START_MS)
    assert row() == (1, 0, 1, 2, 1, 0)
    consumer.limit = 1
    broker.agenda.mark(queue)
    broker.turn(START_MS)
    broker.settlement.requeue(session, 2, 60_000)
    broker.turn(START_MS)
    assert row() == (0, 0, 2, 2, 2, 0)
    broker.turn(START_MS + 5000)  # the deferred publish is due, and sent
    assert row() == (0, 1, 1, 2, 2, 0)
    consumer.limit = 0
    broker.turn(START_MS + 6100)
    assert row() == (1, 0, 1, 2, 2, 1)
    rig.topics.empty_channel("t", "c")
    broker.turn(START_MS + 6100)
    assert row() == (0, 0, 0, 2, 2, 1)


def test_counts_begin_where_the_broker_started() -> None:
    rig = Rig()
    rig.topics.channel("t", "c")
    rig.publish("t", b"1", b"2")
    later = Stats(rig.topics, rig.latencies)
    rig.publish("t", b"3")
    ((row,),) = [one["channels"] for one in rows_of(later)]
    assert (row["depth"], row["message_count"]) == (3, 1)


def test_one_topic_or_one_channel_can_be_asked_for() -> None:
    rig = Rig()
    rig.topics.channel("a", "x")
    rig.topics.channel("a", "y")
    rig.topics.channel("b", "x")
    assert [row["topic_name"] for row in rig.collect(topic="b")] == ["b"]
    (row,) = rig.collect(topic="a", channel="y")
    assert [one["channel_name"] for one in row["channels"]] == ["y"]
    assert [row["topic_name"] for row in rig.collect(channel="x")] == ["a", "b"]
    assert rig.collect(topic="no") == []
    assert rig.collect(topic="b", channel="y") == []


def test_what_is_deferred_in_a_topic_without_channel_is_part_of_its_depth() -> None:
    rig = Rig()
    rig.publish("t", b"m", delay_ms=5000)
    (row,) = rig.collect()
    assert row["depth"] == 1


def test_ephemeral_ones_have_nothing_on_disk_and_pauses_show() -> None:
    rig = Rig()
    rig.topics.channel("t#ephemeral", "c#ephemeral")
    rig.publish("t#ephemeral", b"m")
    rig.topics.pause_topic("t#ephemeral", True)
    rig.topics.pause_channel("t#ephemeral", "c#ephemeral", True)
    (row,) = rig.collect()
    assert (row["paused"], row["backend_depth"]) == (True, 0)
    (channel,) = row["channels"]
    assert (channel["paused"], channel["depth"], channel["backend_depth"]) == (True, 1, 0)


def test_many_channels_are_looked_at_with_pauses() -> None:
    rig = Rig()
    for number in range(3 * CHUNK):
        rig.topics.channel(f"t{number % 7}", f"c{number}")
    found = list(rig.stats.collect([], START_MS))
    assert found.count(None) == 3
    assert sum(len(row["channels"]) for row in found if row is not None) == 3 * CHUNK


# -- latencies


def test_latencies_are_nanoseconds_by_channel_and_together_for_the_topic() -> None:
    rig = Rig(1.0, 0.5)
    one, two = rig.topics.channel("t", "one"), rig.topics.channel("t", "two")
    for ms in (10, 20, 30, 40):
        rig.latencies.on_finish(one, START_MS - ms, START_MS)
    rig.latencies.on_finish(two, START_MS - 100, START_MS, 4)
    (row,) = rig.collect()
    assert row["channels"][0]["e2e_processing_latency"] == {
        "count": 4,
        "percentiles": [{"quantile": 1.0, "value": 40e6}, {"quantile": 0.5, "value": 20e6}],
    }
    assert row["channels"][1]["e2e_processing_latency"]["count"] == 4
    assert row["e2e_processing_latency"] == {
        "count": 8,
        "percentiles": [{"quantile": 1.0, "value": 100e6}, {"quantile": 0.5, "value": 40e6}],
    }


def test_latencies_of_a_deleted_channel_are_forgotten_and_old_ones_leave_the_window() -> None:
    rig = Rig(1.0)
    queue = rig.topics.channel("t", "c")
    rig.latencies.on_finish(queue, START_MS - 5, START_MS)
    (row,) = rows_of(rig.stats, now_ms=START_MS + 60_000)
    assert row["e2e_processing_latency"] == {
        "count": 0, "percentiles": [{"quantile": 1.0, "value": 0.0}],
    }  # fmt: skip
    rig.latencies.on_finish(queue, START_MS, START_MS + 60_000)
    rig.topics.delete_channel("t", "c")
    again = rig.topics.channel("t", "c")
    rig.collect()
    assert rig.latencies.result([queue, again], START_MS + 60_000)["count"] == 0


def test_without_percentiles_nothing_is_measured() -> None:
    rig = Rig()
    queue = rig.topics.channel("t", "c")
    rig.latencies.on_finish(queue, START_MS - 5, START_MS)
    assert rig.latencies.result([queue], START_MS) == {"count": 0, "percentiles": None}


# -- both forms


def report(*clients: ClientRow, **more: Any) -> Report:
    values: dict[str, Any] = {
        "version": "1.3.0", "built": "tallymark", "health": "OK",
        "started_ms": START_MS - 3_723_004, "now_ms": START_MS, "memory": None,
        "producers": [one for one in clients if one.published], **more,
    }  # fmt: skip
    return Report(**values)


def as_json(
    rig: Rig, *clients: ClientRow, with_clients: bool = True, **more: Any
) -> dict[str, Any]:
    topics = [topic_json(row) for row in rig.collect(*clients, with_clients=with_clients)]
    return report(*clients, **more).as_json(topics)


def as_lines(rig: Rig, *clients: ClientRow, **more: Any) -> list[str]:
    topics = [topic_text(row, START_MS) for row in rig.collect(*clients)]
    return report(*clients, **more).as_text(topics).split("\n")


def test_json_has_the_fields_of_nsqd() -> None:
    rig = Rig()
    queue = rig.topics.channel("t", "c")
    consumer = client(queue, ready_count=5, in_flight_count=2, message_count=9, finish_count=7,
                      requeue_count=1)  # fmt: skip
    producer = client(None, published={"t": 3}, authed=True, auth_identity="me")
    found = as_json(rig, consumer, producer)
    assert list(found) == ["version", "health", "start_time", "topics", "producers"]
    assert found["start_time"] == (START_MS - 3_723_004) // 1000
    (row,) = found["topics"][0]["channels"][0]["clients"]
    assert row == {
        "client_id": "box", "hostname": "box.example", "version": "V2",
        "remote_address": "10.0.0.1:5000", "state": 3, "ready_count": 5, "in_flight_count": 2,
        "message_count": 9, "finish_count": 7, "requeue_count": 1,
        "connect_ts": START_MS // 1000 - 90, "sample_rate": 0, "deflate": False, "snappy": False,
        "user_agent": "go-nsq/1.1.0", "tls": False, "tls_cipher_suite": "", "tls_version": "",
        "tls_negotiated_protocol": "", "tls_negotiated_protocol_is_mutual": False,
    }  # fmt: skip
    (row,) = found["producers"]
    assert row["pub_counts"] == [{"topic": "t", "count": 3}]
    assert (row["authed"], row["auth_identity"]) == (True, "me")
    assert "auth_identity_url" not in row


def test_clients_can_be_left_out_and_memory_put_in() -> None:
    rig = Rig()
    queue = rig.topics.channel("t", "c")
    found = as_json(rig, client(queue), with_clients=False, producers=None, memory=memory())
    assert found["topics"][0]["channels"][0]["clients"] is None
    assert found["producers"] is None
    assert found["memory"]["heap_in_use_bytes"] > 1 << 20
    assert set(found["memory"]) == {
        "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes",
        "gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes",
        "gc_total_runs",
    }  # fmt: skip


def test_the_text_has_the_lines_of_nsqd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    rig = Rig(1.0, 0.5)
    queue = rig.topics.channel("topic", "chan001")
    rig.topics.topic("zzz")
    rig.topics.pause_topic("zzz", True)
    rig.latencies.on_finish(queue, START_MS - 1500, START_MS)
    rig.latencies.on_finish(queue, START_MS - 2, START_MS)
    rig.publish("topic", b"m")
    consumer = client(queue, ready_count=1)
    producer = client(None, published={"topic": 3, "x": 1})
    lines = as_lines(rig, consumer, producer)
    assert lines[0] == "nsqd v1.3.0 (built w/tallymark)"
    assert lines[1].startswith("start_time 2023-11-14T")
    assert lines[2:] == [
        "uptime 1h2m3.004s",
        "",
        "Health: OK",
        "",
        "Topics:",
        "   [topic          ] depth: 0     be-depth: 0     msgs: 1        e2e%: 1.5s, 2.0ms",
        "      [chan001                  ] depth: 1     be-depth: 1     inflt: 0    def: 0    "
        "re-q: 0     timeout: 0     msgs: 1        e2e%: 1.5s, 2.0ms",
        "        [V2 box.example:5000 go-nsq/1.1.0] state: 3 inflt: 0    rdy: 1    fin: 0        "
        "re-q: 0        msgs: 0        connected: 1m30s",
        "",
        "*P [zzz            ] depth: 0     be-depth: 0     msgs: 0        e2e%: 0.0ns, 0.0ns",
        "",
        "Producers:",
        "   [V2 box.example:5000 go-nsq/1.1.0] msgs: 4        topics: topic=3,x=1 connected: 1m30s",
        "",
    ]


def test_the_text_of_an_idle_broker() -> None:
    lines = as_lines(Rig(), memory=memory())
    assert lines[5:8] == ["", "Memory:", f"   {'heap_objects':<25}\t0"]
    assert lines[-5:] == ["", "Topics: None", "", "Producers: None", ""]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (-5, "0s"), (5, "5ms"), (1000, "1s"), (1500, "1.5s"), (60_000, "1m0s"),
     (3_600_000, "1h0m0s"), (90_061_001, "25h1m1.001s")],
)  # fmt: skip
def test_durations_look_like_those_of_go(ms: int, text: str) -> None:
    assert go_duration(ms) == text
