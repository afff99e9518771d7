"""Errors of peers, with nsqd's texts [NQ-5, NQ-A4].

Decoders raise `WireError` and nothing else, whatever the bytes. The connection turns it into a
`ProtocolFailure`; the owner answers that with `Connection.send_error`, in its turn.
"""

from __future__ import annotations

from typing import Final, final

E_INVALID: Final = "E_INVALID"
E_BAD_BODY: Final = "E_BAD_BODY"
E_BAD_TOPIC: Final = "E_BAD_TOPIC"
E_BAD_CHANNEL: Final = "E_BAD_CHANNEL"
E_BAD_MESSAGE: Final = "E_BAD_MESSAGE"
E_BAD_PROTOCOL: Final = "E_BAD_PROTOCOL"
E_IDENTIFY_FAILED: Final = "E_IDENTIFY_FAILED"
E_AUTH_DISABLED: Final = "E_AUTH_DISABLED"
E_AUTH_ERROR: Final = "E_AUTH_ERROR"
E_AUTH_FAILED: Final = "E_AUTH_FAILED"
E_AUTH_FIRST: Final = "E_AUTH_FIRST"
E_UNAUTHORIZED: Final = "E_UNAUTHORIZED"
E_SUB_FAILED: Final = "E_SUB_FAILED"
E_PUB_FAILED: Final = "E_PUB_FAILED"
E_MPUB_FAILED: Final = "E_MPUB_FAILED"
E_DPUB_FAILED: Final = "E_DPUB_FAILED"
E_FIN_FAILED: Final = "E_FIN_FAILED"
E_REQ_FAILED: Final = "E_REQ_FAILED"
E_TOUCH_FAILED: Final = "E_TOUCH_FAILED"

FORGIVEN: Final = frozenset((E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED))
"""Codes that leave the connection open; every other one closes it [NQ-5]."""

NOT_IN_FLIGHT: Final = "ID not in flight"
NOT_OWNER: Final = "client does not own message"


@final
class WireError(Exception):
    """The peer broke the protocol, or asked for something it may not have.

    `text` may hold bytes of the peer's as surrogate escapes; `payload` gives them back unchanged.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def is_fatal(self) -> bool:
        """Return whether the connection closes once the error was sent."""
        return self.code not in FORGIVEN

    @property
    def payload(self) -> bytes:
        """Return the data of the error frame."""
        return raw_bytes(str(self))

    def __str__(self) -> str:
        return f"{self.code} {self.text}" if self.text else self.code


def as_text(raw: bytes) -> str:
    """Return a peer's bytes for use in an error text."""
    return raw.decode("utf-8", "surrogateescape")


def raw_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# Errors that only the owner can detect.


def settle_failed(verb: str, message_id: int, reason: str) -> WireError:
    """Return the error for FIN, REQ or TOUCH of a message that is not the client's; `reason`:
    NOT_IN_FLIGHT, NOT_OWNER.

    The connection goes on.
    """
    return WireError(f"E_{verb}_FAILED", f"{verb} {message_id:016x} failed {reason}")


def publish_failed(verb: str, reason: str) -> WireError:
    """Return the error for a PUB, MPUB or DPUB that could not be carried out."""
    return WireError(f"E_{verb}_FAILED", f"{verb} failed {reason}")


def sub_failed(reason: str) -> WireError:
    return WireError(E_SUB_FAILED, f"SUB failed {reason}")


def sub_raced() -> WireError:
    """Return the error for a SUB while its ephemeral channel or topic was being deleted, twice in a
    row [NQ-10]."""
    return sub_failed("to deleted topic/channel")


def too_many_consumers(topic: str, channel: str, most: int) -> WireError:
    return sub_failed(f"consumers for {topic}:{channel} exceeds limit of {most}")


def auth_failed() -> WireError:
    """Return the error for an authority that could not be asked. Clients are not told why."""
    return WireError(E_AUTH_FAILED, "AUTH failed")


def refused(verb: str, reason: str) -> WireError:
    """Refusal of a client that may not come in; the first command that says which user it is."""
    code = {"AUTH": E_AUTH_FAILED, "IDENTIFY": E_IDENTIFY_FAILED}.get(verb, f"E_{verb}_FAILED")
    return WireError(code, f"{verb} failed {reason}")


def no_authorizations() -> WireError:
    return WireError(E_UNAUTHORIZED, "AUTH no authorizations found")


def unauthorized(verb: str, topic: str, channel: str) -> WireError:
    """Return the error for what the authority does not allow; `channel` is empty for publishes."""
    return WireError(E_UNAUTHORIZED, f'AUTH failed for {verb} on "{topic}" "{channel}"')


# Go's %q, which nsqd shows names with.

_ESCAPES: Final[dict[str, str]] = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def go_quoted(raw: bytes) -> str:
    """Return `raw` in quotes as Go's %q writes it: invalid UTF-8 and characters that do not print
    are escaped."""
    return '"' + "".join([_go_escaped(char) for char in as_text(raw)]) + '"'


def _go_escaped(char: str) -> str:
    escaped = _ESCAPES.get(char)
    if escaped is not None:
        return escaped
    if char.isprintable():
        return char
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
