"""Secrets that clients and operators hand over appear nowhere: not in logs at their most talkative,
not in files, answers, metrics or the list of processes."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from tallymark.wire.amqp10.sasl import plain_response
from tallymark.wire.nsq import commands
from tests.server.faces import nsq_http
from tests.server.lines import say_no_more, until_closed
from tests.server.management import FULL, call, done
from tests.server.nsqd import Client as NsqClient
from tests.server.nsqd import call as nsqd_call
from tests.server.test_scram import ScramClient, over_091, over_10
from tests.server.test_what_is_seen import PATHS
from tests.support.amqp10_socket import Client
from tests.support.issuer import EVERYTHING, Issuer
from tests.support.nsq_auth_server import AuthServer
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

RIGHT, WRONG, TYPED = "planted-right-7c1e", "planted-wrong-52aa", "planted-typed-90f3"
ASKED = "planted-secret-for-the-auth-server"
SECRETS = [RIGHT, WRONG, TYPED, ASKED]
NEEDLES = [
    form
    for secret in SECRETS
    for form in (secret.encode(), base64.b64encode(f"ann:{secret}".encode()).rstrip(b"=")[:-2])
]
"""As they are, and as Basic authentication carries them."""


def log_in_everywhere(broker: BrokerProcess, password: str, is_right: bool) -> None:
    credentials = pika.PlainCredentials("ann", password)
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(port=broker.amqp_port, credentials=credentials)
        ).close()
    except AMQPError:
        assert not is_right
    with Client(
        socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S)
    ) as peer:
        peer.mechanisms()
        assert (peer.authenticate("PLAIN", plain_response("ann", password)) == 0) is is_right
    for login in (over_091, over_10):
        assert login(broker.amqp_port, ScramClient("ann", password))[0] is is_right
    assert (call(broker, "GET", "whoami", user=f"ann:{password}")[0] == 200) is is_right
    with NsqClient(broker.nsq_port) as client:
        client.send(commands.auth(f"ann:{password}".encode()))
        client.next()
    status, _ = nsq_http(broker, "GET", "/stats", None, f"ann:{password}")
    assert (status == 200) is is_right
    # What no client should send: in a path, a query, a broken header, a broken frame.
    call(broker, "GET", "queues/%2F/q?password=x", Authorization=f"Bearer {password}")
    # To be hashed, in a path: allowed, not allowed, no path of ours, and by a page of others.
    for path, user in (("", "guest:guest"), ("", f"ann:{password}"), ("/x", "guest:guest")):
        call(broker, "GET", f"auth/hash_password/{password}{path}", user=user)
    call(broker, "GET", f"auth/hash_password/{password}", Origin="http://example.org")
    # As what no password and no body of a message is.
    ann = {"name": "ann", "password": [password], "tags": ""}
    assert call(broker, "PUT", "users/ann", ann)[0] == 400
    assert call(broker, "POST", "definitions", {"users": [ann]})[0] == 400
    message = {"routing_key": "", "properties": {}, "payload_encoding": "base64"}
    for payload in (password, [password]):
        body = {**message, "payload": payload}
        assert call(broker, "POST", "exchanges/%2F/amq.default/publish", body)[0] == 400
    with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S) as raw:
        raw.sendall(b"AMQP\0\0\x09\x01" + b"\x01\0\0\0\0\0\xff" + password.encode())
        say_no_more(raw)
        with suppress(ConnectionResetError):
            until_closed(raw)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("secrets"))
    with BrokerProcess(folder / "data", log_level="debug") as running:
        done(running, "PUT", "users/ann", {"password": RIGHT, "tags": ""})
        done(running, "PUT", "permissions/%2F/ann", FULL)
        log_in_everywhere(running, RIGHT, is_right=True)
        log_in_everywhere(running, WRONG, is_right=False)
        command = [sys.executable, "-m", "tallymark", "user", "passwd", "ann", "--password", "-"]
        subprocess.run(
            [*command, "--data-dir", str(running.data_dir)], check=True, timeout=PATIENCE_S,
            input=TYPED + "\n", text=True,
        )  # fmt: skip
        log_in_everywhere(running, TYPED, is_right=True)
        yield running


def found_in(raw: bytes) -> list[bytes]:
    return [needle for needle in NEEDLES if needle in raw]


def test_no_log_has_a_secret(broker: BrokerProcess) -> None:
    log = broker.log()
    assert "login.refused" in log
    assert '"request"' in log or "request " in log, "debug is on"
    assert found_in(log.encode()) == []


def test_no_file_has_a_secret(broker: BrokerProcess) -> None:
    """Journal, ledger, checkpoints, users.json."""
    assert broker.http("POST", "/api/tallymark/ledger/checkpoint")[0] == 200
    files = [path for path in broker.data_dir.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        with suppress(FileNotFoundError):  # a file that was written aside is in its place now
            assert found_in(path.read_bytes()) == [], path


def test_no_answer_has_a_secret(broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            port=broker.amqp_port, credentials=pika.PlainCredentials("ann", TYPED)
        )
    )
    for path in PATHS:
        assert found_in(broker.http_bytes("GET", path)[1]) == [], path
    connection.close()
    for path in ("/stats?format=json", "/config/auth_http_addresses", "/info"):
        assert found_in(nsq_http(broker, "GET", path, None, f"ann:{TYPED}")[1]) == [], path


def test_no_process_shows_a_secret(broker: BrokerProcess) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # it ended
            continue
        if b"tallymark" in line:
            assert found_in(line) == [], path


def test_no_token_is_shown_whether_it_is_good_or_not(tmp_path: Path) -> None:
    """In no log, file, answer or list of processes; the claims that are wrong with it may be."""
    with Issuer() as issuer:
        good, later = issuer.token(*EVERYTHING), issuer.token(*EVERYTHING)
        bad = [issuer.token(aud="other"), issuer.token(expires_s=-5), good[:-8] + "AAAAAAAA"]
        with BrokerProcess(tmp_path / "data", log_level="debug", **issuer.flags()) as broker:
            for token in (good, *bad):
                is_good = token is good
                credentials = pika.PlainCredentials("any", token)
                parameters = pika.ConnectionParameters(
                    port=broker.amqp_port, credentials=credentials
                )
                with suppress(AMQPError), pika.BlockingConnection(parameters) as connection:
                    assert is_good
                    connection.update_secret(later, "renewed")
                    bearer = f"Bearer {good}"
                    answers = [
                        nsqd_call(broker.url, "GET", path, Authorization=bearer)
                        for path in ("/api/connections", *PATHS)
                    ]
                    assert answers[0][0] == 200
                    seen = [raw for _, _, raw in answers]
                    connection.update_secret(bad[0], "refused")
                status = call(broker, "GET", "whoami", Authorization=f"Bearer {token}")[0]
                assert (status == 200) is is_good
                assert call(broker, "GET", "whoami", user=f"{token}:x")[0] == 401
                with NsqClient(broker.nsq_port) as client:
                    client.send(commands.auth(token.encode()))
                    client.next()
            log = broker.log()
            assert "token.refused" in log
            places = [log.encode(), *seen]
            places += [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")
                       if path.parent.name == str(broker.pid)]  # fmt: skip
        places += [path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()]
        for token in (good, later, *bad):
            for part in token.split(".")[1:]:
                assert [place for place in places if part.encode() in place] == []


def test_an_auth_server_that_fails_is_told_of_without_the_secret(tmp_path: Path) -> None:
    """It is in the URL that is asked for."""
    for answer in ({"ttl": 0}, {"ttl": 60, "authorizations": []}, {"ttl": "x"}):
        with AuthServer(answer) as server:
            folder = tmp_path / json.dumps(answer)[:12].replace('"', "").replace("/", "")
            flags = {"auth_http_address": server.address, "log_level": "debug"}
            with BrokerProcess(folder, **flags) as broker, NsqClient(broker.nsq_port) as client:
                client.error(commands.auth(ASKED.encode()))
                assert found_in(broker.log().encode()) == []
    flags = {"auth_http_address": "127.0.0.1:1", "log_level": "debug"}
    with BrokerProcess(tmp_path / "down", **flags) as broker, NsqClient(broker.nsq_port) as client:
        client.error(commands.auth(ASKED.encode()))
        assert "auth.failed" in broker.log()
        assert found_in(broker.log().encode()) == []
