"""The equation, per queue, worked out from the books and the broker's claims.

    entered = ready + acquired + deferred + staged + dead-letter-pending
            + quarantined                                                     what is still there
            + settled + dead-lettered + dropped, by reason                    what has ended

The left side and what has ended come from the ledger; what is still there is the broker's own
claim, taken at one journal position: asked of a running broker, or read from the newest checkpoint.
So the two sides have different sources, and a difference of 0 means something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tallymark.spark.account import (
    STILL_THERE,
    Account,
    Claim,
    Fault,
    Hour,
    Letters,
    Reconciliation,
    Returned,
)
from tallymark.spark.books import Books
from tallymark.spark.hours import iso_hour
from tallymark.spark.ids import Piece
from tallymark.spark.sweep import FAULTS, MOST_FAULTS, SUMMED
from tallymark.stored.records import DROP_REASONS, RETURNS

Names = Mapping[int, tuple[str, str]]
Sums = dict[str, int]


def equation(
    books: Books, claims: Sequence[Claim], pieces: Iterable[Piece], hourly: bool = False
) -> Reconciliation:
    """Work the equation out for every queue of the books and of the claims.

    pieces: the faults of the books, with the ids of their messages. hourly: and for every hour in
    which messages entered a queue."""
    claimed = {claim.id: claim for claim in claims}
    names = {**books.names(), **{claim.id: (claim.vhost, claim.name) for claim in claims}}
    sums = _sums(books)
    dropped: dict[int, dict[str, int]] = {}
    for (id, reason), count in sorted(books.judged.dropped.items()):
        dropped.setdefault(id, {})[DROP_REASONS.get(reason, f"reason_{reason}")] = count
    faults = [_fault(names, piece) for piece in pieces][:MOST_FAULTS]
    faults += _miscounted(sums, claimed)
    return Reconciliation(
        books.position,
        [
            _account(id, names, sums.get(id), dropped.get(id, {}), claimed)
            for id in sorted({*sums, *claimed})
        ],
        faults,
        [
            Letters(_name(names, source)[1], _name(names, target)[1], count)
            for (source, target), count in sorted(books.judged.letters.items())
        ],
        [
            Returned(_name(names, id)[1], RETURNS.get(reason, f"reason_{reason}"), count)
            for (id, reason), count in sorted(
                books.returned.items(), key=lambda one: (one[0][0], RETURNS.get(one[0][1], ""))
            )
        ],
        hours=_hours(books, names) if hourly else [],
    )


def _fault(names: Names, piece: Piece) -> Fault:
    vhost, name = _name(names, piece.queue)
    text = FAULTS[piece.fault - 1]
    return Fault(name, piece.low, piece.high - 1, text, vhost, piece.message_id)


def _sums(books: Books) -> dict[int, Sums]:
    """Return by queue the numbers of messages entered, settled, dropped and dead-lettered, of the
    sequences before the ledger, and of those of them that are still there."""
    sums: dict[int, Sums] = {}
    for queue in books.judged.queues:
        begin = int(queue["begin"])
        sums[int(queue["queue"])] = {
            **dict.fromkeys(SUMMED, 0),
            "live_before": int(queue["live_before"]),
            "before_ledger": begin - 1 if begin >= 0 else int(queue["end"]) - 1,
        }
    for balance in books.judged.balances:
        of = sums[int(balance["queue"])]
        for name in SUMMED:
            of[name] += int(balance[name])
    return sums


def _miscounted(sums: Mapping[int, Sums], claims: Mapping[int, Claim]) -> list[Fault]:
    """Return queues whose number of messages entered is another in the ledger than in the broker,
    and those whose counters do not balance of themselves: so it was at the broker's start, or
    since."""
    found = []
    for id, claim in claims.items():
        said = claim.count("entered")
        of = sums.get(id)
        counted = said if of is None else _before(of, claim) + of["entered"]
        if said != counted:
            low, high = sorted((said, counted))
            what = f"entered: {said} by the broker, {counted} here"
            found.append(Fault(claim.name, low + 1, high, what, claim.vhost))
        elif of is not None:
            found += _unbalanced(claim, of)
    return found


def _unbalanced(claim: Claim, of: Sums) -> list[Fault]:
    """Return a fault where a queue's counters had no right balance before the ledger begins: what
    they count now, less what the ledger tells of."""
    if not _before(of, claim):
        return []
    dropped = sum(claim.dropped().values())
    counted = {name: claim.count(name) for name in ("entered", "settled", "dead_lettered")}
    ended = counted["settled"] + counted["dead_lettered"] + dropped
    there = sum(claim.count(state) for state in STILL_THERE)
    begun = {
        "settled": counted["settled"] - of["settled"],
        "dead_lettered": counted["dead_lettered"] - of["dead_lettered"],
        "dropped": dropped - of["dropped"],
    }
    missing = counted["entered"] - there - ended
    less = [f"{name} {number}" for name, number in begun.items() if number < 0]
    if not missing and not less:
        return []
    what = (
        f"the counters it began with do not balance: {counted['entered']} entered, {there} there, "
        f"{ended} ended by the broker"
    )
    if less:
        what += f"; before the ledger {', '.join(less)}"
    return [Fault(claim.name, 1, _before(of, claim), what, claim.vhost)]


def _before(of: Sums, claim: Claim | None) -> int:
    """The number of messages that entered a queue before the ledger: up to the first that entered
    in it. Where none did, all that the broker counted, or as many as there are traces of."""
    if of["entered"] or claim is None:
        return of["before_ledger"]
    return max(of["before_ledger"], claim.count("entered"))


def _name(names: Names, id: int) -> tuple[str, str]:
    return names.get(id, ("", f"(id {id})"))


def _account(
    id: int,
    names: Names,
    sums: Sums | None,
    dropped: dict[str, int],
    claims: Mapping[int, Claim],
) -> Account:
    vhost, name = _name(names, id)
    claim = claims.get(id, Claim(id, vhost, name, {}))
    there = {state: claim.count(state) for state in STILL_THERE}
    if sums is None:
        # Nothing of it is in the ledger: not durable, or nothing ever entered.
        settled, entered, dropped = claim.count("settled"), claim.count("entered"), claim.dropped()
        dead_lettered = claim.count("dead_lettered")
        ended = settled + dead_lettered + sum(dropped.values())
        difference = entered - sum(there.values()) - ended
        return Account(
            name, vhost, entered, there, settled, dead_lettered, dropped, difference,
            from_ledger=entered == 0,
        )  # fmt: skip
    dead_lettered = sums["dead_lettered"]
    ended = sums["settled"] + dead_lettered + sums["dropped"]
    difference = sums["entered"] - (sum(there.values()) - sums["live_before"]) - ended
    return Account(
        name, vhost, sums["entered"], there, sums["settled"], dead_lettered, dropped, difference,
        before_ledger=_before(sums, claim),
    )  # fmt: skip


def _hours(books: Books, names: Names) -> list[Hour]:
    """Return the accounts of all queues and hours, by queue and then by time."""
    sums: dict[tuple[int, int], Sums] = {}
    dropped: dict[tuple[int, int], dict[str, int]] = {}
    for balance in books.judged.balances:
        key = (int(balance["queue"]), int(balance["hour"]))
        of = sums.setdefault(key, dict.fromkeys((*SUMMED, "faults"), 0))
        for name in of:
            of[name] += int(balance[name])
        if balance["dropped"]:
            reason = DROP_REASONS.get(int(balance["reason"]), "several")
            reasons = dropped.setdefault(key, {})
            reasons[reason] = reasons.get(reason, 0) + int(balance["dropped"])
    return [_hour(names, key, sums[key], dropped.get(key, {})) for key in sorted(sums)]


def _hour(names: Names, key: tuple[int, int], of: Sums, dropped: dict[str, int]) -> Hour:
    vhost, name = _name(names, key[0])
    ended = of["settled"] + of["dead_lettered"] + of["dropped"]
    return Hour(
        name, vhost, iso_hour(key[1]), of["entered"], of["live"], of["settled"],
        of["dead_lettered"], dropped, of["entered"] - of["live"] - ended, of["faults"],
    )  # fmt: skip
