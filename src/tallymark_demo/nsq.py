"""The demo's third client: NSQ on a bare socket, one step after the other."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Final, Self

from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import (
    CLOSE_WAIT,
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    RESPONSE,
    decode_message,
    split_frames,
)
from tallymark_demo.stage import CheckFailed

PATIENCE_S: Final = 20.0
READ_SIZE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a worker got it."""

    id: int
    attempts: int
    body: bytes
    at_s: float
    """time.monotonic() when it was read."""


class NsqClient:
    """Raises CheckFailed when the broker hangs up, is silent for too long, or answers other than
    expected."""

    def __init__(self, port: int, name: str, *, msg_timeout_ms: int = 0) -> None:
        """`msg_timeout_ms`: how long it may hold a message; 0: the broker's default."""
        self.name = name
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._unread = b""
        self._frames: list[tuple[int, bytes]] = []
        about = {"client_id": name, "user_agent": "tallymark demo", "msg_timeout": msg_timeout_ms}
        self._call(commands.MAGIC + commands.identify(json.dumps(about).encode()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def subscribe(self, topic: str, channel: str) -> None:
        self._call(commands.sub(topic, channel))

    def publish(self, topic: str, bodies: list[bytes]) -> None:
        """One MPUB. Returns when the broker has them on disk."""
        self._call(commands.mpub(topic, bodies))

    def send(self, command: bytes) -> None:
        """A command that has no answer."""
        try:
            self._socket.sendall(command)
        except OSError as error:
            raise CheckFailed(f"{self.name}: {error}") from error

    def stop(self) -> None:
        """CLS: no more messages come."""
        self.send(commands.CLS)
        self._expect(RESPONSE, CLOSE_WAIT)

    def message(self) -> Delivery:
        """The next one."""
        content = self._expect(MESSAGE)
        _, attempts, id, body = decode_message(content)
        return Delivery(int(id, 16), attempts, body, time.monotonic())

    def refusal(self) -> str:
        """The error that comes next, as text."""
        return self._expect(ERROR).decode()

    def _call(self, command: bytes) -> None:
        self.send(command)
        self._expect(RESPONSE, OK)

    def _expect(self, kind: int, content: bytes | None = None) -> bytes:
        found = self._next()
        if found[0] != kind or content not in (None, found[1]):
            wanted = content or ("response", "error", "message")[kind]
            raise CheckFailed(f"{self.name} got {found}, expected {wanted!r}")
        return found[1]

    def _next(self) -> tuple[int, bytes]:
        while True:
            while not self._frames:
                self._frames, self._unread = split_frames(self._unread + self._read())
            frame = self._frames.pop(0)
            if frame != (RESPONSE, HEARTBEAT):
                return frame
            self.send(commands.NOP)

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(READ_SIZE)
        except OSError as error:
            raise CheckFailed(f"{self.name}: {error}") from error
        if not data:
            raise CheckFailed(f"{self.name}: the broker hung up")
        return data
