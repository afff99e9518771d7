"""Short connections of every protocol, each of which does a little work: as a program of its own,
so that what a broker in the test's process keeps of them can be counted.

    python -m tests.server.churn COUNT DOOR... --ports '{"amqp": 5672, ...}'
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lean import method, publish, short
from tallymark.wire.amqp10.outcomes import Accepted
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.nsq.commands import fin, pub, rdy, sub
from tallymark.wire.nsq.frames import ERROR
from tests.server.lines import DOORS, until_closed
from tests.server.nsqd import Client as NsqClient
from tests.support.amqp10_socket import Client as Client10

ROOT = Path(__file__).parents[2]
BY_NAME = {door.name: door for door in DOORS}


def amqp091(ports: Any) -> None:
    """Declare, publish with a confirm, consume, get; then close, or vanish."""
    with BY_NAME["amqp-0-9-1"].opened(ports) as raw:
        raw.sendall(
            method(1, (20, 10), b"\0") + method(1, (85, 10), b"\0")
            + method(1, (50, 10), b"\0\0" + short("churn") + b"\x02\0\0\0\0")
            + publish(1, "", "churn", b"\0\0", b"x" * 100)
            + publish(1, "", "churn", b"\0\0", b"y" * 100)
            + method(1, (60, 70), b"\0\0" + short("churn") + b"\x01")
            + method(1, (60, 20), b"\0\0" + short("churn") + short("") + b"\x02\0\0\0\0")
        )  # fmt: skip
        wait_for(raw, b"y" * 100)
        raw.sendall(method(0, (10, 50), b"\0\xc8" + short("bye") + b"\0\0\0\0"))
        until_closed(raw)


def amqp10(ports: Any) -> None:
    raw = BY_NAME["amqp-1.0"].connect(ports)
    with Client10(raw) as client:
        client.login()
        session = client.session()
        sender = client.sender(session, "/queues/churn")
        receiver = client.receiver(session, "/queues/churn")
        receiver.flow(1)
        while not sender.credit:
            client.work()
        sender.send(encode_message(body=b"x"))
        client.work()
        client.dispose(session, 0, Accepted(), True)
        client.wire.close()
        raw.sendall(b"".join(client.wire.take_output(0)))
        until_closed(raw)


def nsq(ports: Any) -> None:
    with NsqClient(ports.nsq_port, client_id="churn") as client:
        client.ok(pub("churn", b"z" * 100))
        client.ok(sub("churn", "c"))
        client.send(rdy(1))
        client.send(fin(client.message()[0]))
        client.send(b"NONSENSE\n")
        while client.next()[0] != ERROR:
            pass  # what others left in the channel


def nsq_http(ports: Any) -> None:
    with BY_NAME["nsq-http"].opened(ports) as raw:
        raw.sendall(
            b"POST /topic/create?topic=churn HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
            b"Connection: close\r\n\r\nx"
        )
        until_closed(raw)


def management(ports: Any) -> None:
    with BY_NAME["management"].opened(ports):
        pass


def vanishing(ports: Any) -> None:
    """One of each that is gone in the middle."""
    for door in DOORS:
        with door.opened(ports):
            pass


WORK: dict[str, Callable[[Any], None]] = {
    "amqp-0-9-1": amqp091,
    "amqp-1.0": amqp10,
    "nsq": nsq,
    "nsq-http": nsq_http,
    "management": management,
    "vanishing": vanishing,
}


def wait_for(raw: socket.socket, word: bytes) -> None:
    seen = b""
    while word not in seen:
        data = raw.recv(65536)
        assert data, seen
        seen += data


def run(count: int, names: list[str], ports: dict[str, int]) -> None:
    """So many of each, in a process of its own."""
    command = [sys.executable, "-m", "tests.server.churn", str(count), json.dumps(ports), *names]
    subprocess.run(command, check=True, cwd=ROOT)


def main() -> None:
    count, ports, names = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    where = SimpleNamespace(**ports)
    for _ in range(count):
        for name in names:
            WORK[name](where)


if __name__ == "__main__":
    main()
