"""The operations of durable subscriptions at their HTTP interface, against a real broker."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pika
import pytest

from tallymark.journal import unpacking
from tallymark.stored import layout
from tallymark.stored.records import LEASED, LIVE, PAYLOAD
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

BASE = "/api/tallymark/subscriptions/%2F/orders/table"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def fill(broker: BrokerProcess, bodies: list[bytes], persistent: bool = True) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2 if persistent else 1)
    for body in bodies:
        channel.basic_publish("", "orders", body, properties)
    connection.close()


def attach(broker: BrokerProcess) -> dict[str, Any]:
    status, answer = broker.http("POST", f"{BASE}/attach", {})
    assert status == 200, answer
    return answer


def lease(broker: BrokerProcess, held: dict[str, Any], start: int, **more: int) -> tuple[int, Any]:
    body = {"fence": held["fence"], "epoch": held["epoch"], "start": start, "max_rows": 1000}
    return broker.http("POST", f"{BASE}/lease", {**body, **more})


def settle(broker: BrokerProcess, held: dict[str, Any], end: int) -> tuple[int, Any]:
    body = {"fence": held["fence"], "epoch": held["epoch"], "end": end}
    return broker.http("POST", f"{BASE}/settle", body)


def rights(held: dict[str, Any]) -> str:
    """Of a READ, as its query has them."""
    return f"fence={held['fence']}&epoch={held['epoch']}"


def judge(
    broker: BrokerProcess, held: dict[str, Any], *said: tuple[int, int, str]
) -> tuple[int, Any]:
    return broker.http("POST", f"{BASE}/verdicts", {"fence": held["fence"], "verdicts": said})


def begin(broker: BrokerProcess, held: dict[str, Any], start: int, end: int) -> tuple[int, Any]:
    body = {"fence": held["fence"], "epoch": held["epoch"], "start": start, "end": end}
    return broker.http("POST", f"{BASE}/begin", body)


def read(broker: BrokerProcess, held: dict[str, Any], low: int, high: int) -> list[bytes]:
    """The bodies of a range of lease sequences, in order."""
    status, data = broker.http_bytes("GET", f"{BASE}/read?{rights(held)}&from={low}&to={high}")
    assert status == 200, data
    whole = bodies_in(data, LEASED)
    for most in (1, 1 << 20):
        assert [body for part in answers(broker, held, low, high, most) for body in part] == whole
    return whole


def answers(
    broker: BrokerProcess, held: dict[str, Any], low: int, high: int, most_bytes: int
) -> Iterator[list[bytes]]:
    """The same, an answer of so many bytes at a time."""
    link = HTTPConnection("127.0.0.1", broker.http_port)
    guest = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    while low < high:
        path = f"{BASE}/read?{rights(held)}&from={low}&to={high}&max_bytes={most_bytes}"
        link.request("GET", path, headers=guest)
        with link.getresponse() as response:
            data = response.read()
            assert response.status == 200, data
            end = int(response.headers["Tallymark-Next"])
        found = bodies_in(data, LEASED)
        assert low < end <= high
        assert len(found) == end - low
        yield found
        low = end
    link.close()


def bodies_in(data: bytes, kind: int) -> list[bytes]:
    bodies = []
    at = 0
    while at < len(data):
        header = layout.header_at(data, at)
        assert header is not None
        for record in unpacking.unpack(data[at : at + header.length]):
            assert record.kind in (PAYLOAD, kind)
            if record.kind == kind:
                payload = record.payload
                assert payload is not None
                assert payload.raw is not None
                for i in range(record.lo, record.lo + record.count):
                    cell = payload.raw[payload.cuts[i] : payload.cuts[i + 1]]
                    bodies.append(cell[-9:-1])  # the last 8 bytes of the only body frame
        at += header.length
    return bodies


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%08d" % i for i in range(first, end)]


def test_a_batch_is_leased_read_and_settled(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 25))
    held = attach(broker)
    assert (held["floor"], held["next"], held["leased"]) == (0, 0, 0)
    assert lease(broker, held, 0, max_rows=10) == (200, {"end": 10})
    assert lease(broker, held, 0, max_rows=10) == (200, {"end": 10})
    assert read(broker, held, 0, 10) == numbered(0, 10)
    assert read(broker, held, 3, 7) == numbered(3, 7)
    assert settle(broker, held, 10) == (200, {"floor": 10})
    assert settle(broker, held, 5) == (200, {"floor": 10})
    assert lease(broker, held, 10) == (200, {"end": 25})
    row = broker.queues()["orders"]
    assert (row["settled"], row["acquired"], row["ready"]) == (10, 15, 0)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_leased_is_read_again_after_a_restart(broker: BrokerProcess, end: str) -> None:
    fill(broker, numbered(0, 20), persistent=False)
    held = attach(broker)
    assert lease(broker, held, 0) == (200, {"end": 20})
    assert settle(broker, held, 5)[0] == 200
    getattr(broker, end)()
    broker.restart()
    again = attach(broker)
    assert (again["epoch"], again["floor"], again["next"]) == (held["epoch"], 5, 20)
    assert read(broker, again, 5, 20) == numbered(5, 20)


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_a_lease_is_on_disk_before_it_is_answered_in_every_sync_mode(
    tmp_path: Path, sync: str
) -> None:
    with BrokerProcess(tmp_path / "data", sync=sync, sync_interval_ms="60000") as broker:
        fill(broker, numbered(0, 5))
        held = attach(broker)
        assert lease(broker, held, 0)[0] == 200
        _, status = broker.http("GET", "/api/tallymark/status")
        assert status["journal"]["durable"] == status["journal"]["end"]


def test_a_second_attach_fences_the_first(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 5))
    first = attach(broker)
    second = attach(broker)
    assert second["fence"] > first["fence"]
    status, answer = lease(broker, first, 0)
    assert (status, answer["error"]) == (409, "fenced")
    assert lease(broker, second, 0) == (200, {"end": 5})


def test_nothing_that_a_fenced_reader_asks_for_is_done(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 10))
    first = attach(broker)
    assert lease(broker, first, 0) == (200, {"end": 10})
    second = attach(broker)
    assert lease(broker, second, 0) == (200, {"end": 10})
    asked = f"{BASE}/read?{rights(first)}&from=0&to=10"
    for status, answer in (
        lease(broker, first, 0),
        begin(broker, first, 0, 10),
        broker.http("GET", asked),
        broker.http("GET", f"{asked}&max_bytes=1000"),
        judge(broker, first, (0, 10, "rejected")),
        settle(broker, first, 10),
        broker.http("GET", f"{BASE}/stat?fence={first['fence']}"),
    ):
        assert (status, answer["error"]) == (409, "fenced")
        assert f"fence {first['fence']} is not the latest, {second['fence']}" in answer["reason"]
    assert broker.http("GET", f"{BASE}/stat?fence={second['fence']}")[0] == 200
    assert settle(broker, second, 10) == (200, {"floor": 10})
    row = broker.queues()["orders"]
    assert (row["settled"], sum(row["dropped"].values())) == (10, 0)


def test_a_fence_of_an_earlier_incarnation_never_comes_again(broker: BrokerProcess) -> None:
    """A subscription that is dropped and made again hands its messages out anew: what a reader of
    the earlier one says of them must not count."""
    fill(broker, numbered(0, 10))
    first = attach(broker)
    lease(broker, first, 0)
    assert broker.http("DELETE", BASE) == (200, {"released": 10})
    broker.kill()
    broker.restart()
    second = attach(broker)
    assert lease(broker, second, 0) == (200, {"end": 10})
    assert judge(broker, first, (0, 5, "rejected"))[0] == 409
    assert settle(broker, second, 10) == (200, {"floor": 10})
    row = broker.queues()["orders"]
    assert (row["settled"], sum(row["dropped"].values())) == (10, 0)


@pytest.mark.parametrize("how", ["lease", "begin"])
def test_who_reads_a_batch_again_decides_it_anew(broker: BrokerProcess, how: str) -> None:
    fill(broker, numbered(0, 10))
    first = attach(broker)
    assert lease(broker, first, 0) == (200, {"end": 10})
    assert judge(broker, first, (0, 10, "rejected"))[0] == 200
    second = attach(broker)
    if how == "lease":
        assert lease(broker, second, 4) == (200, {"end": 10})
    else:
        assert begin(broker, second, 4, 10)[0] == 200
    assert judge(broker, second, (9, 1, "rejected"))[0] == 200
    assert begin(broker, second, 4, 10)[0] == 200  # repeated: its own verdicts stay
    broker.kill()
    broker.restart()
    third = attach(broker)
    assert settle(broker, third, 10) == (200, {"floor": 10})
    row = broker.queues()["orders"]
    assert row["settled"] == 5
    assert sum(row["dropped"].values()) == 5, "no dead-letter exchange: 0..3 and 9"


def test_a_batch_that_is_not_leased_cannot_begin(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 10))
    held = attach(broker)
    lease(broker, held, 0, max_rows=8)
    settle(broker, held, 2)
    for start, end in ((0, 8), (2, 9), (5, 4)):
        status, answer = begin(broker, held, start, end)
        assert (status, answer["error"]) == (400, "bad_request")


def test_an_offset_of_another_incarnation_is_refused(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 5))
    first = attach(broker)
    lease(broker, first, 0)
    assert broker.http("DELETE", BASE) == (200, {"released": 5})
    assert broker.queues()["orders"]["ready"] == 5
    second = attach(broker)
    assert second["epoch"] != first["epoch"]
    stale = {**second, "epoch": first["epoch"]}
    assert settle(broker, stale, 0)[0] == 409
    status, _ = broker.http("GET", f"{BASE}/read?{rights(stale)}&from=0&to=1")
    assert status == 409


def test_what_was_never_leased_or_is_settled_cannot_be_read(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 5))
    held = attach(broker)
    lease(broker, held, 0)
    settle(broker, held, 3)
    for low, high in ((0, 5), (3, 6)):
        status, answer = broker.http("GET", f"{BASE}/read?{rights(held)}&from={low}&to={high}")
        assert (status, answer["error"]) == (400, "bad_request")
    assert settle(broker, held, 6)[0] == 400


def test_a_lease_waits_for_messages(broker: BrokerProcess) -> None:
    fill(broker, [])
    held = attach(broker)
    assert lease(broker, held, 0, wait_ms=50) == (200, {"end": 0})
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(lease(broker, held, 0, wait_ms=60_000))
    )
    waiting.start()
    channel.basic_publish("", "orders", b"%08d" % 1)
    waiting.join(PATIENCE_S)
    connection.close()
    assert answers == [(200, {"end": 1})]


def test_a_subscription_says_how_far_its_reader_is_behind(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 10))
    held = attach(broker)

    def behind(at: int | None = None) -> tuple[int, int]:
        query = "" if at is None else f"?at={at}"
        status, found = broker.http("GET", f"{BASE}/stat{query}")
        assert status == 200
        return found["rows_behind"], found["bytes_behind"]

    size = broker.queues()["orders"]["ready_bytes"]
    assert behind() == (10, size)
    lease(broker, held, 0, max_rows=6)
    assert behind() == (10, size), "nothing is settled"
    assert behind(6) == (4, size * 4 // 10), "a batch of six is on its way"
    assert behind(5) == (5, size * 5 // 10), "it ends before what is leased"
    settle(broker, held, 6)
    assert behind() == behind(2) == (4, size * 4 // 10)

    def oldest_ms() -> Any:
        return broker.http("GET", f"{BASE}/stat")[1]["oldest_unsettled_ms"]

    before = oldest_ms()
    until(lambda: oldest_ms() > before, what="it grows older")
    settle(broker, held, lease(broker, held, 6)[1]["end"])
    assert behind() == (0, 0)
    assert oldest_ms() is None


def test_a_large_range_is_sent_in_several_blocks(broker: BrokerProcess) -> None:
    bodies = [b"x" * 3_000_000 + b"%08d" % i for i in range(6)]
    fill(broker, bodies)
    held = attach(broker)
    assert lease(broker, held, 0) == (200, {"end": 6})
    status, data = broker.http_bytes("GET", f"{BASE}/read?{rights(held)}&from=0&to=6")
    assert status == 200
    assert len(data) > 18_000_000
    assert bodies_in(data, LEASED) == numbered(0, 6)
    parts = list(answers(broker, held, 0, 6, 7_000_000))
    assert [len(part) for part in parts] == [2, 2, 2]
    assert [body for part in parts for body in part] == numbered(0, 6)
    assert [len(part) for part in answers(broker, held, 1, 6, 1)] == [1] * 5


def test_what_lies_behind_other_leases_is_sent_from_its_own_place(broker: BrokerProcess) -> None:
    """Messages of one payload may be leased in parts, and come back in another order."""
    fill(broker, numbered(0, 40))
    held = attach(broker)
    assert lease(broker, held, 0, max_rows=7) == (200, {"end": 7})
    assert read(broker, held, 2, 7) == numbered(2, 7)
    assert settle(broker, held, 5)[0] == 200
    assert lease(broker, held, 7, max_rows=20) == (200, {"end": 27})
    assert read(broker, held, 5, 27) == numbered(5, 27)
    stale = f"{BASE}/read?{rights(held)}&from=4&to=9&max_bytes=10"
    assert broker.http("GET", stale)[0] == 400
    assert broker.http("GET", stale.replace("from=4", "from=10"))[0] == 400
    assert broker.http("GET", stale.replace(f"epoch={held['epoch']}", "epoch=99"))[0] == 409


def test_a_question_for_the_header_alone_is_answered_without_messages(
    broker: BrokerProcess,
) -> None:
    """What an answer to HEAD is followed by is the next answer to its client."""
    fill(broker, numbered(0, 2))
    held = attach(broker)
    assert lease(broker, held, 0) == (200, {"end": 2})
    path = f"{BASE}/read?{rights(held)}&from=0&to=2"
    basic = base64.b64encode(b"guest:guest").decode()
    with socket.create_connection(("127.0.0.1", broker.http_port)) as raw:
        for method, asked in (("HEAD", path), ("HEAD", path + "&max_bytes=0"), ("GET", "/healthz")):
            last = "Connection: close\r\n" if method == "GET" else ""
            head = f"{method} {asked} HTTP/1.1\r\nHost: localhost\r\n{last}"
            raw.sendall(f"{head}Authorization: Basic {basic}\r\n\r\n".encode())
        answers = b"".join(iter(lambda: raw.recv(65536), b""))
    *_, body = parts = answers.split(b"\r\n\r\n")
    assert [part.split(b" ")[0] for part in parts[:-1]] == [b"HTTP/1.1"] * 3
    assert json.loads(body) == {"status": "ok", "alarms": []}


def test_browsing_shows_what_is_ready_and_takes_nothing(broker: BrokerProcess) -> None:
    fill(broker, numbered(0, 30))
    status, plan = broker.http("POST", "/api/tallymark/browse/%2F/orders", {})
    assert (status, plan["messages"]) == (200, 30)
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    connection.channel().queue_purge("orders")
    connection.close()
    path = f"/api/tallymark/browse/plans/{plan['plan']}"
    status, data = broker.http_bytes("GET", f"{path}/read?from=10&to=20")
    assert status == 200
    assert bodies_in(data, LIVE) == numbered(10, 20)
    for most_bytes, end in ((1, 11), (0, 20), (1 << 20, 20)):
        asked = f"{path}/read?from=10&to=20&max_bytes={most_bytes}"
        assert bodies_in(broker.http_bytes("GET", asked)[1], LIVE) == numbered(10, end)
    assert broker.http("DELETE", path)[0] == 200
    assert broker.http("GET", f"{path}/read?from=0&to=1")[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/tallymark/subscriptions/%2F/nowhere/table/attach", {}, 404),
        ("/api/tallymark/subscriptions/elsewhere/orders/table/attach", {}, 404),
        (f"{BASE}/attach", {"limit_rows": -1}, 400),
        (f"{BASE}/attach", {"unknown": 1}, 400),
        (f"{BASE}/lease", {"fence": 1}, 400),
        (f"{BASE}/nothing", {}, 404),
    ],
)
def test_refusals_have_a_reason(
    broker: BrokerProcess, path: str, body: dict[str, Any], status: int
) -> None:
    fill(broker, [])
    found, answer = broker.http("POST", path, body)
    assert found == status
    assert answer["error"]
    assert answer["reason"]


def test_names_with_slashes_and_percent_signs_are_one_step_of_the_path(
    broker: BrokerProcess,
) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    connection.channel().queue_declare("a/b%2Fc d", durable=True)
    connection.close()
    path = "/api/tallymark/subscriptions/%2F/a%2Fb%252Fc%20d/x%2Fy/attach"
    status, answer = broker.http("POST", path, {})
    assert status == 200, answer
    status, answer = broker.http("GET", "/api/tallymark/subscriptions")
    assert [(row["queue"], row["name"]) for row in answer["subscriptions"]] == [
        ("a/b%2Fc d", "x/y")
    ]
