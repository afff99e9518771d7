"""kill -9 in the middle of commits that span five queues: each is there whole or not at all.

[TX-D1] Each round: several clients work through five source queues; every transaction acknowledges
a message of each (but one, which it rejects to a dead-letter queue) and publishes to five others.
Half of the clients speak AMQP 0-9-1, the others AMQP 1.0; in `make test-long` first all of them
the one, then all the other.
The broker is killed somewhere in the middle, sometimes again while it recovers; then everything is
read and compared. All rounds work on one folder.

TRANSACTION_ROUNDS sets the number of rounds (2; 50 in `make test-long`), TRANSACTION_SEED the
seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.faults.test_dead_letter_crashes import check_equation
from tests.support import forked
from tests.support.long import longer, sized
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess
from tests.support.transaction_load import (
    LETTERS,
    PERSISTENT,
    SOURCES,
    TARGETS,
    Account,
    Made,
    Worker,
    Worker10,
    set_up,
)

ROUNDS = int(os.environ.get("TRANSACTION_ROUNDS", sized(2, 8, 50)))
SEED = int(os.environ.get("TRANSACTION_SEED", 20261120))
WORKERS = 4
EACH = 250
"""Messages in each source."""
SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB", "max_memory": "16MiB"}
"""Many segments and checkpoints, bodies beyond memory: more places to be killed in."""


class Field:
    """The folder, the broker on it, and what is known of the present round."""

    def __init__(self, folder: Path, seed: int, protocols: str) -> None:
        self.kinds = {"0-9-1": [Worker], "1.0": [Worker10], "both": [Worker, Worker10]}[protocols]
        self.chance = random.Random(seed)
        self.next_number = 0
        self.kills = self.transactions = self.in_doubt = self.kept_in_doubt = 0
        self.rolled_back = 0
        self.broker = BrokerProcess(folder / "data", log_level="warning", **SMALL)

    def round(self, number: int) -> None:
        account = self._fill()
        workers = self._load_and_kill(account, number)
        assert any(worker.error is not None for worker in workers), "nobody noticed the kill"
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            self._kill_while_starting()
        self.broker.flags = {"log_level": "warning", **self.chance.choice([SMALL, SMALL, {}])}
        self.broker.restart()
        rows = self.broker.queues()
        for row in rows.values():
            check_equation(row)
            assert row["staged"] == row["acquired"] == 0, row
        contents = self._drain()
        there = account.check(contents)
        self.transactions += there
        self.in_doubt += len(account.begun) - len(account.committed)
        self.kept_in_doubt += there - len(account.committed)
        self.rolled_back += account.rolled_back

    def _fill(self) -> Account:
        """All sources at once: one large transaction."""
        account = Account({source: set() for source in SOURCES})
        for source in SOURCES:
            numbers = range(self.next_number, self.next_number + EACH)
            self.next_number += EACH
            account.sources[source].update(numbers)
        channel = self._channel()
        channel.tx_select()
        for source in SOURCES:
            for number in sorted(account.sources[source]):
                channel.basic_publish("", source, b"%d " % number, PERSISTENT)
        channel.tx_commit()
        channel.connection.close()
        return account

    def _load_and_kill(self, account: Account, number: int) -> list[Worker]:
        port = self.broker.amqp_port
        workers = [
            self.kinds[n % len(self.kinds)](
                port, f"r{number}w{n}", account, self.chance.getrandbits(32), n < WORKERS // 2
            )
            for n in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        stop_at = self.chance.randint(5, EACH * 3 // 4)
        begun_more = self.chance.randint(0, 2 * WORKERS)  # not always right behind an answer

        def reached(made: Collection[str], count: int) -> None:
            until(
                lambda: len(made) >= count or any(worker.error for worker in workers),
                lambda: os.sched_yield(),
                what=lambda: f"{len(made)} of {count}",
            )
            assert all(worker.error is None for worker in workers)

        reached(account.committed, stop_at)
        reached(account.begun, min(len(account.begun) + begun_more, EACH - WORKERS))
        self.broker.kill()
        self.kills += 1
        for worker in workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive()
        return workers

    def _kill_while_starting(self) -> None:
        self.broker.kill_while_starting(self.chance.uniform(0.0, 0.2))
        self.kills += 1

    def _channel(self) -> BlockingChannel:
        parameters = pika.ConnectionParameters("127.0.0.1", self.broker.amqp_port)
        return pika.BlockingConnection(parameters).channel()

    def _drain(self) -> dict[str, list[bytes]]:
        channel = self._channel()
        found: dict[str, list[bytes]] = {}
        for name in (*SOURCES, *TARGETS, LETTERS):
            bodies = found[name] = []
            while True:
                method, _, body = channel.basic_get(name, auto_ack=True)
                if method is None:
                    break
                bodies.append(body)
        channel.connection.close()
        return found


@longer
@pytest.mark.timeout(1500 + ROUNDS * 60)
@pytest.mark.parametrize("protocols", sized(["both"], ["both"], ["0-9-1", "1.0"]))
def test_tx_d1_kill_9_in_the_middle_of_commits(tmp_path: Path, protocols: str) -> None:
    field = Field(tmp_path, SEED, protocols)
    with field.broker:
        channel = field._channel()
        set_up(channel)
        channel.connection.close()
        for number in range(ROUNDS):
            try:
                field.round(number)
            except (AssertionError, OSError) as error:
                error.add_note(f"round {number} of {ROUNDS}, seed {SEED}")
                raise
    print(
        f"{protocols}: {ROUNDS} rounds, {field.kills} kills, {field.transactions} transactions "
        f"across {len(SOURCES) + len(TARGETS) + 1} queues, {field.rolled_back} rolled back; of "
        f"{field.in_doubt} in doubt {field.kept_in_doubt} were there"
    )
    verified = forked.run("journal", "verify", str(field.broker.data_dir))
    assert verified.returncode == 0, verified.stdout + verified.stderr


# -- the account itself


def an_account() -> Account:
    sources = {source: {10 * n, 10 * n + 1, 10 * n + 2} for n, source in enumerate(SOURCES)}
    account = Account(sources)
    account.begun = {
        "a": Made((0, 10, 20, 30, 40), 2, 1),
        "b": Made((1, 11, 21, 31, 41), 0, 2),
    }
    account.committed = {"a"}
    return account


def contents_of(account: Account, *names: str) -> dict[str, list[bytes]]:
    """As if exactly these had happened."""
    made = [account.begun[name] for name in names]
    found: dict[str, list[bytes]] = {LETTERS: []}
    for at, source in enumerate(SOURCES):
        gone = {one.taken[at] for one in made}
        found[source] = [b"%d " % n for n in sorted(account.sources[source] - gone)]
    for target in TARGETS:
        found[target] = [
            f"{name} {copy} ..".encode()
            for name, one in zip(names, made, strict=True)
            for copy in range(one.copies)
        ]
    found[LETTERS] = [b"%d " % one.taken[one.rejected] for one in made]
    return found


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_the_account_accepts_what_a_crash_may_leave(names: tuple[str, ...]) -> None:
    account = an_account()
    assert account.check(contents_of(account, *names)) == len(names)


@pytest.mark.parametrize(
    ("queue", "at", "breach"),
    [
        (TARGETS[3], 0, "a in"),
        (TARGETS[0], 2, "b in"),
        (SOURCES[1], 0, "lost"),
        (LETTERS, 0, "missing"),
    ],
)
def test_the_account_notices_a_missing_part(queue: str, at: int, breach: str) -> None:
    account = an_account()
    contents = contents_of(account, "a", "b")
    del contents[queue][at]
    with pytest.raises(AssertionError, match=breach):
        account.check(contents)


@pytest.mark.parametrize(
    ("queue", "body", "breach"),
    [
        (TARGETS[3], b"a 0 ..", "a in"),
        (TARGETS[1], b"c 0 ..", "never committed"),
        (SOURCES[4], b"40 ", "out of order|twice"),
        (LETTERS, b"41 ", "letters"),
    ],
)
def test_the_account_notices_a_part_too_many(queue: str, body: bytes, breach: str) -> None:
    account = an_account()
    contents = contents_of(account, "a", "b")
    contents[queue].append(body)
    with pytest.raises(AssertionError, match=breach):
        account.check(contents)


def test_the_account_notices_a_lost_commit() -> None:
    account = an_account()
    with pytest.raises(AssertionError, match="committed, and lost"):
        account.check(contents_of(account, "b"))
