"""Verdicts: the outcome of each message of a batch, set from inside foreachBatch.

    def judge(batch, number):
        checked = batch.withColumn("outcome", when(col("body").isNull(), "rejected")
                                              .otherwise("accepted"))
        send_verdicts(checked, "orders", "warehouse")

The broker stores them with the lease and applies them when it settles the batch, which is when
Spark has committed it: a rejected message is then dead-lettered, a released or modified one is
ready again. Until then an outcome can be set again, and a batch that is run again after a crash
does so; the last one counts. So a message is never in two places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tallymark.spark.client import Client, api_path
from tallymark.spark.options import SourceOptions
from tallymark.spark.schema import OF_LEASES

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import DataFrame

OUTCOMES: Final = ("accepted", "rejected", "released", "modified")
"""Done with; refused for good; given back; given back as a failed delivery."""
AT_A_TIME: Final = 20_000
"""Ranges sent in one call."""


def send_verdicts(
    messages: DataFrame,
    queue: str,
    subscription: str,
    *,
    outcome: str = "outcome",
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    vhost: str | None = None,
    options: dict[str, str] | None = None,
) -> dict[str, int]:
    """Send the broker the outcome of each of these messages (columns `lease_sequence`,
    `lease_fence` and `outcome`); they are on the broker's disk when this returns. Return the
    number of each outcome.

    The messages must be of a batch that is not committed yet; those without an outcome are
    accepted. The three columns are gathered on the driver: 20 bytes a message, about. options: more
    options of the source, such as `tokenFile` and `caFile`.

    Raises:
        ValueError: a column is missing or of another type, a row has no outcome or none of
        OUTCOMES, a message has two, or messages were not read by one reader.
        Fenced: another reader attached since the messages were planned.
        BrokerRefused: a message is not leased any more. BrokerUnreachable.
    """
    _check(messages, outcome)
    given = {"url": url, "user": user, "password": password, "vhost": vhost}
    named = {name: value for name, value in given.items() if value}
    parsed = SourceOptions.parse({**named, **(options or {})})
    table = messages.select(*OF_LEASES, messages[outcome].alias("outcome")).toArrow()
    fence = _fence_of(table.column("lease_fence"))
    found = ranges(table.column("lease_sequence"), table.column("outcome"), outcome)
    counts = dict.fromkeys(OUTCOMES, 0)
    for _, count, said in found:
        counts[said] += count
    client = Client(parsed.endpoint)
    try:

        def path(operation: str) -> str:
            return api_path("subscriptions", parsed.vhost, queue, subscription, operation)

        for at in range(0, len(found), AT_A_TIME):
            body = {"fence": fence, "verdicts": found[at : at + AT_A_TIME]}
            client.call("POST", path("verdicts"), body)
    finally:
        client.close()
    return counts


def _check(messages: DataFrame, outcome: str) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in messages.schema.fields}
    for name, expected in (*((name, "bigint") for name in OF_LEASES), (outcome, "string")):
        if kinds.get(name) != expected:
            have = f"is of type {kinds[name]}" if name in kinds else "is missing"
            raise ValueError(f"column {name!r} {have}, expected {expected}")


def _fence_of(fences: Any) -> int:
    """The fence that the messages were planned under; 0 if there are none. Raises ValueError."""
    import pyarrow.compute as pc

    found = [fence for fence in pc.unique(fences).to_pylist() if fence is not None]
    if len(found) > 1:
        raise ValueError(
            f"column 'lease_fence' is {' and '.join(map(str, found))}: the messages were read by "
            "readers that attached one after the other, expected those of one batch"
        )
    return int(found[0]) if found else 0


def ranges(sequences: Any, outcomes: Any, name: str = "outcome") -> list[tuple[int, int, str]]:
    """Two Arrow columns as (first lease sequence, count, outcome), in order. Raises ValueError."""
    import numpy as np
    import pyarrow.compute as pc

    if sequences.null_count:
        raise ValueError(
            "column 'lease_sequence' is null, expected a number: only messages read through a "
            "subscription can be judged"
        )
    wrong = [x.as_py() for x in pc.unique(outcomes) if x.as_py() not in OUTCOMES]
    if wrong:
        raise ValueError(f"column {name!r} is {wrong[0]!r}, expected one of {', '.join(OUTCOMES)}")
    numbers: np.ndarray[Any, np.dtype[np.int64]] = sequences.to_numpy()
    if not len(numbers):
        return []
    said = np.array([OUTCOMES.index(x) for x in outcomes.to_pylist()], np.int8)
    order = np.argsort(numbers, kind="stable")
    numbers, said = numbers[order], said[order]
    twice = np.flatnonzero((numbers[1:] == numbers[:-1]) & (said[1:] != said[:-1]))
    if len(twice):
        at = int(twice[0])
        raise ValueError(
            f"lease sequence {numbers[at]} is {OUTCOMES[said[at]]} and {OUTCOMES[said[at + 1]]}, "
            "expected one outcome"
        )
    keep = np.concatenate(([True], numbers[1:] != numbers[:-1]))
    numbers, said = numbers[keep], said[keep]
    breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(said) != 0)) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(numbers)]))
    return [
        (int(numbers[low]), int(high - low), OUTCOMES[said[low]])
        for low, high in zip(starts, ends, strict=True)
    ]
