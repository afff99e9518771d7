"""Ten subscribers, one of which stops reading: it is found and closed, and costs the others
nothing. A hundred thousand messages in `make test-long`, which also times them; fewer otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.slow_subscriber import PERIOD_S, Outcome, play, rules
from tallymark.spark import ledger
from tests.support.long import ALL, MODE, long, longer, sized
from tests.support.process import BrokerProcess

MESSAGES = sized(6_000, 6_000, 100_000)
RATE = sized(1000.0, 1000.0, 3000.0)
LIMIT = 1000
MEMORY_MIB = 32
SIZE = 4000
NOISE_MS = 60.0
"""What other work on a machine adds to some messages."""
SLACK_S = 1.0
ATTEMPTS = sized(1, 1, 3)
"""At what depends on how busy the machine is, so it is looked at in the longest run only."""


def run(folder: Path, acknowledges: bool, slow: bool) -> tuple[Outcome, BrokerProcess]:
    broker = BrokerProcess(
        folder, slow_consumers=rules(LIMIT), max_memory=f"{MEMORY_MIB}MiB", log_format="json"
    )
    with broker:
        outcome = play(
            broker.amqp_port, broker.http_port, broker.pid, messages=MESSAGES, rate=RATE, size=SIZE,
            limit=LIMIT, acknowledges=acknowledges, slow=slow,
        )  # fmt: skip
    return outcome, broker


def was_in_time(plain: Outcome, outcome: Outcome) -> bool:
    """The others were not slowed, and the slow one was found with the next look."""
    assert outcome.found_after_s is not None
    above_s = outcome.above_after_s  # None: it was found before anybody else saw it
    found_s = 0.0 if above_s is None else outcome.found_after_s - above_s
    return outcome.p99_ms <= 2 * plain.p99_ms + NOISE_MS and found_s <= PERIOD_S + SLACK_S


@longer(ci=False)
@pytest.mark.parametrize(
    "acknowledges",
    [pytest.param(True, id="acked"), pytest.param(False, id="no-ack", marks=long(ci=False))],
)
def test_one_of_ten_that_stops_reading_is_closed_in_time_and_slows_nobody(
    tmp_path: Path, acknowledges: bool
) -> None:
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        outcome, broker = run(folder / "slow", acknowledges, slow=True)
        assert outcome.missing == 0
        assert outcome.most_bodies_mib <= MEMORY_MIB
        assert outcome.closed_with == "506 Consuming too slow."
        if MODE != ALL:
            break
        plain, _ = run(folder / "plain", acknowledges, slow=False)
        assert plain.missing == 0
        assert plain.most_bodies_mib <= MEMORY_MIB
        if was_in_time(plain, outcome):
            break
        assert attempt + 1 < ATTEMPTS, (plain, outcome)
    lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    named = [(one["event"], one["queue"], one["consumers"]) for one in lines
             if one["event"] in ("slow_consumer.found", "slow_consumer.acted")]  # fmt: skip
    assert named == [
        ("slow_consumer.found", "sub.0", ["sub.0"]), ("slow_consumer.acted", "sub.0", ["sub.0"])
    ]  # fmt: skip
    told = [
        (row["reason"], json.loads(row["blob"])["queue"])
        for part in ledger.plan(broker.data_dir)
        for batch in ledger.read_file(part)
        for row in batch.to_pylist()
        if row["kind"] == "slow_consumer"
    ]
    assert told[-2:] == [("found", "sub.0"), ("acted", "sub.0")]
