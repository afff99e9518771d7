"""Figures of a world: what the fates of its messages come to, by queue and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tallymark.stored import records
from tallymark.whatif.fates import Fates, QueueName, describe, fate_of

BUCKETS: Final = 240
"""Points of a series, about."""
HOUR_MS: Final = 3_600_000
SETTLED: Final = {fate_of(records.SETTLED, reason) for reason in records.SETTLEMENTS}
Ints = NDArray[np.int64]
Figures = dict[str, Any]
"""Figures of one queue: `account`, latencies, and series."""


def bucket_of(begin_ms: int, end_ms: int) -> int:
    """Return the milliseconds between two points of a series."""
    return max(100, -(-(end_ms - begin_ms + 1) // BUCKETS))


def figures_of(fates: Mapping[QueueName, Fates], begin_ms: int, end_ms: int) -> dict[str, Figures]:
    """Return the figures of each queue by its name. A name that was used again is one queue."""
    found: dict[str, Figures] = {}
    for name in sorted(fates):
        made = _figures(fates[name], begin_ms, end_ms)
        called = shown(name)
        found[called] = made
    return found


def shown(name: QueueName) -> str:
    """Return the name of a queue for people."""
    vhost, queue, again = name
    text = queue if vhost == "/" else f"{vhost}: {queue}"
    return text if not again else f"{text} (declared again, {again})"


def _figures(one: Fates, begin_ms: int, end_ms: int) -> Figures:
    entered = np.frombuffer(one.entered_ms, "i8") if one.ids else np.zeros(0, "i8")
    ended = np.frombuffer(one.ended_ms, "i8") if one.ids else np.zeros(0, "i8")
    fate = np.frombuffer(bytes(one.fate), "u1")
    size = np.frombuffer(one.size, "u4").astype("i8") if one.ids else np.zeros(0, "i8")
    step = bucket_of(begin_ms, end_ms)
    times = np.arange(begin_ms + step, end_ms + step + 1, step)
    leaves = np.where(ended < 0, np.int64(1) << 62, ended)
    by_end = np.argsort(leaves, kind="stable")
    there, held = _held(entered, leaves, by_end, size, times)
    settled = np.isin(fate, list(SETTLED))
    latency = (ended - entered)[settled]
    again = np.sort(np.frombuffer(one.again_ms, "i8")) if one.again_ms else np.zeros(0, "i8")
    return {
        "account": one.account(),
        "bytes": int(size.sum()),
        "deepest": _deepest(entered, leaves, by_end),
        "oldest_ms": int(_oldest(entered, leaves, times).max(initial=0)),
        "most_bytes": int(held.max(initial=0)),
        "redelivered": len(again),
        "refused": len(one.refused_ms),
        "latency_ms": {
            name: int(np.percentile(latency, of)) if len(latency) else 0
            for name, of in (("p50", 50), ("p95", 95), ("p99", 99))
        },
        "hours": _hours(entered, fate),
        "series": {
            "at_ms": times.tolist(),
            "depth": there.tolist(),
            "oldest_ms": _oldest(entered, leaves, times).tolist(),
            "bytes": held.tolist(),
            "ends": _ends(ended, fate, begin_ms, step, len(times)),
        },
    }  # fmt: skip


def _held(entered: Ints, leaves: Ints, by_end: Ints, size: Ints, times: Ints) -> tuple[Ints, Ints]:
    """Return messages and bytes that were there at each time."""
    in_bytes = np.concatenate(([0], np.cumsum(size)))
    out_bytes = np.concatenate(([0], np.cumsum(size[by_end])))
    came = np.searchsorted(entered, times, "right")
    went = np.searchsorted(leaves[by_end], times, "right")
    return came - went, in_bytes[came] - out_bytes[went]


def _deepest(entered: Ints, leaves: Ints, by_end: Ints) -> int:
    """Return the most messages that were there at once."""
    if not len(entered):
        return 0
    went = np.searchsorted(leaves[by_end], entered, "right")
    return int((np.arange(1, len(entered) + 1) - went).max())


def _oldest(entered: Ints, leaves: Ints, times: Ints) -> Ints:
    """Return the age of the oldest message at each time, ms; 0: there is none."""
    if not len(entered):
        return np.zeros(len(times), "i8")
    # A message that leaves after all before it is the oldest from then on: only these count.
    latest = np.maximum.accumulate(leaves)
    at = np.searchsorted(latest, times, "right")
    inside = at < len(entered)
    since = entered[np.where(inside, at, 0)]
    return np.where(inside & (since <= times), times - since, 0)


def _hours(entered: Ints, fate: NDArray[np.uint8]) -> dict[str, dict[str, int]]:
    """Return the account of each hour in which messages entered."""
    found: dict[str, dict[str, int]] = {}
    for hour in np.unique(entered // HOUR_MS).tolist():
        inside = fate[entered // HOUR_MS == hour]
        codes, counts = np.unique(inside, return_counts=True)
        said = {"entered": len(inside)}
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            said[describe(code)] = said.get(describe(code), 0) + count
        found[str(hour * HOUR_MS)] = said
    return found


def _ends(
    ended: Ints, fate: NDArray[np.uint8], begin_ms: int, step: int, count: int
) -> dict[str, list[int]]:
    """Return how many messages ended in each stretch, by the way they ended."""
    found: dict[str, Ints] = {}
    for code in np.unique(fate).tolist():
        if code:
            at = np.clip((ended[fate == code] - begin_ms) // step, 0, count - 1)
            made = np.bincount(at, minlength=count)
            name = describe(code)
            found[name] = found[name] + made if name in found else made
    return {name: made.tolist() for name, made in found.items()}


def compare_fates(
    was: Mapping[QueueName, Fates], again: Mapping[QueueName, Fates], near_ms: int = 100
) -> dict[str, Any]:
    """Compare what happened with the world as it was, queue by queue, hour by hour, and message by
    message."""
    queues: list[dict[str, Any]] = []
    messages = same = near = 0
    for name in sorted(was):
        one, other = was[name], again.get(name, Fates(name))
        count = min(len(one.ids), len(other.ids))
        fate = np.frombuffer(bytes(one.fate[:count]), "u1")
        told = np.frombuffer(bytes(other.fate[:count]), "u1")
        ended = np.array(one.ended_ms[:count], "i8")
        said = np.array(other.ended_ms[:count], "i8")
        alike = fate == told
        close = alike & (np.abs(ended - said) <= near_ms)
        hours, again_hours = (
            _hours(np.array(f.entered_ms, "i8"), np.frombuffer(bytes(f.fate), "u1"))
            for f in (one, other)
        )
        messages += max(len(one.ids), len(other.ids))
        same += int(alike.sum())
        near += int(close.sum())
        queues.append({
            "queue": shown(name), "of": shown((*name[:2], 0)),
            "was": one.account(), "again": other.account(),
            "is_same": one.account() == other.account(), "is_same_by_hour": hours == again_hours,
            "messages": len(one.ids), "same": int(alike.sum()), "near": int(close.sum()),
        })  # fmt: skip
    return {
        "queues": queues,
        "messages": messages,
        "same": same,
        "near": near,
        "near_ms": near_ms,
        "is_exact": all(q["is_same"] and q["is_same_by_hour"] for q in queues),
    }
