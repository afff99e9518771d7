"""Definitions out and in: a real RabbitMQ export, what is not offered, what is wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.management import call, connect, done, get, names, refused
from tests.support import forked
from tests.support.process import BrokerDied, BrokerProcess

EXPORT = Path(__file__).parent / "fixtures" / "rabbitmq-3.10.8-definitions.json"
"""Made by RabbitMQ 3.10.8 with a topology, policies and users set up by hand."""

NOT_OFFERED = [
    "user 'emil': password hash of kind 'rabbit_password_hashing_md5'",
    "global parameter 'own_param'",
    "global parameter 'internal_cluster_id'",
    "policy 'mirrors' in vhost 'shop': key 'ha-mode' is kept, without effect",
]
"""What of it this broker has not."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def exported(broker: BrokerProcess, user: str = "guest:guest") -> dict[str, Any]:
    """What is there, in an order of its own for comparison."""
    found = get(broker, "definitions", user)
    for value in found.values():
        if isinstance(value, list):
            value.sort(key=lambda row: json.dumps(row, sort_keys=True))
    return dict(found)


def imported(broker: BrokerProcess, value: object, path: str = "definitions") -> dict[str, Any]:
    status, _, found = call(broker, "POST", path, value)
    assert status in (200, 204), found
    return dict(found or {"unsupported": []})


# -- a real export


def test_an_export_of_rabbitmq_loads_and_what_is_not_offered_is_named(
    broker: BrokerProcess,
) -> None:
    value = json.loads(EXPORT.read_text())
    found = imported(broker, value)
    assert len(found["unsupported"]) == len(NOT_OFFERED)
    for text, expected in zip(found["unsupported"], NOT_OFFERED, strict=True):
        assert text.startswith(expected)
        assert text.replace("'", "")[:40] in broker.log().replace("\\", "").replace("'", "")
    assert found["imported"] == {
        "users": 6, "vhosts": 2, "permissions": 5, "topic_permissions": 1, "policies": 4,
        "queues": 6, "exchanges": 5, "bindings": 8,
    }  # fmt: skip

    for user, tags in (
        ("ann:secret", ["administrator"]),
        ("bob:hunter2", ["monitoring", "management"]),
        ("dora:sha512", ["policymaker"]),
        ("guest:guest", ["administrator"]),
    ):
        assert get(broker, "whoami", user)["tags"] == tags
    assert call(broker, "GET", "whoami", user="emil:md5")[0] == 401
    assert get(broker, "permissions/shop/bob")["configure"] == "^bob\\."
    orders = get(broker, "queues/shop/orders")
    assert orders["arguments"]["x-dead-letter-exchange"] == "letters"
    assert (orders["policy"], orders["operator_policy"]) == ("len", "op")
    assert orders["effective_policy_definition"] == {
        "expires": 86400000, "max-length": 500, "message-ttl": 30000,
    }  # fmt: skip
    assert get(broker, "queues/shop/dead")["type"] == "quorum"
    assert get(broker, "queues/shop/log")["type"] == "stream"
    with connect(broker, virtual_host="shop") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("events", "order.1", b"x", mandatory=True)
        assert channel.basic_get("orders", auto_ack=True)[2] == b"x"


def test_an_export_keeps_everything_that_was_imported(broker: BrokerProcess) -> None:
    value = json.loads(EXPORT.read_text())
    imported(broker, value)
    found = exported(broker)

    def rows(section: str, source: dict[str, Any]) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in source[section])

    for section in ("vhosts", "permissions", "topic_permissions", "policies", "exchanges"):
        assert rows(section, found) == rows(section, value), section
    value["parameters"] = [row for row in value["parameters"] if row["name"] in ("op", "limits")]
    for row in value["users"]:
        if row["name"] == "emil":
            row.update(password_hash="", hashing_algorithm="rabbit_password_hashing_sha256")
    for row in value["queues"]:  # RabbitMQ 3.10 does not say it
        row["type"] = row["arguments"].get("x-queue-type", "classic")
    for section in ("users", "queues", "bindings", "parameters"):
        assert rows(section, found) == rows(section, value), section


def test_an_import_may_be_repeated_and_outlives_a_crash(broker: BrokerProcess) -> None:
    value = json.loads(EXPORT.read_text())
    imported(broker, value)
    first = exported(broker)
    imported(broker, value)
    assert exported(broker) == first
    broker.kill()
    broker.restart()
    again = exported(broker)
    for transient in ("queues", "exchanges", "bindings"):
        first.pop(transient)
        again.pop(transient)
    assert again == first
    durable = [row["name"] for row in value["queues"] if row["durable"]]
    assert sorted(names(get(broker, "queues"))) == sorted(durable)


def test_our_own_export_makes_the_same_broker_elsewhere(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    imported(broker, json.loads(EXPORT.read_text()))
    done(broker, "PUT", "users/new", {"password": "scrypt", "tags": "monitoring"})
    done(broker, "PUT", "user-limits/new/max-publish-rate", {"value": 500})
    done(broker, "PUT", "vhost-limits/shop/max-publish-rate", {"value": 2000})
    table = {"deep": {"list": [1, 2.5, True, None]}, "text": "ü"}
    done(broker, "PUT", "queues/%2F/odd", {"durable": True, "arguments": table})
    first = exported(broker)
    with BrokerProcess(tmp_path / "other") as other:
        assert imported(other, first)["unsupported"] == [
            "policy 'mirrors' in vhost 'shop': key 'ha-mode' is kept, without effect"
        ]
        assert exported(other) == first
        assert get(other, "whoami", "new:scrypt")["name"] == "new"
        for path in ("user-limits", "vhost-limits"):
            assert get(other, path) == get(broker, path) != []
        assert get(other, "user-limits/new")[0]["value"] == {"max-publish-rate": 500}
        shop = {"max-queues": 100, "max-publish-rate": 2000}
        assert get(other, "vhost-limits/shop")[0]["value"] == shop


def test_a_queue_without_a_type_takes_the_default_of_its_virtual_host(
    broker: BrokerProcess,
) -> None:
    lasting = {"durable": True, "auto_delete": False, "arguments": {}}
    value = {
        "vhosts": [{"name": "new", "default_queue_type": "quorum"}, {"name": "plain"}],
        "policies": [
            {"vhost": "plain", "name": "kept", "pattern": "^kept", "apply-to": "queues",
             "definition": {"default-queue-type": "stream"}},
        ],
        "queues": [
            {"vhost": "new", "name": "untyped", **lasting},
            {"vhost": "new", "name": "said", "type": "classic", **lasting},
            {"vhost": "new", "name": "declared", **lasting,
             "arguments": {"x-queue-type": "stream"}},
            {"vhost": "new", "name": "passing", **lasting, "durable": False},
            {"vhost": "plain", "name": "untyped", **lasting},
            {"vhost": "plain", "name": "kept", **lasting},
        ],
    }  # fmt: skip
    for _ in range(2):
        assert imported(broker, value)["unsupported"] == []
        assert {row["name"]: row["type"] for row in get(broker, "queues/new")} == {
            "untyped": "quorum", "said": "classic", "declared": "stream", "passing": "classic"
        }  # fmt: skip
        assert {row["name"]: row["type"] for row in get(broker, "queues/plain")} == {
            "untyped": "classic", "kept": "stream"
        }  # fmt: skip
    # A broker's own export makes the same queues where another type is the default.
    first = exported(broker)
    for row in first["vhosts"]:
        if row["name"] == "plain":
            row["default_queue_type"] = "quorum"
    done(broker, "DELETE", "queues/plain/untyped")
    imported(broker, first)
    assert get(broker, "queues/plain/untyped")["type"] == "classic"


def test_descriptions_and_tags_of_virtual_hosts_are_imported_and_exported(
    broker: BrokerProcess,
) -> None:
    """At the places where releases of RabbitMQ have them. What a file does not say stays."""
    vhosts = [
        {"name": "old", "description": "of 3.8", "tags": "a, b"},
        {"name": "new", "metadata": {"description": "of 4.2", "tags": ["c"],
                                     "protected_from_deletion": True}},
        {"name": "silent"},
    ]  # fmt: skip
    assert imported(broker, {"vhosts": vhosts})["unsupported"] == []
    assert imported(broker, {"vhosts": [{"name": "new"}]})["unsupported"] == []
    rows = {row["name"]: row for row in exported(broker)["vhosts"]}
    for found in (rows, {row["name"]: row for row in get(broker, "vhosts")}):
        said = {
            name: (row.get("description", ""), row.get("tags", [])) for name, row in found.items()
        }
        assert said == {
            "/": ("", []), "old": ("of 3.8", ["a", "b"]), "new": ("of 4.2", ["c"]),
            "silent": ("", []),
        }  # fmt: skip
        assert found["new"]["metadata"] == {
            "description": "of 4.2", "tags": ["c"], "protected_from_deletion": True,
        }  # fmt: skip
    assert refused(broker, "DELETE", "vhosts/new")[0] == 412
    other = {"name": "new", "description": "", "tags": [], "protected_from_deletion": False}
    imported(broker, {"vhosts": [other]})
    assert get(broker, "vhosts/new")["metadata"] == {"description": "", "tags": []}
    done(broker, "DELETE", "vhosts/new")


@pytest.mark.parametrize(
    "wrong", [{"description": 5}, {"tags": {"a": 1}}, {"metadata": {"tags": [1]}}]
)
def test_a_malformed_description_of_a_virtual_host_is_refused(
    broker: BrokerProcess, wrong: dict[str, Any]
) -> None:
    value = {"vhosts": [{"name": "bad", **wrong}]}
    assert refused(broker, "POST", "definitions", value)[:2] == (400, "bad_request")
    assert names(get(broker, "vhosts")) == ["/"]


def test_a_description_that_is_too_long_is_named_and_the_rest_is_done(
    broker: BrokerProcess,
) -> None:
    value = {"vhosts": [{"name": "wordy", "description": "x" * 5000, "tags": ["a"]}]}
    assert imported(broker, value)["unsupported"] == [
        "vhost 'wordy': description of 5000 bytes, expected 4096 at most: neither description nor "
        "tags are kept"
    ]
    assert get(broker, "vhosts/wordy")["tags"] == []


def test_limits_in_a_file_replace_those_of_their_user_and_no_others(broker: BrokerProcess) -> None:
    for name in ("ann", "bob", "eve"):
        done(broker, "PUT", f"users/{name}", {"password": name, "tags": ""})
        done(broker, "PUT", f"user-limits/{name}/max-channels", {"value": 5})
    users = [
        {"name": "ann", "password": "ann", "tags": [], "limits": {"max-connections": 3}},
        {"name": "bob", "password": "bob", "tags": [], "limits": {}},
    ]
    more = {"max-channels": 7, "max-flying": 1}
    eve = {"name": "eve", "password": "eve", "tags": [], "limits": more}
    assert imported(broker, {"users": [*users, eve]})["unsupported"] == [
        "user 'eve': limit 'max-flying'"
    ]
    assert get(broker, "user-limits") == [
        {"user": "ann", "value": {"max-connections": 3}},
        {"user": "eve", "value": {"max-channels": 7}},
    ]
    for value, told in (
        ("many", "limit max-channels is 'many', expected a whole number"),
        (1 << 63, "limit max-channels is 9223372036854775808, expected 0 to 9223372036854775807"),
    ):
        limits = {"max-channels": value}
        wrong = {"name": "ann", "password": "ann", "tags": [], "limits": limits}
        status, _, reason = refused(broker, "POST", "definitions", {"users": [wrong]})
        assert status == 400
        assert told in reason


# -- one virtual host


def test_definitions_of_one_virtual_host(broker: BrokerProcess) -> None:
    imported(broker, json.loads(EXPORT.read_text()))
    one = get(broker, "definitions/shop")
    assert "users" not in one
    assert all("vhost" not in row for row in one["queues"] + one["bindings"] + one["policies"])
    done(broker, "PUT", "vhosts/copy")
    found = imported(broker, one, "definitions/copy")
    assert found["unsupported"] == [
        "policy 'mirrors' in vhost 'copy': key 'ha-mode' is kept, without effect"
    ]
    copy = get(broker, "definitions/copy")
    for section in ("queues", "exchanges", "bindings", "policies", "parameters"):
        assert copy[section] == one[section], section
    assert refused(broker, "GET", "definitions/nowhere")[0] == 404
    assert refused(broker, "POST", "definitions/nowhere", one)[0] == 404


def test_definitions_of_one_virtual_host_describe_it(broker: BrokerProcess) -> None:
    said = {"description": "of the shop", "tags": ["a"], "default_queue_type": "quorum"}
    done(broker, "PUT", "vhosts/shop", said)
    done(broker, "PUT", "vhost-limits/shop/max-queues", {"value": 9})
    one = get(broker, "definitions/shop")
    assert one["rabbitmq_definition_format"] == "single_virtual_host"
    assert (one["original_vhost_name"], one["description"]) == ("shop", "of the shop")
    assert (one["metadata"], one.pop("limits")) == (said, {"max-queues": 9})
    for name, more in (("copy", {}), ("other", {"parameters": [], "limits": {"max-queues": 3}})):
        done(broker, "PUT", f"vhosts/{name}")
        assert imported(broker, {**one, **more}, f"definitions/{name}")["unsupported"] == []
        assert get(broker, f"vhosts/{name}")["metadata"] == said
    assert get(broker, "vhost-limits/copy")[0]["value"] == {"max-queues": 9}
    assert get(broker, "vhost-limits/other")[0]["value"] == {"max-queues": 3}
    wrong = {**one, "metadata": {"tags": 5}}
    assert "tags is 5" in refused(broker, "POST", "definitions/copy", wrong)[2]


def test_limits_of_a_virtual_host_may_stand_with_it(broker: BrokerProcess) -> None:
    vhosts = [{"name": "new", "limits": {"max-queues": 3}}, {"name": "/", "limits": []}]
    assert imported(broker, {"vhosts": vhosts})["unsupported"] == []
    assert get(broker, "vhost-limits") == [{"vhost": "new", "value": {"max-queues": 3}}]


def test_users_in_definitions_of_one_virtual_host_are_named(broker: BrokerProcess) -> None:
    value = {"users": [{"name": "ann", "password_hash": "", "tags": []}], "queues": [{"name": "q"}]}
    assert imported(broker, value, "definitions/%2F")["unsupported"] == [
        "section 'users': not of one virtual host"
    ]
    assert names(get(broker, "users")) == ["guest"]
    assert names(get(broker, "queues")) == ["q"]


def test_of_a_whole_file_one_virtual_host_gets_what_is_its_own(broker: BrokerProcess) -> None:
    whole = {
        "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"max-length": 1}}],
        "queues": [{"vhost": "/", "name": "a"}, {"vhost": "shop", "name": "b"}, {"name": "c"}],
    }
    done(broker, "PUT", "vhosts/shop")
    assert imported(broker, whole, "definitions/shop")["unsupported"] == [
        "policies[0] 'p': of vhost '/', not of 'shop'",
        "queues[0] 'a': of vhost '/', not of 'shop'",
    ]
    assert names(get(broker, "queues/shop")) == ["b", "c"]
    assert get(broker, "policies/shop") == []


def test_a_file_about_one_virtual_host_may_go_to_another(broker: BrokerProcess) -> None:
    """As a broker is moved whose only one is /."""
    done(broker, "PUT", "vhosts/moved")
    whole = {"queues": [{"vhost": "/", "name": "a"}, {"name": "b"}], "users": []}
    assert imported(broker, whole, "definitions/moved")["unsupported"] == []
    assert names(get(broker, "queues/moved")) == ["a", "b"]


def test_of_a_user_who_is_there_twice_the_last_entry_counts(broker: BrokerProcess) -> None:
    users = [
        {"name": "dora", "password": "first", "tags": []},
        {"name": "dora", "password_hash": "", "tags": []},
    ]
    imported(broker, {"users": users})
    (row,) = [one for one in exported(broker)["users"] if one["name"] == "dora"]
    assert row["password_hash"] == ""


# -- what is not offered, and what is wrong


def only(section: str, **entry: Any) -> dict[str, Any]:
    return {section: [entry]}


QUEUE = {"name": "q", "vhost": "/", "durable": True}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"shovels": [{}]}, "section 'shovels': not known"),
        (
            only("parameters", component="shovel", name="s", vhost="/", value={}),
            "parameter 's' of shovel in vhost '/': shovels are in the configuration",
        ),
        (only("global_parameters", name="cluster_name", value="c"), "parameter 'cluster_name'"),
        (only("vhosts", name="/", tracing=True), "vhost '/': tracing True is not kept"),
        (only("vhosts", name="/", default_queue_type="odd"), "default_queue_type 'odd'"),
        (
            only("exchanges", name="x", vhost="/", type="x-random", durable=True),
            "exchange 'x' in vhost '/': type 'x-random' is not offered",
        ),
        (
            only("exchanges", name="x", vhost="/", type="x-delayed-message", durable=True,
                 arguments={"x-delayed-type": "x-recent-history"}),
            "exchange 'x' in vhost '/': type 'x-recent-history' is not offered",
        ),
        (only("queues", **{**QUEUE, "name": "amq.gen-1"}), "are given by the broker"),
        (
            only("queues", **QUEUE, type="rabbit_mqtt_qos0_queue"),
            "queue 'q' in vhost '/': type 'rabbit_mqtt_qos0_queue' is not offered",
        ),
        (
            only("queues", **QUEUE, type="jms", arguments={"x-queue-type": "jms"}),
            "queue 'q' in vhost '/': type 'jms' is not offered",
        ),
        (
            only("bindings", source="amq.rabbitmq.event", vhost="/", destination="rest",
                 destination_type="queue", routing_key="user.#"),
            "binding from 'amq.rabbitmq.event' to queue 'rest' in vhost '/' with key 'user.#'",
        ),
        (
            only("bindings", source="amq.topic", vhost="/", destination="amq.rabbitmq.log",
                 destination_type="exchange", routing_key="k"),
            "binding from 'amq.topic' to exchange 'amq.rabbitmq.log' in vhost '/' with key 'k'",
        ),
        (only("queues", **{**QUEUE, "name": ""}), "queue '' in vhost '/': each import would make"),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_named_and_the_rest_is_done(
    broker: BrokerProcess, value: dict[str, Any], text: str
) -> None:
    rest = {"name": "rest", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    value["queues"] = [*value.get("queues", []), rest]
    (said,) = imported(broker, value)["unsupported"]
    assert text in said
    assert names(get(broker, "queues")) == ["rest"]
    assert get(broker, "policies") == []
    assert "x" not in names(get(broker, "exchanges"))


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("x-queue-mode", "lazy", "without effect"),
        ("x-queue-version", 2, "without effect"),
        ("x-max-in-memory-length", 5, "without effect"),
        ("x-max-in-memory-bytes", 5, "without effect"),
        ("x-quorum-initial-group-size", 3, "without effect"),
        ("x-queue-leader-locator", "balanced", "without effect"),
        ("x-queue-master-locator", "min-masters", "without effect"),
        ("x-massage-ttl", 5, "not known"),
    ],
)
def test_arguments_of_queues_that_change_nothing_are_named(
    untouched: BrokerProcess, argument: str, value: object, why: str
) -> None:
    arguments = {argument: value, "x-max-length": 5, "x-queue-type": "classic", "note": "x"}
    queues = {"queues": [{"name": "idle", "vhost": "/", "arguments": arguments}]}
    expected = [f"queue 'idle' in vhost '/': argument '{argument}' is kept, {why}"]
    for _ in ("new", "there already"):
        assert imported(untouched, queues)["unsupported"] == expected
    assert get(untouched, "queues/%2F/idle")["arguments"] == arguments
    done(untouched, "DELETE", "queues/%2F/idle")


def test_the_arguments_of_an_nsq_topic_are_known(untouched: BrokerProcess) -> None:
    """A broker called those of its own export unsupported."""
    backlog = {"x-nsq-topic": "t"}
    queues = [
        {"name": "t:", "vhost": "/", "arguments": backlog},
        {"name": "t:c", "vhost": "/", "arguments": {**backlog, "x-nsq-channel": "c"}},
    ]
    assert done(untouched, "POST", "definitions", {"queues": queues}) == 204
    for queue in queues:
        done(untouched, "DELETE", f"queues/%2F/{queue['name']}")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queues": {}}, "section 'queues' is no list"),
    ({"queues": ["q"]}, "queues[0] is 'q', expected an object"),
    ({"users": [["ann", "hush"]]}, "users[0] is a list, expected an object"),
    (only("users", name="ann", password=12345678), "password is a number, expected text"),
    (only("queues", vhost="/"), "queues[0]: name is missing"),
    (only("queues", name="q"), "queues[0] 'q': vhost is missing"),
    (only("queues", name="q", vhost="none"), "vhost 'none' is neither there nor in the file"),
    (only("queues", **{**QUEUE, "durable": "yes"}), "durable is 'yes', expected true or false"),
    (only("queues", **QUEUE, arguments={"x-max-length": -1}), "invalid arg 'x-max-length'"),
    (only("queues", name="there", vhost="/", durable=False), "inequivalent arg 'durable'"),
    ({"queues": [QUEUE, {**QUEUE, "auto_delete": True}]}, "twice, with other properties"),
    (
        only("queues", name="q", vhost="/", type="quorum", durable=False),
        "invalid property 'non-durable'",
    ),
    (only("vhosts", name=""), "vhost '', expected a name that is not empty"),
    (only("exchanges", name="x", vhost="/"), "type is missing"),
    (only("exchanges", name="amq.topic", vhost="/", type="fanout"), "inequivalent arg 'type'"),
    (
        only("exchanges", name="x", vhost="/", type="direct", arguments={"alternate-exchange": 1}),
        "invalid type",
    ),
    (
        only("bindings", source="none", vhost="/", destination="there", destination_type="queue"),
        "no exchange 'none' in vhost '/'",
    ),
    (
        only("bindings", source="amq.topic", vhost="/", destination="no", destination_type="queue"),
        "no queue 'no' in vhost '/'",
    ),
    (
        only(
            "bindings", source="amq.headers", vhost="/", destination="there",
            destination_type="queue", arguments={"x-match": "some"},
        ),
        "x-match",
    ),
    (
        only("bindings", source="", vhost="/", destination="amq.topic",
             destination_type="exchange"),
        "a binding from the default exchange",
    ),
    (
        only("bindings", source="amq.topic", vhost="/", destination="",
             destination_type="exchange"),
        "a binding to the default exchange",
    ),
    (
        only("bindings", source="amq.topic", vhost="/", destination="there", destination_type="q"),
        "destination_type is 'q', expected queue or exchange",
    ),
    (
        only("permissions", user="nobody", vhost="/", configure="", write="", read=""),
        "user 'nobody' is neither there nor in the file",
    ),
    (
        only("permissions", user="guest", vhost="/", configure="[", write="", read=""),
        "permission '['",
    ),
    (only("queues", **{**QUEUE, "name": "q" * 256}), "name of 256 bytes, expected 255 at most"),
    (
        only("exchanges", name="\u00e9" * 128, vhost="/", type="fanout"),
        "name of 256 bytes, expected 255 at most",
    ),
    (
        only(
            "bindings", source="amq.topic", vhost="/", destination="there",
            destination_type="queue", routing_key="k" * 256,
        ),
        "routing_key of 256 bytes",
    ),
    (only("queues", **QUEUE, arguments={"deep": nested(200)}), "no AMQP table holds"),
    (only("queues", **QUEUE, arguments={"k" * 256: 1}), "no AMQP table holds"),
    (only("queues", **QUEUE, arguments={"large": 1 << 64}), "no AMQP table holds"),
    (only("users", name="u", password_hash="x", tags=[]), "password hash"),
    (only("users", name="u", password_hash="", tags=[5]), "expected a list of texts"),
    (
        only("policies", name="p", vhost="/", pattern="", definition={"max-length": "x"}),
        "is not a valid maximum length",
    ),
    (
        only(
            "policies", name="p", vhost="/", pattern="", definition={"odd": 1, "max-length": 1}
        ),
        "policies[0] 'p': [{<<\"odd\">>,1}] are not recognised policy settings",
    ),
    (
        only(
            "parameters", component="operator_policy", name="p", vhost="/",
            value={"pattern": "", "definition": {"max-length": 1, "dead-letter-exchange": "x"}},
        ),
        "are not recognised operator policy settings",
    ),
    (
        only("policies", name="p", vhost="/", pattern="(", definition={"max-length": 1}),
        "pattern should be regular expression",
    ),
    (
        only(
            "policies", name="p", vhost="/", pattern="", definition={"max-length": 1},
            **{"apply-to": "cats"},
        ),
        "apply-to 'cats' unrecognised",
    ),
    (
        only(
            "policies", name="p", vhost="/", pattern="", definition={"max-length": 1},
            **{"aply-to": "queues"},
        ),
        "Unrecognised terms [aply-to] in policy",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("wrong")) / "data") as running:
        done(running, "PUT", "queues/%2F/there", {"durable": True})
        yield running


@pytest.mark.parametrize(("value", "reason"), WRONG)
def test_what_is_wrong_is_told_and_nothing_is_done(
    untouched: BrokerProcess, value: dict[str, Any], reason: str
) -> None:
    before = exported(untouched)
    users = {"name": "added", "password": "x", "tags": ["administrator"]}
    value = {**value, "users": [*value.get("users", []), users]}
    value["vhosts"] = [*value.get("vhosts", []), {"name": "added"}]
    status, error, text = refused(untouched, "POST", "definitions", value)
    assert (status, error) == (400, "bad_request")
    assert reason in text
    assert exported(untouched) == before
    assert names(get(untouched, "vhosts")) == ["/"]


def test_all_that_is_wrong_is_told_together(untouched: BrokerProcess) -> None:
    value = {"queues": [{"name": "a"}, {"name": "b", "vhost": "none"}], "users": [{"name": ""}]}
    _, _, text = refused(untouched, "POST", "definitions", value)
    assert "queues[0] 'a'" in text
    assert "queues[1] 'b'" in text
    assert "users[0]" in text
    _, _, text = refused(untouched, "POST", "definitions", {"queues": ["q"] * 1000})
    assert text.count("expected an object") == 1000
    told = [line for line in untouched.log().splitlines() if "queues[0] is" in line]
    assert told
    assert max(map(len, told)) < 2000, "the log has the beginning"
    for body in (b"[]", b"{", b'"text"'):
        assert refused(untouched, "POST", "definitions", body)[2].startswith("not_json")


BOUNDARY = "------------------------2f7a3c"


def form(name: str, content: bytes, end: bytes = b"--") -> bytes:
    """As `curl -F NAME=@defs.json -F redirect=x` sends it."""
    parts = [
        b'name="redirect"\r\n\r\nx',
        b'name="%s"; filename="defs.json"\r\nContent-Type: application/json\r\n\r\n%s'
        % (name.encode(), content),
    ]
    line = b"--" + BOUNDARY.encode()
    body = b"".join(line + b"\r\nContent-Disposition: form-data; " + p + b"\r\n" for p in parts)
    return body + line + end + b"\r\n"


def test_a_file_may_be_uploaded_as_a_form(untouched: BrokerProcess) -> None:
    before = get(untouched, "definitions")
    multipart = {"Content_Type": f"multipart/form-data; boundary={BOUNDARY}"}

    def upload(body: bytes, path: str = "definitions", **headers: str) -> tuple[int, Any]:
        status, _, found = call(untouched, "POST", path, body, **(headers or multipart))
        return status, found

    long = b'{"queues": [{"name": "form", "vhost": "/"}]}' + b" " * 200_000
    assert upload(form("file", long)) == (204, None)
    assert upload(form("file", b'{"queues": [{"name": "form"}]}'), "definitions/%2F")[0] == 204
    assert done(untouched, "DELETE", "queues/%2F/form") == 204
    for body, headers, reason in (
        (form("other", b"{}"), multipart, "a form without part 'file'"),
        (form("file", b"["), multipart, "not_json"),
        (b"{}", multipart, "form"),
        (b"", multipart, "form"),
        (form("file", b"{}"), {"Content_Type": "multipart/form-data"}, "not a form in parts"),
    ):
        status, found = upload(body, **headers)
        assert (status, found["error"]) == (400, "bad_request")
        assert reason in found["reason"]
    assert get(untouched, "definitions") == before


def test_a_password_in_the_file_is_taken(broker: BrokerProcess) -> None:
    users = [{"name": "ann", "password": "secret", "tags": "administrator,x"}]
    assert call(broker, "POST", "definitions", {"users": users})[0] == 204
    assert get(broker, "whoami", "ann:secret")["tags"] == ["administrator", "x"]
    assert "secret" not in (broker.data_dir / "users.json").read_text()


# -- the command and the setting


def command(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("definitions", *arguments, "--url", broker.url)


def test_export_and_import_by_command(broker: BrokerProcess, tmp_path: Path) -> None:
    done_import = command(broker, "import", str(EXPORT))
    assert done_import.returncode == 0, done_import.stderr
    for text in NOT_OFFERED:
        assert f"tallymark: not supported: {text}" in done_import.stderr
    file = tmp_path / "out.json"
    file.write_text("what there was is longer" * 10_000)  # readable by all, until it has hashes
    file.chmod(0o644)
    assert command(broker, "export", str(file)).returncode == 0
    assert json.loads(file.read_text()) == get(broker, "definitions")
    assert file.stat().st_mode & 0o777 == 0o600
    one = command(broker, "export", "-", "--vhost", "shop")
    assert json.loads(one.stdout) == get(broker, "definitions/shop")
    file.write_text('{"queues": [{"name": "q"}]}')
    wrong = command(broker, "import", str(file))
    assert (wrong.returncode, "vhost is missing" in wrong.stderr) == (1, True)
    file.write_text("[]")
    assert "expected a JSON object" in command(broker, "import", str(file)).stderr
    assert command(broker, "import", str(tmp_path / "none.json")).returncode == 1


def test_definitions_of_the_configuration_are_taken_at_every_start(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", definitions=str(EXPORT)) as broker:
        assert get(broker, "whoami", "ann:secret")["name"] == "ann"
        assert "orders" in names(get(broker, "queues"))
        assert done(broker, "DELETE", "queues/shop/orders") == 204
        broker.stop()
        broker.restart()
        assert "orders" in names(get(broker, "queues"))
        assert broker.log().count("definitions.imported") == 2


def test_no_guest_is_added_to_the_users_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text('{"users": [{"name": "ann", "password": "ann", "tags": "administrator"}]}')
    with BrokerProcess(tmp_path / "data", definitions=str(file)) as broker:
        assert names(get(broker, "users", "ann:ann")) == ["ann"]
        assert call(broker, "GET", "whoami")[0] == 401


def test_a_start_with_wrong_definitions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    for text, reason in (
        ('{"queues": [{"name": "q"}]}', "vhost is missing"),
        ("{", "truncated"),
    ):
        file.write_text(text)
        with pytest.raises(BrokerDied, match=reason) as died:
            BrokerProcess(tmp_path / "data", definitions=str(file)).start()
        assert "exit code 2" in str(died.value)
    with pytest.raises(BrokerDied, match="No such file"):
        BrokerProcess(tmp_path / "data", definitions=str(tmp_path / "none")).start()


def test_an_open_address_needs_users_from_somewhere(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text('{"queues": []}')
    flags = {"host": "0.0.0.0", "definitions": str(file)}
    with pytest.raises(BrokerDied, match="no users are configured"):
        BrokerProcess(tmp_path / "data", **flags).start()
