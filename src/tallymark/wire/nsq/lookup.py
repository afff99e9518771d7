"""A client of nsqlookupd, protocol V1, without I/O: it registers the places of topics and channels.

    "  V1", then commands: IDENTIFY with a JSON body, REGISTER, UNREGISTER, PING
    answers: size (4, big-endian), data; in the order of the commands

nsqlookupd sends every error and then closes. After a disconnect the owner begins anew, with
IDENTIFY and all registrations.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Final, final

from tallymark.wire.line import Inbox
from tallymark.wire.nsq.commands import sized
from tallymark.wire.nsq.identify import encode_json

MAGIC: Final = b"  V1"
PING_INTERVAL_MS: Final = 15_000
"""Interval between pings, as in nsqd, ms."""
ANSWER_TIMEOUT_MS: Final = 1000
"""Time-out for an answer before a reconnect, as in nsqd, ms."""
ANSWER_MAX: Final = 5_242_880


@final
class LookupAnswer:
    """The answer to one command. `error` is empty if it succeeded."""

    __slots__ = ("command", "error", "info")

    def __init__(self, command: str, error: str, info: dict[str, object]) -> None:
        self.command = command
        """Command as sent, without its body: `REGISTER topic channel`."""
        self.error = error
        """Error text `E_...`: nsqlookupd closes now. Empty on success."""
        self.info = info
        """Content of the answer to IDENTIFY: tcp_port, http_port, version, hostname,
        broadcast_address of nsqlookupd."""


class LookupdError(Exception):
    """The input is no answer of nsqlookupd: disconnect."""


@final
class LookupClient:
    """One connection to one nsqlookupd. The owner writes `out`, passes input in and takes
    answers."""

    __slots__ = ("_inbox", "_unanswered", "out")

    def __init__(
        self,
        *,
        version: str,
        tcp_port: int,
        http_port: int,
        hostname: str,
        broadcast_address: str,
        topology_region: str = "",
        topology_zone: str = "",
    ) -> None:
        self.out: list[bytes] = []
        """Output to write; the owner takes it and clears the list."""
        self._inbox = Inbox(4)
        self._unanswered: deque[str] = deque()
        about: dict[str, object] = {
            "version": version,
            "tcp_port": tcp_port,
            "http_port": http_port,
            "hostname": hostname,
            "broadcast_address": broadcast_address,
        }
        if topology_region:
            about["topology_region"] = topology_region
        if topology_zone:
            about["topology_zone"] = topology_zone
        self.out.append(MAGIC)
        self._send("IDENTIFY", sized(encode_json(about)))

    def register(self, topic: str, channel: str = "") -> None:
        """Append REGISTER; an empty `channel` means the topic alone."""
        self._send(f"REGISTER {topic} {channel}".rstrip(), b"")

    def unregister(self, topic: str, channel: str = "") -> None:
        """Append UNREGISTER; an empty `channel` means the topic and all its channels."""
        self._send(f"UNREGISTER {topic} {channel}".rstrip(), b"")

    def ping(self) -> None:
        self._send("PING", b"")

    def unanswered(self) -> int:
        """Return how many commands wait for their answers."""
        return len(self._unanswered)

    def _send(self, command: str, body: bytes) -> None:
        self._unanswered.append(command)
        self.out.append(command.encode() + b"\n" + body)

    def receive_data(self, data: bytes) -> None:
        if data:
            self._inbox.add(data)

    def next_answer(self) -> LookupAnswer | None:
        """Return the next answer; None: more bytes are needed. Raises LookupdError for malformed
        input."""
        inbox = self._inbox
        while inbox.gather():
            data = inbox.data
            pos = inbox.pos
            left = len(data) - pos
            if left < 4:
                inbox.need = 4
                continue
            size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
            if not 0 <= size <= ANSWER_MAX:
                raise LookupdError(f"answer of {size} bytes, expected 0 to {ANSWER_MAX}")
            if not self._unanswered:
                raise LookupdError("an answer to no command")
            if left < 4 + size:
                inbox.need = 4 + size
                continue
            inbox.advance(pos + 4 + size, 1)
            return _answer(self._unanswered.popleft(), data[pos + 4 : pos + 4 + size])
        return None


def _answer(command: str, content: bytes) -> LookupAnswer:
    if content == b"OK":
        return LookupAnswer(command, "", {})
    if command == "IDENTIFY" and content.startswith(b"{"):
        try:
            info: dict[str, object] = json.loads(content.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise LookupdError("the answer to IDENTIFY is not JSON") from None
        return LookupAnswer(command, "", info)
    return LookupAnswer(command, content.decode("utf-8", "replace"), {})
