"""The options of format("tallymark"), checked before anything is asked of a broker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Final

from tallymark.spark import schema
from tallymark.spark.client import DEFAULT_PORT, Endpoint

DEFAULT_MAX_ROWS: Final = 50_000
"""Half of what a subscription may hold unsettled by default."""
DEFAULT_MAX_BYTES: Final = 128 * 1024 * 1024
DEFAULT_WAIT_MS: Final = 1_000
DEFAULT_ENDPOINT: Final = Endpoint()
FEWEST_ROWS: Final = 2_000
"""A partition of fewer rows costs more in its start than it saves."""

# Name as documented -> meaning. Spark hands names over in lower case.
KNOWN: Final = {
    "url": "http://[user:password@]host:port of the broker's HTTP interface",
    "host": "its host, where no url is given (127.0.0.1)",
    "port": f"its port, where no url is given ({DEFAULT_PORT})",
    "user": "who asks (guest)",
    "password": "with which password (guest)",
    "vhost": "virtual host (/)",
    "queue": "the queue to read",
    "subscription": "name of the durable subscription; required for streams",
    "columns": "comma-separated columns to make (all)",
    "maxRows": f"most rows of a micro-batch ({DEFAULT_MAX_ROWS})",
    "maxBytes": f"most raw bytes of a micro-batch ({DEFAULT_MAX_BYTES})",
    "waitMs": f"how long an idle stream waits for messages at a time ({DEFAULT_WAIT_MS})",
    "partitions": "most tasks that read at the same time (number of processors)",
    "retryMs": "how long a broker that cannot be reached is tried again (60000)",
    "ledger": "a data folder: read the journal's rows instead of a queue",
    "upto": "of the ledger, the position of the checkpoint to read up to (the newest)",
    "asyncProgressTrackingEnabled": "refused: it would settle messages before their commit",
}
_SPELLING: Final = {name.lower(): name for name in KNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user asked for, as plain values: pickled to wherever the source runs."""

    endpoint: Endpoint = DEFAULT_ENDPOINT
    vhost: str = "/"
    queue: str = ""
    subscription: str = ""
    columns: tuple[str, ...] = schema.ALL
    max_rows: int = DEFAULT_MAX_ROWS
    max_bytes: int = DEFAULT_MAX_BYTES
    wait_ms: int = DEFAULT_WAIT_MS
    partitions: int = 1
    ledger: Path | None = None
    upto: int | None = None

    @staticmethod
    def parse(given: Mapping[str, str]) -> SourceOptions:
        """Raises ValueError for an unknown option (naming the nearest known one) and for a value
        out of range."""
        options = _spelled(given)
        columns = schema.choose(options.get("columns"))
        ledger = options.get("ledger")
        return SourceOptions(
            endpoint=_endpoint(options),
            vhost=options.get("vhost", "/"),
            queue=options.get("queue", ""),
            subscription=options.get("subscription", ""),
            columns=columns,
            max_rows=_number(options, "maxRows", DEFAULT_MAX_ROWS, 1),
            max_bytes=_number(options, "maxBytes", DEFAULT_MAX_BYTES, 1),
            wait_ms=_number(options, "waitMs", DEFAULT_WAIT_MS, 0),
            partitions=_number(options, "partitions", os.cpu_count() or 1, 1),
            ledger=Path(ledger) if ledger else None,
            upto=_number(options, "upto", 0, 0) or None,
        )

    def for_queue(self) -> SourceOptions:
        """Itself, if a queue is named. Raises ValueError."""
        if not self.queue:
            raise ValueError('option "queue" is missing: the name of the queue to read')
        return self

    def for_stream(self) -> SourceOptions:
        """Itself, if it is enough for a stream. Raises ValueError."""
        if self.ledger is not None:
            raise ValueError('option "ledger": the journal is read in batches, not as a stream')
        if not self.subscription:
            raise ValueError(
                'option "subscription" is missing: a stream needs the name of a durable '
                "subscription, one per query; it keeps the query's place in the queue"
            )
        return self.for_queue()

    def spans(self, first: int, end: int) -> list[tuple[int, int]]:
        """first..end-1 cut into at most `partitions` nearly equal spans, none of them tiny."""
        total = end - first
        if total <= 0:
            return []
        count = max(1, min(self.partitions, -(-total // FEWEST_ROWS)))
        cuts = [first + total * k // count for k in range(count + 1)]
        return list(pairwise(cuts))


def _spelled(given: Mapping[str, str]) -> dict[str, str]:
    options = {}
    for name, value in given.items():
        known = _SPELLING.get(name.lower())
        if known is None:
            near = get_close_matches(name.lower(), list(_SPELLING), 1)
            hint = f"did you mean {_SPELLING[near[0]]!r}?" if near else f"known: {', '.join(KNOWN)}"
            raise ValueError(f'format("tallymark") has no option {name!r}; {hint}')
        options[known] = value
    if options.pop("asyncProgressTrackingEnabled", "false").lower() != "false":
        raise ValueError(
            "asyncProgressTrackingEnabled is refused: with it Spark asks for the next batch before "
            "the last one is committed, and messages would be settled too early"
        )
    return options


def _endpoint(options: Mapping[str, str]) -> Endpoint:
    retry_ms = _number(options, "retryMs", 60_000, 0)
    if url := options.get("url"):
        if "host" in options or "port" in options:
            raise ValueError(f"url {url!r} says host and port: leave these options out")
        user, password = options.get("user"), options.get("password")
        return Endpoint.from_url(url, retry_ms=retry_ms, user=user, password=password)
    port = _number(options, "port", DEFAULT_PORT, 1)
    host = options.get("host", "127.0.0.1")
    user = options.get("user", DEFAULT_ENDPOINT.user)
    password = options.get("password", DEFAULT_ENDPOINT.password)
    return Endpoint(host=host, port=port, retry_ms=retry_ms, user=user, password=password)


def _number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"option {name}={text!r}: expected a whole number of at least {least}")
    return value
