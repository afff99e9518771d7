"""One line per frame, for people [TALLYMARK_TRACE=frames]:

    -> AMQP 0 1.0.0
    <- [0] Open container-id='broker' max-frame-size=131072 channel-max=255
    -> [1] Transfer handle=0 delivery-id=0 delivery-tag=00000000 message-format=0 +21
    <- [1] Disposition role=receiver first=0 settled=True state=Accepted
    <- [0] (empty)

`->` is what we send. Fields that are absent or have their default are left out; `+21` is a payload
of 21 bytes, of which nothing is shown. Of SASL responses and challenges only the size is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.wire.amqp10.composites import BY_CLASS, Composite
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.frames import SASL, frame_head
from tallymark.wire.amqp10.performatives import decode_performative
from tallymark.wire.amqp10.sasl import decode_sasl

RECEIVED: Final = "<-"
SENT: Final = "->"

SHOWN_MAX: Final = 200
"""Maximum number of characters of one field."""
HELD_MAX: Final = 16 * 1024 * 1024
"""Largest frame that is awaited, bytes; behind a longer one nothing more is traced."""

_SECRET: Final = frozenset(("initial_response", "response", "challenge", "additional_data"))


@final
class Tracer:
    """Traces one direction of a connection: takes bytes in any portions, returns lines."""

    __slots__ = ("_arrow", "_data", "_emit", "_is_lost")

    def __init__(self, arrow: str, emit: Callable[[str], None]) -> None:
        self._arrow = arrow
        self._emit = emit
        self._data = b""
        self._is_lost = False

    def add(self, data: bytes) -> None:
        """Call back once for each frame or protocol header that is complete now. O(bytes) for reads
        of whole frames."""
        if self._is_lost:
            return
        data = self._data + data if self._data else data
        pos = 0
        while pos + 8 <= len(data):
            if data.startswith(b"AMQP", pos):
                self._say(_header(data[pos : pos + 8]))
                pos += 8
                continue
            try:
                size, offset, kind, channel = frame_head(data, pos)
            except DecodeError as error:
                self._lose(str(error))
                return
            if size > HELD_MAX:
                self._lose(f"frame of {size} bytes")
                return
            if pos + size > len(data):
                break
            self._say(_frame(data, pos + offset, pos + size, kind, channel))
            pos += size
        self._data = data[pos:]

    def _say(self, line: str) -> None:
        self._emit(f"{self._arrow} {line}")

    def _lose(self, why: str) -> None:
        """Stop tracing: the beginning of the next frame is not known."""
        self._is_lost = True
        self._data = b""
        self._say(f"(not traced any further: {why})")


def _header(header: bytes) -> str:
    return f"AMQP {header[4]} {header[5]}.{header[6]}.{header[7]}"


def _frame(data: bytes, pos: int, end: int, kind: int, channel: int) -> str:
    where = "[sasl]" if kind == SASL else f"[{channel}]"
    if pos == end:
        return f"{where} (empty)"
    body: Composite
    try:
        if kind == SASL:
            body, after = decode_sasl(data, pos, end)
        else:
            body, after = decode_performative(data, pos, end)
    except DecodeError as error:
        return f"{where} (malformed, {end - pos} bytes: {error})"
    payload = f" +{end - after}" if end > after else ""
    return f"{where} {shown(body)}{payload}"


def shown(composite: Composite) -> str:
    """Return class and fields in one line."""
    text = type(composite).__name__
    for field in BY_CLASS[type(composite)].fields:
        value = getattr(composite, field.name)
        if value != field.default and value is not None:
            text += f" {field.name.replace('_', '-')}={_value(field.name, value)}"
        elif field.name == "role":
            text += " role=sender"
    return text


def _value(name: str, value: object) -> str:
    if name in _SECRET and isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if name == "role":
        return "receiver" if value else "sender"
    text = _plain(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def _plain(value: object) -> str:
    """Return the value without AMQP's types, which are mostly obvious."""
    if isinstance(value, Composite):
        inner = shown(value)
        return f"({inner})" if " " in inner else inner
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, bool) or not isinstance(value, (int, tuple, list, dict)):
        return repr(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, dict):
        pairs = [f"{_plain(key)}: {_plain(one)}" for key, one in value.items()]
        return "{" + ", ".join(pairs) + "}"
    return "[" + ", ".join([_plain(one) for one in value]) + "]"
