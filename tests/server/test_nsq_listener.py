"""NSQ at the socket: last words, layers by hand, limits, alarms, a stop, a crash."""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tallymark.server.nsq.layers import Compression, compression
from tallymark.wire.nsq.frames import ERROR, MESSAGE, RESPONSE
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerDied, BrokerProcess

OK = (RESPONSE, b"OK")
MAX_TIMEOUT_MS = 900_000
Frame = tuple[int, bytes]


def pub(body: bytes, topic: str = "t") -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">I", len(body)) + body


class Nsq:
    """A client that knows nothing of the broker's code but its codecs."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=PATIENCE_S
        )
        self.socket.sendall(b"  V2")
        self._inner: Compression | None = None
        self._data = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data if self._inner is None else self._inner.encode(data))

    def identify(self, authority: Authority | None = None, **fields: Any) -> dict[str, Any]:
        """What is agreed on; the layers that follow from it are in place. authority: whose
        certificates are good."""
        raw = json.dumps({"feature_negotiation": True, **fields}).encode()
        self.send(b"IDENTIFY\n" + struct.pack(">I", len(raw)) + raw)
        kind, content = self.frame()
        assert kind == RESPONSE, content
        agreed: dict[str, Any] = json.loads(content)
        if agreed["tls_v1"]:
            assert authority is not None
            context = ssl.create_default_context(cafile=str(authority.own.cert))
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            assert self.frame() == OK
        for name in ("snappy", "deflate"):
            if agreed[name]:
                self._inner = compression(name, agreed["deflate_level"])
                early, self._data = self._data, b""
                self._decoded(early)
                assert self.frame() == OK
        return agreed

    def frame(self) -> Frame:
        """The next one that is no heartbeat. Raises EOFError."""
        while True:
            size = int.from_bytes(self._take(4), "big")
            raw = self._take(size)
            kind, content = int.from_bytes(raw[:4], "big"), raw[4:]
            if content == b"_heartbeat_":
                self.send(b"NOP\n")
                continue
            return kind, content

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            raw = self.socket.recv(65536)
            if not raw:
                raise EOFError
            self._decoded(raw)
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _decoded(self, raw: bytes) -> None:
        if self._inner is None:
            self._data += raw
            return
        self._inner.feed(raw)
        while piece := self._inner.read():
            self._data += piece

    def ask(self, data: bytes) -> Frame:
        self.send(data)
        return self.frame()

    def is_closed(self) -> bool:
        try:
            self.frame()
        except EOFError:
            return True
        return False


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> dict[str, str]:
    """The broker's, as its settings."""
    made = authority.sign("localhost")
    return {"nsq_tls_cert": str(made.cert), "nsq_tls_key": str(made.key)}


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificate: dict[str, str]
) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("nsq") / "data", **certificate) as running:
        yield running


@pytest.mark.parametrize("inner", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
def test_nq_6_layers_stack(
    broker: BrokerProcess, authority: Authority, tls: bool, inner: str
) -> None:
    topic = f"layers-{tls}-{inner}"
    asked = {"tls_v1": tls, **({inner: True} if inner else {})}
    client = Nsq(broker.nsq_port)
    agreed = client.identify(authority, **asked)
    assert agreed["tls_v1"] is tls
    assert (agreed["snappy"], agreed["deflate"]) == (inner == "snappy", inner == "deflate")
    bodies = [b"x" * 500_000, b"y", bytes(range(256)) * 100]
    for body in bodies:
        assert client.ask(pub(body, topic)) == OK
    client.send(f"SUB {topic} c\nRDY 3\n".encode())
    assert client.frame() == OK
    got = [client.frame() for _ in bodies]
    assert [(kind, content[26:]) for kind, content in got] == [(MESSAGE, body) for body in bodies]
    client.send(b"".join(b"FIN " + content[10:26] + b"\n" for _, content in got))
    kind, content = client.ask(b"FIN " + got[0][1][10:26] + b"\n")
    assert (kind, content[:12]) == (ERROR, b"E_FIN_FAILED")


def test_tls_that_is_no_tls_ends_the_connection(broker: BrokerProcess) -> None:
    client = Nsq(broker.nsq_port)
    raw = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
    client.send(b"IDENTIFY\n" + struct.pack(">I", len(raw)) + raw)
    client.frame()
    client.send(b"GET / HTTP/1.0\r\n\r\n")
    while client.socket.recv(4096):
        pass


@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_bytes_that_do_not_decode_end_the_connection(broker: BrokerProcess, name: str) -> None:
    client = Nsq(broker.nsq_port)
    client.identify(**{name: True})
    client.socket.sendall(b"\xff" * 100)
    assert client.is_closed()


def test_the_last_words_reach_a_client_that_goes_on_sending(broker: BrokerProcess) -> None:
    client = Nsq(broker.nsq_port)
    client.send(b"NONSENSE\n" + b"x" * 1_000_000)
    assert client.frame() == (ERROR, b"E_INVALID invalid command NONSENSE")
    assert client.is_closed()


def test_nq_1_another_protocol(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.nsq_port), timeout=PATIENCE_S) as other:
        other.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert other.recv(100) == struct.pack(">II", 18, 1) + b"E_BAD_PROTOCOL"


def test_pipelined_pubs_are_all_answered(broker: BrokerProcess) -> None:
    client = Nsq(broker.nsq_port)
    client.send(b"".join(pub(b"%d" % n, "pipelined") for n in range(5000)))
    assert [client.frame() for _ in range(5000)] == [OK] * 5000


@pytest.mark.parametrize("layer", ["", "snappy"])
def test_nq_1_who_says_no_more_is_still_answered(broker: BrokerProcess, layer: str) -> None:
    """As `printf ... | nc`: commands, and the end of what the client says."""
    client = Nsq(broker.nsq_port)
    client.identify(**({layer: True} if layer else {}))
    client.send(pub(b"1", "half") + pub(b"2", "half"))
    client.socket.shutdown(socket.SHUT_WR)
    assert [client.frame() for _ in range(2)] == [OK, OK]
    assert client.is_closed(), "it is closed when all is said"


def test_nq_7_a_subscriber_that_takes_nothing_is_dropped(broker: BrokerProcess) -> None:
    """Although it says NOP, so that its silence is not what ends it."""
    big = b"x" * 1_000_000
    stuck, other = Nsq(broker.nsq_port), Nsq(broker.nsq_port)
    stuck.identify(heartbeat_interval=1000)
    for client in (stuck, other):
        assert client.ask(b"SUB stuck c\n") == OK
    stuck.send(b"RDY 100\n")
    for _ in range(20):
        assert other.ask(pub(big, "stuck")) == OK
    other.send(b"RDY 100\n")
    other.socket.settimeout(0.2)
    attempts: set[bytes] = set()

    def read_or_say_nop() -> None:
        try:
            kind, content = other.frame()
        except TimeoutError:
            with suppress(ConnectionError):  # it has just been dropped
                stuck.send(b"NOP\n")
            return
        assert (kind, content[26:]) == (MESSAGE, big)
        attempts.add(content[8:10])

    until(lambda: b"\0\2" in attempts, read_or_say_nop, what="it is dropped")
    assert "took nothing for 1000 ms" in broker.log()


def test_nq_7_a_subscriber_that_takes_a_little_at_a_time_is_not_dropped(tmp_path: Path) -> None:
    size = 10_000_000
    with BrokerProcess(tmp_path / "data", nsq_max_msg_size="16MiB") as broker:
        slow, other = Nsq(broker.nsq_port), Nsq(broker.nsq_port)
        slow.identify(heartbeat_interval=1000)
        assert slow.ask(b"SUB slow c\nRDY 1\n") == OK
        assert other.ask(pub(b"x" * size, "slow")) == OK
        began = time.monotonic()
        taken = 0
        while taken < size:
            slow.send(b"NOP\n")
            if taken > (time.monotonic() - began) * 2_500_000:
                select.select([], [], [], 0.02)
                continue
            piece = slow.socket.recv(65_536)
            assert piece, f"dropped after {time.monotonic() - began:.1f} s and {taken} bytes"
            taken += len(piece)
        assert time.monotonic() - began > 3, "too fast to be slow"


def test_nq_d2_a_cut_connection_gives_its_messages_back_at_once(broker: BrokerProcess) -> None:
    gone, stays = Nsq(broker.nsq_port), Nsq(broker.nsq_port)
    gone.identify(msg_timeout=MAX_TIMEOUT_MS)  # so that it is not this that gives them back
    assert gone.ask(b"SUB cut c\n") == OK
    assert stays.ask(b"SUB cut c\n") == OK
    gone.send(b"RDY 1\n")
    assert stays.ask(pub(b"x", "cut")) == OK
    assert gone.frame()[0] == MESSAGE
    stays.send(b"RDY 1\n")
    gone.socket.close()
    kind, content = stays.frame()
    assert (kind, content[8:10], content[26:]) == (MESSAGE, b"\0\2", b"x")


def test_publishers_are_held_while_the_disk_is_full_and_do_not_count_as_dead(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data", disk_free_limit="1024TiB") as broker:
        client = Nsq(broker.nsq_port)
        client.identify(heartbeat_interval=1000)
        assert client.ask(pub(b"first")) == OK
        client.send(pub(b"held"))
        found = b""
        while found.count(b"_heartbeat_") < 4:  # more than two intervals without a word of ours
            raw = client.socket.recv(4096)
            assert raw, "it was taken for dead"
            found += raw
        assert b"OK" not in found


def test_tls_can_be_required(
    tmp_path: Path, authority: Authority, certificate: dict[str, str]
) -> None:
    with BrokerProcess(tmp_path / "data", nsq_tls_required="true", **certificate) as broker:
        plain = Nsq(broker.nsq_port)
        assert plain.ask(pub(b"x")) == (
            ERROR, b"E_INVALID cannot PUB in current state (TLS required)",
        )  # fmt: skip
        inside = Nsq(broker.nsq_port)
        assert inside.identify(authority, tls_v1=True)["tls_v1"] is True
        assert inside.ask(pub(b"x")) == OK


def test_a_start_without_what_tls_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerDied, match="nsq_tls_required without nsq_tls_cert"):
        BrokerProcess(tmp_path / "data", nsq_tls_required="true").start()


def test_no_nsq_no_listener(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", nsq="false") as broker:
        assert "nsq" not in broker.ready["listeners"]


def test_nq_a10_a_stop_keeps_everything_and_closes_clients(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    client, other = Nsq(broker.nsq_port), Nsq(broker.nsq_port)
    assert client.ask(b"SUB t c\n") == OK
    client.send(b"RDY 2\n")
    for n in range(3):
        assert other.ask(pub(b"%d" % n)) == OK
    assert other.ask(b"DPUB t 3600000\n" + struct.pack(">I", 5) + b"later") == OK
    held = [client.frame() for _ in range(2)]
    assert [kind for kind, _ in held] == [MESSAGE, MESSAGE]
    assert broker.stop() == 0
    assert client.is_closed()
    assert other.is_closed()
    with broker:
        client = Nsq(broker.nsq_port)
        assert client.ask(b"SUB t c\n") == OK
        client.send(b"RDY 5\n")
        got = [client.frame()[1] for _ in range(3)]
        assert sorted(content[26:] for content in got) == [b"0", b"1", b"2"]
        assert sorted(content[8:10] for content in got) == [b"\0\1", b"\0\2", b"\0\2"]
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.frame()


def test_an_ok_outlives_kill_9(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    client = Nsq(broker.nsq_port)
    client.send(b"".join(pub(b"%d" % n) for n in range(2000)))
    answered = 0
    while answered < 700:
        assert client.frame() == OK
        answered += 1
    broker.kill()
    with broker:
        client = Nsq(broker.nsq_port)
        assert client.ask(b"SUB t c\n") == OK
        client.send(b"RDY 2500\n")
        bodies = []
        for _ in range(answered):
            kind, content = client.frame()
            assert kind == MESSAGE
            bodies.append(content[26:])
        assert bodies == [b"%d" % n for n in range(answered)]


def test_nq_d11_an_acknowledged_fin_outlives_kill_9(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    client = Nsq(broker.nsq_port)
    assert client.identify(fin_ack=True)["fin_ack"] is True
    assert client.ask(b"SUB t c\n") == OK
    for n in range(20):
        assert client.ask(pub(b"%d" % n)) == OK
    client.send(b"RDY 20\n")
    got = [client.frame()[1] for _ in range(20)]
    client.send(b"".join(b"FIN " + content[10:26] + b"\n" for content in got[:10]))
    assert [client.frame() for _ in range(10)] == [OK] * 10
    broker.kill()
    with broker:
        client = Nsq(broker.nsq_port)
        assert client.ask(b"SUB t c\n") == OK
        client.send(b"RDY 20\n")
        again = [client.frame()[1][26:] for _ in range(10)]
        assert again == [b"%d" % n for n in range(10, 20)]
        assert broker.queues()["t:c"]["ready"] == 0
