"""kill -9 while messages die by the ten thousand: each is in one place then, its history intact.

Each round: messages of every kind that dies (rejected, expired, also by a TTL of their own, over a
length, failed too often, with priorities, down a chain, to two queues at once, to a queue that is
not there yet, round a retry loop) are published with confirms; the broker is killed somewhere in
the middle, sometimes twice, sometimes while it recovers; what is left is published, everything dies
that can, and every queue is read. All rounds work on one folder.

LETTER_ROUNDS sets the number of rounds (2; 20 in `make test-long`), LETTER_DEATHS the deaths in
each (20,000; 100,000), LETTER_SEED the seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support import forked
from tests.support.crash_history import number_of
from tests.support.letter_history import (
    CAPACITY,
    FULL,
    KINDS,
    RETRIED,
    SOURCES,
    WAITING,
    Account,
    Letter,
    Sections,
    Seen,
    close_late,
    open_late,
    set_up,
)
from tests.support.letter_load import Consumers, Publisher, read_letters, run
from tests.support.long import longer, sized
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

ROUNDS = int(os.environ.get("LETTER_ROUNDS", sized(2, 5, 20)))
DEATHS = int(os.environ.get("LETTER_DEATHS", sized(10_000, 20_000, 100_000)))
SEED = int(os.environ.get("LETTER_SEED", 20261121))
SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB", "max_memory": "16MiB"}
"""Many segments and checkpoints a second, bodies beyond memory: more places to be killed in."""
LOOK_S = 0.05
MORE_TURNS = 200
"""Of all clients, from the last death that is waited for to a kill, at most."""


class Field:
    """The folder, the broker on it, and what is known of the messages of the present round."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.accounts = [Account(kind) for kind in KINDS]
        self.sequences = [0] * len(KINDS)
        self.settled = 0
        """Messages of RETRIED that were acknowledged in earlier rounds."""
        self.deaths = self.kills = 0
        self.killed_at: list[float] = []
        """Which share of each round's messages was published when the broker was killed."""
        self._sections = Sections()
        self.broker = BrokerProcess(folder / "data", log_level="warning", **SMALL)

    # -- one round

    def round(self) -> None:
        began = time.time()
        each = DEATHS // sum(kind.deaths_each for kind in KINDS)
        left = [each] * len(KINDS)
        kills = self.chance.choice([1, 1, 2])
        late_after = self.chance.randint(0, kills)
        """How often the broker is killed before letters of PENDING find their way."""
        for number in range(kills):
            if number == late_after:
                self.on_a_channel(open_late)
            self._load_and_kill(left, each * len(KINDS))
            for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
                self._kill_while_starting()
            self.broker.flags = {"log_level": "warning", **self.chance.choice([SMALL, SMALL, {}])}
            self.broker.restart()
        self._finish(left, late_after == kills)
        self._verify((began, time.time()))
        exchange_too = self.chance.random() < 0.5
        self.on_a_channel(lambda channel: close_late(channel, exchange_too=exchange_too))

    def _load_and_kill(self, left: list[int], total: int) -> None:
        publisher, consumers = self._peers()
        stop_left = round(sum(left) * self.chance.uniform(0.02, 0.95))
        turns_left = self.chance.choice([0, self.chance.randint(0, MORE_TURNS)])

        def is_time() -> bool:
            nonlocal turns_left
            if sum(left) > stop_left:
                return False
            turns_left -= 1
            return turns_left < 0

        run(publisher, consumers, left, is_time)
        self.broker.kill()
        self.kills += 1
        self.killed_at.append(1 - sum(left) / total)
        publisher.read_the_rest()
        consumers.read_the_rest()
        for account in self.accounts:
            account.killed()

    def _kill_while_starting(self) -> None:
        self.broker.kill_while_starting(self.chance.uniform(0.0, 0.2))

    def _finish(self, left: list[int], is_late: bool) -> None:
        """Publish what is left, and have everything die that can."""
        publisher, consumers = self._peers()
        run(publisher, consumers, left, lambda: not any(left) and not publisher.waits)
        if is_late:
            self.on_a_channel(open_late)
        deadline = time.monotonic() + PATIENCE_S
        look_at = 0.0

        def is_quiet() -> bool:
            nonlocal look_at
            if time.monotonic() < look_at:
                return False
            rows = self.broker.queues()
            look_at = time.monotonic() + LOOK_S
            busy = {name: rows[name] for name in SOURCES if is_busy(rows[name])}
            assert time.monotonic() < deadline, f"after {PATIENCE_S} s: {busy}"
            return not busy

        run(publisher, consumers, left, is_quiet)
        publisher.link.close()
        consumers.link.close()

    def _peers(self) -> tuple[Publisher, Consumers]:
        port = self.broker.amqp_port
        chance = random.Random(self.chance.getrandbits(64))
        publisher = Publisher(port, self.accounts, self.sequences, chance)
        return publisher, Consumers(port, self.accounts, chance)

    def on_a_channel(self, change: Callable[[BlockingChannel], None]) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", self.broker.amqp_port)
        connection = pika.BlockingConnection(parameters)
        change(connection.channel())
        connection.close()

    # -- what is there

    def _verify(self, times: tuple[float, float]) -> None:
        rows = self.broker.queues()
        for row in rows.values():
            check_equation(row)
        for account in self.accounts:
            kind = account.kind
            assert not rows[kind.name]["dropped"], f"dropped: {rows[kind.name]}"
            if kind.name == RETRIED:
                account.check_place(kind.name, sorted(account.content))
                self.settled += len(account.content)
                assert rows[kind.name]["settled"] == self.settled, rows[kind.name]
            else:
                self._verify_ends(account, rows, times)
            self.deaths += len(account.confirmed) * kind.deaths_each
            account.begin_anew()

    def _verify_ends(
        self, account: Account, rows: dict[str, dict[str, Any]], times: tuple[float, float]
    ) -> None:
        kind = account.kind
        alive: list[int] = []
        if kind.name == FULL:
            kept = self._read(kind.name, rows)
            alive = [letter.number for letter in kept]
            # What was not confirmed may never have entered. Only a full queue lets go.
            died = sum(rows[end]["ready"] for end in kind.ends)
            assert len(kept) == min(CAPACITY, len(kept) + died), f"{len(kept)} left, {died} died"
            assert len(kept) >= min(CAPACITY, len(account.confirmed)), f"{len(kept)} are left"
            assert all(not self._sections(letter.section).deaths for letter in kept)
        places = []
        for end in kind.ends:
            letters = self._read(end, rows)
            for letter in letters:
                account.check_letter(end, letter, self._sections(letter.section), times)
            numbers = [letter.number for letter in letters]
            account.check_order(end, numbers + alive)
            account.check_place(end, numbers + alive)
            places.append(set(numbers))
        assert all(place == places[0] for place in places), f"{kind.ends}: different messages"

    def _read(self, queue: str, rows: dict[str, dict[str, Any]]) -> list[Letter]:
        return read_letters(self.broker.amqp_port, queue, rows[queue]["ready"])


def is_busy(row: dict[str, Any]) -> bool:
    """Whether messages of the queue may still die."""
    may_stay = CAPACITY if row["name"] == FULL else 0
    return bool(row["acquired"] or row["dead_letter_pending"] or row["ready"] > may_stay)


def check_equation(row: dict[str, Any]) -> None:
    """[LC-5]"""
    here = row["ready"] + row["acquired"] + row["deferred"] + row["staged"]
    gone = row["settled"] + row["dead_lettered"] + sum(row["dropped"].values())
    assert row["entered"] == here + row["dead_letter_pending"] + gone, f"no balance: {row}"


@longer
@pytest.mark.timeout(1500 + ROUNDS * (20 + DEATHS // 1000))
def test_dl_22_kill_9_in_the_middle_of_dead_lettering(tmp_path: Path) -> None:
    field = Field(tmp_path, SEED)
    with field.broker:
        field.on_a_channel(set_up)
        for number in range(ROUNDS):
            try:
                field.round()
            except (AssertionError, OSError) as error:
                error.add_note(f"round {number} of {ROUNDS}, seed {SEED}")
                raise
    print(
        f"{ROUNDS} rounds, {field.kills} kills at {[round(at, 2) for at in field.killed_at]} of "
        f"what is published, at least {field.deaths:,} deaths"
    )
    verified = forked.run("journal", "verify", str(field.broker.data_dir))
    assert verified.returncode == 0, verified.stdout + verified.stderr


EXPIRED = next(kind for kind in KINDS if kind.name == "dead.expired")
NUMBERS = [number_of(1, sequence, persistent=True) for sequence in range(4)]
SOUND = Seen(
    EXPIRED.deaths, (5.0,), ("dead.expired", "expired", ""), ("dead.expired", "expired", ""),
    None, None, 0,
)  # fmt: skip
TWICE = ((*EXPIRED.deaths[0][:2], 2, *EXPIRED.deaths[0][3:]),)


def account() -> Account:
    """Four published, the first two confirmed."""
    return Account(EXPIRED, published=set(NUMBERS), confirmed=set(NUMBERS[:2]))


@pytest.mark.parametrize("found", [NUMBERS[:2], NUMBERS, [NUMBERS[0], NUMBERS[1], NUMBERS[3]]])
def test_account_accepts_what_a_crash_may_leave(found: list[int]) -> None:
    account().check_place("end", found)
    account().check_order("end", found)
    account().check_letter("end", Letter(NUMBERS[0], b""), SOUND, (5.5, 6.0))


@pytest.mark.parametrize(
    ("found", "breach"),
    [
        (NUMBERS[1:], "are lost"),
        ([*NUMBERS, NUMBERS[3]], "are there twice"),
        ([*NUMBERS, 77], "were never published"),
    ],
)
def test_account_notices_a_message_that_is_not_in_one_place(found: list[int], breach: str) -> None:
    with pytest.raises(AssertionError, match=breach):
        account().check_place("end", found)


@pytest.mark.parametrize(
    "seen",
    [
        replace(SOUND, deaths=TWICE),
        replace(SOUND, deaths=EXPIRED.deaths * 2, times=(5.0, 5.0)),
        replace(SOUND, deaths=()),
        replace(SOUND, last=("dead.expired", "rejected", "")),
        replace(SOUND, first=()),
        replace(SOUND, times=(99.0,)),
        replace(SOUND, expiration="15"),
        replace(SOUND, priority=1),
    ],
)
def test_account_notices_a_damaged_history(seen: Seen) -> None:
    with pytest.raises(AssertionError, match="end: 1"):
        account().check_letter("end", Letter(NUMBERS[0], b""), seen, (5.5, 6.0))


def retries(n: int) -> Seen:
    """A message of RETRIED that was rejected n times and came back."""
    waited = (WAITING, "expired", n, "", (WAITING,), "")
    rejected = (RETRIED, "rejected", n, "", (RETRIED,), "")
    return replace(SOUND, deaths=(waited, rejected) if n else (), times=(5.0, 5.0) if n else ())


def test_account_follows_a_retried_message() -> None:
    made = account()
    assert [made.tried(NUMBERS[0], retries(n)) for n in (0, 1, 2)] == [False, False, True]
    made.killed()
    assert not made.tried(NUMBERS[0], retries(1)), "what it was told last was lost"
    assert made.tried(NUMBERS[0], retries(2))
    assert made.content == {NUMBERS[0]}


@pytest.mark.parametrize(
    ("path", "breach"),
    [
        ([0, 0], "was rejected 1 times"),
        ([0, 2], "was rejected 1 times"),
        ([1], "was rejected 0 times"),
        ([0, 1, 2, 2], "had been acknowledged"),
    ],
)
def test_account_notices_a_retry_that_is_lost_or_counted_twice(
    path: list[int], breach: str
) -> None:
    made = account()
    for n in path[:-1]:
        made.tried(NUMBERS[0], retries(n))
    with pytest.raises(AssertionError, match=breach):
        made.tried(NUMBERS[0], retries(path[-1]))
