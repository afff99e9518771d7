"""Clients as they come find the next leader by a list of hosts of their own: a publisher and a
consumer are at work when the leader is killed, and both go on; every confirmed message arrives.

The lease lasts longer than the tests: `tallymark takeover` has the standby lead at once, so that
nothing here waits for a clock. The programs are in tests/cluster/clients.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.brokers import Broker, Brokers
from tests.cluster.haproxy import MISSING as NO_HAPROXY
from tests.cluster.haproxy import Haproxy, find_haproxy
from tests.cluster.lookup import Lookup
from tests.cluster.programs import ROOT, Program, python
from tests.support import forked
from tests.support.long import long
from tests.support.node_modules import environment_with
from tests.support.patience import PATIENCE_S, until
from tests.support.ports import reserved
from tests.support.postgresql import MISSING, Cluster, find_postgresql

pytestmark = [
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
    long(ci=False),  # PostgreSQL, two brokers, two processes each: 60 s of CPU
]
SOME: Final = 30
"""Messages before the leader is killed, and again after."""
GO: Final = ROOT / "tests" / "cluster" / "clients" / "go_amqp_client.go"


@pytest.fixture(scope="module")
def lookup() -> Iterator[Lookup]:
    with Lookup() as made:
        yield made


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, lookup: Lookup) -> Iterator[Brokers]:
    flags = {"lease": "10m", "lookupd": lookup.tcp_address}
    flags["nsq_broadcast_address"] = "127.0.0.1"
    with (
        Cluster() as servers,
        Brokers(tmp_path_factory.mktemp("brokers"), servers, 0, **flags) as made,
    ):
        for _ in range(2):
            made.add(nsq_port=str(reserved()), nsq_http_port="0").start()
        yield made


def ports_of(brokers: Brokers, kind: str = "amqp_port") -> list[int]:
    return [int(one.flags[kind]) for one in brokers.all]


def kill_leader(brokers: Brokers) -> Broker:
    """Kill the leader and have the other one lead; return that one."""
    leader = brokers.leader()
    standby = next(one for one in brokers.all if one is not leader)
    leader.kill()
    done = forked.run("takeover", "--journal", standby.journal)
    assert done.returncode == 0, done.stderr
    return brokers.leader(leader)


def go_on_without_their_leader(
    brokers: Brokers, command: list[str], ports: list[int], name: str, folder: Path,
    env: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Kill the leader under a publisher and a consumer."""
    brokers.start_again()
    queue = f"found-by-{name}"
    brokers.leader().http("PUT", f"/api/queues/%2F/{queue}", {"durable": True})
    consumer = Program(command, "consume", ports, queue, folder / "consumer.log", env or {})
    publisher = Program(command, "publish", ports, queue, folder / "publisher.log", env or {})
    with consumer, publisher:
        until(lambda: publisher.has_told(SOME) and consumer.has_told(SOME), what=consumer.log)
        kill_leader(brokers)
        before, seen = len(publisher.told), len(consumer.told)
        until(lambda: publisher.has_told(before + SOME), what=publisher.log)
        until(lambda: consumer.has_told(seen + SOME), what=consumer.log)
        publisher.end()
        until(lambda: publisher.told <= consumer.told, what=consumer.log)
    confirmed, again = len(publisher.told), consumer.again
    print(f"{name}: {confirmed} confirmed, all arrived, {again} more than once")


@pytest.mark.parametrize("name", ["pika", "aio_pika", "celery", "proton", "tallymark"])
def test_a_client_with_a_list(brokers: Brokers, tmp_path: Path, name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    go_on_without_their_leader(brokers, python(name), ports_of(brokers), name, tmp_path)


def test_tallymarks_client_over_amqp_0_9_1(brokers: Brokers, tmp_path: Path) -> None:
    env = {"CLIENT_SCHEME": "amqp091"}
    command = python("tallymark")
    go_on_without_their_leader(brokers, command, ports_of(brokers), "tallymark-091", tmp_path, env)


def test_rhea(brokers: Brokers, tmp_path: Path) -> None:
    env = environment_with("rhea")
    command = ["node", str(ROOT / "tests" / "cluster" / "clients" / "rhea_client.js")]
    go_on_without_their_leader(brokers, command, ports_of(brokers), "rhea", tmp_path, env)


def test_go_amqp(brokers: Brokers, tmp_path: Path) -> None:
    if (go := shutil.which("go")) is None:
        pytest.skip("go is not here")
    program = str(tmp_path / "client")
    build = subprocess.run(
        [go, "build", "-o", program, str(GO)], capture_output=True, text=True,
        timeout=PATIENCE_S, check=False, env={**os.environ, "GO111MODULE": "off"},
    )  # fmt: skip
    if "cannot find package" in build.stderr:
        pytest.skip("github.com/Azure/go-amqp is not in GOPATH")
    assert build.returncode == 0, build.stderr
    go_on_without_their_leader(brokers, [program], ports_of(brokers), "go-amqp", tmp_path)


def test_pynsq_asks_nsqlookupd(brokers: Brokers, lookup: Lookup, tmp_path: Path) -> None:
    if find_spec("nsq") is None:
        pytest.skip("pynsq is not installed")
    env = {"NSQLOOKUPD": lookup.http_address}
    ports = ports_of(brokers, "nsq_port")
    go_on_without_their_leader(brokers, python("pynsq"), ports, "pynsq", tmp_path, env)


@pytest.mark.parametrize("name", ["pika", "aio_pika"])
def test_one_name_for_all_by_haproxy(brokers: Brokers, tmp_path: Path, name: str) -> None:
    if (program := find_haproxy()) is None:
        pytest.skip(NO_HAPROXY)
    with Haproxy(program, tmp_path, brokers.all) as haproxy:
        go_on_without_their_leader(
            brokers, python(name), [haproxy.port], f"{name}-by-haproxy", tmp_path
        )
