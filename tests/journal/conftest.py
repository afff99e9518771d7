"""A journal in each of its homes, for the tests that say the same of all of them.

def test_...(disk: Disk) -> None:     # in its folder, and with a home outside of it
@local                                # in its folder only: what is not so elsewhere
def test_...(disk: Disk) -> None:
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.journal.builders import HOMES, Disk, Elsewhere
from tests.support.memory_home import MemoryHome
from tests.support.postgresql import MISSING, Cluster, find_postgresql

if TYPE_CHECKING:
    from tests.journal.builders import Keeper


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL with a synchronous standby."""
    if find_postgresql() is None:
        pytest.skip(MISSING)
    with Cluster(standbys=1) as made:
        yield made


@pytest.fixture(params=HOMES)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk | None]:
    """A journal in one of its homes; None for "twin", which tests of the journal's twin ask for."""
    if request.param == "twin":
        yield None
        return
    folder = tmp_path / "data"
    folder.mkdir()
    if request.param == "local":
        yield Disk(folder)
        return
    keeper: Keeper
    if request.param == "memory":
        keeper = MemoryHome()
    else:
        from tests.support.postgresql_home import PostgresqlKeeper

        keeper = PostgresqlKeeper(request.getfixturevalue("cluster").url())
    yield Elsewhere(folder, keeper)
    keeper.close()
