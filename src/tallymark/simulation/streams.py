"""Readers of a stream over HTTP: ranges of offsets, with a plan that holds them or without."""

from __future__ import annotations

from typing import Any, Final

from tallymark.simulation.clients import Clients
from tallymark.simulation.history import Violated
from tallymark.simulation.http import HttpClient, Refused
from tallymark.simulation.models.streams import Stream
from tallymark.simulation.plan import StreamPlan
from tallymark.spark.decode import decode_offsets

GONE: Final = 410
UNKNOWN: Final = 404
NEXT: Final = "tallymark-next"
COLUMNS: Final = ("offset", "body")


class StreamReaders:
    """Readers of one stream."""

    def __init__(self, clients: Clients, plan: StreamPlan) -> None:
        self._clients = clients
        self.plan = plan
        self._random = clients.world.random
        publishers = [one for one in clients.plan.publishers if one.target == plan.name]
        is_numbered = any(one.is_numbered for one in publishers)
        self._model = Stream(clients.history, plan, is_numbered)
        self._path = f"/api/tallymark/streams/%2F/{plan.name}"

    async def read(self, name: str) -> None:
        """Follow the stream until told to end, and then to its end."""
        clients = self._clients
        http = HttpClient(clients.network, clients.loop)
        at = 0
        is_gone = False
        while True:
            goes_on = clients.consuming
            rows, wait_ms = (self.plan.rows, 300) if goes_on else (1000, 0)
            try:
                if is_gone or self._random.random() < 0.1:
                    at = await self._first(http, name)  # what was read has not changed
                    is_gone = False
                found = await http.call(
                    "GET", f"{self._path}/range?from={at}&max_rows={rows}"
                    f"&wait_ms={wait_ms}", wait_s=0.3,
                )  # fmt: skip
                if found["to"] > at:
                    at = await self._read(http, name, at, found["to"], found["first"])
                elif not goes_on:
                    break
                await clients.pause(self.plan.pause_s)
            except Refused as error:  # of the range: nothing holds it
                if error.status != GONE:
                    raise Violated(f"{name}: range from {at}: {error}") from error
                clients.history.seen.add("stream range gone")
                is_gone = True
            except OSError as error:
                clients.history.note(f"{name} gone: {error!r}")
                await clients.pause(0.1)
        http.close()

    async def archive(self) -> None:
        """Record now and then that all of it is archived, and look whether that stays so."""
        clients = self._clients
        http = HttpClient(clients.network, clients.loop)
        while clients.is_publishing():
            try:
                known = self._model.archived
                stat = await http.call("GET", f"{self._path}/archive")
                self._model.is_archived_to(_end(stat), known)
                low = max(_end(stat), stat["first"])
                high = (await http.call("GET", self._path))["next"]
                if high > low:
                    rows = await self._count(http, low, high)
                    made = {
                        "from": low, "to": high, "id": stat["id"], "rows": rows,
                        "archive": "world", "checksum": "none", "place": f"{low}",
                    }  # fmt: skip
                    self._model.archives(high)
                    stat = await http.call("POST", f"{self._path}/archive", made)
                    self._model.is_archived_to(_end(stat), high)
                    clients.history.seen.add("stream archived")
            except Refused as error:
                if error.status != GONE:
                    raise Violated(f"archive of {self.plan.name}: {error}") from error
            except OSError as error:
                clients.history.note(f"archive of {self.plan.name}: {error!r}")
            await clients.pause(0.2)
        http.close()

    async def _count(self, http: HttpClient, low: int, high: int) -> int:
        """Return how many messages a range has, without those of a number that was there before."""
        count = 0
        while low < high:
            low, rows = await self._fetch(http, low, high, "")
            count += rows
        return count

    async def check(self) -> None:
        """Read the whole stream and check it, when nothing happens any more."""
        http = HttpClient(self._clients.network, self._clients.loop)
        stat = await http.call("GET", self._path)
        at = stat["first"]
        while at < stat["next"]:
            at = await self._part(http, at, stat["next"], "")
        self._model.check_end(stat["first"], stat["next"])
        http.close()

    async def _first(self, http: HttpClient, name: str) -> int:
        life = self._clients.broker.life
        stat = await http.call("GET", self._path)
        if self._clients.broker.life == life:
            self._model.begins_at(stat["first"], name, life)
        return int(stat["first"])

    async def _read(self, http: HttpClient, name: str, low: int, high: int, first: int) -> int:
        """Read a range; returns where to go on. A range without a plan may be gone by now."""
        plan, life = "", self._clients.broker.life
        try:
            if self._clients.consuming and self._random.random() < 0.5:
                asked = {"from": low, "to": high}
                plan = (await http.call("POST", f"{self._path}/plans", asked))["plan"]
                self._clients.history.seen.add("stream plan")
                await self._clients.pause(0.3)
            at = low
            while at < high:
                at = await self._part(http, at, high, plan)
                await self._clients.pause(self.plan.pause_s)
            if plan:
                await http.call("DELETE", f"{self._path}/plans/{plan}")
        except Refused as error:
            is_of_plan = error.status == UNKNOWN and self._clients.broker.life != life
            if error.status == GONE and (not plan or self._clients.broker.life != life):
                self._clients.history.seen.add("stream range gone")
            elif not is_of_plan:
                raise Violated(f"{name}: {low} to {high} with plan {plan!r}: {error}") from error
            return max(low, await self._first(http, name))
        return high

    async def _part(self, http: HttpClient, low: int, high: int, plan: str) -> int:
        return (await self._fetch(http, low, high, plan))[0]

    async def _fetch(self, http: HttpClient, low: int, high: int, plan: str) -> tuple[int, int]:
        """Read the beginning of a range; return where to go on, and how many messages came."""
        most = self._random.choice([1, 400, 100_000]) if self._clients.consuming else 100_000
        headers, data = await http.fetch(
            "GET", f"{self._path}/read?from={low}&to={high}&max_bytes={most}"
            + (f"&plan={plan}" if plan else ""),
        )  # fmt: skip
        upto = int(headers[NEXT])
        if upto <= low:
            raise Violated(f"an answer from {low} goes on at {upto}")
        rows = _rows(data, low, upto, self.plan.name)
        self._model.read(low, upto, rows)
        return upto, len(rows)


def _end(stat: dict[str, Any]) -> int:
    """Return the offset behind what is archived."""
    archived = stat["archived"]
    return int(archived["to"]) if archived else 0


def _rows(data: bytes, low: int, high: int, stream: str) -> list[tuple[int, str, bytes]]:
    rows: list[tuple[int, str, bytes]] = []
    for batch in decode_offsets(data, low, high, stream, COLUMNS, None):
        for row in batch.to_pylist():
            rows.append((row["offset"], _name(row), row["body"]))
    return rows


def _name(row: dict[str, Any]) -> str:
    return str(row["body"].split(b" ")[0].decode())
