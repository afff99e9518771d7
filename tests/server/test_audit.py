"""The audit log: every face tells of refused log-ins, denials and changes; nothing silences it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from tallymark.wire.amqp10.sasl import plain_response
from tallymark.wire.nsq import commands
from tests.server.faces import FACES, NEEDS, PASSWORD, USER, nsq_http, provide
from tests.server.management import FULL, call, done
from tests.server.nsqd import Client as NsqClient
from tests.server.test_revoked_rights import empty
from tests.server.test_scram import ScramClient, over_091, over_10
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

PLANTED = "planted-secret-9d1f"
QUIET = {"log_level": "off", "log_format": "json", "nsq_http_config": "true"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """All other logs are off."""
    with BrokerProcess(Path(tmp_path_factory.mktemp("audit")) / "data", **QUIET) as running:
        done(running, "PUT", f"users/{USER}", {"password": PASSWORD, "tags": "management"})
        provide(running)
        yield running


def events(broker: BrokerProcess, after: int = 0) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in broker.log()[after:].splitlines()]
    assert {one["category"] for one in found} <= {"audit"}
    return found


# -- log-ins


def by_091(broker: BrokerProcess, user: str) -> None:
    with pytest.raises(AMQPError):
        pika.BlockingConnection(
            pika.ConnectionParameters(
                port=broker.amqp_port, credentials=pika.PlainCredentials(user, PLANTED)
            )
        )


def by_10(broker: BrokerProcess, user: str) -> None:
    with Client(
        socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S)
    ) as peer:
        peer.mechanisms()
        assert peer.authenticate("PLAIN", plain_response(user, PLANTED)) == 1


def by_http(broker: BrokerProcess, user: str) -> None:
    assert call(broker, "GET", "whoami", user=f"{user}:{PLANTED}")[0] == 401


def by_nsq(broker: BrokerProcess, user: str) -> None:
    with NsqClient(broker.nsq_port) as client:
        client.error(commands.auth(f"{user}:{PLANTED}".encode()))


def by_nsq_http(broker: BrokerProcess, user: str) -> None:
    assert nsq_http(broker, "GET", "/stats", None, f"{user}:{PLANTED}")[0] == 401


def by_scram_091(broker: BrokerProcess, user: str) -> None:
    assert not over_091(broker.amqp_port, ScramClient(user, PLANTED))[0]


def by_scram_10(broker: BrokerProcess, user: str) -> None:
    assert not over_10(broker.amqp_port, ScramClient(user, PLANTED))[0]


@pytest.mark.parametrize(
    ("log_in", "protocol", "mechanism"),
    [
        (by_091, "AMQP 0-9-1", "PLAIN"), (by_10, "AMQP 1.0", "PLAIN"), (by_http, "HTTP", "Basic"),
        (by_nsq, "NSQ", "AUTH"), (by_nsq_http, "NSQ over HTTP", "Basic"),
        (by_scram_091, "AMQP 0-9-1", "SCRAM-SHA-256"), (by_scram_10, "AMQP 1.0", "SCRAM-SHA-256"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("user", [USER, "nobody"])
def test_a_log_in_that_is_refused(
    broker: BrokerProcess, log_in: Callable[[BrokerProcess, str], None], protocol: str,
    mechanism: str, user: str,
) -> None:  # fmt: skip
    after = len(broker.log())
    log_in(broker, user)
    (event,) = [one for one in events(broker, after) if one["event"] == "login.refused"]
    assert (event["protocol"], event["mechanism"], event["user"]) == (protocol, mechanism, user)
    assert event["peer"].startswith("127.0.0.1")
    assert PLANTED not in broker.log()


# -- denials


@pytest.mark.parametrize(
    ("face", "operation"), [(face, one) for face in FACES for one in NEEDS[face]]
)
def test_a_denial(broker: BrokerProcess, face: str, operation: str) -> None:
    right = sorted(NEEDS[face][operation])[0]
    done(broker, "PUT", f"permissions/%2F/{USER}", FULL)
    empty(broker)
    user = FACES[face](broker)
    try:
        assert user.do(operation, "mine")
        after = len(broker.log())
        done(broker, "PUT", f"permissions/%2F/{USER}", {**FULL, right: "^other"})
        assert not user.do(operation, "mine")
    finally:
        user.close()
    told = ("access.refused", "request.refused")
    found = [one for one in events(broker, after) if one["event"] in told]
    assert len(found) == 1
    (event,) = found
    assert event["user"] == USER
    if event["event"] == "access.refused":
        assert (event["operation"], event["vhost"]) == (right, "/")
        assert event["name"].startswith("mine.")
        assert event["peer"].startswith("127.0.0.1:")
    else:
        assert "refused for user" in event["reason"]


def test_a_virtual_host_that_is_closed_to_the_user(broker: BrokerProcess) -> None:
    done(broker, "PUT", "vhosts/closed")
    after = len(broker.log())
    with pytest.raises(AMQPError):
        pika.BlockingConnection(
            pika.ConnectionParameters(
                port=broker.amqp_port, virtual_host="closed",
                credentials=pika.PlainCredentials(USER, PASSWORD),
            )
        )  # fmt: skip
    (event,) = events(broker, after)
    assert (event["event"], event["kind"], event["name"]) == ("access.refused", "vhost", "closed")


def test_a_web_page_and_an_operation_for_administrators(broker: BrokerProcess) -> None:
    after = len(broker.log())
    assert call(broker, "GET", "overview", Origin="http://evil.example")[0] == 403
    assert call(broker, "GET", "users", user=f"{USER}:{PASSWORD}")[0] == 401
    page, users = events(broker, after)
    assert (page["event"], page["path"]) == ("request.turned_away", "/api/overview")
    assert (users["event"], users["path"], users["user"]) == (
        "request.refused", "/api/users", USER,
    )  # fmt: skip


# -- changes


def test_changes_of_users_policies_and_others_and_by_whom(broker: BrokerProcess) -> None:
    after = len(broker.log())
    done(broker, "PUT", "users/eve", {"password": PLANTED, "tags": "monitoring"})
    done(broker, "PUT", "permissions/%2F/eve", {**FULL, "read": "^$"})
    done(broker, "PUT", "users/eve", {"password": PLANTED + "2", "tags": ""})
    topics = {"exchange": "amq.topic", "write": "^app", "read": ""}
    done(broker, "PUT", "topic-permissions/%2F/eve", topics)
    done(broker, "PUT", "policies/%2F/p", {"pattern": "x", "definition": {"max-length": 5}})
    done(broker, "DELETE", "users/eve")
    command = [sys.executable, "-m", "tallymark", "user", "add", "eve", "--password", PLANTED]
    subprocess.run([*command, "--data-dir", str(broker.data_dir)], check=True, timeout=PATIENCE_S)
    assert call(broker, "GET", "users/eve")[0] == 200
    status, _ = broker.http("PUT", "/api/tallymark/log-levels", {"all": "off"})
    assert status == 200
    said = [
        (one["event"], one.get("user"), one.get("by"), one.get("path"))
        for one in events(broker, after)
    ]
    assert said == [
        ("user.added", "eve", "guest", None),
        ("request.done", "guest", None, "/api/users/eve"),
        ("user.changed", "eve", "guest", None),
        ("request.done", "guest", None, "/api/permissions/%2F/eve"),
        ("user.changed", "eve", "guest", None),
        ("request.done", "guest", None, "/api/users/eve"),
        ("user.changed", "eve", "guest", None),
        ("request.done", "guest", None, "/api/topic-permissions/%2F/eve"),
        ("request.done", "guest", None, "/api/policies/%2F/p"),
        ("user.deleted", "eve", "guest", None),
        ("request.done", "guest", None, "/api/users/eve"),
        ("user.added", "eve", "users.json", None),
        ("request.done", "guest", None, "/api/tallymark/log-levels"),
    ]
    changed = [one for one in events(broker, after) if one["event"] == "user.changed"]
    assert changed[0]["vhosts"] == {"/": [".*", ".*", "^$"]}
    assert (changed[1]["password"], changed[1]["tags"]) == ("changed", [])
    assert changed[2]["topics"] == {"/": {"amq.topic": ["^app", ""]}}
    assert PLANTED not in broker.log()


def test_a_name_with_slashes_is_told_from_a_path_and_a_long_one_hides_no_end(
    broker: BrokerProcess,
) -> None:
    """To purge `b` of a virtual host `a` is not to delete a queue `b/contents`."""
    after = len(broker.log())
    long = "q" * 255
    paths = ["queues/%2F/b%2Fcontents", "queues/%2F/b", f"queues/%2F/{long}"]
    for path in paths:
        done(broker, "PUT", path, {"durable": True})
    asked = ["queues/%2F/b/contents", *paths, f"queues/%2F/{long}/contents"]
    for path in sorted(asked, key=len, reverse=True):
        done(broker, "DELETE", path)
    told = [one["path"] for one in events(broker, after) if one["method"] == "DELETE"]
    assert told == [f"/api/{path}" for path in sorted(asked, key=len, reverse=True)]


def test_what_happens_to_queues_and_their_messages_over_http_and_by_whom(
    broker: BrokerProcess,
) -> None:
    after = len(broker.log())
    done(broker, "PUT", "queues/%2F/get", {"durable": True})
    done(broker, "PUT", "exchanges/%2F/events", {"type": "topic"})
    done(broker, "POST", "bindings/%2F/e/events/q/get", {"routing_key": "#"})
    message = {"properties": {}, "routing_key": "k", "payload": "a", "payload_encoding": "string"}
    assert call(broker, "POST", "exchanges/%2F/events/publish", message)[0] == 200
    look = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert call(broker, "POST", "queues/%2F/get/get", look)[0] == 200
    status, _ = broker.http("POST", "/api/tallymark/subscriptions/%2F/get/s/attach", {})
    assert status == 200
    status, _ = broker.http("POST", "/api/tallymark/quarantine/%2F/get/drop", {})
    assert status == 200
    status, _ = broker.http("DELETE", "/api/tallymark/subscriptions/%2F/get/s")
    assert status == 200
    done(broker, "DELETE", "queues/%2F/get/contents")
    done(broker, "DELETE", "queues/%2F/get")
    done(broker, "DELETE", "exchanges/%2F/events")
    found = events(broker, after)
    assert {(one["event"], one["user"]) for one in found} == {("request.done", "guest")}
    assert [(one["method"], one["path"]) for one in found] == [
        ("PUT", "/api/queues/%2F/get"),
        ("PUT", "/api/exchanges/%2F/events"),
        ("POST", "/api/bindings/%2F/e/events/q/get"),
        ("POST", "/api/tallymark/quarantine/%2F/get/drop"),
        ("DELETE", "/api/tallymark/subscriptions/%2F/get/s"),
        ("DELETE", "/api/queues/%2F/get/contents"),
        ("DELETE", "/api/queues/%2F/get"),
        ("DELETE", "/api/exchanges/%2F/events"),
    ]


def test_what_happens_to_topics_and_channels_over_nsqs_http_and_by_whom(
    broker: BrokerProcess,
) -> None:
    after = len(broker.log())
    requests = [
        ("POST", "/topic/create?topic=t"),
        ("POST", "/channel/create?topic=t&channel=c"),
        ("POST", "/channel/pause?topic=t&channel=c"),
        ("POST", "/channel/unpause?topic=t&channel=c"),
        ("POST", "/channel/empty?topic=t&channel=c"),
        ("POST", "/channel/delete?topic=t&channel=c"),
        ("POST", "/topic/pause?topic=t"),
        ("POST", "/topic/empty?topic=t"),
        ("POST", "/topic/delete?topic=t"),
        ("PUT", "/config/log_level"),
    ]
    assert nsq_http(broker, "POST", "/pub?topic=t", b"x", "guest:guest")[0] == 200
    for method, path in requests:
        body = b"fatal" if method == "PUT" else b""
        assert nsq_http(broker, method, path, body, "guest:guest")[0] == 200, path
    assert nsq_http(broker, "POST", "/topic/delete?topic=t", b"", "guest:guest")[0] == 404
    found = events(broker, after)
    assert [(one["event"], one["interface"], one["method"], one["path"]) for one in found] == [
        ("request.done", "NSQ", method, path) for method, path in requests
    ]


def test_nothing_switches_it_off(broker: BrokerProcess) -> None:
    """Neither the configuration, nor HTTP, nor NSQ's."""
    assert broker.http("PUT", "/api/tallymark/log-levels", {"audit": "off"})[0] == 400
    assert broker.http("GET", "/api/tallymark/log-levels")[1].get("audit") is None
    path = "/config/log_level"
    assert nsq_http(broker, "PUT", path, b"fatal", "guest:guest") == (200, b"5")
    after = len(broker.log())
    by_http(broker, "nobody")
    assert [one["event"] for one in events(broker, after)] == ["login.refused"]
