"""Whatever is raised for one client costs that client's connection, and nothing else.

The faults are put in from outside: a module that Python imports when the broker starts. They stand
for bugs, wherever these are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pytest

from tallymark.wire.amqp091.frames import PROTOCOL_HEADER
from tallymark.wire.amqp091.methods import ConnectionStartOk
from tallymark.wire.nsq.commands import MAGIC, auth
from tests.server.lines import DOORS, GUEST, HTTP_DOORS, say_no_more, until_closed
from tests.support.amqp091 import method_frame
from tests.support.amqp10_socket import Client as Client10
from tests.support.process import BrokerProcess

FAULT = """
from tallymark.server.amqp import AmqpClient
from tallymark.server.nsq.auth import Authorities
from tallymark.server.nsq.client import NsqClient
from tallymark.server.access.users import Users

check, due = Users.check, AmqpClient._due

async def faulty_check(users, name, password, peer):
    if name == "bug":
        raise ZeroDivisionError("in the task that checks a log-in")
    return await check(users, name, password, peer)

async def faulty_query(authorities, *rest):
    raise ZeroDivisionError("in the task that asks an auth server")

def faulty_due(client):
    if client.has_entered:
        raise ZeroDivisionError("in a tick")
    due(client)

AmqpClient._due = NsqClient._due = faulty_due
Users.check, Authorities.query = faulty_check, faulty_query
"""
BY_NAME = {door.name: door for door in DOORS}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with BrokerProcess(
        tmp_path / "data", env={"PYTHONPATH": path}, auth_http_address="127.0.0.1:1"
    ) as running:
        yield running


def still_serves(broker: BrokerProcess) -> None:
    with pika.BlockingConnection(
        pika.ConnectionParameters(port=broker.amqp_port, heartbeat=0)
    ) as connection:
        connection.channel().queue_declare("q")


def test_a_fault_in_the_log_in_task(broker: BrokerProcess) -> None:
    where = pika.ConnectionParameters(
        port=broker.amqp_port, credentials=pika.PlainCredentials("bug", "x")
    )
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(where)
    client = Client10(BY_NAME["amqp-1.0"].connect(broker))
    with pytest.raises((ConnectionError, AssertionError)):
        client.login("bug", "x")
    raw = BY_NAME["nsq"].connect(broker)
    raw.sendall(MAGIC + auth(b"secret"))
    with raw, suppress(ConnectionResetError):
        until_closed(raw)
    assert broker.http("GET", "/api/overview", user="bug:x")[0] == 500
    assert broker.log().count("in the task that checks a log-in") >= 3
    still_serves(broker)


def wait_for_end(connection: pika.BlockingConnection) -> None:
    while True:
        connection.process_data_events(1)


def test_a_fault_in_a_heartbeats_tick(broker: BrokerProcess) -> None:
    where = pika.ConnectionParameters(port=broker.amqp_port, heartbeat=1)
    connection = pika.BlockingConnection(where)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        wait_for_end(connection)
    assert "in a tick" in broker.log()
    assert "connection.broken" in broker.log()
    still_serves(broker)


END_AS_IT_BEGINS = """
from tallymark.server.amqp import AmqpClient
from tallymark.server.nsq.client import NsqClient

begin = AmqpClient.begin

def begin_and_end(client, work):
    begin(client, work)
    client.bridge.shutdown("ended as its task begins")
    client.touch()

AmqpClient.begin = NsqClient.begin = begin_and_end
"""


def test_a_connection_that_ends_as_its_log_in_begins(tmp_path: Path) -> None:
    """As by garbage behind the password, in a read of its own: that is no fault of ours."""
    (tmp_path / "sitecustomize.py").write_text(END_AS_IT_BEGINS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with BrokerProcess(
        tmp_path / "data", env={"PYTHONPATH": path}, auth_http_address="127.0.0.1:1",
        handshake_timeout_ms="300",
    ) as broker:  # fmt: skip
        start_ok = ConnectionStartOk({"capabilities": {}}, "PLAIN", b"\0guest\0guest")
        with BY_NAME["amqp-0-9-1"].connect(broker) as raw:
            raw.sendall(PROTOCOL_HEADER + method_frame(0, start_ok))
            while b"\0\x0a\0\x32" not in raw.recv(65536):  # connection.close
                pass
        with suppress(ConnectionError, AssertionError):
            BY_NAME["amqp-1.0"].opened(broker).close()
        client = Client10(BY_NAME["amqp-1.0"].connect(broker))
        with client, suppress(ConnectionError, AssertionError):
            client.mechanisms()
            client.authenticate("SCRAM-SHA-256", b"n,,n=guest,r=nonce")
        raw = BY_NAME["nsq"].connect(broker)
        raw.sendall(MAGIC + auth(b"secret"))
        with raw, suppress(ConnectionResetError):
            until_closed(raw)
        assert broker.http("GET", "/healthz", user=None)[0] == 200
        assert "connection.broken" not in broker.log()


BROKEN_OFF = [
    b"GARBAGE\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nabc",
    b"PUT /api/queues/%%2F/q HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n"
    b"Content-Length: 50\r\n\r\n{" % GUEST,
    b"PUT /api/queues/%%2F/q HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nno length\r\n" % GUEST,
]


def test_requests_that_clients_break_off_are_no_faults(tmp_path: Path) -> None:
    """Each took some 40 lines of the log, which are not in its form."""
    with BrokerProcess(tmp_path / "data") as broker:
        for door in HTTP_DOORS:
            for sent in BROKEN_OFF:
                with door.connect(broker) as raw:
                    raw.sendall(sent)
                    say_no_more(raw)
                    with suppress(ConnectionResetError):
                        until_closed(raw)
        assert broker.http("GET", "/healthz", user=None)[0] == 200
        assert broker.log().count("request.broken_off") >= 3
        for line in broker.log().splitlines():
            assert re.match(r"\S+Z \[", line), line
            assert "[error" not in line, line
