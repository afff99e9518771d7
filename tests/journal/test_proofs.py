"""Proofs of what is in the database, without one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from tallymark.journal.postgresql.connection import Connection
from tallymark.journal.postgresql.errors import WentBack
from tallymark.journal.postgresql.proofs import Proofs


class Empty:
    """A connection to a database that has nothing."""

    def execute(self, *_: object) -> Empty:
        return self

    def fetchone(self) -> None:
        return None


def test_a_lease_does_not_wait_for_files_that_are_being_changed() -> None:
    """A change may last as long as the database is away, and longer than a lease."""
    proofs, connection = Proofs(1), cast(Connection, Empty())
    proofs.appended(1 << 32, 0, 7)
    with ThreadPoolExecutor(1) as lease:
        with proofs.changing():
            assert lease.submit(proofs.check_soon, connection).result(timeout=10) is False
        with pytest.raises(WentBack, match="at position 0x100000000"):
            lease.submit(proofs.check_soon, connection).result(timeout=10)
        with proofs.changing():  # was given back, also after the error
            pass
