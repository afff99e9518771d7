"""Who gets in by the NSQ listener and nsqd's HTTP interface, and what they may do there."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest

from tallymark.server.access.user import make_user
from tallymark.server.access.users import Users, save
from tallymark.server.config.settings import Config, load
from tallymark.server.node import Node
from tallymark.server.nsq.doors import NsqDoors
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import ERROR
from tests.server.management import FULL, call, done, get, refused
from tests.server.nsqd import Client
from tests.support import forked
from tests.support.certificates import Authority, Certificate
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerDied, BrokerProcess


@contextmanager
def nsqd(folder: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """`tallymark nsqd` with its flags, on free ports; its ready line."""
    command = [
        sys.executable, "-m", "tallymark", "nsqd", "-tcp-address=127.0.0.1:0",
        "-http-address=127.0.0.1:0", f"-data-path={folder}", *flags,
    ]  # fmt: skip
    with (folder / "stderr").open("wb") as log:
        process = forked.popen(command, os.environ, log)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise BrokerDied(f"{process.wait(PATIENCE_S)}: {(folder / 'stderr').read_text()}")
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        process.stdout.close()


def http(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Authority(tmp_path_factory.mktemp("certificates")).sign("localhost")


def refuses_plain_clients(nsq_port: int, http_port: int) -> None:
    """Commands and requests outside of TLS: nsqd's own words."""
    for command, verb in (
        (commands.pub("t", b"x"), "PUB"), (commands.sub("t", "c"), "SUB"),
    ):  # fmt: skip
        with Client(nsq_port) as client:
            client.send(command)
            kind, data = client.next()
            text = f"E_INVALID cannot {verb} in current state (TLS required)"
            assert (kind, data.decode()) == (ERROR, text)
    for method, path in (("POST", "/pub?topic=t"), ("GET", "/stats"), ("GET", "/ping")):
        status, raw = http(http_port, method, path, b"x" if method == "POST" else None)
        assert (status, json.loads(raw)["message"]) == (403, "TLS_REQUIRED")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_for_client_certificates_demands_tls_as_in_nsqd(
    tmp_path: Path, certificate: Certificate, policy: str
) -> None:
    tls = (f"-tls-cert={certificate.cert}", f"-tls-key={certificate.key}")
    flags = (*tls, "-https-address=127.0.0.1:0", f"-tls-client-auth-policy={policy}")
    with nsqd(tmp_path, *flags) as ready:
        refuses_plain_clients(ready["nsq"][1], ready["nsq_http"][1])
    with BrokerProcess(
        tmp_path / "data", nsq_tls_cert=str(certificate.cert), nsq_tls_key=str(certificate.key),
        nsq_tls_client_auth_policy=policy,
    ) as broker:  # fmt: skip
        refuses_plain_clients(broker.nsq_port, broker.nsq_http_port)


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_for_client_certificates_needs_a_certificate_to_start(
    tmp_path: Path, policy: str
) -> None:
    text = "nsq_tls_client_auth_policy without nsq_tls_cert: nobody could connect"
    with (
        pytest.raises(BrokerDied, match=text),
        nsqd(tmp_path, f"-tls-client-auth-policy={policy}"),
    ):
        pass
    with pytest.raises(BrokerDied, match=text):
        BrokerProcess(tmp_path / "data", nsq_tls_client_auth_policy=policy).start()


# -- whether there is a door


def test_nsq_is_not_served_unless_it_is_asked_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", has_nsq=False) as broker:
        assert list(broker.ready["listeners"]) == ["amqp", "http"]


@pytest.mark.parametrize(
    "asked",
    [{"nsq_port": "0"}, {"nsq_http_port": "0"}, {"nsq_https_port": "0"}, {"nsq": "true"}],
)
def test_nsq_is_asked_for_by_itself_or_one_of_its_ports(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    assert load(None, {}, asked).nsq
    file = tmp_path / "tallymark.toml"
    ((name, value),) = asked.items()
    file.write_text(f"{name} = {value}")
    assert load(file, {}, {}).nsq
    assert load(None, {f"TALLYMARK_{name.upper()}": value}, {}).nsq
    assert not load(file, {}, {"nsq": "false"}).nsq


# -- who gets in


def add_user(broker: BrokerProcess, name: str, tags: str = "", **permissions: str) -> None:
    """The first makes a user of guest too."""
    done(broker, "PUT", f"users/{name}", {"password": name, "tags": tags})
    if permissions:
        done(broker, "PUT", f"permissions/%2F/{name}", permissions)


def test_with_users_the_protocol_needs_auth_and_http_a_login(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Client(broker.nsq_port) as early:
            early.ok(commands.pub("t", b"x"))
            add_user(broker, "ann", configure=".*", write=".*", read=".*")
            with pytest.raises(AssertionError, match="the broker hung up"):
                early.next()
        with Client(broker.nsq_port, feature_negotiation=True) as client:
            assert client.about["auth_required"] is True
            assert client.error(commands.pub("t", b"x")) == "E_AUTH_FIRST AUTH required before PUB"
        for secret in (b"ann:wrong", b"ann", b":", b"nobody:x", b"\xff:\0"):
            with Client(broker.nsq_port) as client:
                text = "E_UNAUTHORIZED AUTH no authorizations found"
                assert client.error(commands.auth(secret)) == text
        with Client(broker.nsq_port) as client:
            client.send(commands.auth(b"ann:ann"))
            _, data = client.next()
            assert json.loads(data) == {
                "identity": "ann", "identity_url": "", "permission_count": 1,
            }  # fmt: skip
            client.ok(commands.pub("t", b"x"))
            assert [row["user"] for row in get(broker, "connections")] == ["ann"]
        port = broker.nsq_http_port
        for method, path in (
            ("POST", "/pub?topic=t"), ("GET", "/stats"), ("POST", "/topic/delete?topic=t"),
            ("GET", "/config/data_path"), ("PUT", "/config/log_level"), ("GET", "/info"),
            ("POST", "/debug/freememory"),
        ):  # fmt: skip
            for headers in ({}, {"Authorization": basic("ann:wrong")}, {"Authorization": "x"}):
                found = http(port, method, path, b"debug" if method != "GET" else None, **headers)
                assert found == (401, b'{"message":"UNAUTHORIZED"}'), (path, headers)
        assert http(port, "GET", "/ping") == (200, b"OK")
        allowed = {"Authorization": basic("ann:ann")}
        assert http(port, "POST", "/pub?topic=t", b"x", **allowed) == (200, b"OK")


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def test_a_user_that_everybody_acts_as_has_its_permissions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", nsq_user="robot") as broker:
        port = broker.nsq_http_port
        with Client(broker.nsq_port) as client:
            text = 'E_UNAUTHORIZED AUTH failed for PUB on "log" ""'
            assert client.error(commands.pub("log", b"x")) == text, "there is no such user yet"
        assert http(port, "POST", "/pub?topic=log", b"x")[0] == 401
        add_user(broker, "robot", configure="^log", write="^log", read="^log")
        with Client(broker.nsq_port) as client:
            client.ok(commands.pub("log", b"x"))
            text = 'E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'
            assert client.error(commands.pub("orders", b"x")) == text
        with Client(broker.nsq_port) as client:
            client.ok(commands.sub("log", "c"))
            done(broker, "PUT", "permissions/%2F/robot", {**FULL, "read": "^$"})
            assert client.next() == (ERROR, b'E_UNAUTHORIZED AUTH failed for SUB on "log" "c"')
        assert http(port, "POST", "/pub?topic=log", b"x") == (200, b"OK")
        done(broker, "PUT", "permissions/%2F/robot", {**FULL, "write": "^$"})
        assert http(port, "POST", "/pub?topic=log", b"x") == (403, b'{"message":"FORBIDDEN"}')
        assert http(port, "PUT", "/config/log_level", b"debug")[0] == 403


def test_as_nsqd_it_asks_nobody_until_there_are_users(tmp_path: Path) -> None:
    with nsqd(tmp_path) as ready:
        port = ready["nsq_http"][1]
        with Client(ready["nsq"][1]) as client:
            client.ok(commands.pub("t", b"x"))
            client.ok(commands.sub("t", "c"))
        assert http(port, "POST", "/pub?topic=t", b"x") == (200, b"OK")
        assert http(port, "PUT", "/config/log_level", b"debug") == (200, b"1")
        assert http(port, "PUT", "/config/nsqlookupd_tcp_addresses", b"[]") == (200, b"[]")


def test_a_request_that_came_before_the_first_user_may_do_nothing_after(tmp_path: Path) -> None:
    """Its body may come long after its head, when nobody was asked yet."""
    known = Users(tmp_path)
    node = cast(Node, SimpleNamespace(config=Config(nsq=True), users=known))
    doors = NsqDoors(node, None)
    assert doors.access_of(None) is None
    save(tmp_path, {"ann": make_user("ann", "secret", False, {})})
    with pytest.raises(KeyError):
        doors.access_of(None)


def test_configuration_over_http_is_off(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for option, value in (
            ("log_level", b"fatal"), ("nsqlookupd_tcp_addresses", b'["127.0.0.1:1"]'),
        ):  # fmt: skip
            before = http(broker.nsq_http_port, "GET", f"/config/{option}")
            found = http(broker.nsq_http_port, "PUT", f"/config/{option}", value)
            assert found == (403, b'{"message":"FORBIDDEN"}')
            assert http(broker.nsq_http_port, "GET", f"/config/{option}") == before


def test_configuration_over_http_where_it_is_on_is_for_administrators(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", nsq_http_config="true") as broker:
        path, port = "/config/log_level", broker.nsq_http_port
        assert http(port, "PUT", path, b"warn") == (200, b"3")
        add_user(broker, "ann", configure=".*", write=".*", read=".*")
        assert http(port, "PUT", path, b"debug", Authorization=basic("ann:ann"))[0] == 403
        assert http(port, "PUT", path, b"info", Authorization=basic("guest:guest")) == (200, b"2")


# -- what is behind it


def test_what_amqp_made_is_no_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "exchanges/%2F/orders", {"type": "fanout"})
        for command, verb in (
            (commands.sub("orders", "spy"), "SUB"), (commands.pub("orders", b"forged"), "PUB"),
        ):  # fmt: skip
            with Client(broker.nsq_port) as client:
                assert client.error(command).startswith(f"E_BAD_TOPIC {verb} topic 'orders'")
        for path in ("/pub?topic=orders", "/topic/create?topic=orders"):
            found = http(broker.nsq_http_port, "POST", path, b"x")
            assert found == (400, b'{"message":"INVALID_TOPIC"}')
        found = http(broker.nsq_http_port, "POST", "/topic/delete?topic=orders", b"x")
        assert found == (404, b'{"message":"TOPIC_NOT_FOUND"}')
        assert get(broker, "exchanges/%2F/orders")["name"] == "orders"
    adopting = BrokerProcess(tmp_path / "data", nsq_adopt_exchanges="true")
    with adopting as broker, Client(broker.nsq_port) as client:
        client.ok(commands.pub("orders", b"x"))


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ({"x-nsq-topic": "t", "x-nsq-channel": "spy"}, "read"),
        ({"x-nsq-topic": "t"}, "configure"),
        ({"x-nsq-topic": "t"}, "write"),
        ({"x-nsq-topic": "t"}, "read"),
        ({"x-nsq-topic": "none", "x-nsq-channel": "c"}, "configure"),
    ],
)
def test_a_queue_that_says_it_is_a_channel_needs_the_rights_of_a_binding(
    tmp_path: Path, arguments: dict[str, str], missing: str
) -> None:
    """It is bound to the topic's exchange, or makes a topic of one, by being declared."""
    name = f"{arguments['x-nsq-topic']}:{arguments.get('x-nsq-channel', '')}"
    with BrokerProcess(tmp_path / "data") as broker:
        assert http(broker.nsq_http_port, "POST", "/topic/create?topic=t", b"")[0] == 200
        if "x-nsq-channel" not in arguments:
            done(broker, "PUT", "exchanges/%2F/t2", {"type": "fanout"})
            arguments, name = {"x-nsq-topic": "t2"}, "t2:"
        body = {"durable": True, "arguments": arguments}
        add_user(broker, "ann", **{**FULL, missing: ":"})
        path = f"queues/%2F/{quote(name, safe='')}"
        status, _, reason = refused(broker, "PUT", path, body, user="ann:ann")
        assert (status, reason) == (
            401, f"access to exchange '{arguments['x-nsq-topic']}' in vhost '/' refused for user "
            "'ann'",
        )  # fmt: skip
        done(broker, "PUT", "permissions/%2F/ann", FULL)
        assert call(broker, "PUT", path, body, user="ann:ann")[0] == 201
