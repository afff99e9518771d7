"""Comparison of two worlds: what differs, in words, and whether the change may be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

LARGEST: Final = 10
"""Differences that are told."""
SLOWER: Final = 2.0
"""Factor of latency, or of the age of the oldest message, from which on a world is called worse."""
NOTICED_MS: Final = 1000
"""Times below this are not called worse."""
TRUSTED: Final = 0.99
"""Share of a queue's messages that must meet the fate that they did, when the traffic is played
without a change, for an answer to be yes."""
_MOST: Final = {"deepest": "messages at once", "oldest_ms": "age of the oldest message"}


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the largest differences in words, the largest first. base, other: figures by queue."""
    found: list[tuple[float, str]] = []
    for queue in sorted({*base, *other}):
        if queue not in base:
            entered = other[queue]["account"]["entered"]
            found.append((entered, f"{queue}, which was not there, would have had {entered:,}"))
        elif queue not in other:
            found.append((base[queue]["account"]["entered"], f"{queue} would not have been there"))
        else:
            found += _of_queue(queue, base[queue], other[queue])
    found.sort(key=lambda one: (-one[0], one[1]))
    return [text for _, text in found[:LARGEST]]


def _of_queue(
    queue: str, was: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[tuple[float, str]]:
    """Yield (weight, text)."""
    for name in sorted({*was["account"], *other["account"]}):
        before, after = was["account"].get(name, 0), other["account"].get(name, 0)
        if before == after:
            continue
        when = _when(was["series"], other["series"], name)
        verb = {"entered": "would have had", "there": "would hold at the end"}.get(
            name, "would have seen"
        )
        what = _messages(abs(after - before))
        if name not in ("entered", "there"):
            what += f" {name}"
        more = "more" if after > before else "fewer"
        text = f"{queue} {verb} {what} {more} ({before:,} to {after:,}){when}"
        yield abs(after - before), text
    if was["redelivered"] != other["redelivered"]:
        before, after = was["redelivered"], other["redelivered"]
        yield abs(after - before), f"{queue}: {before:,} redeliveries would have been {after:,}"
    if was["refused"] != other["refused"]:
        before, after = was["refused"], other["refused"]
        yield abs(after - before), f"{queue}: {before:,} refused messages would have been {after:,}"
    before, after = was["deepest"], other["deepest"]
    if before != after:
        yield (
            abs(after - before) / 2,
            f"{queue} at its deepest: {before:,}, would have been {after:,}",
        )
    for name in ("p50", "p99"):
        before, after = was["latency_ms"][name], other["latency_ms"][name]
        if max(before, after) > SLOWER * min(before, after) and max(before, after) >= NOTICED_MS:
            settled = other["account"].get("settled", 0)
            part = 0.5 if name == "p50" else 0.01
            yield (
                settled * part,
                f"{queue}: {name} from entry to settlement {took(before)}, "
                f"would have been {took(after)}",
            )


def _when(was: Mapping[str, Any], other: Mapping[str, Any], name: str) -> str:
    """Return between which times most of the difference arises; "" where that is all the time."""
    ends = [one["ends"].get(name) for one in (was, other)]
    times = was["at_ms"]
    if not any(ends) or len(times) < 2:
        return ""
    zeros = [0] * len(times)
    gaps = [abs(a - b) for a, b in zip(ends[0] or zeros, ends[1] or zeros, strict=True)]
    total, at = sum(gaps), [i for i, gap in enumerate(gaps) if gap]
    if not total or at[-1] - at[0] > len(times) // 2:
        return ""
    step = times[1] - times[0]
    return f", between {_clock(times[at[0]] - step)} and {_clock(times[at[-1]])}"


def verdict(
    base: Mapping[str, Any], other: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return whether the change may be made as far as this traffic says (`good`), and why (`text`,
    `why`). No: messages would be refused, be lost, die or wait much longer, that were not or did
    not. Not known: the world without a change is not what happened. found: how exactly it is."""
    why = [
        f"{one['queue']}: played without a change, "
        f"{_percent(one['same'], one['messages'])} of its messages meet the fate that they did"
        for one in found["queues"]
        if one["same"] < TRUSTED * one["messages"]
    ]
    if why:
        return {"good": False, "text": "Not known: what happened is not reproduced.", "why": why}
    for queue, told in other.items():
        was = base.get(queue, {"account": {}})
        for name, count in told["account"].items():
            before = was["account"].get(name, 0)
            if name.startswith(("dropped", "dead-lettered")) and count > before:
                why.append(f"{queue}: {_messages(count - before)} more would be {name}")
        if told["refused"] > was.get("refused", 0):
            more = _messages(told["refused"] - was.get("refused", 0))
            why.append(f"{queue}: {more} more would be refused, and their publishers told so")
        if "deepest" not in was:
            continue
        before, after = was["latency_ms"]["p99"], told["latency_ms"]["p99"]
        if after > SLOWER * before and after >= NOTICED_MS:
            why.append(f"{queue}: p99 from entry to settlement {took(after)}, was {took(before)}")
        before, after = was["account"].get("there", 0), told["account"].get("there", 0)
        if after > before:
            more = _messages(after - before)
            why.append(f"{queue}: {more} more would still be there at the end")
    for queue, was in base.items():
        if queue not in other and was["account"]["entered"]:
            why.append(f"{queue} would be gone, which {was['account']['entered']:,} entered")
    if why:
        return {"good": False, "text": "No, not with this traffic.", "why": why}
    reason = "nothing more would be refused, be lost, die, or wait much longer"
    return {"good": True, "text": f"Yes: with this traffic {reason}.", "why": []}


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def took(ms: float) -> str:
    """Return a length of time for people."""
    for most, unit, name in ((1000, 1, "ms"), (60_000, 1000, "s"), (3_600_000, 60_000, "min")):
        if ms < most:
            return f"{ms / unit:.3g} {name}"
    return f"{ms / 3_600_000:.3g} h"


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}"


def faithfulness_text(found: Mapping[str, Any]) -> str:
    """Return in a sentence how exactly the world without a change is what happened."""
    differ = [q["queue"] for q in found["queues"] if not (q["is_same"] and q["is_same_by_hour"])]
    text = (
        f"Played without a change, {_percent(found['same'], found['messages'])} of "
        f"{found['messages']:,} messages meet the fate that they did, "
        f"{_percent(found['near'], found['messages'])} within {found['near_ms']} ms; the account "
    )
    if differ:
        return text + f"differs in {', '.join(differ)}."
    return text + "of every queue is exactly what the ledger says."


def faithfulness_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what is printed first: how exactly the world without a change is what happened. A
    queue that was declared again and again is one line, but where it differs."""
    out = []
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for one in found["queues"]:
        if one["is_same"] and one["is_same_by_hour"]:
            alike.setdefault(one["of"], []).append(one)
            continue
        out.append(_exactness(one["queue"], [one], "the account NOT exactly", found["near_ms"]))
        out.append(f"    was {_said(one['was'])}")
        out.append(f"    played {_said(one['again'])}")
    for queue, ones in alike.items():
        called = queue if len(ones) == 1 else f"{queue}, declared {len(ones)} times"
        account = "the account exactly" if len(ones) == 1 else "each account exactly"
        out.append(_exactness(called, ones, account, found["near_ms"]))
    return out


def _exactness(called: str, ones: Sequence[Mapping[str, Any]], account: str, near_ms: int) -> str:
    messages, same, near = (sum(one[key] for one in ones) for key in ("messages", "same", "near"))
    return (
        f"  {called}: {messages:,} messages, {account}; fate of {_percent(same, messages)} the "
        f"same, {_percent(near, messages)} within {near_ms} ms"
    )


def _said(account: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in account.items())


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "100 %"


def world_lines(world: Mapping[str, Any], base: Sequence[str] = ()) -> list[str]:
    """Return what is printed of one world."""
    out = [f"{world['name']}: {world['verdict']['text']}"]
    out += [f"  {why}" for why in world["verdict"]["why"][:LARGEST]]
    if world["differences"]:
        out.append("  the largest differences:")
        out += [f"    {text}" for text in world["differences"]]
    drawn, delivered = world["drawn"], world["delivered"]
    out.append(
        f"  {_percent(drawn, delivered) if delivered else '0 %'} of the deliveries rest on answers "
        "or times drawn from what consumers did with other messages"
    )
    return out
