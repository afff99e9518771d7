"""A small client of the broker's HTTP interface, for drivers and for forked workers.

Every operation used here may be repeated without harm (LEASE and READ name their range, SETTLE is
cumulative), so a call that met a dead connection is simply made again: a broker that restarts under
a running query costs time, not the query.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from tallymark.environment import CA_FILE, CERT_FILE, KEY_FILE

DEFAULT_PORT: Final = 15672
DEFAULT_TLS_PORT: Final = 15671
BULK: Final = 256 * 1024
"""Bytes of a long answer that its reader sleeps for: each time that it is woken costs both ends."""
RETRY_PAUSE_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
CONNECT_MS: Final = 5_000
"""Milliseconds for a connection to one of several hosts: a machine that is gone does not answer."""

Json = dict[str, Any]
Answer = TypeVar("Answer")


class BrokerRefused(RuntimeError):
    """The broker answered no: HTTP status, a word for machines (`error`), `reason` for humans."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status}, {error})")
        self.status = status
        self.error = error
        self.reason = reason

    def __reduce__(self) -> tuple[type[BrokerRefused], tuple[int, str, str]]:
        return type(self), (self.status, self.error, self.reason)


class Fenced(BrokerRefused):
    """Another reader attached to the subscription, or the offset is of another incarnation."""


class Gone(BrokerRefused):
    """A stream does not keep a part of the range any more."""


class WrongFile(ValueError):
    """Certificates or a key cannot be read from a file."""


class BrokerUnreachable(ConnectionError):
    """No answer within the time allowed for retries."""


class NotSecure(BrokerUnreachable):
    """No connection with TLS can be had there, however often it is tried."""


def shown_url(url: str) -> str:
    """An URL for a text that people read: without who asks, and with which password."""
    scheme, separator, rest = url.partition("://")
    if not scheme.isalnum():  # a password may have these signs, too
        scheme, separator, rest = "", "", url
    return repr(scheme + separator + rest.rpartition("@")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address of a broker's HTTP interface, with user and password. Picklable, without any
    connection."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of the brokers that stand by for this one, in the order in which they are
    tried: whichever answers is asked."""
    tls: bool = False
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    token: str = field(default="", repr=False)
    """OAuth 2 token, in place of user and password."""
    token_file: str = ""
    """File that has the token, read at each call: who renews it writes it there."""
    retry_ms: int = 60_000
    """Milliseconds for which a call is repeated while the broker cannot be reached."""
    ca_file: str = field(default_factory=lambda: os.environ.get(CA_FILE, ""))
    """With https: certificates of those who may sign the broker's; empty: the system's."""
    cert_file: str = field(default_factory=lambda: os.environ.get(CERT_FILE, ""))
    """With https: the certificate to show; empty: none. Its key may be in the same file."""
    key_file: str = field(default_factory=lambda: os.environ.get(KEY_FILE, ""))
    verify: bool = True
    """With https: whether the broker has to show a certificate that was signed so, of its host."""
    timeout_ms: int = 30_000
    """Milliseconds for one answer; a long poll has its own time on top."""

    @staticmethod
    def from_url(url: str, **rest: object) -> Endpoint:
        """`http[s]://[user:password@]host[:port],...`, with the hosts of a broker and of those that
        stand by for it; percent-escapes are decoded in user and password. Raises ValueError for
        anything else."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.netloc.rpartition("@")[2]:
            raise ValueError(
                f"url {shown_url(url)}: expected http://host:port or https://host:port"
            )
        if parts.path not in ("", "/") or parts.query:
            raise ValueError(f"url {shown_url(url)}: expected no path after host and port")
        tls = parts.scheme == "https"
        login, _, hosts = parts.netloc.rpartition("@")
        found = [_host_in(host, tls, url) for host in hosts.split(",")]
        if len(set(found)) != len(found):
            raise ValueError(f"url {shown_url(url)}: expected each host once")
        values: dict[str, Any] = {
            "host": found[0][0], "port": found[0][1], "others": tuple(found[1:]), "tls": tls,
        }  # fmt: skip
        if login:
            user, colon, password = login.partition(":")
            values["user"] = unquote(user)
            if colon:
                values["password"] = unquote(password)
        values.update((key, value) for key, value in rest.items() if value is not None)
        return Endpoint(**values)

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports, in the order in which they are tried."""
        return ((self.host, self.port), *self.others)

    def connection(self, which: int = 0) -> http.client.HTTPConnection:
        """Return one that is not open yet, to one of the hosts. Raises WrongFile."""
        host, port = self.hosts[which]
        timeout_s = self.timeout_ms / 1000
        if self.others:
            timeout_s = min(timeout_s, CONNECT_MS / 1000)
        if not self.tls:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is an OSError
            raise WrongFile(f"ca_file {self.ca_file!r}: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            try:
                context.load_cert_chain(self.cert_file, self.key_file or None)
            except OSError as error:
                files = f"cert_file {self.cert_file!r}, key_file {self.key_file!r}"
                raise WrongFile(f"{files}: {error}") from error
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)

    def authorization(self) -> str:
        """Return the header that says who asks. Raises WrongFile."""
        if self.token_file:
            try:
                token = Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise WrongFile(f"token_file {self.token_file!r}: {error}") from error
            return f"Bearer {token}"
        if self.token:
            return f"Bearer {self.token}"
        pair = f"{self.user}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")

    def __str__(self) -> str:
        hosts = ",".join(host_and_port(host, port) for host, port in self.hosts)
        return f"{'https' if self.tls else 'http'}://{hosts}"


def host_and_port(host: str, port: int) -> str:
    """Return a host and its port as a URL has them: an IPv6 address in brackets.

    >>> host_and_port("a", 1), host_and_port("::1", 2)
    ('a:1', '[::1]:2')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_in(text: str, tls: bool, url: str) -> tuple[str, int]:
    """Return host and port of `host[:port]`. Raises ValueError."""
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:  # its text may have a part of a password with a "#"
        port = 0
    if port == 0:
        raise ValueError(f"url {shown_url(url)}: expected a port from 1 to 65535")
    if not parts.hostname or parts.username is not None:
        raise ValueError(f"url {shown_url(url)}: expected hosts with commas, got {text!r}")
    return parts.hostname, port or (DEFAULT_TLS_PORT if tls else DEFAULT_PORT)


def api_path(*names: str) -> str:
    """`/api/tallymark/...`, every name quoted whole: a virtual host "/" is one step of the path.

    >>> api_path("subscriptions", "/", "orders", "table", "stat")
    '/api/tallymark/subscriptions/%2F/orders/table/stat'
    """
    return "/api/tallymark/" + "/".join(quote(name, safe="") for name in names)


def counted(number: int, one: str, many: str | None = None) -> str:
    """
    >>> counted(1, "row"), counted(2000, "row"), counted(0, "batch", "batches")
    ('1 row', '2,000 rows', '0 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class Client:
    """A keep-alive connection, opened at the first call and reopened when it is gone: to the next
    host, where the endpoint has several. One that stands by (503) is as good as gone.

    Not for two threads at once. Pickles as its endpoint alone; a forked child opens its own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._connection: http.client.HTTPConnection | None = None
        self._pid = 0
        self._at = 0
        """Index of the host that is asked."""

    def __reduce__(self) -> tuple[type[Client], tuple[Endpoint]]:
        return type(self), (self.endpoint,)

    def call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, wait_ms: int = 0
    ) -> Json:
        """The JSON object the broker answers.

        wait_ms: how long the broker itself may hold the answer back (a long poll).
        Raises BrokerRefused (Fenced for 409), or BrokerUnreachable after `retry_ms`.
        """
        answer = self.answer(method, path, body, wait_ms)
        if not isinstance(answer, dict):
            raise BrokerRefused(502, "bad_answer", f"{path}: expected a JSON object")
        return answer

    def answer(
        self, method: str, path: str, body: Mapping[str, object] | None = None, wait_ms: int = 0
    ) -> Any:
        """Return the JSON that the broker answers, as `call` does an object."""
        payload = None if body is None else json.dumps(body).encode()

        def attempt() -> Any:
            with self._request(method, path, payload, wait_ms) as response:
                return json_of(response.read() or b"{}", path)

        return self._retried(path, attempt)

    def get(self, path: str, query: Mapping[str, object]) -> bytes:
        """Return the whole body of an answer; an incomplete one is asked for again."""
        return self.fetch(path, query)[0]

    def fetch(
        self, path: str, query: Mapping[str, object]
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Return the body of an answer and its headers, whose names have no case."""

        def attempt() -> tuple[bytes, http.client.HTTPMessage]:
            with self._request("GET", f"{path}?{urlencode(query)}", None, 0) as response:
                return response.read(), response.headers

        return self._retried(path, attempt)

    def patient(self, method: str, path: str) -> Json:
        """Call, and report on stderr at once when the broker cannot be reached, before trying
        again."""
        soon = min(self.endpoint.timeout_ms, 5_000)
        once = Client(replace(self.endpoint, retry_ms=0, timeout_ms=soon))
        try:
            return once.call(method, path)
        except BrokerUnreachable as failure:
            if self.endpoint.retry_ms == 0 or isinstance(failure, NotSecure):
                raise
            seconds = self.endpoint.retry_ms / 1000
            print(
                f"tallymark: cannot reach {self.endpoint} ({failure.__cause__}), trying for "
                f"{seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            return self.call(method, path)
        finally:
            once.close()

    def close(self) -> None:
        """Drop the connection. To the broker this means nothing: no lease is given back."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            connection.close()

    def _retried(self, path: str, attempt: Callable[[], Answer]) -> Answer:
        deadline = time.monotonic() + self.endpoint.retry_ms / 1000
        pauses = iter(RETRY_PAUSE_S)
        pause = RETRY_PAUSE_S[0]
        tried = lasting = 0
        while True:
            try:
                return attempt()
            except (OSError, http.client.HTTPException, _NotReady) as failure:
                self.close()
                self._at = (self._at + 1) % len(self.endpoint.hosts)
                tried += 1
                why = _lasting(failure)
                lasting += why is not None
                if tried % len(self.endpoint.hosts):
                    continue  # another one may lead
                if lasting == len(self.endpoint.hosts):
                    raise NotSecure(f"{self.endpoint}{path}: {why}") from failure
                lasting = 0
                pause = next(pauses, pause)
                if time.monotonic() + pause > deadline:
                    raise BrokerUnreachable(
                        f"{self.endpoint}{path}: no answer within {self.endpoint.retry_ms} ms "
                        f"(last: {failure or type(failure).__name__}"
                        f"{_hint(failure, self.endpoint)})"
                    ) from failure
                time.sleep(pause)

    @contextmanager
    def _request(
        self, method: str, path: str, payload: bytes | None, wait_ms: int
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connected()
        if connection.sock is not None:
            connection.sock.settimeout((self.endpoint.timeout_ms + wait_ms) / 1000)
        headers = {"Authorization": self.endpoint.authorization()}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, payload, headers)
        with connection.getresponse() as response:
            if response.status == http.client.SERVICE_UNAVAILABLE:
                raise _NotReady(str(_refusal(response, path)))
            if response.status >= 300:
                raise _refusal(response, path)
            yield response

    def _connected(self) -> http.client.HTTPConnection:
        connection = self._connection if self._pid == os.getpid() else None
        if connection is None or connection.sock is None:  # closed behind an answer
            connection = self._connection = self.endpoint.connection(self._at)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self.endpoint.tls and sys.platform == "linux":
                connection.sock = _BulkSocket(fileno=connection.sock.detach())
            self._pid = os.getpid()
        return connection


class _BulkSocket(socket.socket):
    """A socket whose large reads sleep until a good part is there: BULK bytes, or all that is asked
    for. Only who knows that so much will come may ask for it, as http.client does of a body whose
    length was said; it asks for no more than a few KiB otherwise."""

    _least = 1

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        wanted = nbytes or memoryview(buffer).nbytes
        least = min(wanted, BULK) if wanted > BULK // 8 else 1
        if least != self._least:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._least = least
        return super().recv_into(buffer, nbytes, flags)


def _lasting(failure: Exception) -> str | None:
    """Return what is wrong with TLS at that host, and will be the next time, too; else None."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {failure.verify_message}. caFile (--ca-file, "
            f"{CA_FILE}) names the certificates of those who may sign it"
        )
    if isinstance(failure, ssl.SSLError) and failure.reason == "WRONG_VERSION_NUMBER":
        return "this port has no TLS: expected the broker's https port, or http:// for this one"
    return None


def _hint(failure: Exception, endpoint: Endpoint) -> str:
    """Return what it may mean that the other side hung up before it said a word."""
    if not isinstance(failure, http.client.RemoteDisconnected | ssl.SSLEOFError):
        return ""
    if not endpoint.tls:
        return "; a port that expects https:// does so"
    return (
        "; a broker that requires a client certificate does so where none is shown that it "
        "accepts: certFile, keyFile"
    )


class _NotReady(Exception):
    """503: the broker is starting, stopping or without disk space, or holds publishers back."""


def json_of(body: bytes, path: str) -> Any:
    """Return the value that an answer's body says. Raises BrokerRefused where it is no JSON."""
    try:
        return json.loads(body)
    except ValueError:
        said = body[:80].decode("utf-8", "replace")
        raise BrokerRefused(502, "bad_answer", f"{path}: expected JSON, got {said!r}") from None


def _refusal(response: http.client.HTTPResponse, path: str) -> BrokerRefused:
    text = response.read().decode("utf-8", "replace")
    error, reason = str(response.status), text.strip() or response.reason
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None  # not our broker's words, or a proxy's page: shown as they are
    if isinstance(answer, dict):
        error, reason = str(answer.get("error", error)), str(answer.get("reason", reason))
    if 300 <= response.status < 400:  # a proxy's word: the broker sends nobody elsewhere
        reason = f"sent on to {response.headers.get('Location')!r}, expected the broker itself"
    made = _REFUSALS.get(response.status, BrokerRefused)
    return made(response.status, error, f"{path}: {reason}")


_REFUSALS: Final = {http.client.CONFLICT: Fenced, http.client.GONE: Gone}


class CannotRun(RuntimeError):
    """A command is refused, before or while it works; the text is one line for people."""
