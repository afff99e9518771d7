"""Queues, exchanges and bindings made, shown and deleted over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import pytest

from tests.server.management import FULL, call, connect, done, get, is_gone, names, refused
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("topology")) / "data") as running:
        done(running, "PUT", "users/bob", {"password": "bob", "tags": ""})
        done(
            running, "PUT", "permissions/%2F/bob",
            {"configure": "^bob", "write": "^bob", "read": "^bob"},
        )  # fmt: skip
        yield running


def test_a_queue_is_made_found_again_and_deleted(broker: BrokerProcess) -> None:
    asked = {"durable": True, "auto_delete": "false", "arguments": {"x-max-length": 5}}
    assert done(broker, "PUT", "queues/%2F/made", asked) == 201
    assert done(broker, "PUT", "queues/%2F/made", asked) == 204
    row = get(broker, "queues/%2F/made")
    assert (row["durable"], row["arguments"]) == (True, {"x-max-length": 5})
    assert done(broker, "DELETE", "queues/%2F/made") == 204
    assert refused(broker, "GET", "queues/%2F/made")[0] == 404
    assert refused(broker, "DELETE", "queues/%2F/made")[0] == 404


def test_a_name_may_be_anything(broker: BrokerProcess) -> None:
    name = 'a/b %2F"ü?#&+~'
    path = f"queues/%2F/{quote(name, safe='')}"
    done(broker, "PUT", path)
    assert get(broker, path)["name"] == name
    assert get(broker, f"{path}/bindings")[0]["routing_key"] == name
    done(broker, "DELETE", path)


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("queues/%2F/bad", {"arguments": {"x-max-length": "many"}}, 400, "invalid arg"),
        ("queues/%2F/bad", {"arguments": {"x-queue-type": "stream"}}, 400, "'non-durable'"),
        ("queues/%2F/bad", {"arguments": {"x-max-length": 1 << 70}}, 400, "does not fit"),
        ("queues/%2F/bad", {"arguments": [1]}, 400, "arguments is [1], expected an object"),
        ("queues/%2F/bad", {"durable": "maybe"}, 400, "durable is 'maybe', expected true or"),
        ("queues/%2F/bad", b"[1]", 400, "not_json"),
        ("queues/%2F/bad", b"{", 400, "not_json"),
        ("queues/%2F/" + "b" * 256, {}, 400, "at most 255"),
        ("queues/%2F/amq.bad", {}, 401, "reserved prefix"),
        ("queues/nowhere/bad", {}, 404, "vhost nowhere not found"),
        ("exchanges/%2F/bad", {"type": "odd"}, 400, "unknown exchange type 'odd'"),
        ("exchanges/%2F/bad", {"type": 1}, 400, "type is 1, expected text"),
        ("exchanges/%2F/amq.bad", {"type": "direct"}, 401, "reserved prefix"),
    ],
)
def test_what_cannot_be_made(
    broker: BrokerProcess, path: str, body: Any, status: int, reason: str
) -> None:
    found, _, text = refused(broker, "PUT", path, body)
    assert found == status
    assert reason in text
    assert not {"bad", "amq.bad"} & {
        *names(get(broker, "queues")),
        *names(get(broker, "exchanges")),
    }


def test_another_declaration_is_refused_and_the_old_one_stays(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/same", {"durable": True})
    done(broker, "PUT", "exchanges/%2F/same", {"type": "topic"})
    assert refused(broker, "PUT", "queues/%2F/same", {})[2] == (
        "inequivalent arg 'durable' for queue 'same' in vhost '/': received 'false' but current is "
        "'true'"
    )
    assert (
        "inequivalent arg 'type'"
        in refused(broker, "PUT", "exchanges/%2F/same", {"type": "fanout"})[2]
    )
    assert get(broker, "queues/%2F/same")["durable"] is True
    assert get(broker, "exchanges/%2F/same")["type"] == "topic"


def test_deletion_on_condition(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/full")
    done(broker, "PUT", "exchanges/%2F/used", {"type": "fanout"})
    assert call(broker, "POST", "bindings/%2F/e/used/q/full", {})[0] == 201
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("used", "", b"x")
    assert "not empty" in refused(broker, "DELETE", "queues/%2F/full?if-empty=true")[2]
    assert "in use" in refused(broker, "DELETE", "exchanges/%2F/used?if-unused=true")[2]
    channel.basic_consume("full", lambda *_: None)
    assert "in use" in refused(broker, "DELETE", "queues/%2F/full?if-unused=true")[2]
    assert refused(broker, "DELETE", "queues/%2F/full?if-unused=1")[0] == 400
    connection.close()
    assert done(broker, "DELETE", "queues/%2F/full?if-unused=true") == 204
    assert done(broker, "DELETE", "exchanges/%2F/used?if-unused=true") == 204


def test_exchanges_that_are_always_there(broker: BrokerProcess) -> None:
    assert get(broker, "exchanges/%2F/amq.default")["name"] == ""
    assert get(broker, "exchanges/%2F/amq.topic")["type"] == "topic"
    assert not any("policy" in row for row in get(broker, "exchanges")), "null is not said"
    done(broker, "PUT", "policies/%2F/alt", {
        "pattern": "^amq.topic$", "definition": {"alternate-exchange": "x"},
        "apply-to": "exchanges",
    })  # fmt: skip
    assert get(broker, "exchanges/%2F/amq.topic")["policy"] == "alt"
    done(broker, "DELETE", "policies/%2F/alt")
    for name in ("amq.topic", "amq.default"):
        assert refused(broker, "DELETE", f"exchanges/%2F/{name}")[:2] == (401, "not_authorised")


BINDINGS: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "~"),
    ("plain", {}, "plain"),
    ("order.#", {}, "order.%23"),
    ("a b/ü~c%*", {}, "a+b%2F%C3%BC%7Ec%25%2A"),
]
"""Keys and the properties keys that RabbitMQ 3.10 gave them."""


@pytest.mark.parametrize(("key", "arguments", "properties"), BINDINGS)
def test_a_binding_and_its_properties_key(
    broker: BrokerProcess, key: str, arguments: dict[str, Any], properties: str
) -> None:
    done(broker, "PUT", "queues/%2F/to")
    done(broker, "PUT", "exchanges/%2F/from", {"type": "topic"})
    base = "bindings/%2F/e/from/q/to"
    status, headers, _ = call(broker, "POST", base, {"routing_key": key, "arguments": arguments})
    assert (status, headers["location"]) == (201, f"to/{quote(properties, safe='')}")
    (row,) = get(broker, base)
    assert row == {
        "source": "from", "vhost": "/", "destination": "to", "destination_type": "queue",
        "routing_key": key, "arguments": arguments, "properties_key": properties,
    }  # fmt: skip
    one = f"{base}/{quote(properties, safe='')}"
    assert get(broker, one) == row
    assert row in get(broker, "bindings/%2F")
    assert get(broker, "exchanges/%2F/from/bindings/source") == [row]
    assert row in get(broker, "queues/%2F/to/bindings")
    assert done(broker, "DELETE", one) == 204
    assert refused(broker, "DELETE", one)[0] == 404
    assert get(broker, base) == []


@pytest.mark.parametrize("key", ["k.#", "100%", "ü/x", "a b+c", "~", "k.%23", "#?&"])
def test_the_properties_key_may_be_encoded_once_or_twice(broker: BrokerProcess, key: str) -> None:
    """In a path it is encoded once more, as any name; RabbitMQ takes it as it is shown too."""
    done(broker, "PUT", "queues/%2F/twice")
    base = "bindings/%2F/e/amq.topic/q/twice"
    for again in (False, True):
        status, headers, _ = call(broker, "POST", base, {"routing_key": key})
        assert status == 201
        (row,) = get(broker, base)
        shown = row["properties_key"]
        followed = urljoin(base, headers["location"])
        once, twice = f"{base}/{shown}", f"{base}/{quote(shown, safe='')}"
        for path in (followed, once, twice):
            assert get(broker, path) == row
        done(broker, "DELETE", twice if again else once)
        assert get(broker, base) == []


def test_of_two_bindings_the_one_whose_key_is_shown_so_is_meant(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/two")
    base = "bindings/%2F/e/amq.topic/q/two"
    for key in ("k.%23", "k.#"):
        assert call(broker, "POST", base, {"routing_key": key})[0] == 201
    assert get(broker, f"{base}/k.%2523")["routing_key"] == "k.#"
    assert get(broker, f"{base}/k.%252523")["routing_key"] == "k.%23"


def test_bindings_of_the_same_key_are_told_apart_by_their_arguments(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/h")
    base = "bindings/%2F/e/amq.headers/q/h"
    tables = [{"x-match": "any", "n": 1}, {"x-match": "any", "n": 2}, {"deep": {"l": [1.5, None]}}]
    for table in tables:
        assert call(broker, "POST", base, {"routing_key": "k", "arguments": table})[0] == 201
    rows = get(broker, base)
    assert len({row["properties_key"] for row in rows}) == 3
    assert all(row["properties_key"].startswith("k~") for row in rows)
    second = next(row for row in rows if row["arguments"] == tables[1])
    done(broker, "DELETE", f"{base}/{second['properties_key']}")
    left = [row["arguments"] for row in get(broker, base)]
    assert sorted(map(str, left)) == sorted(map(str, [tables[0], tables[2]]))


def test_exchanges_are_bound_to_exchanges(broker: BrokerProcess) -> None:
    for name in ("first", "second"):
        done(broker, "PUT", f"exchanges/%2F/{name}", {"type": "fanout"})
    base = "bindings/%2F/e/first/e/second"
    assert call(broker, "POST", base, {"routing_key": "k"})[0] == 201
    (row,) = get(broker, base)
    assert (row["destination_type"], row["properties_key"]) == ("exchange", "k")
    assert get(broker, "exchanges/%2F/second/bindings/destination") == [row]
    assert get(broker, "exchanges/%2F/first/bindings/destination") == []
    done(broker, "DELETE", f"{base}/k")
    assert get(broker, base) == []


def test_every_queue_is_bound_to_the_default_exchange(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/implied")
    (row,) = get(broker, "bindings/%2F/e/amq.default/q/implied")
    assert (row["source"], row["routing_key"], row["properties_key"]) == ("", "implied", "implied")
    assert row in get(broker, "exchanges/%2F/amq.default/bindings/source")
    assert refused(broker, "POST", "bindings/%2F/e/amq.default/q/implied", {})[0] == 401
    assert refused(broker, "DELETE", "bindings/%2F/e/amq.default/q/implied/implied")[0] == 404


def test_bindings_between_things_that_are_not_there(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/alone")
    for path in ("e/none/q/alone", "e/amq.topic/q/none", "e/amq.topic/e/none"):
        assert refused(broker, "POST", f"bindings/%2F/{path}", {})[:2] == (404, "not_found")
        assert refused(broker, "GET", f"bindings/%2F/{path}")[:2] == (404, "not_found")
    assert refused(broker, "POST", "bindings/%2F/e/amq.topic/x/alone", {})[0] == 404


def test_rights_are_those_of_amqp(broker: BrokerProcess) -> None:
    done(broker, "PUT", "queues/%2F/theirs")
    assert call(broker, "PUT", "queues/%2F/bob1", {}, "bob:bob")[0] == 201
    assert call(broker, "PUT", "exchanges/%2F/bob2", {}, "bob:bob")[0] == 201
    assert call(broker, "POST", "bindings/%2F/e/bob2/q/bob1", {}, "bob:bob")[0] == 201
    for method, path in (
        ("PUT", "queues/%2F/other"),
        ("PUT", "exchanges/%2F/other"),
        ("DELETE", "queues/%2F/theirs"),
        ("DELETE", "queues/%2F/theirs/contents"),
        ("POST", "bindings/%2F/e/bob2/q/theirs"),
        ("POST", "bindings/%2F/e/amq.topic/q/bob1"),
    ):
        status, error, reason = refused(broker, method, path, {}, "bob:bob")
        assert (status, error) == (401, "not_authorised"), path
        assert "refused for user 'bob'" in reason
    done(broker, "PUT", "users/eve", {"password": "eve", "tags": ""})
    assert refused(broker, "PUT", "queues/%2F/eve", {}, "eve:eve")[0] == 401
    assert "theirs" in names(get(broker, "queues"))
    assert not {"other", "eve"} & set(names(get(broker, "queues")))


def test_a_durable_queue_and_its_binding_outlive_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "queues/%2F/kept", {"durable": True})
        done(broker, "PUT", "exchanges/%2F/kept", {"type": "fanout", "durable": True})
        assert call(broker, "POST", "bindings/%2F/e/kept/q/kept", {})[0] == 201
        broker.kill()
        broker.restart()
        assert names(get(broker, "queues")) == ["kept"]
        assert len(get(broker, "bindings/%2F/e/kept/q/kept")) == 1
        done(broker, "DELETE", "queues/%2F/kept")
        broker.kill()
        broker.restart()
        assert get(broker, "queues") == []


def test_virtual_hosts_come_and_go_with_all_that_is_in_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert done(broker, "PUT", "vhosts/temp") == 201
        assert done(broker, "PUT", "vhosts/temp", {"description": "x"}) == 204
        done(broker, "PUT", "queues/temp/q", {"durable": True})
        done(broker, "PUT", "exchanges/temp/x", {"type": "fanout", "durable": True})
        done(broker, "PUT", "queues/%2F/q", {"durable": True})
        done(broker, "PUT", "users/bob", {"password": "bob", "tags": ""})
        done(broker, "PUT", "permissions/temp/bob", FULL)
        with connect(broker, "bob", virtual_host="temp") as connection:
            channel = connection.channel()
            channel.queue_declare("own", exclusive=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"x")
            assert get(broker, "vhosts/temp")["messages"] == 1
            assert refused(broker, "DELETE", "vhosts/temp", user="bob:bob")[0] == 401
            assert done(broker, "DELETE", "vhosts/temp") == 204
            with pytest.raises(Exception, match="vhost 'temp' is deleted"):
                connection.process_data_events(10)
        assert refused(broker, "GET", "vhosts/temp")[0] == 404
        assert refused(broker, "DELETE", "vhosts/temp")[0] == 404
        broker.kill()
        broker.restart()
        assert names(get(broker, "vhosts")) == ["/"]
        assert names(get(broker, "queues")) == ["q"]
        done(broker, "PUT", "vhosts/temp")
        assert get(broker, "queues/temp") == []
        assert refused(broker, "GET", "permissions/temp/bob")[0] == 404


def described(broker: BrokerProcess, name: str) -> tuple[str, list[str]]:
    """Description and tags, which are at two places of the row."""
    row = get(broker, f"vhosts/{name}")
    found = row["description"], row["tags"]
    assert (row["metadata"]["description"], row["metadata"]["tags"]) == found
    return found


def test_a_virtual_host_keeps_its_description_and_tags_over_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        body = {
            "description": "Löhne, monthly",
            "tags": ["a", " b "],
            "default_queue_type": "quorum",
        }
        assert done(broker, "PUT", "vhosts/pay", body) == 201
        assert done(broker, "PUT", "vhosts/%2F", {"tags": "x,y"}) == 204
        broker.kill()
        broker.restart()
        assert described(broker, "pay") == ("Löhne, monthly", ["a", "b"])
        assert described(broker, "%2F") == ("", ["x", "y"])
        assert get(broker, "vhosts/pay")["default_queue_type"] == "quorum"
        done(broker, "PUT", "vhosts/pay")  # what a body does not have stays
        done(broker, "PUT", "vhosts/pay", {"tags": ["c"]})
        assert described(broker, "pay") == ("Löhne, monthly", ["c"])
        done(broker, "PUT", "vhosts/pay", {"description": None, "tags": None})
        assert described(broker, "pay") == ("", [])
        assert get(broker, "vhosts/pay")["default_queue_type"] == "quorum"


@pytest.mark.parametrize(
    "body",
    [
        {"description": 5}, {"description": ["a"]}, {"description": "x" * 4097}, {"tags": 5},
        {"tags": [1]}, {"tags": {}}, {"tags": ["x" * 256]}, {"tags": [str(n) for n in range(65)]},
    ],
)  # fmt: skip
def test_a_description_that_is_none_makes_no_virtual_host(
    broker: BrokerProcess, body: dict[str, object]
) -> None:
    assert refused(broker, "PUT", "vhosts/none", body)[:2] == (400, "bad_request")
    assert call(broker, "GET", "vhosts/none")[0] == 404


def test_a_protected_virtual_host_stays(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "vhosts/safe")
        done(broker, "PUT", "queues/safe/q", {"durable": True})
        done(broker, "PUT", "users/bob", {"password": "bob", "tags": ""})
        done(broker, "PUT", "permissions/safe/bob", FULL)
        protection = "vhosts/safe/deletion/protection"
        assert refused(broker, "POST", protection, user="bob:bob")[0] == 401
        assert done(broker, "POST", protection) == 204
        broker.kill()
        broker.restart()
        row = get(broker, "vhosts/safe")
        assert row["protected_from_deletion"] is row["metadata"]["protected_from_deletion"] is True
        with connect(broker, "bob", virtual_host="safe") as connection:
            status, error, reason = refused(broker, "DELETE", "vhosts/safe")
            assert (status, error) == (412, "precondition_failed")
            assert reason == "refusing to delete vhost 'safe': it is protected from deletion"
            assert not is_gone(connection)
        assert get(broker, "permissions/safe/bob")["read"] == ".*"
        assert done(broker, "DELETE", protection) == 204
        assert get(broker, "vhosts/safe")["protected_from_deletion"] is False
        assert done(broker, "DELETE", "vhosts/safe") == 204
        assert refused(broker, "POST", protection)[0] == 404
