"""Fates of messages, and the account that they make."""

from __future__ import annotations

from array import array

from tallymark.stored import records
from tallymark.whatif.fates import Fates, fate_of
from tallymark.whatif.figures import figures_of

QUEUE = ("/", "orders", 0)
HOUR_MS = 3_600_000


def test_messages_are_settled_whoever_settles_them() -> None:
    """A queue that clients, Spark and a redrive have taken from."""
    fates = Fates(QUEUE)
    ways = [*records.SETTLEMENTS, records.SETTLED_BY_CLIENT]
    count = len(ways) + 2
    fates.enter(1, count, HOUR_MS, 1, array("I", [10] * count))
    for sequence, reason in enumerate(ways, 1):
        fates.end(sequence, 1, HOUR_MS + sequence, fate_of(records.SETTLED, reason))
    fates.end(count, 1, HOUR_MS + 9, fate_of(records.DROPPED, records.DROPPED_MAXLEN))
    account = {"entered": count, "there": 1, "settled": len(ways), "dropped (maxlen)": 1}
    assert fates.account() == account
    found = figures_of({QUEUE: fates}, HOUR_MS, HOUR_MS + 10)["orders"]
    assert found["account"] == account
    assert found["hours"] == {str(HOUR_MS): account}
    ends = found["series"]["ends"]
    assert {name: sum(counts) for name, counts in ends.items()} == {
        "settled": len(ways), "dropped (maxlen)": 1,
    }  # fmt: skip
