"""Hostile behaviours of HTTP: the management interface, /metrics and nsqd's HTTP interface."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from bench.lean import PERSISTENT, method, publish
from tests.siege.amqp091 import CHANNEL_CLOSE, declare, flood
from tests.siege.attack import Line, Worker, authorization, behaviour

MIB = 1 << 20
END: Final = b"\r\n"
HTTP_PORTS: Final = (("http", "", True), ("nsq_http", "_nsq", False))
"""Port, ending of the names, whether RabbitMQ has it."""


def request(
    worker: Worker, method: str, path: str, headers: bytes = b"", body: bytes | None = None
) -> bytes:
    """By the attacker's user, on a connection that is kept. headers end with CRLF."""
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        + worker.basic + length + headers + END + (body or b"")
    )  # fmt: skip


async def answered(line: Line, data: bytes) -> int:
    """The status of a request whose answer's length is said; what it says is thrown away."""
    await line.send(data)
    head, _, body = (await line.until(b"\r\n\r\n")).partition(b"\r\n\r\n")
    length = 0
    for field in head.lower().split(b"\r\n"):
        if field.startswith(b"content-length:"):
            length = int(field[15:])
    while len(body) < length:
        body += await line.read()
    return int(head[9:12])


async def asked(worker: Worker, method: str, path: str, value: object, credentials: str) -> None:
    """One request by somebody else, on a connection of its own."""
    line = await worker.line("http")
    body = json.dumps(value).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
    ).encode()
    await answered(line, head + authorization(credentials) + END + body)
    line.close()


def both(
    name: str, title: str, act: Callable[[Worker, str], Awaitable[None]], workers: int = 100
) -> None:
    """The same on both HTTP ports."""
    for port, ending, has in HTTP_PORTS:

        async def one(worker: Worker, port: str = port) -> None:
            await act(worker, port)

        one.__name__ = name + ending
        behaviour(port, title, workers=workers, rabbitmq=has)(one)


def a_path(port: str) -> str:
    return "/api/overview" if port == "http" else "/stats?format=json"


def a_post(port: str) -> tuple[str, str]:
    return ("PUT", "/api/queues/siege/posted") if port == "http" else ("POST", "/pub?topic=posted")


# -- slow


async def _silent(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.step()
    await line.drain()


async def _request_line(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.beside(line.drain)
    worker.step()
    await line.drip(f"GET {a_path(port)}".encode(), 0.2)


async def _header(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.beside(line.drain)
    await line.send(request(worker, "GET", a_path(port))[:-2])
    worker.step()
    await line.drip(b"X-A: " + b"a" * 1000, 0.2)


async def _body(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.beside(line.drain)
    verb, path = a_post(port)
    await line.send(request(worker, verb, path, b"Content-Length: 1000\r\n"))
    worker.step()
    await line.drip(b"{" * 1000, 0.2)


async def _chunks(worker: Worker, port: str) -> None:
    """A body of chunks that never ends."""
    line = await worker.line(port)
    worker.beside(line.drain)
    verb, path = a_post(port)
    await line.send(request(worker, verb, path, b"Transfer-Encoding: chunked\r\n"))
    chunk = b"%x\r\n" % 65536 + b" " * 65536 + END
    while True:
        await line.send(chunk)
        worker.step()


both("silent_http", "silent connections", _silent, 400)
both("request_line", "request line that drips", _request_line)
both("http_header", "header that drips", _header)
both("http_body", "body that drips", _body)
both("chunks", "chunks without end", _chunks, 8)


@behaviour("nsq_https", "silent connections where TLS is spoken", workers=200)
async def silent_https(worker: Worker) -> None:
    line = await worker.line("nsq_https")
    worker.step()
    await line.drain()


# -- what costs to read


async def _headers(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.beside(line.drain)
    await line.send(f"GET {a_path(port)} HTTP/1.1\r\nHost: localhost\r\n".encode())
    for n in range(20_000):
        await line.send(b"".join(b"X-%d-%d: a\r\n" % (n, m) for m in range(50)))
        worker.step(50)


async def _long_header(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.beside(line.drain)
    await line.send(f"GET {a_path(port)} HTTP/1.1\r\nHost: localhost\r\nX: ".encode())
    while True:
        await line.send(b"a" * 65536)
        worker.step()


async def _json(worker: Worker, port: str) -> None:
    """JSON in JSON, and numbers of many digits."""
    line = await worker.line(port)
    verb, path = a_post(port)
    kinds = [b"[" * 500_000, b'{"arguments":' * 50_000, b'{"a":' + b"9" * 500_000 + b"}"]
    for body in kinds:
        await line.send(request(worker, verb, path, body=body))
        await line.until(b"\r\n\r\n")
        worker.step()


async def _gzip(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    worker.beside(line.drain)
    verb, path = a_post(port)
    body = gzip.compress(b" " * MIB, 9) * 64
    await line.send(request(worker, verb, path, b"Content-Encoding: gzip\r\n", body))
    worker.step()
    await line.drain()


both("headers", "headers without end", _headers, 4)
both("long_header", "a header without end", _long_header, 4)
both("json_body", "JSON nested 500,000 deep, and a number of 500,000 digits", _json, 2)
both("gzip_body", "a gzipped body of 64 kB that stands for 64 MiB", _gzip, 4)


# -- doors


async def _smuggled(worker: Worker, port: str) -> None:
    """Two ways to say where a body ends, and in it another request."""
    inside = request(worker, "GET", a_path(port))
    verb, path = a_post(port)
    chunked = b"Transfer-Encoding: chunked\r\n"
    ways = [
        b"Content-Length: %d\r\n" % (len(inside) + 5) + chunked,
        b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(inside),
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5, 6\r\n",
        b"X: a\rContent-Length: 5\r\n",
    ]
    for way in ways:
        line = await worker.line(port)
        await line.send(request(worker, verb, path, way) + b"0\r\n\r\n" + inside)
        await line.read()
        worker.step()
        line.close()


async def _rebinding(worker: Worker, port: str) -> None:
    """A name that somebody else has made point here."""
    line = await worker.line(port)
    data = request(worker, "GET", a_path(port)).replace(b"localhost", b"evil.example.com")
    worker.beside(line.drain)
    while True:
        await line.send(data * 10)
        worker.step(10)
        await asyncio.sleep(0)


async def _origin(worker: Worker, port: str) -> None:
    """A form on another page."""
    line = await worker.line(port)
    verb, path = a_post(port)
    worker.beside(line.drain)
    headers = b"Origin: http://evil.example.com\r\nContent-Type: text/plain\r\n"
    while True:
        await line.send(request(worker, verb, path, headers, b"{}") * 10)
        worker.step(10)
        await asyncio.sleep(0)


async def _paths(worker: Worker, port: str) -> None:
    base = "/api/queues" if port == "http" else "/pub"
    tricks = [
        "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd",
        base + "/%00", base + "/siege/%ff%fe", base + "//..//", base + "/" + "a" * 6000,
        base + "/" + "%2f" * 2000, base + "/siege/a%0d%0aX:%20y", "/" + "../" * 1500,
        base + "?" + "a=b&" * 1500, base + "?topic=%00", "*", "http://127.0.0.1:1/", "/%",
    ]  # fmt: skip
    for path in tricks:
        line = await worker.line(port)
        await line.send(request(worker, "GET", path))
        await line.read()
        worker.step()
        line.close()


async def _logins(worker: Worker, port: str) -> None:
    line = await worker.line(port)
    wrong = authorization(f"{worker.target.other}:{os.urandom(4).hex()}")
    data = f"GET {a_path(port)} HTTP/1.1\r\nHost: localhost\r\n".encode() + wrong + END
    while True:
        await answered(line, data)
        worker.step()


both("smuggled", "smuggled requests: two lengths, length and chunks", _smuggled, 4)
both("rebinding", "a Host of somebody else's (DNS rebinding)", _rebinding, 2)
both("origin", "posts of another page (Origin)", _origin, 2)
both("paths", "path tricks: .., %2e, %00, 6,000 letters", _paths, 4)
both("logins", "wrong passwords", _logins, 20)


@behaviour("http", "a user goes on after its rights are gone", workers=2)
async def revoked(worker: Worker) -> None:
    """Given rights, connected, robbed of them; then it publishes and declares nevertheless."""
    name = f"former{worker.number}"
    administrator = worker.target.administrator
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    vhost = worker.target.vhost
    await asked(worker, "PUT", f"/api/users/{name}", {"password": name, "tags": ""}, administrator)
    path = f"/api/permissions/{vhost}/{name}"
    await asked(worker, "PUT", path, rights, administrator)
    former = Worker(replace(worker.target, user=name, password=name), worker.number, worker.count)
    try:
        line = await former.opened()
        await line.send(declare("former"))
        await line.until(b"\0\x32\0\x0b")
        await asked(worker, "PUT", path, dict.fromkeys(rights, "^$"), administrator)
        attempts = publish(1, "", "former", PERSISTENT, b"x") + declare("another")
        for _ in range(20):
            await line.send(attempts)
            await line.until(CHANNEL_CLOSE)
            worker.step()
            await line.send(method(1, (20, 41)) + method(1, (20, 10), b"\0"))
            await line.until(b"\0\x14\0\x0b")
        await asked(worker, "DELETE", f"/api/users/{name}", {}, administrator)
        await line.drain()
    finally:
        former.hang_up()


# -- patterns


@behaviour("http", "policies whose patterns backtrack, on long names of queues")
async def policies(worker: Worker) -> None:
    line = await worker.line("http")
    amqp = await worker.opened()
    await amqp.send(b"".join(declare("a" * 60 + str(n)) for n in range(50)))
    for n in range(10_000):
        pattern = ["^(a+)+$", "^(a|aa)+$", "(.*a){25}b", "^(([a-z])+.)+[A-Z]([a-z])+$"][n % 4]
        body = json.dumps({"pattern": pattern, "definition": {"max-length": 5}}).encode()
        await answered(line, request(worker, "PUT", f"/api/policies/siege/p{n % 4}", body=body))
        await amqp.send(declare("a" * 100 + f"{n % 10}!"))
        worker.step()


@behaviour("http", "policies set and deleted, over 200 queues")
async def policy_churn(worker: Worker) -> None:
    line = await worker.line("http")
    amqp = await worker.opened()
    await amqp.send(b"".join(declare(f"ruled-{n}") for n in range(200)))
    for n in range(10_000):
        fields = {"pattern": "^ruled", "definition": {"max-length": n + 1}, "priority": n % 5}
        body = json.dumps(fields).encode()
        await answered(line, request(worker, "PUT", "/api/policies/siege/churn", body=body))
        await answered(line, request(worker, "DELETE", "/api/policies/siege/churn"))
        worker.step()


@behaviour("http", "lists filtered by patterns that backtrack", workers=4)
async def filters(worker: Worker) -> None:
    line = await worker.line("http")
    amqp = await worker.opened()
    await amqp.send(b"".join(declare("a" * 80 + f"{n}!") for n in range(100)))
    path = "/api/queues/siege?page=1&page_size=100&use_regex=true&name=%5E(a%2B)%2B%24"
    while True:
        await answered(line, request(worker, "GET", path))
        worker.step()


# -- answers that nobody reads


async def _many(worker: Worker) -> None:
    amqp = await worker.opened()
    await amqp.send(b"".join(declare(f"listed-{n}", flags=2) for n in range(500)))


@behaviour("http", "lists of 500 queues, a thousand at a time, nothing read", workers=4)
async def unread_lists(worker: Worker) -> None:
    await _many(worker)
    line = await worker.line("http")
    while True:
        await line.send(request(worker, "GET", "/api/queues") * 100)
        worker.step(100)


@behaviour("http", "lists asked for and read, all the time", workers=4)
async def lists(worker: Worker) -> None:
    await _many(worker)
    line = await worker.line("http")
    await flood(worker, line, request(worker, "GET", "/api/queues"), 1)


@behaviour("http", "/metrics a thousand at a time, nothing read", workers=4, rabbitmq=False)
async def unread_metrics(worker: Worker) -> None:
    await _many(worker)
    line = await worker.line("http")
    while True:
        await line.send(request(worker, "GET", "/metrics") * 100)
        worker.step(100)


@behaviour("nsq_http", "/stats a thousand at a time, nothing read", workers=4)
async def unread_stats(worker: Worker) -> None:
    line = await worker.line("nsq_http")
    for n in range(100):
        await answered(line, request(worker, "POST", f"/topic/create?topic=t{n}", body=b""))
    other = await worker.line("nsq_http")
    while True:
        await other.send(request(worker, "GET", "/stats?format=json") * 100)
        worker.step(100)


@behaviour("http", "connections opened and dropped", workers=8)
async def churn_http(worker: Worker) -> None:
    line = await worker.line("http")
    await answered(line, request(worker, "GET", "/api/whoami"))
    worker.step()
