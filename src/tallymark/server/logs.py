"""Structured logs on stderr, with a level per category that can be changed while running.

A call below its category's level costs one comparison; nothing is formatted. Event names are
dotted and values travel as keys: `log.info("connection.opened", peer=peer)`. Bodies of messages
and credentials are never logged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, TextIO, final

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}
CATEGORIES: Final = ("server", "amqp", "nsq", "engine", "journal", "http", "users")


@final
class Log:
    """The log of one category. `level` may be set at any time."""

    __slots__ = ("category", "level")

    def __init__(self, category: str) -> None:
        self.category = category
        self.level = LEVELS["info"]

    def debug(self, event: str, **values: object) -> None:
        if self.level <= 10:
            _write("debug", self.category, event, values)

    def info(self, event: str, **values: object) -> None:
        if self.level <= 20:
            _write("info", self.category, event, values)

    def warning(self, event: str, **values: object) -> None:
        if self.level <= 30:
            _write("warning", self.category, event, values)

    def error(self, event: str, **values: object) -> None:
        if self.level <= 40:
            _write("error", self.category, event, values)


_logs: Final = {category: Log(category) for category in CATEGORIES}
AUDIT: Final = Log("audit")
"""Log of access/audit.py. It is in no list of categories, so that nothing sets its level."""
_COLOURS: Final = {"debug": "32", "info": "32", "warning": "33", "error": "31"}
_EVENT_WIDTH: Final = 30
_PRIORITIES: Final = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>"}
"""Beginnings of lines for systemd's journal, which stores the level beside the line
[sd-daemon(3)]."""


def log_of(category: str) -> Log:
    """The one log of a category; KeyError for an unknown category."""
    return _logs[category]


def configure(level: str, levels: dict[str, str], form: str, stream: TextIO | None = None) -> None:
    """Set the level of every category, then those named in `levels`; form: json or console."""
    global _stream, _render, _begin
    _stream = stream or sys.stderr
    _begin = _PRIORITIES if _is_journal(_stream) else {}
    if form == "json":
        _render = _as_json
    else:
        _render = _coloured if _stream.isatty() else _plain
    set_levels(level, levels)


def set_levels(level: str, levels: dict[str, str]) -> None:
    """The level of every category, but for those named in `levels`."""
    for category, log in _logs.items():
        log.level = LEVELS[levels.get(category, level)]


def levels() -> dict[str, str]:
    """The level of each category, by name."""
    names = {number: name for name, number in LEVELS.items()}
    return {category: names[log.level] for category, log in _logs.items()}


def set_level(category: str, level: str) -> None:
    """Change one category's level; KeyError for an unknown category or level."""
    log = _logs[category]
    log.level = LEVELS[level]


def tell(text: str) -> None:
    """Tell whoever has started the broker why it ends, on stderr where that is possible."""
    with suppress(OSError):
        sys.stderr.write(f"tallymark: {text}\n")
        sys.stderr.flush()


def drop_unwritten() -> None:
    """Drop what stderr does not take: the interpreter would end with an exit code of its own."""
    try:
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def _write(level: str, category: str, event: str, values: dict[str, object]) -> None:
    stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = _render(stamp, level, category, event, values)
    with suppress(OSError):  # a full disk, or nobody reads it: what serves goes on without
        _stream.write(f"{_begin.get(level, '')}{line}\n")
        _stream.flush()


def _is_journal(stream: TextIO) -> bool:
    """Return whether it ends in systemd's journal, which names its socket in JOURNAL_STREAM."""
    named = os.environ.get("JOURNAL_STREAM", "")
    if not named:
        return False
    try:
        known = os.fstat(stream.fileno())
    except OSError:  # a stream without a file, as in tests
        return False
    return named == f"{known.st_dev}:{known.st_ino}"


def _as_json(stamp: str, level: str, category: str, event: str, values: dict[str, object]) -> str:
    entry = {"event": event, "level": level, "category": category, **values, "timestamp": stamp}
    return json.dumps(entry, default=repr)


def _plain(stamp: str, level: str, category: str, event: str, values: dict[str, object]) -> str:
    shown = sorted({**values, "category": category}.items())
    pairs = " ".join(f"{name}={_shown(value)}" for name, value in shown)
    return f"{stamp} [{level:9}] {event:{_EVENT_WIDTH}} {pairs}"


def _coloured(stamp: str, level: str, category: str, event: str, values: dict[str, object]) -> str:
    """Return `_plain` with the escape sequences of a terminal."""
    named = {f"\x1b[36m{name}\x1b[0m": value for name, value in values.items()}
    line = _plain(f"\x1b[2m{stamp}\x1b[0m", level, category, event, named)
    return line.replace(f"[{level:9}]", f"[\x1b[{_COLOURS[level]}m{level:9}\x1b[0m]", 1)


def _shown(value: object) -> str:
    """A text as it is where that is one word, and otherwise as Python writes the value."""
    if isinstance(value, str) and value.isprintable() and not set(value) & set(" ='\""):
        return value
    return repr(value)


_stream: TextIO = sys.stderr
_begin: dict[str, str] = {}
_render: Callable[[str, str, str, str, dict[str, object]], str] = _plain
