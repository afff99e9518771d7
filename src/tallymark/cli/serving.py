"""Start of a broker from flags, without typer where they are plain: its configuration, and the call
of the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tallymark.server.config import kinds
from tallymark.server.config.settings import DECLARED, Config, ConfigError, load

USAGE: Final = 2

Read = Callable[[], Config]
"""Function that reads the configuration again."""


def configured(given: dict[str, Any]) -> tuple[Config, Read]:
    """The configuration that flags ask for, by the settings' names, `config` and `no_nsq`.

    Says what is wrong on stderr and leaves with exit code 2.
    """
    file = None if given["config"] is None else Path(given["config"])
    values = {name: value for name, value in given.items() if name not in ("config", "no_nsq")}
    if given["no_nsq"]:
        values["nsq"] = "false"
    flags = {name: _joined(value) for name, value in values.items()}

    def read() -> Config:
        return load(file, os.environ, flags)

    try:
        return read(), read
    except ConfigError as error:
        print(f"tallymark: {error}", file=sys.stderr)
        sys.exit(USAGE)


def _joined(value: str | list[str] | None) -> str | None:
    """A flag that was given several times is as one with commas."""
    if isinstance(value, list):
        return ",".join(value) if value else None
    return value


def serve_with(given: dict[str, Any]) -> int:
    """Run a broker; returns the exit code."""
    config, read = configured(given)
    from tallymark.server.run import run

    return run(config, read)


def spelled_out(words: list[str]) -> list[str]:
    """Return flags with their values where a flag that is true or false stands alone: `--standby`
    is `--standby true`."""
    may_stand_alone = {one.flag for one in DECLARED.values() if one.kind is kinds.FLAG}
    found: list[str] = []
    for i, word in enumerate(words):
        found.append(word)
        follows = words[i + 1] if i + 1 < len(words) else "--"
        if word in may_stand_alone and follows.startswith("--"):
            found.append("true")
    return found


def plain_flags(words: list[str]) -> dict[str, Any] | None:
    """Return values by name, as typer gives them, of `--flag value` and `--flag=value`; None: typer
    has to look, because they are wrong or ask for help. So a broker starts without importing it."""
    by_flag = {declared.flag: declared for declared in DECLARED.values()}
    found: dict[str, Any] = {"config": None, "no_nsq": False}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if word == "--no-nsq":
            found["no_nsq"] = True
            continue
        if flag != "--config" and flag not in by_flag:
            return None
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        if flag == "--config":
            found["config"] = value
        elif by_flag[flag].kind.many:
            found.setdefault(by_flag[flag].name, []).append(value)
        else:
            found[by_flag[flag].name] = value
    return found
