"""`tallymark pipeline redrive` against a broker: chosen by SQL, moved once, whatever is killed."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pika
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql import SparkSession

from tallymark.spark import pipelines
from tallymark.spark.client import BrokerRefused, Endpoint
from tallymark.spark.pipelines import redrives
from tests.spark import both
from tests.spark.rig import python_path
from tests.support import forked
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark
ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path()}


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    """Without heartbeats: the command takes its time."""
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port, heartbeat=0))


def die(channel: BlockingChannel, name: str, count: int) -> None:
    """Messages 0, 1, ... published to NAME-in with keys even and odd die in NAME-even or NAME-odd;
    all get to NAME-parked."""
    channel.confirm_delivery()
    to_parked = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-parked"}
    channel.queue_declare(f"{name}-parked", durable=True)
    channel.exchange_declare(f"{name}-in", "direct", durable=True)
    for key in ("even", "odd"):
        channel.queue_declare(f"{name}-{key}", durable=True, arguments=to_parked)
        channel.queue_bind(f"{name}-{key}", f"{name}-in", key)
    for number in range(count):
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=str(number), headers={"customer": f"c{number % 5}"}
        )
        key = "odd" if number % 2 else "even"
        channel.basic_publish(f"{name}-in", key, b"%d" % number, properties)
    for key in ("even", "odd"):
        for _ in range(count // 2):
            method, _, _ = channel.basic_get(f"{name}-{key}")
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare(f"{name}-{key}", passive=True)


def command(broker: BrokerProcess, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "tallymark", "pipeline", "redrive", "--url", broker.url, "--json",
        *([] if "--master" in more else ["--master", "local[2]"]), *more,
    ]  # fmt: skip


def run(broker: BrokerProcess, *more: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, lines of stdout, stderr."""
    done = subprocess.run(
        command(broker, *more), capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def drained(channel: BlockingChannel, queue: str) -> list[tuple[int, dict[str, Any]]]:
    """(message id, headers) of everything in a queue."""
    out = []
    while True:
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return out
        out.append((int(properties.message_id), dict(properties.headers)))


@long(ci=False)
def test_the_command_killed_run_again_and_run_twice_moves_each_once(
    broker: BrokerProcess,
) -> None:
    """Must hold: twice with the same filter moves each message once. The command is killed as it
    moves, then the broker; and both go on."""
    with connect(broker) as connection:
        die(connection.channel(), "k", 150)
    chosen = ["--queue", "k-parked", "--where", "headers['customer'] in ('c1', 'c2', 'c3', 'c4')"]
    chosen += ["--move", "--run", "monday"]
    with subprocess.Popen(
        command(broker, *chosen, "--rate", "20"), stdout=subprocess.PIPE, text=True,
        env=ENVIRONMENT, start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        begun = time.monotonic()
        for _ in range(4):
            asked = json.loads(running.stdout.readline())["asked"]
        assert asked == 20
        assert time.monotonic() - begun > 0.5  # 20 a second
        os.killpg(running.pid, signal.SIGKILL)
    broker.kill()
    broker.restart()
    account = broker.queues()
    moved = 150 - account["k-parked"]["ready"]
    assert 20 <= moved < 120
    assert account["k-even"]["ready"] + account["k-odd"]["ready"] == moved

    code, lines, _ = run(broker, *chosen)
    assert (code, lines[-1]["chosen"]) == (0, 120 - moved)
    assert lines[-1]["results"] == {"moved": 120 - moved}
    code, lines, _ = run(broker, *chosen)
    assert (code, lines[-1]["chosen"], lines[-1]["results"]) == (0, 0, {})

    with connect(broker) as connection:
        channel = connection.channel()
        even, odd = drained(channel, "k-even"), drained(channel, "k-odd")
    customers = [number for number in range(150) if number % 5]
    assert [number for number, _ in even] == [n for n in customers if n % 2 == 0]
    assert [number for number, _ in odd] == [n for n in customers if n % 2]
    headers = even[0][1]
    assert headers["customer"] == "c2"
    assert headers["x-opt-redriven-from"] == "k-parked"
    assert (headers["x-opt-redriven-run"], headers["x-opt-redriven-count"]) == ("monday", 1)
    assert "x-death" not in headers
    assert broker.queues()["k-parked"]["ready"] == 30


def test_the_function_the_ledger_and_what_stays(spark: SparkSession, broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        die(channel, "f", 10)
        letters = pipelines.browse(spark, "f-parked", url=broker.url).cache()
        endpoint = Endpoint.from_url(broker.url)
        dry = pipelines.redrive(letters, endpoint=endpoint)
        assert (dry.dry_run, dry.chosen, dry.results) == (True, 10, {"moved": 10})
        ways = {(way.exchange, *way.routing_keys, *way.queues): way.results for way in dry.ways}
        assert ways == {
            ("f-in", "even", "f-even"): {"moved": 5},
            ("f-in", "odd", "f-odd"): {"moved": 5},
        }
        assert broker.queues()["f-parked"]["ready"] == 10
        method, _, _ = channel.basic_get("f-parked")  # the first is with a consumer now
        assert method is not None
        done = pipelines.redrive(letters, dry_run=False, endpoint=endpoint, run="f")
        assert done.results == {"moved": 9, "not_ready": 1}
        channel.basic_nack(method.delivery_tag, requeue=True)
        again = pipelines.redrive(letters, dry_run=False, endpoint=endpoint, run="f")
        assert again.results == {"moved": 1, "gone": 9}
        method, _, _ = channel.basic_get("f-odd")
        channel.basic_reject(method.delivery_tag, requeue=False)
        back = pipelines.browse(spark, "f-parked", url=broker.url)
        same = pipelines.redrive(back, dry_run=False, endpoint=endpoint, run="f")
        assert same.results == {"repeated": 1}
        other = pipelines.redrive(back, dry_run=False, endpoint=endpoint, to="f-even")
        assert other.results == {"moved": 1}
        assert len(drained(channel, "f-even")) == 6
    outcome = both.run(spark, broker.data_dir, endpoint)
    assert outcome.balanced, outcome.faults
    accounts = {account.queue: account for account in outcome.accounts}
    assert (accounts["f-parked"].settled, accounts["f-parked"].difference) == (11, 0)
    none = spark.createDataFrame(
        [("nowhere", 1, 1)], "queue string, sequence bigint, broker_message_id bigint"
    )
    with pytest.raises(BrokerRefused, match="no queue 'nowhere'"):
        pipelines.redrive(none, endpoint=endpoint)


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (["--rate", "0"], 2, "--rate 0.0: expected more than 0"),
        (["--to", "/nothing/x"], 2, "bad address '/nothing/x'"),
        (["--queue", "nothing"], 1, "no queue 'nothing'"),
        (["--master", "nowhere"], 2, "expected local[N]"),
    ],
)
def test_mistakes_are_told_in_a_line(
    broker: BrokerProcess, more: list[str], code: int, text: str
) -> None:
    with connect(broker) as connection:
        connection.channel().queue_declare("m-parked", durable=True)
    queue = [] if "--queue" in more else ["--queue", "m-parked"]
    done = forked.run(*command(broker, *queue, *more)[3:])
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert text in done.stderr


@pytest.mark.parametrize(
    ("rate", "sizes"),
    [(None, [1000, 500]), (math.inf, [1000, 500]), (3000.0, [750, 750]), (0.5, [1] * 1500)],
)
def test_messages_of_a_request_by_rate(rate: float | None, sizes: list[int]) -> None:
    numbers = list(range(1500))
    named = pa.table({"queue": ["q"] * 1500, "sequence": numbers, "broker_message_id": numbers})
    assert [len(messages) for _, messages in redrives._batches(named, rate)] == sizes


def test_people_see_what_goes_where(capsys: pytest.CaptureFixture[str]) -> None:
    done = redrives.Redriven("r", True, chosen=4)
    way = {"exchange": "orders", "routing_keys": ["eu.new"], "queues": ["work"]}
    done.add({"results": [["moved", 0], ["moved", 0], ["gone", None]], "ways": [way]})
    done.add({"results": [["full", 0]], "ways": [way]})
    redrives.Display("parked", False).done(done)
    shown = capsys.readouterr().out
    assert "parked: 4 messages chosen, would move 2" in shown
    assert re.search(r"orders +eu.new +work +2 +0 +1", shown)
    assert re.search(r"- +- +- +0 +1 +0", shown)
    assert "Nothing was moved: add --move to do it." in shown


def test_people_see_every_result(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a later broker, too."""
    done = redrives.Redriven("r", False, chosen=3)
    done.add({"results": [["new", None], ["unreadable", None], ["moved", None]], "ways": []})
    redrives.Display("parked", False).done(done)
    shown = capsys.readouterr().out
    assert re.search(r"moved +unreadable +new", shown)
    assert re.search(r"- +- +- +1 +1 +1", shown)


def test_columns_a_condition_speaks_of() -> None:
    assert redrives.columns_for("true") == "queue, sequence, broker_message_id, deaths"
    named = redrives.columns_for("Headers['x'] = 'y' and first_death.reason = 'expired'")
    assert named == "queue, sequence, broker_message_id, headers, deaths, first_death"
    named = redrives.columns_for("typed_headers['n'].type = 'int32'")
    assert named == "queue, sequence, broker_message_id, type, deaths, typed_headers"


def test_targets_by_address() -> None:
    parse = redrives.Target.parse
    assert parse("orders") == parse("/queues/orders") == redrives.Target("", "orders")
    assert parse("/exchanges/logs") == redrives.Target("logs", None)
    assert parse("/exchanges/logs/") == redrives.Target("logs", "")
    assert parse("/exchanges/logs/a%2Fb") == redrives.Target("logs", "a/b")
