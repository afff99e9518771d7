"""Findings of the report as plain values: each chapter a list of small dicts, ready for JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tallymark.spark.account import Reconciliation
from tallymark.spark.report import chapters, graph
from tallymark.spark.report.depths import account_of, depths, verdict
from tallymark.spark.report.journeys import (
    consumption,
    journeys,
    latency,
    latency_over_time,
    topics_of,
)
from tallymark.spark.transitions import transitions
from tallymark.stored.records import UNSURE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION: Final = 2
STALLED_MS: Final = 10 * 60 * 1000
BUCKETS_MS: Final = (
    100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000,
    7 * 86_400_000,
)  # fmt: skip
MOST_BUCKETS: Final = 60
PERCENTILES: Final = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "longest_ms")
NOT_KEPT: Final = "(exchange not recorded)"
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Names:
    """Names for the ledger's ids."""

    queues: dict[int, str]
    subscriptions: dict[int, str]

    def queue(self, id: int) -> str:
        return self.queues.get(id, f"(id {id})")


@dataclass(frozen=True, slots=True)
class Scope:
    """Subject of a report: some queues, and some time."""

    queues: Sequence[str] = ()
    """Names; none: all of them."""
    begin: datetime | None = None
    end: datetime | None = None
    """Both with a zone; end: exclusive."""

    def rows_of(self, rows: DataFrame) -> DataFrame:
        """Return the rows about these queues. Raises ValueError for a queue that is not there."""
        if not self.queues:
            return rows
        names = names_of(rows).queues
        ids = [id for id, name in names.items() if name in self.queues]
        unknown = sorted(set(self.queues) - set(names.values()))
        if unknown:
            raise ValueError(
                f"queue {unknown[0]!r} is not in the ledger, expected one of "
                f"{', '.join(sorted(names.values())) or 'none'}"
            )
        about = f"queue_id in ({', '.join(map(str, ids))})"
        # Counters say which queues are there: of those that letters came from or went to as well.
        return rows.where(f"{about} or kind in ('payload', 'definition', 'counters')")

    def rows_in(self, rows: DataFrame) -> DataFrame:
        """Return the rows of what happened in that time, and those that tell of no time."""
        from pyspark.sql import functions as f

        in_time = f.lit(True)
        if self.begin is not None:
            in_time &= f.col("time") >= f.lit(self.begin)
        if self.end is not None:
            in_time &= f.col("time") < f.lit(self.end)
        timeless = (f.col("source") != "journal") | f.col("kind").isin("payload", "definition")
        return rows.where(timeless | in_time)

    def shows(self, at_ms: int, bucket_ms: int) -> bool:
        """Return whether a stretch of time is part of it."""
        after = self.begin is None or at_ms + bucket_ms > _ms(self.begin)
        return after and (self.end is None or at_ms < _ms(self.end))


ALL: Final = Scope()


def collect(
    rows: DataFrame,
    as_of: datetime | None = None,
    stalled_ms: int = STALLED_MS,
    scope: Scope = ALL,
    outcome: Reconciliation | None = None,
) -> dict[str, Any]:
    """Every chapter of the ledger's `rows`. as_of: of the checkpoint among them; None: when the
    last thing happened. stalled_ms: how long a delivery may stay unsettled before its credit counts
    as leaked or stalled. outcome: the account. docs/pipelines.md describes what is returned."""
    whole = scope.rows_of(rows)
    rows = scope.rows_in(whole)
    happened = chapters.totals(rows).collect()
    sums = [(row.queue_id, row.kind, row.reason, row["count"]) for row in happened]
    begin = min((row["first"] for row in happened), key=_ms, default=None)
    end = max((row["last"] for row in happened), key=_ms, default=None)
    last = as_of or end
    bucket_ms = bucket_of(_ms(begin), _ms(end))
    names = names_of(rows)
    # A message may have entered before the time that is looked at.
    stays = journeys(rows.unionAll(_entered_before(whole, scope)), topics_of(rows)).cache()
    try:
        quantiles = latency(stays).collect()
        slowness = latency_over_time(stays, bucket_ms).collect()
        consumed = consumption(stays, bucket_ms).collect()
    finally:
        stays.unpersist()
    said = chapters.told(rows).collect()
    attempts = chapters.deliveries(rows).collect()
    given = _deliveries(names, attempts, sums)
    # What is held at the checkpoint may have been handed out before that time, too.
    held = _credit(names, whole, _ms(last), stalled_ms)
    deep = depths(
        names.queue,
        chapters.traffic(whole, bucket_ms).collect(),
        chapters.there(whole).collect(),
        lambda at_ms: scope.shows(at_ms, bucket_ms),
    )
    data = {
        "version": VERSION,
        "account": account_of(outcome, scope.queues),
        "depth": deep,
        "latency_over_time": _latency_over_time(slowness),
        "from": _iso(begin),
        "to": _iso(end),
        "as_of": _iso(last),
        "bucket_ms": bucket_ms,
        "stalled_ms": stalled_ms,
        "totals": _totals(sums),
        "flow": _flow(chapters.flow(rows, bucket_ms).collect()),
        "latency": _latency(names, quantiles),
        "topics": _topics(names, consumed, bucket_ms),
        "deliveries": given,
        "paths": _paths(names, rows, sums),
        "consumers": _consumers(names, rows, said),
        "slow_consumers": _slow(names, said),
        "credit": held,
        "duplicates": _duplicates(given, names, sums),
        "inversions": _inversions(names, chapters.inversions(rows).collect()),
    }
    return {**data, "verdict": verdict(data)}


def _entered_before(whole: DataFrame, scope: Scope) -> DataFrame:
    if scope.begin is None:
        return whole.where("false")
    from pyspark.sql import functions as f

    return whole.where("kind = 'entered'").where(f.col("time") < f.lit(scope.begin))


def bucket_of(first_ms: int, last_ms: int) -> int:
    """Return the length of the intervals that a span of time is cut into; milliseconds.

    >>> bucket_of(0, 24 * 3_600_000), bucket_of(0, 20_000)
    (3600000, 500)
    """
    for bucket in BUCKETS_MS:
        if (last_ms - first_ms) / bucket <= MOST_BUCKETS:
            return bucket
    return BUCKETS_MS[-1]


def names_of(rows: DataFrame) -> Names:
    """Return the names in the ledger's definitions; deleted queues are marked."""
    wanted = rows.where("kind in ('counters', 'definition')")
    found = wanted.select("kind", "queue_id", "blob").distinct().collect()
    there = {row.queue_id for row in found if row.kind == "counters"}
    queues: dict[int, str] = {}
    subscriptions: dict[int, str] = {}
    for row in found:
        one = json.loads(row.blob) if row.kind == "definition" and row.blob else {}
        if one.get("op") == "queue":
            name = one["name"] if one["vhost"] == "/" else f"{one['vhost']}: {one['name']}"
            id = int(one["id"])
            queues[id] = name if id in there else f"{name} (gone, id {id})"
        elif "epoch" in one and "name" in one:
            subscriptions[int(one["epoch"])] = str(one["name"])
    return Names(queues, subscriptions)


# -- chapters


def _totals(sums: Iterable[tuple[int, str, str | None, int]]) -> dict[str, Any]:
    of: dict[str, int] = {}
    drops: dict[str, int] = {}
    for _, kind, reason, count in sums:
        if reason == UNSURE:
            kind = UNSURE
        of[kind] = of.get(kind, 0) + count
        if kind == "dropped":
            drops[str(reason)] = drops.get(str(reason), 0) + count
    wanted = (
        "entered", "acquired", "settled", "returned", UNSURE, "deferred", "dead_lettered", "dropped"
    )  # fmt: skip
    return {**{name: of.get(name, 0) for name in wanted}, "drops": drops}


def _flow(found: Iterable[Any]) -> Rows:
    by_bucket: dict[int, dict[str, int]] = {}
    for row in found:
        by_bucket.setdefault(int(row.bucket), dict.fromkeys(chapters.FLOWS, 0))[row.kind] = row[
            "count"
        ]
    return [{"at_ms": bucket, **by_bucket[bucket]} for bucket in sorted(by_bucket)]


def _latency(names: Names, found: Iterable[Any]) -> Rows:
    out = [
        {
            "queue": names.queue(row.queue_id),
            "count": row["count"],
            **dict(zip(PERCENTILES, map(float, row.quantiles), strict=True)),
        }
        for row in found
    ]
    return sorted(out, key=lambda one: -one["p99_ms"])


def _latency_over_time(found: Iterable[Any]) -> Rows:
    out = [
        {
            "at_ms": int(row.bucket),
            "count": row["count"],
            **dict(zip(PERCENTILES, map(float, row.quantiles), strict=True)),
        }
        for row in found
    ]
    return sorted(out, key=lambda one: int(one["at_ms"]))


def _topics(names: Names, found: Iterable[Any], bucket_ms: int) -> Rows:
    """Return the chapter of topics: a topic is an exchange; messages through the default exchange
    count as their queue's. The ledger has no topics of transient messages, and of dead letters from
    before its oldest row."""
    points: dict[str, dict[int, int]] = {}
    queues: dict[str, dict[str, int]] = {}
    for row in found:
        queue = names.queue(row.queue_id)
        topic = NOT_KEPT if row.topic is None else row.topic or queue
        at = points.setdefault(topic, {})
        at[int(row.bucket)] = at.get(int(row.bucket), 0) + row["count"]
        of = queues.setdefault(topic, {})
        of[queue] = of.get(queue, 0) + row["count"]
    out = []
    for topic, at in points.items():
        seconds = (max(at) - min(at) + bucket_ms) / 1000
        out.append(
            {
                "topic": topic,
                "consumed": sum(at.values()),
                "per_second": sum(at.values()) / seconds,
                "queues": queues[topic],
                "points": [[bucket, at[bucket]] for bucket in sorted(at)],
            }
        )
    return sorted(out, key=lambda one: (-int(str(one["consumed"])), str(one["topic"])))


def _deliveries(
    names: Names, attempts: Iterable[Any], sums: Iterable[tuple[int, str, str | None, int]]
) -> Rows:
    by_queue: dict[int, dict[str, Any]] = {}

    def of(id: int) -> dict[str, Any]:
        return by_queue.setdefault(
            id, {"queue": names.queue(id), "deliveries": 0, "redelivered": 0, "timed_out": 0,
                 "given_back": {}, "attempts": {}},
        )  # fmt: skip

    for row in attempts:
        one = of(row.queue_id)
        one["deliveries"] += row["count"]
        one["attempts"][int(row.attempt)] = row["count"]
        if row.attempt > 1:
            one["redelivered"] += row["count"]
    for id, kind, reason, count in sums:
        if (kind, reason) == ("settled", "on_send"):
            of(id)["deliveries"] += count
        elif kind in ("returned", "deferred") and id in by_queue:
            one = of(id)
            one["given_back"][str(reason)] = one["given_back"].get(str(reason), 0) + count
            if reason == "timeout":
                one["timed_out"] += count
    for one in by_queue.values():
        most = max(one["deliveries"], 1)
        one["redelivery_rate"] = one["redelivered"] / most
        one["timeout_rate"] = one["timed_out"] / most
        one["attempts"] = {n: one["attempts"][n] for n in sorted(one["attempts"])}
    return sorted(by_queue.values(), key=lambda one: (-one["redelivery_rate"], one["queue"]))


def _duplicates(
    given: Rows, names: Names, sums: Iterable[tuple[int, str, str | None, int]]
) -> Rows:
    """Return for each queue the publishes dropped as duplicates, and the messages delivered more
    than once."""
    out = {
        one["queue"]: {
            "queue": one["queue"],
            "passed_over": 0,
            "seen_again": one["attempts"].get(2, 0),
            "most_deliveries": max(one["attempts"], default=0),
        }
        for one in given
    }
    for id, kind, reason, count in sums:
        if (kind, reason) == ("dropped", "duplicate"):
            queue = names.queue(id)
            empty = {"queue": queue, "passed_over": 0, "seen_again": 0, "most_deliveries": 0}
            out.setdefault(queue, empty)["passed_over"] += count
    found = [one for one in out.values() if one["passed_over"] or one["seen_again"]]
    return sorted(found, key=lambda one: (-one["seen_again"] - one["passed_over"], one["queue"]))


def _paths(
    names: Names, rows: DataFrame, sums: Iterable[tuple[int, str, str | None, int]]
) -> dict[str, Any]:
    edges: Rows = [
        {
            "source": names.queue(row.source),
            "target": names.queue(row.target),
            "cause": row.cause or "unknown",
            "count": row["count"],
        }
        for row in chapters.paths(rows).where("cause is null or cause != 'transfer'").collect()
    ]
    edges.sort(key=lambda one: (-one["count"], one["source"], one["target"], one["cause"]))
    drops: Rows = [
        {"queue": names.queue(id), "cause": reason, "count": count}
        for id, kind, reason, count in sums
        if kind == "dropped"
    ]
    drops.sort(key=lambda one: (-one["count"], one["queue"]))
    deaths = {(one["source"], one["target"]) for one in edges if one["cause"] != "redrive"}
    return {"edges": edges, "drops": drops, "cycles": graph.cycles(deaths)}


def _consumers(names: Names, rows: DataFrame, said: Iterable[Any]) -> Rows:
    called = {
        (row.queue_id, row.owner): _called(row.blob) for row in said if row.kind == "consumer"
    }
    out = []
    for row in chapters.consumers(transitions(rows)).collect():
        seconds = (_ms(row["last"]) - _ms(row["first"])) / 1000
        out.append(
            {
                "queue": names.queue(row.queue_id),
                "consumer": row.consumer,
                "name": called.get((row.queue_id, row.consumer), ""),
                "delivered": row.delivered,
                "settled": row.settled,
                "refused": row.refused,
                "given_back": row.given_back,
                "timed_out": row.timed_out,
                "per_second": row.settled / seconds if seconds > 0 else None,
                "p50_ms": row.p50_ms,
                "p95_ms": row.p95_ms,
                "longest_ms": row.longest_ms,
            }
        )
    slowest = sorted(out, key=lambda one: (-(one["p95_ms"] or 0), one["queue"], one["consumer"]))
    return [{"rank": rank, **one} for rank, one in enumerate(slowest, 1)]


def _called(blob: str | None) -> str:
    about = json.loads(blob) if blob else {}
    return " ".join(str(about[key]) for key in ("connection", "tag") if about.get(key))


def _slow(names: Names, said: Iterable[Any]) -> Rows:
    """Return the broker's reports on slow consumers [SC-4], the newest last."""
    out = [
        {
            "queue": names.queue(row.queue_id),
            "consumer": row.owner,
            "event": row.reason,
            "at": _iso(row.time),
            "about": json.loads(row.blob) if row.blob else {},
        }
        for row in said
        if row.kind == "slow_consumer"
    ]
    return sorted(out, key=lambda one: str(one["at"]))


def _credit(names: Names, rows: DataFrame, as_of_ms: int, stalled_ms: int) -> Rows:
    out = []
    for row in chapters.credit(rows).collect():
        oldest = as_of_ms - _ms(row.oldest) if row.oldest else None
        quiet = as_of_ms - _ms(row.settled_last) if row.settled_last else None
        out.append(
            {
                "queue": names.queue(row.queue_id),
                "link": f"consumer {row.consumer}" if row.consumer else "single gets",
                "held": row.held,
                "oldest_ms": oldest,
                "settled_ms_ago": quiet,
                "state": state_of(oldest, quiet, stalled_ms),
            }
        )
    for row in chapters.leases(rows).collect():
        name = names.subscriptions.get(row.epoch, str(row.epoch))
        oldest = as_of_ms - _ms(row.oldest) if row.oldest else None
        out.append(
            {
                "queue": names.queue(row.queue_id),
                "link": f"subscription {name}",
                "held": row.held,
                "oldest_ms": oldest,
                "settled_ms_ago": None,
                "state": "leased",
            }
        )
    return sorted(out, key=lambda one: (STATES.index(one["state"]), -(one["oldest_ms"] or 0)))


STATES: Final = ("stalled", "leaked", "leased", "flowing")


def state_of(oldest_ms: int | None, settled_ms_ago: int | None, stalled_ms: int) -> str:
    """flowing: nothing is held for long. leaked: some is, though the link has settled other
    deliveries since: their credit does not come back. stalled: it has settled nothing since.

    >>> state_of(5, None, 10), state_of(50, 2, 10), state_of(50, 60, 10), state_of(50, None, 10)
    ('flowing', 'leaked', 'stalled', 'stalled')
    """
    if oldest_ms is None or oldest_ms <= stalled_ms:
        return "flowing"
    if settled_ms_ago is not None and settled_ms_ago < oldest_ms:
        return "leaked"
    return "stalled"


def _inversions(names: Names, found: Iterable[Any]) -> Rows:
    by_queue: dict[int, dict[str, Any]] = {}
    for row in found:
        one = by_queue.setdefault(
            row.queue_id,
            {"queue": names.queue(row.queue_id), "after_return": 0, "first_delivery": 0,
             "furthest": 0},
        )  # fmt: skip
        one["after_return" if row.redelivered else "first_delivery"] += row["count"]
        one["furthest"] = max(one["furthest"], row.furthest)
    return sorted(by_queue.values(), key=lambda one: (-one["after_return"], -one["first_delivery"]))


def _ms(time: datetime | None) -> int:
    return 0 if time is None else round(_aware(time).timestamp() * 1000)


def _iso(time: datetime | None) -> str:
    return "" if time is None else f"{_aware(time):%Y-%m-%dT%H:%M:%SZ}"


def _aware(time: datetime) -> datetime:
    """Spark hands times out without a zone, in that of this process."""
    return time.astimezone(UTC)
