"""Charts and the words for a queue, from samples that the test makes."""

from __future__ import annotations

import pytest

from tallymark.engine.clock import Clock
from tallymark.server.page.flow import last_left
from tallymark.server.page.history import (
    ACK,
    MEMORY,
    READY,
    SPANS,
    SYNC_US,
    SYNCS,
    History,
    newest_rates,
    span_of,
)
from tallymark.server.samples import (
    BROKER,
    LONG,
    MESSAGES,
    OF_BROKER,
    OF_THINGS,
    SLOT_MS,
    Counts,
    Ring,
    Samples,
)
from tallymark.units import EngineMs, Ms

NOW = 1_000_000


def of_messages(**counts: int) -> Counts:
    return tuple(counts.get(name, 0) for name in MESSAGES)


def samples(slots: int) -> Samples:
    """Return samples of so many slots up to NOW: two messages a slot come, one is settled."""
    found = Samples()
    found.first = NOW - slots + 1
    for at in range(slots):
        slot = found.first + at
        for name, more in (("a", 1), ("b", 10)):
            half = at * more
            counts = of_messages(publish=2 * half, ack=half, messages=half, messages_ready=half)
            found.vhosts.put(name, slot, counts, began=False)
            found.vhosts_by_day.put(name, slot // LONG, counts, began=False)
        known = {"confirm": at, "memory": 1000 + at, "syncs": 2 * at, "sync_us": 6000 * at}
        of_broker = tuple(known.get(name, 0) for name in OF_BROKER)
        found.broker.put(BROKER, slot, of_broker, began=False)
        found.broker_by_day.put(BROKER, slot // LONG, of_broker, began=False)
        found.slot = slot
    return found


def clock(ahead_ms: int = 0) -> Clock:
    """Return the engine's clock, in the slot after NOW. ahead_ms: lead of wall time."""
    found = Clock()
    found.now_ms, found.ahead_ms = EngineMs((NOW + 1) * SLOT_MS), Ms(ahead_ms)
    return found


@pytest.mark.parametrize("name", SPANS)
def test_a_chart_spans_its_time_up_to_now(name: str) -> None:
    span = SPANS[name]
    found = History(samples(100), clock(7000), ["a"], span)
    times = found.times
    step = times[1] - times[0]
    assert times[-1] - times[0] == span.seconds
    end = (NOW + 1) * SLOT_MS / 1000 + 7
    assert end <= times[-1] < end + step


def test_counts_and_rates_are_those_of_the_virtual_hosts_asked_for() -> None:
    made = samples(100)
    for names, more in ((["a"], 1), (["b"], 10), (["a", "b"], 11), (["a", "gone"], 1)):
        found = History(made, clock(), names, SPANS["minutes"])
        assert found.counts(found.messages, READY)[-1] == 99 * more
        assert found.rates(found.messages, ACK)[-1] == pytest.approx(more / 5)
        assert newest_rates(found.messages, NOW, (ACK,)) == [pytest.approx(more / 5)]
    assert found.counts(found.broker, MEMORY)[-1] == 1099
    assert found.means(found.broker, SYNC_US, SYNCS)[-1] == pytest.approx(3000)


def test_there_is_nothing_before_the_process_began() -> None:
    found = History(samples(10), clock(), ["a"], SPANS["minutes"])
    counts = found.counts(found.messages, READY)
    assert [one is None for one in counts] == [True] * 51 + [False] * 10
    assert found.rates(found.messages, ACK)[:51] == [None] * 51


def test_a_chart_of_nothing_is_empty() -> None:
    found = History(Samples(), clock(), ["a"], SPANS["hour"])
    assert set(found.counts(found.messages, READY)) == {None}
    assert set(found.rates(found.broker, MEMORY)) == {None}
    assert set(found.means(found.broker, SYNC_US, SYNCS)) == {None}
    assert newest_rates(None, 0, (ACK,)) == [0.0]
    chart = found.chart("messages", ("ready", found.counts(found.messages, READY)))
    assert len(chart["times"]) == len(chart["values"][0])
    assert chart["times"][-1] > NOW * SLOT_MS / 1000, "it is of today, also before the first sample"


def test_what_began_anew_has_no_negative_rate() -> None:
    made = samples(10)
    made.vhosts.put("a", NOW, of_messages(), began=False)
    found = History(made, clock(), ["a"], SPANS["minutes"])
    assert found.rates(found.messages, ACK)[-1] == 0


def test_a_span_that_is_none_is_the_hour() -> None:
    assert span_of("") is span_of("x") is SPANS["hour"]


def ring(*ends: tuple[int, int, int]) -> Ring:
    """Return the ring of a queue: slot, entered, and present at its end."""
    made = Ring(OF_THINGS)
    for slot, entered, present in ends:
        made.put(slot, of_messages(publish=entered, messages=present))
    return made


def test_since_when_none_has_left() -> None:
    # One left in slot 20; then more came, and none left.
    found = ring((10, 5, 5), (20, 6, 5), (30, 9, 8), (40, 12, 11))
    assert last_left(found, 1) == 20
    assert last_left(found, 2) is None  # one has, since the last sample
    assert last_left(ring((10, 5, 5)), 0) == 10
    assert last_left(ring((10, 5, 0)), 5) is None


def test_a_queue_that_was_empty_meanwhile_stands_since_messages_are_there() -> None:
    found = ring((10, 5, 0), (20, 7, 2))
    assert last_left(found, 5) == 20
