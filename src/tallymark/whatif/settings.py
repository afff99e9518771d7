"""Settings of a command line in place of a file: `orders.max-length=10000`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from tallymark.whatif.changes import ChangeRefused


def said_of(texts: Sequence[str]) -> dict[str, object]:
    """Return the table of a change whose queues have these arguments. Raises ChangeRefused."""
    queues: dict[str, dict[str, object]] = {}
    for text in texts:
        place, found, value = text.partition("=")
        queue, dot, argument = place.rpartition(".")
        if not (found and dot and queue and argument and value):
            raise ChangeRefused(
                f"--set {text!r}, expected QUEUE.ARGUMENT=VALUE such as orders.max-length=10000"
            )
        said = queues.setdefault(queue, {"name": queue})
        if argument in said:
            raise ChangeRefused(
                f"--set {place} is given twice, expected one, with a list such as {place}=[1,2] "
                "for several worlds"
            )
        said[argument] = _value(value)
    return {"queue": list(queues.values())}


def name_of(texts: Sequence[str]) -> str:
    """Return the name of the change that these are; its worlds' names have the values of ranges."""
    return ", ".join(
        text.partition("=")[0] if text.partition("=")[2].startswith("[") else text for text in texts
    )


def _value(text: str) -> object:
    """Return a number, truth, list or text as TOML has it; what is none of these is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
