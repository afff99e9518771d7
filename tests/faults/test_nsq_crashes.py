"""kill -9 while NSQ clients publish, finish and requeue at full speed: an OK survives [NQ-A11].

Each round: producers send PUB, MPUB and DPUB; one topic has two channels, whose clients answer with
FIN, REQ and REQ with a delay, keep some for later, or let all they get time out; the broker is
killed at a random moment, often its recovery as well. Then, most times, what is there is received
and finished. All rounds work on one folder, and at the end both channels are emptied: what was
answered OK was received and finished, what was finished for certain never came again, nothing came
before its time, and attempts count on.

NSQ_ROUNDS sets the number of rounds (2; 20 in `make test-long`), NSQ_SEED the seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.crash_history import check_account
from tests.support.long import longer, sized
from tests.support.nsq_history import ChannelHistory, Message, TopicHistory, check_same
from tests.support.nsq_load import Client, run
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

ROUNDS = int(os.environ.get("NSQ_ROUNDS", sized(2, 5, 20)))
SEED = int(os.environ.get("NSQ_SEED", 20261120))
MOST_OK = 20_000
"""Messages answered OK before a kill, at most."""
MOST_TIMED_OUT = 100
"""Of those that came again after those who answer nothing let them time out, before a kill."""
SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB", "max_memory": "16MiB"}
"""Many segments and checkpoints a second, bodies beyond memory: more places to be killed in."""
LOOK_S = 0.05


class Field:
    """The folder, the broker on it, and what the clients know over all rounds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topic = TopicHistory("crash")
        self.one = ChannelHistory("one", self.topic)
        self.two = ChannelHistory("two", self.topic)
        self.roles = [
            (None, False), (self.one, False), (self.one, False), (self.one, True),
            (self.two, False), (self.two, True),
        ]  # fmt: skip
        """Of each client: its channel, and whether it lets everything time out."""
        self.sequences = [0] * len(self.roles)
        self.ok = self.finished = self.requeued = self.deferred = 0
        self.loaded_s = 0.0
        self.broker = BrokerProcess(folder / "data", log_level="warning", **SMALL)

    def set_up(self) -> None:
        """Both channels, so that each gets everything."""
        for index in (1, 4):
            self._client(index).leave(certain=False)

    def round(self) -> None:
        self._load_and_kill()
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            self._kill_while_starting()
        self.broker.flags = {"log_level": "warning", **self.chance.choice([SMALL, SMALL, {}])}
        self.broker.restart()
        for row in self._rows():
            check_account(row, row["ready"])
        if self.chance.random() < 0.7:
            self.drain(certain=True)

    def _load_and_kill(self) -> None:
        clients = [self._client(index) for index in range(len(self.roles))]
        began = time.monotonic()
        is_brief = self.topic.life % 2 == 0
        run(clients, self._by_load(clients) if is_brief else self._by_age(clients))
        self.broker.kill()
        self.loaded_s += time.monotonic() - began
        for client in clients:
            client.read_the_rest()
            self._count(client)
        self.topic.life += 1
        for channel in (self.one, self.two):
            channel.life_ends(crashed=True)

    def _by_load(self, clients: list[Client]) -> Callable[[], bool]:
        """Whether enough was published: most often before anything times out."""
        kill_at = self.chance.randint(0, MOST_OK)
        return lambda: sum(client.ok_messages for client in clients) >= kill_at

    def _by_age(self, clients: list[Client]) -> Callable[[], bool]:
        """Whether enough messages timed out and came again. Not more is published meanwhile than
        by load: on a slow machine they would come behind all that."""
        channels = (self.one, self.two)
        enough = self.chance.randint(0, MOST_OK)
        more = self.chance.randint(1, MOST_TIMED_OUT)
        kill_at = sum(channel.timed_out for channel in channels) + more

        def is_time() -> bool:
            if sum(client.ok_messages for client in clients) >= enough:
                for client in clients:
                    client.publishes = False
            return sum(channel.timed_out for channel in channels) >= kill_at

        return is_time

    def drain(self, *, certain: bool) -> None:
        """Receive and finish everything there is."""
        clients = [self._client(index) for index in (1, 2, 4)]
        for client in clients:
            client.only_drain()
        deadline = time.monotonic() + PATIENCE_S
        look_at = 0.0

        def is_empty() -> bool:
            nonlocal look_at
            if time.monotonic() < look_at:
                return False
            rows = self._rows()
            look_at = time.monotonic() + LOOK_S
            left = sum(row["ready"] + row["acquired"] + row["deferred"] for row in rows)
            assert time.monotonic() < deadline, f"{left} are left after {PATIENCE_S} s: {rows}"
            return left == 0

        run(clients, is_empty)
        for client in clients:
            client.stop()
        for client in clients:
            client.leave(certain=certain)
            self._count(client)

    def finish(self) -> None:
        """The end of all rounds."""
        self.drain(certain=False)
        for channel in (self.one, self.two):
            channel.life_ends(crashed=False)
            channel.check_all_done()
        check_same(self.one, self.two)
        for row in self._rows():
            check_account(row, 0)

    def _client(self, index: int) -> Client:
        channel, holds = self.roles[index]
        chance = random.Random(self.chance.getrandbits(64))
        port, sequence = self.broker.nsq_port, self.sequences[index]
        return Client(port, index, sequence, self.topic, channel, chance, holds=holds)

    def _count(self, client: Client) -> None:
        self.sequences[client.producer] = client.sequence
        self.ok += client.ok_messages
        self.finished += client.finished
        self.requeued += client.requeued
        self.deferred += client.deferred

    def _kill_while_starting(self) -> None:
        self.broker.kill_while_starting(self.chance.uniform(0.0, 0.2))

    def _rows(self) -> list[dict[str, Any]]:
        rows = self.broker.queues()
        return [rows["crash:one"], rows["crash:two"]]


@longer
@pytest.mark.timeout(1500 + 40 * ROUNDS)
def test_nq_a11_an_ok_survives_kill_9(tmp_path: Path) -> None:
    field = Field(tmp_path, SEED)
    with field.broker:
        field.set_up()
        for number in range(ROUNDS):
            try:
                field.round()
            except (AssertionError, OSError) as error:
                error.add_note(f"round {number} of {ROUNDS}, seed {SEED}")
                raise
        field.finish()
    channels = (field.one, field.two)
    print(
        f"{ROUNDS} rounds: {field.ok:,} answered OK in {field.loaded_s:.1f} s under load, "
        f"{field.deferred:,} sent with DPUB, {sum(c.deliveries for c in channels):,} deliveries, "
        f"{field.finished:,} FIN, {field.requeued:,} REQ, "
        f"{sum(c.timed_out for c in channels):,} timed out, 0 lost, "
        f"{sum(c.again for c in channels):,} unfinished ones came again after a crash"
    )
    verified = forked.run("journal", "verify", str(field.broker.data_dir))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def history() -> ChannelHistory:
    """Numbers 1 to 4 were sent with PUB, 5 to 7 with one MPUB; 1, 2 and 5 to 7 are answered. A
    crash later than that 1 came, twice, and 2 once."""
    topic = TopicHistory("t")
    for number in range(1, 5):
        topic.publish(range(number, number + 1)).is_ok = number < 3
    topic.publish(range(5, 8)).is_ok = True
    made = ChannelHistory("c", topic)
    for number, attempts in ((1, 1), (1, 2), (2, 1)):
        made.arrived(number, attempts, 0).certain = attempts
    return made


def after_a_crash(made: ChannelHistory) -> ChannelHistory:
    made.life_ends(crashed=True)
    made.topic.life += 1
    return made


def finish(made: ChannelHistory, number: int, attempts: int) -> Message:
    message = made.arrived(number, attempts, 0)
    message.finished = attempts
    message.was_finished = True
    return message


@pytest.mark.parametrize(("one", "three"), [(3, 1), (3, 2)])
def test_history_accepts_what_a_crash_may_leave(one: int, three: int) -> None:
    made = after_a_crash(history())
    for number, attempts in ((1, one), (2, 2), (3, three), (5, 1), (6, 1), (7, 2)):
        finish(made, number, attempts)
    made.life_ends(crashed=False)
    made.check_all_done()
    assert (made.deliveries, made.again) == (9, 2)


@pytest.mark.parametrize(("number", "attempts"), [(1, 2), (1, 4), (2, 1), (3, 3), (5, 0)])
def test_nq_d9_history_notices_attempts_that_do_not_go_on(number: int, attempts: int) -> None:
    made = after_a_crash(history())
    made.arrived(number, attempts, 0)
    with pytest.raises(AssertionError, match="expected the first from"):
        made.life_ends(crashed=False)


@pytest.mark.parametrize("attempts", [[1, 1], [1, 3]])
def test_history_notices_attempts_that_jump_or_stand_still(attempts: list[int]) -> None:
    made = history()
    for count in attempts:
        made.arrived(3, count, 0)
    with pytest.raises(AssertionError, match="expected each once"):
        made.life_ends(crashed=True)


def test_history_notices_a_loss_and_half_an_mpub() -> None:
    made = after_a_crash(history())
    for number in (1, 5, 6, 7):
        finish(made, number, 3 if number == 1 else 1)
    with pytest.raises(AssertionError, match="1 messages were answered OK and are lost: 2"):
        made.check_all_done()
    finish(made, 2, 2)
    made.check_all_done()
    half = made.topic.publish(range(8, 10))
    finish(made, 8, 1)
    assert not half.is_ok
    with pytest.raises(AssertionError, match="1 of 2 of an MPUB"):
        made.check_all_done()


def test_history_notices_what_comes_after_its_fin() -> None:
    made = history()
    finish(made, 3, 2)
    made.arrived(3, 1, 0)
    with pytest.raises(AssertionError, match="came after its FIN"):
        made.arrived(3, 3, 0)


@pytest.mark.parametrize("certain", [False, True])
def test_history_tells_a_certain_fin_from_one_that_may_be_lost(certain: bool) -> None:
    made = history()
    finish(made, 3, 1).is_finish_certain = certain
    after_a_crash(made)
    if certain:
        with pytest.raises(AssertionError, match="its FIN is on disk"):
            made.arrived(3, 2, 0)
    else:
        made.arrived(3, 2, 0)


def test_nq_16_history_notices_what_comes_too_early() -> None:
    made = history()
    batch = made.topic.publish(range(9, 10), due_ms=50)
    assert batch.due_ms == 50
    with pytest.raises(AssertionError, match="came 1 ms before its time"):
        made.arrived(9, 1, 49)
    made.arrived(9, 1, 50)


@pytest.mark.parametrize("certain", [False, True])
def test_nq_12_history_notices_what_comes_too_early_after_a_requeue(certain: bool) -> None:
    made = history()
    message = made.arrived(3, 1, 0)
    message.requeued, message.due_ms, message.is_requeue_certain = 1, 50, certain
    message.certain = 1
    with pytest.raises(AssertionError, match="came 1 ms too early"):
        made.arrived(3, 2, 49)
    after_a_crash(made)
    if certain:
        with pytest.raises(AssertionError, match="came 1 ms too early"):
            made.arrived(3, 2, 49)
    else:
        made.arrived(3, 2, 49)


def two_channels() -> tuple[ChannelHistory, ChannelHistory]:
    """Of one topic: both had 1, and only the first had 2, neither of which was answered OK."""
    topic = TopicHistory("t")
    one, two = ChannelHistory("one", topic), ChannelHistory("two", topic)
    for number in (1, 2):
        topic.publish(range(number, number + 1))
        finish(one, number, 1)
    finish(two, 1, 1)
    return one, two


def test_channels_may_differ_by_what_went_with_the_life_it_was_published_in() -> None:
    one, two = two_channels()
    one.life_ends(crashed=True)
    two.life_ends(crashed=True)
    with pytest.raises(AssertionError, match="one had 2 and two had not"):
        check_same(one, two)  # it lives: nothing is gone
    one.topic.life += 1
    check_same(one, two)
    check_same(two, one)


@pytest.mark.parametrize("what", ["ok", "later", "certain"])
def test_channels_may_differ_by_nothing_that_the_disk_had(what: str) -> None:
    one, two = two_channels()
    if what == "ok":
        one.topic.batch_of[2].is_ok = True
    elif what == "certain":
        one.messages[2].is_finish_certain = True
    one = after_a_crash(one)
    two.life_ends(crashed=True)
    if what == "later":
        finish(one, 2, 2)
    with pytest.raises(AssertionError, match="one had 2 and two had not"):
        check_same(one, two)
