"""The witness sees a leader that commits after a later one has."""

from __future__ import annotations

import psycopg
import pytest

from tallymark.journal.postgresql.schema import make_partition
from tests.cluster.witness import Witness
from tests.support.long import long
from tests.support.postgresql import MISSING, Cluster, find_postgresql


@long(ci=False)  # PostgreSQL: seconds. CI has none
@pytest.mark.skipif(find_postgresql() is None, reason=MISSING)
def test_a_commit_of_an_older_epoch_after_one_of_a_newer_is_seen() -> None:
    with Cluster() as servers:
        witness = Witness(servers.url())
        with psycopg.connect(servers.url(), autocommit=True) as connection:
            make_partition(connection, 1, 1)
            for at, epoch in enumerate((1, 1, 2, 3)):
                insert(connection, at, epoch)
            connection.execute("DROP TABLE tallymark.block_1_1")
            assert witness.epochs() == {}, "no message is in these rows"
            make_partition(connection, 1, 1)
            insert(connection, 9, 2)
            with pytest.raises(AssertionError, match="epoch 2 committed after epoch 3"):
                witness.epochs()


def insert(connection: psycopg.Connection[tuple[object, ...]], at: int, epoch: int) -> None:
    connection.execute(
        "INSERT INTO tallymark.block_1_1 VALUES (1, %s, %s, 0, '')", (1 << 32 | at, epoch)
    )
