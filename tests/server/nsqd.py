"""What the tests of nsqd's HTTP interface share."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any, Self

from tallymark.wire.nsq import commands
from tallymark.wire.nsq.commands import MAGIC
from tallymark.wire.nsq.frames import ERROR, MESSAGE, RESPONSE, decode_message, split_frames
from tests.support.patience import PATIENCE_S


def call(
    base: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (small letters) and body."""
    request = urllib.request.Request(f"{base}{path}", data=body, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            raw, status, found = response.read(), response.status, response.headers
    except urllib.error.HTTPError as error:
        with error:
            raw, status, found = error.read(), error.code, error.headers
    return status, {name.lower(): value for name, value in found.items()}, raw


def post(base: str, path: str, body: bytes = b"") -> bytes:
    """Something that succeeds; returns the answer's body."""
    status, _, raw = call(base, "POST", path, body)
    assert status == 200, (path, status, raw)
    return raw


def refused(base: str, path: str, body: bytes = b"", method: str = "POST") -> tuple[int, str]:
    """Status and code of a refusal."""
    status, headers, raw = call(base, method, path, body)
    assert status >= 400, (path, status, raw)
    assert headers["content-type"] == "application/json; charset=utf-8"
    answer = json.loads(raw)
    assert list(answer) == ["message"]
    return status, answer["message"]


def stats(base: str, query: str = "") -> dict[str, Any]:
    """/stats as JSON."""
    status, headers, raw = call(base, "GET", f"/stats?format=json{query}")
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    found: dict[str, Any] = json.loads(raw)
    return found


def topic(base: str, name: str) -> dict[str, Any]:
    """The row of one topic."""
    (row,) = stats(base, f"&topic={name}")["topics"]
    return dict(row)


def channel(base: str, of: str, name: str) -> dict[str, Any]:
    """The row of one channel."""
    (row,) = [one for one in topic(base, of)["channels"] if one["channel_name"] == name]
    return dict(row)


class Client:
    """A client of the NSQ protocol on a bare socket, one step after the other."""

    def __init__(self, port: int, **identify: Any) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        # A command after one without an answer would wait 40 ms for the broker's system.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._frames: list[tuple[int, bytes]] = []
        self.send(MAGIC)
        self.about: dict[str, Any] = {}
        if identify:
            self.send(commands.identify(json.dumps(identify).encode()))
            kind, data = self.next()
            assert kind == RESPONSE, data
            self.about = json.loads(data) if data != b"OK" else {}

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat: its type and data."""
        while True:
            while not self._frames:
                data = self._socket.recv(1 << 16)
                assert data, "the broker hung up"
                self._frames, self._unread = split_frames(self._unread + data)
            frame = self._frames.pop(0)
            if frame != (RESPONSE, b"_heartbeat_"):
                return frame

    def put_back(self, frame: tuple[int, bytes]) -> None:
        """Have `next` return it again."""
        self._frames.insert(0, frame)

    def ok(self, command: bytes) -> None:
        """A command that is answered with OK."""
        self.send(command)
        assert self.next() == (RESPONSE, b"OK"), command

    def error(self, command: bytes) -> str:
        """A command that is answered with an error."""
        self.send(command)
        kind, data = self.next()
        assert kind == ERROR, data
        return data.decode()

    def message(self) -> tuple[int, int, bytes]:
        """The next message: id, attempts, body."""
        kind, data = self.next()
        assert kind == MESSAGE, data
        _, attempts, id, body = decode_message(data)
        return int(id, 16), attempts, body

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
