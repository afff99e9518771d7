"""The drivers of a world do what Spark's do, and their model hears of it."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tallymark.simulation.clients import Clients
from tallymark.simulation.history import History
from tallymark.simulation.plan import Plan, QueuePlan, SubscriptionPlan
from tallymark.simulation.readers import Query, Readers, _Driver
from tallymark.simulation.world import World


class Unfenced(_Driver):
    """A driver that was fenced by an attach which a power cut undid: the broker takes all."""

    asked: list[tuple[str, int]]

    async def _ask(self, method: str, operation: str, value: dict[str, Any]) -> Any:
        self.asked.append((operation, value.get("start", value.get("end"))))
        return {"floor": value.get("end"), "end": self._query.planned[-1]}


def driver(query: Query, seed: int) -> Unfenced:
    """A driver of the query, of which batch 0, sequences 0 to 2, is leased."""
    world = World(1)
    world.random = Random(seed)
    history = History(world, Plan(1, 1.0, queues=(QueuePlan("q"),)))
    clients = SimpleNamespace(
        world=world, history=history, network=None, loop=None, consuming=False
    )
    readers = Readers(cast(Clients, clients), SubscriptionPlan("s", "q"))
    readers._query = query
    model = readers._model
    model.attached(model.attaches(), model.known(), 1, 1, 0, 0)
    model.leased(model.known(), 1, 0, query.planned[-1], 10)
    found = Unfenced(readers, "s", is_rival=False)
    found.asked = []
    return found


@pytest.mark.parametrize(
    ("query", "start"),
    [
        (Query(1, 0, [3, 7], {0: ["a"]}), 3),
        (Query(1, 0, [3, 7], {0: ["a"], 1: ["b"]}), 7),
        (Query(1, 0, [3], {}), 0),
    ],
)
def test_a_fenced_driver_asks_for_nothing_behind_what_is_committed(
    query: Query, start: int
) -> None:
    """World 9963977: it settled a batch that was planned and not read yet, and was let through,
    since a power cut had undone the attach that fenced it."""
    seen = set()
    for seed in range(20):
        one = driver(query, seed)
        asyncio.run(one._insist())
        ((operation, at),) = one.asked
        assert at == start
        if operation == "settle":
            assert one._model.known()[0] == start, "the model knows that it may have happened"
        seen.add(operation)
    assert seen == {"settle", "lease", "begin"}
