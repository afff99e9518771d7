"""Messages that the demo publishes: the lines of a file, or a day of a shop's orders."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

ORDERS: Final = 20_000
REGIONS: Final = ("eu", "us", "asia", "africa")
DAY: Final = datetime(2026, 3, 14, tzinfo=UTC)
LATE: Final = 0.02
"""Share of orders that were placed days before they arrive."""
POISONOUS: Final = 0.01
"""Share that is cut off somewhere and can never be read as JSON."""
DUPLICATE: Final = 0.03
"""Share that a nervous shop sends twice."""
LONGEST_LINE: Final = 400
"""Longest line of a file, in bytes, that the worker does not refuse."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Messages to publish, and the binding keys by which the topic exchange routes them."""

    name: str
    media_type: str
    everything: str
    """Binding key that matches all of it."""
    some: str
    """Binding key that matches the worker's share."""
    input: Path | None

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """Routing key and body of each message, in order; the same at every call."""
        return generated_orders() if self.input is None else file_lines(self.input)


def workload(input: Path | None) -> Workload:
    """The lines of `input`, or the generated orders. Raises FileNotFoundError."""
    if input is None:
        return Workload("orders", "application/json", "order.#", "order.eu.*", None)
    if not input.is_file():
        raise FileNotFoundError(f"input {input}: no such file")
    json_lines = input.suffix in (".ndjson", ".jsonl", ".json")
    media_type = "application/json" if json_lines else "text/plain"
    return Workload(input.name, media_type, "line.#", "line.0", input)


def file_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every line of the file, its bytes exact but for the newline that ends it."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            yield f"line.{number % len(REGIONS)}", line.removesuffix(b"\n")


def generated_orders(count: int = ORDERS, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """`count` orders: some late, some poisonous, some sent twice. Equal for equal arguments."""
    chance = random.Random(seed)
    sent: tuple[str, bytes] | None = None
    for number in range(count):
        if sent is not None and chance.random() < DUPLICATE:
            yield sent
            continue
        placed = DAY + timedelta(seconds=86_400 * number / count)
        if chance.random() < LATE:
            placed -= timedelta(days=chance.randint(2, 9))
        region = chance.choice(REGIONS)
        order = {
            "order": f"o-{number:06d}",
            "placed": placed.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "region": region,
            "items": chance.randint(1, 9),
            "amount": round(chance.lognormvariate(3.5, 0.8), 2),
        }
        body = json.dumps(order).encode()
        if chance.random() < POISONOUS:
            body = body[: chance.randint(1, len(body) - 1)]
        sent = (f"order.{region}.{'late' if placed < DAY else 'new'}", body)
        yield sent


def refuses(media_type: str, body: bytes) -> bool:
    """The worker's judgement of a message: nothing to be done with it, ever."""
    if media_type == "application/json":
        try:
            json.loads(body)
        except ValueError:
            return True
        return False
    return not body or len(body) > LONGEST_LINE
