"""Parts of a recording that do not touch each other, so that worlds can be played part by part.

Two queues touch if a message, a letter or a consumer may get from one to the other: over an
exchange that both are bound to, a dead-letter exchange, a topic, a session, or somebody who takes
from both. Whatever a change says is looked at as well. In doubt they touch.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tallymark.engine.errors import BrokerError
from tallymark.engine.policies import ALL, Policy
from tallymark.whatif import recording as told
from tallymark.whatif.changes import Change
from tallymark.whatif.recording import Publishes, Recording, Taken, Terms

Place = tuple[str, str]
Node = tuple[object, ...]
_COLUMNS: Final = (
    "time_ms", "order", "first_id", "arrived_ms", "place", "known", "start", "count",
)  # fmt: skip
"""Columns of numbers of publishes with a line for each payload."""
_TO_ALL: Final = (told.DEFINE, told.CRASH, told.LOOK)
"""Kinds of inputs that concern all parts."""


class _Touching:
    """Groups of things that touch each other (union-find)."""

    def __init__(self) -> None:
        self._above: dict[Node, Node] = {}

    def group(self, node: Node) -> Node:
        while (above := self._above.setdefault(node, node)) != node:
            self._above[node] = self._above[above]
            node = above
        return node

    def knows(self, node: Node) -> bool:
        return node in self._above

    def touch(self, one: Node, other: Node) -> None:
        self._above[self.group(one)] = self.group(other)


def _queue(vhost: object, name: object) -> Node:
    return "queue", vhost, name


def _exchange(vhost: object, name: object) -> Node:
    return "exchange", vhost, name


def _route(vhost: object, exchange: object, key: object) -> Node:
    """Return what a message gets to that is published so."""
    return _exchange(vhost, exchange) if exchange else _queue(vhost, key)


def _define(found: _Touching, said: Mapping[str, Any]) -> None:
    """Note what a definition connects."""
    op, vhost, arguments = said["op"], said["vhost"], said.get("arguments") or {}
    if op == "binding":
        make = _queue if said["kind"] == "queue" else _exchange
        found.touch(_exchange(vhost, said["source"]), make(vhost, said["destination"]))
    elif op == "queue":
        _arguments(found, vhost, said["name"], arguments)
    elif op == "exchange" and "alternate-exchange" in arguments:
        other = _exchange(vhost, arguments["alternate-exchange"])
        found.touch(_exchange(vhost, said["name"]), other)


def _arguments(
    found: _Touching, vhost: str, queue: str, arguments: Mapping[str, object], prefix: str = "x-"
) -> None:
    """Note what the arguments of a queue, or the definition of a policy, connect it with."""
    here = _queue(vhost, queue)
    exchange = arguments.get(f"{prefix}dead-letter-exchange")
    key = arguments.get(f"{prefix}dead-letter-routing-key")
    if exchange:
        found.touch(here, _exchange(vhost, exchange))
    elif exchange == "" and key is not None:
        found.touch(here, _queue(vhost, key))
    if (exchange == "" and key is None) or (key is not None and exchange is None):
        found.touch(here, ("anything", vhost))  # its letters may get to any queue
    if key is not None:
        found.touch(here, _queue(vhost, key))
    topic = arguments.get("x-nsq-topic")
    if topic is not None:
        found.touch(here, ("topic", vhost, topic))
        found.touch(here, _exchange(vhost, topic))


def _meet(found: _Touching, kind: int, said: object) -> None:
    """Note whom consumers connect."""
    if isinstance(said, Terms):
        here = _queue(said.vhost, said.queue)
        found.touch(("session", said.session), here)
        found.touch(("owner", said.consumer), here)
    elif isinstance(said, Taken):
        found.touch(("owner", said.owner), _queue(*said.queue[:2]))
    elif kind == told.TRANSFER and isinstance(said, tuple):
        for target in said[1]:
            found.touch(_queue(*said[0][:2]), _queue(*target[:2]))
    elif kind == told.SUBSCRIBE and isinstance(said, tuple):
        found.touch(("epoch", said[0]), _queue(*said[1][:2]))


def _follow(found: _Touching, change: Change) -> list[dict[str, Any]]:
    """Note what a change connects; return its policies."""
    for bound in change.bindings:
        found.touch(_exchange(bound.vhost, bound.exchange), _queue(bound.vhost, bound.queue))
    for queue in change.queues:
        _arguments(found, queue.vhost, queue.name, queue.arguments)
    for new in change.new_queues:
        _arguments(found, new.vhost, new.name, new.arguments)
    return [
        {"vhost": one.vhost, "name": one.name, "pattern": one.pattern,
         "definition": one.definition}
        for one in change.policies
        if one.definition
    ]  # fmt: skip


def _rule(found: _Touching, said: Mapping[str, Any], queues: Iterable[Place]) -> None:
    """Note what a policy connects the queues with that it may apply to."""
    definition = said["definition"]
    if "alternate-exchange" in definition:
        other = _exchange(said["vhost"], definition["alternate-exchange"])
        found.touch(("anything", said["vhost"]), other)
    if not {"dead-letter-exchange", "dead-letter-routing-key"} & definition.keys():
        return
    try:
        policy = Policy(said["name"], said["pattern"], definition, 0, ALL, was_stored=True)
    except BrokerError:
        policy = None
    for vhost, name in queues:
        if vhost == said["vhost"] and (policy is None or policy.fits(ALL, name)):
            _arguments(found, vhost, name, definition, "")


class Parts:
    """The parts of a recording that none of some changes connects."""

    def __init__(self, recording: Recording, changes: Sequence[Change]) -> None:
        self._recording = recording
        self._touching = _Touching()
        self._queues = {name[:2] for name in recording.fates}
        for change in changes:
            self._queues |= {(one.vhost, one.name) for one in change.new_queues}
        policies = [policy for change in changes for policy in _follow(self._touching, change)]
        for _, _, kind, said in recording.inputs:
            if kind == told.DEFINE and isinstance(said, bytes):
                definition = json.loads(said)
                _define(self._touching, definition)
                if "policy" in definition["op"] and "definition" in definition:
                    policies.append(definition)
            else:
                _meet(self._touching, kind, said)
        for policy in policies:
            _rule(self._touching, policy, self._queues)
        self._publish()
        for vhost, name in self._queues:
            if self._touching.knows(("anything", vhost)):
                self._touching.touch(("anything", vhost), _queue(vhost, name))
        groups: dict[Node, set[Place]] = {}
        for place in self._queues:
            groups.setdefault(self._touching.group(_queue(*place)), set()).add(place)
        sizes: dict[Place, int] = {}
        for (vhost, name, _), fates in recording.fates.items():
            sizes[vhost, name] = sizes.get((vhost, name), 0) + len(fates.ids)
        self.queues: list[frozenset[Place]] = sorted(
            map(frozenset, groups.values()),
            key=lambda part: (-sum(sizes.get(place, 0) for place in part), sorted(part)),
        )
        """Queues of each part, that with the most messages first."""

    def _publish(self) -> None:
        """Note what payloads connect whose messages have several routes."""
        said = self._recording.publishes
        for i, own in said.own_places.items():
            first = _route(said.vhost[i], *said.places[own[0]])
            for number in own:
                self._touching.touch(first, _route(said.vhost[i], *said.places[number]))
        for i, known in enumerate(said.known):
            keys = json.loads(said.annotations[known]).get("keys", ()) if known >= 0 else ()
            for key in keys:
                exchange, first_key = said.places[_place_of(said, i)]
                self._touching.touch(
                    _route(said.vhost[i], exchange, first_key),
                    _route(said.vhost[i], exchange, key),
                )

    def put_together(self, count: int) -> list[frozenset[Place]]:
        """Return the parts as `count` at most, the largest ones apart."""
        bins = self.queues[:count]
        for i, part in enumerate(self.queues[count:]):
            bins[-1 - i % len(bins)] |= part
        return bins

    def recording(self, part: frozenset[Place], is_first: bool) -> Recording:
        """Return what of the recording concerns the queues of a part. Definitions concern all.
        is_first: of the part that has what gets to no queue at all."""
        group = self._touching.group
        inside = {group(_queue(*place)) for place in part}
        whole = {group(_queue(*place)) for place in self._queues}

        def concerns(node: Node) -> bool:
            found = group(node)
            return found in inside or (is_first and found not in whole)

        made = self._recording
        return replace(
            made,
            inputs=[one for one in made.inputs if _concerns(one[2], one[3], concerns)],
            publishes=_published(made.publishes, concerns),
            answers={at: one for at, one in made.answers.items() if at[0][:2] in part},
            fates={name: one for name, one in made.fates.items() if name[:2] in part},
        )


def _concerns(kind: int, said: Any, concerns: Callable[[Node], bool]) -> bool:
    """Return whether an input concerns a part."""
    if kind in _TO_ALL:
        return True
    if isinstance(said, Terms):
        return concerns(_queue(said.vhost, said.queue))
    if isinstance(said, Taken):
        return concerns(_queue(*said.queue[:2]))
    if kind in (told.PURGE, told.TRANSFER, told.SERVED, told.COVERED):
        return concerns(_queue(*said[0][:2]))
    if kind in (told.GO, told.GRANT, told.BARRED):
        return concerns(("owner", said[0]))
    return concerns(("epoch", said if kind == told.UNSUBSCRIBE else said[0]))


def _place_of(said: Publishes, i: int) -> int:
    """Return the route of a payload's first message."""
    return said.place[i] if said.place[i] >= 0 else said.own_places[i][0]


def _published(said: Publishes, concerns: Callable[[Node], bool]) -> Publishes:
    """Return the payloads that concern a part; what they refer to stays where it is."""
    known: dict[tuple[str, int], bool] = {}
    kept: list[int] = []
    for i in range(len(said)):
        at = said.vhost[i], _place_of(said, i)
        if at not in known:
            known[at] = concerns(_route(at[0], *said.places[at[1]]))
        if known[at]:
            kept.append(i)
    made = replace(said, vhost=[said.vhost[i] for i in kept])
    for name in _COLUMNS:
        column = getattr(said, name)
        setattr(made, name, array(column.typecode, [column[i] for i in kept]))
    made.persistent = bytearray(said.persistent[i] for i in kept)
    made.own_places = {
        number: said.own_places[i] for number, i in enumerate(kept) if i in said.own_places
    }
    return made
