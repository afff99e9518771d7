"""What the management interface shows, to whom, and in which form."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.server.management import (
    FULL,
    call,
    connect,
    done,
    eventually,
    get,
    is_gone,
    names,
    refused,
)
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("lists")) / "data") as running:
        done(running, "PUT", "vhosts/shop")
        done(running, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(running, "PUT", "users/mo", {"password": "mo", "tags": "monitoring"})
        done(running, "PUT", "permissions/shop/ann", FULL)
        for name in ("alpha", "Beta", "gamma"):
            done(running, "PUT", f"queues/shop/{name}", {"durable": True})
        done(running, "PUT", "queues/%2F/elsewhere", {"arguments": {"x-max-length": 7}})
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pika.BlockingConnection]:
    connection = connect(
        broker, "ann", virtual_host="shop", client_properties={"connection_name": "cart"}
    )
    yield connection
    if connection.is_open:
        connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "queues?columns=name,vhost", "queues/%2F?columns=name", "queues/shop/alpha?columns=name",
        "overview?columns=object_totals", "exchanges/shop?name=amq",
    ],
)  # fmt: skip
def test_a_slash_at_the_end_of_a_path_says_nothing(broker: BrokerProcess, path: str) -> None:
    name, mark, query = path.partition("?")
    assert get(broker, f"{name}/{mark}{query}") == get(broker, path)


def test_a_path_with_a_slash_takes_what_the_path_takes(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/shop/slash/", {"durable": True})
    assert get(broker, "queues/shop/slash")["durable"] is True
    done(broker, "DELETE", "queues/shop/slash/")
    assert call(broker, "GET", "queues/shop/slash")[0] == 404
    assert call(broker, "GET", "nothing/")[0] == 404
    assert call(broker, "GET", "queues/", user="nobody:x")[0] == 401


def test_a_client_that_knows_its_password_by_realm_gets_in(broker: BrokerProcess) -> None:
    """Perl's LWP and others give a password only to the realm that it is for: RabbitMQ's."""
    handler = urllib.request.HTTPBasicAuthHandler()
    handler.add_password("RabbitMQ Management", broker.url, "guest", "guest")
    with urllib.request.build_opener(handler).open(f"{broker.url}/api/whoami") as response:
        assert response.status == 200


def test_a_refused_method_is_told_what_is_allowed(broker: BrokerProcess) -> None:
    request = urllib.request.Request(f"{broker.url}/api/overview", b"", method="POST")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request)
    assert (refusal.value.code, refusal.value.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("overview", "GET, HEAD, OPTIONS"), ("queues/", "GET, HEAD, OPTIONS"),
        ("queues/shop/alpha", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("queues/shop/alpha/get", "OPTIONS, POST"),
        ("tallymark/log-levels", "GET, HEAD, OPTIONS, PUT"),
    ],
)  # fmt: skip
def test_who_asks_is_told_what_a_path_takes(broker: BrokerProcess, path: str, allowed: str) -> None:
    status, headers, found = call(broker, "OPTIONS", path)
    assert (status, headers["allow"], found) == (200, allowed, None)
    assert "access-control-allow-origin" not in headers
    assert call(broker, "OPTIONS", path, user="nobody:x")[0] == 401
    assert call(broker, "OPTIONS", path, Origin="http://example.org")[0] == 403


def test_there_is_nothing_to_ask_of_a_path_that_is_none(broker: BrokerProcess) -> None:
    assert call(broker, "OPTIONS", "nothing")[0] == 404


@pytest.mark.parametrize(
    "path", ["overview", "queues", "queues/shop/alpha", "health/checks/alarms"]
)
def test_a_head_says_what_a_get_does_without_its_body(broker: BrokerProcess, path: str) -> None:
    status, headers, found = call(broker, "HEAD", path)
    assert (status, found, headers["content-type"]) == (200, None, "application/json")
    assert call(broker, "HEAD", "queues/shop/none")[::2] == (404, None)


def test_a_queue_shows_what_is_in_it_and_with_whom(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    for body in (b"a", b"bb", b"ccc"):
        channel.basic_publish("", "alpha", body)
    channel.basic_qos(prefetch_count=1)
    tag = channel.basic_consume("alpha", lambda *_: None, arguments={"x-priority": 5})
    eventually(lambda: get(broker, "queues/shop/alpha")["messages_unacknowledged"] == 1, client)
    row = get(broker, "queues/shop/alpha")
    assert (row["messages"], row["messages_ready"], row["consumers"]) == (3, 2, 1)
    assert 0 <= row["consumer_capacity"] == row["consumer_utilisation"] <= 1
    assert set(row["messages_details"]) == {"rate"}
    assert (row["durable"], row["auto_delete"], row["exclusive"]) == (True, False, False)
    assert (row["type"], row["state"], row["policy"]) == ("classic", "running", None)
    assert row["message_stats"]["publish"] == 3
    (consumer,) = row["consumer_details"]
    assert (consumer["consumer_tag"], consumer["prefetch_count"]) == (tag, 1)
    assert (consumer["ack_required"], consumer["arguments"]) == (True, {"x-priority": 5})
    assert consumer["channel_details"]["number"] == channel.channel_number
    assert consumer["consumer_timeout"] == 1_800_000
    assert get(broker, "consumers/shop") == [consumer]
    channel.close()
    done(broker, "DELETE", "queues/shop/alpha/contents")
    assert get(broker, "queues/shop/alpha")["messages"] == 0


def test_a_queue_counts_what_was_handed_out_each_time(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    done(broker, "PUT", "queues/shop/handed", {"durable": True})
    channel = client.channel()
    channel.confirm_delivery()
    confirmed = get(broker, "overview")["message_stats"]["confirm"]
    for _ in range(6):
        channel.basic_publish("", "handed", b"x")
    stats = get(broker, "overview")["message_stats"]
    assert (stats["confirm"] - confirmed, stats["confirm_details"]) == (6, {"rate": 0.0})
    for is_taken in (True, False, False):
        channel.basic_get("handed", auto_ack=is_taken)
    channel.basic_recover(requeue=True)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("handed", lambda *_: None)
    other = client.channel()
    other.basic_consume("handed", lambda *_: None, auto_ack=True)

    def counts() -> list[int]:
        names = ("deliver", "deliver_no_ack", "get", "get_no_ack", "deliver_get", "ack")
        stats = get(broker, "queues/shop/handed")["message_stats"]
        assert set(stats["deliver_get_details"]) == {"rate"}
        return [stats[name] for name in names]

    eventually(lambda: counts() == [2, 3, 2, 1, 8, 4], client)
    total = get(broker, "overview")["message_stats"]["deliver_get"]
    assert total == sum(
        row["message_stats"]["deliver_get"]
        for row in get(broker, "queues")
        if "message_stats" in row
    )
    assert "confirm" not in get(broker, "overview", "ann:ann")["message_stats"]
    done(broker, "DELETE", "queues/shop/handed")


def test_a_consumer_shows_the_arguments_that_its_client_gave(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    given = {"x-priority": 5, "x-consumer-timeout": 60_000, "till": "3"}
    channel.basic_consume("alpha", lambda *_: None, arguments=given)
    (consumer,) = get(broker, "consumers/shop")
    assert consumer["arguments"] == given
    assert consumer["consumer_timeout"] == 60_000
    channel.close()


def test_a_queue_of_a_connection_says_whose_it_is(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    client.channel().queue_declare("mine", exclusive=True)
    (connection,) = get(broker, "connections")
    row = get(broker, "queues/shop/mine")
    assert (row["exclusive"], row["owner_pid_details"]["name"]) == (True, connection["name"])


def test_a_connection_and_its_channels(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    channel.confirm_delivery()
    (row,) = get(broker, "connections")
    assert (row["user"], row["vhost"], row["state"]) == ("ann", "shop", "running")
    assert (row["user_provided_name"], row["protocol"]) == ("cart", "AMQP 0-9-1")
    assert re.fullmatch(rf"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:{broker.amqp_port}", row["name"])
    assert (row["peer_host"], row["port"]) == ("127.0.0.1", broker.amqp_port)
    quoted = row["name"].replace(" ", "%20").replace(">", "%3E")
    assert get(broker, f"connections/{quoted}")["name"] == row["name"]
    (shown,) = get(broker, f"connections/{quoted}/channels")
    assert (shown["name"], shown["confirm"]) == (f"{row['name']} (1)", True)
    assert get(broker, "channels") == [shown]
    assert get(broker, f"channels/{quoted}%20(1)")["consumer_details"] == []
    assert refused(broker, "GET", "connections/nosuch")[:2] == (404, "not_found")


def test_closing_a_connection_tells_the_client_why(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    (row,) = get(broker, "connections")
    path = "connections/" + row["name"].replace(" ", "%20").replace(">", "%3E")
    assert refused(broker, "DELETE", path, user="mo:mo")[:2] == (401, "not_authorised")
    assert not is_gone(client)
    assert call(broker, "DELETE", path, X_Reason="end of shift")[0] == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="end of shift") as told:
        client.process_data_events(10)
    assert told.value.reply_code == 320
    assert get(broker, "connections") == []


def test_who_may_close_the_own_connection(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    (row,) = get(broker, "connections", "ann:ann")
    path = "connections/" + row["name"].replace(" ", "%20").replace(">", "%3E")
    assert call(broker, "DELETE", path, user="ann:ann")[0] == 204
    eventually(lambda: is_gone(client), client)


@pytest.mark.parametrize("user", ["ann", "mo"])
def test_who_may_not_close_the_connections_of_a_user_is_told(
    broker: BrokerProcess, client: pika.BlockingConnection, user: str
) -> None:
    login = f"{user}:{user}"
    for other in ("guest", "nobody"):
        answer = refused(broker, "DELETE", f"connections/username/{other}", user=login)
        assert answer[:2] == (401, "not_authorised")
    assert get(broker, "connections/username/ann") != []


def test_everybody_sees_the_own_virtual_hosts_and_monitoring_all(broker: BrokerProcess) -> None:
    connection = connect(broker)
    assert names(get(broker, "queues", "ann:ann")) == ["Beta", "alpha", "gamma"]
    assert names(get(broker, "queues", "mo:mo")) == ["elsewhere", "Beta", "alpha", "gamma"]
    assert names(get(broker, "vhosts", "ann:ann")) == ["shop"]
    assert {row["vhost"] for row in get(broker, "exchanges", "ann:ann")} == {"shop"}
    assert {row["vhost"] for row in get(broker, "bindings", "ann:ann")} == {"shop"}
    assert get(broker, "overview", "ann:ann")["object_totals"]["queues"] == 3
    assert get(broker, "connections", "ann:ann") == []
    assert len(get(broker, "connections", "mo:mo")) == 1
    for path in ("queues/%2F", "queues/%2F/elsewhere", "exchanges/%2F", "bindings/%2F"):
        assert refused(broker, "GET", path, user="ann:ann")[:2] == (401, "not_authorised"), path
        assert call(broker, "GET", path, user="mo:mo")[0] == 200, path
    for path in ("users", "users/ann", "permissions", "definitions", "users/ann/permissions"):
        assert refused(broker, "GET", path, user="mo:mo")[:2] == (401, "not_authorised"), path
    assert get(broker, "whoami", "mo:mo") == {"name": "mo", "tags": ["monitoring"]}
    connection.close()


def test_a_connection_shows_what_was_agreed_on(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    (row,) = get(broker, "connections")
    other = connect(broker, heartbeat=40)
    shown = {row["timeout"] for row in get(broker, "connections")}
    other.close()
    assert (row["auth_mechanism"], row["timeout"], row["ssl"]) == ("PLAIN", 0, False)
    assert shown == {0, 40}
    assert row["send_pend"] == 0
    assert "ssl_protocol" not in row


def test_of_a_single_active_consumer_the_others_wait(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    done(broker, "PUT", "queues/shop/one", {"arguments": {"x-single-active-consumer": True}})
    channel = client.channel()
    for tag in ("first", "second"):
        channel.basic_consume("one", lambda *_: None, consumer_tag=tag)
    shown = {
        row["consumer_tag"]: (row["active"], row["activity_status"])
        for row in get(broker, "consumers/shop")
    }
    assert shown == {"first": (True, "single_active"), "second": (False, "waiting")}
    done(broker, "DELETE", "queues/shop/one")


def test_of_consumers_everybody_sees_the_own_and_monitoring_all(
    broker: BrokerProcess, client: pika.BlockingConnection
) -> None:
    """They name their connections: address and user."""
    other = connect(broker, virtual_host="shop")
    tags = [one.channel().basic_consume("alpha", lambda *_: None) for one in (client, other)]

    def seen(path: str, user: str) -> list[str]:
        return [row["consumer_tag"] for row in get(broker, path, user)]

    def totals(user: str) -> dict[str, int]:
        found: dict[str, int] = get(broker, "overview", user)["object_totals"]
        return {name: found[name] for name in ("connections", "channels", "consumers")}

    for path in ("consumers", "consumers/shop"):
        assert seen(path, "ann:ann") == tags[:1]
        assert sorted(seen(path, "mo:mo")) == sorted(tags)
    assert totals("ann:ann") == {"connections": 1, "channels": 1, "consumers": 1}
    assert totals("mo:mo") == {"connections": 2, "channels": 2, "consumers": 2}
    other.close()


def test_pages(broker: BrokerProcess) -> None:
    page = get(broker, "queues/shop?page=2&page_size=2")
    assert names(page["items"]) == ["gamma"]
    counts = ("page", "page_count", "page_size", "item_count", "filtered_count", "total_count")
    assert [page[name] for name in counts] == [2, 2, 2, 1, 3, 3]
    page = get(broker, "queues/shop?page=1&name=A&columns=name")
    assert page["items"] == [{"name": "Beta"}, {"name": "alpha"}, {"name": "gamma"}]
    page = get(broker, "queues/shop?page=1&name=^a&use_regex=true")
    assert (names(page["items"]), page["filtered_count"], page["total_count"]) == (["alpha"], 1, 3)
    assert get(broker, "queues/shop?page=1&name=none")["items"] == []


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("page=3&page_size=2", "page_out_of_range"),
        ("page=0", "invalid_pagination_parameters"),
        ("page=one", "invalid_pagination_parameters"),
        ("page=1&page_size=501", "invalid_pagination_parameters"),
        ("page=" + "1" * 5000, "invalid_pagination_parameters"),
        ("page=1&use_regex=true&name=[", "bad_request"),
    ],
)
def test_pages_there_are_not(broker: BrokerProcess, query: str, error: str) -> None:
    assert refused(broker, "GET", f"queues/shop?{query}")[:2] == (400, error)


def test_order_and_columns(broker: BrokerProcess) -> None:
    assert names(get(broker, "queues/shop?sort=name&sort_reverse=true")) == [
        "gamma", "alpha", "Beta",
    ]  # fmt: skip
    rows = get(broker, "queues?columns=name,arguments.x-max-length,nosuch&sort=vhost")
    assert rows[0] == {"name": "elsewhere", "arguments": {"x-max-length": 7}}
    assert rows[1] == {"name": "Beta"}
    rows = get(broker, "queues?sort=arguments.x-max-length&columns=name")
    assert rows[-1] == {"name": "elsewhere"}, "what has no such column goes first"


def test_the_broker_as_a_whole(broker: BrokerProcess) -> None:
    overview = get(broker, "overview")
    assert overview["product_name"] == "RabbitMQ"
    assert overview["broker_name"] == "Tallymark"
    assert overview["object_totals"]["queues"] == 4
    ports = {(one["protocol"], one["port"]) for one in overview["listeners"]}
    assert ports == {
        ("amqp", broker.amqp_port), ("http", broker.http_port), ("nsq", broker.nsq_port),
        ("nsq_http", broker.nsq_http_port),
    }  # fmt: skip
    (node,) = get(broker, "nodes")
    assert (node["name"], node["running"]) == (overview["node"], True)
    assert node["os_pid"] == str(broker.pid)
    assert 0 < node["fd_used"] < node["fd_total"]
    assert 0 < node["proc_used"] < node["proc_total"]
    assert (node["run_queue"], node["enabled_plugins"], node["being_drained"]) == (0, [], False)
    assert "PLAIN" in [one["name"] for one in node["auth_mechanisms"]]
    assert get(broker, f"nodes/{node['name']}")["name"] == node["name"]
    assert refused(broker, "GET", "nodes/other")[:2] == (404, "not_found")
    assert get(broker, "cluster-name") == {"name": node["name"]}
    for path in ("extensions", "parameters", "parameters/shovel/%2F"):
        assert get(broker, path) == []
    assert refused(broker, "POST", "overview")[:2] == (405, "method_not_allowed")
    assert refused(broker, "GET", "no-such-thing")[:2] == (404, "not_found")


def test_the_version_is_a_text_of_its_own(broker: BrokerProcess) -> None:
    assert get(broker, "version") == get(broker, "overview")["rabbitmq_version"]


def test_queues_in_detail_are_those_of_all_virtual_hosts(broker: BrokerProcess) -> None:
    columns = "?columns=name,vhost,type,durable,arguments,messages,consumers"
    assert get(broker, f"queues/detailed{columns}") == get(broker, f"queues{columns}")
    assert names(get(broker, "queues/detailed", "ann:ann")) == ["Beta", "alpha", "gamma"]
    page = get(broker, "queues/detailed?page=2&page_size=3&columns=name")
    assert (page["items"], page["total_count"]) == ([{"name": "gamma"}], 4)


def test_queues_without_figures(broker: BrokerProcess) -> None:
    is_what = ["name", "vhost", "type", "node", "state", "durable", "auto_delete", "exclusive"]
    counts = ["messages", "messages_ready", "messages_unacknowledged"]
    for path in ("queues", "queues/shop", "queues/detailed"):
        brief = get(broker, f"{path}?disable_stats=true")
        columns = ",".join([*is_what, "arguments"])
        assert brief == get(broker, f"{path}?columns={columns}")
        full = get(broker, f"{path}?columns={columns},{','.join(counts)}")
        assert get(broker, f"{path}?disable_stats=true&enable_queue_totals=true") == full
    one = get(broker, "queues/shop/alpha?disable_stats=true")
    assert list(one) == [*is_what, "arguments"]
    page = get(broker, "queues?disable_stats=true&page=1&name=alpha&columns=name")
    assert page["items"] == [{"name": "alpha"}]


def test_health(broker: BrokerProcess) -> None:
    leaders = "quorum-queues-without-elected-leaders"
    for check in (
        "alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "is-in-service",
        "ready-to-serve-clients", "metadata-store/initialized",
        "metadata-store/initialized/with-data", f"{leaders}/all-vhosts",
        f"{leaders}/all-vhosts/pattern/%5Eq", f"{leaders}/vhost/%2F",
        f"{leaders}/vhost/shop/pattern/%5Eq",
    ):  # fmt: skip
        assert get(broker, f"health/checks/{check}")["status"] == "ok"
    assert get(broker, f"health/checks/port-listener/{broker.amqp_port}")["status"] == "ok"
    assert get(broker, "health/checks/protocol-listener/amqp091")["protocol"] == "amqp"
    for check in ("port-listener/1", "protocol-listener/mqtt"):
        status, _, found = call(broker, "GET", f"health/checks/{check}")
        assert (status, found["status"]) == (503, "failed")

    assert refused(broker, "GET", f"health/checks/{leaders}/vhost/none")[0] == 404
    assert refused(broker, "GET", f"health/checks/{leaders}/vhost/%2F", user="ann:ann")[0] == 401


def test_a_full_broker_fails_the_checks_of_its_limit(tmp_path: Path) -> None:
    """Who asks comes in beyond it."""
    with BrokerProcess(tmp_path / "data", max_connections="1") as broker:
        found = get(broker, "health/checks/below-node-connection-limit")
        assert found == {"status": "ok", "limit": 1, "connections": 0}
        with connect(broker):
            status, _, found = call(broker, "GET", "health/checks/below-node-connection-limit")
            reason = "node connection limit is reached"
            assert status == 503
            assert found == {"status": "failed", "reason": reason, "limit": 1, "connections": 1}
            status, _, found = call(broker, "GET", "health/checks/ready-to-serve-clients")
            assert (status, found["reason"]) == (503, "all 1 connections are taken")
            assert get(broker, "health/checks/is-in-service") == {"status": "ok"}


def test_several_protocols_are_checked_together(broker: BrokerProcess) -> None:
    found = get(broker, "health/checks/protocol-listener/amqp091,%20http,nsq")
    assert found == {"status": "ok", "protocol": "amqp, http, nsq"}
    for wanted, missing in (("amqp,mqtt", ["mqtt"]), ("amqps,mqtt,http", ["amqp/ssl", "mqtt"])):
        status, _, found = call(broker, "GET", f"health/checks/protocol-listener/{wanted}")
        assert (status, found["missing"]) == (503, missing)


@pytest.mark.parametrize("name", ["amqp", "AMQP091", "amqp0-9-1", "amqp10", "amqp1.0", "amqp1_0"])
def test_a_protocol_is_checked_by_each_name_that_rabbitmq_has_for_it(
    broker: BrokerProcess, name: str
) -> None:
    found = get(broker, f"health/checks/protocol-listener/{name}")
    assert found == {"status": "ok", "protocol": "amqp"}


def test_a_listener_that_is_missing_is_named_as_rabbitmq_names_it(broker: BrokerProcess) -> None:
    status, _, found = call(broker, "GET", "health/checks/protocol-listener/amqps")
    assert (status, found["missing"]) == (503, "amqp/ssl")
    assert get(broker, "health/checks/protocol-listener/management")["protocol"] == "http"
    status, _, found = call(broker, "GET", "health/checks/port-listener/1")
    assert (status, found["missing"]) == (503, 1)  # a number, as the ports are
    assert broker.amqp_port in found["ports"]
    assert refused(broker, "GET", "health/checks/port-listener/x")[:2] == (400, "bad_request")


def test_an_alarm_fails_the_check_and_holds_publishers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", disk_free_limit="1000TiB") as broker:
        status, _, found = call(broker, "GET", "health/checks/alarms")
        assert (status, found["alarms"][0]["resource"]) == (503, "disk")
        message = {
            "routing_key": "q",
            "properties": {},
            "payload": "",
            "payload_encoding": "string",
        }
        path = "exchanges/%2F/amq.default/publish"
        assert refused(broker, "POST", path, message)[:2] == (503, "blocked")
        assert refused(broker, "GET", "aliveness-test/%2F")[:2] == (503, "blocked")


def test_the_single_active_consumer_of_a_queue_is_named(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("single", arguments={"x-single-active-consumer": True})
        channel.queue_declare("many")
        assert get(broker, "queues/%2F/single")["single_active_consumer_tag"] is None
        for tag in ("first", "second"):
            channel.basic_consume("single", lambda *_: None, consumer_tag=tag)
            channel.basic_consume("many", lambda *_: None, consumer_tag=f"{tag}-many")
        rows = {row["name"]: row["single_active_consumer_tag"] for row in get(broker, "queues")}
        assert (rows["single"], rows["many"]) == ("first", None)
        channel.basic_cancel("first")
        assert get(broker, "queues/%2F/single")["single_active_consumer_tag"] == "second"
        channel.queue_delete("single")
        channel.queue_delete("many")
