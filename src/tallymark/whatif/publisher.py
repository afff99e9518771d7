"""Publisher: what was published, published again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tallymark.engine.arguments import REJECT_PUBLISH
from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.engine.message import Format, Payload
from tallymark.engine.publishing import Part
from tallymark.engine.queue import Queue
from tallymark.engine.session import Session
from tallymark.engine.topology import Targets
from tallymark.stored.annotations import Annotations, Route
from tallymark.units import EngineMs, MessageId
from tallymark.whatif.changes import Change
from tallymark.whatif.recording import Recording

REPLAYED: Final = 200
"""Wire format of messages without bytes."""
COPIES: Final = 1 << 60
"""Message id below the first one of a message that nobody published."""


class Replayed(Format):
    """The format of messages whose bytes are not there: what queues and exchanges ask of them is
    known."""

    def __init__(self, recording: Recording) -> None:
        self._priorities = recording.publishes.priorities
        self._ids = recording.publishes.ids
        self._headers = recording.publishes.headers
        self._origins: dict[int, tuple[int, int]] = {}

    def set_origin(self, first_id: int, of: int, lo: int) -> None:
        """Note that a payload is a part, or a copy of a part, of another one."""
        if of in self._priorities or of in self._ids or of in self._headers:
            self._origins[first_id] = (of, lo)

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        of, at = self._origins.get(payload.first_id, (payload.first_id, 0))
        known = self._priorities.get(of)
        if known is None:
            return bytes(hi - lo)
        return bytes(known.get(i + at, 0) for i in range(lo, hi))

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        of, at = self._origins.get(payload.first_id, (payload.first_id, 0))
        known = self._ids.get(of, {})
        return [known.get(i + at, "") for i in range(lo, hi)]

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        of, at = self._origins.get(payload.first_id, (payload.first_id, 0))
        return dict(self._headers.get(of, {}).get(i + at, {}))


class Publisher:
    """The publishers of a recording, all of a virtual host as one."""

    def __init__(
        self,
        broker: Broker,
        recording: Recording,
        change: Change,
        refused: Callable[[Queue, int], None],
    ) -> None:
        """refused: told a queue that had no room [DL-6], and how many messages it refused."""
        self._refused = refused
        self._format = Replayed(recording)
        broker.formats[REPLAYED] = self._format
        self._broker = broker
        self._said = recording.publishes
        self._change = change
        self._sessions: dict[str, Session] = {}
        self._routes: dict[tuple[str, int, int], tuple[int, Targets | None]] = {}
        self._annotations = [Annotations.from_bytes(blob) for blob in self._said.annotations]
        self._made = [Route(*place) for place in self._said.places]
        self._owed: dict[tuple[str, int], float] = {}
        """Part of a message that is still to be published, by virtual host and route."""
        self._copies = COPIES
        self.published = 0
        self.unroutable = 0
        """Messages that no queue took."""

    def publish(self, i: int, now: int) -> None:
        """Publish payload i of the recording, as often as the change says."""
        said = self._said
        count = said.count[i]
        if not self._change.publishers or now < self._change.since_ms:
            self._publish(i, 0, count, False)
            return
        for lo, hi, is_copy in self._stretches(i, count):
            self._publish(i, lo, hi, is_copy)

    def _stretches(self, i: int, count: int) -> Iterator[tuple[int, int, bool]]:
        """Yield what of a payload is published: from, to, whether once more."""
        said = self._said
        vhost = said.vhost[i]
        again: list[int] = []
        lo = 0
        for at in range(count):
            place = self._place(i, at)
            exchange, key = said.places[place]
            owed = self._owed.get((vhost, place), 0.0) + self._change.rate_of(vhost, exchange, key)
            times = int(owed + 1e-9)
            self._owed[vhost, place] = owed - times
            if not times:
                if at > lo:
                    yield lo, at, False
                lo = at + 1
            again += [at] * (times - 1)
        if lo < count:
            yield lo, count, False
        for at in again:
            yield at, at + 1, True

    def _place(self, i: int, at: int) -> int:
        own = self._said.own_places.get(i)
        return self._said.place[i] if own is None else own[at]

    def _publish(self, i: int, lo: int, hi: int, is_copy: bool) -> None:
        said = self._said
        first_id = said.first_id[i] + lo
        if is_copy:
            first_id = self._copies + 1
            self._copies += hi - lo
        own = said.own_places.get(i)
        routes = None if own is None else [self._made[n] for n in own[lo:hi]]
        route = self._made[said.place[i]] if routes is None else routes[0]
        start = said.start[i]
        payload = Payload(
            REPLAYED, b"", array("I", _totals(said.sizes[start + lo : start + hi])), route, routes,
            MessageId(first_id), EngineMs(said.arrived_ms[i]), bool(said.persistent[i]), 0,
        )  # fmt: skip
        if first_id != said.first_id[i]:
            self._format.set_origin(first_id, said.first_id[i], lo)
        payload.bodies = array("Q", _totals(said.bodies[start + lo : start + hi]))
        known = said.known[i]
        annotations = self._annotations[known] if known >= 0 else None
        session = self._session(said.vhost[i])
        self.published += hi - lo
        if self._needs_headers(i, lo, hi, own):
            places = [said.place[i]] * (hi - lo) if own is None else own[lo:hi]
            parts = list(self._parts(said.vhost[i], places, known, payload))
            self._publish_parts(session, payload, parts, annotations)
            return
        if own is None:
            targets = self._targets(said.vhost[i], said.place[i], known)
            if targets is None or not targets.queues:
                self.unroutable += hi - lo
            else:
                with self._counting([Part(targets, 0, hi - lo)]):
                    self._broker.publishing.publish(session, targets, payload, annotations)
            return
        parts = list(self._parts(said.vhost[i], own[lo:hi], known))
        self._publish_parts(session, payload, parts, annotations)

    def _publish_parts(
        self,
        session: Session,
        payload: Payload,
        parts: list[Part],
        annotations: Annotations | None,
    ) -> None:
        with self._counting(parts):
            self._broker.publishing.publish_parts(session, payload, parts, annotations)

    @contextmanager
    def _counting(self, parts: list[Part]) -> Iterator[None]:
        """Tell of each queue that may refuse messages how many of these it refuses."""
        room: dict[int, tuple[Queue, int]] = {}
        for part in parts:
            for queue in part.targets.queues:
                if queue.settings.overflow == REJECT_PUBLISH and queue.settings.guarded:
                    _, wanted = room.get(queue.id, (queue, queue.account.entered))
                    room[queue.id] = queue, wanted + part.hi - part.lo
        yield
        for queue, wanted in room.values():
            if queue.account.entered < wanted:
                self._refused(queue, wanted - queue.account.entered)

    def _needs_headers(self, i: int, lo: int, hi: int, own: list[int] | None) -> bool:
        """Return whether messages of payload i have headers, and are routed by them."""
        said = self._said
        if said.first_id[i] not in said.headers:
            return False
        host = self._broker.vhosts[said.vhost[i]]
        exchanges = {said.places[n][0] for n in ([said.place[i]] if own is None else own[lo:hi])}
        return any(name in host.exchanges and host.needs_headers(name) for name in exchanges)

    def _parts(
        self, vhost: str, own: list[int], known: int, payload: Payload | None = None
    ) -> Iterator[Part]:
        """Yield the parts of a payload whose messages have routes of their own. payload: it, where
        they are routed by their headers."""
        found = [] if payload is None else [self._format.headers(payload, i) for i in
                                            range(len(own))]  # fmt: skip
        lo = 0
        for hi in range(1, len(own) + 1):
            if hi < len(own) and own[hi] == own[lo] and (not found or found[hi] == found[lo]):
                continue
            targets = self._targets(vhost, own[lo], known, found[lo] if found else None)
            if targets is not None and targets.queues:
                yield Part(targets, lo, hi)
            else:
                self.unroutable += hi - lo
            lo = hi

    def _targets(
        self, vhost: str, place: int, known: int, headers: dict[str, object] | None = None
    ) -> Targets | None:
        """Return the queues of a route; None: its exchange is not there."""
        host = self._broker.vhosts[vhost]
        cached = None if headers else self._routes.get((vhost, place, known))
        if cached is not None and cached[0] == host.generation:
            return cached[1]
        exchange, key = self._said.places[place]
        more = self._annotations[known].more_keys if known >= 0 else ()
        targets = None
        with suppress(BrokerError):  # no such exchange in this world: nobody gets the message
            targets = host.route(exchange, [key, *more], headers or {})
        if not headers:
            self._routes[vhost, place, known] = (host.generation, targets)
        return targets

    def _session(self, vhost: str) -> Session:
        session = self._sessions.get(vhost)
        if session is None or session.closed:
            clients = self._broker.clients
            session = clients.open_session(clients.open_connection(vhost, "what-if", "publisher"))
            self._sessions[vhost] = session
        return session


def _totals(sizes: array[int]) -> list[int]:
    totals = [0]
    total = 0
    for size in sizes:
        total += size
        totals.append(total)
    return totals
