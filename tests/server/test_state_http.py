"""Lists, status, metrics and the ledger's checkpoint over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tallymark.cli.inspect import GONE, WAITING
from tallymark.spark.account import STILL_THERE
from tests.support.engine_rig import Rig
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("state")) / "data") as running:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=running.amqp_port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-max-length": 1000})
        channel.exchange_declare("logs", "topic", durable=True)
        channel.confirm_delivery()
        for i in range(10):
            channel.basic_publish("", "q", b"%d" % i, pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=4)
        for _ in range(2):
            channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        channel.basic_get("q")
        yield running
        connection.close()


@pytest.mark.parametrize(
    "path",
    ["overview", "status", "queues", "exchanges", "connections", "subscriptions", "log-levels"],
)
def test_every_list_needs_a_login_and_answers_json(broker: BrokerProcess, path: str) -> None:
    assert broker.http("GET", f"/api/tallymark/{path}")[0] == 200
    for wrong in (None, "guest:wrong", "nobody:guest"):
        status, answer = broker.http("GET", f"/api/tallymark/{path}", user=wrong)
        assert (status, answer["error"]) == (401, "not_authorized")


def test_the_account_of_a_queue_balances(broker: BrokerProcess) -> None:
    row = broker.queues()["q"]
    assert (row["entered"], row["ready"], row["acquired"], row["settled"]) == (10, 6, 1, 2)
    assert row["dropped"] == {"rejected": 1}
    assert row["arguments"] == {"x-max-length": 1000}


def test_lc_5_each_term_of_the_account_is_wherever_the_account_is(broker: BrokerProcess) -> None:
    """Who adds one to Queue.counters hears of the other places here."""
    terms = set(Rig().queue("q").counters())
    _, checkpoint = broker.http("POST", "/api/tallymark/ledger/checkpoint")
    _, metrics = broker.http("GET", "/metrics")
    assert terms <= set(broker.queues()["q"])
    # Leased messages are acquired: they are no term of the equation.
    terms.remove("leased")
    for row in checkpoint["queues"]:
        assert terms == set(row) - {"id", "vhost", "name"}
    named = set(re.findall(r"^# HELP tallymark_queue_(\w+?)(?:_total)? ", metrics, re.M))
    assert terms <= named
    terms.remove("entered")
    assert terms == {*WAITING, *GONE} - {"leased"}
    assert terms == {*STILL_THERE, *GONE}


def test_a_connection_is_listed_with_what_it_does(broker: BrokerProcess) -> None:
    _, answer = broker.http("GET", "/api/tallymark/connections")
    (row,) = answer["connections"]
    assert (row["user"], row["vhost"], row["channels"], row["unacked"]) == ("guest", "/", 1, 1)
    assert (row["state"], row["protocol"]) == ("running", "amqp")


def test_exchanges_are_listed(broker: BrokerProcess) -> None:
    _, answer = broker.http("GET", "/api/tallymark/exchanges")
    found = {row["name"]: row["type"] for row in answer["exchanges"]}
    assert found["logs"] == "topic"
    assert found["amq.fanout"] == "fanout"


def test_a_checkpoint_gives_every_account_at_one_position(broker: BrokerProcess) -> None:
    status, answer = broker.http("POST", "/api/tallymark/ledger/checkpoint", {})
    assert status == 200
    (row,) = answer["queues"]
    ended = row["settled"] + row["dead_lettered"] + sum(row["dropped"].values())
    there = sum(
        row[name] for name in ("ready", "acquired", "deferred", "staged", "dead_letter_pending")
    )
    assert row["entered"] == there + ended
    _, found = broker.http("GET", "/api/tallymark/status")
    assert found["journal"]["durable"] >= answer["position"]


def test_metrics_are_in_the_text_format(broker: BrokerProcess) -> None:
    status, text = broker.http("GET", "/metrics/per-object")
    assert status == 200
    lines = text.splitlines()
    assert 'tallymark_queue_ready{queue="q",vhost="/"} 6.0' in lines
    assert 'tallymark_queue_dropped_total{queue="q",reason="rejected",vhost="/"} 1.0' in lines
    assert "tallymark_published_total 10.0" in lines
    assert broker.http("GET", "/metrics/per-object", user=None)[0] == 401


def test_health_needs_no_login(broker: BrokerProcess) -> None:
    assert broker.http("GET", "/healthz", user=None) == (200, {"status": "ok", "alarms": []})


def test_an_unknown_path_is_answered_as_the_others(broker: BrokerProcess) -> None:
    status, answer = broker.http("GET", "/api/nothing")
    assert (status, answer["error"]) == (404, "not_found")
