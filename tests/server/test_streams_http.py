"""Streams at their HTTP interface, against a real broker: where, how far, and the messages."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from tallymark.bridge.names import PUBLISHER_NAME, PUBLISHING_ID
from tallymark.journal import unpacking
from tallymark.stored import layout
from tallymark.stored.records import DROPPED, LIVE, PAYLOAD
from tests.support.patience import PATIENCE_S, later, until
from tests.support.process import BrokerProcess

BASE = "/api/tallymark/streams/%2F/s"
STREAM = {"x-queue-type": "stream"}
GUEST = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", max_memory="16MiB", segment_size="4MiB") as running:
        yield running


def publish(
    broker: BrokerProcess,
    bodies: list[bytes],
    arguments: dict[str, object] | None = None,
    alone: bool = False,
    headers: list[dict[str, object]] | None = None,
) -> None:
    """alone: each message is a run of its own."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments={**STREAM, **(arguments or {})})
    for n, body in enumerate(bodies):
        said = pika.BasicProperties(
            expiration="100000" if alone else None, headers=headers[n] if headers else None
        )
        channel.basic_publish("", "s", body, said)
    channel.confirm_delivery()
    channel.basic_publish("", "amq.gen-nobody", b"")
    wait_for(broker, lambda stat: stat["next"] >= len(bodies))
    connection.close()


def wait_for(broker: BrokerProcess, holds: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def looked() -> bool:
        found.update(stat(broker))
        return bool(holds(found))

    until(looked, what=lambda: found)
    return found


def stat(broker: BrokerProcess) -> dict[str, Any]:
    status, found = broker.http("GET", BASE)
    assert status == 200, found
    return dict(found)


def refused(broker: BrokerProcess, method: str, path: str, body: object = None) -> tuple[int, str]:
    status, found = broker.http(method, BASE + path, body)
    assert status >= 400, found
    return status, found["error"]


class Reader:
    """One keep-alive connection."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=PATIENCE_S)

    def answer(self, low: int, high: int, **more: object) -> tuple[bytes, int]:
        """What is read, and the offset to go on from."""
        query = "".join(f"&{name}={value}" for name, value in more.items())
        self.http.request("GET", f"{BASE}/read?from={low}&to={high}{query}", headers=GUEST)
        with self.http.getresponse() as response:
            data = response.read()
            assert response.status == 200, data
            assert int(response.headers["Content-Length"]) == len(data)
            return data, int(response.headers["Tallymark-Next"])

    def bodies(self, low: int, high: int, **more: object) -> dict[int, bytes]:
        """By offset."""
        found: dict[int, bytes] = {}
        at = low
        while at < high:
            data, end = self.answer(at, high, **more)
            assert at < end <= high
            found |= messages_in(data, at, end)
            at = end
        return found


def messages_in(data: bytes, low: int, high: int) -> dict[int, bytes]:
    """Bodies by offset; the rows of the answer must cover low..high-1 without gap or overlap."""
    found = {}
    at = low + 1
    for record in unpacking.unpack(data):
        if record.kind == PAYLOAD:
            continue
        assert record.first == at, (record.kind, record.first, at)
        at += record.count
        if record.kind == DROPPED:
            continue
        assert record.kind == LIVE
        payload = record.payload
        assert payload is not None
        assert payload.raw is not None
        for i in range(record.count):
            cell = payload.raw[payload.cuts[record.lo + i] : payload.cuts[record.lo + i + 1]]
            found[record.first + i - 1] = body_of(cell)
    assert at == high + 1
    return found


def body_of(cell: bytes) -> bytes:
    """Of an AMQP 0-9-1 message: its body frames without their heads and ends."""
    at = 0
    body = b""
    while at < len(cell):
        size = int.from_bytes(cell[at + 3 : at + 7], "big")
        if cell[at] == 3:
            body += cell[at + 7 : at + 7 + size]
        at += 8 + size
    return body


def expected(bodies: list[bytes], low: int = 0) -> dict[int, bytes]:
    return dict(enumerate(bodies[low:], low))


def some(count: int, size: int = 100) -> list[bytes]:
    return [b"%06d" % n * (size // 6) for n in range(count)]


# -- messages


@pytest.mark.parametrize("size", [6, 1200, 40_000])
def test_what_was_published_is_read_in_ranges(broker: BrokerProcess, size: int) -> None:
    bodies = some(200, size)
    publish(broker, bodies)
    reader = Reader(broker)
    assert reader.bodies(0, 200) == expected(bodies)
    assert reader.bodies(17, 150) == dict(list(expected(bodies).items())[17:150])
    assert reader.bodies(0, 200, max_bytes=3 * size) == expected(bodies)
    assert reader.bodies(5, 6, max_bytes=1) == {5: bodies[5]}
    assert reader.answer(3, 3)[1] == 3


def test_messages_that_came_one_by_one_are_read_packed(broker: BrokerProcess) -> None:
    bodies = some(9000, 2400)
    publish(broker, bodies, alone=True)
    reader = Reader(broker)
    assert reader.bodies(0, 9000) == expected(bodies)
    assert reader.bodies(4321, 8765, max_bytes=100_000) == dict(
        list(expected(bodies).items())[4321:8765]
    )
    packed = columns = 0
    for record in unpacking.unpack(reader.answer(0, 9000)[0]):
        if record.kind == PAYLOAD:
            packed += record.count > 1
            columns += 1
    assert packed > 5, columns


def forget(broker: BrokerProcess) -> int:
    """Have the kernel let go of what it keeps of the journal's files. Returns how many of them are
    not in memory any more, by their last byte; none where the file system cannot tell."""
    gone = 0
    for path in sorted(broker.data_dir.rglob("0*.segment")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with suppress(OSError):
                try:
                    os.preadv(file.fileno(), [bytearray(1)], 3 << 20, os.RWF_NOWAIT)
                except BlockingIOError:
                    gone += 1
    return gone


def test_what_is_not_in_memory_is_read_from_the_disk(broker: BrokerProcess) -> None:
    bodies = some(12_000, 1200)
    publish(broker, bodies)
    reader = Reader(broker)
    gone = forget(broker)
    assert reader.bodies(0, 12_000, max_bytes=5_000_000) == expected(bodies)
    if not gone:
        pytest.skip("this file system keeps everything in memory")
    assert gone > 1


def test_readers_beside_each_other_and_beside_a_publisher(broker: BrokerProcess) -> None:
    bodies = some(3000, 1200)
    publish(broker, bodies)
    found: list[bool] = []

    def read() -> None:
        found.append(Reader(broker).bodies(0, 3000, max_bytes=500_000) == expected(bodies))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    publish(broker, some(500, 1200))
    for thread in threads:
        thread.join()
    assert found == [True] * 6


def test_a_reader_that_goes_away_in_the_middle_harms_nobody(broker: BrokerProcess) -> None:
    bodies = some(400, 50_000)
    publish(broker, bodies)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", broker.http_port)) as one:
            path = f"{BASE}/read?from=0&to=400&max_bytes=60000000"
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {GUEST['Authorization']}\r\n"
            one.sendall(head.encode() + b"\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert Reader(broker).bodies(0, 400) == expected(bodies)
    assert "Traceback" not in broker.log()


def test_a_restart_changes_no_offset(broker: BrokerProcess) -> None:
    bodies = some(300)
    publish(broker, bodies[:200])
    broker.kill()
    broker.restart()
    publish(broker, bodies[200:])
    assert stat(broker)["next"] == 300
    assert Reader(broker).bodies(0, 300) == expected(bodies)


def test_holes_of_what_was_passed_over_are_told(broker: BrokerProcess) -> None:
    ids = [1, 2, 2, 3, 1, 4]
    headers: list[dict[str, object]] = [{PUBLISHER_NAME: "p", PUBLISHING_ID: id} for id in ids]
    publish(broker, [b"%d" % n for n in range(6)], headers=headers)
    assert Reader(broker).bodies(0, 6) == {0: b"0", 1: b"1", 3: b"3", 5: b"5"}
    assert Reader(broker).bodies(2, 3) == {}
    assert broker.http("GET", f"{BASE}/publishers/p") == (200, {"name": "p", "number": 4})
    assert refused(broker, "GET", "/publishers/q") == (404, "not_found")
    assert broker.queues()["s"]["dropped"] == {"duplicate": 2}


# -- where, and how far


def test_where_readers_begin(broker: BrokerProcess) -> None:
    publish(broker, some(5))
    between = later()
    later()
    publish(broker, some(3))
    found = wait_for(broker, lambda stat: stat["next"] == 8)
    assert (found["first"], found["messages"], found["readers"]) == (0, 8, 0)
    assert found["oldest_ms"] < between < found["newest_ms"]

    def offset(query: str) -> int:
        status, answer = broker.http("GET", f"{BASE}/offset?{query}")
        assert (status, answer["id"]) == (200, found["id"]), answer
        return int(answer["offset"])

    assert offset("at=first") == offset("time=0") == offset("at=1h") == offset("at=0") == 0
    assert offset(f"time={between}") == 5
    assert offset("at=next") == offset(f"time={between + 3_600_000}") == offset("at=99") == 8
    assert offset("at=3") == 3
    for query in ("at=soon", "at=", "time=x", "at=-1"):
        assert refused(broker, "GET", f"/offset?{query}")[0] == 400


def test_how_far_a_batch_goes(broker: BrokerProcess) -> None:
    publish(broker, some(100, 1200))
    each = stat(broker)["bytes"] // 100

    def batch(query: str) -> tuple[int, int, int]:
        status, found = broker.http("GET", f"{BASE}/range?{query}")
        assert status == 200, found
        return found["to"], found["rows"], found["bytes"]

    assert batch("from=0") == (100, 100, 100 * each)
    assert batch("from=10&max_rows=7") == (17, 7, 7 * each)
    assert batch(f"from=10&max_bytes={5 * each}") == (15, 5, 5 * each)
    assert batch("from=10&max_bytes=1") == (11, 1, each)
    assert batch("from=100") == (100, 0, 0)
    for query in ("from=101", "from=x", ""):
        assert refused(broker, "GET", f"/range?{query}") == (400, "bad_request")


def test_a_long_poll_ends_with_the_next_message_or_with_the_stream(broker: BrokerProcess) -> None:
    publish(broker, some(3))
    assert broker.http("GET", f"{BASE}/range?from=3&wait_ms=50")[1]["to"] == 3
    polls = [begun_poll(broker, "from=3") for _ in range(2)]
    publish(broker, some(1))
    assert [answer["to"] for _, answer in map(end_of_poll, polls)] == [4, 4]
    polls = [begun_poll(broker, "from=4") for _ in range(2)]
    broker.http("DELETE", "/api/queues/%2F/s")
    found = [(status, answer["error"]) for status, answer in map(end_of_poll, polls)]
    assert found == [(404, "not_found")] * 2


def begun_poll(broker: BrokerProcess, query: str) -> socket.socket:
    """A long poll that the broker has begun to answer: it says so before its handler begins, and
    what is asked after that is answered after the handler has looked."""
    raw = socket.create_connection(("127.0.0.1", broker.http_port), PATIENCE_S)
    raw.sendall(
        f"GET {BASE}/range?{query}&wait_ms=20000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {GUEST['Authorization']}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        said += raw.recv(1)
    assert said.startswith(b"HTTP/1.1 100 "), said
    stat(broker)
    return raw


def end_of_poll(raw: socket.socket) -> tuple[int, Any]:
    with raw:
        response = http.client.HTTPResponse(raw)
        response.begin()
        return response.status, json.loads(response.read())


# -- what retention takes


def test_retention_answers_gone_and_a_plan_holds(broker: BrokerProcess) -> None:
    bodies = some(50, 1200)
    publish(broker, bodies)
    status, plan = broker.http("POST", f"{BASE}/plans", {"from": 10, "to": 30})
    assert status == 200, plan
    broker.http(
        "PUT", "/api/policies/%2F/p", {"pattern": "^s$", "definition": {"max-length-bytes": 0}}
    )
    wait_for(broker, lambda stat: stat["first"] == 50)
    status, found = broker.http("GET", f"{BASE}/read?from=10&to=30")
    assert (status, found) == (
        410,
        {
            "error": "gone",
            "reason": "offsets 10 to 49 of stream 's' in vhost '/' are not kept any more: it "
            "begins at 50",
        },
    )
    assert refused(broker, "GET", "/range?from=49") == (410, "gone")
    assert refused(broker, "POST", "/plans", {"from": 10, "to": 30}) == (410, "gone")
    name = plan["plan"]
    reader = Reader(broker)
    assert reader.bodies(10, 30, plan=name) == dict(list(expected(bodies).items())[10:30])
    assert reader.bodies(12, 14, plan=name) == {12: bodies[12], 13: bodies[13]}
    assert refused(broker, "GET", f"/read?from=9&to=30&plan={name}") == (410, "gone")
    assert broker.http("DELETE", f"{BASE}/plans/{name}") == (200, {})
    for method, path in (("DELETE", f"/plans/{name}"), ("GET", f"/read?from=10&to=30&plan={name}")):
        assert refused(broker, method, path) == (404, "not_found")


def test_a_stream_made_again_is_refused_to_readers_of_the_old_one(broker: BrokerProcess) -> None:
    publish(broker, some(3))
    old = stat(broker)["id"]
    broker.http("DELETE", "/api/queues/%2F/s")
    publish(broker, some(3))
    for path in (f"?id={old}", f"/read?from=0&to=3&id={old}", f"/range?from=0&id={old}",
                 f"/offset?at=first&id={old}"):  # fmt: skip
        assert refused(broker, "GET", path) == (409, "fenced")
    assert refused(broker, "POST", "/plans", {"from": 0, "to": 3, "id": old}) == (409, "fenced")
    assert stat(broker)["id"] != old


# -- who may


def test_rights(broker: BrokerProcess) -> None:
    publish(broker, some(3))
    _, plan = broker.http("POST", f"{BASE}/plans", {"from": 0, "to": 3})
    for name, read in (("ann", "^s$"), ("bob", "^other$"), ("eve", None)):
        broker.http("PUT", f"/api/users/{name}", {"password": "pw", "tags": ""})
        if read is not None:
            broker.http(
                "PUT", f"/api/permissions/%2F/{name}",
                {"configure": "", "write": ".*", "read": read},
            )  # fmt: skip
    paths = ["", "/read?from=0&to=3", "/range?from=0", "/offset?at=first", "/publishers/p"]
    for path in paths:
        for name in ("bob", "eve"):
            assert broker.http("GET", BASE + path, user=f"{name}:pw")[0] == 403, (path, name)
        assert broker.http("GET", BASE + path, user=None)[0] == 401
    assert broker.http_bytes("GET", f"{BASE}/read?from=0&to=3", user="ann:pw")[0] == 200
    of_others = f"{BASE}/read?from=0&to=3&plan={plan['plan']}"
    assert broker.http("GET", of_others, user="ann:pw")[0] == 404
    places = f"{BASE}/places?from=0&to=3"
    assert broker.http("GET", places, user="ann:pw")[0] == 403


def test_numbers_of_thousands_of_digits_are_refused(broker: BrokerProcess) -> None:
    broker.http("PUT", "/api/queues/%2F/s", {"durable": True, "arguments": STREAM})
    for path in ("/offset?at=", "/offset?time=", "/range?from="):
        assert refused(broker, "GET", path + "9" * 5000) == (400, "bad_request")


def test_other_queues_are_no_streams(broker: BrokerProcess) -> None:
    broker.http("PUT", "/api/queues/%2F/s", {"durable": True})
    for path in ("", "/read?from=0&to=0", "/range?from=0", "/offset?at=first"):
        assert refused(broker, "GET", path) == (400, "bad_request")
    publish_to = {"durable": True, "arguments": STREAM}
    broker.http("PUT", "/api/queues/%2F/t", publish_to)
    status, found = broker.http("POST", "/api/tallymark/browse/%2F/t", {})
    assert (status, found["error"]) == (400, "bad_request")
    status, found = broker.http("POST", "/api/tallymark/subscriptions/%2F/t/x/attach", {})
    assert (status, found["error"]) == (400, "bad_request")


# -- the journal's files


@pytest.mark.parametrize("alone", [False, True])
def test_places_say_where_the_bytes_are(broker: BrokerProcess, alone: bool) -> None:
    count = 9000 if alone else 300
    bodies = some(count, 2400)
    publish(broker, bodies, alone=alone)
    reader = Reader(broker)
    found: dict[int, bytes] = {}
    at = 0
    while at < count:
        path = f"{BASE}/places?from={at}&to={count}&max_bytes=1000000"
        reader.http.request("GET", path, headers=GUEST)
        with reader.http.getresponse() as response:
            block = response.read()
            assert response.status == 200, block
            end = int(response.headers["Tallymark-Next"])
            files = json.loads(response.headers["Tallymark-Segments"])
        found |= messages_at(block, files, at)
        assert at < end
        at = end
    assert found == expected(bodies)


def messages_at(block: bytes, files: dict[str, str], low: int) -> dict[int, bytes]:
    """Read the messages off the journal's files, as a program beside the broker would."""
    header = layout.header_at(block, 0)
    assert header is not None
    assert layout.is_whole(block, header)
    rows = block[layout.HEADER : layout.HEADER + layout.ROW * header.rows]
    bounds = memoryview(block[header.bounds_at : header.routes_at]).cast("I")
    places: dict[int, list[tuple[int, int]]] = {}
    found = {}
    at = low + 1
    for row in unpacking.rows_in(rows):
        (kind, flags, _, _, _, first, _, count, lo, _, _, position, _, _) = row
        if kind == PAYLOAD:
            assert flags & layout.ELSEWHERE
            cuts = bounds[lo : lo + count + 1]
            sizes = [cuts[i + 1] - cuts[i] for i in range(count)]
            starts = [position + cuts[i] for i in range(count)]
            if flags & layout.COLUMNS:
                column = lo + count + 1 + (count if flags & layout.ROUTE_COLUMN else 0) + 4 * count
                starts = [
                    bounds[column + 2 * i] | bounds[column + 2 * i + 1] << 32 for i in range(count)
                ]
            places[position] = list(zip(starts, sizes, strict=True))
        elif kind == LIVE:
            assert first == at
            for i, (start, size) in enumerate(places[position][lo : lo + count]):
                with open(files[str(start >> 32)], "rb") as file:
                    file.seek(start & 0xFFFFFFFF)
                    found[first + i - 1] = body_of(file.read(size))
            at += count
    return found
