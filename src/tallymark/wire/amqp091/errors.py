"""Errors of peers, by the specification's reply codes [amqp-0.9.1 constants].

Decoders raise `WireError` and nothing else, whatever the bytes. The connection turns it into an
event; a bridge turns the event into channel.close or connection.close. Reply texts are built as
RabbitMQ builds them: `NOT_FOUND - no queue 'q' in vhost '/'`, cut at 255 bytes.
"""

from __future__ import annotations

from typing import Final, final

CHANNEL: Final = "channel"
CONNECTION: Final = "connection"

CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

# reply code: name and scope of an error with that code
REPLIES: Final[dict[int, tuple[str, str]]] = {
    CONTENT_TOO_LARGE: ("CONTENT_TOO_LARGE", CHANNEL),
    NO_ROUTE: ("NO_ROUTE", CHANNEL),
    NO_CONSUMERS: ("NO_CONSUMERS", CHANNEL),
    CONNECTION_FORCED: ("CONNECTION_FORCED", CONNECTION),
    INVALID_PATH: ("INVALID_PATH", CONNECTION),
    ACCESS_REFUSED: ("ACCESS_REFUSED", CHANNEL),
    NOT_FOUND: ("NOT_FOUND", CHANNEL),
    RESOURCE_LOCKED: ("RESOURCE_LOCKED", CHANNEL),
    PRECONDITION_FAILED: ("PRECONDITION_FAILED", CHANNEL),
    FRAME_ERROR: ("FRAME_ERROR", CONNECTION),
    SYNTAX_ERROR: ("SYNTAX_ERROR", CONNECTION),
    COMMAND_INVALID: ("COMMAND_INVALID", CONNECTION),
    CHANNEL_ERROR: ("CHANNEL_ERROR", CONNECTION),
    UNEXPECTED_FRAME: ("UNEXPECTED_FRAME", CONNECTION),
    RESOURCE_ERROR: ("RESOURCE_ERROR", CONNECTION),
    NOT_ALLOWED: ("NOT_ALLOWED", CONNECTION),
    NOT_IMPLEMENTED: ("NOT_IMPLEMENTED", CONNECTION),
    INTERNAL_ERROR: ("INTERNAL_ERROR", CONNECTION),
}


def reply_scope(reply_code: int) -> str:
    """Return the scope that an error of this code closes: `"channel"` or `"connection"`. Unknown
    codes close the connection.

    On channel 0 there is no channel to close: there every error closes the connection.
    """
    reply = REPLIES.get(reply_code)
    return CONNECTION if reply is None else reply[1]


def reply_text(reply_code: int, explanation: str) -> str:
    """Return the text for the client: the code's name and the explanation, at most 255 bytes."""
    reply = REPLIES.get(reply_code)
    return clip(explanation if reply is None else f"{reply[0]} - {explanation}")


def clip(text: str) -> str:
    """Return `text`, cut with `...` at its end if it does not fit a short string. A ? replaces each
    byte that is not UTF-8, since clients decode the text."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= 255:
        return raw.decode()
    return raw[:252].decode("utf-8", "ignore") + "..."


@final
class WireError(Exception):
    """The peer broke the protocol.

    `reply_code` and `text` are what its user is told, `class_id` and `method_id` name the method
    at fault (0 if none is), `scope` is `"channel"` or `"connection"`.
    """

    def __init__(
        self,
        reply_code: int,
        text: str,
        class_id: int = 0,
        method_id: int = 0,
        scope: str = "",
        verbatim: bool = False,
    ) -> None:
        super().__init__(text)
        self.reply_code = reply_code
        self.text = text
        """Explanation alone; the wire carries `reply_text`."""
        self.class_id = class_id
        self.method_id = method_id
        self.scope = scope or reply_scope(reply_code)
        self.verbatim = verbatim
        """True if the text is sent as it is, without the code's name."""

    @property
    def reply_text(self) -> str:
        return clip(self.text) if self.verbatim else reply_text(self.reply_code, self.text)

    def __str__(self) -> str:
        return f"{self.reply_code} {self.reply_text}"
