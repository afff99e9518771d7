"""Sinks: batches of messages that are published whole, once, and only when all of them are here.

A writer of a batch that runs in many tasks hands over each task's messages as a *staging*, which is
on disk and invisible to consumers. A commit names the stagings of a batch and publishes all of them
in one step. A step is in one turn, and a turn is one block of the journal: so a batch is published
whole or not at all, across queues and crashes. The same block records the batch number and its
writer. So a writer that does not know whether a commit succeeded may repeat it; the second one has
no effect.

A sink has a name, one writer at a time (its *identity*: a checkpoint), the number of its last batch
and, where its writer says so, the target of that. Messages are routed at the commit and arrive with
it: their times count from then. Each queue gets the messages in the order of the stagings and their
parts. A staging that no commit names ends when it expires, or when its sink commits another batch.
This removes what a killed task left behind.

Staged messages are in no queue, so that they are in no queue's account [LC-5].
"""

from __future__ import annotations

import json
from typing import Final, final

from tallymark.engine.admission import Admission, CommitCheck
from tallymark.engine.clock import Timed
from tallymark.engine.commit import no_room_text
from tallymark.engine.entrance import Entrance
from tallymark.engine.errors import (
    Fenced,
    HeldBack,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
)
from tallymark.engine.ledger import defined_record, sink_ended_record, sink_staged_record
from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.engine.state import State
from tallymark.engine.topology import Targets
from tallymark.engine.vhost import VirtualHost
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, deferred_until, keys_of, ready_since
from tallymark.units import EngineMs, Ms

MOST_STAGINGS: Final = 100_000
"""Maximum number of stagings of all sinks together that wait for their commit."""


@final
class StagedPart:
    """Messages that were handed over together and share their annotations."""

    def __init__(
        self,
        payload: Payload,
        annotations: Annotations | None,
        mandatory: bool,
        staged_ms: EngineMs,
    ) -> None:
        self.payload = payload
        """Payload, with the routes under which it was published."""
        self.annotations = annotations
        self.mandatory = mandatory
        """True if a commit is refused when one of the messages reaches no queue."""
        self.staged_ms = staged_ms


@final
class Staging(Timed):
    """Messages that one task handed over for a later commit."""

    def __init__(self, id: int, vhost: str, sink: str, due_ms: EngineMs) -> None:
        super().__init__()
        self.id = id
        """Broker-wide number, never reused; also the owner number of the staging's ledger rows."""
        self.vhost = vhost
        self.sink = sink
        self.due_ms = due_ms
        """Time at which the staging expires unless it is committed; engine time, ms."""
        self.parts: list[StagedPart] = []
        self.count = 0
        """Count of messages."""
        self.size = 0
        """Bytes of the messages, framing included."""

    def add(self, part: StagedPart) -> None:
        self.parts.append(part)
        self.count += part.payload.count
        self.size += part.payload.size


@final
class Sink(Timed):
    """The last commit to a sink: its writer and its batch number."""

    def __init__(self, vhost: str, name: str) -> None:
        super().__init__()
        self.vhost = vhost
        self.name = name
        self.identity = ""
        """Identity of the writer: its checkpoint. Other writers are refused."""
        self.batch = 0
        self.target = ""
        """Target of the last batch in its writer's words; "": it said none."""
        self.due_ms = EngineMs(0)
        """Time at which the sink is forgotten; engine time, ms; 0: never."""


@final
class Committed:
    """The result of a commit."""

    def __init__(self, repeated: bool) -> None:
        self.repeated = repeated
        """True if the batch had been committed before: nothing was done."""
        self.published = 0
        """Count of messages published, including those that reached no queue."""
        self.unroutable = 0


@final
class Stretch:
    """Messages lo..hi-1 of a part and their target queues."""

    def __init__(self, part: StagedPart, lo: int, hi: int, targets: Targets) -> None:
        self.part = part
        self.lo = lo
        self.hi = hi
        self.targets = targets


@final
class Sinks:
    """All sinks of the broker and their stagings."""

    def __init__(self, state: State, entrance: Entrance, admission: Admission) -> None:
        self._state = state
        self._agenda = state.agenda
        self._formats = state.formats
        self._vhosts = state.vhosts
        self.clock = state.clock
        self._traffic = state.traffic
        self.deadlines = state.deadlines
        self.ledger = state.ledger
        self.store = state.store
        self._entrance = entrance
        self._admission = admission
        self.sinks: dict[tuple[str, str], Sink] = {}
        """Sinks by virtual host and name."""
        self.stagings: dict[int, Staging] = {}
        """Stagings by id."""
        self.staged = 0
        """Count of messages in all stagings."""
        self.staged_bytes = 0
        self.is_half_done = False
        """True after a commit failed half-way because of a defect: the turn must not be written. No
        client can cause it."""

    # -- staging

    def stage(self, vhost: str, sink: str, parts: list[StagedPart], expires_ms: Ms) -> Staging:
        """Store messages for a commit. The caller answers when they are on disk.

        expires_ms: how long they wait for one.

        Raises:
            ResourceExhausted: MOST_STAGINGS wait already.
            HeldBack: a queue that they would go to now holds publishers back.
            NotFound: the virtual host, or an exchange, has gone since they were published.
            Nothing has changed then.
        """
        if len(self.stagings) >= MOST_STAGINGS:
            raise ResourceExhausted(
                f"{len(self.stagings)} stagings wait for their commit, at most {MOST_STAGINGS} may"
            )
        self._check_held(vhost, parts)
        now = self.clock.now_ms
        staging = Staging(self._state.owner_ids(), vhost, sink, EngineMs(now + expires_ms))
        for part in parts:
            payload = part.payload
            self.store.enter(payload, payload.count)
            self._entrance.keep(payload)
            self.ledger.emit(part_record(staging, part, len(staging.parts), part.payload, now))
            staging.add(part)
        self._enter(staging)
        return staging

    def _check_held(self, name: str, parts: list[StagedPart]) -> None:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost {name} not found")
        if not any(queue.holds_publishers for queue in vhost.queues.values()):
            return
        for part in parts:
            for stretch in self._stretches(vhost, part):
                for queue in stretch.targets.queues:
                    if queue.holds_publishers:
                        raise HeldBack(
                            f"publishers to queue '{queue.name}' in vhost '{name}' wait: its "
                            "consumer is slow"
                        )

    def _enter(self, staging: Staging) -> None:
        self.stagings[staging.id] = staging
        self.staged += staging.count
        self.staged_bytes += staging.size
        self.deadlines.arm(staging, staging.due_ms)

    def abort(self, vhost: str, sink: str, ids: list[int]) -> int:
        """Delete stagings of a sink; return the count of their messages. Missing stagings are
        ignored."""
        count = 0
        for id in ids:
            staging = self.stagings.get(id)
            if staging is not None and staging.vhost == vhost and staging.sink == sink:
                count += staging.count
                self._end(staging, records.SINK_ABORTED)
        return count

    def _end(self, staging: Staging, reason: int) -> None:
        del self.stagings[staging.id]
        self.deadlines.forget(staging)
        self.staged -= staging.count
        self.staged_bytes -= staging.size
        for part in staging.parts:
            self.store.finish(part.payload, part.payload.count)
        self.ledger.emit(sink_ended_record(staging.id, staging.count, reason))

    # -- committing

    def commit(
        self,
        vhost: str,
        name: str,
        identity: str,
        batch: int,
        ids: list[int],
        forget_ms: Ms = Ms(0),
        after: int | None = None,
        target: str = "",
    ) -> Committed:
        """Publish the stagings with these ids, in this order, and record the batch; all other
        stagings of the sink end. If the batch is that of the last commit, nothing is published, and
        the stagings with these ids end. The caller answers when the records are on disk.

        forget_ms: after that time the sink is forgotten, for writers that come once; 0: never.
        after: the batch that the sink must have last, 0 for none; None: any earlier one. So a late
        request of a writer that is gone publishes nothing that another batch has.
        target: where the messages go, in the writer's words; "": it does not say.

        Raises:
            Fenced: the sink has another writer's batches, has gone beyond this batch, has this
                batch with another target, or does not have the one before it last.
            NotFound: an id is not (or no more) staged for this sink; an exchange is gone.
            AccessRefused: an exchange is internal.
            PreconditionFailed: an id twice; mandatory messages that reach no queue.
            ResourceExhausted: a queue has no room for all of it.
            Nothing has changed then.
        """
        sink = self.sinks.get((vhost, name))
        if sink is not None and self._is_repeated(sink, identity, batch, target):
            self.abort(vhost, name, ids)  # not more: the batch after it may be staged by now
            return Committed(True)
        last = 0 if sink is None else sink.batch
        if after is not None and last != after:
            raise Fenced(
                f"batch {batch} for sink '{name}' in vhost '{vhost}' follows on batch {after}, but "
                f"the sink has batch {last}"
            )
        stagings = self._find(vhost, name, ids)
        stretches = [
            stretch
            for staging in stagings
            for part in staging.parts
            for stretch in self._stretches(self._vhosts[vhost], part)
        ]
        done = Committed(False)
        for stretch in stretches:
            if not stretch.targets.queues:
                done.unroutable += _unroutable(stretch)
        self._check_room(stretches)
        self._traffic.discarded += done.unroutable
        self._agenda.commits = True
        try:
            self._publish(stretches)
            for staging in stagings:
                done.published += staging.count
                self._end(staging, records.SINK_PUBLISHED)
            self._supersede(vhost, name)
            self._remember(vhost, name, identity, batch, forget_ms, target)
        except Exception:
            self.is_half_done = True
            raise
        finally:
            self._agenda.commits = False
        return done

    def _is_repeated(self, sink: Sink, identity: str, batch: int, target: str) -> bool:
        if identity != sink.identity:
            raise Fenced(
                f"sink '{sink.name}' in vhost '{sink.vhost}' has batches of '{sink.identity}', "
                f"not of '{identity}': a new checkpoint needs a new sink, or the old one deleted"
            )
        if batch < sink.batch:
            raise Fenced(
                f"batch {batch} for sink '{sink.name}' in vhost '{sink.vhost}', which has batch "
                f"{sink.batch} already: expected that or a later one"
            )
        if batch == sink.batch and target and sink.target and target != sink.target:
            raise Fenced(
                f"batch {batch} for sink '{sink.name}' in vhost '{sink.vhost}' was written to "
                f"{sink.target}, and is not written to {target}: each of several writes of a batch "
                "needs a sink of its own"
            )
        return batch == sink.batch

    def _find(self, vhost: str, name: str, ids: list[int]) -> list[Staging]:
        found: dict[int, Staging] = {}
        for id in ids:
            staging = self.stagings.get(id)
            if staging is None or staging.vhost != vhost or staging.sink != name:
                raise NotFound(
                    f"no staging {id} for sink '{name}' in vhost '{vhost}': it was committed or "
                    "aborted, or has expired"
                )
            if id in found:
                raise PreconditionFailed(f"staging {id} is named twice")
            found[id] = staging
        return list(found.values())

    def _supersede(self, vhost: str, name: str) -> None:
        for staging in list(self.stagings.values()):
            if staging.vhost == vhost and staging.sink == name:
                self._end(staging, records.SINK_SUPERSEDED)

    def _stretches(self, vhost: VirtualHost, part: StagedPart) -> list[Stretch]:
        """Route the messages of a part now; neighbours with the same targets form one stretch."""
        payload = part.payload
        count = payload.count
        exchange = payload.route.exchange
        by_headers = vhost.needs_headers(exchange)
        if payload.routes is None and not by_headers:
            keys = keys_of(part.annotations, payload.route)
            return [Stretch(part, 0, count, vhost.route(exchange, keys, None))]
        format = self._formats[payload.format]
        known: dict[tuple[str, str], Targets] = {}
        found: list[Stretch] = []
        for i in range(count):
            route = payload.route if payload.routes is None else payload.routes[i]
            name = (route.exchange, route.key)
            targets = known.get(name)
            if targets is None:
                by_headers = vhost.needs_headers(route.exchange)
                if by_headers:
                    self.store.load(payload)
                headers = format.headers(payload, i) if by_headers else None
                keys = keys_of(part.annotations, route)
                targets = vhost.route(route.exchange, keys, headers)
                if not by_headers:
                    known[name] = targets
            if found and found[-1].targets is targets:
                found[-1].hi = i + 1
            else:
                found.append(Stretch(part, i, i + 1, targets))
        return found

    def _check_room(self, stretches: list[Stretch]) -> None:
        """Check that all target queues have room, and load the bytes that publishing needs. Raises
        ResourceExhausted."""
        admission = CommitCheck(self._admission, self._entrance)
        for stretch in stretches:
            if stretch.targets.plain:
                continue
            part = stretch.part
            known = part.annotations
            is_deferred = known is not None and known.due_ms > part.staged_ms
            self.store.load(part.payload)
            for queue in stretch.targets.queues:
                if not admission.takes(queue, part.payload, stretch.lo, stretch.hi, is_deferred):
                    raise ResourceExhausted(no_room_text(queue, "batch"))

    def _publish(self, stretches: list[Stretch]) -> None:
        now = self.clock.now_ms
        dated: dict[Annotations | None, Annotations] = {}
        for stretch in stretches:
            part, targets = stretch.part, stretch.targets
            if not targets.queues:
                continue
            payload = part.payload
            known = part.annotations
            if known is not None and known.due_ms:
                known = deferred_until(known, EngineMs(known.due_ms + now - part.staged_ms))
            elif payload.arrived_ms < now and (known is not None or _counts_time(targets)):
                if known not in dated:
                    dated[known] = ready_since(known, now)
                known = dated[known]
            copies = (stretch.hi - stretch.lo) * len(targets.queues)
            self._traffic.routed += copies
            self.store.use(payload, copies)
            kept = payload.persistent and targets.durable
            refused = self._admission.publish(targets, payload, stretch.lo, stretch.hi, known, kept)
            assert not refused, refused

    def _remember(
        self, vhost: str, name: str, identity: str, batch: int, forget_ms: Ms, target: str
    ) -> None:
        sink = self.sinks.get((vhost, name))
        if sink is None:
            sink = self.sinks[(vhost, name)] = Sink(vhost, name)
        sink.identity = identity
        sink.batch = batch
        sink.target = target
        sink.due_ms = EngineMs(self.clock.now_ms + forget_ms if forget_ms else 0)
        if sink.due_ms:
            self.deadlines.arm(sink, sink.due_ms)
        self.ledger.emit(defined_record(self.definition(sink)))

    # -- expiry

    def forget(self, vhost: str, name: str) -> int:
        """Forget a sink and its stagings for an operator, so that another checkpoint may begin on
        it. Returns the count of staged messages.

        Raises NotFound: neither is there.
        """
        count = sum(
            staging.count
            for staging in self.stagings.values()
            if staging.vhost == vhost and staging.sink == name
        )
        is_staged = any(
            staging.vhost == vhost and staging.sink == name for staging in self.stagings.values()
        )
        if (vhost, name) not in self.sinks and not is_staged:
            raise NotFound(f"no sink '{name}' in vhost '{vhost}'")
        for staging in list(self.stagings.values()):
            if staging.vhost == vhost and staging.sink == name:
                self._end(staging, records.SINK_ABORTED)
        if (vhost, name) in self.sinks:
            self._forget(self.sinks[(vhost, name)])
        return count

    def forget_vhost(self, vhost: str) -> None:
        """Delete the sinks of a deleted virtual host."""
        for staging in [one for one in self.stagings.values() if one.vhost == vhost]:
            self._end(staging, records.SINK_ABORTED)
        for sink in [one for one in self.sinks.values() if one.vhost == vhost]:
            self._forget(sink)

    def _forget(self, sink: Sink) -> None:
        del self.sinks[(sink.vhost, sink.name)]
        self.deadlines.forget(sink)
        definition: dict[str, object] = {
            "op": "drop_sink", "vhost": sink.vhost, "name": sink.name,
        }  # fmt: skip
        self.ledger.emit(defined_record(definition))

    def look_at_staging(self, staging: Staging) -> None:
        """Delete a staging if it has expired."""
        if staging.id in self.stagings:
            if staging.due_ms <= self.clock.now_ms:
                self._end(staging, records.SINK_EXPIRED)
            else:
                self.deadlines.arm(staging, staging.due_ms)

    def look_at_sink(self, sink: Sink) -> None:
        """Forget a sink if its time is up."""
        if sink.due_ms and self.sinks.get((sink.vhost, sink.name)) is sink:
            if sink.due_ms <= self.clock.now_ms:
                self._forget(sink)
            else:
                self.deadlines.arm(sink, sink.due_ms)

    # -- queries

    def payloads(self) -> list[Payload]:
        """Return the payloads of all stagings."""
        return [part.payload for one in self.stagings.values() for part in one.parts]

    def definition(self, sink: Sink) -> dict[str, object]:
        """Return the definition from which a restart makes the sink."""
        return {
            "op": "sink",
            "vhost": sink.vhost,
            "name": sink.name,
            "identity": sink.identity,
            "batch": sink.batch,
            "forget_ms": sink.due_ms,
            **({"target": sink.target} if sink.target else {}),
        }

    def check(self) -> None:
        """Assert that the counts match the stagings."""
        stagings = self.stagings.values()
        assert self.staged == sum(one.count for one in stagings), self.staged
        assert self.staged_bytes == sum(one.size for one in stagings), self.staged_bytes
        for payload in self.payloads():
            assert payload.live >= payload.count, (payload.first_id, payload.live)

    # -- restoring

    def restore_part(self, record: Record) -> None:
        """Restore a staged part from its SINK_STAGED record."""
        payload = record.payload
        if payload is None:
            return  # its bytes are lost, which was accepted
        said = json.loads(record.blob)
        staging = self.stagings.get(record.owner)
        if staging is None:
            staging = Staging(record.owner, said["vhost"], said["sink"], EngineMs(record.other))
            self.stagings[staging.id] = staging
        known = said.get("known", "")
        annotations = Annotations.from_bytes(known.encode()) if known else None
        mandatory = record.flags & records.MANDATORY != 0
        staging.add(StagedPart(payload, annotations, mandatory, EngineMs(record.time_ms)))

    def restore_end(self, record: Record) -> None:
        """Restore the end of a staging from its SINK_ENDED record."""
        self.stagings.pop(record.owner, None)

    def restore(self, definition: dict[str, object]) -> None:
        """Restore a sink from its definition in the journal."""
        vhost, name = str(definition["vhost"]), str(definition["name"])
        if definition["op"] == "drop_sink":
            self.sinks.pop((vhost, name), None)
            return
        sink = self.sinks[(vhost, name)] = Sink(vhost, name)
        sink.identity = str(definition["identity"])
        sink.batch = _number(definition, "batch")
        sink.target = str(definition.get("target", ""))
        sink.due_ms = EngineMs(_number(definition, "forget_ms"))

    def restore_vhost_end(self, vhost: str) -> None:
        """Restore the deletion of a virtual host."""
        self.sinks = {key: sink for key, sink in self.sinks.items() if key[0] != vhost}

    def restored(self) -> None:
        """Finish restoring: staged messages keep their bytes, and timers start."""
        stagings = list(self.stagings.values())
        self.stagings.clear()
        for staging in stagings:
            for part in staging.parts:
                part.payload.live += part.payload.count
            self._enter(staging)
        for sink in self.sinks.values():
            if sink.due_ms:
                self.deadlines.arm(sink, sink.due_ms)

    def lose(self, gone: set[int]) -> int:
        """Delete stagings that contain lost payloads (given by their Python ids), since a batch is
        published whole or not at all. Returns the count of their messages."""
        count = 0
        for staging in list(self.stagings.values()):
            if any(id(part.payload) in gone for part in staging.parts):
                count += staging.count
                self._end(staging, records.SINK_LOST)
        return count


def part_record(
    staging: Staging, part: StagedPart, index: int, payload: Payload, now_ms: EngineMs
) -> Record:
    """Return the SINK_STAGED record of a part. payload: the part's, or what a checkpoint names
    instead."""
    said: dict[str, str] = {"vhost": staging.vhost, "sink": staging.sink}
    if part.annotations is not None:
        said["known"] = part.annotations.to_bytes().decode()
    return sink_staged_record(
        staging.id, index, payload, staging.due_ms, part.mandatory, said, now_ms
    )


def _unroutable(stretch: Stretch) -> int:
    """Return how many messages of the stretch reach no queue. Raises PreconditionFailed if they are
    mandatory."""
    part = stretch.part
    if part.mandatory:
        payload = part.payload
        route = payload.route if payload.routes is None else payload.routes[stretch.lo]
        raise PreconditionFailed(
            f"a message with routing key '{route.key}' to exchange '{route.exchange}' reaches no "
            "queue, nothing of the batch was committed"
        )
    return stretch.hi - stretch.lo


def _counts_time(targets: Targets) -> bool:
    """Return whether one of the queues needs the time at which messages entered."""
    return any(queue.watched or queue.settings.is_stream for queue in targets.queues)


def _number(definition: dict[str, object], key: str) -> int:
    value = definition[key]
    if not isinstance(value, int):
        raise ValueError(f"sink definition: {key} is {value!r}, expected a whole number")
    return value
