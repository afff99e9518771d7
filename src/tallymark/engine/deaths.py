"""Deaths: what a message's annotations say after it died in a queue [DL-9 to DL-15]."""

from __future__ import annotations

from typing import Final

from tallymark.stored.annotations import (
    HEADER_FORM,
    REJECTED,
    UNORDERED_FORM,
    Annotations,
    Death,
    Place,
    Route,
)
from tallymark.units import EngineMs, WallMs

_NOTHING: Final = Annotations()
"""Annotations of messages that have none."""


def after_death(
    old: Annotations | None,
    published: Route,
    queue: str,
    reason: str,
    exchange: str,
    key: str | None,
    now_ms: WallMs,
    failed: int,
    acquired: int,
    form: int,
    compact: bool,
    hops: int,
    route: Route,
) -> Annotations:
    """Return the annotations of messages after they died in `queue` [DL-9 to DL-14].

    old: what was known before; published: where they were published first. exchange and key: the
    dead-letter exchange and routing key of the queue (None: their keys stay [DL-10]), and `route`
    the same as their next reader is shown it. failed, acquired: what the queue counted of them.
    form: of the history, if this is their first death. compact: deaths in one queue for one reason
    share an entry [DL-13]; otherwise each has its own [DL-D1]. hops: how many are left, -1 if they
    are not counted. now_ms: of the death; it is `since_ms`, too, until the caller says in engine
    time when they entered their next queue. O(entries of the history).
    """
    before = _NOTHING if old is None else old
    deaths, more_keys, bcc = before.deaths, before.more_keys, before.bcc
    place = published if before.route is None else before.route
    last: Place | None = (reason, queue, place.exchange)
    if deaths:
        first = before.first_death
        form = before.form
    else:
        first = last
        if form == HEADER_FORM:
            last = None  # up to 3.12 there were no x-last-death-* headers [DL-19]
    assert route.exchange == exchange, (route.exchange, exchange)
    assert key is None or route.key == key, (route.key, key)
    keys = (place.key, *more_keys[: len(more_keys) - len(bcc)])
    entry = Death(queue, reason, 1, place.exchange, keys, now_ms, now_ms, before.ttl_ms)
    return Annotations(
        more_keys=more_keys if key is None else (),
        bcc=bcc if key is None else (),
        hops=hops,
        route=route,
        since_ms=EngineMs(now_ms),
        deaths=_with_death(deaths, entry, form, compact),
        first_death=first,
        last_death=last,
        failed=failed + before.failed,
        acquired=acquired + before.acquired,
        form=form,
        notes=before.notes,
    )


def _with_death(
    deaths: tuple[Death, ...], new: Death, form: int, compact: bool
) -> tuple[Death, ...]:
    """Return the history with one more death. Times are rounded to the precision of the stored
    form, and deaths are in its order where it stores none, so that a restart changes nothing."""
    if form == HEADER_FORM:
        new.first_ms = WallMs(new.first_ms // 1000 * 1000)
        new.last_ms = new.first_ms
    elif form == UNORDERED_FORM and deaths:
        new.last_ms = max(new.last_ms, deaths[0].last_ms)
    if compact:
        for i, death in enumerate(deaths):
            if death.queue == new.queue and death.reason == new.reason:
                last_ms = death.last_ms if form == HEADER_FORM else new.last_ms
                again = Death(
                    death.queue, death.reason, death.count + 1, death.exchange, death.keys,
                    death.first_ms, last_ms, death.ttl_ms,
                )  # fmt: skip
                return (again, *deaths[:i], *deaths[i + 1 :])
    return (new, *deaths)


def is_cycle(deaths: tuple[Death, ...], target: str) -> bool:
    """Return whether a dead letter must not enter the queue `target` because it would be in a cycle
    [DL-15].

    It died there before, and nothing since was a client's decision. deaths[0] is the present death;
    if that is a rejection the answer is no.
    """
    for death in deaths:
        if death.reason == REJECTED:
            return False
        if death.queue == target:
            return True
    return False
