"""Patterns that would take a backtracking engine for ever, at every place that takes one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tallymark.server.access import users
from tallymark.server.access.user import Permission, make_user
from tallymark.wire.amqp10.events import LinkDetached
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.nsq.commands import auth, pub
from tests.server.management import call, done, get, refused
from tests.server.nsqd import Client as NsqClient
from tests.support.amqp10_socket import Client as Client10
from tests.support.nsq_auth_server import AuthServer
from tests.support.process import BrokerProcess

HOSTILE = "^(a+)+$"
NAME = "a" * 60 + "b"
"""Python's `re` would search it for the pattern until the sun is cold."""
BEYOND = "(?<=a)b"
FULL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    answer = {
        "ttl": 3600,
        "authorizations": [
            {"topic": HOSTILE, "channels": [HOSTILE, ".*"], "permissions": ["publish"]}
        ],
    }
    with (
        AuthServer(answer) as server,
        BrokerProcess(
            tmp_path_factory.mktemp("patterns") / "data",
            auto_create_queues=HOSTILE,
            auth_http_address=server.address,
        ) as process,
    ):
        done(process, "PUT", "users/guest", {"password": "guest", "tags": "administrator"})
        done(process, "PUT", "permissions/%2F/guest", FULL)
        yield process


def policy(broker: BrokerProcess) -> None:
    for kind in ("policies", "operator-policies"):
        value = {"pattern": HOSTILE, "definition": {"max-length": 5}}
        done(broker, "PUT", f"{kind}/%2F/hostile", value)
    done(broker, "PUT", f"queues/%2F/{NAME}", {})
    for kind in ("policies", "operator-policies"):
        done(broker, "DELETE", f"{kind}/%2F/hostile")


def permission(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/ann", {"password": "secret", "tags": ""})
    done(broker, "PUT", "permissions/%2F/ann", dict.fromkeys(FULL, HOSTILE))
    status, _, _ = call(broker, "PUT", f"queues/%2F/{NAME}x", {}, user="ann:secret")
    assert status == 401


def filter_of_lists(broker: BrokerProcess) -> None:
    done(broker, "PUT", f"queues/%2F/{NAME}", {})
    found = get(broker, f"queues/%2F?page=1&use_regex=true&name={quote(HOSTILE)}")
    assert found["filtered_count"] == 0


def auto_create(broker: BrokerProcess) -> None:
    raw = socket.create_connection(("127.0.0.1", broker.amqp_port))
    with Client10(raw) as client:
        client.login()
        asked = Attach(name="x", source=Source(address=f"/queues/{NAME}y"), target=Target())
        client.session().attach_receiver(asked)
        failed = client.next_of(LinkDetached)
        assert failed.error is not None
        assert failed.error.condition == "amqp:not-found"


def auth_answer(broker: BrokerProcess) -> None:
    with NsqClient(broker.nsq_port) as client:
        client.send(auth(b"secret"))
        assert b"permission_count" in client.next()[1]
        assert client.error(pub(NAME, b"x")).startswith("E_UNAUTHORIZED")


@pytest.mark.parametrize("place", [policy, permission, filter_of_lists, auto_create, auth_answer])
def test_a_pattern_that_backtracks_holds_nobody_up(
    broker: BrokerProcess, place: Callable[[BrokerProcess], None]
) -> None:
    place(broker)
    assert broker.http("GET", "/healthz", user=None)[0] == 200


def test_what_has_no_linear_time_is_refused_with_a_reason(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/bob", {"password": "secret", "tags": ""})
    definition = {"definition": {"max-length": 5}, "pattern": BEYOND}
    for method, path, body in (
        ("PUT", "policies/%2F/beyond", definition),
        ("PUT", "operator-policies/%2F/beyond", definition),
        ("PUT", "permissions/%2F/bob", {**FULL, "write": BEYOND}),
        ("GET", f"queues?page=1&use_regex=true&name={quote(BEYOND)}", None),
    ):
        status, error, text = refused(broker, method, path, body)
        assert (status, error) == (400, "bad_request"), path
        assert "(?<=" in text, path
        assert "expected RE2's syntax" in text, path


def test_a_start_with_patterns_of_an_older_version_succeeds_and_says_what_they_do(
    tmp_path: Path,
) -> None:
    ann = make_user("ann", "secret", True, {"*": Permission()})
    stored = msgspec.structs.replace(ann, vhosts={"*": Permission(".*", BEYOND, ".*")})
    users.save(tmp_path / "data", {"ann": stored})
    with BrokerProcess(tmp_path / "data") as broker:
        status, _, _ = call(broker, "PUT", "queues/%2F/ab", {}, user="ann:secret")
        assert status == 201
        body = {"properties": {}, "routing_key": "ab", "payload": "x", "payload_encoding": "string"}
        status, _, _ = call(
            broker, "POST", "exchanges/%2F/amq.default/publish", body, user="ann:secret"
        )
        assert status == 401, "it allows nothing"
        assert "permission.without_effect" in broker.log()
