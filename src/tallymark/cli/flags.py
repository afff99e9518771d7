"""Parsing of plain flags of `tallymark serve` without typer, so that a broker starts without
importing it. Flags that are wrong or ask for help are left to typer."""

from __future__ import annotations

from typing import Any

from tallymark.server.config.settings import DECLARED


def plain_flags(words: list[str]) -> dict[str, Any] | None:
    """Values by name, as typer gives them, of `--flag value` and `--flag=value`; None where typer
    has to look."""
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
