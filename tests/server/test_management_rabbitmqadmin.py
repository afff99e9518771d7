"""RabbitMQ's own command line tool against this broker, where it is found on the machine."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.management import connect, eventually, is_gone
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

EXPORT = Path(__file__).parent / "fixtures" / "rabbitmq-3.10.8-definitions.json"


def _tool() -> str | None:
    named = os.environ.get("RABBITMQADMIN") or shutil.which("rabbitmqadmin")
    if named is not None:
        return named
    pattern = "rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"
    return next((str(path) for path in Path("/usr/lib/rabbitmq/lib").glob(pattern)), None)


TOOL = _tool()
pytestmark = pytest.mark.skipif(TOOL is None, reason="no rabbitmqadmin on this machine")


class Admin:
    """The tool, as a user."""

    def __init__(self, broker: BrokerProcess, user: str = "guest:guest") -> None:
        name, _, password = user.partition(":")
        self._command = [
            sys.executable, str(TOOL), "-H", "127.0.0.1", "-P", str(broker.http_port),
            "-u", name, "-p", password,
        ]  # fmt: skip

    def __call__(self, *arguments: str, vhost: str | None = None, said: str = "") -> str:
        done = self._run(arguments, vhost, said)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def refused(self, *arguments: str) -> str:
        done = self._run(arguments, None, "")
        assert done.returncode != 0, (arguments, done.stdout)
        assert "Traceback" not in done.stderr, (arguments, done.stderr)
        return done.stderr

    def rows(self, *arguments: str, vhost: str | None = None) -> list[dict[str, str]]:
        """A list as the tool shows it."""
        text = self("-f", "tsv", *arguments, vhost=vhost)
        return list(csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))

    def _run(
        self, arguments: tuple[str, ...], vhost: str | None, said: str
    ) -> subprocess.CompletedProcess[str]:
        within = ["-V", vhost] if vhost is not None else []
        return subprocess.run(
            [*self._command, *within, *arguments],
            input=said, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("admin")) / "data") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Admin:
    return Admin(broker)


def test_every_list_and_overview(admin: Admin) -> None:
    for what in (
        "users", "vhosts", "connections", "exchanges", "bindings", "permissions", "channels",
        "consumers", "parameters", "policies", "operator_policies", "queues", "vhost_limits",
    ):  # fmt: skip
        admin("list", what)
    for depth in ("1", "4"):
        for what in ("exchanges", "queues"):
            admin("-d", depth, "list", what)
    (row,) = admin.rows("show", "overview")
    assert row["object_totals.queues"] == "0"
    (node,) = admin.rows("list", "nodes")
    assert node["name"].startswith("tallymark@")


def test_topology_and_messages(admin: Admin) -> None:
    admin("declare", "vhost", "name=a/b")
    admin("declare", "queue", "name=q", 'arguments={"x-max-length": 9}', vhost="a/b")
    admin("declare", "queue", "name=lasting", "queue_type=quorum", vhost="a/b")
    admin("declare", "exchange", "name=x", "type=topic", vhost="a/b")
    admin("declare", "binding", "source=x", "destination=q", "routing_key=a.#", vhost="a/b")
    admin("publish", "exchange=x", "routing_key=a.b", "payload=hello",
          'properties={"delivery_mode": 2}', vhost="a/b")  # fmt: skip
    admin("publish", "routing_key=q", "payload=direct", vhost="a/b")
    (row,) = [row for row in admin.rows("list", "queues", vhost="a/b") if row["name"] == "q"]
    assert row["messages"] == "2"
    got = admin.rows("get", "queue=q", "count=5", vhost="a/b")
    assert [row["payload"] for row in got] == ["hello", "direct"]
    assert [row["exchange"] for row in got] == ["x", ""]
    (got_for_good,) = admin.rows("get", "queue=q", "ackmode=ack_requeue_false", vhost="a/b")
    assert (got_for_good["payload"], got_for_good["redelivered"]) == ("hello", "True")
    admin("purge", "queue", "name=q", vhost="a/b")
    assert {row["messages"] for row in admin.rows("list", "queues", vhost="a/b")} == {"0"}
    admin("delete", "binding", "source=x", "destination_type=queue", "destination=q",
          "properties_key=a.%23", vhost="a/b")  # fmt: skip
    assert {row["source"] for row in admin.rows("list", "bindings", vhost="a/b")} == {""}
    admin("delete", "exchange", "name=x", vhost="a/b")
    admin("delete", "queue", "name=q", vhost="a/b")
    assert [row["name"] for row in admin.rows("list", "queues", vhost="a/b")] == ["lasting"]
    admin("delete", "vhost", "name=a/b")
    assert [row["name"] for row in admin.rows("list", "vhosts")] == ["/"]


def test_bodies_from_standard_input_and_into_files(admin: Admin, tmp_path: Path) -> None:
    admin("declare", "queue", "name=bodies")
    assert "Message published" in admin("publish", "routing_key=bodies", said="from a pipe")
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=lost")
    properties = 'properties={"headers": {"a": [1, 2]}, "message_id": "m1"}'
    admin("publish", "routing_key=bodies", "payload=AAH/", "payload_encoding=base64", properties)
    file = tmp_path / "body"
    admin("get", "queue=bodies", f"payload_file={file}", "ackmode=ack_requeue_false")
    assert file.read_text() == "from a pipe"
    (row,) = json.loads(admin("-f", "raw_json", "get", "queue=bodies"))
    assert (row["payload"], row["payload_encoding"]) == ("AAH/", "base64")
    assert row["properties"] == {"headers": {"a": [1, 2]}, "message_id": "m1"}
    admin("get", "queue=bodies", "ackmode=reject_requeue_true", "encoding=base64")
    admin("get", "queue=bodies", "ackmode=reject_requeue_false")
    assert "No items" in admin("get", "queue=bodies")
    admin("purge", "queue", "name=bodies")
    admin("delete", "queue", "name=bodies")
    for command in (("get", "queue=bodies"), ("purge", "queue", "name=bodies")):
        assert "Not found" in admin.refused(*command)


def test_every_form_of_output_and_order(admin: Admin) -> None:
    for name in ("one", "two"):
        admin("declare", "queue", f"name={name}")
    rows = [{"name": "one", "messages": 0}, {"name": "two", "messages": 0}]
    for form in ("raw_json", "pretty_json"):
        assert json.loads(admin("-f", form, "list", "queues", "name", "messages")) == rows
    assert admin("-f", "bash", "list", "queues", "name").split() == ["one", "two"]
    assert 'name="one" messages="0"' in admin("-f", "kvp", "list", "queues", "name", "messages")
    assert "name: two" in admin("-f", "long", "list", "queues", "name")
    assert "| one " in admin("-f", "table", "list", "queues", "name")
    ordered = admin.rows("-S", "name", "-R", "list", "queues", "name")
    assert [row["name"] for row in ordered] == ["two", "one"]
    (shown,) = admin.rows("show", "overview", "node", "object_totals.queues")
    assert shown["object_totals.queues"] == "2"
    for name in ("one", "two"):
        admin("delete", "queue", f"name={name}")


def test_limits_of_virtual_hosts(admin: Admin) -> None:
    admin("declare", "vhost_limit", "vhost=/", "name=max-queues", "value=500")
    (row,) = admin.rows("list", "vhost_limits")
    assert (row["vhost"], json.loads(row["value"])) == ("/", {"max-queues": 500})
    admin("delete", "vhost_limit", "vhost=/", "name=max-queues")
    assert "No items" in admin("list", "vhost_limits")


def test_parameters_are_refused_as_without_their_plugin(admin: Admin) -> None:
    assert "component shovel not found" in admin.refused(
        "declare", "parameter", "component=shovel", "name=s", 'value={"src-queue": "q"}'
    )
    assert "Not found" in admin.refused("delete", "parameter", "component=shovel", "name=s")
    assert "No items" in admin("list", "parameters")


def test_users_and_permissions(broker: BrokerProcess, admin: Admin) -> None:
    admin("declare", "user", "name=ann", "password=ann", "tags=management")
    rule = ("configure=^ann", "write=.*", "read=.*")
    admin("declare", "permission", "vhost=/", "user=ann", *rule)
    ann = Admin(broker, "ann:ann")
    ann("declare", "queue", "name=ann1")
    assert "Access refused" in ann.refused("declare", "queue", "name=other")
    assert "Access refused" in ann.refused("list", "users")
    ann("delete", "queue", "name=ann1")
    admin("delete", "permission", "vhost=/", "user=ann")
    admin("delete", "user", "name=ann")
    assert "Access refused" in ann.refused("list", "queues")


def test_policies(admin: Admin) -> None:
    rule = ("name=len", "pattern=^q", 'definition={"max-length": 5}', "priority=3")
    admin("declare", "policy", *rule, "apply-to=queues")
    (row,) = admin.rows("list", "policies")
    assert (row["name"], row["priority"], row["apply-to"]) == ("len", "3", "queues")
    admin("delete", "policy", "name=len")
    admin("declare", "operator_policy", *rule)
    assert [row["name"] for row in admin.rows("list", "operator_policies")] == ["len"]
    admin("delete", "operator_policy", "name=len")
    assert "regular expression" in admin.refused(
        "declare", "policy", "name=bad", "pattern=(", 'definition={"max-length": 5}'
    )


def test_a_connection_is_listed_and_closed(broker: BrokerProcess, admin: Admin) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("watched", exclusive=True)
    channel.basic_consume("watched", lambda *_: None, consumer_tag="watcher")
    (row,) = admin.rows("list", "connections")
    assert (row["user"], row["channels"]) == ("guest", "1")
    (consumer,) = admin.rows("list", "consumers")
    assert consumer["consumer_tag"] == "watcher"
    (held,) = admin.rows("list", "channels")
    assert (held["name"], held["user"]) == (f"{row['name']} (1)", "guest")
    assert "Not found" in admin.refused("close", "connection", "name=nosuch")
    admin("close", "connection", f"name={row['name']}")
    eventually(lambda: is_gone(connection), connection)
    assert admin.rows("list", "connections") == []


def test_definitions(broker: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as fresh:
        admin = Admin(fresh)
        admin("import", str(EXPORT))
        assert "orders" in [row["name"] for row in admin.rows("list", "queues")]
        admin("export", str(tmp_path / "all.json"))
        value = json.loads((tmp_path / "all.json").read_text())
        assert {row["name"] for row in value["vhosts"]} == {"/", "shop"}
        admin("export", str(tmp_path / "shop.json"), vhost="shop")
        admin("declare", "vhost", "name=copy")
        admin("import", str(tmp_path / "shop.json"), vhost="copy")
        assert admin.rows("list", "exchanges", vhost="copy") == admin.rows(
            "list", "exchanges", vhost="shop"
        )


def test_what_is_refused_is_told(admin: Admin) -> None:
    admin("declare", "queue", "name=same")
    assert "inequivalent arg 'durable'" in admin.refused(
        "declare", "queue", "name=same", "durable=false"
    )
    assert "Not found" in admin.refused("delete", "queue", "name=nosuch")
    admin("delete", "queue", "name=same")
