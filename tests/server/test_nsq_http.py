"""nsqd's HTTP interface through a socket: paths, parameters, answers and refusals [NQ-20]."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.server.nsqd import call, channel, post, refused, stats, topic
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

MSG_MAX = 100
BODY_MAX = 1000
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("nsq-http")) / "data"
    with BrokerProcess(
        folder, nsq_max_msg_size=str(MSG_MAX), nsq_max_body_size=str(BODY_MAX),
        nsq_http_config="true",
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    return broker.nsq_http_url


@pytest.fixture
def name() -> str:
    """A topic that no other test has."""
    return f"t{next(_numbers)}"


# -- looking


def test_nq_20_ping(url: str) -> None:
    status, headers, raw = call(url, "GET", "/ping")
    assert (status, raw, headers["content-type"]) == (200, b"OK", "text/plain; charset=utf-8")


def test_nq_20_info(url: str, broker: BrokerProcess) -> None:
    status, headers, raw = call(url, "GET", "/info")
    assert (status, headers["x-nsq-content-type"]) == (200, "nsq; version=1.0")
    found = json.loads(raw)
    assert found["version"] == "1.3.0"
    assert found["tcp_port"] == broker.nsq_port
    assert found["http_port"] == broker.nsq_http_port
    assert found["hostname"]
    assert found["broadcast_address"] == found["hostname"]
    assert found["start_time"] > 1_500_000_000
    assert found["max_heartbeat_interval"] == 60_000_000_000
    assert found["max_output_buffer_size"] == 65536
    assert found["max_output_buffer_timeout"] == 30_000_000_000
    assert found["max_deflate_level"] == 6


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", (404, "NOT_FOUND")),
        ("GET", "/put", (404, "NOT_FOUND")),
        ("POST", "/stats", (405, "METHOD_NOT_ALLOWED")),
        ("GET", "/pub", (405, "METHOD_NOT_ALLOWED")),
        ("GET", "/topic/create", (405, "METHOD_NOT_ALLOWED")),
        ("POST", "/topic/rename", (404, "NOT_FOUND")),
        ("GET", "/debug/pprof", (501, "NOT_IMPLEMENTED")),
        ("GET", "/debug/pprof/", (501, "NOT_IMPLEMENTED")),
        ("GET", "/debug/pprof/profile?seconds=30", (501, "NOT_IMPLEMENTED")),
        ("POST", "/debug/pprof/symbol", (501, "NOT_IMPLEMENTED")),
        ("PUT", "/debug/setblockrate?rate=1", (501, "NOT_IMPLEMENTED")),
        ("GET", "/debug/pprofx", (404, "NOT_FOUND")),
        ("GET", "/debug/setblockrate", (405, "METHOD_NOT_ALLOWED")),
    ],
)
def test_nq_20_what_is_not_there(
    url: str, method: str, path: str, expected: tuple[int, str]
) -> None:
    assert refused(url, path, method=method) == expected


# -- publishing


def test_nq_20_a_published_message_is_in_the_topic_and_then_in_its_channels(
    url: str, name: str
) -> None:
    status, headers, raw = call(url, "POST", f"/pub?topic={name}", b"hello")
    assert (status, raw) == (200, b"OK")
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert topic(url, name)["depth"] == 1
    post(url, f"/channel/create?topic={name}&channel=a")
    post(url, f"/channel/create?topic={name}&channel=b")
    assert post(url, f"/pub?topic={name}", b"world") == b"OK"
    row = topic(url, name)
    assert (row["depth"], row["message_count"], row["message_bytes"]) == (0, 2, 10)
    assert channel(url, name, "a")["depth"] == 2
    assert channel(url, name, "b")["depth"] == 1


def test_nq_20_a_deferred_message_waits(url: str, name: str) -> None:
    post(url, f"/topic/create?topic={name}")
    post(url, f"/channel/create?topic={name}&channel=c")
    post(url, f"/pub?topic={name}&defer=3600000", b"later")
    row = channel(url, name, "c")
    assert (row["depth"], row["deferred_count"], row["message_count"]) == (0, 1, 1)


@pytest.mark.parametrize("text", ["-1", "3600001", "x", "", "1.5", "99999999999999999999"])
def test_nq_20_invalid_defer(url: str, name: str, text: str) -> None:
    assert refused(url, f"/pub?topic={name}&defer={text}", b"m") == (400, "INVALID_DEFER")


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/pub", b"m", (400, "MISSING_ARG_TOPIC")),
        ("/pub?topic=", b"m", (400, "INVALID_TOPIC")),
        ("/pub?topic=a%20b", b"m", (400, "INVALID_TOPIC")),
        ("/pub?topic=%C3%A9", b"m", (400, "INVALID_TOPIC")),
        ("/pub?topic=" + 65 * "a", b"m", (400, "INVALID_TOPIC")),
        ("/pub?topic=%zz", b"m", (400, "INVALID_REQUEST")),
        ("/pub?topic=t;x=1", b"m", (400, "INVALID_REQUEST")),
        ("/pub?topic=t", b"", (400, "MSG_EMPTY")),
        ("/pub", b"", (400, "MSG_EMPTY")),
        ("/pub?topic=t", b"m" * (MSG_MAX + 1), (413, "MSG_TOO_BIG")),
        ("/pub?topic=amq.t", b"m", (400, "INVALID_TOPIC")),
        ("/mpub", b"m", (400, "MISSING_ARG_TOPIC")),
        ("/mpub?topic=a%20b", b"m", (400, "INVALID_TOPIC")),
        ("/mpub?topic=t", b"m" * (BODY_MAX + 1), (413, "BODY_TOO_BIG")),
        ("/mpub?topic=t", b"m\n" + b"m" * (MSG_MAX + 1), (413, "MSG_TOO_BIG")),
        ("/mpub?topic=t&binary=true", b"", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=1", bytes(4), (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=yes", b"\0\0\0\1\0\0\0\0", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\2m", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\x65" + b"m" * 101, (413, "BAD_MESSAGE")),
    ],
)
def test_nq_20_refused_publishes(
    url: str, path: str, body: bytes, expected: tuple[int, str]
) -> None:
    assert refused(url, path, body) == expected


def test_nq_20_the_largest_message_is_accepted(url: str, name: str) -> None:
    assert post(url, f"/pub?topic={name}", b"m" * MSG_MAX) == b"OK"
    assert topic(url, name)["message_bytes"] == MSG_MAX


def test_nq_20_a_chunked_body_is_measured_while_it_comes(broker: BrokerProcess, name: str) -> None:
    from http.client import HTTPConnection

    for size, status in ((MSG_MAX, 200), (MSG_MAX + 1, 413)):
        connection = HTTPConnection("127.0.0.1", broker.nsq_http_port, timeout=PATIENCE_S)
        parts = iter([b"m" * (size - 1), b"m"])
        connection.request("POST", f"/pub?topic={name}", body=parts, encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        assert connection.getresponse().status == status
        connection.close()


def test_nq_20_text_mpub_is_one_message_per_line_and_skips_empty_ones(url: str, name: str) -> None:
    assert post(url, f"/mpub?topic={name}", b"a\n\nbb\r\n\nccc") == b"OK"
    row = topic(url, name)
    assert (row["message_count"], row["message_bytes"]) == (3, 1 + 3 + 3)
    assert post(url, f"/mpub?topic={name}x", b"\n\n") == b"OK"
    assert topic(url, f"{name}x")["message_count"] == 0


@pytest.mark.parametrize("flag", ["true", "1", "yes", ""])
def test_nq_20_binary_mpub(url: str, name: str, flag: str) -> None:
    body = b"\0\0\0\2\0\0\0\1\n\0\0\0\3b\nb"
    assert post(url, f"/mpub?topic={name}&binary={flag}", body) == b"OK"
    row = topic(url, name)
    assert (row["message_count"], row["message_bytes"]) == (2, 4)


def test_nq_20_binary_false_is_text(url: str, name: str) -> None:
    assert post(url, f"/mpub?topic={name}&binary=false", b"a\nb") == b"OK"
    assert topic(url, name)["message_count"] == 2


def test_nq_d5_an_mpub_with_one_bad_message_publishes_none(url: str, name: str) -> None:
    post(url, f"/topic/create?topic={name}")
    assert refused(url, f"/mpub?topic={name}", b"good\n" + b"m" * 101)[0] == 413
    body = b"\0\0\0\2\0\0\0\1a\0\0\0\0"
    assert refused(url, f"/mpub?topic={name}&binary=1", body) == (413, "BAD_MESSAGE")
    assert topic(url, name)["message_count"] == 0


def test_an_exchange_of_another_type_is_no_topic(broker: BrokerProcess, url: str) -> None:
    status, _ = broker.http("PUT", "/api/exchanges/%2F/direct-one", {"type": "direct"})
    assert status == 201
    assert refused(url, "/pub?topic=direct-one", b"m") == (400, "INVALID_TOPIC")
    assert refused(url, "/topic/create?topic=direct-one") == (400, "INVALID_TOPIC")


# -- topics and channels


def test_nq_20_topics_are_made_emptied_paused_and_deleted(url: str, name: str) -> None:
    assert post(url, f"/topic/create?topic={name}") == b""
    post(url, f"/mpub?topic={name}", b"1\n2\n3")
    assert topic(url, name)["depth"] == 3
    assert post(url, f"/topic/empty?topic={name}") == b""
    assert topic(url, name)["depth"] == 0
    assert post(url, f"/topic/pause?topic={name}") == b""
    assert topic(url, name)["paused"] is True
    post(url, f"/channel/create?topic={name}&channel=c")
    post(url, f"/pub?topic={name}", b"4")
    assert topic(url, name)["depth"] == 1
    assert channel(url, name, "c")["depth"] == 0
    assert post(url, f"/topic/unpause?topic={name}") == b""
    assert topic(url, name)["paused"] is False
    assert topic(url, name)["depth"] == 0
    assert channel(url, name, "c")["depth"] == 1
    assert post(url, f"/topic/delete?topic={name}") == b""
    assert stats(url, f"&topic={name}")["topics"] == []


def test_nq_20_channels_are_made_emptied_paused_and_deleted(url: str, name: str) -> None:
    post(url, f"/topic/create?topic={name}")
    one = f"topic={name}&channel=c"
    assert post(url, f"/channel/create?{one}") == b""
    post(url, f"/mpub?topic={name}", b"1\n2\n3")
    assert channel(url, name, "c")["depth"] == 3
    assert post(url, f"/channel/empty?{one}") == b""
    assert channel(url, name, "c")["depth"] == 0
    assert post(url, f"/channel/pause?{one}") == b""
    assert channel(url, name, "c")["paused"] is True
    assert post(url, f"/channel/unpause?{one}") == b""
    assert channel(url, name, "c")["paused"] is False
    assert post(url, f"/channel/delete?{one}") == b""
    assert topic(url, name)["channels"] == []


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "pause", "unpause"])
def test_nq_20_refused_channel_calls(url: str, verb: str) -> None:
    path = f"/channel/{verb}"
    post(url, "/topic/create?topic=there")
    assert refused(url, path) == (400, "MISSING_ARG_TOPIC")
    assert refused(url, f"{path}?topic=a%20b&channel=c") == (400, "INVALID_ARG_TOPIC")
    assert refused(url, f"{path}?topic=there") == (400, "MISSING_ARG_CHANNEL")
    assert refused(url, f"{path}?topic=there&channel=%21") == (400, "INVALID_ARG_CHANNEL")
    assert refused(url, f"{path}?topic=not-there&channel=c") == (404, "TOPIC_NOT_FOUND")
    assert refused(url, f"{path}?topic=%zz&channel=c") == (400, "INVALID_REQUEST")
    if verb != "create":
        assert refused(url, f"{path}?topic=there&channel=no") == (404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "pause", "unpause"])
def test_nq_20_refused_topic_calls(url: str, verb: str) -> None:
    path = f"/topic/{verb}"
    assert refused(url, path) == (400, "MISSING_ARG_TOPIC")
    if verb in ("create", "empty"):
        assert refused(url, f"{path}?topic=a%20b") == (400, "INVALID_TOPIC")
    else:
        assert refused(url, f"{path}?topic=a%20b") == (404, "TOPIC_NOT_FOUND")
    if verb != "create":
        assert refused(url, f"{path}?topic=not-there") == (404, "TOPIC_NOT_FOUND")


def test_ephemeral_names_are_accepted_quoted(url: str) -> None:
    post(url, "/topic/create?topic=short%23ephemeral")
    post(url, "/channel/create?topic=short%23ephemeral&channel=c%23ephemeral")
    row = channel(url, "short%23ephemeral", "c#ephemeral")
    assert row["backend_depth"] == 0
    post(url, "/channel/delete?topic=short%23ephemeral&channel=c%23ephemeral")
    assert stats(url, "&topic=short%23ephemeral")["topics"] == []  # NQ-10


# -- options


def test_nq_20_options_are_shown(url: str, broker: BrokerProcess) -> None:
    def option(name: str) -> bytes:
        status, _, raw = call(url, "GET", f"/config/{name}")
        assert status == 200, (name, raw)
        return raw

    assert option("nsqlookupd_tcp_addresses") == b"[]"
    assert option("max_msg_size") == str(MSG_MAX).encode()
    assert option("msg_timeout") == b"60000000000"
    assert option("mem_queue_size") == b"10000"
    assert option("data_path") == str(broker.data_dir).encode()
    assert option("snappy") == b"true"
    assert option("tcp_address") == f"127.0.0.1:{broker.nsq_port}".encode()
    assert option("http_address") == f"127.0.0.1:{broker.nsq_http_port}".encode()
    assert option("https_address") == b""
    assert refused(url, "/config/nonsense", method="GET") == (400, "INVALID_OPTION")


NSQD_OPTIONS = [
    "id",
    "log_level",
    "log_prefix",
    "tcp_address",
    "http_address",
    "https_address",
    "broadcast_address",
    "broadcast_tcp_port",
    "broadcast_http_port",
    "nsqlookupd_tcp_addresses",
    "auth_http_addresses",
    "auth_http_request_method",
    "http_client_connect_timeout",
    "http_client_request_timeout",
    "topology_region",
    "topology_zone",
    "data_path",
    "mem_queue_size",
    "max_bytes_per_file",
    "sync_every",
    "sync_timeout",
    "queue_scan_interval",
    "queue_scan_refresh_interval",
    "queue_scan_selection_count",
    "queue_scan_worker_pool_max",
    "queue_scan_dirty_percent",
    "msg_timeout",
    "max_msg_timeout",
    "max_msg_size",
    "max_body_size",
    "max_req_timeout",
    "max_heartbeat_interval",
    "max_rdy_count",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "min_output_buffer_timeout",
    "output_buffer_timeout",
    "max_channel_consumers",
    "statsd_address",
    "statsd_prefix",
    "statsd_interval",
    "statsd_mem_stats",
    "statsd_udp_packet_size",
    "statsd_exclude_ephemeral",
    "e2e_processing_latency_window_time",
    "e2e_processing_latency_percentiles",
    "tls_cert",
    "tls_key",
    "tls_client_auth_policy",
    "tls_root_ca_file",
    "tls_required",
    "tls_min_version",
    "deflate",
    "max_deflate_level",
    "snappy",
    "enable_experiment",
]
"""All of nsqd 1.3: the fields of its Options that are flags."""


@pytest.mark.parametrize("name", NSQD_OPTIONS)
def test_nq_20_every_option_of_nsqd_is_there(url: str, name: str) -> None:
    status, _, raw = call(url, "GET", f"/config/{name}")
    assert status == 200, (name, raw)
    if name == "tls_required":
        assert raw == b"0"
    elif name == "tls_min_version":
        assert raw == b"771"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "/stats", "GET, OPTIONS"), ("GET", "/pub?topic=x", "OPTIONS, POST"),
     ("DELETE", "/config/log_level", "GET, OPTIONS, PUT"),
     ("PUT", "/debug/freememory", "OPTIONS, POST")],
)  # fmt: skip
def test_nq_20_a_refused_method_is_told_what_is_allowed(
    url: str, method: str, path: str, allowed: str
) -> None:
    """As nsqd's router does it."""
    status, headers, raw = call(url, method, path, b"" if method != "GET" else None)
    assert (status, headers["allow"], json.loads(raw)) == (
        405, allowed, {"message": "METHOD_NOT_ALLOWED"},
    )  # fmt: skip
    status, headers, raw = call(url, "OPTIONS", path)
    assert (status, headers["allow"], raw) == (200, allowed, b"")


def test_nq_20_a_slash_at_the_end_is_redirected(url: str) -> None:
    opened = http.client.HTTPConnection(url.removeprefix("http://"))
    for method, path, status, location in (
        ("GET", "/stats/?format=json", 301, "/stats?format=json"),
        ("POST", "/pub/?topic=x", 308, "/pub?topic=x"),
        ("GET", "/nothing/", 404, None),
    ):
        opened.request(method, path, b"x" if method == "POST" else None)
        answer = opened.getresponse()
        answer.read()
        assert (answer.status, answer.headers["Location"]) == (status, location)
    opened.close()


def test_nq_20_the_log_level_can_be_set(url: str) -> None:
    for level, number in (("debug", b"1"), ("FATAL", b"5"), ("info", b"2")):
        status, _, raw = call(url, "PUT", "/config/log_level", level.encode())
        assert (status, raw) == (200, number)
        assert call(url, "GET", "/config/log_level")[2] == number
    assert refused(url, "/config/log_level", b"loud", "PUT") == (400, "INVALID_VALUE")


@pytest.mark.parametrize(
    ("option", "body", "expected"),
    [
        ("nsqlookupd_tcp_addresses", b"", (413, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"x" * (MSG_MAX + 1), (413, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"nonsense", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"[1]", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b'["nowhere"]', (400, "INVALID_VALUE")),
        ("max_msg_size", b"5", (400, "INVALID_OPTION")),
    ],
)
def test_nq_20_refused_options(
    url: str, option: str, body: bytes, expected: tuple[int, str]
) -> None:
    assert refused(url, f"/config/{option}", body, "PUT") == expected


def test_memory_can_be_freed(url: str) -> None:
    assert call(url, "POST", "/debug/freememory", b"")[0] == 200


# -- on disk


def test_publishing_is_refused_while_an_alarm_holds_publishers_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", disk_free_limit="1000TiB") as broker:
        url = broker.nsq_http_url
        assert broker.http("GET", "/healthz", user=None)[1]["alarms"] == ["disk"]
        assert refused(url, "/pub?topic=t", b"m") == (503, "BLOCKED")
        assert refused(url, "/mpub?topic=t", b"m") == (503, "BLOCKED")
        post(url, "/topic/create?topic=t")  # but what makes no message goes on
        assert topic(url, "t")["message_count"] == 0


def test_nq_20_ok_says_that_it_is_on_disk(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", sync="never") as broker:
        url = broker.nsq_http_url
        post(url, "/topic/create?topic=t")
        post(url, "/channel/create?topic=t&channel=c")
        post(url, "/pub?topic=t", b"one")
        post(url, "/mpub?topic=t", b"two\nthree")
        post(url, "/pub?topic=t&defer=3600000", b"four")
        post(url, "/topic/create?topic=empty")
        post(url, "/channel/create?topic=empty&channel=held")
        post(url, "/channel/pause?topic=empty&channel=held")
        broker.kill()
        broker.restart()
        url = broker.nsq_http_url
        row = channel(url, "t", "c")
        assert (row["depth"], row["deferred_count"]) == (3, 1)
        assert channel(url, "empty", "held")["paused"] is True
