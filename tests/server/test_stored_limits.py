"""The file of limits, while it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tallymark.engine.quotas import Limits, Quotas
from tallymark.server.access.limits import StoredLimits, load_limits


def test_a_virtual_host_that_ends_while_limits_are_written_leaves_none(tmp_path: Path) -> None:
    quotas = Quotas()
    limits = StoredLimits(tmp_path, quotas, lambda: None)

    def both(vhosts: Limits, users: Limits) -> None:
        vhosts["goes"] = vhosts["stays"] = {"max-queues": 1}
        users["ann"] = {"max-connections": 1}

    def more(vhosts: Limits, users: Limits) -> None:
        vhosts["stays"] = {"max-queues": 2}
        users["new"] = {"max-connections": 1}

    async def play() -> None:
        await limits.change(both)
        quotas.users["gone"] = {"max-connections": 1}
        change = asyncio.create_task(limits.change(more))
        await asyncio.sleep(0)  # it is being written
        limits.forget({"goes", "stays"}, {"ann", "new"})  # a user ends
        limits.forget({"stays"})  # then the virtual host
        await change

    asyncio.run(play())
    stored = Quotas()
    load_limits(tmp_path, stored)
    for found in (quotas, stored):
        assert found.vhosts == {"stays": {"max-queues": 2}}
        assert found.users == {name: {"max-connections": 1} for name in ("ann", "new")}
