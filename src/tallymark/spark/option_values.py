"""Values of options, given as text: numbers, truths, times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Final

_DURATION: Final = re.compile(r"([0-9]+)\s*(ms|s|m|h)")
SECURITY_OF_KAFKA: Final = {
    "kafka.security.protocol": "url",
    "kafka.ssl.keystore.*": "certFile",
    "kafka.ssl.*": "caFile",
    "kafka.sasl.*": "user",
}
"""Options of Kafka's clients, those with a star by their beginning, and ours in their place."""
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def duration_ms(name: str, text: str) -> int:
    """Return milliseconds, given as `500ms`, `30s`, `15m` or `1h`.

    >>> duration_ms("maxTriggerDelay", "15m")
    900000

    Raises ValueError.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"option {name}={text!r}: expected a time such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _UNIT_MS[found[2]]


def milliseconds(name: str, text: str) -> int:
    """Return milliseconds since 1970, given as a number or as a time in ISO 8601 with its zone.

    >>> milliseconds("startingTimestamp", "1970-01-01T00:00:02Z")
    2000

    Raises ValueError.
    """
    said = text.strip()
    if said.isascii() and said.isdigit():
        return int(said)
    try:
        time = datetime.fromisoformat(said)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time.timestamp() < 0:
        raise ValueError(
            f"option {name}={text!r}: expected ms since 1970, or a time such as "
            "2026-01-31T12:00:00Z or 2026-01-31T12:00:00+01:00"
        )
    return int(time.timestamp() * 1000)


def truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ValueError(f"option {name}={text!r}: expected true or false")
    return text.lower() == "true"


def number(
    options: Mapping[str, str], name: str, default: int, least: int, most: int | None = None
) -> int:
    """An option that is a whole number. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"option {name}={text!r}: expected a whole number {span}")
    return value


def unknown_option(
    name: str, purpose: str, known: Iterable[str], of_kafka: Mapping[str, str]
) -> ValueError:
    """Return the error of an option that there is not. It names what serves the purpose of one of
    Kafka's, or the nearest known one. of_kafka: Kafka's names, some with a star at their end, and
    ours."""
    lower = name.lower()
    for theirs, ours in of_kafka.items():
        prefix = theirs.removesuffix("*").lower()
        if lower == theirs.lower() or (theirs.endswith("*") and lower.startswith(prefix)):
            return ValueError(f'option {name!r} is of Kafka; in format("tallymark"): {ours!r}')
    if lower.startswith("kafka."):
        return ValueError(
            f'option {name!r} is of Kafka; format("tallymark") has nothing to set in its place'
        )
    spelled = {one.lower(): one for one in known}
    near = get_close_matches(lower, list(spelled), 1)
    hint = f"did you mean {spelled[near[0]]!r}?" if near else f"known: {', '.join(known)}"
    return ValueError(f'format("tallymark") has no option {name!r}{purpose}; {hint}')
