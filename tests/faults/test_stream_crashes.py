"""kill -9 of the broker while a stream is published to, read and let go of, and an exact account.

Offsets never change and never repeat, whoever has read them; each confirmed message is there once,
or retention took it, from the beginning; what publishers send again is passed over.

CRASH_ROUNDS sets the number of rounds (3; 60 in `make test-long`), CRASH_SEED the seed.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from tests.support.long import longer, sized
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess
from tests.support.stream_load import (
    STREAM,
    Known,
    Publisher,
    check,
    declare,
    follow,
    read_all,
    stat,
)

ROUNDS = int(os.environ.get("CRASH_ROUNDS", sized(3, 12, 60)))
SEED = int(os.environ.get("CRASH_SEED", 20261120))
SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB", "max_memory": "16MiB"}
KEPT = (300_000, 2_000_000, 50_000_000)
MOST = 4_000
"""Confirmed messages before and after retention is changed, at most."""
LARGEST = 8_000
"""Bytes of a message with its framing, at most."""


class Field:
    """The folder, the broker on it, and what the clients know over all rounds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.known = Known()
        self.publishers = [
            Publisher(id, self.known, random.Random(seed + id)) for id in range(2)
        ]  # fmt: skip
        self.broker = BrokerProcess(folder / "data", log_level="warning", **SMALL)
        self.kept = 0
        self.seen = 0

    def round(self) -> None:
        self._load_and_kill()
        self.broker.flags = {"log_level": "warning", **self.chance.choice([SMALL, SMALL, {}])}
        self.broker.restart()
        self._verify()

    def set_retention(self) -> None:
        self.kept = self.chance.choice(KEPT)
        self._done("PUT", "/api/policies/%2F/keep", {
            "pattern": f"^{STREAM}$", "definition": {"max-length-bytes": self.kept},
        })  # fmt: skip

    def _done(self, method: str, path: str, body: object) -> None:
        status, found = self.broker.http(method, path, body)
        assert status in (200, 201, 204), found

    def _load_and_kill(self) -> None:
        port, ended = self.broker.amqp_port, threading.Event()
        threads = [
            threading.Thread(target=publisher.run, args=(port, ended))
            for publisher in self.publishers
        ]
        next_offset = stat(self.broker)["next"]
        for start in (0, next_offset):
            prefetch = self.chance.choice([1, 100, 5000])
            threads.append(
                threading.Thread(target=follow, args=(port, start, prefetch, self.known, ended))
            )
        for thread in threads:
            thread.start()
        self._wait_for(self.chance.randint(100, MOST))
        if self.chance.random() < 0.5:
            self.set_retention()
        self._wait_for(self.chance.randint(0, MOST))
        self.broker.kill()
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _wait_for(self, count: int) -> None:
        """Until so many more messages are confirmed."""
        confirmed = self.known.confirmed
        wanted = sum(confirmed.values()) + count
        until(lambda: sum(confirmed.values()) >= wanted, what=lambda: confirmed)

    def _verify(self) -> None:
        low, high, found = read_all(self.broker)
        check(self.known, self.publishers, low, high, found)
        self.seen = max(self.seen, len(self.known.at))
        self._check_account(low, high, len(found))

    def _check_account(self, low: int, high: int, messages: int) -> None:
        row = self.broker.queues()[STREAM]
        dropped = row["dropped"]
        assert set(dropped) <= {"retention", "duplicate"}, dropped
        assert row["entered"] == row["ready"] + sum(dropped.values()) == high
        assert row["ready"] == messages
        assert (row["settled"], row["acquired"], row["dead_lettered"]) == (0, 0, 0)
        assert row["ready_bytes"] <= self.kept
        if dropped.get("retention", 0):
            assert low > 0
            smallest = min(KEPT)  # of all that were in effect
            assert row["ready_bytes"] > smallest - LARGEST


@longer
@pytest.mark.timeout(1500 + 30 * ROUNDS)
def test_kill_9_under_publish_and_retention(tmp_path: Path) -> None:
    field = Field(tmp_path, SEED)
    with field.broker:
        declare(field.broker.amqp_port, {})
        field.set_retention()
        for number in range(ROUNDS):
            try:
                field.round()
            except (AssertionError, OSError) as error:
                error.add_note(f"round {number} of {ROUNDS}, seed {SEED}")
                raise
    sent = [publisher.sent for publisher in field.publishers]
    print(f"{ROUNDS} rounds: {sum(sent)} published, {field.seen} offsets read")
    assert field.seen > 100
