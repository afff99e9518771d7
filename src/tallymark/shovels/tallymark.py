"""Source and target that are Tallymarks, over HTTP: each message once, whatever is killed.

The source is a durable subscription. What it has leased is the same messages under the same numbers
until they are settled, for whoever comes after a crash. The target is a sink, which publishes a
batch whole and remembers the number behind its last message. A shovel that begins again asks the
target for that number, and settles up to it at the source before it takes anything. A batch names
the number that it follows on, so that a late one of a process that was killed has no effect. One
that is refused whole, as by a queue with less room, is put in smaller and smaller ones.

Numbers belong to one subscription. So its name has a random part, which is the name of the sink,
too: no two subscriptions in the world are taken for each other.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, final
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import aiohttp
from yarl import URL

from tallymark.client import ClientError, Message
from tallymark.client.amqp091.messages import Incoming, Outgoing
from tallymark.shovels.ends import Batch, PartlyPut, ShovelFailed, Source, Target
from tallymark.shovels.parcel import Parcel, Stamp
from tallymark.shovels.plan import PORTS
from tallymark.wire.amqp091.frames import (
    METHOD,
    content_frames,
    frame,
    frame_length,
    joined,
)
from tallymark.wire.amqp091.layouts import decode_method, encode_method
from tallymark.wire.amqp091.methods import BasicDeliver, BasicPublish

WAIT_MS: Final = 1_000
"""Milliseconds that the source's broker waits for a message before it says that there is none."""
STAGE_BYTES: Final = 4 << 20
"""Bytes that are staged at a time: it ends with the message that passes this."""
FRAME_MAX: Final = 131_072
FORGET_MS: Final = 7 * 24 * 3_600_000
"""Milliseconds for which a target remembers a shovel that has moved nothing more."""
ANSWER_S: Final = 60.0
CHANNEL: Final = 1
NEXT: Final = "Tallymark-Next"
PASSING: Final = (408, 409, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed; 409: somebody else holds the subscription."""
REFUSALS: Final = (400, 429)
"""Answers to a commit that some of its messages are the reason for: one reaches no queue, or a
queue has no room for all."""


@final
class Refused(ShovelFailed):
    """A request was refused for what it holds."""


class Http:
    """Requests to one broker's HTTP interface."""

    def __init__(self, url: str, side: str) -> None:
        """url: `http[s]://user:password@host:port/vhost`, the virtual host percent-encoded and "/"
        where there is none. Raises ValueError."""
        parts = urlsplit(url)
        self.vhost = unquote(parts.path.removeprefix("/")) or "/"
        self._base = f"{parts.scheme}://{_bracketed(parts.hostname or 'localhost')}"
        self._base += f":{parts.port or PORTS[parts.scheme]}"
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._headers = {"Authorization": f"Basic {b64encode(login.encode()).decode('ascii')}"}
        self._side = side
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Return the JSON of the answer. Raises ShovelFailed."""
        data = None if body is None else json.dumps(body).encode()
        answer, _ = await self.bytes(method, path, data)
        try:
            return json.loads(answer or b"{}")
        except ValueError as error:
            raise ShovelFailed(f"{self._side}: {path}: the answer is no JSON") from error

    async def bytes(
        self, method: str, path: str, data: bytes | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return body and headers of the answer. Raises ShovelFailed."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_S)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        try:
            async with self._session.request(
                method, URL(self._base + path, encoded=True), data=data
            ) as response:
                found = await response.read()
                if response.status >= 400:
                    may_pass = response.status in PASSING
                    kind = Refused if response.status in REFUSALS else ShovelFailed
                    raise kind(f"{self._side}: {_reason(response, found)}", may_pass)
                return found, response.headers
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ShovelFailed(f"{self._side}: {error or type(error).__name__}") from error

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _reason(response: aiohttp.ClientResponse, body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    with suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["reason"]
    return f"{response.status} {text or response.reason}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@final
class TallymarkSource(Source):
    is_numbered = True

    def __init__(self, url: str, queue: str, name: str) -> None:
        self._http = Http(url, f"source queue {queue}")
        self._queue = queue
        self._prefix = f"shovel:{name}:"
        self._path = ""
        self._rights: dict[str, object] = {}
        self._at = self._next = 0
        self._again = 0
        """Numbers below were handed out before, and may be at the target."""
        self._incoming = Incoming()

    async def open(self) -> None:
        self.origin = await self._find() or f"{self._prefix}{uuid4().hex}"
        names = (self._http.vhost, self._queue, self.origin)
        self._path = "/api/tallymark/subscriptions/" + "/".join(
            quote(name, safe="") for name in names
        )
        held = await self._http.ask("POST", f"{self._path}/attach", {})
        self._rights = {"fence": held["fence"], "epoch": held["epoch"]}
        self._at = held["floor"]
        self._next = held["next"]

    async def _find(self) -> str | None:
        """Return the name of this shovel's subscription, if there is one."""
        found = await self._http.ask("GET", "/api/tallymark/subscriptions")
        names = [
            row["name"]
            for row in found["subscriptions"]
            if (row["vhost"], row["queue"]) == (self._http.vhost, self._queue)
            and self._is_own(row["name"])
        ]
        if len(names) > 1:
            raise ShovelFailed(
                f"queue '{self._queue}' has the subscriptions {', '.join(sorted(names))}, expected "
                "one: two shovels of this name began at the same moment; delete one of them, which "
                "gives back what it holds",
                False,
            )
        return names[0] if names else None

    def _is_own(self, name: str) -> bool:
        """Return whether a subscription is this shovel's, and not of one whose name only begins so:
        behind the colon is the random part, which has none."""
        return name.startswith(self._prefix) and ":" not in name.removeprefix(self._prefix)

    async def begin(self, known: int | None) -> None:
        if known is None:
            self._again = self._next
        elif known > self._next:
            raise ShovelFailed(
                f"source queue {self._queue}: the target has {known} of its messages, and the "
                f"source has handed out {self._next}: it is older than the target, as after a "
                "restore of a backup, and its next messages may be others. Delete the subscription "
                f"'{self.origin}' at the source, and all that the queue holds is moved",
                False,
            )
        elif known > self._at:
            await self._settle(known)
            self._at = known

    async def take(self, most: int) -> Batch | None:
        first = self._at
        parcels: list[tuple[int, Parcel]] = []
        while not parcels:
            end = await self._lease(most)
            if end == self._at:
                return None
            parcels = await self._read(end)  # none where all of it was lost
        numbers = [number for number, _ in parcels]
        return Batch([parcel for _, parcel in parcels], first, self._at, numbers=numbers)

    async def _lease(self, most: int) -> int:
        """Lease up to `most` messages from where it stands; return the number behind them."""
        wanted = {"start": self._at, "max_rows": most, "max_bytes": STAGE_BYTES, "wait_ms": WAIT_MS}
        found = await self._http.ask("POST", f"{self._path}/lease", {**self._rights, **wanted})
        return int(found["end"])

    async def _read(self, end: int) -> list[tuple[int, Parcel]]:
        """Read leased messages up to `end`, or as many as fit an answer, with their numbers."""
        query = f"fence={self._rights['fence']}&epoch={self._rights['epoch']}"
        data, headers = await self._http.bytes(
            "GET", f"{self._path}/deliveries?{query}&from={self._at}&to={end}"
        )
        self._at = int(headers[NEXT])
        return list(self._parcels(data))

    def _parcels(self, data: bytes) -> Iterator[tuple[int, Parcel]]:
        """Return the messages of an answer, with their numbers."""
        at = 0
        while at < len(data):
            header = at + frame_length(data, at)
            method = decode_method(data[at + 7 : header - 1])
            assert isinstance(method, BasicDeliver)
            body = header + frame_length(data, header)
            at = body
            while at < len(data) and data[at] != METHOD:
                at += frame_length(data, at)
            section = data[header + 19 : body - 1]
            raw = self._incoming.sections(method, section, joined(data, body, at))
            is_again = method.redelivered or method.delivery_tag < self._again
            yield method.delivery_tag, Parcel(Message.parse(raw), is_again)

    async def settle(self, batch: Batch) -> None:
        await self._settle(batch.end)

    async def settle_some(self, batch: Batch, put: Sequence[int]) -> None:
        """Settle what stands in front of the first that was refused; where more was put behind it,
        settle all and give back what was refused."""
        if list(put) == list(range(len(put))):
            await self._settle(batch.numbers[len(put)])
            return
        safe = set(put)
        back = [number for place, number in enumerate(batch.numbers) if place not in safe]
        verdicts = [[number, 1, "released"] for number in back]
        wanted = {"fence": self._rights["fence"], "verdicts": verdicts}
        await self._http.ask("POST", f"{self._path}/verdicts", wanted)
        await self._settle(batch.end)

    async def _settle(self, end: int) -> None:
        await self._http.ask("POST", f"{self._path}/settle", {**self._rights, "end": end})

    async def forget(self) -> None:
        await self._http.ask("DELETE", self._path)

    async def close(self) -> None:
        await self._http.close()


@final
class TallymarkTarget(Target):
    def __init__(self, url: str, exchange: str, key: str | None, stamp: Stamp) -> None:
        """key: None: each message's own routing key."""
        self._http = Http(url, f"target {exchange or 'queue ' + str(key)}")
        self._exchange = exchange
        self._key = key
        self._stamp = stamp
        self._outgoing = Outgoing()
        self._sink = ""
        self._path = ""
        self._last = 0
        """Number of the last batch that the sink has, which is the number behind its messages; how
        many there were, where messages have none. 0: there is no sink yet."""

    async def open(self, origin: str) -> int | None:
        self._sink = origin or f"shovel:{self._stamp.name}:{uuid4().hex}"
        names = (self._http.vhost, self._sink)
        self._path = "/api/tallymark/sinks/" + "/".join(quote(name, safe="") for name in names)
        found = await self._http.ask("GET", "/api/tallymark/sinks")
        for row in found["sinks"]:
            if (row["vhost"], row["name"]) == (self._http.vhost, self._sink):
                self._last = int(row["batch"])
                return self._last
        return 0 if origin else None

    async def put(self, batch: Batch) -> None:
        """Put a batch whole, or, where the broker refuses that for the sake of some of its
        messages, as many as it takes of those in front."""
        at, size = 0, len(batch.parcels)
        while at < len(batch.parcels):
            high = min(at + size, len(batch.parcels))
            try:
                await self._put_whole(batch.part(at, high))
            except Refused as error:
                if high - at > 1:
                    size = (high - at + 1) // 2
                    continue
                if at:
                    raise PartlyPut(str(error), range(at), error.may_pass) from error
                raise
            at = high

    async def _put_whole(self, batch: Batch) -> None:
        """Put a batch whole. Raises Refused: nothing of it was published."""
        number = batch.end or self._last + 1
        staged: list[int] = []
        try:
            messages = await self._stamp.put_on_all(batch.parcels)
        except ClientError as error:
            raise _unreadable(error) from error
        wanted = {
            "identity": self._sink,
            "batch": number,
            "after": self._last,
            "staging": staged,
            "forget_ms": 0 if batch.end else FORGET_MS,
        }
        try:
            for frames, count in self._chunks(batch, messages):
                data, _ = await self._http.bytes(
                    "POST", f"{self._path}/stage?count={count}", frames
                )
                staged.append(json.loads(data)["staging"])
            await self._http.ask("POST", f"{self._path}/commit", wanted)
        except Refused:
            if staged:  # they would be kept for hours
                await self._http.ask("POST", f"{self._path}/abort", {"staging": staged})
            raise
        self._last = number

    def _chunks(self, batch: Batch, messages: list[Message]) -> Iterator[tuple[bytes, int]]:
        """Return frames to stage, and how many messages they are."""
        parts: list[bytes] = []
        size = count = 0
        for parcel, message in zip(batch.parcels, messages, strict=True):
            try:
                section, body, _ = self._outgoing.content(message.encode())
            except ValueError as error:
                raise _unreadable(error) from error
            key = parcel.key if self._key is None else self._key
            publish = encode_method(BasicPublish(self._exchange, key, mandatory=True))
            parts.append(frame(METHOD, CHANNEL, publish))
            parts.append(content_frames(CHANNEL, section, body, FRAME_MAX))
            size += len(parts[-1])
            count += 1
            if size >= STAGE_BYTES:
                yield b"".join(parts), count
                parts, size, count = [], 0, 0
        if count:
            yield b"".join(parts), count

    async def forget(self) -> None:
        if self._last:
            await self._http.ask("DELETE", self._path)

    async def close(self) -> None:
        await self._http.close()


def _unreadable(error: Exception) -> ShovelFailed:
    return ShovelFailed(f"a message that cannot be read: {error}", False)
