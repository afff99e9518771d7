"""A client of the broker's HTTP interface over the simulated network: one connection that is kept,
one request at a time."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, Final

from tallymark.simulation.loop import SimulatedLoop
from tallymark.simulation.network import End, Network
from tallymark.simulation.process import HTTP

END_OF_HEAD: Final = b"\r\n\r\n"
TIMEOUT_S: Final = 15.0


class Refused(Exception):
    """The broker answered no."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


class NotReady(OSError):
    """The broker answered 503: ask again later."""


class _Line(asyncio.Protocol):
    """One connection; its one request is answered when the whole answer is there."""

    transport: End

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread = bytearray()
        self.answer: asyncio.Future[tuple[int, dict[str, str], bytes]] | None = None
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        answer = self.answer
        if answer is not None and not answer.done():
            found = answer_in(bytes(self._unread))
            if found is not None:
                self._unread.clear()
                answer.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionResetError("gone before the answer"))


def answer_in(data: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """Return status, headers and body of an answer; None while it is not whole."""
    at = data.find(END_OF_HEAD)
    if at < 0:
        return None
    first, *lines = data[:at].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    body: bytes | None = data[at + len(END_OF_HEAD) :]
    assert body is not None
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    elif len(body) < int(headers.get("content-length", "0")):
        body = None
    return None if body is None else (int(first.split()[1]), headers, body)


def _unchunked(data: bytes) -> bytes | None:
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end], 16)
        at = end + 2 + size + 2
        if at > len(data):
            return None
        if not size:
            return b"".join(parts)
        parts.append(data[end + 2 : end + 2 + size])
    return None


class HttpClient:
    """Requests of one program, as one user."""

    def __init__(
        self, network: Network, loop: SimulatedLoop, user: str = "guest", password: str = "guest"
    ) -> None:
        self._network = network
        self._loop = loop
        self._line: _Line | None = None
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._head = f"Host: broker\r\nAuthorization: Basic {pair}\r\n"

    async def call(self, method: str, path: str, value: object = None, wait_s: float = 0) -> Any:
        """Return the JSON of an answer. wait_s: as long as the broker may hold it back. Raises
        Refused; OSError: nobody knows whether it was done."""
        body = b"" if value is None else json.dumps(value).encode()
        found = await self.fetch(method, path, body, "application/json", wait_s)
        return json.loads(found[1]) if found[1] else None

    async def fetch_json(self, method: str, path: str, body: bytes) -> Any:
        """Return the JSON of an answer to bytes. Raises as `call`."""
        return json.loads((await self.fetch(method, path, body))[1])

    async def fetch(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "application/octet-stream",
        wait_s: float = 0,
    ) -> tuple[dict[str, str], bytes]:
        """Return headers and body of an answer. Raises as `call`."""
        line = await self._connected()
        line.answer = self._loop.create_future()
        length = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        line.transport.write(
            f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n".encode("latin-1") + body
        )
        try:
            status, headers, found = await asyncio.wait_for(line.answer, TIMEOUT_S + wait_s)
        except OSError:  # a TimeoutError is one
            self.close()
            raise
        if headers.get("connection") == "close":
            self.close()
        if status == 503:
            raise NotReady(found.decode())
        if status >= 400:
            raise Refused(status, found.decode())
        return headers, found

    def close(self) -> None:
        """Drop the connection."""
        line, self._line = self._line, None
        if line is not None:
            line.transport.abort()

    async def _connected(self) -> _Line:
        if self._line is None or self._line.is_lost or self._line.transport.is_closing():
            _, self._line = await self._network.connect(self._loop, HTTP, lambda: _Line(self._loop))
            assert self._line is not None
        return self._line
