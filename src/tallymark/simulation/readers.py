"""Readers of durable subscriptions: the Spark source's protocol as a small state machine.

A *query* is what outlives its drivers: a checkpoint (which batches were planned, which are
committed) and a table that takes each batch once. A driver attaches, runs again what was planned
and not committed, and then: settle what is committed, lease, plan, begin, read, judge, commit. It
may hang or end between any two of these steps, and another driver of the same query may attach
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tallymark.simulation.clients import Clients
from tallymark.simulation.history import Violated
from tallymark.simulation.http import HttpClient, Refused
from tallymark.simulation.models.leases import Leases
from tallymark.simulation.plan import SubscriptionPlan
from tallymark.spark.decode import decode_answer

FENCED: Final = 409
COLUMNS: Final = ("lease_sequence", "redelivered", "body")
WAIT_MS: Final = 500
LAST_ROWS: Final = 100
"""Messages that a driver leases at least when only the rest is left to be read."""


class Ended(Exception):
    """This driver has come to its end."""


class Fenced(Ended):
    """Another driver has attached since."""


@dataclass
class Query:
    """A query: its checkpoint and its table, which outlive its drivers."""

    epoch: int = 0
    first: int = 0
    planned: list[int] = field(default_factory=list)
    """Ends of the batches, by number."""
    table: dict[int, list[str]] = field(default_factory=dict)
    """Names of messages by batch: those that are committed."""

    def start_of(self, number: int) -> int:
        return self.planned[number - 1] if number else self.first


class Readers:
    """The readers of one subscription."""

    def __init__(self, clients: Clients, plan: SubscriptionPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._random = clients.world.random
        self._history = clients.history
        self._query = Query()
        self._model = Leases(clients.history, plan.queue, plan.name)

    async def read(self, name: str, is_rival: bool) -> None:
        """Be the query's driver again and again. is_rival: one that comes now and then, though
        another one may be at work."""
        clients = self._clients
        is_done = False
        while not is_done:
            if is_rival:
                await clients.pause(2.0)
                if not clients.consuming:
                    return
            driver = _Driver(self, name, is_rival)
            try:
                is_done = await driver.work()
            except (OSError, Ended) as error:
                self._history.note(f"{name} ends: {type(error).__name__}: {str(error)[:80]}")
            finally:
                driver.close()
            await clients.pause(0.3)


class _Driver:
    """One life of one driver."""

    def __init__(self, readers: Readers, name: str, is_rival: bool) -> None:
        self._name = name
        self._is_rival = is_rival
        self._clients = clients = readers._clients
        self._plan = readers._plan
        self._random = readers._random
        self._history = readers._history
        self._query = readers._query
        self._model = readers._model
        self._http = [HttpClient(clients.network, clients.loop) for _ in range(2)]
        """Clients of the driver and of an executor."""
        self._fence = 0
        plan = self._plan
        self._path = f"/api/tallymark/subscriptions/%2F/{plan.queue}/{plan.name}"

    def close(self) -> None:
        for one in self._http:
            one.close()

    async def work(self) -> bool:
        """Work until all is done, and return True. Raises Ended, OSError, Violated."""
        await self._attach()
        try:
            return await self._go_on()
        except Fenced:
            await self._insist()
            raise

    async def _insist(self) -> None:
        """Ask for one thing more, as a driver does that does not know yet. A power cut may have
        undone the attach that fenced it: then it is let through. Raises Ended."""
        query = self._query
        number = len(query.planned)
        if number and number - 1 not in query.table:
            number -= 1  # no driver settles a batch that is not committed
        start = query.start_of(number)
        ask = self._random.choice(("settle", "lease", "begin"))
        if ask == "settle":
            await self._settle(start)
        elif ask == "lease":
            await self._lease(start, 0)
        else:
            await self._begin(start, start)

    async def _go_on(self) -> bool:
        """Run batch after batch, and return True when all is done."""
        query = self._query
        while True:
            number = len(query.planned)
            if number and number - 1 not in query.table:
                self._history.seen.add("batch run again")
                await self._run(number - 1)
            start = query.start_of(number)
            await self._settle(start)
            goes_on = self._clients.consuming
            if self._is_rival and not goes_on:
                return True
            end = await self._lease(start, WAIT_MS if goes_on else 0)
            if end > start:
                if len(query.planned) > number:
                    raise Ended("another driver planned this batch")
                query.planned.append(end)
                await self._run(number)
            elif not goes_on:
                return True

    async def _pause(self) -> None:
        """Take time between two steps; hang or end there now and then."""
        drawn = self._random.random()
        if not self._clients.consuming:
            return
        if drawn < self._plan.ends:
            raise Ended("as drawn")
        if drawn < self._plan.ends + self._plan.hangs:
            self._history.seen.add("driver hung")
            await self._clients.pause(3.0)
        else:
            await self._clients.pause(self._plan.pause_s)

    async def _ask(self, method: str, operation: str, value: dict[str, Any]) -> Any:
        """Ask with the fence; again while nobody answers. Raises Ended: fenced."""
        model = self._model
        tries = 0
        while True:
            was_stale = model.is_stale(self._fence)
            try:
                found = await self._http[0].call(
                    method, f"{self._path}/{operation}", {"fence": self._fence, **value},
                    value.get("wait_ms", 0) / 1000,
                )  # fmt: skip
            except Refused as error:
                raise self._refused(error, operation) from error
            except OSError:
                tries += 1
                if tries > 3 and self._clients.consuming:
                    raise
                await self._clients.pause(0.2)
            else:
                model.passed(self._fence, was_stale, operation)
                return found

    def _refused(self, error: Refused, operation: str) -> Exception:
        if error.status != FENCED:
            return Violated(f"{self._name}: {operation} was refused: {error}")
        self._model.refused(self._fence)
        return Fenced("fenced")

    async def _attach(self) -> None:
        query = self._query
        while True:
            attach, known = self._model.attaches(), self._model.known()
            try:
                found = await self._http[0].call("POST", f"{self._path}/attach", {})
                break
            except OSError:
                await self._clients.pause(0.2)
        self._history.note(f"{self._name} attached: {found}")
        self._fence = found["fence"]
        self._model.attached(
            attach, known, found["epoch"], self._fence, found["floor"], found["next"]
        )
        if not query.epoch:
            query.epoch, query.first = found["epoch"], found["floor"]
        await self._pause()

    async def _settle(self, end: int) -> None:
        self._model.settles(end)
        known = self._model.known()
        found = await self._ask("POST", "settle", {"epoch": self._query.epoch, "end": end})
        self._model.settled(known, end, found["floor"])
        await self._pause()

    async def _lease(self, start: int, wait_ms: int) -> int:
        most = self._plan.rows
        if not self._clients.consuming:  # a backlog read one by one takes most of a world
            most = max(most, LAST_ROWS)
        asked = {"epoch": self._query.epoch, "start": start, "max_rows": most, "wait_ms": wait_ms}
        known = self._model.known()
        found = await self._ask("POST", "lease", asked)
        self._model.leased(known, self._fence, start, found["end"], most)
        await self._pause()
        return int(found["end"])

    async def _begin(self, start: int, end: int) -> None:
        epoch = self._query.epoch
        await self._ask("POST", "begin", {"epoch": epoch, "start": start, "end": end})
        self._model.begins(self._fence, start)

    async def _run(self, number: int) -> None:
        """Run a batch: what Spark does from its plan to its commit."""
        query = self._query
        start, end = query.start_of(number), query.planned[number]
        await self._begin(start, end)
        await self._pause()
        names: list[str] = []
        at = start
        while at < end:
            upto = min(end, at + self._random.choice([1, 7, 100]))
            names += await self._read(at, upto)
            at = upto
        self._history.note(f"{self._name} read batch {number}, {start} to {end}")
        await self._pause()
        said = self._verdicts(start, end)
        if said:
            self._model.judges(said)
            await self._ask("POST", "verdicts", {"verdicts": said})
            self._model.judged(self._fence, said)
        await self._pause()
        if number in query.table:
            raise Ended("another driver committed this batch")
        query.table[number] = names
        await self._pause()

    def _verdicts(self, start: int, end: int) -> list[tuple[int, int, str]]:
        plan, found = self._plan, []
        if not self._clients.consuming:
            return []
        for sequence in range(start, end):
            drawn = self._random.random()
            for outcome, likely in (
                ("rejected", plan.reject), ("released", plan.release), ("modified", plan.fail),
            ):  # fmt: skip
                if drawn < likely:
                    found.append((sequence, 1, outcome))
                    break
                drawn -= likely
        return found

    async def _read(self, low: int, high: int) -> list[str]:
        """Read a range as an executor does; again while nobody answers."""
        model = self._model
        path = (
            f"{self._path}/read?fence={self._fence}&epoch={self._query.epoch}&from={low}&to={high}"
        )
        is_apart = self._random.random() < 0.5
        rows: list[tuple[int, str, bytes, bool]] = []
        tries = 0
        while low + len(rows) < high:
            was_stale = model.is_stale(self._fence)
            at = low + len(rows)
            asked = path.replace(f"from={low}", f"from={at}")
            if is_apart:
                asked += f"&max_bytes={self._random.choice([1, 500, 100_000])}"
            try:
                _, data = await self._http[1].fetch("GET", asked)
            except Refused as error:
                raise self._refused(error, "read") from error
            except OSError:
                tries += 1
                if tries > 3 and self._clients.consuming:
                    raise
                await self._clients.pause(0.2)
                continue
            model.passed(self._fence, was_stale, "read")
            found = self._rows(data)
            if not found:
                raise Violated(f"{self._name}: an answer to {asked} is empty")
            rows += found
        model.has_read(low, high, rows)
        return [name for _, name, _, _ in rows]

    def _rows(self, data: bytes) -> list[tuple[int, str, bytes, bool]]:
        rows = []
        for found in decode_answer(data, self._plan.queue, COLUMNS, self._fence):
            for row in found.batch.to_pylist():
                name = row["body"].split(b" ")[0].decode()
                rows.append((row["lease_sequence"], name, row["body"], row["redelivered"]))
        return rows
