"""Structured logs on stderr, with a level per category that can be changed while running.

A call below its category's level costs one comparison; nothing is formatted. Event names are
dotted and values travel as keys: `log.info("connection.opened", peer=peer)`. Bodies of messages
and credentials are never logged.
"""

from __future__ import annotations

import sys
from typing import Any, Final, TextIO, final

import structlog

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
"""Of audit.py. It is in no list of categories, so that nothing sets its level."""
_processors: list[Any] = []
_stream: TextIO = sys.stderr


def log_of(category: str) -> Log:
    """The one log of a category; KeyError for an unknown category."""
    return _logs[category]


def configure(level: str, levels: dict[str, str], form: str, stream: TextIO | None = None) -> None:
    """Set the level of every category, then those named in `levels`; form: json or console."""
    global _stream
    _stream = stream or sys.stderr
    render: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=_stream.isatty())
    )
    _processors[:] = [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        render,
    ]
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


def _write(level: str, category: str, event: str, values: dict[str, object]) -> None:
    if not _processors:
        configure("info", {}, "console")
    entry: Any = {"event": event, "level": level, "category": category, **values}
    for processor in _processors:
        entry = processor(None, level, entry)
    _stream.write(f"{entry}\n")
    _stream.flush()
