"""What counts toward a delivery limit: the word of each protocol, as the queue reads it [DL-5]."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import ACCEPTED, FAILED, NACKED, RETURNED
from tallymark.stored import records
from tests.support.engine_rig import Rig
from tests.support.engine_steps import finish, manual

LIMIT = 3
COUNTED = [
    # outcome, reading ("": the queue says nothing), whether it counts
    (NACKED, "", True),  # basic.nack with requeue
    (NACKED, "returns", True),
    (NACKED, "failures", False),
    (FAILED, "", True),  # basic.reject with requeue; modified, delivery-failed
    (FAILED, "failures", True),
    (RETURNED, "", False),  # released; modified, not failed; basic.recover
    (RETURNED, "returns", False),
    (RETURNED, "failures", False),
]


def limited(counts: str = "", **arguments: object) -> Rig:
    rig = manual()
    given: dict[str, object] = {
        "dead-letter-exchange": "", "dead-letter-routing-key": "dead", "delivery-limit": LIMIT,
    } | {key.replace("_", "-"): value for key, value in arguments.items()}  # fmt: skip
    if counts:
        given["delivery-limit-counts"] = counts
    rig.declare("q", given)
    rig.declare("dead")
    return rig


def deliveries(rig: Rig, outcome: int, most: int = 20) -> int:
    """How often a consumer is given a message that it gives back each time."""
    rig.send("q", 1)
    session = rig.session()
    rig.consume(session, "q", "c", 1)
    count = 0
    while count < most and (seen := rig.settle_down()):
        count += len(seen)
        rig.broker.settlement.settle(session, seen[0].tag, seen[0].tag, outcome)
    finish(rig)
    return count


@pytest.mark.parametrize(("outcome", "counts", "is_counted"), COUNTED)
def test_dl_5_a_message_that_is_given_back_too_often_dies(
    outcome: int, counts: str, is_counted: bool
) -> None:
    rig = limited(counts)
    if is_counted:
        assert deliveries(rig, outcome) == LIMIT + 1
        assert [h.deaths for h in rig.holds("dead")] == [[("q", "delivery_limit", 1)]]
    else:
        assert deliveries(rig, outcome) == 20
        assert rig.ready("dead") == []


def test_dl_5_the_reading_is_a_key_of_policies_too_and_the_argument_wins() -> None:
    rig = limited()
    rig.set_policy("q", {"delivery-limit-counts": "failures"})
    assert deliveries(rig, NACKED) == 20
    rig = limited("returns")
    rig.set_policy("q", {"delivery-limit-counts": "failures"})
    assert deliveries(rig, NACKED) == LIMIT + 1


@pytest.mark.parametrize("counts", ["returns", "failures"])
def test_dl_5_a_nack_in_a_transaction_counts_when_it_is_committed(counts: str) -> None:
    rig = limited(counts)
    transactions = rig.broker.transactions
    rig.send("q", 1)
    session = rig.session()
    for _ in range(LIMIT + 1):
        got = rig.take(session, "q")
        assert got is not None
        transaction = transactions.begin(session)
        transactions.settle(transaction, session, got[1], got[1], NACKED)
        assert finish(rig) == []
        transactions.commit(transaction)
        finish(rig)
    assert rig.ready("dead") == ([1] if counts == "returns" else [])


@pytest.mark.parametrize(
    ("counts", "told"),
    [("returns", records.STAGED_FAILED), ("failures", records.STAGED_RETURNED)],
)
def test_lc_5_the_ledger_says_of_a_staged_nack_what_the_commit_makes_of_it(
    counts: str, told: int
) -> None:
    """The row that stages it, the row of the commit and the count after a restart agree."""
    rig = limited(counts)
    transactions = rig.broker.transactions
    rig.send("q", 1)
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, got[1], got[1], NACKED)
    finish(rig)
    (row,) = [r for r in rig.log.blocks[-1] if r.kind == records.STAGED]
    assert row.reason == told
    is_failed = told == records.STAGED_FAILED
    (message,) = rig.restart().holds("q")
    assert (message.acquired, message.failed) == (1, 0)  # it was never committed
    transactions.commit(transaction)
    finish(rig)
    (row,) = [r for r in rig.log.blocks[-1] if r.kind == records.RETURNED]
    assert row.flags & records.RETURNED_FAILED == is_failed
    (message,) = rig.restart().holds("q")
    assert (message.acquired, message.failed) == (1, is_failed)


def test_dl_5_what_was_counted_outlives_a_restart() -> None:
    rig = limited()
    rig.send("q", 1)
    session = rig.session()
    for _ in range(LIMIT):
        got = rig.take(session, "q")
        assert got is not None
        rig.broker.settlement.settle(session, got[1], got[1], NACKED)
        finish(rig)
    rig = rig.restart()
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    assert got[0].failed == LIMIT
    rig.broker.settlement.settle(session, got[1], got[1], NACKED)
    finish(rig)
    assert rig.ready("dead") == [1]


@pytest.mark.parametrize("counts", ["returns", "failures"])
@pytest.mark.parametrize(("kind", "waits"), [("all", True), ("returned", True), ("failed", False)])
def test_delayed_retry_reads_a_nack_as_returned_whatever_it_counts_as(
    counts: str, kind: str, waits: bool
) -> None:
    rig = limited(counts, delayed_retry_type=kind, delayed_retry_min=100)
    rig.send("q", 1)
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    rig.broker.settlement.settle(session, got[1], got[1], NACKED)
    finish(rig)
    assert rig.ready("q") == ([] if waits else [1])
    rig.advance(100)
    assert rig.ready("q") == [1]


def test_dl_5_accepted_after_some_returns_is_accepted() -> None:
    rig = limited()
    rig.send("q", 1)
    session = rig.session()
    for outcome in (NACKED, FAILED, NACKED, ACCEPTED):
        got = rig.take(session, "q")
        assert got is not None
        rig.broker.settlement.settle(session, got[1], got[1], outcome)
        finish(rig)
    assert (rig.ready("q"), rig.ready("dead")) == ([], [])
    assert rig.vhost.queues["q"].account.settled == 1
