"""Depth and traffic of each queue over time, and the verdict over all of them, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from tallymark.spark.account import Reconciliation

Rows = list[dict[str, Any]]
ENDED: Final = ("settled", "dead_lettered", "dropped")
GROWN: Final = 0.5
"""Share of what entered a queue in the time shown from which on its backlog counts as growing..."""
GROWN_LEAST: Final = 1_000
"""...and how many messages that must be."""


def depths(
    name: Callable[[int], str],
    traffic: Iterable[Any],
    there: Iterable[Any],
    shown: Callable[[int], bool],
) -> Rows:
    """Return for each queue what it held, by stretches of time, busiest queue first.

    traffic, there: of `chapters`. shown: whether a stretch, by its beginning, is to be in it. A
    depth is that at the end of its stretch; counted back from what is there at the end, so that it
    is right also where the ledger begins later than the queue."""
    by_queue: dict[int, dict[int, dict[str, int]]] = {}
    for row in traffic:
        of = by_queue.setdefault(row.queue_id, {}).setdefault(int(row.bucket), {})
        of[row.kind] = of.get(row.kind, 0) + row["count"]
    left = {row.queue_id: row["count"] for row in there}
    found = []
    for id, buckets in by_queue.items():
        change = sum(_change(of) for of in buckets.values())
        depth = max(left.get(id, 0) - change, 0)
        points = []
        for at in sorted(buckets):
            depth = max(depth + _change(buckets[at]), 0)
            if shown(at):
                entered = buckets[at].get("entered", 0)
                points.append([at, entered, entered - _change(buckets[at]), depth])
        if points:
            entered, ended = (sum(point[i] for point in points) for i in (1, 2))
            found.append(
                {
                    "queue": name(id),
                    "entered": entered,
                    "ended": ended,
                    "deepest": max(point[3] for point in points),
                    "depth": points[-1][3],
                    "grew": points[-1][3] - (points[0][3] - points[0][1] + points[0][2]),
                    "points": points,
                }
            )
    return sorted(found, key=lambda one: (-one["entered"] - one["ended"], one["queue"]))


def _change(of: dict[str, int]) -> int:
    return of.get("entered", 0) - sum(of.get(kind, 0) for kind in ENDED)


def account_of(outcome: Reconciliation | None, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return the account as plain values; {} where there is none. only: of these queues, by
    default of all."""
    if outcome is None:
        return {}
    if only:
        outcome = replace(
            outcome,
            accounts=[one for one in outcome.accounts if _label(one.vhost, one.queue) in only],
            faults=[one for one in outcome.faults if _label(one.vhost, one.queue) in only],
            hours=[one for one in outcome.hours if _label(one.vhost, one.queue) in only],
        )
    queues = [
        {
            "queue": _label(one.vhost, one.queue),
            "entered": one.entered,
            "there": sum(one.still_there.values()),
            "settled": one.settled,
            "dead_lettered": one.dead_lettered,
            "dropped": sum(one.dropped.values()),
            "difference": one.difference,
        }
        for one in outcome.accounts
        if one.entered or one.difference
    ]
    faults = [{**asdict(one), "queue": _label(one.vhost, one.queue)} for one in outcome.faults]
    return {
        "balanced": outcome.balanced,
        "position": outcome.position,
        "queues": sorted(queues, key=_worst_first),
        "faults": faults,
    }


def _worst_first(one: dict[str, Any]) -> tuple[bool, int, str]:
    return one["difference"] == 0, -one["entered"], one["queue"]


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    """Return `text`, as "all balanced" or "3 queues need a look", whether all is `good`, and
    `queues`, each with the reasons why it needs a look, by the findings in `data`."""
    why: dict[str, list[str]] = {}

    def say(queue: str, reason: str) -> None:
        said = why.setdefault(queue, [])
        if reason not in said:
            said.append(reason)

    account = data["account"]
    for one in account.get("queues", ()):
        if one["difference"]:
            say(one["queue"], f"the account is off by {one['difference']:,}")
    for one in account.get("faults", ()):
        say(one["queue"], f"sequences {one['first']} to {one['last']}: {one['fault']}")
    for one in data["credit"]:
        if one["state"] in ("stalled", "leaked"):
            say(one["queue"], f"{one['link']}: {one['state']} with {one['held']:,} messages")
    for group in data["paths"]["cycles"]:
        for queue in group:
            say(queue, f"dead letters go round: {' to '.join([*group, group[0]])}")
    for one in data["slow_consumers"]:
        if one["event"] in ("found", "acted"):
            say(one["queue"], f"consumer {one['consumer']} was too slow")
    for one in data["depth"]:
        if one["grew"] >= max(GROWN_LEAST, one["entered"] * GROWN):
            say(one["queue"], f"its backlog grew by {one['grew']:,}")
    queues = [{"queue": queue, "why": reasons} for queue, reasons in sorted(why.items())]
    return {"text": _text(len(queues), account), "good": not queues, "queues": queues}


def _text(count: int, account: dict[str, Any]) -> str:
    if count:
        return "1 queue needs a look" if count == 1 else f"{count:,} queues need a look"
    return "all balanced" if account else "nothing stands out"


def _label(vhost: str, queue: str) -> str:
    return queue if vhost in ("", "/") else f"{vhost}: {queue}"
