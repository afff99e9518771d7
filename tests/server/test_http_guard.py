"""Web pages that send requests to the broker: every HTTP listener, served and as nsqd."""

from __future__ import annotations

import gzip
import http.client
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.test_nsq_doors import basic, nsqd
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

LISTENERS = ("management", "NSQ", "nsqd")
READ = {"management": "/api/overview", "NSQ": "/stats", "nsqd": "/stats"}
CHANGE = {
    "management": ("PUT", "/api/queues/%2F/q"), "NSQ": ("POST", "/pub?topic=t"),
    "nsqd": ("POST", "/pub?topic=t"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    folder = Path(tmp_path_factory.mktemp("guard"))
    (folder / "nsqd").mkdir()
    with (
        BrokerProcess(folder / "data", http_names="broker.example,.inside.example") as broker,
        nsqd(folder / "nsqd", "-broadcast-address=queue.example") as ready,
    ):
        yield {
            "management": broker.http_port, "NSQ": broker.nsq_http_port,
            "nsqd": ready["nsq_http"][1],
        }  # fmt: skip


def ask(
    port: int, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b""
) -> http.client.HTTPResponse:
    """A request with these headers, and none that http.client would add."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Authorization", basic("guest:guest"))
    connection.putheader("Content-Length", str(len(body)))
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def read(ports: dict[str, int], listener: str, *headers: tuple[str, str]) -> int:
    return ask(ports[listener], "GET", READ[listener], list(headers)).status


def change(ports: dict[str, int], listener: str, *headers: tuple[str, str]) -> int:
    method, path = CHANGE[listener]
    return ask(ports[listener], method, path, list(headers), b"{}").status


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example",
     "brokeri.example", "inside.example.evil", "xlocalhost.example", "1.2.3", "evil.example."],
)  # fmt: skip
def test_under_a_name_of_its_own_a_page_reads_nothing(
    ports: dict[str, int], listener: str, host: str
) -> None:
    """DNS rebinding: the name was made to stand for 127.0.0.1."""
    assert read(ports, listener, ("Host", host)) == 421
    assert change(ports, listener, ("Host", host), ("Origin", f"http://{host}")) == 421


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:15672", "192.168.7.9:4151", "tallymark:4151",
     "app.localhost", socket.gethostname()],
)  # fmt: skip
def test_the_names_of_this_machine_are_answered(
    ports: dict[str, int], listener: str, host: str
) -> None:
    assert read(ports, listener, ("Host", host)) == 200
    assert change(ports, listener, ("Host", host)) in (200, 201, 204)


@pytest.mark.parametrize(
    ("listener", "host", "status"),
    [
        ("management", "broker.example:1", 200), ("NSQ", "broker.example", 200),
        ("management", "a.b.inside.example", 200), ("NSQ", "a.inside.example:4151", 200),
        ("nsqd", "queue.example:4151", 200), ("nsqd", "broker.example", 421),
        ("management", "queue.example", 421),
    ],
)  # fmt: skip
def test_names_of_the_configuration_are_answered(
    ports: dict[str, int], listener: str, host: str, status: int
) -> None:
    assert read(ports, listener, ("Host", host)) == status


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "", "//["]
)
def test_what_a_page_of_another_place_sends_changes_nothing(
    ports: dict[str, int], listener: str, origin: str
) -> None:
    """As a form does, which needs no leave of ours: a simple POST."""
    host = ("Host", f"127.0.0.1:{ports[listener]}")
    assert change(ports, listener, host, ("Origin", origin)) == 403
    assert read(ports, listener, host, ("Origin", origin)) == 403


@pytest.mark.parametrize("listener", LISTENERS)
def test_own_pages_and_links_from_others_work(ports: dict[str, int], listener: str) -> None:
    name = f"127.0.0.1:{ports[listener]}"
    host = ("Host", name)
    for scheme in ("http", "https"):  # the latter: behind a proxy
        assert change(ports, listener, host, ("Origin", f"{scheme}://{name}")) in (200, 201, 204)
    cross = ("Sec-Fetch-Site", "cross-site")
    assert read(ports, listener, host, cross) == 403
    assert change(ports, listener, host, cross) == 403
    assert read(ports, listener, host, cross, ("Sec-Fetch-Mode", "navigate")) == 200
    assert change(ports, listener, host, cross, ("Sec-Fetch-Mode", "navigate")) == 403
    assert read(ports, listener, host, ("Sec-Fetch-Site", "same-origin")) == 200


@pytest.mark.parametrize("listener", LISTENERS)
def test_no_answer_names_a_version(ports: dict[str, int], listener: str) -> None:
    """Also none to what is no request."""
    for path in (READ[listener], "/nothing"):
        response = ask(ports[listener], "GET", path, [("Host", "localhost")])
        assert response.headers["Server"] == "Tallymark"
    with socket.create_connection(("127.0.0.1", ports[listener]), timeout=PATIENCE_S) as raw:
        raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        said = raw.recv(65536)
    assert b"Server: Tallymark\r\n" in said
    assert b"Python" not in said
    assert b"aiohttp" not in said


@pytest.mark.parametrize("listener", ["management", "NSQ"])
def test_a_name_that_is_missing_is_told_with_its_setting(
    ports: dict[str, int], listener: str
) -> None:
    """Prometheus, a load balancer, rabbitmqadmin: their user looks at the answer for what to do."""
    connection = http.client.HTTPConnection("127.0.0.1", ports[listener], timeout=PATIENCE_S)
    connection.request("GET", READ[listener], headers={"Host": "mq.example.org:15672"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.status == 421
    assert "Host is 'mq.example.org'" in text
    assert "--http-names broker.example,.inside.example,mq.example.org" in text


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_what_a_client_has_packed_is_not_unpacked(
    ports: dict[str, int], listener: str, coding: str
) -> None:
    """A few kilobytes may stand for any size. NSQ takes them as they are, as nsqd does."""
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "br": zlib.compress}
    method, path = CHANGE[listener]
    body = packed[coding](bytes(2 << 20))  # more than the largest message of NSQ
    headers = [("Host", "127.0.0.1"), ("Content-Encoding", coding)]
    found = ask(ports[listener], method, path, headers, body)
    assert found.status == (415 if listener == "management" else 200)
