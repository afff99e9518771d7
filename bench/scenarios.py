"""The rows a to r that are measured: their traffic, and what is wanted of them.

A row is one run of a load generator, told by its flags. Rows of one letter share a subject and
differ in one number. `wanted` is what the project has set itself: so many times less CPU than
RabbitMQ, and microseconds of CPU on the machine whose LavinMQ takes 3.25 us for row b.
"""

from __future__ import annotations

from dataclasses import dataclass

AMQP, LINKS, NSQ = "amqp", "links", "nsq"
"""AMQP 0-9-1, AMQP 1.0, NSQ."""

DURABLE = "--size 1024 --persistent --durable --confirm-window 1000 --prefetch 1000"
EACH = f"{DURABLE} --ack-every 1"
SOME = f"{DURABLE} --ack-every 100"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. messages: publishes; quick: those of a short run; ratio: how many
    times less CPU than RabbitMQ is wanted; cpu_us, p50_ms, peak_mib: absolute limits, where one is
    set; is_ordered: each queue's messages must arrive in their order; floor: what `floor.c` is to
    do beside it, where messages come alone: its kind and, behind a space, the rate."""

    name: str
    about: str
    messages: int
    quick: int
    flags: str
    ratio: float = 1.0
    cpu_us: float | None = None
    p50_ms: float | None = None
    peak_mib: float | None = None
    protocol: str = AMQP
    deliveries: int = 1
    is_ordered: bool = True
    floor: str = ""

    @property
    def letter(self) -> str:
        """What the row's command names it by."""
        return self.name[0]

    @property
    def is_paced(self) -> bool:
        """Whether messages are published at a rate, or one by one when the one before is there.
        Where they are not, a latency tells how many wait, and so how fast the publisher was."""
        words = self.flags.split()
        return "--rate" in words or "--rpc" in words or "--confirm-window 1 " in self.flags


def _sized(name: str, size: int, window: int, messages: int, quick: int) -> Row:
    kib = f"{size:,} B" if size < 1024 else f"{size // 1024:,} KiB"
    about = f"{kib} durable, window and prefetch {window}, each acknowledged"
    return Row(name, about, messages, quick, _of_size(size, window))


def _paced(
    name: str, like: str, size: int, window: int, rate: int, messages: int, quick: int
) -> Row:
    about = f"as {like}, {rate:,} messages a second"
    return Row(name, about, messages, quick, f"{_of_size(size, window)} --rate {rate}")


def _of_size(size: int, window: int) -> str:
    return (
        f"--size {size} --persistent --durable --confirm-window {window} --prefetch {window}"
        " --ack-every 1"
    )


def _queues(name: str, count: int, messages: int, quick: int) -> Row:
    flags = f"{SOME} --keys {count} --queues {count} --spread"
    return Row(name, f"{count:,} queues of one consumer, drawn by chance", messages, quick, flags)


ROWS = (
    Row("a", "16 B transient, acknowledged automatically", 1_000_000, 500_000,
        "--size 16 --ack-every none", 10, 0.1),
    Row("b", "1 KiB durable, confirm window and prefetch 1000, ack multiple each 100",
        300_000, 50_000, SOME, 10, 1.2),
    Row("c", "as b, each acknowledged", 300_000, 50_000, EACH, 10, 1.5),
    Row("d", "as b, 10 publishers, 10 consumers, 10 queues", 300_000, 50_000,
        f"{SOME} --producers 10 --consumers 10 --queues 10", 10, 2.0),
    Row("e", "as b, all published before the first is consumed", 1_000_000, 100_000,
        f"{SOME} --mode pubdrain --timeout 60", 10, 2.0, peak_mib=250),
    Row("f", "as c, 2,000 messages a second", 40_000, 8_000, f"{EACH} --rate 2000", 3, 60, 0.3,
        floor="message 2000"),
    Row("g", "50 keys by chance over a topic exchange to 10 queues, as b", 300_000, 30_000,
        f"{SOME} --exchange bench-g --keys 50 --queues 10 --spread", 3, 5),
    Row("g-mixed", "as g, properties differ, window 100, each acknowledged", 200_000, 20_000,
        "--size 1024 --persistent --durable --confirm-window 100 --prefetch 1000 --ack-every 1"
        " --exchange bench-g --keys 50 --queues 10 --spread --vary", 3, 5),
    Row("h", "as b, message-id, timestamp, type and headers differ in each", 300_000, 30_000,
        f"{SOME} --vary", 3),
    Row("i1", "RPC by direct reply-to, 100 B, one client (a message is a call)", 20_000, 3_000,
        "--size 100 --ack-every 1 --prefetch 1000 --rpc", 3, floor="call"),
    Row("i50", "as i1, 50 clients", 100_000, 10_000,
        "--size 100 --ack-every 1 --prefetch 1000 --rpc --producers 50", 3),
    Row("j", "1,000 publishing connections at 10 messages a second each, 10 queues, as c",
        200_000, 60_000, f"{EACH} --producers 1000 --consumers 10 --queues 10 --rate 10000", 3),
    Row("k10", "fan-out of each to 10 queues, as c (a message is a delivery)", 30_000, 3_000,
        f"{EACH} --exchange bench-k --copies --queues 10 --consumers 10", 3, deliveries=10),
    Row("k100", "as k10, 100 queues", 4_000, 400,
        f"{EACH} --exchange bench-k --copies --queues 100 --consumers 100", 3, deliveries=100),
    Row("l1", "20 consumers of one queue, prefetch 1", 100_000, 20_000,
        "--size 1024 --persistent --durable --confirm-window 1000 --prefetch 1 --ack-every 1"
        " --consumers 20", 3),
    Row("l1-f", "as l1, 2,000 messages a second", 40_000, 8_000,
        "--size 1024 --persistent --durable --confirm-window 1000 --prefetch 1 --ack-every 1"
        " --consumers 20 --rate 2000", 3, floor="message 2000"),
    Row("l20", "20 consumers of one queue, prefetch 100, acknowledged by chance out of 50",
        200_000, 20_000, "--size 1024 --persistent --durable --confirm-window 1000 --prefetch 100"
        " --ack-every 1 --shuffle 50 --consumers 20", 3, 2.8),
    Row("l5", "5 consumers of one queue, prefetch 1000, acknowledged by chance out of 100",
        200_000, 20_000, f"{EACH} --shuffle 100 --consumers 5", 3, 2.8),
    Row("m", "a tenth each with a priority, expired after 300 ms, rejected; the last two come back"
        " as dead letters", 100_000, 20_000, f"{EACH} --mix --consumers 2", 3, is_ordered=False),
    Row("n1", "a publisher that waits for each confirm, as c", 20_000, 2_000,
        "--size 1024 --persistent --durable --confirm-window 1 --prefetch 1000 --ack-every 1", 3,
        floor="message"),
    Row("n64", "64 publishers that wait for each confirm", 100_000, 10_000,
        "--size 1024 --persistent --durable --confirm-window 1 --prefetch 1000 --ack-every 1"
        " --producers 64", 3),
    _sized("o16", 16, 1000, 300_000, 50_000),
    _sized("o1k", 1024, 1000, 300_000, 50_000),
    _sized("o16k", 16 * 1024, 200, 40_000, 5_000),
    _sized("o256k", 256 * 1024, 16, 3_000, 500),
    _sized("o4m", 4 * 1024 * 1024, 4, 200, 40),
    _paced("o16k-f", "o16k", 16 * 1024, 200, 4_000, 40_000, 12_000),
    _paced("o256k-f", "o256k", 256 * 1024, 16, 500, 5_000, 1_500),
    _paced("o4m-f", "o4m", 4 * 1024 * 1024, 4, 30, 900, 300),
    Row("p-a", "a over AMQP 1.0, sent settled", 500_000, 100_000, "--size 16 --ack-every none",
        protocol=LINKS),
    Row("p-b", "b over AMQP 1.0, credit 1000", 200_000, 20_000,
        "--size 1024 --durable --credit 1000 --ack-every 100", protocol=LINKS),
    Row("p-c", "c over AMQP 1.0, credit 1000", 200_000, 20_000,
        "--size 1024 --durable --credit 1000 --ack-every 1", protocol=LINKS),
    Row("p-f", "f over AMQP 1.0", 20_000, 4_000,
        "--size 1024 --durable --credit 1000 --ack-every 1 --rate 2000", protocol=LINKS),
    Row("p-pub", "c over NSQ, PUB", 200_000, 30_000,
        "--size 1024 --confirm-window 1000 --prefetch 1000", protocol=NSQ),
    Row("p-mpub", "c over NSQ, MPUB of 100", 200_000, 30_000,
        "--size 1024 --confirm-window 1000 --prefetch 1000 --mpub 100", protocol=NSQ),
    _queues("q1", 1, 200_000, 30_000),
    _queues("q500", 500, 200_000, 30_000),
    _queues("q5000", 5_000, 200_000, 30_000),
    Row("r", "10,000 topic bindings with a wildcard to 10 queues, keys by chance", 200_000, 30_000,
        f"{SOME} --exchange bench-r --keys 10000 --queues 10 --spread"),
)  # fmt: skip


def chosen(text: str) -> list[Row]:
    """Rows by `all`, a range of letters (a-f), letters and names, with commas: `a-f,l5,o`.

    Raises:
        ValueError: a word is none of them.
    """
    found: list[Row] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if word == "all":
            some = list(ROWS)
        elif dash and len(first) == len(last) == 1 and word not in [row.name for row in ROWS]:
            some = [row for row in ROWS if first <= row.letter <= last]
        else:
            some = [row for row in ROWS if word in (row.name, row.letter)]
        if not some:
            names = ", ".join(row.name for row in ROWS)
            raise ValueError(f"row {word!r}, expected all, a range as a-f, a letter or of {names}")
        found += [row for row in some if row not in found]
    return found
