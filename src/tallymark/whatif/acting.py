"""Acting: whether a change can act on a recording at all. Nothing would differ where it names what
was never there, and the answer would be yes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from tallymark.engine.definitions import BINDING, UNBIND, arguments_of
from tallymark.engine.errors import BrokerError
from tallymark.engine.policies import (
    CLASSIC_QUEUES,
    EXCHANGES,
    QUORUM_QUEUES,
    STREAMS,
    Policy,
    check_definition,
    without_effect,
)
from tallymark.engine.table_json import canonical
from tallymark.engine.topology import PREDECLARED
from tallymark.whatif import recording as told
from tallymark.whatif.changes import (
    BindingChange,
    Change,
    ChangeRefused,
    ConsumersChange,
    PolicyChange,
    nearest,
)
from tallymark.whatif.recording import Recording, Terms

Place = tuple[str, str]
"""Virtual host and name."""
BOUND: Final = (BINDING, UNBIND)
"""Definitions that tell of a binding: it is made, or was there until then."""
KINDS: Final = {"stream": (STREAMS,), "quorum": (QUORUM_QUEUES,), "classic": (CLASSIC_QUEUES,)}
"""Kinds of queues that policies tell apart, by the queue's type. One without a type is of the
virtual host's."""


@dataclass(frozen=True, slots=True)
class Known:
    """Names and times of a recording."""

    queues: frozenset[Place]
    exchanges: frozenset[Place] = frozenset()
    consumed: frozenset[Place] = frozenset()
    """Queues that had consumers."""
    routes: frozenset[tuple[str, str, str]] = frozenset()
    """Virtual hosts, exchanges and keys that were published to."""
    policies: frozenset[Place] = frozenset()
    headers: frozenset[str] = frozenset()
    stretch: tuple[int, int] = (0, 1 << 62)
    """First and last moment, ms."""
    kinds: dict[Place, str] = field(default_factory=dict)
    """Type of each queue; "": none of its own."""
    bindings: frozenset[tuple[Place, str, str, str]] = frozenset()
    """Queues that were bound, to which exchange, with which key and arguments (canonical)."""


def known_of(recording: Recording) -> Known:
    """Return what there was in a recording."""
    consumed: set[Place] = set()
    exchanges: set[Place] = set()
    policies: set[Place] = set()
    kinds: dict[Place, str] = {}
    hosts: set[str] = set()
    bindings: set[tuple[Place, str, str, str]] = set()
    for _, _, kind, said in recording.inputs:
        if kind in (told.COME, told.CREDIT) and isinstance(said, Terms):
            consumed.add((said.vhost, said.queue))
        elif kind == told.DEFINE and isinstance(said, bytes):
            definition = json.loads(said)
            place = definition["vhost"], definition.get("name", "")
            hosts.add(definition["vhost"])
            if definition["op"] == "exchange":
                exchanges.add(place)
            elif definition["op"] == "policy":
                policies.add(place)
            elif definition["op"] == "queue":
                kinds[place] = str(definition["arguments"].get("x-queue-type", ""))
            elif definition["op"] in BOUND and definition["kind"] == "queue":
                bindings.add((
                    (definition["vhost"], definition["destination"]), definition["source"],
                    definition["key"], canonical(arguments_of(definition)),
                ))  # fmt: skip
    publishes = recording.publishes
    routes = {
        (publishes.vhost[i], *publishes.places[number])
        for i in range(len(publishes))
        for number in (publishes.own_places.get(i) or [publishes.place[i]])
    }
    # Exchanges that every virtual host has are no definitions.
    exchanges |= {(host, name) for host in hosts for name, _, _ in PREDECLARED}
    return Known(
        frozenset(name[:2] for name in recording.fates), frozenset(exchanges), frozenset(consumed),
        frozenset(routes), frozenset(policies), recording.header_names,
        (recording.begin_ms, recording.end_ms), kinds, frozenset(bindings),
    )  # fmt: skip


def check_acts(change: Change, known: Known) -> None:
    """Raise ChangeRefused, with the nearest names, where a part of a change would act on nothing:
    on what is not there, at a time at which nothing was recorded, or beside another part that says
    the same otherwise."""
    _check_said_once(change)
    there = {*known.queues, *((one.vhost, one.name) for one in change.new_queues)}
    for section, vhost, name in _queues_of(change):
        if (vhost, name) not in there:
            raise ChangeRefused(
                f"[[{section}]] {name}: the ledger has no durable queue of that name in vhost "
                f"'{vhost}', expected {nearest(name, _of_host(there, vhost))}"
            )
    for new in change.new_queues:
        if (new.vhost, new.name) in known.queues:
            raise ChangeRefused(
                f"[[new-queue]] {new.name}: the ledger has a queue of that name in vhost "
                f"'{new.vhost}', expected a name that is free; [[queue]] changes its arguments"
            )
    for bound in change.bindings:
        _check_exchange("bind" if bound.adds else "unbind", bound.vhost, bound.exchange, known)
        lacks = sorted(set(bound.arguments) - {"x-match", ""} - known.headers)
        if lacks:
            raise ChangeRefused(
                f"[[bind]] {bound.queue}: the header {lacks[0]} was not read, expected "
                f"{nearest(lacks[0], known.headers)}; `pipeline ledger --rows --header` keeps more"
            )
        if not bound.adds:
            _check_bound(bound, known)
    for crowd in change.consumers:
        place = crowd.vhost, crowd.queue
        if place not in known.consumed:
            raise ChangeRefused(
                f"[[consumers]] {crowd.queue}: the queue had no consumers in this ledger, expected "
                f"{nearest(crowd.queue, _of_host(known.consumed, crowd.vhost))}"
            )
    for policy in change.policies:
        _check_policy(policy, change, known, there)
    _check_publishers(change, known)
    _check_times(change, known)


def _check_said_once(change: Change) -> None:
    """Raise ChangeRefused for what is said in two sections, of which one would be passed over."""
    said: set[tuple[str, str, str]] = set()

    def note(section: str, vhost: str, name: str, what: str = "") -> None:
        place = f"{section} {what}", vhost, name
        if place in said:
            text = f"{what.removeprefix('x-')} is said twice" if what else "is said twice"
            raise ChangeRefused(f"[[{section}]] {name}: {text}, expected one section that says it")
        said.add(place)

    for queue in change.queues:
        for argument in queue.arguments:
            note("queue", queue.vhost, queue.name, argument)
    for new in change.new_queues:
        note("new-queue", new.vhost, new.name)
    for policy in change.policies:
        note("policy", policy.vhost, policy.name)
    for crowd in change.consumers:
        alike = [replace(one, away_at_ms=-1, away_for_ms=0) for one in change.consumers
                 if (one.vhost, one.queue) == (crowd.vhost, crowd.queue)]  # fmt: skip
        if any(one != ConsumersChange(crowd.queue, crowd.vhost) for one in alike):
            note("consumers", crowd.vhost, crowd.queue)  # else they are away several times
    for number, one in enumerate(change.publishers):
        for before in change.publishers[:number]:
            if (
                before.vhost == one.vhost
                and before.exchange in (None, one.exchange)
                and before.key in (None, one.key)
            ):
                raise ChangeRefused(
                    f"[[publishers]] exchange {one.exchange}, key {one.key}: a section before it "
                    "says their rate, expected the wider one behind it"
                )


def _queues_of(change: Change) -> Iterator[tuple[str, str, str]]:
    """Yield section, virtual host and name of each queue that is said to be there."""
    for queue in change.queues:
        yield "queue", queue.vhost, queue.name
    for gone in change.removed:
        yield "remove-queue", gone.vhost, gone.name
    for bound in change.bindings:
        yield "bind" if bound.adds else "unbind", bound.vhost, bound.queue
    for crowd in change.consumers:
        yield "consumers", crowd.vhost, crowd.queue


def _of_host(places: Collection[Place], vhost: str) -> list[str]:
    return [name for host, name in places if host == vhost]


def _check_exchange(section: str, vhost: str, name: str, known: Known) -> None:
    if (vhost, name) not in known.exchanges:
        names = [one for one in _of_host(known.exchanges, vhost) if one]
        raise ChangeRefused(
            f"[[{section}]]: the ledger has no durable exchange {name} in vhost '{vhost}', "
            f"expected {nearest(name, names)}"
        )


def _check_bound(bound: BindingChange, known: Known) -> None:
    """Raise ChangeRefused for a binding to take away that never was."""
    place = bound.vhost, bound.queue
    arguments = canonical(bound.arguments)
    if (place, bound.exchange, bound.key, arguments) in known.bindings:
        return
    those = [one for one in known.bindings if one[:2] == (place, bound.exchange)]
    what, others = f"with the key {bound.key!r}", {repr(one[2]) for one in those}
    if repr(bound.key) in others:
        what += f" and the arguments {arguments}"
        others = {one[3] for one in those if one[2] == bound.key}
    raise ChangeRefused(
        f"[[unbind]] {bound.queue}: the ledger has no binding to the exchange {bound.exchange} "
        f"{what}, expected {nearest(repr(bound.key), others)}"
    )


def _check_policy(
    policy: PolicyChange, change: Change, known: Known, queues: Collection[Place]
) -> None:
    """Raise ChangeRefused for a policy that applies to nothing."""
    if not policy.definition:
        if (policy.vhost, policy.name) not in known.policies:
            names = _of_host(known.policies, policy.vhost)
            raise ChangeRefused(
                f"[[policy]] {policy.name}: the ledger has no policy of that name in vhost "
                f"'{policy.vhost}' to take away, expected {nearest(policy.name, names)}"
            )
        return
    try:
        made = Policy(
            policy.name, policy.pattern, policy.definition, policy.priority, policy.apply_to
        )
        check_definition(made.definition, False)
    except BrokerError as error:
        raise ChangeRefused(f"[[policy]] {policy.name}: {error}") from None
    idle = without_effect(made)
    if len(idle) == len(made.definition):
        raise ChangeRefused(
            f"[[policy]] {policy.name}: {idle[0]} has no effect on {policy.apply_to}, expected a "
            "key that has one"
        )
    names = _of_host(queues, policy.vhost)
    types = {name: known.kinds.get((policy.vhost, name), "") for name in names}
    types |= {
        one.name: str(one.arguments.get("x-queue-type", ""))
        for one in change.new_queues
        if one.vhost == policy.vhost
    }
    exchanges = _of_host(known.exchanges, policy.vhost)
    anything = [
        *((kind, name) for name, type in types.items()
          for kind in KINDS.get(type, (CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS))),
        *((EXCHANGES, name) for name in exchanges),
    ]  # fmt: skip
    if not any(made.fits(kind, name) for kind, name in anything):
        like = policy.pattern.strip("^$")
        raise ChangeRefused(
            f"[[policy]] {policy.name}: the pattern {policy.pattern} applies to no queue or "
            f"exchange ({policy.apply_to}) of vhost '{policy.vhost}', expected one for "
            f"{nearest(like, [*names, *(one for one in exchanges if one)])}"
        )


def _check_publishers(change: Change, known: Known) -> None:
    for one in change.publishers:
        here = {(exchange, key) for host, exchange, key in known.routes if host == one.vhost}
        exchanges = {exchange for exchange, _ in here}
        if one.exchange is not None and one.exchange not in exchanges:
            raise ChangeRefused(
                f"[[publishers]]: nothing was published to the exchange {one.exchange} in vhost "
                f"'{one.vhost}', expected {nearest(one.exchange, exchanges)}"
            )
        keys = {key for exchange, key in here if one.exchange in (None, exchange)}
        if one.key is not None and one.key not in keys:
            raise ChangeRefused(
                f"[[publishers]]: nothing was published with the key {one.key}, expected "
                f"{nearest(one.key, keys)}"
            )
        if not here:
            raise ChangeRefused(f"[[publishers]]: nothing was published in vhost '{one.vhost}'")


def _check_times(change: Change, known: Known) -> None:
    """Raise ChangeRefused for a time at which nothing was recorded: nothing would happen then."""
    begin, end = known.stretch
    said = [("from", change.since_ms, False)]
    said += [("[[restart]]: at", restart.at_ms, True) for restart in change.restarts]
    for one in change.consumers:
        if one.away_for_ms:
            over = one.away_at_ms + one.away_for_ms
            said.append((f"[[consumers]] {one.queue}: away from", one.away_at_ms, over <= begin))
    for what, at_ms, may_not_be_before in said:
        if at_ms and (at_ms > end or (may_not_be_before and at_ms < begin)):
            raise ChangeRefused(
                f"{what} is {_shown(at_ms)}, expected a time between {_shown(begin)} and "
                f"{_shown(end)}, of which the ledger tells"
            )
    for one in change.consumers:
        if one.late_ms > end - begin:
            raise ChangeRefused(
                f"[[consumers]] {one.queue}: late is {one.late_ms / 1000:g} s, expected less than "
                f"the {(end - begin) / 1000:g} s of which the ledger tells"
            )


def check_stretch(since_ms: int, known: Known) -> None:
    """Raise ChangeRefused for a stretch that begins behind all that the ledger tells of: nothing
    would differ in it."""
    end = known.stretch[1]
    if since_ms > end:
        raise ChangeRefused(
            f"the stretch begins at {_shown(since_ms)}, expected a time up to {_shown(end)}, of "
            "which the ledger tells"
        )


def _shown(at_ms: int) -> str:
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")
