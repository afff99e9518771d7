#!/usr/bin/env python3
"""Ten subscribers to a topic, one of which stops reading: are the others slowed, does the broker
keep within its memory, and when is the slow one found?

slow_subscriber.py [--messages 100000] [--rate 4000] [--size 1000] [--limit 5000]
                   [--runs 1] [-- FLAGS]

Each run has a broker of its own. A run without the slow one comes first, to compare with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import statistics
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import scratch, tallymark
from bench.lean import ACK, DELIVER, TRANSIENT, Link, publish, settle, short

SUBSCRIBERS = 10
PREFETCH = 500
BATCH_S = 0.01
"""Messages that are due by then are published together."""
PATIENCE_S = 30.0
PERIOD_S = 1.0


@dataclass(slots=True)
class Outcome:
    """What the subscribers that read saw."""

    messages: int
    missing: int
    """Messages that one of them did not get."""
    p50_ms: float
    p99_ms: float
    seconds: float
    most_bodies_mib: float
    """Bodies in the broker's memory."""
    most_rss_mib: float
    above_after_s: float | None = None
    """When the slow one's queue was first seen above its limit, since the first publish."""
    found_after_s: float | None = None
    """When it was found, and closed."""
    closed_with: str = ""


@dataclass(slots=True)
class Subscriber:
    link: Link
    acknowledges: bool
    reads: bool = True
    seen: int = 0
    waits_ms: list[float] = field(default_factory=list)

    def work(self) -> None:
        """Take what is there."""
        self.link.fill()
        now = time.perf_counter()
        tag = 0
        for name, _, number, _, body in self.link.events():
            assert name == DELIVER, (name, body)
            self.seen += 1
            self.waits_ms.append((now - float(body[:20])) * 1000)
            tag = number
        if tag and self.acknowledges:
            self.link.outbox += settle(1, ACK, tag, 1)
        self.link.flush()


class Observer(threading.Thread):
    """Asks the broker how it is, ten times a second."""

    def __init__(self, http_port: int, pid: int, slow: str, limit: int) -> None:
        super().__init__(daemon=True)
        self._port, self._pid, self._slow, self._limit = http_port, pid, slow, limit
        self._over = threading.Event()
        self.bodies = 0
        self.rss_kib = 0
        self.above_at: float | None = None
        self.gone_at: float | None = None

    def run(self) -> None:
        known = False
        while not self._over.wait(0.1):
            status = self._ask("status")
            self.bodies = max(self.bodies, status["memory"]["bodies_bytes"])
            self.rss_kib = max(self.rss_kib, _rss_kib(self._pid))
            rows = {row["name"]: row for row in self._ask("queues")["queues"]}
            row = rows.get(self._slow)
            known = known or row is not None
            now = time.perf_counter()
            if row is None:
                if known and self.gone_at is None:
                    self.gone_at = now
            elif self.above_at is None and row["ready"] + row["acquired"] > self._limit:
                self.above_at = now

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _ask(self, what: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/api/tallymark/{what}")
        request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


def rules(limit: int) -> str:
    """What the broker is told of slow consumers: a look a second, so many messages, and out."""
    period = {"delay": round(PERIOD_S * 1000), "timeunit": "MILLISECONDS"}
    return json.dumps({**period, "message_count": limit, "policy": "delete"})


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def subscribe(port: int, number: int, acknowledges: bool) -> Subscriber:
    link = Link(port)
    link.open_channel(1, prefetch=PREFETCH if acknowledges else 0)
    name = f"sub.{number}"
    link.call(1, (50, 10), b"\0\0" + short(name) + b"\4" + bytes(4))
    link.call(1, (50, 20), b"\0\0" + short(name) + short("amq.topic") + short("load") + bytes(5))
    flags = 0 if acknowledges else 2
    link.call(1, (60, 20), b"\0\0" + short(name) + short(name) + bytes([flags]) + bytes(4))
    link.set_loose()
    return Subscriber(link, acknowledges)


def play(
    port: int, http_port: int, pid: int, *,
    messages: int, rate: float, size: int, limit: int, acknowledges: bool, slow: bool,
) -> Outcome:  # fmt: skip
    """One run against a broker with these `rules`. slow: the first subscriber stops after a tenth
    of the messages."""
    subscribers = [subscribe(port, number, acknowledges) for number in range(SUBSCRIBERS)]
    publisher = Link(port)
    publisher.open_channel(1)
    publisher.set_loose()
    observer = Observer(http_port, pid, "sub.0", limit)
    observer.start()
    began = time.perf_counter()
    sent, padding = 0, b"." * max(0, size - 20)
    readers = subscribers
    last_news = began
    while True:
        now = time.perf_counter()
        due = min(messages, int((now - began) * rate))
        if due > sent and not publisher.outbox:
            stamp = b"%020.9f" % now
            one = publish(1, "amq.topic", "load", TRANSIENT, stamp + padding)
            publisher.outbox += one * (due - sent)
            sent = due
        publisher.flush()
        if slow and sent >= messages // 10 and len(readers) == len(subscribers):
            readers = subscribers[1:]
        ready, _, _ = select.select([one.link.socket for one in readers], [], [], BATCH_S)
        for one in readers:
            if one.link.socket in ready:
                one.work()
                last_news = now
        if sent == messages and all(one.seen == messages for one in readers):
            break
        if now - last_news > PATIENCE_S:
            break
    seconds = time.perf_counter() - began
    closed_with = ""
    if slow:
        deadline = time.perf_counter() + PATIENCE_S
        while observer.gone_at is None and time.perf_counter() < deadline:
            time.sleep(0.05)
        closed_with = _last_words(subscribers[0].link)
    observer.stop()
    for one in readers:
        one.link.drop()
    publisher.drop()
    waits = sorted(wait for one in subscribers[1:] for wait in one.waits_ms)
    return Outcome(
        messages, sum(messages - one.seen for one in readers), statistics.median(waits),
        waits[len(waits) * 99 // 100], seconds, observer.bodies / 2**20, observer.rss_kib / 1024,
        None if observer.above_at is None else observer.above_at - began,
        None if observer.gone_at is None else observer.gone_at - began, closed_with,
    )  # fmt: skip


def _last_words(link: Link) -> str:
    """Read what is left, up to channel.close: its code and text."""
    link.socket.settimeout(PATIENCE_S)
    while True:
        try:
            if not link.fill():
                return "end of stream"
            link.events()
        except Exception as error:  # whatever the link makes of a close
            return str(error)


def main() -> int:
    """Prints JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=4000.0)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    flags = ["--slow-consumers", rules(args.limit), *args.flags]
    for acknowledges, slow in itertools.product((True, False), (False, True)):
        for _ in range(args.runs):
            with scratch() as folder, tallymark(folder / "broker", *flags) as broker:
                assert broker.http_port is not None
                outcome = play(
                    broker.port, broker.http_port, broker.pid, messages=args.messages,
                    rate=args.rate, size=args.size, limit=args.limit, acknowledges=acknowledges,
                    slow=slow,
                )  # fmt: skip
                row = {"acked": acknowledges, "one stops": slow, **asdict(outcome)}
                print(json.dumps({k: _short(v) for k, v in row.items()}), flush=True)
    return 0


def _short(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
