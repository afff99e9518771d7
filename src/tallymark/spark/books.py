"""The books: an account in numbers, kept, so that a later one costs what happened since.

What has ended is summed up by queue and hour; of what is still there, the stretches are kept. An
account goes on from both: it reads the blocks behind their position, and sweeps over them and what
was there. So the books of a queue are as long as its backlog is torn, and not as its history.

    DIR/0000001e00000040/balances.parquet   by queue and hour: entered, settled, ...; what has ended
    DIR/0000001e00000040/open.parquet       stretches of messages that are still there
    DIR/0000001e00000040/books.json         position, names, sums that have no hour, faults

A folder is made whole or not at all, and named by its position in the journal.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tallymark.spark.client import CannotRun
from tallymark.spark.ranges import LIVE, Gathered, Ranges, merged
from tallymark.spark.sweep import (
    BALANCE,
    FAULT,
    MOST_FAULTS,
    QUEUE,
    STRETCH,
    Array,
    Before,
    Judged,
    Pairs,
    judge,
    none_of,
    ranges_of,
)

VERSION: Final = 1
SUMMARY: Final = "books.json"
KEPT: Final = 2
"""Books that stay in a folder: the newest, and the one before it."""


@dataclass(slots=True)
class Books:
    """The account of all queues up to a position, in numbers."""

    position: int = 0
    salt: int = 0
    """Salt of the segment in which the position is: another journal has another."""
    judged: Judged = field(default_factory=Judged)
    """Account of the queues, with the drops and letters of all time."""
    returned: Pairs = field(default_factory=dict)
    """Deliveries by queue and reason."""
    leased: dict[int, int] = field(default_factory=dict)
    definitions: set[str] = field(default_factory=set)

    # -- what they say

    def names(self) -> dict[int, tuple[str, str]]:
        """Return (virtual host, name) of queues by id."""
        found = {}
        for said in self._said("queue"):
            found[int(said["id"])] = (str(said["vhost"]), str(said["name"]))
        return found

    def sinks(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Return the checkpoint and the newest batch of each sink, by virtual host and name."""
        found: dict[tuple[str, str], tuple[str, int]] = {}
        for said in self._said("sink"):
            key = (str(said["vhost"]), str(said["name"]))
            one = (str(said["identity"]), int(said["batch"]))
            found[key] = max(found.get(key, one), one, key=lambda pair: pair[1])
        return found

    def _said(self, *ops: str) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in sorted(self.definitions)]
        return [one for one in found if one.get("op") in ops]

    # -- going on

    def go_on(
        self, position: int, salt: int, gathered: Gathered, judged: Judged | None = None
    ) -> Books:
        """Return the books up to a later position. gathered: from there on, and of the checkpoint
        at that position; judged: `ranges_now` of that, where it was done elsewhere."""
        definitions = _newest(self.definitions | gathered.definitions)
        if judged is None:
            judged = judge(self.ranges_now(gathered.ranges), self.knowledge(definitions))
        old = self.judged
        whole = Judged(
            _added(old.balances[old.balances["open"] == 0], judged.balances),
            _queues(old.queues, judged.queues),
            np.concatenate([old.faults[old.faults["open"] == 0], judged.faults])[:MOST_FAULTS],
            judged.open,
            _sum(old.dropped, judged.dropped),
            _sum(old.letters, judged.letters),
        )
        leased = {
            epoch: max(self.leased.get(epoch, 0), gathered.leased.get(epoch, 0))
            for epoch in self.leased.keys() | gathered.leased.keys()
        }
        returned = _sum(self.returned, gathered.returned)
        return Books(position, salt, whole, returned, leased, definitions)

    def ranges_now(self, new: Ranges) -> Ranges:
        """Return the ranges that are to be judged: what was still there, and what is new."""
        old = ranges_of(self.judged.open)
        # That it is still there is said anew, by the later checkpoint.
        return merged(np.concatenate([old[old["what"] != LIVE], new]))

    def knowledge(self, definitions: set[str]) -> dict[int, Before]:
        """Return the knowledge of queues before their ranges are looked at, from these books and
        from definitions."""
        sparse = sparse_vhosts(definitions)
        vhosts = {id: vhost for id, (vhost, _) in self.names().items()}
        for text in definitions:
            said = json.loads(text)
            if said.get("op") == "queue":
                vhosts[int(said["id"])] = str(said["vhost"])
        found = {id: Before(is_sparse=vhost in sparse) for id, vhost in vhosts.items()}
        for row in self.judged.queues:
            id = int(row["queue"])
            is_sparse = vhosts.get(id, "") in sparse
            found[id] = Before(int(row["begin"]), int(row["end"]), int(row["top"]), is_sparse)
        return found

    # -- stored

    def write(self, folder: Path) -> Path:
        """Store the books, and forget older ones but one. Return their folder."""
        to = folder / f"{self.position:016x}"
        aside = folder / f".{to.name}.part"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        balances = self.judged.balances
        table = _table(balances[balances["open"] == 0])
        names = self.names()
        said = [names.get(id, ("", f"(id {id})")) for id in table.column("queue").to_pylist()]
        table = table.append_column("vhost", pa.array([one[0] for one in said], pa.string()))
        table = table.append_column("name", pa.array([one[1] for one in said], pa.string()))
        pq.write_table(table, aside / "balances.parquet")
        pq.write_table(_table(self.judged.open), aside / "open.parquet")
        closed = self.judged.faults[self.judged.faults["open"] == 0]
        summary = {
            "version": VERSION,
            "position": self.position,
            "salt": self.salt,
            "queues": [[int(x) for x in row] for row in self.judged.queues],
            "faults": [[int(x) for x in row] for row in closed],
            "dropped": _rows(self.judged.dropped),
            "letters": _rows(self.judged.letters),
            "returned": _rows(self.returned),
            "leased": sorted(self.leased.items()),
            "definitions": sorted(self.definitions),
        }  # fmt: skip
        (aside / SUMMARY).write_text(json.dumps(summary))
        shutil.rmtree(to, ignore_errors=True)
        aside.rename(to)
        for old in sorted(stored(folder))[:-KEPT]:
            shutil.rmtree(old)
        return to

    @classmethod
    def read(cls, folder: Path) -> Books:
        """Return the newest books of a folder; empty ones where it has none. Raises CannotRun."""
        found = sorted(stored(folder))
        if not found:
            return cls()
        path = found[-1]
        try:
            said = json.loads((path / SUMMARY).read_text())
            if said["version"] != VERSION:
                raise CannotRun(f"{path}: version {said['version']!r}, expected {VERSION}")
            judged = Judged(
                _array(pq.read_table(path / "balances.parquet"), BALANCE),
                np.array([tuple(row) for row in said["queues"]], QUEUE),
                np.array([tuple(row) for row in said["faults"]], FAULT),
                _array(pq.read_table(path / "open.parquet"), STRETCH),
                _pairs(said["dropped"]),
                _pairs(said["letters"]),
            )
            leased = {int(epoch): int(end) for epoch, end in said["leased"]}
            return cls(
                int(said["position"]), int(said["salt"]), judged, _pairs(said["returned"]), leased,
                set(said["definitions"]),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise CannotRun(
                f"{path}: not the books of an account ({error}); remove the folder to begin anew"
            ) from error


def stored(folder: Path) -> list[Path]:
    """Return the folders with books in a folder."""
    if not folder.is_dir():
        return []
    return [
        path for path in folder.iterdir()
        if len(path.name) == 16 and (path / SUMMARY).is_file()
    ]  # fmt: skip


def sparse_vhosts(definitions: set[str]) -> set[str]:
    """Return the virtual hosts in which the ledger may lack deliveries: a policy `ledger = account`
    is or was there, or one was deleted of which nothing is known."""
    found = set()
    for text in definitions:
        said = json.loads(text)
        op = str(said.get("op"))
        settings = dict(said.get("definition") or {})
        is_sparse = op.startswith("delete_") or settings.get("ledger") == "account"
        if op.endswith("policy") and is_sparse:
            found.add(str(said["vhost"]))
    return found


def _queues(old: Array, new: Array) -> Array:
    """Return all that is known of the queues: the newer word where there are two, and no messages
    left in those of which nothing new is said."""
    rest = old[~np.isin(old["queue"], new["queue"])].copy()
    rest["live_before"] = 0
    both = np.concatenate([rest, new])
    return both[np.argsort(both["queue"])]


def _added(old: Array, new: Array) -> Array:
    both = np.concatenate([old, new])
    names = ("open", "reason", "hour", "queue")
    both = both[np.lexsort([both[name] for name in names])]
    if not len(both):
        return none_of(BALANCE)
    is_new = np.ones(len(both), bool)
    is_new[1:] = False
    for name in names:
        is_new[1:] |= both[name][1:] != both[name][:-1]
    starts = np.flatnonzero(is_new)
    out = both[starts]
    for name in BALANCE.names or ():
        if name not in names:
            out[name] = np.add.reduceat(both[name], starts)
    return out


def _sum(old: Pairs, new: Pairs) -> Pairs:
    return {key: old.get(key, 0) + new.get(key, 0) for key in old.keys() | new.keys()}


def _rows(pairs: Pairs) -> list[list[int]]:
    return [[*key, count] for key, count in sorted(pairs.items())]


def _pairs(rows: list[list[int]]) -> Pairs:
    return {(int(a), int(b)): int(n) for a, b, n in rows}


def _newest(definitions: set[str]) -> set[str]:
    """Return the definitions without those that a later batch of the same sink has replaced."""
    out: set[str] = set()
    batches: dict[tuple[str, str, str], tuple[int, str]] = {}
    for text in definitions:
        said = json.loads(text)
        if said.get("op") != "sink":
            out.add(text)
            continue
        key = (str(said["vhost"]), str(said["name"]), str(said["identity"]))
        batches[key] = max(batches.get(key, (-1, "")), (int(said["batch"]), text))
    return out | {text for _, text in batches.values()}


def _table(rows: Array) -> pa.Table:
    names = list(rows.dtype.names or ())
    return pa.table({name: pa.array(np.ascontiguousarray(rows[name])) for name in names})


def _array(table: pa.Table, dtype: np.dtype[Any]) -> Array:
    out = np.zeros(table.num_rows, dtype)
    for name in dtype.names or ():
        out[name] = table.column(name).to_numpy()
    return out
