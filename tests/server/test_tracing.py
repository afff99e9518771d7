"""Traces: the spans that a collector gets, over OTLP/HTTP, from a real broker."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

from tallymark.client import Message, connect
from tallymark.engine.clock import Clock
from tallymark.engine.ledger import Ledger
from tallymark.engine.message import Format, Payload
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.server.tracing import exporter as exporting
from tallymark.server.tracing import tracer as tracing
from tallymark.server.tracing.exporter import Exporter, TracingUnavailable, endpoint_of
from tallymark.server.tracing.span import Context, Span, context_of
from tallymark.server.tracing.tracer import Tracer
from tallymark.stored import records
from tallymark.stored.annotations import Route
from tests.support import forked
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="no OpenTelemetry: pip install 'tallymark[tracing]'",
)
pytest.importorskip(exporting.PACKAGE)
TRACE = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = 0xB7AD6B7169203331
SPANS = 7
"""Of the play below: two publishes, three deliveries of the first message, its death, and one
delivery of the other."""


def traceparent(parent: int = PARENT, flags: int = 1) -> str:
    return f"00-{TRACE:032x}-{parent:016x}-{flags:02x}"


class Seen(NamedTuple):
    """A span as the collector got it."""

    name: str
    trace: int
    id: int
    parent: int
    links: list[int]
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int


class Collector:
    """A collector's HTTP end."""

    def __init__(self, status: int = 200) -> None:
        self._seen: dict[bytes, Seen] = {}
        self.service: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                outer.take(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing is written."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, body: bytes) -> None:
        """Note spans; one that is sent again is the same."""
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            for one in of_resource.resource.attributes:
                if one.key == "service.name":
                    self.service.add(one.value.string_value)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self._seen.setdefault(
                        span.span_id,
                        Seen(
                            span.name,
                            int.from_bytes(span.trace_id, "big"),
                            int.from_bytes(span.span_id, "big"),
                            int.from_bytes(span.parent_span_id, "big"),
                            [int.from_bytes(link.span_id, "big") for link in span.links],
                            {
                                one.key: one.value.string_value or one.value.int_value
                                for one in span.attributes
                            },
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                        ),
                    )

    @property
    def spans(self) -> list[Seen]:
        return [*self._seen.values()]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def test_a_message_is_followed_from_its_publish_through_its_death(
    tmp_path: Path, collector: Collector
) -> None:
    """Published over both AMQPs, given back once, refused, consumed as a letter."""
    with BrokerProcess(tmp_path / "data", tracing=f"otlp://127.0.0.1:{collector.port}") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url())) as connection:
            channel = connection.channel()
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
            channel.queue_declare("work", durable=True, arguments=dead)
            channel.queue_declare("letters", durable=True)
            channel.queue_declare("ten", durable=True)
            channel.confirm_delivery()
            for header in (traceparent(), traceparent(flags=0), None, "nonsense"):
                headers = {} if header is None else {"traceparent": header}
                properties = pika.BasicProperties(delivery_mode=2, headers=headers)
                channel.basic_publish("", "work", b'{"traceparent": "in the body"}', properties)
            channel.basic_qos(prefetch_count=1)
            for method, _, _ in channel.consume("work"):  # the first message, twice
                assert method is not None
                channel.basic_reject(method.delivery_tag, requeue=not method.redelivered)
                if method.redelivered:
                    break
            channel.cancel()
            method, _, _ = next(iter(channel.consume("letters")))
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            channel.cancel()
            asyncio.run(over_amqp10(broker.amqp_url()))
        until(lambda: len(collector.spans) == SPANS)
        broker.stop()
    assert len(collector.spans) == SPANS
    spans = {span.name: span for span in collector.spans}
    assert collector.service == {"tallymark"}
    assert {span.trace for span in collector.spans} == {TRACE}
    published = [span for span in collector.spans if span.name == "(default) publish"]
    assert len(published) == 2
    first = next(span for span in published if span.parent == PARENT)
    delivered = [span for span in collector.spans if span.name == "work deliver"]
    assert [span.attributes["tallymark.outcome"] for span in delivered] == [
        "returned", "dead-lettered",
    ]  # fmt: skip
    assert [span.attributes["tallymark.delivery"] for span in delivered] == [1, 2]
    assert {span.parent for span in delivered} == {first.id}
    death = spans["work dead-letter"]
    assert (death.parent, death.attributes["tallymark.reason"]) == (first.id, "rejected")
    letter = spans["letters deliver"]
    assert (letter.parent, letter.links) == (death.id, [first.id])
    assert letter.attributes["tallymark.outcome"] == "accepted"
    second = next(span for span in published if span.parent == PARENT + 1)
    assert spans["ten deliver"].parent == second.id
    assert all(span.start_ns <= span.end_ns for span in collector.spans)


async def over_amqp10(url: str) -> None:
    """A message over AMQP 1.0, there and back."""
    properties = {"traceparent": traceparent(PARENT + 1)}
    async with connect(url) as connection, connection.session() as session:
        async with session.sender("/queues/ten") as sender:
            await sender.send(Message(b"x", application_properties=properties, durable=True))
        async with session.receiver("/queues/ten") as receiver:
            message = await receiver.receive(timeout=PATIENCE_S)
            await message.accept()


# -- what is followed, and what is not


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (traceparent(), Context(TRACE, PARENT)),
        (traceparent().encode(), Context(TRACE, PARENT)),
        (traceparent() + "-of.a.later.version", Context(TRACE, PARENT)),
        (traceparent(flags=3), Context(TRACE, PARENT)),
        (traceparent(flags=2), None),
        (f"ff-{TRACE:032x}-{PARENT:016x}-01", None),
        (f"00-{0:032x}-{PARENT:016x}-01", None),
        (f"00-{TRACE:032x}-{0:016x}-01", None),
        (traceparent().upper(), None),
        (7, None),
        (None, None),
    ],
)
def test_a_context_is_read_as_w3c_says(header: object, expected: Context | None) -> None:
    assert context_of(header) == expected


class Headers(Format):
    """A format whose messages are a traceparent each."""

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        return {"traceparent": traceparent()}


def entered(count: int, first: int = 1) -> Record:
    raw = tracing.RAW_HEADER * count
    cuts = array("I", range(0, len(raw) + 1, len(tracing.RAW_HEADER)))
    payload = Payload(1, raw, cuts, Route("", "q"), None, 1, 0, True, 4096)
    return Record(records.ENTERED, 5, first, count, 0, payload)


def test_so_many_messages_are_followed_and_the_others_counted() -> None:
    spans: list[Span] = []
    tracer = Tracer({}, {1: Headers()}, Ledger(Clock()), spans.append, lambda: 1000)
    tracer.committed([entered(tracing.MOST + 3)], 10)
    assert (tracer.count, tracer.passed_over) == (tracing.MOST, 3)
    assert spans == [], "nothing is on disk yet"
    tracer.synced(9)
    assert spans == []
    tracer.synced(10)
    assert len(spans) == tracing.MOST + 3
    settled = Record(records.SETTLED, 5, 1, tracing.MOST + 3, 0)
    tracer.committed([settled], 11)
    assert tracer.count == 0
    assert spans[-1].name == "queue 5 deliver"
    tracer.committed([settled, entered(1, 90_000)], 12)
    assert tracer.count == 1, "there is room again"


def test_messages_of_a_stream_have_the_span_of_their_publish_and_are_not_followed() -> None:
    """Ten thousand that a stream kept had nothing else traced any more."""
    spans: list[Span] = []
    stream = Queue(5, "s", "/", True, 0, False, {"x-queue-type": "stream"})
    tracer = Tracer({5: stream}, {1: Headers()}, Ledger(Clock()), spans.append, lambda: 1000)
    tracer.committed([entered(3)], 10)
    tracer.synced(10)
    assert [span.name for span in spans] == ["(default) publish"] * 3
    assert (tracer.count, tracer.passed_over) == (0, 0)
    tracer.committed([Record(records.DROPPED, 5, 1, 3, 0)], 11)
    assert len(spans) == 3


def test_spans_that_do_not_fit_are_dropped_and_counted() -> None:
    exporter = Exporter("http://127.0.0.1:9/v1/traces", "node")  # its thread does not run
    for number in range(exporting.MOST + 5):
        exporter.put(Span("x", TRACE, number + 1, PARENT, 1, 2, {}))
    assert (exporter.dropped, exporter.exported) == (5, 0)


@pytest.mark.parametrize(("status", "counts"), [(200, (3, 0)), (400, (0, 3))])
def test_what_a_collector_does_not_take_is_counted(status: int, counts: tuple[int, int]) -> None:
    collector = Collector(status)
    exporter = Exporter(endpoint_of(f"otlp://127.0.0.1:{collector.port}"), "node")
    for number in range(3):
        exporter.put(Span("x", TRACE, number + 1, PARENT, 1, 2, {}))
    exporter.start()
    exporter.stop(PATIENCE_S)
    collector.close()
    assert (exporter.exported, exporter.dropped) == counts
    assert len(collector.spans) == 3


def test_a_library_that_refuses_its_variables_is_told_and_spans_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER"
    monkeypatch.setenv(provider, "nobody.has.it")
    exporter = Exporter("http://127.0.0.1:9/v1/traces", "node")
    exporter.put(Span("x", TRACE, 1, PARENT, 1, 2, {}))
    exporter.start()
    exporter.stop(PATIENCE_S)
    assert (exporter.exported, exporter.dropped) == (0, 1)


# -- configuration


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("otlp://127.0.0.1", "http://127.0.0.1:4318/v1/traces"),
        ("otlps://a.example:443/tenant/", "https://a.example:443/tenant/v1/traces"),
        ("otlp://[::1]:99", "http://[::1]:99/v1/traces"),
    ],
)
def test_an_endpoint_is_that_of_otlp_over_http(url: str, endpoint: str) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize(
    "url",
    ["http://a", "otlp://", "otlp://a:port", "otlp://u:p@a", "otlp://a?x=1", "otlp://a:0", "a"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(TracingUnavailable, match="expected otlp://HOST"):
        endpoint_of(url)


def test_a_broker_does_not_start_with_a_wrong_address(tmp_path: Path) -> None:
    done = forked.run("serve", "--data-dir", str(tmp_path / "data"), "--tracing", "http://a")
    assert done.returncode == 2
    assert done.stderr == (
        "tallymark: tracing is 'http://a', expected otlp://HOST[:PORT], or otlps:// for TLS\n"
    )
    assert not (tmp_path / "data").exists()
