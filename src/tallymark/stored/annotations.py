"""Annotations: the broker's own facts about messages, beside their bytes. They are the messages'
route, their own TTL, further routing keys, and the count and causes of their deaths.

Annotations are immutable and shared by all messages of a slice. One death makes new ones out of the
old (engine/deaths.py); the history in them is a list, newest death first, and every question about
order is answered by that list, never by comparing times [DL-D7].

The stored form is JSON with a version in front [DL-20]:

    {"v":1,"form":3,"due":...,"ttl":...,"keys":[...],"bcc":[...],"hops":...,"route":[exchange,key],
     "since":...,"failed":...,"acquired":...,"first":[reason,queue,exchange],"last":[...],
     "notes":{key:base64,...},"deaths":...}

where whatever has its ordinary value is left out, and `form` says how the deaths are written
[DL-19]. A message keeps the form that its first death was stored in:

    1   list, newest first, with the fields of an x-death header: time in whole seconds, no time of
        the last death; "last" only from the second death on
    2   object, "queue NUL reason" -> death, in no order of its own: read back by the time of the
        last death, ties as they stand
    3   list, newest first, times in milliseconds

`tests/engine/fixtures` holds blobs of every form; they stay readable for ever.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Final, final

from tallymark.units import EngineMs, Ms, WallMs

VERSION: Final = 1
HEADER_FORM: Final = 1
UNORDERED_FORM: Final = 2
NEWEST_FORM: Final = 3
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"
REASONS: Final = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)
"""Reasons for which a queue dead-letters a message [DL-1]. Only the first is caused by a client."""
Notes = tuple[tuple[str, bytes], ...]
"""Notes that consumers added to a message when they requeued or rejected it: (key, value encoded in
AMQP 1.0), sorted by key [FC-20]."""
Place = tuple[str, str, str]
"""(reason, queue, exchange) of a first or last death [DL-14]; the exchange is the one the message
was published to before that death."""


@final
class Death:
    """One entry of the history [DL-12]: the deaths of a message in one queue for one reason."""

    __slots__ = ("count", "exchange", "first_ms", "keys", "last_ms", "queue", "reason", "ttl_ms")

    def __init__(
        self,
        queue: str,
        reason: str,
        count: int,
        exchange: str,
        keys: tuple[str, ...],
        first_ms: WallMs,
        last_ms: WallMs,
        ttl_ms: Ms = Ms(-1),
    ) -> None:
        self.queue = queue
        self.reason = reason
        self.count = count
        self.exchange = exchange
        """Exchange the message was published to before the first of these deaths."""
        self.keys = keys
        """Routing keys under which the message was published then, without those of BCC."""
        self.first_ms = first_ms
        """Wall time of the first of these deaths, milliseconds since 1970."""
        self.last_ms = last_ms
        self.ttl_ms = ttl_ms
        """The message's own TTL at the first of these deaths, milliseconds; -1: it had none."""


@final
class Annotations:
    """Annotations of messages (see the module's docstring). Shared, immutable, compared by
    identity."""

    def __init__(
        self,
        *,
        ttl_ms: Ms = Ms(-1),
        more_keys: tuple[str, ...] = (),
        bcc: tuple[str, ...] = (),
        hops: int = -1,
        route: Route | None = None,
        since_ms: EngineMs = EngineMs(0),
        deaths: tuple[Death, ...] = (),
        first_death: Place | None = None,
        last_death: Place | None = None,
        failed: int = 0,
        acquired: int = 0,
        form: int = 0,
        due_ms: EngineMs = EngineMs(0),
        notes: Notes = (),
    ) -> None:
        self.due_ms = due_ms
        """Time before which the message is not ready, chosen by its publisher; engine time, ms; 0:
        ready at once."""
        self.ttl_ms = ttl_ms
        """Time to live of the message itself, ms; -1: none. Removed at the first death [DL-11]."""
        self.more_keys = more_keys
        """Routing keys besides the route's own: CC then BCC, as published [DL-10]."""
        self.bcc = bcc
        """The end of more_keys that is never shown."""
        self.hops = hops
        """Remaining deaths allowed [DL-D1]; -1: deaths are not limited."""
        self.route = route
        """Present route: dead-letter exchange and key. None: the route it was published to."""
        self.since_ms = since_ms
        """Time at which the message entered its present queue, engine time, ms; 0: its arrival
        time."""
        self.deaths = deaths
        """Newest first."""
        self.first_death = first_death
        self.last_death = last_death
        self.failed = failed
        """Count of failed deliveries in the queues it died in [DL-5]; its slice counts the present
        queue."""
        self.acquired = acquired
        """Count of deliveries in the queues it died in."""
        self.form = form
        """Form in which the history is stored [DL-19]; 0 while there is no history."""
        self.notes = notes
        """Message annotations that consumers set by the outcome `modified`; they stay for good."""
        self._stored = b""

    def to_bytes(self) -> bytes:
        """Return the stored form, the same object on every call."""
        if not self._stored:
            self._stored = json.dumps(self.to_object(), separators=(",", ":")).encode()
        return self._stored

    def to_object(self) -> dict[str, object]:
        """Return the stored form as values for JSON."""
        out: dict[str, object] = {"v": VERSION, "form": self.form}
        if self.due_ms:
            out["due"] = self.due_ms
        if self.ttl_ms >= 0:
            out["ttl"] = self.ttl_ms
        if self.more_keys:
            out["keys"] = list(self.more_keys)
        if self.bcc:
            out["bcc"] = list(self.bcc)
        if self.hops >= 0:
            out["hops"] = self.hops
        if self.route is not None:
            out["route"] = [self.route.exchange, self.route.key]
        if self.since_ms:
            out["since"] = self.since_ms
        if self.failed:
            out["failed"] = self.failed
        if self.acquired:
            out["acquired"] = self.acquired
        if self.first_death is not None:
            out["first"] = list(self.first_death)
        if self.last_death is not None:
            out["last"] = list(self.last_death)
        if self.notes:
            out["notes"] = {key: b64encode(value).decode() for key, value in self.notes}
        if self.form == HEADER_FORM:
            out["deaths"] = [_as_header(death) for death in self.deaths]
        elif self.form == UNORDERED_FORM:
            out["deaths"] = _by_key(self.deaths)
        elif self.form == NEWEST_FORM:
            out["deaths"] = [_as_entry(death) for death in self.deaths]
        return out

    @staticmethod
    def from_bytes(blob: bytes) -> Annotations:
        """Decode annotations that to_bytes of this or an earlier release made.

        Raises ValueError for anything else: an unknown version, form or field is never guessed at.
        """
        made = Annotations.from_object(json.loads(blob))
        made._stored = blob
        return made

    @staticmethod
    def from_object(value: object) -> Annotations:
        """Decode annotations, as from_bytes does, from values parsed from JSON."""
        fields = _Fields("annotations", value)
        version = fields.integer("v", -1)
        if version != VERSION:
            raise ValueError(f"annotations of version {version}, expected {VERSION}")
        form = fields.integer("form", -1)
        if not 0 <= form <= NEWEST_FORM:
            raise ValueError(f"history of form {form}, expected 0 to {NEWEST_FORM}")
        deaths = _deaths_of(form, fields.take("deaths")) if form else ()
        if form and not deaths:
            raise ValueError(f"history of form {form} without a death")
        made = Annotations(
            ttl_ms=Ms(fields.integer("ttl", -1)),
            more_keys=fields.texts("keys"),
            bcc=fields.texts("bcc"),
            hops=fields.integer("hops", -1),
            route=fields.route(),
            since_ms=EngineMs(fields.integer("since", 0)),
            deaths=deaths,
            first_death=fields.place("first"),
            last_death=fields.place("last"),
            failed=fields.integer("failed", 0),
            acquired=fields.integer("acquired", 0),
            form=form,
            due_ms=EngineMs(fields.integer("due", 0)),
            notes=fields.notes(),
        )
        fields.end()
        hidden = len(made.bcc)
        if hidden and made.more_keys[-hidden:] != made.bcc:
            raise ValueError(f"routing keys {made.more_keys!r}, expected to end in {made.bcc!r}")
        return made


def with_notes(old: Annotations | None, notes: Notes) -> Annotations:
    """Return the annotations of messages to which a consumer added notes [FC-20]. Its keys replace
    existing ones."""
    if old is None:
        return Annotations(notes=tuple(sorted(notes)))
    made = ready_since(old, old.since_ms)
    made.due_ms = old.due_ms
    made.notes = tuple(sorted({**dict(old.notes), **dict(notes)}.items()))
    return made


def deferred_until(old: Annotations | None, due_ms: EngineMs) -> Annotations:
    """Return the annotations of messages that become ready at `due_ms` (engine time)."""
    if old is not None and old.due_ms == due_ms:
        return old
    made = Annotations() if old is None else ready_since(old, old.since_ms)
    made.due_ms = due_ms
    return made


def ready_since(old: Annotations | None, since_ms: EngineMs) -> Annotations:
    """Return the annotations of messages that became ready at `since_ms`, later than they arrived.
    Their time to live counts from that time."""
    if old is None:
        return Annotations(since_ms=since_ms)
    return Annotations(
        ttl_ms=old.ttl_ms, more_keys=old.more_keys, bcc=old.bcc, hops=old.hops, route=old.route,
        since_ms=since_ms, deaths=old.deaths, first_death=old.first_death,
        last_death=old.last_death, failed=old.failed, acquired=old.acquired, form=old.form,
        notes=old.notes,
    )  # fmt: skip


def keys_of(annotations: Annotations | None, route: Route) -> list[str]:
    """Return all routing keys of a message that was published under `route`: the visible key, then
    CC, then BCC [DL-10]."""
    if annotations is None:
        return [route.key]
    if annotations.route is not None:
        route = annotations.route
    return [route.key, *annotations.more_keys]


def death_headers(annotations: Annotations) -> dict[str, str]:
    """Return the x-first-death-* and x-last-death-* headers, as readers see them and as a headers
    exchange matches them with `all-with-x` or `any-with-x` [DL-14]. Empty before the first
    death."""
    headers: dict[str, str] = {}
    first = annotations.first_death
    if first is not None:
        headers["x-first-death-reason"] = first[0]
        headers["x-first-death-queue"] = first[1]
        headers["x-first-death-exchange"] = first[2]
    last = annotations.last_death
    if last is not None:
        headers["x-last-death-reason"] = last[0]
        headers["x-last-death-queue"] = last[1]
        headers["x-last-death-exchange"] = last[2]
    return headers


def _as_header(death: Death) -> dict[str, object]:
    """Return a death in form 1."""
    out: dict[str, object] = {}
    if death.ttl_ms >= 0:
        out["original-expiration"] = str(death.ttl_ms)
    out["count"] = death.count
    out["reason"] = death.reason
    out["queue"] = death.queue
    out["time"] = death.first_ms // 1000
    out["exchange"] = death.exchange
    out["routing-keys"] = list(death.keys)
    return out


def _facts(death: Death, out: dict[str, object]) -> dict[str, object]:
    """Add the fields of a death besides queue and reason to `out`, for forms 2 and 3."""
    out["count"] = death.count
    out["exchange"] = death.exchange
    out["keys"] = list(death.keys)
    out["first"] = death.first_ms
    out["last"] = death.last_ms
    if death.ttl_ms >= 0:
        out["ttl"] = death.ttl_ms
    return out


def _by_key(deaths: tuple[Death, ...]) -> dict[str, object]:
    """Return the history in form 2. Where a queue with a hop limit made several entries of one key,
    the second and later ones have a number behind the key."""
    out: dict[str, object] = {}
    for death in deaths:
        key = plain = f"{death.queue}\0{death.reason}"
        n = 1
        while key in out:
            n += 1
            key = f"{plain}\0{n}"
        out[key] = _facts(death, {})
    return out


def _as_entry(death: Death) -> dict[str, object]:
    """Return a death in form 3."""
    return _facts(death, {"queue": death.queue, "reason": death.reason})


def _deaths_of(form: int, value: object) -> tuple[Death, ...]:
    """Decode a stored history. Raises ValueError."""
    if form == UNORDERED_FORM:
        if not isinstance(value, dict):
            raise ValueError(f"history {value!r}, expected an object")
        deaths = [_from_key(key, facts) for key, facts in value.items()]
        deaths.sort(key=_minus_last)
        return tuple(deaths)
    if not isinstance(value, list):
        raise ValueError(f"history {value!r}, expected a list")
    if form == HEADER_FORM:
        return tuple([_from_header(entry) for entry in value])
    return tuple([_from_entry(entry) for entry in value])


def _minus_last(death: Death) -> int:
    return -death.last_ms


def _from_header(value: object) -> Death:
    fields = _Fields("death", value)
    ttl_ms = -1
    expiration = fields.text_or_none("original-expiration")
    if expiration is not None:
        if not (expiration.isascii() and expiration.isdigit()):
            raise ValueError(f"original-expiration {expiration!r}, expected digits")
        ttl_ms = int(expiration)
    time_ms = fields.integer("time") * 1000
    death = Death(
        fields.text("queue"),
        _reason(fields.text("reason")),
        fields.integer("count"),
        fields.text("exchange"),
        fields.texts("routing-keys"),
        WallMs(time_ms),
        WallMs(time_ms),
        Ms(ttl_ms),
    )
    fields.end()
    return death


def _from_key(key: str, value: object) -> Death:
    queue, _, reason = key.rpartition("\0")
    if reason.isdigit():  # the second of its key, or a later one
        queue, _, reason = queue.rpartition("\0")
    return _from_facts(_Fields("death", value), queue, reason)


def _from_entry(value: object) -> Death:
    fields = _Fields("death", value)
    return _from_facts(fields, fields.text("queue"), fields.text("reason"))


def _from_facts(fields: _Fields, queue: str, reason: str) -> Death:
    death = Death(
        queue,
        _reason(reason),
        fields.integer("count"),
        fields.text("exchange"),
        fields.texts("keys"),
        WallMs(fields.integer("first")),
        WallMs(fields.integer("last")),
        Ms(fields.integer("ttl", -1)),
    )
    fields.end()
    return death


def _reason(text: str) -> str:
    if text not in REASONS:
        raise ValueError(f"death by {text!r}, expected one of {', '.join(REASONS)}")
    return text


@final
class _Fields:
    """Takes the members of a JSON object one by one. Raises ValueError for an unexpected value."""

    def __init__(self, what: str, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{what} {value!r}, expected an object")
        self._what = what
        self._left: dict[str, object] = dict(value)

    def take(self, name: str) -> object:
        """Take any value; None if the member is missing."""
        return self._left.pop(name, None)

    def integer(self, name: str, default: int | None = None) -> int:
        """Take an integer >= 0. Without a default the member is required."""
        value = self.take(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(name, value, "a number from 0 up")
        return value

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return self.text(name) if name in self._left else None

    def texts(self, name: str) -> tuple[str, ...]:
        """Take a list of texts; empty if the member is missing."""
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of texts")
        texts: list[str] = []
        for one in value:
            if not isinstance(one, str):
                raise self._wrong(name, value, "a list of texts")
            texts.append(one)
        return tuple(texts)

    def place(self, name: str) -> Place | None:
        texts = self.texts(name)
        if not texts:
            return None
        if len(texts) != 3:
            raise self._wrong(name, texts, "reason, queue and exchange")
        return (_reason(texts[0]), texts[1], texts[2])

    def route(self) -> Route | None:
        texts = self.texts("route")
        if not texts:
            return None
        if len(texts) != 2:
            raise self._wrong("route", texts, "exchange and key")
        return Route(texts[0], texts[1])

    def notes(self) -> Notes:
        value = self.take("notes")
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise self._wrong("notes", value, "an object")
        found: list[tuple[str, bytes]] = []
        for key, text in value.items():
            if not isinstance(text, str):
                raise self._wrong("notes", value, "base64 texts")
            found.append((key, b64decode(text, validate=True)))
        return tuple(sorted(found))

    def end(self) -> None:
        """Raise ValueError if any member is left."""
        if self._left:
            raise ValueError(f"{self._what} with unknown fields {sorted(self._left)}")

    def _wrong(self, name: str, value: object, expected: str) -> ValueError:
        return ValueError(f"{self._what}: {name} is {value!r}, expected {expected}")


@final
class Route:
    """The exchange and routing key a message was published with, as its readers see them."""

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange = exchange
        self.key = key
