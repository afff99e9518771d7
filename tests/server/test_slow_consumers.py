"""Around the watch for slow consumers: reading the configuration again, what others install, what
is shown, and what the ledger has of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tallymark.server.slow.consumers import SlowConsumerWatch
from tallymark.spark import ledger
from tallymark.spark.client import BrokerUnreachable
from tallymark.spark.sink import BatchWriter
from tallymark.spark.sink_options import SinkOptions
from tests.support import forked
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerDied, BrokerProcess

EVERY = 'delay = 50\ntimeunit = "milliseconds"\n'
PLUGIN = '''
import asyncio

def grumble(options):
    """A policy that fails over one queue, and drops from the others."""
    if set(options) - {"over"}:
        raise ValueError(f"unknown options {sorted(options)}")
    def act(slow):
        if slow.reading.queue.name == options["over"]:
            raise RuntimeError("not this one")
        return {"dropped": slow.drop_oldest()}
    return act

class Counting:
    """A task that counts into the broker's log, and fails every other time."""
    def __init__(self, node):
        self.node, self.runs = node, 0
    def period_s(self):
        return 0.03
    async def run(self):
        self.runs += 1
        await asyncio.sleep(0)
        if self.runs % 2:
            raise RuntimeError("every other time")

def broken(node):
    raise RuntimeError("no task")
'''
ENTRY_POINTS = """
[tallymark.slow_consumer_policies]
Grumble = strangers:grumble
delete = strangers:grumble
missing = strangers:nothing_there

[tallymark.housekeeping]
counting = strangers:Counting
broken = strangers:broken
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a broker beside which somebody's package is installed."""
    folder = tmp_path / "site"
    about = folder / "strangers-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "strangers.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *(path for path in given if path)])}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tallymark.toml"


@pytest.fixture
def broker(tmp_path: Path, file: Path) -> Iterator[BrokerProcess]:
    file.write_text(f'[slow_consumers]\n{EVERY}message_count = 20\npolicy = "delete"\n')
    with BrokerProcess(tmp_path / "data", config=str(file), log_format="json") as running:
        yield running


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))


def subscribe(
    connection: pika.BlockingConnection, queue: str, key: str = "k", *, durable: bool = False
) -> BlockingChannel:
    channel = connection.channel()
    channel.queue_declare(queue, durable=durable, exclusive=not durable)
    channel.queue_bind(queue, "amq.topic", key)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda *_: None, exclusive=True, consumer_tag=f"c-{queue}")
    return channel


def publish(connection: pika.BlockingConnection, count: int, key: str = "k") -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(count):
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("amq.topic", key, b"message!", properties)


def log_of(broker: BrokerProcess, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    return [one for one in lines if one["event"] == event]


def tasks(broker: BrokerProcess) -> dict[str, dict[str, Any]]:
    found = broker.http("GET", "/api/tallymark/housekeeping")[1]["tasks"]
    return {one["name"]: one for one in found}


def looks(broker: BrokerProcess, times: int = 3) -> None:
    before = tasks(broker)["slow-consumers"]["runs"]
    until(lambda: tasks(broker)["slow-consumers"]["runs"] >= before + times)


def limits(broker: BrokerProcess, queue: str) -> dict[str, Any] | None:
    rows = broker.http("GET", "/api/tallymark/slow-consumers")[1]["subscriptions"]
    return next((row["limits"] for row in rows if row["queue"] == queue), None)


# -- reading it again


@pytest.mark.parametrize("way", ["SIGHUP", "HTTP", "command"])
def test_sc_a6_a_reload_applies_to_existing_queues_at_the_next_look(
    broker: BrokerProcess, file: Path, way: str
) -> None:
    connection = connect(broker)
    subscribe(connection, "sub")
    publish(connection, 10)
    looks(broker)
    assert limits(broker, "sub") == {"count": 20}
    file.write_text(
        f'log_level = "debug"\namqp_port = 1\n'
        f'[slow_consumers]\n{EVERY}message_count = 9\npolicy = "delete"\n'
    )
    changed = ["slow_consumers", "log_level"]
    if way == "SIGHUP":
        os.kill(broker.pid, signal.SIGHUP)
    elif way == "HTTP":
        assert broker.http("POST", "/api/tallymark/config/reload") == (
            200, {"changed": changed, "at_next_start": []}
        )  # fmt: skip
    else:
        done = forked.run("config", "reload", "--url", broker.url)
        assert (done.returncode, done.stdout) == (
            0, "in effect now: slow_consumers, log_level\n"
        ), done.stderr  # fmt: skip
    until(lambda: "sub" not in broker.queues())
    events = log_of(broker, "config.reloaded")
    # Once for whoever runs it, where the level may hide it, and once for the audit log.
    assert [one["category"] for one in events] == ["server", "audit"]
    for one in events:
        assert (one["changed"], one["at_next_start"]) == (changed, [])
    levels = broker.http("GET", "/api/tallymark/log-levels")[1]
    assert set(levels.values()) == {"debug"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[slow_consumers]\n", "is empty: At least one configuration property("),
        ('[slow_consumers]\nmessage_count = 1\npolicy = "explode"\n', "'explode' is unknown"),
        ("max_memory = '1KiB'\n", "max_memory is '1KiB', expected a size"),
        ("message_count = ", "Invalid value"),
        ('[[policies]]\nname = "p"\npattern = ""\n'
         'definition = { slow-consumer-policy = "explode" }\n', "'explode' is unknown"),
    ],
)  # fmt: skip
def test_sc_a6_what_is_refused_leaves_everything_as_it_was(
    broker: BrokerProcess, file: Path, text: str, told: str
) -> None:
    connection = connect(broker)
    subscribe(connection, "sub")
    file.write_text('log_level = "error"\n' + text)
    status, answer = broker.http("POST", "/api/tallymark/config/reload")
    assert (status, answer["error"]) == (400, "bad_request")
    assert told in answer["reason"]
    os.kill(broker.pid, signal.SIGHUP)
    until(lambda: len(log_of(broker, "config.refused")) == 2)
    assert all(told in one["reason"] for one in log_of(broker, "config.refused"))
    assert limits(broker, "sub") == {"count": 20}
    assert broker.http("GET", "/api/tallymark/log-levels")[1]["engine"] == "info"
    publish(connection, 22)
    until(lambda: "sub" not in broker.queues())


def test_what_waits_for_the_next_start_is_named(broker: BrokerProcess, file: Path) -> None:
    file.write_text(file.read_text().replace("[slow", 'frame_max = 65536\nsync = "never"\n[slow'))
    answer = broker.http("POST", "/api/tallymark/config/reload")[1]
    assert answer == {"changed": [], "at_next_start": ["sync", "frame_max"]}
    file.write_text(
        f'write_high_water = "128KiB"\n[slow_consumers]\n{EVERY}message_count = 21\n'
        'policy = "delete"\n[[policies]]\nname = "cap"\npattern = "^capped"\n'
        "definition = { max-length = 3 }\n"
    )
    answer = broker.http("POST", "/api/tallymark/config/reload")[1]
    assert answer["changed"] == ["write_high_water", "slow_consumers", "policies"]
    again = broker.http("POST", "/api/tallymark/config/reload")[1]
    assert again == {"changed": [], "at_next_start": []}
    assert [row["name"] for row in broker.http("GET", "/api/policies")[1]] == ["cap"]


def test_only_administrators_reload_and_see_the_housekeeping(
    broker: BrokerProcess,
) -> None:
    broker.http("PUT", "/api/users/plain", {"password": "plain", "tags": ""})
    broker.http("PUT", "/api/permissions/%2F/plain", {"configure": "", "write": "", "read": ""})
    for method, path in (("POST", "config/reload"), ("GET", "housekeeping")):
        status, _ = broker.http(method, f"/api/tallymark/{path}", user="plain:plain")
        assert status == 403
    assert broker.http("GET", "/api/tallymark/consumers", user="plain:plain")[0] == 200


def test_sc_a6_a_start_with_a_section_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    section = json.dumps({"message_count": 5, "policy": None})
    with pytest.raises(
        BrokerDied, match=r"exit code 2: .*--slow-consumers policy is None, expected"
    ):
        BrokerProcess(tmp_path / "data", slow_consumers=section).start()
    assert not (tmp_path / "data").exists()


# -- policies of queues


def test_sc_5_a_policy_set_at_run_time_is_a_rule_and_must_name_one_that_is_there(
    broker: BrokerProcess,
) -> None:
    connection = connect(broker)
    subscribe(connection, "sub")
    publish(connection, 5)

    def put(definition: dict[str, object]) -> tuple[int, Any]:
        body = {"pattern": "^sub$", "definition": definition}
        return broker.http("PUT", "/api/policies/%2F/slow", body)

    status, answer = put({"slow-consumer-count": 4, "slow-consumer-policy": "explode"})
    assert status == 400
    assert "'explode' is unknown, expected one of: delete" in answer["reason"]
    imported = {"policies": [{
        "vhost": "/", "name": "slow", "pattern": "", "apply-to": "queues", "priority": 0,
        "definition": {"slow-consumer-policy": "explode"},
    }]}  # fmt: skip
    status, answer = broker.http("POST", "/api/definitions", imported)
    assert status == 400
    assert "'explode' is unknown" in answer["reason"]
    looks(broker)
    assert limits(broker, "sub") == {"count": 20}
    assert put({"slow-consumer-count": 4, "slow-consumer-policy": "drop-oldest"})[0] == 201
    until(lambda: broker.queues()["sub"]["dropped"] == {"slow_consumer": 1})
    assert limits(broker, "sub") == {"count": 4}


# -- sinks


def test_sc_d7_a_sink_of_spark_waits_until_publishers_may_go_on(
    broker: BrokerProcess, file: Path
) -> None:
    file.write_text(f'[slow_consumers]\n{EVERY}message_count = 3\npolicy = "flow"\n')
    assert broker.http("POST", "/api/tallymark/config/reload")[0] == 200
    connection = connect(broker)
    channel = subscribe(connection, "sub")
    publish(connection, 4)
    until(lambda: log_of(broker, "slow_consumer.acted"))
    options = {"url": broker.url, "exchange": "amq.topic", "routingKey": "k"}
    rows = [pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})]
    short = BatchWriter(SinkOptions.parse({**options, "retryMs": "150"}).for_batch())
    with pytest.raises(BrokerUnreachable, match=r"'sub' in vhost '/' wait.* \(HTTP 503, blocked\)"):
        short.write(iter(rows))
    writer = BatchWriter(SinkOptions.parse(options).for_batch())
    with ThreadPoolExecutor(1) as pool:
        refused = len(log_of(broker, "request.refused"))
        written = pool.submit(writer.write, iter(rows))
        until(lambda: len(log_of(broker, "request.refused")) > refused)
        assert not written.done()
        channel.close()
        writer.commit([written.result(timeout=PATIENCE_S)])
    assert broker.queues()["sub"]["entered"] == 6
    connection.close()


# -- what others install


def test_policies_and_tasks_come_by_entry_point_and_harm_nobody(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    """SC-A7: one queue's action raises, the other is seen to."""
    section = {"delay": 50, "timeunit": "MILLISECONDS", "message_count": 3, "policy": "grumble",
               "options": {"over": "first"}}  # fmt: skip
    with BrokerProcess(
        tmp_path / "data", env=installed, slow_consumers=json.dumps(section), log_format="json"
    ) as broker:
        connection = connect(broker)
        subscribe(connection, "first")
        subscribe(connection, "second")
        publish(connection, 10)
        until(lambda: broker.queues()["second"]["dropped"] == {"slow_consumer": 7})
        failed = log_of(broker, "slow_consumer.failed")
        assert {one["queue"] for one in failed} == {"first"}
        assert "not this one" in failed[0]["error"]
        assert broker.queues()["first"]["dropped"] == {}
        acted = log_of(broker, "slow_consumer.acted")
        assert {(one["queue"], one["policy"]) for one in acted} == {("second", "grumble")}
        assert sum(one["dropped"] for one in acted) == 7  # a look may come between the messages
        until(lambda: tasks(broker)["counting"]["runs"] > 3)
        counting = tasks(broker)["counting"]
        assert 0 < counting["errors"] < counting["runs"]
        assert "every other time" in counting["last_error"]
        assert tasks(broker)["slow-consumers"]["errors"] == 0
        assert "broken" not in tasks(broker)
        wrong = [line for line in broker.log().splitlines() if "entry_point." in line]
        assert len(wrong) == 3
        for event, name in (("failed", "missing"), ("failed", "broken"), ("name_taken", "delete")):
            assert any(f"entry_point.{event}" in line and name in line for line in wrong)
        publish(connection, 1)  # still at work
        until(lambda: broker.queues()["second"]["dropped"] == {"slow_consumer": 8})
        connection.close()


def test_a_policy_that_nobody_has_is_refused_with_those_that_are_there(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    section = json.dumps({"message_count": 3, "policy": "x"})
    with pytest.raises(BrokerDied, match=r"expected one of: delete, .*, notify, Grumble"):
        BrokerProcess(tmp_path / "data", env=installed, slow_consumers=section).start()


# -- what is shown, what is kept


def test_consumers_over_http_and_by_command(broker: BrokerProcess) -> None:
    connection = connect(broker)
    subscribe(connection, "sub")
    publish(connection, 17)
    until(lambda: broker.queues()["sub"]["ready"] == 16)
    looks(broker)
    (row,) = broker.http("GET", "/api/tallymark/consumers")[1]["consumers"]
    assert row.pop("connection").startswith("127.0.0.1:")
    assert {key: row[key] for key in (
        "vhost", "queue", "user", "tag", "delivered", "settled", "unsettled", "credit", "state",
    )} == {
        "vhost": "/", "queue": "sub", "user": "guest", "tag": "c-sub", "delivered": 1, "settled": 0,
        "unsettled": 1, "credit": 0, "state": "near",
    }  # fmt: skip
    assert row["oldest_unsettled_ms"] >= 0
    shown = forked.run("consumers", "--url", broker.url).stdout
    header, _, line = [one for one in shown.splitlines() if one.strip()][:3]
    assert header.split()[:3] == ["vhost", "queue", "tag"]
    assert line.split()[:3] == ["/", "sub", "c-sub"]
    assert line.split()[-1] == "near"
    rows = json.loads(forked.run("consumers", "--url", broker.url, "--json").stdout)
    assert [one["tag"] for one in rows] == ["c-sub"]


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Rows of one kind of the journal, read as Spark does."""
    return [
        row
        for part in ledger.plan(folder)
        for batch in ledger.read_file(part)
        for row in batch.to_pylist()
        if row["kind"] == kind and row["source"] == ledger.JOURNAL
    ]


def test_the_ledger_has_near_found_and_acted_and_what_consumers_came_to(
    tmp_path: Path, file: Path
) -> None:
    file.write_text(
        f"consumer_statistics_every = 100\n[slow_consumers]\n{EVERY}message_count = 20\n"
        'policy = "delete"\n'
    )
    with BrokerProcess(tmp_path / "data", config=str(file)) as broker:
        connection = connect(broker)
        channels = [
            subscribe(connection, "sub", durable=True),
            subscribe(connection, "gone"),
            subscribe(connection, "beside", key="other"),
        ]
        publish(connection, 3, "other")
        queue_id = broker.queues()["sub"]["id"]
        publish(connection, 17)
        looks(broker)
        publish(connection, 5)
        until(lambda: "gone" not in broker.queues())
        until(lambda: tasks(broker)["consumer-statistics"]["runs"] > 2)
        until(lambda: connection.process_data_events(0) or not channels[1].is_open)
        assert [channel.is_open for channel in channels] == [True, False, True]
        assert broker.stop() == 0
    events = rows_of(tmp_path / "data", "slow_consumer")
    said = [(json.loads(row["blob"])["queue"], row["reason"]) for row in events]
    assert {one for one in said if one[0] == "sub"} == {("sub", "near"), ("sub", "found")}
    assert [one for one in said if one[0] == "gone"] == [
        ("gone", "near"), ("gone", "found"), ("gone", "acted")
    ]  # fmt: skip
    acted = json.loads(next(row["blob"] for row in events if row["reason"] == "acted"))
    assert (acted["policy"], acted["disconnected"], acted["over"]) == ("delete", True, ["count"])
    assert acted["consumers"][0]["tag"] == "c-gone"
    assert {row["queue_id"] for row in events if '"queue":"sub"' in row["blob"]} == {queue_id}
    consumers = [
        (json.loads(row["blob"])["queue"], row["reason"], json.loads(row["blob"])["delivered"])
        for row in rows_of(tmp_path / "data", "consumer")
    ]
    assert consumers.count(("beside", "goes_on", 1)) == 1  # nothing new, no further row
    assert ("gone", "ended", 1) in consumers
    with BrokerProcess(tmp_path / "data") as broker:  # and a restart passes them over
        row = broker.queues()["sub"]
        assert (row["entered"], row["ready"]) == (22, 22)


def test_sockets_are_read_before_anybody_is_taken_for_slow() -> None:
    """A process that was stopped looks at its timers first."""
    order: list[str] = []

    def read(socket_: socket.socket) -> None:
        order.append(f"read {socket_.recv(16).decode()}")

    def due() -> list[object]:
        order.append("looked")
        return []

    async def play() -> None:
        slow = SimpleNamespace(walked=0, rules=None, due=due)
        turns: Any = SimpleNamespace(broker=SimpleNamespace(slow=slow), tell_time=lambda: None)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(b"ack")
            asyncio.get_running_loop().add_reader(ours, read, ours)
            await SlowConsumerWatch(turns).run()

    asyncio.run(play())
    assert order[:2] == ["read ack", "looked"]
