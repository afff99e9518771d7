"""kill -9 of the broker at a random moment under full load, restart, and an exact account.

Each round: several connections publish with confirms, consume and settle at full speed; the broker
is killed; often its recovery is killed as well; then every queue is read and compared with what the
clients know. All rounds work on one folder, so recovery always stands on earlier recoveries.

CRASH_ROUNDS sets the number of rounds (2; 100 in `make test-long`), CRASH_SEED the seed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.crash_history import (
    Arrival,
    QueueHistory,
    body_of,
    check_account,
    number_in,
    number_of,
)
from tests.support.crash_load import Client, read_all, run, set_up
from tests.support.long import longer, sized
from tests.support.process import BrokerProcess

ROUNDS = int(os.environ.get("CRASH_ROUNDS", sized(2, 10, 100)))
SEED = int(os.environ.get("CRASH_SEED", 20261120))
CLIENTS = 4
"""More than queues: one only publishes, so that backlogs grow."""
QUEUES = 3
SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB", "max_memory": "16MiB"}
"""Many segments and checkpoints a second, bodies beyond memory: more places to be killed in."""
MOST_SEEN = 30_000
"""Messages that were confirmed or came before a kill, at most."""


class Field:
    """The folder, the broker on it, and what the clients know over all rounds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.histories = [QueueHistory(f"crash.{index}") for index in range(QUEUES)]
        self.sequences = [0] * CLIENTS
        self.published = self.consumed = 0
        self.loaded_s = 0.0
        self.broker = BrokerProcess(folder / "data", log_level="warning", **SMALL)

    def round(self) -> None:
        """Load, kill, perhaps kill the recovery, restart, verify, and leave it running."""
        self._load_and_kill()
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            self._kill_while_starting()
        self.broker.flags = {"log_level": "warning", **self.chance.choice([SMALL, SMALL, {}])}
        self.broker.restart()
        self._verify()

    def _load_and_kill(self) -> None:
        port = self.broker.amqp_port
        clients = [
            Client(port, index, self.sequences[index], self.histories, self._fork())
            for index in range(CLIENTS)
            if index < QUEUES or self.chance.random() < 0.7
        ]
        began = time.monotonic()
        kill_at = self.chance.randint(0, MOST_SEEN)
        run(clients, lambda: sum(client.seen for client in clients) >= kill_at)
        self.broker.kill()
        self.loaded_s += time.monotonic() - began
        for client in clients:
            client.read_the_rest()
            self.sequences[client.producer] = client.sequence
            self.published += client.published
            self.consumed += client.consumed

    def _fork(self) -> random.Random:
        return random.Random(self.chance.getrandbits(64))

    def _kill_while_starting(self) -> None:
        self.broker.kill_while_starting(self.chance.uniform(0.0, 0.2))

    def _verify(self) -> None:
        rows = self.broker.queues()
        for history in self.histories:
            ready = rows[history.name]["ready"]
            check_account(rows[history.name], ready)
            keep = self.chance.random() < 0.3
            found = read_all(self.broker.amqp_port, history.name, ready, keep=keep)
            history.check_after_crash(found)
            if keep:
                history.begin_with(found)
            else:
                history.begin_empty()


@longer
@pytest.mark.timeout(1500 + 20 * ROUNDS)
def test_kill_9_under_full_load(tmp_path: Path) -> None:
    field = Field(tmp_path, SEED)
    with field.broker:
        set_up(field.broker.amqp_port, [history.name for history in field.histories])
        for number in range(ROUNDS):
            try:
                field.round()
            except (AssertionError, OSError) as error:
                error.add_note(f"round {number} of {ROUNDS}, seed {SEED}")
                raise
    print(
        f"{ROUNDS} rounds: {field.published} published, {field.consumed} consumed, "
        f"{(field.published + field.consumed) / field.loaded_s:,.0f} a second under load"
    )
    verified = forked.run("journal", "verify", str(field.broker.data_dir))
    assert verified.returncode == 0, verified.stdout + verified.stderr


NUMBERS = [number_of(1, sequence, persistent=True) for sequence in range(6)]


def history() -> QueueHistory:
    """Six published and confirmed; the first four received; 0 settled for certain, 1 perhaps."""
    made = QueueHistory("q", published=set(NUMBERS), required=set(NUMBERS))
    for number in NUMBERS[:4]:
        made.arrived(Arrival(number, False))
    made.settled = set(NUMBERS[:2])
    made.certain = {NUMBERS[0]}
    return made


def left(*flags: str) -> list[Arrival]:
    """The message of that number; r says redelivered."""
    return [Arrival(NUMBERS[int(flag[0])], flag.endswith("r")) for flag in flags]


@pytest.mark.parametrize("found", [left("1r", "2r", "3r", "4", "5r"), left("2r", "3r", "4", "5")])
def test_history_accepts_what_a_crash_may_leave(found: list[Arrival]) -> None:
    history().check_after_crash(found)


@pytest.mark.parametrize(
    ("found", "breach"),
    [
        (left("2r", "3r", "5"), "are lost"),
        (left("0r", "2r", "3r", "4", "5"), "settlement was certain"),
        (left("2r", "3", "4", "5"), "without the flag"),
        (left("3r", "2r", "4", "5"), "out of order"),
        (left("2r", "2r", "3r", "4", "5"), "came twice"),
    ],
)
def test_history_notices_every_broken_promise(found: list[Arrival], breach: str) -> None:
    with pytest.raises(AssertionError, match=breach):
        history().check_after_crash(found)


def test_history_notices_a_damaged_body() -> None:
    body = body_of(NUMBERS[3], 4)
    assert number_in(body) == NUMBERS[3]
    with pytest.raises(AssertionError, match="damaged"):
        number_in(body[:-1] + b"?")
