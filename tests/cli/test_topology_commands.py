"""`tallymark queue` and `tallymark exchange` as a user types them, against a real broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support import forked
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("cli")) / "data"
    with BrokerProcess(folder, vhosts="/,a b") as running:
        yield running


def run(broker: BrokerProcess, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked.run(*arguments, env={"TALLYMARK_URL": broker.url})
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def refused(broker: BrokerProcess, *arguments: str, code: int = 1) -> str:
    """One line on stderr that says why."""
    (line,) = run(broker, *arguments, code=code).stderr.splitlines()
    return line


def publish(broker: BrokerProcess, exchange: str, key: str, count: int = 1) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish(exchange, key, b"m")


def shown(broker: BrokerProcess, path: str) -> Any:
    status, body = broker.http("GET", path)
    assert status == 200, (status, body)
    return body


def test_a_queue_is_created_bound_purged_and_deleted(broker: BrokerProcess) -> None:
    arguments = '{"x-max-length": 1000}'
    create = ("queue", "create", "a/b", "--type", "quorum", "--arguments", arguments)
    for _ in range(2):  # the second time it is there
        assert run(broker, *create).stdout == "queue 'a/b' declared in vhost '/'\n"
    row = shown(broker, "/api/queues/%2F/a%2Fb")
    assert row["arguments"] == {"x-max-length": 1000, "x-queue-type": "quorum"}
    assert row["durable"]
    assert "inequivalent arg 'x-max-length'" in refused(broker, *create[:-2])
    bind = ("queue", "bind", "a/b", "amq.topic", "--key", "orders.*")
    assert run(broker, *bind).stdout == (
        "queue 'a/b' bound to exchange 'amq.topic' with key 'orders.*'\n"
    )
    publish(broker, "amq.topic", "orders.new", 3)
    assert broker.queues()["a/b"]["ready"] == 3
    assert "not empty" in refused(broker, "queue", "delete", "a/b", "--if-empty")
    assert run(broker, "queue", "purge", "a/b").stdout == "queue 'a/b' of vhost '/' purged\n"
    assert broker.queues()["a/b"]["ready"] == 0
    run(broker, "queue", "unbind", *bind[2:])
    assert [row["source"] for row in shown(broker, "/api/queues/%2F/a%2Fb/bindings")] == [""]
    assert refused(broker, "queue", "unbind", *bind[2:]) == (
        "tallymark: queue 'a/b' is not bound to exchange 'amq.topic' with key 'orders.*'"
    )
    (listed,) = json.loads(run(broker, "queue", "list", "--json").stdout)
    assert listed["name"] == "a/b"
    done = run(broker, "queue", "delete", "a/b", "--if-unused", "--if-empty")
    assert done.stdout == "queue 'a/b' deleted from vhost '/'\n"
    assert broker.queues() == {}
    assert "404" in refused(broker, "queue", "delete", "a/b")


def test_exchanges_and_what_is_bound_with_arguments(broker: BrokerProcess) -> None:
    vhost = ("--vhost", "a b")
    create = ("exchange", "create", "e", "--type", "headers", "--transient", *vhost)
    assert run(broker, *create).stdout == "exchange 'e' declared in vhost 'a b'\n"
    run(broker, "exchange", "create", "f", "--internal", "--auto-delete", *vhost)
    run(broker, "queue", "create", "q", "--transient", "--auto-delete", *vhost)
    row = shown(broker, "/api/exchanges/a%20b/e")
    assert (row["type"], row["durable"], row["internal"]) == ("headers", False, False)
    row = shown(broker, "/api/exchanges/a%20b/f")
    assert (row["type"], row["durable"], row["internal"]) == ("direct", True, True)
    row = shown(broker, "/api/queues/a%20b/q")
    assert (row["durable"], row["auto_delete"]) == (False, True)
    red = ("--arguments", '{"x-match": "all", "colour": "red"}', *vhost)
    blue = ("--arguments", '{"x-match": "all", "colour": "blue"}', *vhost)
    for arguments in (red, blue):
        run(broker, "queue", "bind", "q", "e", *arguments)
    run(broker, "exchange", "bind", "f", "e", "--key", "k/1", *vhost)
    run(broker, "queue", "unbind", "q", "e", *red)
    rows = shown(broker, "/api/exchanges/a%20b/e/bindings/source")
    found = {(row["destination"], row["arguments"].get("colour")) for row in rows}
    assert found == {("q", "blue"), ("f", None)}
    told = refused(broker, "queue", "unbind", "q", "e", *red)
    assert told.endswith('with key \'\' and arguments {"x-match": "all", "colour": "red"}')
    assert "in use" in refused(broker, "exchange", "delete", "e", "--if-unused", *vhost)
    run(broker, "exchange", "unbind", "f", "e", "--key", "k/1", *vhost)
    run(broker, "queue", "bind", "q", "f", *vhost)
    run(broker, "queue", "unbind", "q", "f", *vhost)  # the last that was bound to it
    assert broker.http("GET", "/api/exchanges/a%20b/f")[0] == 404
    done = run(broker, "exchange", "delete", "e", *vhost)
    assert done.stdout == "exchange 'e' deleted from vhost 'a b'\n"
    names = {row["name"] for row in json.loads(run(broker, "exchange", "list", "--json").stdout)}
    assert "e" not in names


def test_what_makes_no_sense_is_told_in_a_line(broker: BrokerProcess) -> None:
    assert refused(broker, "queue", "create", "q", "--arguments", "[]", code=2) == (
        "tallymark: --arguments is '[]', expected a JSON object"
    )
    assert "expected a JSON object: " in refused(
        broker, "exchange", "create", "e", "--arguments", "{", code=2
    )
    assert "reserved prefix" in refused(broker, "queue", "create", "amq.q")
    assert "404" in refused(broker, "queue", "bind", "none", "amq.topic")
    assert "404" in refused(broker, "queue", "create", "q", "--vhost", "none")
    assert "404" in refused(broker, "queue", "purge", "none")
    assert "nosuch" in refused(broker, "exchange", "create", "e", "--type", "nosuch")


def test_limits(broker: BrokerProcess) -> None:
    assert run(broker, "limits", "list").stdout == "no limits\n"
    said = run(broker, "limits", "set", "vhost", "a b", "max-publish-rate", "1000").stdout
    assert said == "max-publish-rate of vhost 'a b' is 1000\n"
    run(broker, "limits", "set", "user", "guest", "max-channels", "5")
    assert json.loads(run(broker, "limits", "list", "--json").stdout) == [
        {"of": "user", "name": "guest", "limit": "max-channels", "value": 5},
        {"of": "vhost", "name": "a b", "limit": "max-publish-rate", "value": 1000},
    ]
    for kind, name, limit in (("user", "guest", "max-channels"),
                              ("vhost", "a b", "max-publish-rate")):  # fmt: skip
        assert "is gone" in run(broker, "limits", "clear", kind, name, limit).stdout
    assert "'queue', expected user or vhost" in refused(
        broker, "limits", "set", "queue", "q", "max-queues", "1", code=2
    )
    assert "expected max-connections or max-channels or max-publish-rate" in refused(
        broker, "limits", "set", "user", "guest", "nonsense", "1"
    )


def test_the_binding_that_is_undone_has_the_arguments_named_and_no_equal_ones(
    broker: BrokerProcess,
) -> None:
    run(broker, "queue", "create", "equal")
    run(broker, "exchange", "create", "alike", "--type", "headers")
    values = ["1", "1.0", "true"]
    for value in values:
        run(broker, "queue", "bind", "equal", "alike", "--arguments", f'{{"n": {value}}}')
    while values:
        value = values.pop()
        run(broker, "queue", "unbind", "equal", "alike", "--arguments", f'{{"n": {value}}}')
        rows = shown(broker, "/api/bindings/%2F/e/alike/q/equal")
        assert sorted(json.dumps(row["arguments"]["n"]) for row in rows) == values


@pytest.mark.parametrize(
    "command",
    [
        ("queue", "create", ""),
        ("queue", "delete", ""),
        ("exchange", "create", ""),
        ("queue", "bind", "q", ""),
        ("queue", "create", "q", "--vhost", ""),
        ("policy", "set", "", "^a$", '{"max-length": 1}'),
    ],
)
def test_an_empty_name_is_said_to_be_one(broker: BrokerProcess, command: tuple[str, ...]) -> None:
    told = refused(broker, *command, code=2)
    assert told == "tallymark: a name is empty, expected 1 to 255 bytes"


@pytest.mark.parametrize("url", ["ftp://here", "http://here:port", "http://here/path", "http://"])
def test_a_url_that_is_none_is_an_error_of_usage(broker: BrokerProcess, url: str) -> None:
    assert refused(broker, "queues", "--url", url, code=2).startswith("tallymark: --url: ")
