"""`tallymark serve` as a process: start, refusals, alarms, time-outs, the end."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pika
import pika.exceptions
import pytest

from bench.lean import Link
from tallymark.server import listening, run
from tallymark.server.access import users
from tallymark.server.access.user import Permission, make_user
from tallymark.server.config.settings import Config
from tests.server.counted import read_count
from tests.support import forked
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerDied, BrokerProcess

IN_USE = 3
JOURNAL_FAILED = 4
LOOKS_PER_S = 30
"""Housekeeping has some timers, none shorter than a tenth of a second."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", max_connections="5", heartbeat_s="0") as running:
        yield running


def connect(broker: BrokerProcess, user: str = "guest:guest") -> pika.BlockingConnection:
    name, _, password = user.partition(":")
    parameters = pika.ConnectionParameters(
        port=broker.amqp_port,
        credentials=pika.PlainCredentials(name, password),
        blocked_connection_timeout=PATIENCE_S,
    )
    return pika.BlockingConnection(parameters)


def closed_by_peer(connection: socket.socket, seconds: float = PATIENCE_S) -> bool:
    """Read until the other side closes."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[BrokerProcess]:
    """With an interpreter of its own from the first import on."""
    with BrokerProcess(tmp_path / "data", is_forked=False) as running:
        yield running


def test_the_ready_line_says_where_it_listens(fresh: BrokerProcess) -> None:
    broker = fresh
    assert broker.ready["ready"] is True
    assert broker.ready["pid"] == broker.pid
    for name in ("amqp", "http"):
        host, port = broker.ready[name]
        assert host == "127.0.0.1"
        socket.create_connection((host, port)).close()


def test_messages_and_settlements_survive_a_clean_stop(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for i in range(10):
        channel.basic_publish("", "q", b"%d" % i, pika.BasicProperties(delivery_mode=2))
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    connection.close()
    assert broker.stop() == 0
    broker.restart()
    connection = connect(broker)
    channel = connection.channel()
    found = [channel.basic_get("q", auto_ack=True) for _ in range(10)]
    assert [body for _, _, body in found] == [b"%d" % i for i in range(1, 10)] + [None]
    assert not any(method.redelivered for method, _, _ in found[:9])
    connection.close()


def test_a_stop_closes_connections_with_320(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.basic_consume("q", lambda *_: None)
    assert broker.stop() == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        channel.start_consuming()
    assert closed.value.reply_code == 320


def test_a_second_broker_on_the_same_folder_is_refused(broker: BrokerProcess) -> None:
    second = forked.run(*broker.arguments())
    assert second.returncode == IN_USE
    assert f"in use by process {broker.pid}" in second.stderr
    assert second.stdout == ""
    connect(broker).close()


@pytest.mark.parametrize("name", ["amqp", "http"])
def test_a_taken_port_is_told_and_nothing_is_left_behind(
    broker: BrokerProcess, tmp_path: Path, name: str
) -> None:
    port = broker.ready[name][1]
    other = BrokerProcess(tmp_path / "other", **{f"{name}_port": str(port)})
    told = f"port {port} on 127.0.0.1 is in use: choose another with --{name}-port"
    with pytest.raises(BrokerDied, match=rf"^exit code 1: tallymark: {told}\n$"):
        other.start()
    assert not (tmp_path / "other").exists()


def test_the_same_broker_twice_is_told_as_that(broker: BrokerProcess) -> None:
    second = forked.run(*broker.arguments(), "--amqp-port", str(broker.amqp_port))
    assert second.returncode == IN_USE
    assert f"in use by process {broker.pid}" in second.stderr


def test_one_port_for_both_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerDied, match=r"exit code 2: .*amqp_port and http_port are both 5999"):
        BrokerProcess(tmp_path / "data", amqp_port="5999", http_port="5999").start()


def test_a_data_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerDied, match=r"exit code 1: tallymark: data folder .* is not a folder"):
        BrokerProcess(tmp_path / "file").start()
    done = forked.run(*BrokerProcess(tmp_path / "x").arguments(), "--data-dir", "/proc/zz")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "data folder /proc/zz cannot be made: " in done.stderr


def test_who_vanishes_who_is_refused_and_checkpoints_are_logged(broker: BrokerProcess) -> None:
    link = Link(broker.amqp_port)
    link.socket.close()
    until(lambda: not broker.http("GET", "/api/tallymark/connections")[1]["connections"])
    broker.http("GET", "/api/tallymark/status", user="guest:wrong")
    broker.http("POST", "/api/tallymark/ledger/checkpoint")
    assert broker.stop() == 0
    lines = broker.log().splitlines()
    (lost,) = (line for line in lines if "connection.lost" in line)
    assert "reason='peer vanished'" in lost
    (refused,) = (line for line in lines if "request.refused" in line)
    assert "peer=127.0.0.1" in refused
    begun = {line.split("position=")[1] for line in lines if "checkpoint.begun" in line}
    done = {line.split("position=")[1] for line in lines if "checkpoint.done" in line}
    assert begun == done
    assert begun


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1,::"])
def test_other_than_loopback_is_refused_while_there_are_no_users(tmp_path: Path, host: str) -> None:
    with pytest.raises(BrokerDied, match=r"exit code 2: .*expected a loopback address"):
        BrokerProcess(tmp_path / "data", host=host).start()


def test_users_open_other_addresses_and_replace_guest(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    users.save(folder, {"ann": make_user("ann", "secret", False, {"/": Permission()})})
    with BrokerProcess(folder, host="0.0.0.0") as broker:
        connect(broker, "ann:secret").close()
        for wrong in ("guest:guest", "ann:Secret", "nobody:x"):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(broker, wrong)
        assert broker.http("GET", "/api/tallymark/overview", user="ann:secret")[0] == 200
        assert broker.http("GET", "/api/tallymark/overview", user="guest:guest")[0] == 401


def test_permissions_hold_on_every_side(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    mine = Permission(configure="^my-", write="^my-|^amq.default$", read="^my-")
    users.save(
        folder,
        {
            "ann": make_user("ann", "secret", False, {"/": mine}),
            "root": make_user("root", "secret", True, {"*": Permission()}),
        },
    )
    with BrokerProcess(folder, vhosts="/,other") as broker:
        connection = connect(broker, "root:secret")
        connection.channel().queue_declare("theirs", durable=True)
        connection.close()
        connection = connect(broker, "ann:secret")
        connection.channel().queue_declare("my-queue", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            connection.channel().queue_declare("other-queue")
        assert refused.value.reply_code == 403
        connection.close()
        for path, status in (("my-queue", 200), ("theirs", 403)):
            attach = f"/api/tallymark/subscriptions/%2F/{path}/s/attach"
            assert broker.http("POST", attach, {}, user="ann:secret")[0] == status
        other = "/api/tallymark/subscriptions/other/q/s/attach"
        assert broker.http("POST", other, {}, user="ann:secret")[0] == 403
        for call in (
            ("PUT", "/api/tallymark/log-levels", {}),
            ("POST", "/api/tallymark/ledger/checkpoint", {}),
        ):
            assert broker.http(*call, user="ann:secret")[0] == 403
        assert broker.http("GET", "/api/tallymark/connections", user="ann:secret")[0] == 403


def test_one_connection_too_many_is_closed(broker: BrokerProcess) -> None:
    held = [socket.create_connection(("127.0.0.1", broker.amqp_port)) for _ in range(5)]
    for one in held:  # each has been accepted once it answers
        one.sendall(b"AMQP\0\0\x09\x01")
        assert one.recv(1)
    with socket.create_connection(("127.0.0.1", broker.amqp_port)) as surplus:
        assert closed_by_peer(surplus)
    for one in held:
        one.close()
    connect(broker).close()


def test_a_client_that_does_not_finish_its_handshake_is_closed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", handshake_timeout_ms="300") as broker,
        socket.create_connection(("127.0.0.1", broker.amqp_port)) as silent,
        socket.create_connection(("127.0.0.1", broker.amqp_port)) as slow,
    ):
        slow.sendall(b"AMQP\0\0\x09\x01")
        assert closed_by_peer(silent)
        assert closed_by_peer(slow)


def test_an_unknown_protocol_gets_our_header(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.amqp_port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        connection.settimeout(PATIENCE_S)
        assert connection.recv(100) == b"AMQP\0\0\x09\x01"
        assert closed_by_peer(connection)


def test_it_listens_on_several_addresses(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", host="127.0.0.1,::1") as broker:
        for host, port in broker.ready["listeners"]["amqp"]:
            parameters = pika.ConnectionParameters(host, port)
            pika.BlockingConnection(parameters).close()
        assert {host for host, _ in broker.ready["listeners"]["amqp"]} == {"127.0.0.1", "::1"}


def test_by_default_it_listens_on_the_loopback_of_both_families(tmp_path: Path) -> None:
    """Clients of localhost try either first; a free port is the same one for both."""
    with BrokerProcess(tmp_path / "data", nsq="true") as broker:
        listeners = broker.ready["listeners"]
        assert set(listeners) == {"amqp", "http", "nsq", "nsq_http"}
        for name, addresses in listeners.items():
            assert [host for host, _ in addresses] == ["127.0.0.1", "::1"], name
            assert len({port for _, port in addresses}) == 1, name
        parameters = pika.ConnectionParameters("::1", broker.amqp_port)
        pika.BlockingConnection(parameters).close()
        with urllib.request.urlopen(f"http://[::1]:{broker.nsq_http_port}/ping") as answer:
            assert answer.read() == b"OK"


def test_localhost_is_the_families_that_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "2001:db8::1"  # documentation only [RFC 3849]: no machine has it
    families = ((socket.AF_INET, ("127.0.0.1",)), (socket.AF_INET6, (nowhere,)))
    monkeypatch.setattr(listening, "LOOPBACKS", families)
    with contextlib.ExitStack() as held:
        config = Config(data_dir=tmp_path, amqp_port=0, http_port=0)
        bound = listening.Bound(config, run.Certificates(config), held)
        assert [one.getsockname()[0] for one in bound.amqp] == ["127.0.0.1"]
        with pytest.raises(listening.CannotServe, match=nowhere):
            listening.Bound(replace(config, host=(nowhere,)), run.Certificates(config), held)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux names congestion controls")
def test_http_on_this_machine_is_not_paced(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held:
        config = Config(data_dir=tmp_path, amqp_port=0, http_port=0)
        [bound, *_] = listening.Bound(config, run.Certificates(config), held).http
        bound.listen()
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            used = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert used.rstrip(b"\0") == b"reno"


def test_memory_stays_within_its_budget_under_a_backlog(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", max_memory="16MiB") as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        body = b"x" * 1_000_000
        for _ in range(60):
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        _, status = broker.http("GET", "/api/tallymark/status")
        assert status["memory"]["bodies_bytes"] <= 17 << 20
        for _ in range(60):
            assert channel.basic_get("q", auto_ack=True)[2] == body
        connection.close()


def test_publishers_are_blocked_while_the_disk_is_low_and_consumers_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with BrokerProcess(folder) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
        connection.close()
    with BrokerProcess(folder, disk_free_limit="1000TiB") as broker:
        publisher, consumer = connect(broker), connect(broker)
        told: list[str] = []
        publisher.add_on_connection_blocked_callback(
            lambda _, frame: told.append(frame.method.reason)
        )
        channel = publisher.channel()
        channel.basic_publish("", "q", b"x" * 100)
        until(lambda: told, lambda: publisher.process_data_events(0.1))
        assert told == ["low on disk"]
        assert broker.http("GET", "/healthz", user=None)[1]["alarms"] == ["disk"]
        assert consumer.channel().basic_get("q", auto_ack=True)[2] == b"kept"
        consumer.close()


def test_a_failed_write_ends_the_broker_and_confirms_nothing_more(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", segment_size="1MiB") as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
        # From now on a file past 4 MiB is refused by the system, as by a disk that fails.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
        with pytest.raises(pika.exceptions.AMQPError):
            channel.basic_publish("", "q", b"x" * (8 << 20), pika.BasicProperties(delivery_mode=2))
        assert broker.wait() == JOURNAL_FAILED
        assert "the broker failed and stops" in broker.log()
        broker.restart()
        row = broker.queues()["q"]
        assert (row["entered"], row["ready"]) == (1, 1)


def test_a_broker_in_use_keeps_its_folder_small_and_its_totals(tmp_path: Path) -> None:
    flags = {"segment_size": "1MiB", "checkpoint_every": "2MiB", "ledger_retention": "0"}
    with BrokerProcess(tmp_path / "data", **flags) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        keep = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "q", b"oldest", keep)
        first = channel.basic_get("q")[0]
        for _ in range(300):
            channel.basic_publish("", "q", b"x" * 100_000, keep)
            channel.basic_get("q", auto_ack=True)

        def one_more() -> None:
            channel.basic_publish("", "q", b"x", keep)
            channel.basic_get("q", auto_ack=True)

        until(lambda: folder_bytes(broker) <= 12 << 20, one_more)
        channel.basic_nack(first.delivery_tag)
        channel.basic_publish("", "q", b"last", keep)  # its confirm covers the settlements too
        connection.close()
        before = broker.queues()["q"]
        broker.kill()
        broker.restart()
        after = broker.queues()["q"]
        assert [after[name] for name in ("entered", "settled", "ready")] == [
            before[name] for name in ("entered", "settled", "ready")
        ]
        connection = connect(broker)
        method, _, body = connection.channel().basic_get("q")
        assert (body, method.redelivered) == (b"oldest", True)
        connection.close()


def folder_bytes(broker: BrokerProcess) -> int:
    size = 0
    for file in broker.data_dir.iterdir():
        with contextlib.suppress(FileNotFoundError):  # cleaned away meanwhile
            size += file.stat().st_size
    return size


class Counted(BrokerProcess):
    """One that counts how often its loop looks for work."""

    @property
    def count_file(self) -> Path:
        return self.data_dir.with_suffix(".count")

    def command(self) -> list[str]:
        python, _, _, *rest = super().command()
        return [python, "-m", "tests.server.counted", str(self.count_file), *rest]


def test_an_idle_broker_looks_for_work_now_and_then(tmp_path: Path) -> None:
    with Counted(tmp_path / "data", heartbeat_s="0") as broker:
        connection = connect(broker)
        channel = connection.channel()
        for i in range(50):
            channel.queue_declare(f"q{i}", durable=True)
        broker.http("GET", "/api/tallymark/queues")
        began, before = time.monotonic(), read_count(broker.count_file)
        connection.process_data_events(2)
        looks, seconds = read_count(broker.count_file) - before, time.monotonic() - began
        assert before > 0
        assert looks / seconds < LOOKS_PER_S
        connection.close()


def test_a_broker_loads_nothing_that_only_spark_needs(fresh: BrokerProcess) -> None:
    """It would take a start longer than all the rest of it."""
    loaded = Path(f"/proc/{fresh.pid}/maps").read_text()
    assert "libpython" in loaded or "bin/python" in loaded
    assert not [name for name in ("numpy", "pyarrow", "pandas") if f"/{name}/" in loaded]


def test_logs_are_json_lines_where_asked_and_levels_change_while_it_runs(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", log_format="json", log_level="warning") as broker:
        connect(broker).close()
        assert broker.log() == ""
        assert (
            broker.http("PUT", "/api/tallymark/log-levels", {"amqp": "debug"})[1]["amqp"] == "debug"
        )
        connect(broker).close()
        broker.http("GET", "/api/tallymark/overview")  # answered by the loop after it saw the close
        lines = [json.loads(line) for line in broker.log().splitlines()]
        assert {line["category"] for line in lines} == {"amqp", "audit"}
        assert "connection.closed" in {line["event"] for line in lines}
        status, answer = broker.http("PUT", "/api/tallymark/log-levels", {"amqqp": "debug"})
        assert (status, answer["reason"]) == (400, "unknown 'amqqp'; did you mean 'amqp'?")


def test_a_direct_start_of_the_module_says_what_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tallymark", "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.startswith("tallymark ")
    assert done.stdout.rstrip().endswith(("(compiled)", "(pure)"))


def test_a_broker_lets_the_journals_writer_run_soon(tmp_path: Path) -> None:
    """With Python's own 5 ms each confirm of a busy broker waits for 15 ms and more."""
    before = sys.getswitchinterval()
    file = tmp_path / "file"
    file.write_text("")
    try:
        assert run.run(Config(data_dir=file)) == run.FAILED
        assert sys.getswitchinterval() <= run.SWITCH_S
    finally:
        sys.setswitchinterval(before)
