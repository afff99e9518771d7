#!/usr/bin/env python3
"""What dead letters cost: retry loops through TTL queues, chains of TTLs, a backlog that waits.

    retry     work -nack-> wait -TTL-> work -ack: two deaths a message, each try answered by itself
    chain     wait.1 -TTL-> wait.2 -TTL-> wait.3 -TTL-> end, consumed there: three deaths
    loop      wait.1 -TTL-> wait.2 -TTL-> wait.1 ... under a hop limit of HOPS, dropped and counted
              at its end: HOPS + 1 deaths (Tallymark only: others have no such limit)
    waiting   all messages are rejected once and then wait, with their histories, in a queue with a
              long TTL: what they cost in memory, and a restart with them (Tallymark only)
    unlike    as waiting, but no two histories are alike: each message has a TTL of its own

1 KiB persistent messages, durable queues, confirms (window 1000), prefetch 1000. Every body holds a
sequence number: loss and duplicates are checked for every message. CPU is the broker's own,
descendants included; a hop is one death.

    retry_loop.py [--scenarios retry,chain,loop,waiting,unlike] [--messages 1000000]
                  [--rabbitmq 100000] [--ttl-ms 100] [--size 1024] [-- FLAGS of tallymark serve]
"""

from __future__ import annotations

import argparse
import json
import select
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import (
    Running,
    ask,
    cpu_s,
    memory_mib,
    queue_rows,
    rabbitmq,
    rabbitmq_installed,
    scratch,
    tallymark,
)
from bench.lean import ACK, DELIVER, NACK, PERSISTENT, Link, publish, settle, short, table

WINDOW = 1000
PREFETCH = 1000
CHUNK = 100
STALL_S = 60.0
REST_S = 1.0
"""What the broker still does for a run belongs to it."""
HOPS = 8
LONG_TTL_MS = 3_600_000
WAIT = "waiting.wait"
_SEQUENCE = struct.Struct(">Q")

Judge = Callable[[int], tuple[int, int]]
"""What to say to a message, by its sequence number: method ACK or NACK."""


class Queues:
    """Durable queues of one run; gone at its end."""

    def __init__(self, port: int) -> None:
        self._link = Link(port)
        self._link.open_channel(1)
        self._names: list[str] = []

    def declare(self, name: str, following: str = "", ttl_ms: int = 0, **more: object) -> str:
        """One whose dead letters go to `following`."""
        arguments: dict[str, object] = {}
        if following:
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
        if ttl_ms:
            arguments["x-message-ttl"] = ttl_ms
        arguments |= {key.replace("_", "-"): value for key, value in more.items()}
        declared = b"\0\0" + short(name) + b"\x02" + table(arguments)
        self._link.call(1, (50, 10), declared)
        self._names.append(name)
        return name

    def ready(self, name: str) -> int:
        answer = self._link.call(1, (50, 10), b"\0\0" + short(name) + b"\x01" + bytes(4))
        (count,) = struct.unpack_from(">I", answer, 1 + answer[0])
        return int(count)

    def delete(self) -> None:
        for name in self._names:
            self._link.call(1, (50, 40), b"\0\0" + short(name) + b"\0")
        self._link.close()


def bodies(queue: str, messages: int, size: int, unlike: bool) -> Iterator[bytes]:
    """Publishes to a queue, CHUNK at a time; unlike: each with an expiration of its own."""
    if unlike:
        for number in range(messages):
            expiration = b"\x11\x00\x02" + short(str(LONG_TTL_MS + number))
            body = _SEQUENCE.pack(number) + bytes(size - _SEQUENCE.size)
            yield publish(1, "", queue, expiration, body)
        return
    template = publish(1, "", queue, PERSISTENT, bytes(size))
    head, tail = template[: -size - 1], bytes(size - _SEQUENCE.size) + b"\xce"
    for first in range(0, messages, CHUNK):
        numbers = range(first, min(first + CHUNK, messages))
        yield b"".join([head + _SEQUENCE.pack(number) + tail for number in numbers])


class Traffic:
    """One connection that publishes, one that consumes."""

    def __init__(
        self, port: int, entry: str, reads: str, messages: int, size: int, unlike: bool = False
    ) -> None:
        self.messages = messages
        self.confirmed = 0
        self._chunks = bodies(entry, messages, size, unlike)
        self._chunk = 1 if unlike else CHUNK
        self._sent = 0
        self._source, self._sink = Link(port), Link(port)
        self._source.open_channel(1, confirms=True)
        self._sink.open_channel(1, prefetch=PREFETCH)
        if reads:
            self._sink.consume(1, reads)
        self._source.set_loose()
        self._sink.set_loose()

    def run(self, judge: Judge, is_over: Callable[[], bool]) -> None:
        """Raises TimeoutError when nothing moves for STALL_S."""
        source, sink = self._source, self._sink
        moved = time.monotonic()
        while not is_over():
            self._fill_window()
            writers = [link.socket for link in (source, sink) if link.outbox]
            readable, writable, _ = select.select([source.socket, sink.socket], writers, [], 0.1)
            if readable or writable:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise TimeoutError(f"{self.confirmed} of {self.messages} confirmed, then nothing")
            if source.socket in readable:
                assert source.fill(), "the broker closed the publisher's connection"
                for name, _, tag, _, _ in source.events():
                    assert name == ACK, f"method {name} instead of a confirm"
                    self.confirmed = max(self.confirmed, tag)
            if sink.socket in readable:
                assert sink.fill(), "the broker closed the consumer's connection"
                for name, _, tag, _, body in sink.events():
                    assert name == DELIVER, f"method {name} instead of a delivery"
                    answer = judge(_SEQUENCE.unpack_from(body)[0])
                    sink.outbox += settle(1, answer, tag, 0)
            source.flush()
            sink.flush()

    def _fill_window(self) -> None:
        outbox = self._source.outbox
        while self._sent - self.confirmed < WINDOW and self._sent < self.messages:
            outbox += next(self._chunks)
            self._sent = min(self._sent + self._chunk, self.messages)

    def close(self) -> None:
        self._source.close()
        self._sink.close()


class Tries:
    """Counts how often each message came; says no to it at first, `refusals` times."""

    def __init__(self, messages: int, refusals: int) -> None:
        self.answered = 0
        self.done = 0
        self.surplus = 0
        self._seen = bytearray(messages)
        self._refusals = refusals

    def __call__(self, sequence: int) -> tuple[int, int]:
        self.answered += 1
        seen = self._seen[sequence]
        self._seen[sequence] = min(seen + 1, 255)
        if seen < self._refusals:
            return NACK
        if seen == self._refusals:
            self.done += 1
        else:
            self.surplus += 1
        return ACK


class Meter:
    """What a broker used since."""

    def __init__(self, broker: Running) -> None:
        self._broker = broker
        self._cpu = cpu_s(broker.pid)
        self._began = time.perf_counter()

    def row(self, scenario: str, messages: int, hops: int, **more: object) -> dict[str, object]:
        seconds = time.perf_counter() - self._began
        time.sleep(REST_S)
        cpu = cpu_s(self._broker.pid) - self._cpu
        found: dict[str, object] = {
            "scenario": scenario,
            "broker": f"{self._broker.name} ({self._broker.note})",
            "messages": messages,
            "msg_per_s": round(messages / seconds),
            "cpu_us_per_msg": round(cpu / messages * 1e6, 2),
            "cpu_us_per_hop": round(cpu / messages / hops * 1e6, 2),
            "peak_mib": round(memory_mib(self._broker.pid)),
            **more,
        }
        print(json.dumps(found), flush=True)
        return found


def retry(broker: Running, messages: int, size: int, ttl_ms: int) -> dict[str, object]:
    """Each message is refused once and accepted when it comes back."""
    queues = Queues(broker.port)
    work = queues.declare("retry.work", "retry.wait")
    queues.declare("retry.wait", work, ttl_ms)
    return _consumed(broker, queues, "retry", (work, work), messages, size, 1, 2)


def chain(broker: Running, messages: int, size: int, ttl_ms: int) -> dict[str, object]:
    """Each message expires three times on its way."""
    queues = Queues(broker.port)
    names = [f"chain.{number}" for number in (1, 2, 3)]
    queues.declare("chain.end")
    for name, following in zip(names, [*names[1:], "chain.end"], strict=True):
        queues.declare(name, following, ttl_ms)
    return _consumed(broker, queues, "chain", (names[0], "chain.end"), messages, size, 0, 3)


def _consumed(
    broker: Running,
    queues: Queues,
    scenario: str,
    places: tuple[str, str],
    messages: int,
    size: int,
    refusals: int,
    hops: int,
) -> dict[str, object]:
    tries = Tries(messages, refusals)
    traffic = Traffic(broker.port, *places, messages, size)
    meter = Meter(broker)
    traffic.run(tries, lambda: tries.done == messages)
    row = meter.row(
        scenario, messages, hops, lost=messages - tries.done, duplicates=tries.surplus,
        left=queues.ready(places[1]),
    )  # fmt: skip
    traffic.close()
    queues.delete()
    return row


def loop(broker: Running, messages: int, size: int, ttl_ms: int) -> dict[str, object]:
    """Each message expires HOPS + 1 times; the last time it is dropped and counted."""
    queues = Queues(broker.port)
    limit: dict[str, object] = {"x_dead_letter_hop_limit": HOPS}
    queues.declare("loop.1", "loop.2", ttl_ms, **limit)
    queues.declare("loop.2", "loop.1", ttl_ms, **limit)
    traffic = Traffic(broker.port, "loop.1", "", messages, size)
    meter = Meter(broker)
    traffic.run(lambda _: ACK, lambda: traffic.confirmed == messages)
    while (dropped := _dropped(broker)) < messages:
        time.sleep(0.1)
    row = meter.row(
        "loop", messages, HOPS + 1, lost=messages - dropped, left=queues.ready("loop.1")
    )
    traffic.close()
    queues.delete()
    return row


def _dropped(broker: Running) -> int:
    rows = queue_rows(broker)
    return sum(sum(rows[name]["dropped"].values()) for name in ("loop.1", "loop.2"))


def waiting(
    folder: Path, messages: int, size: int, unlike: bool, flags: list[str]
) -> dict[str, object]:
    """Each message is refused once, and waits; then the broker is killed and started again."""
    with tallymark(folder, *flags, crash=True) as broker:
        queues = Queues(broker.port)
        work = queues.declare("waiting.work", WAIT)
        queues.declare(WAIT, work, LONG_TTL_MS)
        before = memory_mib(broker.pid, "VmRSS")
        tries = Tries(messages, 1)
        traffic = Traffic(broker.port, work, work, messages, size, unlike)
        meter = Meter(broker)
        traffic.run(tries, lambda: tries.answered == messages and queues.ready(WAIT) == messages)
        row = meter.row("unlike" if unlike else "waiting", messages, 1)
        row |= _memory(broker, before, messages)
        traffic.close()
    with tallymark(folder, *flags, crash=True) as broker:
        held = queue_rows(broker)[WAIT]["ready"]
        again = _memory(broker, before, messages)
        row |= {"lost": messages - held, "restart_s": round(broker.start_s, 2)}
        row |= {f"restarted_{name}": value for name, value in again.items()}
    print(json.dumps(row), flush=True)
    return row


def _memory(broker: Running, before_mib: float, messages: int) -> dict[str, object]:
    """What the broker holds, and what of it is neither bodies nor was there before."""
    held = memory_mib(broker.pid, "VmRSS")
    bodies_mib = ask(broker, "/status")["memory"]["bodies_bytes"] / (1 << 20)
    each = (held - before_mib - bodies_mib) * (1 << 20) / messages
    return {
        "rss_mib": round(held),
        "bodies_mib": round(bodies_mib),
        "bytes_per_message": round(each),
    }


def main() -> int:
    """Prints JSON lines; exit code 1 when a message was lost or doubled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", default="retry,chain,loop,waiting,unlike")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rabbitmq", type=int, default=100_000, help="messages; 0: leave it out")
    parser.add_argument("--ttl-ms", type=int, default=100)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("flags", nargs="*", help="of tallymark serve, after --")
    args = parser.parse_args()
    rows = []
    for scenario in args.scenarios.split(","):
        with scratch() as folder:
            if scenario in ("waiting", "unlike"):
                unlike = scenario == "unlike"
                rows.append(waiting(folder / "t", args.messages, args.size, unlike, args.flags))
                continue
            measure = {"retry": retry, "chain": chain, "loop": loop}[scenario]
            with tallymark(folder / "t", *args.flags) as broker:
                rows.append(measure(broker, args.messages, args.size, args.ttl_ms))
            if args.rabbitmq and scenario != "loop" and rabbitmq_installed():
                with rabbitmq(folder / "r") as broker:
                    rows.append(measure(broker, args.rabbitmq, args.size, args.ttl_ms))
    is_sound = not any(row.get("lost") or row.get("duplicates") or row.get("left") for row in rows)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
