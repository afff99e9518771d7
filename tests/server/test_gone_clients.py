"""A client that is gone is gone from memory, without the help of the collector of cycles.

With 70,000 objects between two collections, cycles of short connections came to hundreds of MiB.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tallymark.server import run
from tallymark.wire.amqp091.frames import PROTOCOL_HEADER
from tallymark.wire.amqp091.methods import ConnectionStartOk
from tallymark.wire.amqp10.frames import SASL_HEADER, sasl_frame
from tallymark.wire.amqp10.sasl import SaslInit, plain_response
from tallymark.wire.nsq.commands import MAGIC, auth, identify
from tests.server import churn, lines
from tests.server.churn import WORK
from tests.server.inside import with_broker
from tests.server.peers import open_files
from tests.support import forked
from tests.support.amqp091 import method_frame
from tests.support.long import ALL, MODE, longer, sized
from tests.support.patience import until
from tests.support.process import BrokerProcess

COUNT = 20
SHORT = sized(300, 1000, 100_000)
"""Connections per protocol; a tenth of them comes before memory is looked at."""
MIB_PER_CONNECTION = 4 / 1024


def living() -> Counter[str]:
    """How many objects there are of each of our types, and of aiohttp's."""
    return Counter(
        f"{type(one).__module__}.{type(one).__qualname__}"
        for one in gc.get_objects()
        if str(type(one).__module__).startswith(("tallymark.", "aiohttp."))
    )


@pytest.mark.parametrize("name", list(WORK))
def test_nothing_of_a_client_stays_and_no_cycle_keeps_it(tmp_path: Path, name: str) -> None:
    stays: Counter[str] = Counter()
    (tmp_path / "data").mkdir()

    async def play(ports: dict[str, int], node: run.Node) -> None:
        async def connect(count: int) -> None:
            await asyncio.to_thread(churn.run, count, [name], ports)
            await asyncio.to_thread(until, lambda: not node.clients and not len(node.doors))
            for _ in range(5):
                await node.durable()

        await connect(5)  # whatever is made once is made now
        gc.collect()
        gc.disable()
        try:
            before = living()
            await connect(COUNT)
            stays.update(
                {
                    kind: n
                    for kind, n in (living() - before).items()
                    if n >= COUNT // 2 and "deadlines" not in kind
                }
            )
        finally:
            gc.enable()
        assert len(node.clients.deadlines) < 100

    with asyncio.Runner(loop_factory=run._loop_factory()) as runner:
        runner.run(with_broker(tmp_path / "data", play))
    assert not stays


@longer
@pytest.mark.timeout(sized(1500, 1500, 14_400))
def test_memory_after_many_short_connections_is_what_it_was_after_some(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", sync="interval", auto_create_queues="^churn$") as broker:
        ports = {
            "amqp_port": broker.amqp_port, "http_port": broker.http_port,
            "nsq_port": broker.nsq_port, "nsq_http_port": broker.nsq_http_port,
        }  # fmt: skip
        names = [name for name in WORK if name != "vanishing"]
        churn.run(SHORT // 10, names, ports)
        before = lines.memory_mib(broker)
        churn.run(SHORT - SHORT // 10, names, ports)
        grown = lines.memory_mib(broker) - before
        assert grown < max(before * 0.1, 0 if MODE == ALL else SHORT * 5 * MIB_PER_CONNECTION)
        until(lambda: open_files(broker) < 60)


NEVER_CHECKED = """
import asyncio
from tallymark.server.access.users import Users

async def never(users, *rest):
    await asyncio.Event().wait()

Users.check = never
"""


def test_who_goes_while_a_password_waits_to_be_checked_is_let_go(tmp_path: Path) -> None:
    """Behind others with wrong passwords that is a minute and more, in every protocol: a place of
    max_connections each that costs the other side nothing."""
    (tmp_path / "sitecustomize.py").write_text(NEVER_CHECKED)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    data = tmp_path / "data"
    provided = ("user", "add", "guest", "--password", "guest", "--administrator")
    assert forked.run(*provided, "--data-dir", str(data)).returncode == 0
    with BrokerProcess(data, env={"PYTHONPATH": path}, handshake_timeout_ms="600000") as broker:
        sockets = process_files(broker)
        start_ok = ConnectionStartOk({"capabilities": {}}, "PLAIN", b"\0guest\0guest")
        said = {
            "amqp-0-9-1": PROTOCOL_HEADER + method_frame(0, start_ok),
            "amqp-1.0": SASL_HEADER
            + sasl_frame(SaslInit("PLAIN", plain_response("guest", "guest")).encode()),
            "nsq": MAGIC + identify(b'{"heartbeat_interval": -1}') + auth(b"guest:guest"),
            "management": b"GET /api/overview HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n"
            b"\r\n" % lines.GUEST,
            "nsq-http": b"GET /stats HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n\r\n"
            % lines.GUEST,
        }
        held = []
        for door in lines.DOORS:
            raw = door.connect(broker)
            raw.sendall(said[door.name])
            held.append(raw)
        until(lambda: process_files(broker) == sockets + len(held))
        for raw in held:
            while select.select([raw], [], [], 0)[0]:  # what is unread would be a reset
                raw.recv(65536)
            raw.close()
        until(lambda: process_files(broker) == sockets)


def process_files(broker: BrokerProcess) -> int:
    """Sockets that the broker has open."""
    count = 0
    for one in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            count += os.readlink(one).startswith("socket:")
    return count


BROKEN = {
    "header": b"GET /ping HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (256 << 10),
    "body": b"PUT /api/queues/%%2F/q HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n"
    b"Content-Length: 1000000\r\n\r\n%s" % (lines.GUEST, b" " * 900_000),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
@pytest.mark.parametrize("door", lines.HTTP_DOORS, ids=[door.name for door in lines.HTTP_DOORS])
def test_what_was_read_of_broken_requests_is_let_go(
    tmp_path: Path, door: lines.Door, broken: bytes
) -> None:
    """Exceptions and what they are about held each other until the collector came."""
    with BrokerProcess(tmp_path / "data") as broker:
        before = lines.memory_mib(broker)
        for _ in range(300):
            with door.connect(broker) as raw, suppress(ConnectionError):
                raw.sendall(broken)
                lines.say_no_more(raw)
                lines.until_closed(raw)
        assert lines.memory_mib(broker) - before < 40
