"""RabbitMQ's paths for clusters, plugins and feature flags, at a broker that is one node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tallymark.server.features import FLAGS
from tallymark.server.management.cluster import static_row
from tests.server.management import FULL, call, connect, done, eventually, get, is_gone, refused
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("cluster")) / "data") as running:
        done(running, "PUT", "users/ann", {"password": "ann", "tags": "management"})
        done(running, "PUT", "users/bob", {"password": "bob", "tags": ""})
        done(running, "PUT", "permissions/%2F/ann", FULL)
        done(running, "PUT", "queues/%2F/q", {"durable": True})
        yield running


@pytest.mark.parametrize(
    "path",
    [
        "parameters", "parameters/shovel", "parameters/shovel/%2F", "global-parameters",
        "federation-links", "federation-links/%2F", "shovels", "extensions", "deprecated-features",
        "deprecated-features/used",
    ],
)  # fmt: skip
def test_what_only_plugins_have_is_empty(broker: BrokerProcess, path: str) -> None:
    assert get(broker, path) == []


@pytest.mark.parametrize(
    "path",
    [
        "parameters/shovel/%2F/s", "global-parameters/cluster_tags", "parameters/shovel/none",
        "federation-links/none",
    ],
)  # fmt: skip
def test_single_things_of_them_are_not_there(broker: BrokerProcess, path: str) -> None:
    assert refused(broker, "GET", path)[:2] == (404, "not_found")


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("amqp://rabbit:5672/%2F", "amqp091"), ("AMQPS091://rabbit", "amqp091"),
        ("amqp10://peer", "amqp10"), ("amqps10://peer", "amqp10"),
        ("http://127.0.0.1:15672", None), ("nsq://nsqd:4150", None),
    ],
)  # fmt: skip
def test_a_shovel_says_what_it_speaks_in_rabbitmqs_words(address: str, word: str | None) -> None:
    """Clients take no other word than these two."""
    row = static_row(
        {"name": "s", "from": address, "queue": "q", "to": address, "state": "running"}
    )
    assert (row["src_uri"], row["dest_uri"]) == (address, address)
    assert (row.get("src_protocol"), row.get("dest_protocol")) == (word, word)


def test_a_parameter_is_refused_for_want_of_its_plugin(broker: BrokerProcess) -> None:
    path, value = "parameters/shovel/%2F/s", {"value": {"src-uri": "amqp://"}}
    assert "component shovel not found" in refused(broker, "PUT", path, value)[2]
    assert refused(broker, "DELETE", path)[0] == 404
    assert refused(broker, "PUT", path, value, "ann:ann")[0] == 401
    assert refused(broker, "PUT", "parameters/shovel/none/s", value)[0] == 404


def test_nobody_sees_other_virtual_hosts_by_way_of_a_plugin(broker: BrokerProcess) -> None:
    assert refused(broker, "GET", "federation-links/%2F", user="bob:bob")[0] == 401


def test_what_moves_between_nodes_has_nothing_to_do(broker: BrokerProcess) -> None:
    node = get(broker, "overview")["node"]
    assert done(broker, "POST", "rebalance/queues") == 204
    assert done(broker, "POST", f"vhosts/%2F/start/{quote(node)}") == 204
    assert refused(broker, "POST", "vhosts/%2F/start/other@host")[:2] == (400, "bad_request")
    assert refused(broker, "POST", f"vhosts/none/start/{quote(node)}")[0] == 404
    for action in ("sync", "cancel_sync"):
        assert done(broker, "POST", "queues/%2F/q/actions", {"action": action}) == 204
    assert "sync" in refused(broker, "POST", "queues/%2F/q/actions", {"action": "no"})[2]
    assert refused(broker, "POST", "queues/%2F/none/actions", {"action": "sync"})[0] == 404


@pytest.mark.parametrize("path", ["rebalance/queues", "queues/%2F/q/actions", "vhosts/%2F/start/x"])
def test_only_administrators_move_anything(broker: BrokerProcess, path: str) -> None:
    assert refused(broker, "POST", path, {"action": "sync"}, "ann:ann")[:2] == (
        401, "not_authorised",
    )  # fmt: skip


def test_a_web_page_is_told_to_log_in_by_password(broker: BrokerProcess) -> None:
    found = get(broker, "auth")
    assert (found["enable_uaa"], found["oauth_enabled"]) == (False, False)


def test_users_that_may_enter_nowhere(broker: BrokerProcess) -> None:
    assert [row["name"] for row in get(broker, "users/without-permissions")] == ["bob"]
    assert refused(broker, "GET", "users/without-permissions", user="ann:ann")[0] == 401


def test_feature_flags_as_rabbitmq_shows_them(broker: BrokerProcess) -> None:
    rows = get(broker, "feature-flags")
    assert {row["name"]: row["state"] for row in rows} == dict.fromkeys(FLAGS, "enabled")
    assert {row["stability"] for row in rows} == {"stable"}
    name = rows[0]["name"]
    assert done(broker, "PUT", f"feature-flags/{name}/enable", {"name": name}) == 204
    assert refused(broker, "PUT", "feature-flags/none/enable", {"name": "none"})[0] == 404
    assert refused(broker, "PUT", f"feature-flags/{name}/enable", {}, "ann:ann")[0] == 401


def test_definitions_at_their_old_path(broker: BrokerProcess) -> None:
    assert get(broker, "all-configuration") == get(broker, "definitions")
    assert refused(broker, "GET", "all-configuration", user="ann:ann")[0] == 401


def test_connections_of_one_user(broker: BrokerProcess) -> None:
    with connect(broker) as kept, connect(broker, "ann") as ended:
        (row,) = get(broker, "connections/username/ann")
        assert row["user"] == "ann"
        assert get(broker, "connections/username/nobody") == []
        assert get(broker, "connections/username/guest", "ann:ann") == []
        assert call(broker, "DELETE", "connections/username/guest", user="ann:ann")[0] == 401
        assert call(broker, "DELETE", "connections/username/ann", X_Reason="moved")[0] == 204
        eventually(lambda: is_gone(ended), ended)
        assert not is_gone(kept)
        assert len(get(broker, "connections/username/guest")) == 1
