"""What Prometheus reads, and the dashboards and alert rules made for it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tallymark.server.metrics.broker import _shovels
from tallymark.server.node import Node
from tallymark.server.shovels import Shovels
from tallymark.shovels.plan import Plan
from tallymark.wire.nsq import commands
from tests.server.faces import nsq_http
from tests.server.management import call, connect, done
from tests.server.nsqd import Client
from tests.support.patience import until
from tests.support.process import BrokerProcess

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
DASHBOARDS = sorted(MONITORING.glob("grafana-*.json"))
PUBLISHED, SETTLED = 10, 4
HISTOGRAMS = {
    "tallymark_publish_to_confirm_seconds": PUBLISHED,
    "tallymark_publish_to_settle_seconds": SETTLED,
}
NAME = re.compile(r"\b(?:tallymark|rabbitmq|process)_\w+")
VARIABLES = {"$__rate_interval": "5m", "$instance": ".+", "$vhost": ".+", "$queue": ".+"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("metrics")) / "data") as running:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=running.amqp_port))
        channel = connection.channel()
        channel.queue_declare('odd "name"\\', durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_declare("gone", durable=True)
        channel.confirm_delivery()
        for queue in ["q"] * (PUBLISHED - 1) + ["gone"]:
            channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        for _ in range(SETTLED):
            got = channel.basic_get("q")[0]
            assert got is not None
            channel.basic_ack(got.delivery_tag)
        channel.queue_delete("gone")
        yield running
        connection.close()


def families(broker: BrokerProcess, path: str, user: str = "guest:guest") -> dict[str, Metric]:
    status, text = broker.http("GET", path, user=user)
    assert status == 200, text
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found), "a name occurs once"
    return {family.name: family for family in found}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of a family with these labels."""
    family = found[name]
    (sample,) = [
        one
        for one in family.samples
        if one.name in (name, f"{name}_total") and labels.items() <= one.labels.items()
    ]
    return float(sample.value)


def test_every_metric_has_its_kind_and_a_text(broker: BrokerProcess) -> None:
    for path in ("/metrics", "/metrics/per-object"):
        for family in families(broker, path).values():
            assert family.type in ("counter", "gauge", "histogram"), family
            assert family.documentation, family.name


def test_the_whole_broker_is_added_up(broker: BrokerProcess) -> None:
    found = families(broker, "/metrics")
    for name, expected in (
        ("tallymark_queue_ready", PUBLISHED - SETTLED - 1),
        ("rabbitmq_queue_messages_ready", PUBLISHED - SETTLED - 1),
        ("rabbitmq_queue_messages", PUBLISHED - SETTLED - 1),
        ("tallymark_queue_settled", SETTLED),
        ("tallymark_queue_entered", PUBLISHED),
        ("rabbitmq_global_messages_received", PUBLISHED),
        ("rabbitmq_global_messages_confirmed", PUBLISHED),
        ("rabbitmq_global_messages_delivered", SETTLED),
        ("rabbitmq_global_messages_delivered_get_manual_ack", SETTLED),
        ("rabbitmq_global_messages_delivered_consume_manual_ack", 0),
        ("rabbitmq_queues", 2),
        ("rabbitmq_channels", 1),
    ):
        assert value(found, name) == expected, name
    assert value(found, "tallymark_queue_dropped", reason="queue_deleted") == 1
    assert not any("queue" in sample.labels for one in found.values() for sample in one.samples)


def test_only_what_is_confirmed_counts_as_confirmed_over_all_protocols(tmp_path: Path) -> None:
    def counts() -> list[float]:
        found = families(running, "/metrics")
        names = ("rabbitmq_global_messages_received", "rabbitmq_global_messages_confirmed")
        return [value(found, name) for name in names]

    with BrokerProcess(tmp_path / "data") as running:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        done(running, "PUT", "queues/%2F/full", {"durable": True, "arguments": full})
        connection = connect(running)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "full", b"1")
        for _ in range(3):
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "full", b"2")
        assert counts() == [4, 1]
        with Client(running.nsq_port) as client:
            client.ok(commands.mpub("topic", [b"1", b"2", b"3"]))
        assert counts() == [7, 4]
        assert nsq_http(running, "POST", "/mpub?topic=topic", b"4\n5", "")[0] == 200
        assert counts() == [9, 6]
        channel.basic_get("full", auto_ack=True)
        channel.queue_delete("full")
        delivered = value(families(running, "/metrics"), "rabbitmq_global_messages_delivered")
        assert delivered == 1, "what a queue counted stays when it goes"
        connection.close()


def test_what_no_queue_took_what_came_again_and_what_came_and_went(tmp_path: Path) -> None:
    """The counters that RabbitMQ's own dashboard asks for, and the same over management."""

    def counts(prefix: str, *names: str) -> list[float]:
        found = families(running, "/metrics")
        return [value(found, f"rabbitmq_{prefix}{name}") for name in names]

    with BrokerProcess(tmp_path / "data") as running:
        connection = connect(running)
        channel = connection.channel()
        channel.basic_publish("", "nobody", b"dropped")
        channel.confirm_delivery()
        for key in ("nobody", "nobody"):
            with pytest.raises(pika.exceptions.UnroutableError):
                channel.basic_publish("", key, b"returned", mandatory=True)
        channel.queue_declare("q")
        channel.queue_declare("q", passive=True)
        for _ in range(2):
            channel.queue_bind("q", "amq.fanout")
        channel.queue_declare("other")
        channel.queue_bind("other", "amq.fanout")
        channel.basic_publish("amq.fanout", "", b"to two")
        for _ in range(2):
            got = channel.basic_get("q")[0]
            assert got is not None
            channel.basic_nack(got.delivery_tag)
        for queue in ("q", "other"):
            got = channel.basic_get(queue)[0]
            assert got is not None
            channel.basic_ack(got.delivery_tag)
        assert channel.basic_get("q")[0] is None
        channel.queue_delete("other")
        of_messages = "global_messages_"
        assert counts(of_messages, "unroutable_dropped", "unroutable_returned", "routed") == [
            1,
            2,
            2,
        ]
        assert counts(of_messages, "received", "received_confirm", "confirmed") == [4, 3, 3]
        assert counts(of_messages, "delivered", "redelivered", "acknowledged") == [4, 2, 2]
        assert counts(of_messages, "get_empty") == [1]
        assert counts("queues_", "declared", "created", "deleted") == [3, 2, 1]
        overview = call(running, "GET", "overview")[2]
        stats, churn = overview["message_stats"], overview["churn_rates"]
        assert (stats["drop_unroutable"], stats["return_unroutable"]) == (1, 2)
        assert (churn["queue_declared"], churn["queue_created"], churn["queue_deleted"]) == (
            3,
            2,
            1,
        )
        assert {"rate": 0.0}.items() <= churn["connection_created_details"].items()
        stats = call(running, "GET", "queues/%2F/q")[2]["message_stats"]
        assert (stats["redeliver"], stats["get"], stats["get_empty"]) == (2, 3, 1)
        opened = ("connections_opened", "connections_closed", "channels_opened", "channels_closed")
        before = counts("", *opened)
        connection.close()
        until(lambda: counts("", *opened) == [before[0], before[0], before[2], before[2]])


def test_a_socket_that_has_not_logged_in_is_no_connection_of_rabbitmq(
    broker: BrokerProcess,
) -> None:
    """As in the overview and in the list of connections."""
    before = value(families(broker, "/metrics"), "tallymark_connections")
    with socket.create_connection(("127.0.0.1", broker.amqp_port)):
        until(lambda: value(families(broker, "/metrics"), "tallymark_connections") > before)
        assert value(families(broker, "/metrics"), "rabbitmq_connections") == 1


def test_a_shovel_that_ends_and_the_next_one_of_its_name_are_one_sample() -> None:
    async def main() -> list[Metric]:
        shovels = Shovels(asyncio.get_running_loop(), "here")
        for batch in (5, 6):
            sides = {"from": "amqp://127.0.0.1:1", "queue": "q", "to": "amqp://127.0.0.1:2"}
            shovels.use([Plan.from_table({"name": "s", **sides, "batch": batch})])
        assert len(shovels.rows()) == 2
        found = list(_shovels(cast(Node, SimpleNamespace(shovels=shovels))))
        await shovels.stop()
        return found

    for family in asyncio.run(main()):
        assert [one.labels for one in family.samples] == [{"shovel": "s"}]


def test_counts_of_the_whole_broker_begin_with_the_process(tmp_path: Path) -> None:
    """The account of a queue goes on. A counter that begins with it would be taken for a rate."""
    with BrokerProcess(tmp_path / "data") as running:
        done(running, "PUT", "queues/%2F/q", {"durable": True})
        message = {
            "properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x",
            "payload_encoding": "string",
        }  # fmt: skip
        assert running.http("POST", "/api/exchanges/%2F/amq.default/publish", message)[0] == 200
        running.stop()
        running.start()
        found = families(running, "/metrics")
        assert value(found, "tallymark_queue_ready") == 1
        assert value(found, "tallymark_queue_entered") == 0
        own = families(running, "/metrics/per-object")
        assert value(own, "tallymark_queue_entered", queue="q") == 1


def test_bytes_of_clients_that_are_gone_stay_counted(tmp_path: Path) -> None:
    """A counter that falls is one that began anew, to Prometheus: all of it would count again."""
    with BrokerProcess(tmp_path / "data") as broker:

        def counts() -> list[float]:
            found = families(broker, "/metrics")
            return [value(found, f"tallymark_{name}_bytes") for name in ("received", "sent")]

        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        channel = connection.channel()
        channel.queue_declare("bytes")
        channel.basic_publish("", "bytes", bytes(100_000))
        assert channel.basic_get("bytes", auto_ack=True)[2] == bytes(100_000)
        before = counts()
        connection.close()
        until(lambda: broker.http("GET", "/api/connections")[1] == [])
        for was, now in zip(before, counts(), strict=True):
            assert 100_000 < was <= now


def test_each_queue_is_named_where_each_is_asked_for(broker: BrokerProcess) -> None:
    found = families(broker, "/metrics/per-object")
    assert value(found, "tallymark_queue_ready", queue="q") == PUBLISHED - SETTLED - 1
    assert value(found, "rabbitmq_queue_messages", queue='odd "name"\\', vhost="/") == 0


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
def test_histograms_count_every_message_once(broker: BrokerProcess, path: str) -> None:
    found = families(broker, path)
    for name, count in HISTOGRAMS.items():
        samples = [one for one in found[name].samples if one.name.endswith("_bucket")]
        sizes = [one.value for one in samples]
        assert sizes == sorted(sizes), name
        assert samples[-1].labels["le"] == "+Inf"
        assert sizes[-1] == count, name
        bounds = [float(one.labels["le"]) for one in samples]
        assert bounds == sorted(set(bounds))
    syncs = {one.name: one.value for one in found["tallymark_journal_sync_seconds"].samples}
    assert syncs["tallymark_journal_sync_seconds_count"] > 0


def test_who_may_not_enter_a_virtual_host_sees_no_queue_of_it(broker: BrokerProcess) -> None:
    done(broker, "PUT", "vhosts/other")
    done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
    done(broker, "PUT", "permissions/other/ann", {"configure": "", "write": "", "read": ""})
    done(broker, "PUT", "queues/other/hers", {"durable": True})
    found = families(broker, "/metrics/per-object", "ann:ann")
    named = {
        (sample.labels["vhost"], sample.labels["queue"])
        for family in found.values()
        for sample in family.samples
        if "queue" in sample.labels
    }
    assert named == {("other", "hers")}


# -- dashboards and alerts


def expressions(dashboard: Path) -> Iterator[str]:
    """The expressions of a dashboard as Prometheus is asked for them."""
    found: dict[str, Any] = json.loads(dashboard.read_text())
    texts = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    for text in texts:
        for variable, stands_for in VARIABLES.items():
            text = text.replace(variable, stands_for)
        assert "$" not in text, text
        yield text
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def offered(broker: BrokerProcess) -> dict[str, set[str]]:
    """Names of samples, and the labels that those may have."""
    found: dict[str, set[str]] = {}
    for path in ("/metrics", "/metrics/per-object"):
        for family in families(broker, path).values():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            for suffix in suffixes.get(family.type, [""]):
                found.setdefault(family.name + suffix, set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_dashboards_and_alerts_ask_for_metrics_that_there_are(broker: BrokerProcess) -> None:
    names = offered(broker)
    assert len(DASHBOARDS) == 2
    texts = [text for dashboard in DASHBOARDS for text in expressions(dashboard)]
    texts.append(ALERTS.read_text())
    asked = {name for text in texts for name in NAME.findall(text)}
    assert asked
    assert asked - names.keys() == set()


def test_panels_of_a_dashboard_do_not_overlap() -> None:
    for dashboard in DASHBOARDS:
        panels = json.loads(dashboard.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, panel["title"]
            taken |= cells


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    found = [line.split() for line in ALERTS.read_text().splitlines()]
    alerts = sum(words[:2] == ["-", "alert:"] for words in found)
    assert alerts > 0
    assert sum(words[:1] == ["labels:"] and words[1] == "{severity:" for words in found) == alerts
    assert sum(words[:1] == ["summary:"] for words in found) == alerts


def test_each_alarm_of_the_broker_has_an_alert(broker: BrokerProcess) -> None:
    shown = families(broker, "/metrics")["tallymark_alarm"].samples
    asked = re.findall(r'tallymark_alarm\{alarm=~?"([\w|]+)"\}', ALERTS.read_text())
    named = {name for one in asked for name in one.split("|")}
    assert named == {sample.labels["alarm"] for sample in shown}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    return found


def told(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
def test_promtool_finds_nothing_wrong_with_the_metrics(
    broker: BrokerProcess, promtool: str, path: str
) -> None:
    told([promtool, "check", "metrics"], broker.http("GET", path)[1])


def test_promtool_understands_alerts_and_dashboards(promtool: str, tmp_path: Path) -> None:
    told([promtool, "check", "rules", str(ALERTS)])
    asked = [
        text
        for dashboard in DASHBOARDS
        for text in expressions(dashboard)
        if not text.startswith("label_values")
    ]
    recorded = [{"record": f"r{at}", "expr": text} for at, text in enumerate(asked)]
    file = tmp_path / "dashboards.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": recorded}]}))
    told([promtool, "check", "rules", str(file)])


LOST_TEXTS = {
    "summary": "Messages of the queue q at b were given up as lost.",
    "description": "The log of the start, or of who dropped them from quarantine, names them.",
}
LOST = 'tallymark_queue_dropped_total{instance="b", vhost="/", queue="q", reason="lost"}'


@pytest.mark.parametrize("before", ["_", "4"])
def test_the_alert_of_lost_messages_hears_of_a_start_that_gave_some_up(
    promtool: str, tmp_path: Path, before: str
) -> None:
    """They are counted before anything is scraped: what Prometheus sees is a counter that was not
    there while the broker was, then nothing, then what a start gave up."""
    values = f"{before}x10 _x20 7x90"
    times = [(5, 0), (33, 1), (60, 0)]
    told_of = {"severity": "critical", "instance": "b", "vhost": "/", "queue": "q"}
    expected = [
        {
            "eval_time": f"{minute}m",
            "alertname": "TallymarkMessagesLost",
            "exp_alerts": [{"exp_labels": told_of, "exp_annotations": LOST_TEXTS}] * count,
        }
        for minute, count in times
    ]
    tested = {
        "interval": "1m",
        "input_series": [{"series": LOST, "values": values}],
        "alert_rule_test": expected,
    }
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [tested]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_understands_the_configuration_in_the_docs(promtool: str, tmp_path: Path) -> None:
    lines = (MONITORING.parent / "metrics.md").read_text().splitlines()
    (begin,) = [at for at, line in enumerate(lines) if line == "    scrape_configs:"]
    end = lines.index("", begin)
    file = tmp_path / "prometheus.yml"
    file.write_text("\n".join(line[4:] for line in lines[begin:end]) + "\n")
    told([promtool, "check", "config", "--syntax-only", str(file)])
