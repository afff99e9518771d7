"""The thread that sends spans to a collector by OTLP over HTTP.

Spans wait in a queue of MOST. What does not fit, and what the collector does not take, is dropped
and counted: a collector that is slow or away costs the broker nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tallymark import __version__
from tallymark.server.logs import log_of
from tallymark.server.tracing.span import Span

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

MOST: Final = 8192
"""Spans that wait."""
BATCH: Final = 512
"""Spans of one request."""
PAUSE_S: Final = 1.0
"""Time for which spans are gathered."""
TIMEOUT_S: Final = 30.0
"""Time after which a request has failed, with what the library repeats of it."""
STOP_S: Final = 10.0
"""Time that a broker which stops gives the collector."""
PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http"
SCHEMES: Final = {"otlp": "http", "otlps": "https"}
PORT: Final = 4318

log = log_of("server")


class TracingUnavailable(Exception):
    """Spans cannot be sent; the text says why."""


def endpoint_of(url: str) -> str:
    """Return the address that spans are posted to.

    >>> endpoint_of("otlp://127.0.0.1")
    'http://127.0.0.1:4318/v1/traces'
    >>> endpoint_of("otlps://collector.example.org/tenant")
    'https://collector.example.org:4318/tenant/v1/traces'

    Raises TracingUnavailable.
    """
    try:
        parts = urlsplit(url)
        scheme, host = SCHEMES.get(parts.scheme, ""), parts.hostname or ""
        port = PORT if parts.port is None else parts.port
    except ValueError:
        scheme = host = ""
        port = 0
    if not scheme or not host or port == 0 or parts.username is not None or parts.query:
        raise TracingUnavailable(
            f"tracing is {url!r}, expected otlp://HOST[:PORT], or otlps:// for TLS"
        )
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}{parts.path.rstrip('/')}/v1/traces"


def check_installed() -> None:
    """Raises TracingUnavailable."""
    from importlib.util import find_spec

    try:
        is_there = find_spec(PACKAGE) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise TracingUnavailable(
            "tracing needs the package opentelemetry-exporter-otlp-proto-http: "
            "pip install 'tallymark[tracing]'"
        )


class Exporter:
    """The queue of spans and its thread."""

    def __init__(self, endpoint: str, node: str) -> None:
        """node: the broker's name, as the resource of its spans."""
        self._endpoint = endpoint
        self._node = node
        self._waiting: deque[Span] = deque()
        self._some = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self.exported = 0
        self.dropped = 0
        """Number of spans that did not fit, or that the collector did not take."""

    def start(self) -> None:
        self._thread.start()

    def put(self, span: Span) -> None:
        """Hand a span over. Never waits."""
        if len(self._waiting) >= MOST:
            self.dropped += 1
        else:
            self._waiting.append(span)

    def stop(self, seconds: float = STOP_S) -> None:
        """Send what waits, for so long at most, and end the thread. Blocks."""
        with self._some:
            self._is_over = True
            self._some.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        library: _Library | None = None
        try:
            library = _Library(self._endpoint, self._node)
        except Exception as error:  # of the library, as for a variable of its own that is wrong
            log.error("spans.impossible", error=repr(error))
        while True:
            with self._some:
                if not self._is_over:
                    self._some.wait(PAUSE_S)
                is_over = self._is_over
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                if library is not None and library.export(batch):
                    self.exported += len(batch)
                else:
                    self.dropped += len(batch)
            if is_over:
                if library is not None:
                    library.exporter.shutdown()  # type: ignore[no-untyped-call]
                return


class _Library:
    """OpenTelemetry's classes, which are imported by the thread that uses them."""

    def __init__(self, endpoint: str, node: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self.exporter: OTLPSpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT_S)
        self._resource = Resource(
            {
                "service.name": "tallymark",
                "service.version": __version__,
                "service.instance.id": node,
            }
        )
        self._scope = InstrumentationScope("tallymark", __version__)

    def export(self, batch: list[Span]) -> bool:
        """Send spans; return whether the collector took them."""
        try:
            from opentelemetry.sdk.trace.export import SpanExportResult

            result = self.exporter.export([self._made(span) for span in batch])
        except Exception as error:  # of the library, or of what it calls
            log.warning("spans.failed", error=repr(error), spans=len(batch))
            return False
        return result is SpanExportResult.SUCCESS

    def _made(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, TraceFlags

        def context(span_id: int, is_remote: bool) -> SpanContext:
            return SpanContext(span.trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))

        links = [Link(context(span.link_id, False))] if span.link_id else []
        return ReadableSpan(
            name=span.name,
            context=context(span.span_id, False),
            parent=context(span.parent_id, True),
            resource=self._resource,
            attributes={"messaging.system": "tallymark", **span.attributes},
            links=links,
            start_time=span.start_ns,
            end_time=max(span.end_ns, span.start_ns),
            instrumentation_scope=self._scope,
        )
